"""worker_main as a person and a launcher see it: who am I, and last words. Usage: worker_test.py TOY_WORKER"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

toy = sys.argv[1]
contract = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29999", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}
ranks = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_")
clean = {name: value for name, value in os.environ.items() if not name.startswith(ranks)}


def run(*arguments, **variables):
    return subprocess.run([toy, *arguments], env=clean | variables, capture_output=True, text=True, timeout=100)

signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # what started us may ignore it, and workers keep what is ignored


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def ranks_and_arguments():
    alone = run("report", "--lr", "0.1")
    check(alone.returncode == 0, alone)
    check("rank 0 of 1, local rank 0 of 1, restart 0, device cpu" in alone.stdout, alone)
    check(f"[{toy}] [report] [--lr] [0.1] and a null" in alone.stdout, alone)
    check("without a launcher" in alone.stderr and "rank 0 of 1" in alone.stderr, alone)

    launched = run("report", "--local-rank=1", "--epochs", "2", **contract)
    check("rank 5 of 8, local rank 1 of 2, restart 2" in launched.stdout, launched)
    check("[report] [--epochs] [2] and" in launched.stdout and launched.stderr == "", launched)

    without_local = {name: value for name, value in contract.items() if name != "LOCAL_RANK"}
    check("local rank 0 of 2" in run("report", "--local_rank", "0", **without_local).stdout)

    part = run("report", RANK="0", MASTER_ADDR="127.0.0.1")
    check(part.returncode == 1 and "WORLD_SIZE" in part.stderr and "MASTER_PORT" in part.stderr, part)
    check(part.stderr.count("\n") == 1 and part.stderr.startswith("torchup: rank 0: "), part.stderr)
    check(run("exit").returncode == 3)


def last_words(how, returncode, message, function):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "error.json"
        before = int(time.time())
        ended = run(how, TORCHELASTIC_ERROR_FILE=str(path), **contract)
        check(ended.returncode == returncode, how, ended)
        check("destroyed" not in ended.stdout, how, "ran destructors")
        check(message.split(": ")[-1].split("\n")[0] in ended.stderr, how, ended.stderr)
        check(function is None or (function in ended.stderr) == (how != "throw-error"), how, ended.stderr)
        check(os.listdir(folder) == ["error.json"], os.listdir(folder))
        content = json.loads(path.read_text())["message"]
        check(message in content["message"], how, content)
        check(content["message"].startswith("c10::Error: ") == (how == "throw-torch"), how, content)
        extra = content["extraInfo"]
        check(before <= int(extra["timestamp"]) <= time.time(), extra)
        check((extra["rank"], extra["local_rank"], extra["restart_count"]) == (5, 1, 2), extra)
        check(extra["host"] == socket.gethostname() and extra["step"] == 41, extra)
        if function is None:  # what was written before anything that could hang: addresses without names
            check(len(extra["py_callstack"].split("0x")) > 3, how, extra["py_callstack"])
            return
        check(function in extra["py_callstack"], how, extra["py_callstack"])
        check("worker_main" in extra["py_callstack"] or how in ("overflow", "thread"), how, extra["py_callstack"])
        # What torchrun itself makes of it.
        from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
        failure = ProcessFailure(local_rank=1, pid=1, exitcode=returncode, error_file=str(path))
        check(failure.timestamp == int(extra["timestamp"]) and message in failure.message["message"], failure)


def start(world_size, *arguments, nodes=1, place={}, **more):
    """Workers of one job, as if they were on so many nodes, and the store that they meet at."""
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = clean | {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
                         "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    each = world_size // nodes
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each)}
              for rank in range(world_size)]
    return store, [subprocess.Popen([toy, *arguments], env=variables | own | place, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more) for own in places]


def stops_together(every, asked_rank):
    """One rank is asked to stop; all stop after the same step, however far they have drifted apart."""
    store, workers = start(3, "steps", str(every))
    for worker in workers:
        check(worker.stdout.readline() == "begun\n")
    time.sleep(0.2)
    workers[asked_rank].send_signal(signal.SIGUSR1)
    outputs = [worker.communicate(timeout=100)[0] for worker in workers]
    check([worker.returncode for worker in workers] == [75] * 3, outputs)
    check(len(set(outputs)) == 1 and outputs[0].startswith("stop "), outputs)


def alone_stops():
    _, (worker,) = start(1, "steps", "1")
    worker.stdout.readline()
    worker.send_signal(signal.SIGUSR1)
    check(worker.communicate(timeout=100)[0].startswith("stop ") and worker.returncode == 75, worker.returncode)


def zero_first():
    _, workers = start(3, "zero-first")
    outputs = [worker.communicate(timeout=100)[0].replace("destroyed", "").split() for worker in workers]
    for turn in (0, 2):
        times = {output[turn]: [int(other[turn + 1]) for other in outputs if other[turn] == output[turn]] for output in outputs}
        check(len(times["first"]) == 1 and len(times["later"]) == 2 and times["first"][0] <= min(times["later"]), outputs)
    # On two nodes: one of each, then one of the job. Also where every worker believes that its local rank is 0.
    for place in ({}, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}):
        _, workers = start(4, "zero-first", nodes=2, place=place)
        outputs = [worker.communicate(timeout=100)[0].replace("destroyed", "").split()[::2] for worker in workers]
        for node in (outputs[:2], outputs[2:]):
            check(sorted(output[0] for output in node) == ["first", "later"], outputs)
        check([output[1] for output in outputs] == ["first", "later", "later", "later"], outputs)
    # A first one that fails tells the others at once, whether the exception is caught or ends the process.
    for how, why in (("zero-first-fails", "an exception left its scope"), ("zero-first-crashes", "the disk is full")):
        _, workers = start(2, how)
        begun = time.monotonic()
        errors = [worker.communicate(timeout=100)[1] for worker in workers]
        codes = [worker.returncode for worker in workers]
        check(time.monotonic() - begun < 10, errors)
        told = errors[1 - codes.index(0)] if 0 in codes else min(errors, key=lambda error: "first rank of this node failed" not in error)
        check(codes.count(1) == (1 if how == "zero-first-fails" else 2) and "first rank of this node failed: " in told and why in told, codes, errors)


def page():
    """The page that a worker shares with its agent: heartbeat, waiting, drain; refused when it is not ours."""
    import fcntl
    import mmap
    import struct

    def run_with_page(seals, pid_offset=0, every="1"):
        memory = os.memfd_create("page", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        facts = os.fstat(memory)

        def name_page():  # in the child: the one place that knows its pid
            os.environ["TORCHUP_WORKER_PAGE"] = f"{memory}:{facts.st_dev}:{facts.st_ino}:{os.getpid() + pid_offset}"
            os.execve(toy, [toy, "steps", every], dict(os.environ))

        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.environ.clear()
            os.environ.update(clean)
            os.dup2(write, 1)
            os.set_inheritable(memory, True)
            name_page()
        os.close(write)
        output = os.fdopen(read)
        check(output.readline() == "begun\n")
        time.sleep(0.1)
        content = os.pread(memory, 4096, 0)
        os.pwrite(memory, struct.pack("<Q", 1), 2048)
        if pid_offset or seals == 0:
            time.sleep(0.3)
            os.kill(child, signal.SIGUSR1)
        stopped = output.read()
        _, status = os.waitpid(child, 0)
        check(os.waitstatus_to_exitcode(status) == 75, status)
        return child, content, os.pread(memory, 4096, 0), stopped

    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    child, during, after, stopped = run_with_page(seals)
    newest = struct.unpack_from("<Q", after, 16)[0]
    number, step, ended, took, waited = struct.unpack_from("<Qqqqq", after, 64 + newest % 2 * 64)
    check(struct.unpack_from("<Qq", after) == (0x31474150505554, child))
    check(number == newest == step == int(stopped.split()[1]) and abs(time.monotonic_ns() - ended) < 5e9, (number, newest, step, stopped))
    check(0 <= waited < took < 1e9 and struct.unpack_from("<Q", during, 16)[0] < newest, (waited, took))
    for wrong in ({"seals": 0}, {"seals": seals, "pid_offset": 1}):
        check(run_with_page(**wrong)[2][:2048] == bytes(2048), wrong)


def spawned():
    ended = run("spawned")
    check(ended.returncode == 0 and sorted(line for line in ended.stdout.split("\n") if "sum" in line) == [f"rank {rank} of 3: sum 6" for rank in range(3)], ended)
    begun = time.monotonic()
    ended = run("spawned", "1")
    check(ended.returncode == 7 and time.monotonic() - begun < 20, ended)
    # The store that the processes meet at is for this machine only.
    parent = subprocess.Popen([toy, "spawned", "-1"], env=clean, text=True, stdout=subprocess.PIPE)
    try:
        for _ in range(3):
            check("sum 6" in parent.stdout.readline())
        sockets = {os.readlink(link)[8:-1] for link in pathlib.Path(f"/proc/{parent.pid}/fd").iterdir() if os.readlink(link).startswith("socket:")}
        listening = [words[1].split(":")[0] for table in ("tcp", "tcp6") for words in map(str.split, open(f"/proc/net/{table}"))
                     if words[3] == "0A" and words[9] in sockets]
        check(listening == ["0100007F"], listening)
    finally:
        workers = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.kill()  # its children follow
        parent.communicate()
    deadline = time.monotonic() + 10
    while any(pathlib.Path(f"/proc/{pid}").exists() and "(toy_worker) Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in workers):
        check(time.monotonic() < deadline, workers)
        time.sleep(0.01)


ranks_and_arguments()
zero_first()
alone_stops()
for every, asked_rank in ((1, 0), (1, 2), (7, 1)):
    stops_together(every, asked_rank)
page()
spawned()
last_words("throw", 1, "std::out_of_range: no sample 7", "fail_here")
last_words("throw-error", 1, 'Error: said "no"\nin two lines', "fail_here")
last_words("throw-int", 1, "int", "fail_here")
last_words("throw-torch", 1, "mat1 and mat2 shapes cannot be multiplied", "fail_here")
last_words("thread", 1, "std::out_of_range: no sample 7", "fail_here")
last_words("segv", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access to address 0x0", "fail_here")
last_words("abort", -signal.SIGABRT, "Signal 6 (SIGABRT)", "fail_here")
last_words("quit", -signal.SIGQUIT, "Signal 3 (SIGQUIT)", "fail_here")
last_words("overflow", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access", "overflow")
last_words("action-hangs", 1, "std::out_of_range: no sample 7", None)
print("ok")
