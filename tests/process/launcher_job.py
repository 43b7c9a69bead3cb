"""Jobs of one node whose workers do as they are told, and what is seen of their processes.

For scripts that are started as SCRIPT TORCHUP FAKE_WORKER [name of a test ...].

Every test is a subreaper, so each process that a launcher leaves behind becomes its child and is found by parentage,
whatever it did to its session and environment.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

from waiting import children, state, until  # noqa: F401; for those who import this

TORCHUP = sys.argv.pop(1)
WORKER = sys.argv.pop(1)
PR_SET_CHILD_SUBREAPER = 36
LEFT_LIMIT_S = 10.0  # from a launcher's end to the end of the last of its descendants


def cgroup_of(pid):
    """Path of a process in the hierarchy of cgroup version 2; None without one."""
    with open(f"/proc/{pid}/cgroup") as file:
        return next((line.rstrip("\n")[3:] for line in file if line.startswith("0::")), None)


def own_cgroup():
    """Folder of our cgroup (version 2) where we may make others; None: nowhere."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file if " - cgroup2 " in line]
    path = cgroup_of("self")
    if path is None or not mounts or os.path.exists("/run/systemd/system"):
        return None
    folder = mounts[0][4] + path.removeprefix(mounts[0][3].rstrip("/")).rstrip("/")
    return folder if os.access(folder + "/cgroup.procs", os.W_OK) else None


class Job:
    """What the cases of a job's life share: they start jobs of fake workers, and prove that nothing is left of them."""

    def setUp(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.notes = os.path.join(self.scratch.name, "notes")

    def start(self, options, worker, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self.scratch.name}
        job = subprocess.Popen([TORCHUP, *options.split(), WORKER, *worker.format(notes=self.notes).split()], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stdout.close(), job.stderr.close()))
        return job

    def end(self, job, status, limit_s=25):
        """Waits for the launcher's end with this status, and for that of everything it started."""
        out, err = job.communicate(timeout=limit_s)
        self.assertEqual(job.returncode, status, err)
        self.nothing_left()
        self.assertEqual([name for name in os.listdir(self.scratch.name) if name.startswith("torchelastic_")], [])
        return out, err

    def nothing_left(self):
        end = time.monotonic() + LEFT_LIMIT_S
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            if time.monotonic() > end:
                left = children(os.getpid())
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                self.fail(f"left behind: {left}")
            time.sleep(0.005)

    def workers(self, count):
        """Notes of `count` worker starts: (local rank, pid, restart count)."""

        def read():
            if not os.path.exists(self.notes):
                return None
            with open(self.notes) as file:
                lines = [tuple(int(word) for word in line.split()) for line in file]
            return lines if len(lines) >= count else None

        return until(read, f"{count} workers")

    def started(self, events, count):
        """Until the agent knows of `count` worker starts."""

        def known():
            if not os.path.exists(events):
                return False
            with open(events) as file:
                return file.read().count('"worker_started"') >= count

        until(known, f"{count} workers are known")

    def said(self, job, text):
        """Reads the job's stderr until `text` stands there; `end` gets the rest."""
        lines = []
        while not lines or text not in lines[-1]:
            lines.append(job.stderr.readline())
            self.assertNotEqual(lines[-1], "", f"never said: {text}; but {lines}")
        return lines

    @staticmethod
    def apart():
        """Two equal signals closer than this are one, by rule: what they protect is a span of time."""
        time.sleep(0.05)

    def signalled(self, number, worker="on {signal} 0 note {{notes}} wait", options="--nproc-per-node=2"):
        events = os.path.join(self.scratch.name, "signalled")
        if os.path.exists(events):
            os.unlink(events)
        job = self.start(f"{options} --events={events}", worker.format(signal=int(number)))
        self.workers(2)
        self.started(events, 2)  # of workers that the agent does not know of yet it has nothing to show
        job.send_signal(number)
        return job
