"""What workers get and what becomes of them: environment, ends, restarts, signals."""
from table import BY_SIGNAL, NOTHING_LEFT, REFUSED, case, group, refused

# ---------------------------------------------------------------------------------------------------------------------
group("environment")

HOOK = ("the worker hook keeps the page of memory by which a worker tells of itself, Python's own descriptor of that mapping, "
        "and the channel over which it is spoken to; a program sees no more of it, and none of its children does")
case("the whole table, one worker", "s.py", look=("status", "environment", "process", "stdin"), quick=True, differs={"process": {"0.0": {"own_session": True, "descriptors": [3, 1000, 1001]}}}, reason=HOOK)
case("the whole table, three workers", "--nproc-per-node 3 --max-restarts 4 --role trainer s.py", look=("status", "environment", "process"), differs={"process": {"0.0": {"own_session": True, "descriptors": [3, 1000, 1001]}, "0.1": {"own_session": True, "descriptors": [3, 1000, 1001]}, "0.2": {"own_session": True, "descriptors": [3, 1000, 1001]}}}, reason=HOOK)
case("the whole table, standalone", "--standalone --nproc-per-node 2 s.py", look=("status", "environment"))
case("the whole table, static", "--master-port={port} --rdzv-id=job1 --nproc-per-node 2 s.py", look=("status", "environment"), quick=True)
case("static with an address", "--master-addr=127.0.0.1 --master-port={port} s.py", look=("status", "environment"), exact=("MASTER_ADDR",))
case("static with an endpoint", "--rdzv-endpoint=127.0.0.1:{port} --master-addr=1.2.3.4 --master-port=5 s.py", look=("status", "environment"), exact=("MASTER_ADDR",))
case("c10d with an endpoint", "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id=job7 --nproc-per-node 2 s.py", look=("status", "environment"))
case("nothing else is added", "--nproc-per-node 2 s.py", look=("status", "added"))
case("several workers and stdin", "--nproc-per-node 2 s.py", look=("status", "stdin"))
case("a run id is replaced on one node without port", "--rdzv-id=job1 s.py", look=("status", "env TORCHELASTIC_RUN_ID"), differs={"env TORCHELASTIC_RUN_ID": {"0.0": {"TORCHELASTIC_RUN_ID": "job1"}}},
     reason="by the run id that its user gave it a job is found; torchrun makes another up")
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
# Whatever of the contract stands in the launcher's environment, the launcher's word is the one that workers hear.
TAKEN = {"LOCAL_RANK": "9", "RANK": "9", "GROUP_RANK": "9", "ROLE_RANK": "9", "ROLE_NAME": "taken", "LOCAL_WORLD_SIZE": "99", "WORLD_SIZE": "99", "GROUP_WORLD_SIZE": "99",
         "ROLE_WORLD_SIZE": "99", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "9", "NODE_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "9", "TORCHELASTIC_MAX_RESTARTS": "9",
         "TORCHELASTIC_RUN_ID": "taken", "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_ERROR_FILE": "/nonexistent/taken", "TORCHELASTIC_TIMER_FILE": "/nonexistent/timer",
         "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR2", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "0,1"}
INHERITED = "env NODE_RANK,TORCHELASTIC_TIMER_FILE,TORCHELASTIC_ERROR_FILE,CUDA_VISIBLE_DEVICES"
case("variables that contradict, one node", "--nproc-per-node 2 s.py", env=TAKEN, look=("status", "environment", INHERITED))
case("variables that contradict, static", "--master-port={port} --rdzv-id=job1 --nproc-per-node 2 s.py", env=TAKEN, look=("status", "environment", INHERITED))
case("variables that contradict, c10d", "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id=job7 --virtual-local-rank --nproc-per-node 2 s.py", env=TAKEN, look=("status", "environment", INHERITED))
case("PET variables that contradict options", "--nproc-per-node 2 --max-restarts 1 --role r --rdzv-id=job1 --master-addr=127.0.0.1 --master-port={port} --nnodes=1 --node-rank=0 s.py",
     env={"PET_NPROC_PER_NODE": "5", "PET_MAX_RESTARTS": "5", "PET_ROLE": "taken", "PET_RDZV_ID": "taken", "PET_MASTER_ADDR": "192.0.2.1", "PET_MASTER_PORT": "9", "PET_NNODES": "5", "PET_NODE_RANK": "1"},
     look=("status", "environment"))
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
case("an uncaught exception", "s.py", "raise ValueError('bad')", look=("status", "report"), says=("ValueError: bad",),
     differs={"report": ["ruler 60", "===", "s.py FAILED", "---", "Failures:", "  <NO_OTHER_FAILURES>", "---", "Root Cause (first observed failure):", "[0]:", "  time      : <time>", "  host      : <host>", "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: <pid>) ", "  error_file: <dir>/tmp/<temporary>/<uuid>_<random>/attempt_0/0/error.json", "  traceback : Traceback (most recent call last):", "    File \"<dir>/s.py\", line 3, in <module>", "      raise ValueError('bad')", "  ValueError: bad", "  ", "==="]},
     reason="the worker hook leaves the error file that torchrun gets from programs with @record alone")
