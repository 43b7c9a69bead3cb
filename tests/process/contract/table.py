"""What a case of the contract is: a row, the same for torchrun and torchup. The rows stand in *_cases.py."""
import dataclasses
import importlib.util
import pathlib
import socket
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The workers' Python: the one that runs the driver when it has torch, else that of the checkout, else any.
HAS_TORCH = importlib.util.find_spec("torch") is not None or any((ROOT / ".venv/lib").glob("python3*/site-packages/torch"))
PYTHON = (sys.executable if importlib.util.find_spec("torch") or not (ROOT / ".venv/bin/python3").exists()
          else str(ROOT / ".venv/bin/python3"))
FQDN = socket.getfqdn(socket.gethostname())


@dataclasses.dataclass
class Case:
    name: str
    run: object                        # the command line behind the launcher's name; several: several agents
    script: str = None                 # of s.py, behind imports and what probe.py has
    look: tuple = ("status",)          # what is compared, see Run.look_…
    error: str = ""                    # a message that must be said
    says: tuple = ()                   # patterns, each of which is said by both or by none
    env: dict = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=dict)
    steps: tuple = ()                  # "workers N", "mark NAME", "signal SIGTERM", "pause S"
    differs: dict = dataclasses.field(default_factory=dict)   # where torchup does otherwise: what it does …
    reason: str = ""                                          # … and why
    group: str = ""
    cpus: int = 0                      # affinity mask of the launcher: so many CPUs
    count_cpus: bool = False
    exact: tuple = ()                  # variables whose value is not to be made neutral
    legacy: bool = False               # python -m torch.distributed.launch
    needs_torch: bool = False          # the workers import torch
    slow: bool = False
    steady: bool = True                # False: torchrun does now this, now that; what torchup differs in is not compared
    occupied: bool = False             # {port} is taken by somebody else
    quick: bool = False                # part of the selection that runs side by side in ctest

    def __post_init__(self):
        self.group = GROUP


CASES = []
GROUP = ""


def group(name):
    global GROUP
    GROUP = name


def case(name, run, script="record()", **rest):
    CASES.append(Case(name, run, script, **rest))


# Reasons that many rows share.
REFUSED = "a command line that cannot work is refused with 2 before anything starts; torchrun ends with a traceback and 1"
BY_SIGNAL = "128 + the signal's number, so that a shell and a scheduler see what ended the job; torchrun says 1"
NOTHING_LEFT = "nothing that the job started outlives it"
NEAREST = "beginnings of options are not guessed; the error names the nearest option"
NATIVE = "a native program or a script with #! runs without --no-python"
NO_DIRECTORY = "the temporary log directory goes when nothing was written in it"


def refused(name, run, error, status=2, **rest):
    """torchrun: traceback, 1. Ours: one line, 2, or 65 for what the machine lacks."""
    case(name, run, look=("status", "workers"), error=error, differs={"status": status}, reason=REFUSED, **rest)


def usage(name, run, error, **rest):
    case(name, run, look=("status", "workers"), error=error, **rest)


ENVIRONMENT = (
    "LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE")
