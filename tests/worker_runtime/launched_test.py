"""Workers of the runtime under our launcher: drain, hang, last step. Usage: launched_test.py TORCHUP TOY_WORKER"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

torchup, toy = sys.argv[1:3]
environment = os.environ | {"OMP_NUM_THREADS": "1"}


def start(*arguments):
    return subprocess.Popen([torchup, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def drain(asked):
    """The launcher is asked to drain: all ranks stop after the same step, it ends with 75, and no failure is reported."""
    job = start("--nproc-per-node=3", "--drain-signals=TERM", "--max-restarts=3", toy, "steps", "1")
    for _ in range(3):
        assert "begun" in job.stdout.readline()
    time.sleep(0.2)
    job.send_signal(asked)
    stdout, stderr = job.communicate(timeout=100)
    assert job.returncode == 75, (job.returncode, stderr)
    stops = [line for line in stdout.split("\n") if line.startswith("stop ")]
    assert len(stops) == 3 and len(set(stops)) == 1, stdout
    assert "asks to be started again" in stderr and "failed" not in stderr, stderr


def failing(then, *options):
    with tempfile.TemporaryDirectory() as folder:
        logs = pathlib.Path(folder) / "logs"
        events = pathlib.Path(folder) / "events.jsonl"
        begun = time.monotonic()
        job = start("--nproc-per-node=3", f"--log-dir={logs}", f"--events={events}", *options, toy, "five-steps", then)
        _, stderr = job.communicate(timeout=150)
        took = time.monotonic() - begun
        (path,) = logs.glob("**/incident.json")
        ended = [event for event in map(json.loads, events.read_text().splitlines()) if event.get("event") == "worker_exited" or event.get("type") == "worker_exited"]
        return job.returncode, stderr, json.loads(path.read_text()), ended, took


def hang():
    """A rank that hangs is told from those that wait for it, shows where it hangs, and is ended."""
    code, stderr, incident, _, took = failing("hang", "--heartbeat-timeout=3")
    assert code == 1 and took < 60, (code, took)
    assert "rank 1 ended no step for 3." in stderr and "the last one was step 5; ranks 0, 2 wait for others" in stderr, stderr
    assert incident["failures"][0]["rank"] == 1 and incident["failures"][0]["exit_code"] == -signal.SIGABRT, incident
    assert incident["last_step"] == 5, incident
    assert any("hang_here" in line for line in incident["evidence"]["native_backtrace"]), incident["evidence"]
    others = {other["rank"]: other["progress"] for other in incident["others"]}
    assert all("step 5 ended" in text and "waiting for other ranks" in text for text in others.values()) and set(others) == {0, 2}, others
    assert "hang_here" in stderr and "step 5 ended" in stderr, stderr


def crash():
    """The last step of a rank that was killed stands in the records, although it could say nothing."""
    code, stderr, incident, ended, _ = failing("segv")
    assert code == 1 and incident["last_step"] == 5 and incident["failures"][0]["exit_code"] == -signal.SIGSEGV, incident
    assert any("fail_here" in line for line in incident["evidence"]["native_backtrace"]), incident["evidence"]
    assert [event["last_step"] for event in ended if event["rank"] == 1] == [5], ended


drain(signal.SIGTERM)
drain(signal.SIGUSR1)
hang()
crash()
print("ok")
