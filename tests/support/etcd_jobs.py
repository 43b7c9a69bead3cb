"""Jobs that meet by etcd, with and without daemons, for scripts that run_case.py, beside this file, runs."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from etcds import Etcds, free_ports
from waiting import until

# Says where it is, works until a file is there, and ends with what is in it.
WORKER = r"""
import os, sys, time
me = f"{os.environ['GROUP_RANK']} {os.getpid()} {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['GROUP_WORLD_SIZE']}"
with open(os.path.join(sys.argv[1], "workers"), "a") as file:
    file.write(me + "\n")
ends = os.path.join(sys.argv[1], "end")
while not os.path.exists(ends):
    time.sleep(0.02)
sys.exit(int(open(ends).read()))
"""


class Node:
    """One launcher, whose words are kept."""

    def __init__(self, folder, number, *options):
        self.number = number
        self.said_file = open(os.path.join(folder, f"node{number}.err"), "w+")
        worker = os.path.join(folder, "worker.py")
        with open(worker, "w") as file:
            file.write(WORKER)
        self.process = subprocess.Popen(
            [Jobs.torchup, "--nproc-per-node=1", "--no-worker-hook", "--preflight=off", "--local-addr=127.0.0.1",
             f"--events={self.events_file(folder, number)}", *options,
             worker, folder],
            stderr=self.said_file, stdout=self.said_file, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid

    @staticmethod
    def events_file(folder, number):
        return os.path.join(folder, f"events{number}.jsonl")

    def events(self, kind):
        with open(self.events_file(os.path.dirname(self.said_file.name), self.number)) as file:
            return [event for event in map(json.loads, file) if event["event"] == kind]

    def said(self):
        self.said_file.flush()
        with open(self.said_file.name) as file:
            return file.read()

    def inner(self):
        """The process that has the loop: the launcher's child."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as file:
            return int(file.read().split()[0])

    def signal(self, number):
        for pid in (self.pid, self.inner()):
            os.kill(pid, number)

    def end_now(self):
        """As a machine that loses its power."""
        for pid in (self.inner(), self.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.said_file.close()


class Way:
    """A port that leads to another one. While it is cut, nothing passes and nobody is told."""

    def __init__(self, port):
        self.to = port
        self.passes = threading.Event()
        self.passes.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.lead, args=(near,), daemon=True).start()

    def lead(self, near):
        self.passes.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.to))
        except OSError:
            return near.close()
        threading.Thread(target=self.carry, args=(far, near), daemon=True).start()
        self.carry(near, far)

    def carry(self, source, sink):
        try:
            while piece := source.recv(1 << 16):
                self.passes.wait()
                sink.sendall(piece)
        except OSError:
            pass
        self.passes.wait()
        for each in source, sink:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def cut(self):
        self.passes.clear()

    def heal(self):
        self.passes.set()

    def close(self):
        self.heal()
        self.listener.close()


class Jobs:
    """A folder, an etcd, launchers and daemons. Who uses it says first which programs."""
    ETCDS = 1
    torchup = torchupd = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.etcd = self.make_etcd()
        if self.etcd:
            self.addCleanup(self.etcd.close)
        self.nodes = []

    def make_etcd(self):
        return Etcds(self.ETCDS)

    def start(self, *options):
        node = Node(self.folder, len(self.nodes), *options)
        self.addCleanup(node.end)
        self.nodes.append(node)
        return node

    def workers(self):
        """(group rank, pid, restart count, nodes) of each that has started."""
        try:
            with open(os.path.join(self.folder, "workers")) as file:
                return [tuple(map(int, line.split())) for line in file]
        except FileNotFoundError:
            return []

    def end_workers(self, code=0):
        with open(os.path.join(self.folder, "end.new"), "w") as file:
            file.write(str(code))
        os.rename(file.name, os.path.join(self.folder, "end"))

    def codes(self, nodes, limit_s=60):
        return [node.process.wait(limit_s) for node in nodes]

    def all_said(self):
        return "\n".join(f"--- node {i}\n{node.said()}" for i, node in enumerate(self.nodes))

    def wait_workers(self, count, limit_s=60):
        return until(lambda: len(found := self.workers()) >= count and found, f"{count} workers\n", limit_s)

    # ---- a job without a daemon

    def job(self, nodes, *options, minimum=None, conf="last_call_timeout=1", ways=None):
        """`ways`: each node's own to etcd."""
        count = f"{minimum}:{nodes}" if minimum else str(nodes)
        for node in range(nodes):
            endpoints = ways[node].endpoint if ways else self.etcd.endpoints
            self.start(f"--nnodes={count}", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoints}",
                       "--rdzv-id=job", f"--rdzv-conf=join_timeout=60,{conf}", *options)
        self.wait_workers(nodes)

    def holder(self):
        seat = until(lambda: self.etcd.seat("/torchup/job/job"), "somebody has the seat")
        return next(node for node in self.nodes if seat["pid"] in (node.pid, node.inner())), seat

    # ---- daemons

    def daemons(self, count):
        self.ports = free_ports(count)
        self.torchupds = []
        for port in self.ports:
            self.torchupds.append(self.daemon(port))
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def daemon(self, port):
        log = open(os.path.join(self.folder, f"torchupd{port}.err"), "a")
        process = subprocess.Popen([self.torchupd, "--bind", "127.0.0.1", "--port", str(port), "--state-etcd",
                                    self.etcd.endpoints, "--no-control-socket", "--grace=1"], stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()

        def end():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            process.stdout.close()
        self.addCleanup(end)
        self.assertIn("ready on", process.stdout.readline())
        return process

    def readiness(self, port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def active_now(self):
        return [i for i, port in enumerate(self.ports)
                if self.torchupds[i].poll() is None and self.readiness(port)[0] == 200]

    def active(self):
        return until(self.active_now, "one is active")[0]
