"""What is written, and jobs of several launchers: output, error files, watchdog, the legacy launcher, rendezvous."""
from command_line_cases import ARGV
from table import BY_SIGNAL, NOTHING_LEFT, NO_DIRECTORY, REFUSED, case, group, usage

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
case("a last half line, and another worker's line", "--nproc-per-node 2 s.py", "if os.environ['RANK'] == '1': until(lambda: 'W:half' in open('out.0').read()); print('W:line')\nelse: sys.stdout.write('W:half')", look=("status", "out"),
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
case("a signal is told in the error file", "s.py", "record(); stay(20)", env=OUTER, steps=("workers 1", "signal SIGTERM"), look=("status", "file outer.json"), differs={"status": 143}, reason=BY_SIGNAL)

# ---------------------------------------------------------------------------------------------------------------------
group("watchdog, health, events")

TIMER = "import json\ndef timer(after, sig):\n  f = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY | os.O_NONBLOCK)\n  os.write(f, json.dumps({'version': 1, 'pid': os.getpid(), 'scope_id': 's', 'expiration_time': time.time() + after if after >= 0 else -1, 'signal': sig}).encode() + b'\\n')\n  os.close(f)\n"
FILE_TIMER = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
case("the watchdog's pipe", "s.py", "import stat; record(); print('W:', stat.S_ISFIFO(os.stat(os.environ['TORCHELASTIC_TIMER_FILE']).st_mode))", env=FILE_TIMER, look=("status", "stdout"))
case("the watchdog's pipe by name", "s.py", "record(); print('W:', os.environ['TORCHELASTIC_TIMER_FILE'])", env={**FILE_TIMER, "TORCHELASTIC_TIMER_FILE": "{dir}/timer"}, look=("status", "stdout", "file timer"))
case("no watchdog unless it is switched on", "s.py", env={"TORCHELASTIC_ENABLE_FILE_TIMER": "true"}, look=("status", "env TORCHELASTIC_TIMER_FILE"))
case("the watchdog kills", "s.py", TIMER + "timer(0.2, 9); record(); stay(8); mark('lived')", env=FILE_TIMER, look=("status", "marks"), differs={"status": 1}, reason="the watchdog's kill is a worker's failure, not the launcher's own end")
# A later timer, whose signal the worker takes, says that the time of the released one is over.
case("a released timer does nothing", "s.py", TIMER + "signal.signal(signal.SIGUSR1, lambda *_: mark('lived'))\ntimer(3, 9); timer(-1, 0); timer(4, 10); until(lambda: os.path.exists(os.environ['PROBE_DIR'] + '/lived.mark'))", env=FILE_TIMER, look=("marks",))
case("a health port that is no number", "s.py", env={"TORCHELASTIC_HEALTH_CHECK_PORT": "x"}, look=("status", "workers"))
HEALTH = """import urllib.request
for host in ("127.0.0.1", "127.0.0.2"):
  try: print("W:", urllib.request.urlopen("http://" + host + ":" + os.environ["TORCHELASTIC_HEALTH_CHECK_PORT"] + "/healthz", timeout=5).status)
  except OSError: print("W: nobody")"""
case("a health port", "s.py", HEALTH, env={"TORCHELASTIC_HEALTH_CHECK_PORT": "{port}"}, look=("status", "out"), differs={"out": "W: 200\nW: nobody\n"},
     reason="torchrun knows the variable and opens no port; ours answers probes there, on loopback, of which the second address stands for all others")
case("the watchdog's pipe goes with the job", "s.py", "record()", env={**FILE_TIMER, "TORCHELASTIC_TIMER_FILE": "{dir}/timer"}, look=("status", "file timer"))
case("a watchdog's line that is none", "s.py", TIMER + "f = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY | os.O_NONBLOCK); os.write(f, b'nonsense\\n'); os.close(f); timer(0.3, 15); stay(5); mark('lived')", env=FILE_TIMER,
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
case("three SIGTERMs, and the worker ignores them", "--shutdown-timeout=3 s.py", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord()\nstay(20)",
     steps=("workers 1", "signal SIGTERM", "pause 0.4", "signal SIGTERM", "pause 0.4", "signal SIGTERM"), look=("status", "left"), differs={"status": 143, "left": False}, reason=NOTHING_LEFT)

# ---------------------------------------------------------------------------------------------------------------------
group("two nodes, static")

STATIC = "--nnodes=2 --node-rank={} --nproc-per-node={} --role={} --master-addr=127.0.0.1 --master-port={{port}} --rdzv-id=job1 s.py"
case("two nodes", [STATIC.format(0, 1, "a"), STATIC.format(1, 2, "a")], look=("status", "environment"))
case("role ranks", [STATIC.format(0, 2, "a"), STATIC.format(1, 1, "b")], look=("status", "env RANK,ROLE_RANK,ROLE_NAME,ROLE_WORLD_SIZE,WORLD_SIZE,GROUP_RANK"))