for name in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGUSR2"):
    case(f"a worker dies by {name}", "s.py", f"os.kill(os.getpid(), signal.{name})", look=REPORT)
case("a worker dies by a real-time signal", "s.py", "os.kill(os.getpid(), 40)", look=REPORT)
case("a worker exits 128 + 9 by itself", "s.py", "sys.exit(137)", look=REPORT)
# Rank 1 fails when the others have done what stands before.
FAILS = "record()\nif os.environ['RANK'] == '1':\n  others_recorded(); sys.exit({})\n"
LAST = FAILS.format(138) + "stay()"
case("a sibling is stopped and listed", "--nproc-per-node 2 s.py", LAST, look=REPORT, quick=True)
case("a sibling that exits 0 when stopped is not listed", "--nproc-per-node 2 s.py", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + LAST, look=REPORT)
case("a sibling that exits 3 when stopped is listed", "--nproc-per-node 2 s.py", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n" + LAST, look=REPORT)
case("a sibling that finished is not listed", "--nproc-per-node 2 s.py", "record()\nif os.environ['RANK'] == '1':\n  other_ended(0); sys.exit(4)\n", look=REPORT)
case("two siblings stopped", "--nproc-per-node 3 s.py", LAST, look=REPORT)
case("a sibling that ignores SIGTERM", "--nproc-per-node 2 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAILS.format(138) + "stay(100)", look=REPORT, slow=True)
case("the grace of --shutdown-timeout bounds every stop", "--shutdown-timeout 1 --nproc-per-node 2 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAILS.format(3) + "stay(15); mark('lived')", look=("status", "marks"),
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
case("the environment after a restart", "--max-restarts=2 --nproc-per-node 2 s.py", "record()\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n  if os.environ['RANK'] == '0': stay()\n  others_recorded(); sys.exit(3)\n",
     look=("status", "environment"))
case("logs of all attempts", "--max-restarts=2 -r 3 --log-dir logs --nproc-per-node 2 s.py",
     "n = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('W:out', n, os.environ['RANK'], flush=True); print('W:err', n, file=sys.stderr)\nmark(n + '.' + os.environ['RANK'])\nwhile len([f for f in os.listdir(os.environ['PROBE_DIR']) if f.startswith(n + '.') and f.endswith('.mark')]) < 2: time.sleep(0.01)\nsys.exit(0 if n == '2' else 1)",
     look=("status", "logs", "stdout", "stderr"))
case("an incident record beside the logs", "--log-dir logs s.py", "sys.exit(3)", look=("status", "incident"), differs={"incident": ["attempt_0/incident.json"]},
     reason="each failed attempt leaves a record of what was seen; every other comparison of log directories leaves it out")
case("a worker with success is not restarted by itself", "--max-restarts=3 s.py", look=("status", "workers"))

# ---------------------------------------------------------------------------------------------------------------------
group("signals")

TRAP = "def end(n, _):\n  mark(signal.Signals(n).name); sys.exit({code})\nfor n in (1, 2, 3, 10, 12, 15): signal.signal(n, end)\nrecord()\nstay()\n"
for name, code in (("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129), ("SIGQUIT", 131)):
    case(f"{name} is passed on", "s.py", TRAP.replace("{code}", "0"), steps=("workers 1", f"signal {name}"), look=("status", "marks", "report", "left"),
         differs={"status": code}, reason=BY_SIGNAL, quick=name == "SIGTERM")
case("SIGTERM, and the worker dies of it", "--nproc-per-node 2 s.py", "record(); stay()", steps=("workers 2", "signal SIGTERM"), look=("status", "report", "left"), differs={"status": 143}, reason=BY_SIGNAL)
case("SIGTERM reaches the worker's children", "s.py", "p = subprocess.Popen(['sh', '-c', 'trap \"touch $PROBE_DIR/child.mark; exit\" TERM; touch $PROBE_DIR/up.mark; while :; do sleep 0.05; done'])\nsignal.signal(signal.SIGTERM, lambda *_: (p.wait(), sys.exit(0)))\nrecord()\nstay()",
     steps=("workers 1", "mark up", "signal SIGTERM"), look=("status", "marks", "left"), differs={"status": 143}, reason=BY_SIGNAL)
case("SIGTERM uses up no restart", "--max-restarts=3 s.py", "record(); stay()", steps=("workers 1", "signal SIGTERM"), look=("status", "workers"), differs={"status": 143}, reason=BY_SIGNAL)
case("--shutdown-timeout after a signal", "--shutdown-timeout=1 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\nstay(5); mark('lived')", steps=("workers 1", "signal SIGTERM"), look=("status", "marks", "left"), differs={"status": 143}, reason=BY_SIGNAL)
case("--shutdown-timeout=0", "--shutdown-timeout=0 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\nstay(5); mark('lived')", steps=("workers 1", "signal SIGTERM"), look=("status", "marks"), differs={"status": 143}, reason=BY_SIGNAL)
case("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\nstay(5); mark('lived')", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}, steps=("workers 1", "signal SIGTERM"), look=("status", "marks"), differs={"status": 143}, reason=BY_SIGNAL)
case("the flag beats TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "--shutdown-timeout=1 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\nstay(5); mark('lived')", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}, steps=("workers 1", "signal SIGTERM"), look=("status", "marks"), differs={"status": 143}, reason=BY_SIGNAL)
case("a listed extra signal ends the job", "--signals-to-handle=SIGTERM,SIGUSR1 s.py", TRAP.replace("{code}", "0"), steps=("workers 1", "signal SIGUSR1"), look=("status", "marks"), differs={"status": 138}, reason=BY_SIGNAL)
case("SIGUSR1 that is not listed", "s.py", "signal.signal(signal.SIGUSR1, lambda *_: (mark('usr1'), sys.exit(0)))\nrecord()\nstay(10)", steps=("workers 1", "signal SIGUSR1"), look=("status", "marks", "left"),
     differs={"status": 0, "marks": {"usr1": ""}, "left": False}, reason="USR1 and USR2 are passed on and the job goes on; torchrun dies of them and leaves its workers")
case("SIGTERM that is not listed", "--signals-to-handle=SIGINT s.py", "record(); stay(20)", steps=("workers 1", "signal SIGTERM"), look=("left",), differs={"left": False}, reason=NOTHING_LEFT)
case("an unknown signal name", "--signals-to-handle=SIGFOO,SIGTERM s.py", look=("status", "workers"), says=("Failed to register signal handler for SIGFOO",))
case("blanks around signal names", "--signals-to-handle=' SIGTERM , SIGINT ' s.py", look=("status", "workers"))
case("a signal that cannot be caught", "--signals-to-handle=SIGKILL s.py", look=("status",), differs={"status": 2}, reason=REFUSED)
case("kill -9 of the launcher", "s.py", "record(); stay(20)", steps=("workers 1", "signal SIGKILL"), look=("status", "left"), differs={"left": False}, reason=NOTHING_LEFT)
case("a second Ctrl-C", "s.py", "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\nstay(8); mark('lived')", steps=("workers 1", "signal SIGINT", "pause 0.5", "signal SIGINT"), look=("status", "marks", "left"),
     differs={"status": 130, "marks": {}}, reason="a second Ctrl-C kills; torchrun begins another shutdown of 30 s", slow=True)
