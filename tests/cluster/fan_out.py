"""A job that `torchup --hosts` runs on hosts of sshd (ssh_hosts.py), and the cases that tests of it are built on."""

import json
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from ssh_hosts import FRONT, SshHosts, parent, program, read, why_not
from workers_log import WorkersLog

sys.path.append(str(Path(__file__).parents[1] / "support"))
from waiting import until  # noqa: E402

QUICK = ("--shutdown-timeout=2", "--rdzv-conf=join_timeout=60,last_call_timeout=1")


class FanOut(WorkersLog):
    """The front's process and what it says; its workers are node_worker.py unless `program` is another."""

    def __init__(self, hosts, torchup, *options, on=None, slots=False, program=(), stdout=None, **more):
        self.hosts, self.torchup = hosts, str(torchup)
        number = sum(1 for entry in hosts.folder.glob("job*"))
        folder = hosts.folder / f"job{number}"
        folder.mkdir()
        self.begin_log(folder)
        self.events_file, self.result_file = folder / "events", folder / "result"
        names = ["--hosts", ",".join(hosts.names if on is None else on)] if on != () else []
        words = [torchup, *names, *([] if slots else ["--nproc-per-node=1"]), *QUICK, f"--events={self.events_file}",
                 f"--result-file={self.result_file}", *options, *(program or ["--no-python", *self.worker()])]
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            self.process = hosts.start(*words, stdout=stdout or out, stderr=err, start_new_session=True, **more)

    def said(self):
        return (self.dir / "err").read_text(errors="replace")

    def lines(self):
        """Of its standard output."""
        return (self.dir / "out").read_text(errors="replace").splitlines()

    def events(self, kind=None):
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill_front(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def ends_with(self, *codes, limit=60.0):
        try:
            got = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the front still runs after {limit} s; it said:\n{self.said()}") from None
        assert got in codes, f"the front ended with {got}, not {' or '.join(map(str, codes))}; it said:\n{self.said()}"
        return got

    def run_to_end(self, *codes, limit=60.0):
        self.ends_with(*codes, limit=limit)
        self.hosts.nothing_left()
        return self

    # Whom a fault may befall.

    def agents(self, name):
        """Our processes there: the link's far end, then the agent's outer and inner one."""
        running = [pid for pid in self.hosts.processes(name) if program(pid) == os.path.basename(self.torchup)]

        def depth(pid):
            return 1 + depth(parent(pid)) if pid in running else 0

        return sorted(running, key=depth)

    def clients(self, name=""):
        """The front's ssh processes for that host, or for any."""
        return [pid for pid in self.hosts.processes(FRONT)
                if program(pid) == "ssh" and (not name or name.encode() in read(f"/proc/{pid}/cmdline").split(b"\0"))]

    def kill_agent(self, name, which=0):
        """By its place in `agents`."""
        until(lambda: len(self.agents(name)) == 3, f"an agent runs on {name}")
        os.kill(self.agents(name)[which], signal.SIGKILL)

    def kill_client(self, name):
        pid, = until(lambda: self.clients(name), f"an ssh for {name}")
        os.kill(pid, signal.SIGKILL)

    def round_on(self, *names, after=0, limit=60.0):
        """The entries of a round with one worker on each of these hosts and on no other."""
        def find():
            for entries in self.rounds()[after:]:
                if len(entries) == entries[0]["world"] == len(names) and {entry["host"] for entry in entries} == set(names):
                    return entries
            return None

        try:
            return until(find, f"a round on {', '.join(names)}", limit)
        except AssertionError as error:
            raise AssertionError(f"{error}; rounds {self.rounds()}; the front said:\n{self.said()}") from None


class HostCase(unittest.TestCase):
    """A case with hosts of its own; `torchup` is the class's."""

    torchup = None
    tried = "fan-out over ssh"

    def hosts(self, *names, **more):
        if reason := why_not():
            self.skipTest(reason)
        return self.enterContext(SshHosts(names or ("h1", "h2", "h3"), **more))

    def job(self, hosts, *options, **more):
        return FanOut(hosts, self.torchup, *options, **more)
