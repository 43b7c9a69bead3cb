"""The cases of the contract: one row each, the same for torchrun and torchup. contract.py runs them."""
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
    script: str = None                 # of s.py, behind imports and `from probe import mark, record`
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


def refused(name, run, error, **rest):
    """torchrun: traceback, 1. Ours: one line, 2."""
    case(name, run, look=("status", "workers"), error=error, differs={"status": 2}, reason=REFUSED, **rest)


def usage(name, run, error, **rest):
    case(name, run, look=("status", "workers"), error=error, **rest)


ENVIRONMENT = (
    "LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE")

# ---------------------------------------------------------------------------------------------------------------------
group("command line")

ARGV = ("status", "argv")
usage("no arguments", "", "the following arguments are required: training_script", quick=True)
usage("only an option", "--standalone", "the following arguments are required: training_script")
usage("an unknown option", "--bogus s.py", "unrecognized arguments: --bogus")
usage("an unknown option between known ones", "--nproc-per-node 1 --bogus --max-restarts 1 s.py", "unrecognized arguments: --bogus")
usage("a flag with a value", "--standalone=1 s.py", "argument --standalone: ignored explicit argument '1'")
usage("-m with a value attached", "-mpkg s.py", "argument -m/--module: ignored explicit argument 'pkg'")
usage("a value that begins with a dash", "--role -x s.py", "argument --role: expected one argument")
usage("an option without its value", "s.py --x --role".replace("s.py --x ", ""), "argument --role: expected one argument")
usage("a bad integer", "--max-restarts=abc s.py", "argument --max-restarts/--max_restarts: invalid int value: 'abc'")
usage("a fraction for an integer", "--max-restarts=3.0 s.py", "argument --max-restarts/--max_restarts: invalid int value: '3.0'")
usage("a bad float", "--monitor-interval=abc s.py", "argument --monitor-interval/--monitor_interval: invalid float value: 'abc'")
usage("a bad choice", "--start-method=foo s.py", "invalid choice: 'foo' (choose from 'spawn', 'fork', 'forkserver')")
usage("a bad port", "--master-port=x s.py", "argument --master-port/--master_port: invalid int value: 'x'")
usage("a bad integer in PET_MAX_RESTARTS", "s.py", "invalid int value: 'abc'", env={"PET_MAX_RESTARTS": "abc"})
usage("an empty PET_MASTER_PORT", "s.py", "invalid int value: ''", env={"PET_MASTER_PORT": ""})
usage("a bad NUMA mode", "--numa-binding=core_complex s.py", "invalid choice: 'core_complex' (choose from 'node', 'socket', 'exclusive', 'core-complex')")
case("a beginning that fits two options", "--nproc 2 s.py", look=("status", "workers"), error="ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node",
     differs={"error": "not said; last line: torchup: error: unrecognized arguments: --nproc (did you mean --nproc-per-node?)"}, reason=NEAREST)
case("a beginning that fits one option", "--redirect=3 s.py", look=("status", "workers"), differs={"status": 2, "workers": []}, reason=NEAREST)
case("help goes to stdout", "--help", look=("status", "silent"))
case("help beats a missing script", "--standalone -h", look=("status", "silent"))
case("what follows the script is the script's", "s.py --nnodes 2 -m --help --standalone -r 3", look=ARGV, quick=True)
case("-- before the script", "--nnodes 1 -- s.py --x", look=ARGV)
case("-- directly after the script", "s.py -- --x", look=ARGV)
case("-- later", "s.py --x -- y -- z", look=ARGV)
case("-- twice after the script", "s.py -- -- x", look=ARGV)
case("-- before and after the script", "-- s.py -- x", look=ARGV)
case("an argument that is empty, one with blanks", "s.py '' 'a b' -", look=ARGV)
case("a script whose name has a blank", "'a b.py' 1", None, files={"a b.py": "from probe import record\nrecord()\n"}, look=ARGV)
case("underscores instead of dashes", "--nproc_per_node 2 --max_restarts=1 s.py", look=("status", "env WORLD_SIZE,TORCHELASTIC_MAX_RESTARTS"))
case("the last of a repeated option counts", "--nproc-per-node=3 --role a --nproc_per_node=2 --role b s.py", look=("status", "env WORLD_SIZE,ROLE_NAME"))
case("a dash as a value, attached", "--role=-x s.py", look=("status", "env ROLE_NAME"))
case("a negative number is a value", "--node-rank -1 s.py", look=("status", "workers"))
case("numbers as Python reads them", "--max-restarts=' +1_0 ' s.py", look=("status", "env TORCHELASTIC_MAX_RESTARTS"))
case("an empty role", "--role= s.py", look=("status", "env ROLE_NAME"))
for spelling in ("-r3", "-r 3", "-r=3", "--redirects=3", "--redirects 3"):
    case("redirects as " + spelling, spelling + " --log-dir logs s.py", "print('W:out'); print('W:err', file=sys.stderr)", look=("status", "logs", "stdout", "stderr"))
case("a cluster of short options", "-mr3 --log-dir logs pkg.mod x", None, files={"pkg/__init__.py": "", "pkg/mod.py": "import sys\nprint('W:', sys.argv[1:])\n"}, look=("status", "logs", "stdout"))

# ---------------------------------------------------------------------------------------------------------------------
group("PET variables")

case("PET_NPROC_PER_NODE", "s.py", env={"PET_NPROC_PER_NODE": "3"}, look=("status", "workers"))
case("the command line beats PET_NPROC_PER_NODE", "--nproc-per-node=2 s.py", env={"PET_NPROC_PER_NODE": "4"}, look=("status", "workers"))
case("choices are not checked in PET variables", "s.py", env={"PET_START_METHOD": "foo"}, look=("status", "workers"))
case("PET_STANDALONE=2 is on", "--rdzv-id=job1 s.py", env={"PET_STANDALONE": "2"}, look=("status", "env TORCHELASTIC_RUN_ID"))
case("PET_STANDALONE=0 is off", "--rdzv-id=job1 --master-port={port} s.py", env={"PET_STANDALONE": "0"}, look=("status", "env TORCHELASTIC_RUN_ID"))
case("a flag beats its PET variable", "--standalone --rdzv-id=job1 --master-port={port} s.py", env={"PET_STANDALONE": "0"}, look=("status", "env TORCHELASTIC_RUN_ID"))
refused("PET_STANDALONE that is no number", "s.py", "invalid literal for int() with base 10: 'yes'", env={"PET_STANDALONE": "yes"})
refused("an empty PET_MODULE", "s.py", "invalid literal for int() with base 10: ''", env={"PET_MODULE": ""})
case("PET_MODULE=1", "pkg.mod", None, env={"PET_MODULE": "1"}, files={"pkg/__init__.py": "", "pkg/mod.py": "from probe import record\nrecord()\n"}, look=ARGV)
case("PET_REDIRECTS", "--log-dir logs s.py", "print('W:x')", env={"PET_REDIRECTS": "1"}, look=("status", "logs", "stdout"))
case("PET_R means nothing", "--log-dir logs s.py", "print('W:x')", env={"PET_R": "1"}, look=("status", "stdout"))
case("an empty PET_LOG_DIR is none", "-r 1 s.py", "print('W:x')", env={"PET_LOG_DIR": ""}, look=("status", "stdout"))
case("PET_ROLE and PET_MAX_RESTARTS", "s.py", env={"PET_ROLE": "trainer", "PET_MAX_RESTARTS": "2"}, look=("status", "env ROLE_NAME,TORCHELASTIC_MAX_RESTARTS,PET_ROLE"))
case("an empty duplicate filter in a PET variable", "-t 1 --log-dir logs s.py", "print('W:x')", env={"PET_DUPLICATE_STDOUT_FILTERS": ""}, look=("status", "logs"))
usage("there is no PET variable for NUMA binding", "--bogus s.py", "unrecognized arguments: --bogus", env={"PET_NUMA_BINDING": "node"})
case("PET_NUMA_BINDING is not read", "s.py", env={"PET_NUMA_BINDING": "node"}, look=("status", "workers"))

