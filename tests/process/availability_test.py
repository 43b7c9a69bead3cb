#!/usr/bin/env python3
"""Jobs whose coordinator is killed, stopped or cut off from etcd, with and without daemons.

usage: tests/support/run_case.py availability_test.py CASE TORCHUP TORCHUPD
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from etcds import Etcds, free_ports, needs_etcd
from waiting import state, until

torchup, torchupd = sys.argv[1:3]

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
        self.said_file = open(os.path.join(folder, f"node{number}.err"), "w+")
        worker = os.path.join(folder, "worker.py")
        with open(worker, "w") as file:
            file.write(WORKER)
        self.process = subprocess.Popen(
            [torchup, "--nproc-per-node=1", "--no-worker-hook", "--preflight=off", f"--local-addr=127.0.0.1", *options,
             worker, folder],
            stderr=self.said_file, stdout=self.said_file, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid

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

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.said_file.close()


class Jobs(unittest.TestCase):
    """What the cases below have in common."""
    ETCDS = 1

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.etcd = Etcds(self.ETCDS)
        self.addCleanup(self.etcd.close)
        self.nodes = []

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

    def job(self, nodes, *options, minimum=None, conf="last_call_timeout=1"):
        count = f"{minimum}:{nodes}" if minimum else str(nodes)
        for _ in range(nodes):
            self.start(f"--nnodes={count}", "--rdzv-backend=etcd", f"--rdzv-endpoint={self.etcd.endpoints}",
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
        process = subprocess.Popen([torchupd, "--bind", "127.0.0.1", "--port", str(port), "--state-etcd",
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

@needs_etcd
class WithoutDaemon(Jobs):
    """Any agent of the job becomes its coordinator."""

    def test_a_job_in_etcd_runs_to_its_end_and_leaves_the_verdict(self):
        self.job(2)
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())
        late = self.start("--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint={self.etcd.endpoints}", "--rdzv-id=job")
        self.assertEqual(late.process.wait(30), 0, late.said())
        self.assertIsNone(self.etcd.seat("/torchup/job/job"))

    def test_the_coordinators_node_is_killed_and_the_others_go_on(self):
        self.job(3, "--max-restarts=0", minimum=2)
        holder, _ = self.holder()
        others = [node for node in self.nodes if node is not holder]
        before = len(self.workers())
        killed = time.monotonic()
        holder.process.kill()
        again = self.wait_workers(before + 2)
        took = time.monotonic() - killed
        print(f"another round after {took:.2f} s", file=sys.stderr)
        self.assertEqual({w[3] for w in again[before:]}, {2}, self.all_said())
        self.assertEqual({w[2] for w in again}, {0})
        self.end_workers(0)
        self.assertEqual(self.codes(others), [0, 0], self.all_said())

    def test_term_at_the_coordinators_node_is_a_node_that_leaves(self):
        self.job(3, minimum=2)
        holder, _ = self.holder()
        others = [node for node in self.nodes if node is not holder]
        before = len(self.workers())
        holder.process.send_signal(signal.SIGTERM)
        self.wait_workers(before + 2)
        self.assertEqual(holder.process.wait(30), 143, holder.said())
        self.end_workers(0)
        self.assertEqual(self.codes(others), [0, 0], self.all_said())

    def test_all_etcds_are_gone_for_a_while_and_nobody_is_restarted(self):
        self.job(2)
        before = self.workers()
        self.etcd.kill()
        time.sleep(15)  # longer than the lease and the seat's
        self.assertEqual(self.workers(), before, self.all_said())
        self.assertTrue(all(state(pid) not in (None, "Z") for _, pid, _, _ in before))
        self.etcd.start_again()
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())
        self.assertEqual(self.workers(), before)

    def test_a_job_that_ends_while_etcd_is_away_ends_when_it_is_back(self):
        self.job(2)
        self.etcd.kill()
        self.end_workers(0)
        time.sleep(3)
        self.assertEqual([node.process.poll() for node in self.nodes], [None, None], self.all_said())
        self.etcd.start_again()
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())

    def test_a_stopped_coordinator_that_wakes_changes_nothing(self):
        self.job(3, "--lease=3", minimum=2)
        holder, seat = self.holder()
        holder.signal(signal.SIGSTOP)
        until(lambda: (now := self.etcd.seat("/torchup/job/job")) and now["term"] != seat["term"], "another has the seat")
        holder.signal(signal.SIGCONT)
        # Fenced, it comes back as another: two rounds at most, and never a failure that is counted.
        time.sleep(5)
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0, 0], self.all_said())
        self.assertEqual({w[2] for w in self.workers()}, {0})


@needs_etcd
class WithDaemons(Jobs):
    """One torchupd is active, the other stands by."""

    def test_the_active_daemon_is_killed_and_no_worker_notices(self):
        endpoints = self.daemons(2)
        active = self.active()
        self.assertEqual(self.readiness(self.ports[1 - active])[0], 503)
        for _ in range(2):
            self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoints}", "--rdzv-id=job")
        before = self.wait_workers(2)
        self.torchupds[active].kill()
        self.torchupds[active].wait()
        killed = time.monotonic()
        until(lambda: self.readiness(self.ports[1 - active])[0] == 200, "the other is active")
        print(f"active after {time.monotonic() - killed:.2f} s", file=sys.stderr)

        def nodes_there():
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1 - active]}/status", timeout=10) as answer:
                status = json.load(answer)
            return status["coordinator"]["role"] == "active" and [
                node["state"] for node in status["jobs"].get("job", {}).get("nodes", [])]
        until(lambda: len(nodes_there() or []) == 2, "both nodes are members there")
        time.sleep(12)  # longer than the lease
        self.assertEqual(self.workers(), before, self.all_said())
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())
        self.assertEqual(self.workers(), before)

    def test_a_failure_is_counted_once_over_a_takeover(self):
        endpoints = self.daemons(2)
        active = self.active()
        for _ in range(2):
            self.start("--nnodes=2", "--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoints}",
                       "--rdzv-id=job")
        before = self.wait_workers(2)
        os.kill(before[0][1], signal.SIGKILL)
        after = self.wait_workers(4)
        self.assertEqual({w[2] for w in after[2:]}, {1})
        self.torchupds[active].kill()
        until(lambda: self.readiness(self.ports[1 - active])[0] == 200, "the other is active")
        os.kill(after[2][1], signal.SIGKILL)
        self.assertEqual(self.codes(self.nodes), [1, 1], self.all_said())

    def test_a_daemon_that_is_stopped_and_wakes_stands_by(self):
        endpoints = self.daemons(2)
        active = self.active()
        for _ in range(2):
            self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoints}", "--rdzv-id=job")
        before = self.wait_workers(2)
        os.kill(self.torchupds[active].pid, signal.SIGSTOP)
        until(lambda: self.readiness(self.ports[1 - active])[0] == 200, "the other is active")
        os.kill(self.torchupds[active].pid, signal.SIGCONT)
        until(lambda: self.readiness(self.ports[active])[0] == 503, "it stands by")
        time.sleep(3)
        self.assertEqual(self.workers(), before, self.all_said())
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())


@needs_etcd
class OfThreeEtcds(Jobs):
    """One member of three is killed, whichever leads: 2 s without decisions, and nothing else."""
    ETCDS = 3

    def test_each_etcd_in_turn_is_killed_and_nobody_is_restarted(self):
        self.job(2)
        before = self.workers()
        for i in range(3):
            self.etcd.kill(i)
            time.sleep(4)
            self.etcd.start_again()
        self.assertEqual(self.workers(), before, self.all_said())
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())


@needs_etcd
class Refused(unittest.TestCase):
    """What is wrong is said before anything starts."""

    def refusal(self, *options):
        done = subprocess.run([torchup, "--nnodes=2", *options, "true"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_what_is_refused_names_the_thing_and_the_remedy(self):
        etcd = ("--rdzv-backend=etcd", "--rdzv-endpoint=localhost")
        self.assertIn("--rdzv-backend=etcd", self.refusal("--rdzv-backend=etcd-v2", "--rdzv-endpoint=localhost"))
        self.assertIn("/torchup", self.refusal(*etcd, "--rdzv-conf=etcd_prefix=torchup"))
        self.assertIn("cert", self.refusal(*etcd, "--rdzv-conf=key=/tmp/k"))
        self.assertIn("nothing at place 2", self.refusal("--rdzv-backend=c10d", "--rdzv-endpoint=a,,b"))
        self.assertIn("two ports", self.refusal("--rdzv-backend=c10d", "--rdzv-endpoint=a:1:2,b"))
        nine = ",".join(f"h{i}" for i in range(9))
        self.assertIn("more than 8", self.refusal("--rdzv-backend=c10d", f"--rdzv-endpoint={nine}"))
        self.assertIn("is_host", self.refusal("--rdzv-backend=c10d", "--rdzv-endpoint=a,b", "--rdzv-conf=is_host=1"))
        done = subprocess.run([torchupd, "--state-etcd=localhost", "--state-dir=/tmp/x"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
