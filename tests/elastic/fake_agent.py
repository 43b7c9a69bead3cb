"""An agent as far as a worker's channel shows it, for tests of the worker's side: rounds, abort, cause, place.

Workers are forked from this process, which has torch and the program behind it: the import costs more than a whole job.
Each leads a session, has a channel and a page, and meets the others at a store of the round in a process of its own.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings

import torch.distributed as dist

from torchup import _channel, _page
from worker_memory import Memory

LIMIT_S = 120
GRACE_S = 8  # beside other work a survivor with a DataLoader has taken more than 3 to park
# How long one that has raised something waits for another's end: launcher/core/agent/agent.hpp.
OWN_FAULT_S, OTHERS_FAULT_S = 0.25, 2
OTHERS_FAULT = ("onnection closed by", "onnection reset by peer", "Broken pipe", "failed to recv", "lost the store at",
                "DistNetworkError", "DistStoreError")
PR_SET_PDEATHSIG = 1


def forked(work):
    """Pid of a child that leads a session, ends with this process, and does `work()`."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    warnings.simplefilter("ignore", ResourceWarning)  # it ends with what it has open
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            code = work() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class StoreHost:
    """A round's store, in a process of its own: no worker inherits its sockets."""

    def __init__(self):
        told, tell = os.pipe()

        def serve():
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(tell, str(store.port).encode())
            while True:
                signal.pause()

        self.pid = forked(serve)
        os.close(tell)
        self.port = int(os.read(told, 16))
        os.close(told)

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Worker:
    def __init__(self, main, environment, log):
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.memory = Memory()

        def work():
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update(environment)
            pid = os.getpid()
            os.environ[_page.VARIABLE] = self.memory.address(self.memory.fd, pid)
            os.environ[_channel.VARIABLE] = f"1:{theirs.fileno()}:{os.fstat(theirs.fileno()).st_ino}:{pid}"
            theirs.detach()
            self.end.close()
            return main()

        self.pid = forked(work)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)
        self.state = "running"  # staying, aborted, parked, ended
        self.status = None
        self.parked_step = None

    def say(self, verb, **values):
        with contextlib.suppress(OSError):  # it has ended, of which its pidfd tells
            if self.end is not None:
                self.end.send(_channel.to_packet(verb, values))

    def beats(self):
        """(beats, step of the last one)."""
        beats, step, *_ = self.memory.beats()
        return (beats, step) if beats and self.memory.claimed_by() == self.pid else (0, None)

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def close(self):
        self.signal(signal.SIGKILL)
        if self.status is None:
            os.waitpid(self.pid, 0)
        if self.end is not None:
            self.end.close()
        self.memory.close()
        os.close(self.pidfd)


class FakeAgent:
    """One node. `worlds[n]`: the world size of the round after n ends of rounds, the last one for all later ones. Where
    a file `member` appears in the folder, the membership changes: the round ends, and no restart is counted."""

    def __init__(self, main, folder, worlds, max_restarts):
        self.main, self.folder, self.worlds, self.restarts_left = main, folder, worlds, max_restarts
        self.round = self.restarts = 0
        self.workers = []
        self.host = None
        self.kept = []  # for each round after the first, how many
        self.aborted_at = self.parked_after = None

    def run(self):
        """The job's exit code."""
        try:
            self.start_round()
            while True:
                word = self.watch()
                if word in ("done", "failed"):
                    return 0 if word == "done" else 1
                self.stop_round()
                self.round += 1
                self.start_round()
        finally:
            for worker in self.workers:
                worker.close()
            if self.host:
                self.host.close()

    def start_round(self):
        if self.host:
            self.host.close()
        self.host = StoreHost()
        size = self.worlds[min(self.round, len(self.worlds) - 1)]
        kept = [worker for worker in self.workers if worker.state == "parked"][:size]
        for worker in set(self.workers) - set(kept):
            worker.close()
        if self.round:
            self.kept.append(len(kept))
        # Those that stay come first where the group shrinks; a place that is free is filled where it is.
        old = {worker.rank: worker for worker in kept if worker.rank < size}
        rest = [worker for worker in kept if worker not in old.values()]
        self.workers = []
        for rank in range(size):
            place = self.place(rank, size)
            worker = old.get(rank) or (rest.pop(0) if rest else None)
            if worker is None:
                worker = Worker(self.main, place, os.path.join(self.folder, "log"))
            else:
                worker.say("place", **place)
                worker.state = "staying"
            worker.rank = rank
            self.workers.append(worker)

    def place(self, rank, size):
        return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.host.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": str(self.round), "TORCHELASTIC_MAX_RESTARTS": "9"}

    def watch(self):
        """Until something ends the round: done, failed, restart."""
        begun = time.monotonic()
        raised = {}  # when they are blamed
        while True:
            assert time.monotonic() - begun < LIMIT_S, "the round does not end"
            self.wait(0.02)
            for worker in self.workers:
                if worker.state == "raised":
                    raised.setdefault(worker, worker.blame_due)
            if any(worker.status for worker in self.workers):
                return self.restart()
            if all(worker.status == 0 for worker in self.workers):
                return "done"
            if os.path.exists(os.path.join(self.folder, "member")):
                os.unlink(os.path.join(self.folder, "member"))
                return "changed"
            first = min(raised, key=raised.get, default=None)
            if first and first.state == "raised" and time.monotonic() > raised[first]:
                first.state = "blamed"
                first.say("cause")

    def restart(self):
        if self.restarts_left == 0:
            return "failed"
        self.restarts_left -= 1
        self.restarts += 1
        return "restart"

    def stop_round(self):
        self.aborted_at = time.monotonic()
        for worker in self.workers:
            if worker.state in ("staying", "raised"):
                worker.say("abort", reason="the round is over")
                worker.state = "aborted"
            elif worker.state not in ("ended", "parked"):
                worker.signal(signal.SIGTERM)
            if worker.state == "ended":
                worker.signal(signal.SIGKILL)  # what it has left behind
        while any(worker.state not in ("ended", "parked") for worker in self.workers):
            self.wait(0.02)
            if time.monotonic() - self.aborted_at > GRACE_S:
                for worker in self.workers:
                    if worker.state not in ("ended", "parked"):
                        worker.signal(signal.SIGKILL)
        self.parked_after = time.monotonic() - self.aborted_at

    def wait(self, limit_s):
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                if worker.state == "ended":
                    continue
                selector.register(worker.pidfd, selectors.EVENT_READ, (worker, "end"))
                if worker.end is not None:
                    selector.register(worker.end, selectors.EVENT_READ, (worker, "word"))
            for key, _ in selector.select(limit_s):
                worker, what = key.data
                if what == "end" and worker.status is None:
                    worker.status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
                    worker.state = "ended"
                elif what == "word" and worker.state != "ended":
                    self.hear(worker)

    def hear(self, worker):
        try:
            packet = worker.end.recv(1 << 16)
        except ConnectionResetError:  # it has died with a word unread
            packet = b""
        if not packet:
            worker.end.close()
            worker.end = None  # its end is told by the pidfd
            return
        verb, lines = _channel.parse(packet)
        values = dict(lines)
        if verb == "stay" and worker.state == "running":
            worker.state = "staying"
        elif verb == "leave":
            worker.state = "running"
        elif verb == "raised" and worker.state == "staying":
            worker.state = "raised"
            of_others = any(words in values["text"] for words in OTHERS_FAULT)
            worker.blame_due = time.monotonic() + (OTHERS_FAULT_S if of_others else OWN_FAULT_S)
        elif verb == "parked":
            worker.state = "parked"
            worker.parked_step = int(values["step"])