# ---------------------------------------------------------------------------------------------------------------------
group("values")

refused("nnodes: MIN above MAX", "--nnodes=2:1 s.py", "min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1")
refused("nnodes: 0", "--nnodes=0 s.py", "min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0")
refused("nnodes: three fields", "--nnodes=1:2:3 s.py", 'nnodes=1:2:3 is not in "MIN:MAX" format')
refused("nnodes: a word", "--nnodes=a s.py", "invalid literal for int() with base 10: 'a'")
refused("nnodes: empty", "--nnodes= s.py", "invalid literal for int() with base 10: ''")
refused("nnodes: half", "--nnodes=1: s.py", "invalid literal for int() with base 10: ''")
refused("max-restarts: negative", "--max-restarts=-1 s.py", "max_restarts must be >= 0")
for value in ("0", "-1"):
    case(f"nproc-per-node: {value}", f"--nproc-per-node={value} s.py", look=("status", "workers"), differs={"status": 2}, reason=REFUSED)
refused("nproc-per-node: gpu without one", "--nproc-per-node=gpu s.py", "Cuda is not available.", env={"CUDA_VISIBLE_DEVICES": ""})
refused("nproc-per-node: xpu", "--nproc-per-node=xpu s.py", "Xpu is not available.")
refused("nproc-per-node: a word", "--nproc-per-node=bogus s.py", "Unsupported nproc_per_node value: bogus")
refused("nproc-per-node: a fraction", "--nproc-per-node=2.5 s.py", "Unsupported nproc_per_node value: 2.5")
case("nproc-per-node: cpu", "--nproc-per-node=cpu s.py", cpus=2, look=("status", "workers"), count_cpus=True)
case("nproc-per-node: cpu counts the affinity mask", "--nproc-per-node=cpu s.py", cpus=1, look=("status", "workers"))
case("nproc-per-node: auto without accelerator", "--nproc-per-node=auto s.py", cpus=2, env={"CUDA_VISIBLE_DEVICES": ""}, look=("status", "workers"), count_cpus=True)
case("monitor-interval: 0", "--monitor-interval=0 s.py", look=("status", "workers"), differs={"status": 2}, reason=REFUSED)
for text in ("4", "0:4", "x", "0:1,", "10:1", "-1", ""):
    pattern = f"{text} does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>"
    if text == "10:1":
        case("redirects: ten workers and more", "--redirects=10:1 s.py", look=("status", "workers"), error=pattern,
             differs={"status": 0, "workers": ["0.0"], "error": "not said; last line: "}, reason="maps take local ranks of any size; torchrun takes one digit")
    else:
        refused(f"redirects: '{text}'", f"--redirects={text} s.py", pattern)
refused("tee: '0:4'", "--tee=0:4 s.py", "0:4 does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>")
case("redirects: a rank beyond the workers", "-r 3:1 s.py", look=("status", "workers"))
case("redirects: the last of a repeated rank", "-r 0:1,0:0 --log-dir logs s.py", "print('W:x')", look=("status", "stdout", "logs"))
refused("local-ranks-filter: a word", "--local-ranks-filter=a s.py", "--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2")
refused("local-ranks-filter: a comma", "--local-ranks-filter=, s.py", "--local_ranks_filter must be a comma-separated list of integers")
CONF = "The rendezvous configuration "
refused("rdzv-conf: a key without value", "--rdzv-conf=a s.py", CONF + "option 'a' must have a value specified.")
refused("rdzv-conf: a value without key", "--rdzv-conf==1 s.py", CONF + "string must be in format <key1>=<value1>,...,<keyN>=<valueN>.")
refused("rdzv-conf: an empty value", "--rdzv-conf=a=,b=1 s.py", CONF + "option 'a' must have a value specified.")
refused("rdzv-conf: a trailing comma", "--rdzv-conf=a=1, s.py", CONF + "string must be in format <key1>=<value1>,...,<keyN>=<valueN>.")
refused("rdzv-conf: no number", "--rdzv-conf=join_timeout=x s.py", CONF + "option 'join_timeout' does not represent a valid integer value.")
refused("rdzv-conf: no time", "--rdzv-conf=join_timeout=0 s.py", "The join timeout (0:00:00) must be positive.")
refused("rdzv-conf: no boolean", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=job1 --rdzv-conf=is_host=x s.py", CONF + "option 'is_host' does not represent a valid boolean value.")
case("rdzv-conf: unknown keys, quotes and blanks", "\"--rdzv-conf='join_timeout=5, last_call_timeout = 1 ,timeout=5'\" s.py", look=("status", "workers"))
refused("rdzv-backend: unknown", "--rdzv-backend=foo s.py", "The rendezvous backend 'foo' is not registered. Did you forget to call `register`?")
refused("rdzv-backend: empty", "--rdzv-backend= s.py", "The rendezvous backend name must be a non-empty string.")
ENDPOINT = "of the rendezvous endpoint '"
refused("rdzv-endpoint: a port too large", "--rdzv-backend=c10d --rdzv-id=job1 --rdzv-endpoint=localhost:99999 s.py", "The port number " + ENDPOINT + "localhost:99999' must be an integer between 0 and 65536.")
refused("rdzv-endpoint: a port that is a word", "--rdzv-backend=c10d --rdzv-id=job1 --rdzv-endpoint=localhost:x s.py", "The port number " + ENDPOINT + "localhost:x' must be an integer between 0 and 65536.")
refused("rdzv-endpoint: a bad host name", "--rdzv-backend=c10d --rdzv-id=job1 '--rdzv-endpoint=~:1' s.py", "The hostname " + ENDPOINT + "~:1' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address.")
refused("static endpoint without port", "--rdzv-endpoint=localhost s.py", "port is missing in endpoint: localhost. Try to specify --master-port")
refused("shutdown-timeout: negative", "--shutdown-timeout=-5 s.py", "shutdown_timeout must be non-negative, got -5")
refused("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: a word", "s.py", "invalid literal for int() with base 10: 'abc'", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "abc"})
refused("log-dir: a file", "--log-dir=f s.py", "log_dir: f is a file", files={"f": ""})
refused("logs-specs: unknown", "--logs-specs=DOESNOT_EXIST s.py", "Could not find entrypoint under 'torchrun.logs_specs[DOESNOT_EXIST]' key")
refused("--no-python with -m", "--no-python -m x", "Don't use both the '--no-python' flag and the '--module' flag at the same time.")
refused("numa-binding without accelerator", "--numa-binding=node s.py", "No accelerator available for NUMA binding", env={"CUDA_VISIBLE_DEVICES": ""})
refused("event-log-handler: unknown", "--event-log-handler=nosuch s.py", "nosuch")

