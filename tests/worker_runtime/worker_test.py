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
    return subprocess.run([toy, *arguments], env=clean | variables, capture_output=True, text=True, timeout=60)


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
    check(run("exit").returncode == 3)


def last_words(how, returncode, message, function):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "error.json"
        before = int(time.time())
        ended = run(how, TORCHELASTIC_ERROR_FILE=str(path), **contract)
        check(ended.returncode == returncode, how, ended)
        check("destroyed" not in ended.stdout, how, "ran destructors")
        check(message.split("\n")[0] in ended.stderr, how, ended.stderr)
        check(os.listdir(folder) == ["error.json"], os.listdir(folder))
        content = json.loads(path.read_text())["message"]
        check(message in content["message"], how, content)
        extra = content["extraInfo"]
        check(before <= int(extra["timestamp"]) <= time.time(), extra)
        check((extra["rank"], extra["local_rank"], extra["restart_count"]) == (5, 1, 2), extra)
        check(extra["host"] == socket.gethostname() and extra["step"] == 41, extra)
        check(function in extra["py_callstack"], how, extra["py_callstack"])
        check("worker_main" in extra["py_callstack"] or how in ("overflow", "thread"), how, extra["py_callstack"])
        # What torchrun itself makes of it.
        from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
        failure = ProcessFailure(local_rank=1, pid=1, exitcode=returncode, error_file=str(path))
        check(failure.timestamp == int(extra["timestamp"]) and message in failure.message["message"], failure)


ranks_and_arguments()
last_words("throw", 1, "std::out_of_range: no sample 7", "fail_here")
last_words("throw-error", 1, 'Error: said "no"\nin two lines', "fail_here")
last_words("throw-int", 1, "int", "fail_here")
last_words("throw-torch", 1, "c10::Error: mm: mat1 and mat2 shapes cannot be multiplied", "fail_here")
last_words("thread", 1, "std::out_of_range: no sample 7", "fail_here")
last_words("segv", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access to address 0x0", "fail_here")
last_words("abort", -signal.SIGABRT, "Signal 6 (SIGABRT)", "fail_here")
last_words("overflow", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access", "overflow")
print("ok")
