"""Jobs of PyTorch over gloo that come to a standstill, or limp, and what their launchers tell of them.

For scripts that are started as SCRIPT TORCHUP [name of a test ...].
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap

from waiting import until

try:
    import torch  # noqa: F401
except ImportError:
    print("torch is not installed for", sys.executable)
    sys.exit(77)

TORCHUP = os.path.abspath(sys.argv[1])
HOST = socket.gethostname()
BEGINNING = """\
import os, signal, sys, time
import torch, torch.distributed as dist


class GoOn(Exception):
    pass


def go_on(*_):
    raise GoOn


signal.signal(signal.SIGUSR1, signal.SIG_IGN)
dist.init_process_group("gloo")
rank, values = dist.get_rank(), torch.ones(1024)
for _ in range(3):
    dist.all_reduce(values)
"""
LIMIT_S = 150  # for what comes within a few seconds, after torch's import, on a machine that has time
TIMEOUT = f"2,{LIMIT_S}"  # --hang-timeout: who is still importing is not told of


class HangJob:
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.jobs = []

    def start(self, program, *options, timeout=TIMEOUT):
        """A job whose ranks do this after three collectives. Several are nodes of one."""
        node = len(self.jobs)
        path = self.folder / "program.py"
        path.write_text(BEGINNING + textwrap.dedent(program))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "PET_"))}
        with open(self.folder / f"stderr{node}", "w") as stderr:
            job = subprocess.Popen([TORCHUP, f"--hang-timeout={timeout}", f"--events={self.folder}/events{node}",
                                    f"--log-dir={self.folder}/logs{node}", *options, str(path)], stderr=stderr,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self.folder,
                                   env={**environment, "OMP_NUM_THREADS": "1",
                                        "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]})
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))
        self.jobs.append(job)
        return job

    def stderr(self, node=0):
        return (self.folder / f"stderr{node}").read_text()

    def events(self, name, node=0):
        path = self.folder / f"events{node}"
        text = path.read_text() if path.exists() else ""
        whole = text[:text.rfind("\n") + 1]
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == name]

    def event(self, name, node=0):
        """The first event of that name, once it is there."""

        def found():
            over = self.jobs[node].poll() is not None  # first: what it has told by then is all
            events = self.events(name, node)
            self.assertTrue(events or not over, f"no {name}: {self.stderr(node)}")
            return events

        return until(found, name, LIMIT_S)[0]

    def end(self, status, node=0):
        self.assertEqual(self.jobs[node].wait(timeout=LIMIT_S), status, self.stderr(node))

    def line_of(self, text):
        lines = (self.folder / "program.py").read_text().splitlines()
        return 1 + next(i for i, line in enumerate(lines) if text in line)