# ---------------------------------------------------------------------------------------------------------------------
group("the worker's command line")

case("a script runs with -u", "s.py a", "record(argv0=sys.argv[0]); print('W:', sys.flags.unbuffered if hasattr(sys.flags, 'unbuffered') else os.path.basename(sys.argv[0]), open('/proc/self/cmdline').read().split(chr(0))[1:])", look=("status", "stdout"))
case("a module", "-m pkg.mod --x 1", None, files={"pkg/__init__.py": "", "pkg/mod.py": "from probe import record\nrecord()\nprint('W:', open('/proc/self/cmdline').read().split(chr(0))[1:])\n"}, look=("status", "argv", "stdout"))
case("--no-python", "--no-python sh -c 'echo W:$0 $1' a b", None, look=("status", "stdout"))
case("--no-python with a path", "--no-python ./x.sh 1 2", None, files={"x.sh": "#!/bin/sh\necho W: $0 \"$@\"\n"}, look=("status", "stdout"))
case("--run-path", "--run-path r.py a", None, files={"r.py": "import sys\nif __name__ == '__main__': print('W:', sys.argv)\n"}, look=("status", "stdout"))
case("PYTHON_EXEC", "s.py a", env={"PYTHON_EXEC": "{dir}/py.sh"}, files={"py.sh": "#!/bin/sh\necho W: \"$@\"\n"}, look=("status", "stdout"))
case("PYTHON_EXEC is the title of the report", "s.py", env={"PYTHON_EXEC": "{dir}/py.sh"}, files={"py.sh": "#!/bin/sh\nexit 9\n"}, look=("status", "report"))
case("substitution of the local rank", "--nproc-per-node 2 s.py 'r$local_rank' '${local_rank}x' 'a$$b' '$name' '${other}' '5$' '$$local_rank' '$local_ranks' '$LOCAL_RANK' '${local_rank'", look=ARGV)
case("substitution in the script's name", "--nproc-per-node 2 's${local_rank}.py' 1", None, files={"s0.py": "from probe import record\nrecord()\n", "s1.py": "from probe import record\nrecord()\n"}, look=ARGV)
case("substitution with --no-python", "--nproc-per-node 2 --no-python echo 'W:$local_rank'", None, look=("status", "stdout"))
refused("a program that is not there", "--no-python ./nosuch", "./nosuch")
refused("a program that is not executable", "--no-python ./f", "./f", files={"f": "x"})
refused("a program without #!", "--no-python ./text_exec", "Exec format error", files={"text_exec": "exit 0\n"})
case("a script that is not there", "nosuch.py", None, look=("status", "report"), differs={"status": 2, "report": None}, reason=REFUSED)
case("a module that is not there", "-m no_such_module_here", None, look=("status", "report"))
case("a native program needs no --no-python", "/bin/true", None, look=("status",), differs={"status": 0}, reason=NATIVE)
case("a #! script needs no --no-python", "./x.sh 1", None, files={"x.sh": "#!/bin/sh\necho W: \"$@\"\n"}, look=("status", "stdout"), differs={"status": 0, "stdout": ["W: 1\n"]}, reason=NATIVE)
case("a Python file with #! and x goes to Python", "./t.py 1", None, files={"t.py": "#!/bin/false\nimport sys\nprint('W:', sys.argv[1:])\n"}, look=("status", "stdout"))
case("a Python file without suffix goes to Python", "./plain 1", None, files={"plain": "import sys\nprint('W:', sys.argv[1:])\n"}, look=("status", "stdout"))
case("an empty script name", "''", None, look=("status",), differs={"status": 2}, reason=REFUSED)
case("the working directory stays", "s.py", "print('W:', os.getcwd(), sys.path[0])", look=("status", "stdout"))

# ---------------------------------------------------------------------------------------------------------------------
group("environment")

PAGE = "descriptor 3 and TORCHUP_WORKER_PAGE are the page of memory by which a worker of the C++ runtime tells of its steps"
case("the whole table, one worker", "s.py", look=("status", "environment", "process", "stdin"), quick=True, differs={"process": {"0.0": {"own_session": True, "descriptors": [3]}}}, reason=PAGE)
case("the whole table, three workers", "--nproc-per-node 3 --max-restarts 4 --role trainer s.py", look=("status", "environment", "process"), differs={"process": {"0.0": {"own_session": True, "descriptors": [3]}, "0.1": {"own_session": True, "descriptors": [3]}, "0.2": {"own_session": True, "descriptors": [3]}}}, reason=PAGE)
case("the whole table, standalone", "--standalone --nproc-per-node 2 s.py", look=("status", "environment"))
case("the whole table, static", "--master-port={port} --rdzv-id=job1 --nproc-per-node 2 s.py", look=("status", "environment"), quick=True)
case("static with an address", "--master-addr=127.0.0.1 --master-port={port} s.py", look=("status", "environment"), exact=("MASTER_ADDR",))
case("static with an endpoint", "--rdzv-endpoint=127.0.0.1:{port} --master-addr=1.2.3.4 --master-port=5 s.py", look=("status", "environment"), exact=("MASTER_ADDR",))
case("c10d with an endpoint", "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id=job7 --nproc-per-node 2 s.py", look=("status", "environment"))
case("nothing else is added", "--nproc-per-node 2 s.py", look=("status", "added"), reason=PAGE,
     differs={"added": {"0.0": {"added": ["GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHUP_WORKER_PAGE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "WORLD_SIZE"], "removed": []}, "0.1": {"added": ["GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHUP_WORKER_PAGE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "WORLD_SIZE"], "removed": []}}})
