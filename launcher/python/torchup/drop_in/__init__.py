"""What starts torchrun starts torchup.

    python -m torchup.drop_in COMMAND [ARGUMENT...]

runs COMMAND (accelerate launch, fabric run, ./run_train.sh, python -m torch.distributed.run, …) with torchup in the
place of torchrun: of the command, and of the functions `run` and `main` of torch.distributed.run, in every Python that
COMMAND starts. No file of torch's or of the command's is changed, and nothing stays when it has ended.

* The command torchrun, and `python -m torch.distributed.run`, become torchup, with the words as they are.
* Called as functions, torchup is a child of the caller: they return when it has ended with 0, else they raise
  SystemExit with its code; signals of the caller are passed on, and it does not outlive the caller. A namespace becomes
  words by torch's own parser. An option that torchup does not know is refused by it (2).
* torchup and the workers see the environment as it was before; the workers' Python is the one that called.

torch's elastic_launch, which starts functions, and launchers with workers of their own (DeepSpeed's) stay theirs. So
does all in a Python that reads no environment (python -I, -E) or no sitecustomize (-S), and what a script calls by
torch's name after it has set PATH or PYTHONPATH anew.

Ends with what COMMAND ends with; 127 where there is none such, 126 where it cannot be executed, 2 without a COMMAND.
"""
