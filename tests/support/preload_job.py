"""What the tests of --preload share: a folder with modules and programs, and jobs in it."""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from waiting import state, until  # noqa: F401; for those who import this

TORCHUP = os.path.abspath(sys.argv.pop(1))
PR_SET_CHILD_SUBREAPER = 36
# `python3` is the Python of this test. One that is a shell script in front of it (pyenv's) sets variables of its own.
os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.executable)) + ":" + os.environ["PATH"]
# Modules that cost nothing, and that a program shows by a mark to have been imported by somebody else.
MARK = "import os, sys\nPID = os.getpid()\n"


def descendants(pid):
    """Living ones, zombies left out."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{parent}/task/{task}/children") as file:
                        found += [int(child) for child in file.read().split()]
    return [each for each in found[1:] if state(each) not in (None, "Z", "X")]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


class Case:
    def setUp(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.write("mark.py", MARK)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def run_job(self, *words, **how):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.folder), **how.pop("env", {})}
        how = {"capture_output": True, "text": True, "cwd": self.folder, "timeout": 150, "stdin": subprocess.DEVNULL, **how}
        return subprocess.run([TORCHUP, *words], env=environment, **how)

    def start_job(self, *words, **how):
        # A dumb terminal shows what workers write alone, also where they take their time.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.folder), "TERM": "dumb"}
        job = subprocess.Popen([TORCHUP, *words], env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, text=True, **how)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))
        return job

    def events(self, name):
        whole, _, _ = (self.folder / "events.jsonl").read_text().rpartition("\n")  # the last line may be half written
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == name]


def own_cgroup():
    """Folder of our cgroup (version 2) where we may make others; None: nowhere."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file if " - cgroup2 " in line]
    with open("/proc/self/cgroup") as file:
        path = next((line.rstrip("\n")[3:] for line in file if line.startswith("0::")), None)
    if path is None or not mounts or os.path.exists("/run/systemd/system"):
        return None
    folder = mounts[0][4] + path.removeprefix(mounts[0][3].rstrip("/")).rstrip("/")
    return folder if os.access(folder + "/cgroup.procs", os.W_OK) else None