case("several workers and stdin", "--nproc-per-node 2 s.py", look=("status", "stdin"))
case("a run id is replaced on one node without port", "--rdzv-id=job1 s.py", look=("status", "env TORCHELASTIC_RUN_ID"))
case("standalone ignores endpoint, id and backend", "--standalone --rdzv-id=job1 --rdzv-backend=foo --rdzv-endpoint=h:1 s.py", look=("status", "env TORCHELASTIC_RUN_ID"))
case("an empty run id becomes a number", "--rdzv-id= --master-port={port} s.py", "record(number=os.environ['TORCHELASTIC_RUN_ID'].isdigit()); print('W:', os.environ['TORCHELASTIC_RUN_ID'].isdigit())", look=("status", "stdout"))
case("--master-addr without port is ignored", "--master-addr=1.2.3.4 s.py", look=("status", "env MASTER_ADDR"))
case("--local-addr is the master address", "--local-addr=127.0.0.1 s.py", look=("status", "env MASTER_ADDR"), exact=("MASTER_ADDR",))
case("one node meets on 127.0.0.1", "s.py", look=("status", "env MASTER_ADDR"), exact=("MASTER_ADDR",), differs={"env MASTER_ADDR": {"0.0": {"MASTER_ADDR": "127.0.0.1"}}},
     reason="a host name is often not reachable from itself, loopback always is; torchrun gives the host's name")
case("no shared store", "--nproc-per-node 2 s.py", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, look=("status", "env TORCHELASTIC_USE_AGENT_STORE,MASTER_PORT"))
case("identical workers", "--nproc-per-node 2 --role r s.py", env={"TORCH_ELASTIC_WORKER_IDENTICAL": "1"}, look=("status", "env RANK,WORLD_SIZE,ROLE_RANK,ROLE_WORLD_SIZE"))
case("OMP_NUM_THREADS stays when set", "--nproc-per-node 2 s.py", env={"OMP_NUM_THREADS": "7"}, look=("status", "env OMP_NUM_THREADS", "silent"))
case("OMP_NUM_THREADS stays when empty", "--nproc-per-node 2 s.py", env={"OMP_NUM_THREADS": ""}, look=("status", "env OMP_NUM_THREADS"))
case("OMP_NUM_THREADS is not set for one worker", "s.py", look=("status", "env OMP_NUM_THREADS", "silent"))
case("OMP_NUM_THREADS warns for several", "--nproc-per-node 2 s.py", look=("status", "env OMP_NUM_THREADS"), says=("OMP_NUM_THREADS",))
case("async error handling is inherited", "s.py", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, look=("status", "env TORCH_NCCL_ASYNC_ERROR_HANDLING"))
case("the signals flag beats its variable", "--signals-to-handle=SIGTERM s.py", env={"TORCHELASTIC_SIGNALS_TO_HANDLE": "X"}, look=("status", "env TORCHELASTIC_SIGNALS_TO_HANDLE"))
case("variables of the user are inherited", "s.py", env={"LOGLEVEL": "ERROR", "RANK": "77", "MINE": "a=b"}, look=("status", "env LOGLEVEL,RANK,MINE,PYTHON_EXEC"))
case("error files in the log directory", "--log-dir logs --nproc-per-node 2 s.py", look=("status", "env TORCHELASTIC_ERROR_FILE", "logs"))
case("error files in an absolute log directory", "--log-dir {dir}/logs s.py", look=("status", "env TORCHELASTIC_ERROR_FILE"))
case("error files without log directory", "s.py", look=("status", "env TORCHELASTIC_ERROR_FILE"))
case("no error file with the null device", "--log-dir /dev/null s.py", look=("status", "env TORCHELASTIC_ERROR_FILE"))
VIRTUAL = ("status", "env LOCAL_RANK,RANK,CUDA_VISIBLE_DEVICES,HIP_VISIBLE_DEVICES")
case("virtual local rank", "--virtual-local-rank --nproc-per-node 2 s.py", look=VIRTUAL)
case("virtual local rank with devices", "--virtual-local-rank --nproc-per-node 2 s.py", env={"CUDA_VISIBLE_DEVICES": "4, 6 ,7"}, look=VIRTUAL)
case("virtual local rank with HIP devices", "--virtual-local-rank --nproc-per-node 2 s.py", env={"CUDA_VISIBLE_DEVICES": "8,9", "HIP_VISIBLE_DEVICES": "3,4"}, look=VIRTUAL)
case("virtual local rank, devices empty", "--virtual-local-rank s.py", env={"CUDA_VISIBLE_DEVICES": ""}, look=VIRTUAL)
refused("virtual local rank, too few devices", "--virtual-local-rank --nproc-per-node 3 s.py", "local_rank 2 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1", env={"CUDA_VISIBLE_DEVICES": "0,1"})
case("virtual local rank keeps the real one elsewhere", "--virtual-local-rank --nproc-per-node 2 -t 1 --log-dir logs s.py '$local_rank'", "record(); print('W:' + sys.argv[1])", look=("argv", "logs", "stdout"))
case("devices stay as they are", "--nproc-per-node 2 s.py", env={"CUDA_VISIBLE_DEVICES": "0,1"}, look=("status", "env CUDA_VISIBLE_DEVICES"))

# ---------------------------------------------------------------------------------------------------------------------
group("ends")

# A parent in vfork is in uninterruptible sleep until its child ends.
VFORK = "import ctypes\nrecord()\nif ctypes.PyDLL(None).vfork() == 0:\n  time.sleep({seconds}); os._exit(0)\nos._exit(0)"
STUCK = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "1"}
STUCK_SAYS = (r"\[default\] Worker pid=\d+ entered uninterruptible sleep \(D-state\); will mark UNHEALTHY if it remains for 1\.0s\.",
              r"\[default\] Worker pid=\d+ stuck in uninterruptible sleep \(D-state\) for \d+\.\ds \(>= 1\.0s\); marking worker group UNHEALTHY and disabling restarts\.")
case("a worker in uninterruptible sleep", "--max-restarts=2 s.py", VFORK.format(seconds=20), env=STUCK, look=("status", "workers"), says=STUCK_SAYS, differs={"status": 1},
     reason="a worker that is stuck is a failure; torchrun ends with 0")
case("a worker in uninterruptible sleep for a short time", "s.py", VFORK.format(seconds=0.5), env=STUCK, look=("workers",), says=STUCK_SAYS[1:])
case("uninterruptible sleep is not looked at unless asked", "s.py", VFORK.format(seconds=1.5), env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "-1"}, look=("workers",), says=STUCK_SAYS)

