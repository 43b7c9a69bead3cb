#!/usr/bin/env python3
"""Jobs whose coordinator is killed, stopped or cut off from etcd, with and without daemons.

usage: tests/support/run_case.py availability_test.py CASE TORCHUP TORCHUPD
"""
import json
import os
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

from etcd_jobs import Jobs, Way
from etcds import needs_etcd
from waiting import state, until

torchup, torchupd = Jobs.torchup, Jobs.torchupd = sys.argv[1:3]

@needs_etcd
class WithoutDaemon(Jobs, unittest.TestCase):
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
        holder, seat = self.holder()
        others = [node for node in self.nodes if node is not holder]
        before = len(self.workers())
        killed = time.monotonic()
        holder.process.kill()
        again = self.wait_workers(before + 2)
        took = time.monotonic() - killed
        print(f"another round after {took:.2f} s", file=sys.stderr)
        self.assertEqual({w[3] for w in again[before:]}, {2}, self.all_said())
        self.assertEqual({w[2] for w in again}, {0})
        takeover, = [event for node in others for event in node.events("takeover")]
        self.assertGreater(takeover["term"], seat["term"])
        self.assertEqual(takeover["proof"], "ended")
        self.assertIn(seat["endpoints"][0], takeover["from"])
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

    def test_a_worker_that_fails_while_etcd_is_away_is_dealt_with_once_when_it_is_back(self):
        self.job(2, "--max-restarts=3")
        before = self.workers()
        self.etcd.kill()
        time.sleep(1)
        os.kill(before[0][1], signal.SIGKILL)
        time.sleep(4)
        self.assertEqual(self.workers(), before, self.all_said())
        self.etcd.start_again()
        after = self.wait_workers(4)
        self.assertEqual({w[2] for w in after[2:]}, {1}, self.all_said())
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())
        self.assertEqual(len(self.workers()), 4)

    def cut_off(self, chosen):
        """A job of three, each with a way of its own to etcd; the one that is chosen has none for a while."""
        ways = [Way(self.etcd.clients[0]) for _ in range(3)]
        for way in ways:
            self.addCleanup(way.close)
        self.job(3, "--max-restarts=0", minimum=2, ways=ways)
        before = self.workers()
        holder, seat = self.holder()
        cut = chosen(holder)
        ways[self.nodes.index(cut)].cut()
        if cut is holder:
            until(lambda: (now := self.etcd.seat("/torchup/job/job")) and now["pid"] != seat["pid"], "another has the seat")
        time.sleep(12)  # longer than the lease, and the seat's
        now = self.etcd.seat("/torchup/job/job")
        self.assertEqual(self.workers(), before, self.all_said())
        ways[self.nodes.index(cut)].heal()
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0, 0], self.all_said())
        self.assertEqual(self.workers(), before, self.all_said())
        return seat, now

    def test_the_coordinators_node_is_cut_off_from_etcd_alone_and_another_takes_over(self):
        before, after = self.cut_off(lambda holder: holder)
        self.assertNotEqual(after["pid"], before["pid"], self.all_said())

    def test_another_node_is_cut_off_from_etcd_alone_and_nothing_happens(self):
        before, after = self.cut_off(lambda holder: next(node for node in self.nodes if node is not holder))
        self.assertEqual(after, before, self.all_said())

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
class WithDaemons(Jobs, unittest.TestCase):
    """One torchupd is active, the other stands by."""

    def test_the_active_daemon_is_killed_and_no_worker_notices(self):
        endpoints = self.daemons(2)
        active = self.active()
        until(lambda: self.readiness(self.ports[1 - active]) ==
              (503, f"standby; the active one is 127.0.0.1:{self.ports[active]}\n"), "the other stands by")
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
            self.assertEqual(status["coordinator"]["endpoints"], [f"127.0.0.1:{self.ports[1 - active]}"])
            self.assertEqual(status["coordinator"]["term"], self.etcd.seat("/torchup/daemons")["term"])
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
class OfThreeEtcds(Jobs, unittest.TestCase):
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

    def test_what_is_planned_shows_where_the_nodes_meet(self):
        def planned(*options):
            done = subprocess.run([torchup, "--dry-run", "--nnodes=2", "--rdzv-id=job", *options, "true"], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout
        self.assertIn("in etcd at e1:2379, e2:2380, prefix /mine", planned("--rdzv-backend=etcd", "--rdzv-endpoint=e1,e2:2380",
                                                                      "--rdzv-conf=etcd_prefix=/mine"))
        self.assertIn("a:29400, [fd00::7]:1", planned("--rdzv-backend=c10d", "--rdzv-endpoint=a,[fd00::7]:1,a"))

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
