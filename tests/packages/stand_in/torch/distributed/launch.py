"""As torch's module of this name: a parser with one option more, and torch.distributed.run's `run`."""

from torch.distributed.run import get_args_parser, run

if __name__ == "__main__":
    parser = get_args_parser()
    parser.add_argument("--use-env", "--use_env", default=False, action="store_true")
    run(parser.parse_args())