REPORT = ("status", "report", "stdout")
case("all exit 0", "--nproc-per-node 2 s.py", env={"OMP_NUM_THREADS": "1"}, look=("status", "silent", "workers"))
case("a worker exits 7", "s.py", "sys.exit(7)", look=REPORT, quick=True)
case("a worker exits 255", "s.py", "sys.exit(255)", look=REPORT)
case("an uncaught exception", "s.py", "raise ValueError('bad')", look=("status", "report"), says=("ValueError: bad",))
for name in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGUSR2"):
    case(f"a worker dies by {name}", "s.py", f"os.kill(os.getpid(), signal.{name})", look=REPORT)
case("a worker dies by a real-time signal", "s.py", "os.kill(os.getpid(), 40)", look=REPORT)
case("a worker exits 128 + 9 by itself", "s.py", "sys.exit(137)", look=REPORT)
WAIT = "record(); r = os.environ['RANK']\nif r == '1':\n  time.sleep(0.5); sys.exit(138)\n"
case("a sibling is stopped and listed", "--nproc-per-node 2 s.py", WAIT + "time.sleep(50)", look=REPORT, quick=True)
case("a sibling that exits 0 when stopped is not listed", "--nproc-per-node 2 s.py", WAIT + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(50)", look=REPORT)
case("a sibling that exits 3 when stopped is listed", "--nproc-per-node 2 s.py", WAIT + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); time.sleep(50)", look=REPORT)
case("a sibling that finished is not listed", "--nproc-per-node 2 s.py", "record()\nif os.environ['RANK'] == '1':\n  time.sleep(0.7); sys.exit(4)\n", look=REPORT)
case("two siblings stopped", "--nproc-per-node 3 s.py", WAIT + "time.sleep(50)", look=REPORT)
case("a sibling that ignores SIGTERM", "--nproc-per-node 2 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT + "time.sleep(100)", look=REPORT, slow=True)
case("the grace of --shutdown-timeout bounds every stop", "--shutdown-timeout 1 --nproc-per-node 2 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord(); t = time.time()\nif os.environ['RANK'] == '1':\n  time.sleep(0.5); sys.exit(3)\ntime.sleep(6); mark('lived')", look=("status", "marks"),
     differs={"marks": {}}, reason="--shutdown-timeout bounds every stop; in torchrun a stop after a failure takes up to 30 s whatever it says")
case("a failed worker's title is what was typed", "./s.py", "sys.exit(1)", look=("report",))
case("a module's title", "-m pkg.mod", None, files={"pkg/__init__.py": "", "pkg/mod.py": "import sys\nsys.exit(5)\n"}, look=("status", "report"))
case("a program's title", "--no-python sh -c 'exit 6'", None, look=("status", "report"))
case("--run-path's title", "--run-path r.py", None, files={"r.py": "import sys\nsys.exit(5)\n"}, look=("status",), says=("run_script_path FAILED",))
case("a child in the background of a worker that exits 0", "--no-python sh -c 'sleep 20 & exit 0'", None, look=("status", "left"), differs={"left": False}, reason=NOTHING_LEFT)
case("a detached child of a worker that exits 0", "s.py", "subprocess.Popen(['sleep', '20'], start_new_session=True)", look=("status", "left"), differs={"left": False}, reason=NOTHING_LEFT)
case("a detached child of a worker that fails", "s.py", "subprocess.Popen(['sleep', '20'], start_new_session=True); sys.exit(3)", look=("status", "left"), differs={"left": False}, reason=NOTHING_LEFT)
case("the error line of the first failure", "s.py", "sys.exit(7)", look=("status",), says=(r"failed \(exitcode: 7\) local_rank: 0 \(pid: \d+\) of binary: ",))

# ---------------------------------------------------------------------------------------------------------------------
group("restarts")

FLAKY = "record()\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\n"
case("fails always", "--max-restarts=2 --log-dir logs s.py", "record(); sys.exit(3)", look=("status", "workers", "report", "logs"), quick=True)
case("fails once", "--max-restarts=1 s.py", FLAKY, look=("status", "workers", "report"), says=(r"failed \(exitcode: 3\) local_rank: 0 ",))
case("the environment after a restart", "--max-restarts=2 --nproc-per-node 2 s.py", "record()\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n  if os.environ['RANK'] == '0': time.sleep(50)\n  time.sleep(0.3); sys.exit(3)\n",
     look=("status", "environment"))
case("logs of all attempts", "--max-restarts=2 -r 3 --log-dir logs --nproc-per-node 2 s.py",
     "n = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('W:out', n, os.environ['RANK'], flush=True); print('W:err', n, file=sys.stderr)\nmark(n + '.' + os.environ['RANK'])\nwhile len([f for f in os.listdir(os.environ['PROBE_DIR']) if f.startswith(n + '.') and f.endswith('.mark')]) < 2: time.sleep(0.01)\nsys.exit(0 if n == '2' else 1)",
     look=("status", "logs", "stdout", "stderr"))
case("an incident record beside the logs", "--log-dir logs s.py", "sys.exit(3)", look=("status", "incident"), differs={"incident": ["attempt_0/incident.json"]},
     reason="each failed attempt leaves a record of what was seen; every other comparison of log directories leaves it out")
case("a worker with success is not restarted by itself", "--max-restarts=3 s.py", look=("status", "workers"))

# ---------------------------------------------------------------------------------------------------------------------
group("signals")

TRAP = "def end(n, _):\n  mark(signal.Signals(n).name); sys.exit({code})\nfor n in (1, 2, 3, 10, 12, 15): signal.signal(n, end)\nrecord()\ntime.sleep(50)\n"
for name, code in (("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129), ("SIGQUIT", 131)):
    case(f"{name} is passed on", "s.py", TRAP.replace("{code}", "0"), steps=("workers 1", f"signal {name}"), look=("status", "marks", "report", "left"),
         differs={"status": code}, reason=BY_SIGNAL, quick=name == "SIGTERM")
case("SIGTERM, and the worker dies of it", "--nproc-per-node 2 s.py", "record(); time.sleep(50)", steps=("workers 2", "signal SIGTERM"), look=("status", "report", "left"), differs={"status": 143}, reason=BY_SIGNAL)
case("SIGTERM reaches the worker's children", "s.py", "p = subprocess.Popen(['sh', '-c', 'trap \"touch $PROBE_DIR/child.mark; exit\" TERM; touch $PROBE_DIR/up.mark; while :; do sleep 0.05; done'])\nsignal.signal(signal.SIGTERM, lambda *_: (p.wait(), sys.exit(0)))\nrecord()\ntime.sleep(50)",
     steps=("workers 1", "mark up", "signal SIGTERM"), look=("status", "marks", "left"), differs={"status": 143}, reason=BY_SIGNAL)
case("SIGTERM uses up no restart", "--max-restarts=3 s.py", "record(); time.sleep(50)", steps=("workers 1", "signal SIGTERM"), look=("status", "workers"), differs={"status": 143}, reason=BY_SIGNAL)
case("--shutdown-timeout after a signal", "--shutdown-timeout=1 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\ntime.sleep(5); mark('lived')", steps=("workers 1", "signal SIGTERM"), look=("status", "marks", "left"), differs={"status": 143}, reason=BY_SIGNAL)
case("--shutdown-timeout=0", "--shutdown-timeout=0 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\ntime.sleep(5); mark('lived')", steps=("workers 1", "signal SIGTERM"), look=("status", "marks"), differs={"status": 143}, reason=BY_SIGNAL)
case("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\ntime.sleep(5); mark('lived')", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}, steps=("workers 1", "signal SIGTERM"), look=("status", "marks"), differs={"status": 143}, reason=BY_SIGNAL)
case("the flag beats TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "--shutdown-timeout=1 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\ntime.sleep(5); mark('lived')", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}, steps=("workers 1", "signal SIGTERM"), look=("status", "marks"), differs={"status": 143}, reason=BY_SIGNAL)
case("a listed extra signal ends the job", "--signals-to-handle=SIGTERM,SIGUSR1 s.py", TRAP.replace("{code}", "0"), steps=("workers 1", "signal SIGUSR1"), look=("status", "marks"), differs={"status": 138}, reason=BY_SIGNAL)
case("SIGUSR1 that is not listed", "s.py", "signal.signal(signal.SIGUSR1, lambda *_: (mark('usr1'), sys.exit(0)))\nrecord()\ntime.sleep(10)", steps=("workers 1", "signal SIGUSR1"), look=("status", "marks", "left"),
     differs={"status": 0, "marks": {"usr1": ""}, "left": False}, reason="USR1 and USR2 are passed on and the job goes on; torchrun dies of them and leaves its workers")
case("SIGTERM that is not listed", "--signals-to-handle=SIGINT s.py", "record(); time.sleep(20)", steps=("workers 1", "signal SIGTERM"), look=("left",), differs={"left": False}, reason=NOTHING_LEFT)
case("an unknown signal name", "--signals-to-handle=SIGFOO,SIGTERM s.py", look=("status", "workers"), says=("Failed to register signal handler for SIGFOO",))
case("blanks around signal names", "--signals-to-handle=' SIGTERM , SIGINT ' s.py", look=("status", "workers"))
case("a signal that cannot be caught", "--signals-to-handle=SIGKILL s.py", look=("status",), differs={"status": 2}, reason=REFUSED)
case("kill -9 of the launcher", "s.py", "record(); time.sleep(20)", steps=("workers 1", "signal SIGKILL"), look=("status", "left"), differs={"left": False}, reason=NOTHING_LEFT)
case("a second Ctrl-C", "s.py", "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\ntime.sleep(8); mark('lived')", steps=("workers 1", "signal SIGINT", "pause 0.5", "signal SIGINT"), look=("status", "marks", "left"),
     differs={"status": 130, "marks": {}}, reason="a second Ctrl-C kills; torchrun begins another shutdown of 30 s", slow=True)

# ---------------------------------------------------------------------------------------------------------------------
group("output")

TWO = "print('W:out', os.environ['RANK'])\nprint('W:err', os.environ['RANK'], file=sys.stderr)\n"
OUTPUT = ("status", "stdout", "stderr", "logs")
case("without options output is unchanged", "--nproc-per-node 2 s.py", TWO, look=("status", "stdout", "stderr"))
for option in ("1", "2", "3", "0:1", "1:2", "0:1,1:3"):
    case(f"redirects {option}", f"-r {option} --log-dir logs --nproc-per-node 2 s.py", TWO, look=OUTPUT)
    case(f"tee {option}", f"-t {option} --log-dir logs --nproc-per-node 2 s.py", TWO, look=OUTPUT, quick=option == "3")
case("tee wins over redirects", "-r 3 -t 0:1 --log-dir logs --nproc-per-node 2 s.py", TWO, look=OUTPUT)
case("log-dir is made with its parents", "-r 1 --log-dir a/b/logs s.py", TWO, look=("status", "logs a"))
case("redirects without log-dir", "-r 3 s.py", TWO, look=("status", "stdout", "stderr", "temporary"))
case("nothing is left in TMPDIR", "s.py", look=("status", "temporary"), differs={"temporary": []}, reason=NO_DIRECTORY)
case("the null device as log-dir", "--log-dir /dev/null -t 3 -r 3 --local-ranks-filter 0 --nproc-per-node 2 s.py", TWO, look=("status", "stdout", "stderr"))
case("the rank filter", "--local-ranks-filter=1 --nproc-per-node 3 s.py", TWO, look=("status", "stdout", "stderr"))
case("the rank filter with tee and redirects", "--local-ranks-filter=' 1 ,-5' -t 0:3,1:3 -r 2:3 --log-dir logs --nproc-per-node 3 s.py", TWO, look=OUTPUT)
case("a prefix template", "--log-line-prefix-template='[${role_name}|${rank}|$local_rank|${other}|$$] ' --role x -t 1 --log-dir logs --nproc-per-node 2 s.py", TWO, look=OUTPUT)
case("the prefix template's variable", "-t 1 --log-dir logs s.py", TWO, env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "X"}, look=("status", "stdout"))
case("the prefix template's PET variable wins", "-t 1 --log-dir logs s.py", TWO, env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "X", "PET_LOG_LINE_PREFIX_TEMPLATE": "P"}, look=("status", "stdout"))
case("an empty prefix template means the next", "--log-line-prefix-template= -t 1 --log-dir logs s.py", TWO, env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "X"}, look=("status", "stdout"))
case("the host name in a prefix", "--log-line-prefix-template='${hostname}:' -t 1 --log-dir logs s.py", "import socket; print('W:' + socket.gethostname())", look=("status", "stdout"))
case("a tee line in two pieces", "-t 1 --log-dir logs s.py", "sys.stdout.write('W:abc'); sys.stdout.flush(); time.sleep(1); print('def')", look=("status", "out", "logs"),
     differs={"out": "[default0]:W:abcdef\n"}, reason="whole lines only, the prefix once per line")
case("carriage returns in a tee", "-t 1 --log-dir logs s.py", "sys.stdout.write('W:1\\rW:2\\rW:3\\n'); sys.stdout.flush(); os.write(1, b'W:4\\r\\nW:5\\x0bW:6\\x0cW:7\\n')", look=("status", "out", "logs"))
case("a last line without newline", "-t 1 --log-dir logs s.py", "sys.stdout.write('W:1\\nW:2')", look=("status", "out", "logs"),
     differs={"out": "[default0]:W:1\n[default0]:W:2\n"}, reason="whole lines only: the last one gets its newline on the console")
case("a last half line, and another worker's line", "--nproc-per-node 2 s.py", "if os.environ['RANK'] == '1': time.sleep(1); print('W:line')\nelse: sys.stdout.write('W:half')", look=("status", "out"),
     differs={"out": "W:half\nW:line\n"}, reason="lines of different workers are never mixed, also where one ended in the middle of its own")
case("half a line and the rest of it, one worker", "s.py", "sys.stdout.write('W:half'); sys.stdout.flush(); time.sleep(0.5); os.write(2, b'W:err'); sys.stdout.write('rest')", look=("status", "out"))
case("bytes that are no text", "-t 1 --log-dir logs s.py", "os.write(1, b'W:\\xff\\xfe.\\n')", look=("status", "out"))
case("many lines of many workers", "-t 1 --log-dir logs --nproc-per-node 4 s.py", "sys.stdout.write(''.join('W:%s %d\\n' % (os.environ['RANK'], i) for i in range(300)))", look=("status", "stdout"),
     differs={"stdout": {"lines": 1200, "sha256": "d0c46c275e3cc7a687e9101b2f001d4f65c31afe8926420bf05acd7736c5436e"}},
     reason="lines of different workers are never mixed; torchrun's console now and then glues two together", steady=False)
case("a duplicate filter", "-t 3 --duplicate-stdout-filters=apple,b,,c --duplicate-stderr-filters=Q --log-dir logs --nproc-per-node 2 s.py",
     "print('W:apple pie'); print('W:Apple'); print('W:ab,cd'); print('W:b'); print('W:Q', file=sys.stderr); print('W:q', file=sys.stderr)", look=OUTPUT)
case("a duplicate filter without tee", "-r 1 --duplicate-stdout-filters=x --log-dir logs s.py", "print('W:x')", look=OUTPUT)
case("an empty duplicate filter takes every line", "-t 1 --duplicate-stdout-filters= --log-dir logs s.py", "print('W:x'); print('W:y')", look=OUTPUT)
case("a duplicate filter after the rank filter", "-t 1 --local-ranks-filter=1 --duplicate-stdout-filters=x --log-dir logs --nproc-per-node 2 s.py", "print('W:x' + os.environ['RANK'])", look=OUTPUT)
case("a duplicate filter with the null device", "-t 1 --duplicate-stdout-filters=x --log-dir /dev/null s.py", "print('W:x')", look=("status",), differs={"status": 2}, reason=REFUSED)
case("output after a kill is complete", "-t 1 --log-dir logs s.py", "sys.stdout.write('W:x\\n' * 1000); sys.stdout.flush(); os.kill(os.getpid(), 9)", look=("status", "stdout"))
case("a worker closes its stdout", "-t 1 --log-dir logs s.py", "print('W:x', flush=True); os.close(1); time.sleep(0.3); sys.stdout = None", look=("status", "stdout"))

# ---------------------------------------------------------------------------------------------------------------------
group("error files")

WRITE = "def error(value):\n  import json\n  open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(value if isinstance(value, str) else json.dumps(value))\n"
OBJECT = WRITE + "error({'message': {'message': 'E: oh', 'extraInfo': {'py_callstack': 'Traceback:\\n  line one\\nE: oh\\n', 'timestamp': '%d' % time.time()}}})\n"
case("an error file in the report", "--log-dir logs s.py", OBJECT + "sys.exit(4)", look=("status", "report"), quick=True)
case("an error file without call stack", "--log-dir logs s.py", WRITE + "error({'message': {'message': 'only this', 'extraInfo': {'timestamp': '5'}}}); sys.exit(4)", look=("status", "report"))
case("a flat error file", "--log-dir logs s.py", WRITE + "error({'message': 'plain\\nwords', 'timestamp': 10}); sys.exit(4)", look=("status", "report"))
case("a flat error file without time", "--log-dir logs s.py", WRITE + "error({'message': 'plain words'}); sys.exit(4)", look=("status",), says=("traceback : plain words",))
case("an empty message", "--log-dir logs s.py", WRITE + "error({'message': ''}); sys.exit(4)", look=("status", "report"))
case("an error file of a worker that dies by a signal", "--log-dir logs s.py", OBJECT + "os.kill(os.getpid(), 9)", look=("status", "report"))
case("an error file of a worker that exits 0", "--log-dir logs s.py", OBJECT, look=("status", "report"))
case("the earliest error file is the root cause", "--log-dir logs --nproc-per-node 2 s.py", WRITE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); r = int(os.environ['RANK']); error({'message': 'rank %d' % r, 'timestamp': 100 - r}); mark(str(r))\nwhile not os.path.exists(os.environ['PROBE_DIR'] + '/%d.mark' % (1 - r)): time.sleep(0.01)\ntime.sleep(0.5 * r); sys.exit(3)", look=("status", "report"))
for text in ("not json", "[1]", "{}", "{\"message\": {\"message\": \"x\"}}", ""):
    case(f"a malformed error file: {text or 'empty'}", "--log-dir logs s.py", WRITE + f"error({text!r}); sys.exit(4)", look=("status",), says=(r"exitcode  : 4 ",),
         differs={"says": {r"exitcode  : 4 ": True}}, reason="a malformed error file is reported as such and never ends the agent")
OUTER = {"TORCHELASTIC_ERROR_FILE": "{dir}/outer.json"}
case("the root cause's error file is handed on", "--log-dir logs s.py", OBJECT + "sys.exit(4)", env=OUTER, look=("status", "file outer.json"))
case("a flat error file is handed on", "--log-dir logs s.py", WRITE + "error({'message': 'plain', 'timestamp': 10}); sys.exit(4)", env=OUTER, look=("status", "file outer.json"))
case("nothing to hand on", "--log-dir logs s.py", "sys.exit(4)", env=OUTER, look=("status", "file outer.json"))
case("an old error file is overwritten", "--log-dir logs s.py", OBJECT + "sys.exit(4)", env=OUTER, files={"outer.json": "{}"}, look=("status", "file outer.json"))
case("success hands nothing on", "--log-dir logs s.py", OBJECT, env=OUTER, look=("status", "file outer.json"))
case("@record writes an error file", "--log-dir logs s.py", "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main(): raise ValueError('bad')\nmain()", env=OUTER, needs_torch=True, look=("status", "file outer.json"))
case("a signal is told in the error file", "s.py", "record(); time.sleep(20)", env=OUTER, steps=("workers 1", "signal SIGTERM"), look=("status", "file outer.json"), differs={"status": 143}, reason=BY_SIGNAL)

# ---------------------------------------------------------------------------------------------------------------------
group("watchdog, health, events")

TIMER = "import json\ndef timer(after, sig):\n  f = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY | os.O_NONBLOCK)\n  os.write(f, json.dumps({'version': 1, 'pid': os.getpid(), 'scope_id': 's', 'expiration_time': time.time() + after if after >= 0 else -1, 'signal': sig}).encode() + b'\\n')\n  os.close(f)\n"
FILE_TIMER = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
case("the watchdog's pipe", "s.py", "import stat; record(); print('W:', stat.S_ISFIFO(os.stat(os.environ['TORCHELASTIC_TIMER_FILE']).st_mode))", env=FILE_TIMER, look=("status", "stdout"))
case("the watchdog's pipe by name", "s.py", "record(); print('W:', os.environ['TORCHELASTIC_TIMER_FILE'])", env={**FILE_TIMER, "TORCHELASTIC_TIMER_FILE": "{dir}/timer"}, look=("status", "stdout", "file timer"))
case("no watchdog unless it is switched on", "s.py", env={"TORCHELASTIC_ENABLE_FILE_TIMER": "true"}, look=("status", "env TORCHELASTIC_TIMER_FILE"))
case("the watchdog kills", "s.py", TIMER + "timer(0.2, 9); record(); time.sleep(8); mark('lived')", env=FILE_TIMER, look=("status", "marks"), differs={"status": 1}, reason="the watchdog's kill is a worker's failure, not the launcher's own end")
case("a released timer does nothing", "s.py", TIMER + "timer(0.5, 9); timer(-1, 0); time.sleep(1.5); mark('lived')", env=FILE_TIMER, look=("status", "marks"))
case("a health port that is no number", "s.py", env={"TORCHELASTIC_HEALTH_CHECK_PORT": "x"}, look=("status", "workers"))
case("a health port", "s.py", "import urllib.request\ntry: print('W:', urllib.request.urlopen('http://127.0.0.1:' + os.environ['TORCHELASTIC_HEALTH_CHECK_PORT'] + '/healthz', timeout=5).status)\nexcept OSError: print('W: nobody')",
     env={"TORCHELASTIC_HEALTH_CHECK_PORT": "{port}"}, look=("status", "stdout"), differs={"stdout": ["W: 200\n"]}, reason="torchrun knows the variable and opens no port; ours answers probes there, on loopback")
case("the watchdog's pipe goes with the job", "s.py", "record()", env={**FILE_TIMER, "TORCHELASTIC_TIMER_FILE": "{dir}/timer"}, look=("status", "file timer"))
case("a watchdog's line that is none", "s.py", TIMER + "f = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY | os.O_NONBLOCK); os.write(f, b'nonsense\\n'); os.close(f); timer(0.3, 15); time.sleep(5); mark('lived')", env=FILE_TIMER,
     look=("status", "marks"))
case("console events of a success", "--event-log-handler=console --nproc-per-node 2 s.py", env={"OMP_NUM_THREADS": "1"}, look=("status", "events"))
case("console events of a failure", "--event-log-handler=console --master-port={port} --rdzv-id=job1 --max-restarts=1 s.py", "sys.exit(2)", look=("status", "events"))
case("the dynamic_rendezvous event handler", "--event-log-handler=dynamic_rendezvous s.py", look=("status", "silent"))

# ---------------------------------------------------------------------------------------------------------------------
group("the legacy launcher")

case("legacy: --local-rank is passed", "--nproc-per-node 2 s.py a", legacy=True, look=("status", "argv", "env LOCAL_RANK"), quick=True)
case("legacy: --local-rank with -m", "-m pkg.mod a", None, files={"pkg/__init__.py": "", "pkg/mod.py": "from probe import record\nrecord()\n"}, legacy=True, look=ARGV)
case("legacy: --use-env", "--use-env --nproc-per-node 2 s.py a", legacy=True, look=ARGV)
case("legacy: --use_env", "--use_env s.py a", legacy=True, look=ARGV)
case("legacy: the warning", "s.py", legacy=True, look=("status",), says=("The module torch.distributed.launch is deprecated",))
case("legacy: --no-python needs --use-env", "--no-python true", None, legacy=True, look=("status",), error="When using the '--no-python' flag, you must also set the '--use-env' flag.", differs={"status": 2}, reason=REFUSED)
case("legacy: --no-python with --use-env", "--no-python --use-env echo W:1", None, legacy=True, look=("status", "stdout"))
case("legacy: old options", "--nnodes=1 --node_rank=0 --master_addr=127.0.0.1 --master_port={port} --nproc_per_node=2 s.py", legacy=True, look=("status", "argv", "env MASTER_ADDR,MASTER_PORT,WORLD_SIZE"))
usage("torchrun has no --use-env", "--use-env s.py", "unrecognized arguments: --use-env")

# ---------------------------------------------------------------------------------------------------------------------
group("rendezvous")

C10D = "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id=job7 "
case("two plain jobs at once", ["s.py", "s.py"], "time.sleep(0.5); record()", look=("status",))
case("SIGTERM while waiting for nodes", "--nnodes=2 " + C10D + "s.py", steps=("pause 6", "signal SIGTERM"), look=("status", "workers"), differs={"status": 143},
     reason="an orderly end with 128 + the signal's number; torchrun dies of the signal, which a shell shows as the same")
case("fewer nodes than MAX, MIN are there", "--nnodes=1:2 " + C10D + "--rdzv-conf=last_call_timeout=1 --nproc-per-node 2 s.py", look=("status", "env WORLD_SIZE,GROUP_WORLD_SIZE"))
case("too few nodes in time", "--nnodes=2 " + C10D + "--rdzv-conf=join_timeout=2 s.py", look=("status", "workers"), differs={"status": 66}, reason="66 says that nodes were missing; torchrun says 1 to everything")
case("a static port that is taken", "--master-port={port} --rdzv-id=job1 s.py", occupied=True, look=("status", "workers"), says=("(?i)in use",), differs={"status": 67},
     reason="67 says that somebody else has the port; torchrun says 1 to everything")
case("a node rank beyond the nodes", "--nnodes=1 --node-rank=1 --master-port={port} --rdzv-conf=timeout=3 s.py", look=("status", "workers"), differs={"status": 2}, reason=REFUSED)
case("three SIGTERMs, and the worker ignores them", "--shutdown-timeout=3 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\ntime.sleep(20)",
     steps=("workers 1", "signal SIGTERM", "pause 0.4", "signal SIGTERM", "pause 0.4", "signal SIGTERM"), look=("status", "left"), differs={"status": 143, "left": False}, reason=NOTHING_LEFT)

# ---------------------------------------------------------------------------------------------------------------------
group("two nodes, static")

STATIC = "--nnodes=2 --node-rank={} --nproc-per-node={} --role={} --master-addr=127.0.0.1 --master-port={{port}} --rdzv-id=job1 s.py"
case("two nodes", [STATIC.format(0, 1, "a"), STATIC.format(1, 2, "a")], look=("status", "environment"))
case("role ranks", [STATIC.format(0, 2, "a"), STATIC.format(1, 1, "b")], look=("status", "env RANK,ROLE_RANK,ROLE_NAME,ROLE_WORLD_SIZE,WORLD_SIZE,GROUP_RANK"))
