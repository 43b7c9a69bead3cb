"""Rehearsals of faults of whole nodes, which the launcher starts itself, and of nodes that somebody else has started.

usage: tests/support/run_case.py rehearsal_nodes_test.py CASE TORCHUP REHEARSAL_WORKER
"""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from launcher_job import LEFT_LIMIT_S, TORCHUP, WORKER, Job, children, state, until  # noqa: F401
from ranks import free_port
from rehearsal_test import LIMIT_S, Rehearsed


def below(pid):
    found = [pid]
    for each in found:
        found += children(each)
    return found[1:]


class Nodes(Rehearsed, unittest.TestCase):
    def rehearse_nodes(self, status, script, worker="{notes} 60 0.05 saves=4", nodes=2, options="", **more):
        return self.end_whole(self.begin(script, worker, f"--nproc-per-node=1 --rehearse-nodes={nodes} {options}", **more), status)

    def test_a_node_is_killed_whole_and_started_again(self):
        logs = os.path.join(self.scratch.name, "logs")
        _, err = self.rehearse_nodes(0, "at 1s kill node=1 back=500ms; expect restarts=0 ranks=2 recovery<=30s",
                                     options=f"--log-dir={logs} --redirects=3")
        self.assertIn("\ntorchup: rehearsal passed\nfault ", err)
        self.assertEqual(err.count("rehearsal passed"), 1)  # nobody but the starter
        for line in err.splitlines()[:5]:
            self.assertRegex(line, r"^\[node[01]\] ")
        # Both ranks ran twice, and every process of node 1's second time is new.
        self.assertEqual(sorted((rank, world) for _, _, rank, world, _ in self.starts()), [(0, 2), (0, 2), (1, 2), (1, 2)])
        self.assertEqual(sorted(os.listdir(logs)), ["node0", "node1"])
        fault = self.fault("kill node=1 back=500ms")
        self.assertGreaterEqual(fault["going_on_after_s"], 0.5)
        self.assertLess(fault["steps_lost"], 20)
        self.assertEqual({event["host"] for event in self.seen("fault_injected")}, {"node1"})

    def test_the_node_that_hosts_the_rendezvous_comes_back(self):
        _, err = self.rehearse_nodes(0, "at 1s kill node=0 back=500ms; expect ranks=2")
        self.assertIn("rehearsal passed", err)
        self.assertEqual(len(self.starts()), 4)

    def test_an_elastic_job_goes_on_without_a_node(self):
        for fault in ("kill", "leave"):
            with self.subTest(fault=fault):
                _, err = self.rehearse_nodes(0, f"at 1s {fault} node=1; expect ranks=1 restarts=0 exit=0", options="--nnodes=1:2",
                                             worker="{notes} 50 0.05 saves=4")
                self.assertIn("rehearsal passed", err)
                self.assertEqual([world for *_, world, _ in self.starts()], [2, 2, 1])
                for name in os.listdir(self.scratch.name):
                    if name.startswith(("notes", "events")):
                        os.unlink(os.path.join(self.scratch.name, name))

    def test_the_result_is_that_of_all_nodes(self):
        _, err = self.rehearse_nodes(1, "at 1s kill node=1; expect recovery<=1ms", options="--nnodes=1:2")
        self.assertRegex(err, r"\ntorchup: rehearsal failed: expected recovery<=1ms, was [0-9.]+ s \(kill node=1\)\n")
        (ended,) = self.seen("rehearsal_ended")
        self.assertFalse(ended["passed"])

    def test_a_node_that_is_cut_off_is_given_up_and_comes_back(self):
        job = self.begin("at 1s cut node=1 for=3s; expect restarts=0", "{notes} 160 0.05 saves=4",
                         "--nproc-per-node=1 --rehearse-nodes=2 --lease=1")
        until(lambda: self.seen("fault_injected"), "the fault")
        first = [event["pid"] for event in self.seen("worker_started")]
        self.assertEqual([state(pid) in "SR" for pid in first], [True, True])  # workers are not touched by it
        _, err = self.end(job, 0, LIMIT_S)
        self.assertIn("rehearsal passed", err)
        self.assertEqual(len(self.starts()), 4)
        self.assertGreaterEqual(self.fault("cut node=1")["going_on_after_s"], 1)

    def test_a_short_cut_is_nothing(self):
        _, err = self.rehearse_nodes(0, "at 500ms cut node=1 for=300ms; at 1500ms cut node=0 for=300ms; expect restarts=0",
                                     "{notes} 80 0.05", options="--lease=20")
        self.assertIn("rehearsal passed", err)
        self.assertEqual(len(self.starts()), 2)
        self.assertEqual([event["text"].split(" at ")[0] for event in self.seen("fault_injected")],
                         ["cut node=1 for=300ms", "cut node=0 for=300ms"])

    def test_a_node_that_stands_still_is_given_up(self):
        _, err = self.rehearse_nodes(0, "at 1s stop node=1 for=4s; expect restarts=0", "{notes} 120 0.05 saves=4",
                                     options="--lease=1")
        self.assertIn("rehearsal passed", err)
        self.assertEqual(len(self.starts()), 4)
        self.assertGreaterEqual(self.fault("stop node=1")["going_on_after_s"], 4)

    def test_ranks_are_those_of_all_nodes(self):
        _, err = self.rehearse_nodes(0, "at step 10 kill rank=1; expect restarts=1", options="--max-restarts=1")
        self.assertEqual({event["host"] for event in self.seen("fault_injected")}, {"node1"})
        fault = self.fault("kill rank=1")
        self.assertIsNotNone(fault["noticed_after_s"])
        self.assertIsNotNone(fault["going_on_after_s"])

    def test_output_of_workers_has_its_nodes_name(self):
        job = self.begin("expect exit=0", "printf 'out %s\\nhalf' $GROUP_RANK; echo err >&2; cat", "--rehearse-nodes=2", python=False)
        out, err = self.end(job, 0, LIMIT_S)
        self.assertEqual(sorted(out.splitlines()), ["[node0] half", "[node0] out 0", "[node1] half", "[node1] out 1"])
        self.assertEqual(err.count("[node0] err\n"), 1)

    def test_a_signal_ends_all_nodes(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number):
                job = self.begin("at 60s kill node=1 back=1s", "{notes} 6000 0.05", "--rehearse-nodes=2")
                until(lambda: len(self.starts()) == 2, "two workers")
                job.send_signal(number)
                _, err = self.end(job, 128 + number, LIMIT_S)
                self.assertIn(f"expected exit=0, was {128 + number}", err)
                os.unlink(self.notes)

    def test_a_signal_ends_a_stopped_node_too(self):
        for nodes in (1, 2):
            with self.subTest(nodes=nodes):
                job = self.begin(f"at 500ms stop node={nodes - 1} for=60m", "{notes} 6000 0.05", f"--rehearse-nodes={nodes}")
                agent = until(lambda: [event["pid"] for event in self.seen("job_started") if event["host"] == f"node{nodes - 1}"],
                              "the agent")[0]
                until(lambda: state(agent) == "T", "it is stopped")
                job.send_signal(signal.SIGINT)
                _, err = self.end(job, 128 + signal.SIGINT, LIMIT_S)
                self.assertIn("expected exit=0, was 130", err)
                Path(self.notes).unlink(missing_ok=True)  # a worker may not have come to write any
                os.unlink(self.events)

    def test_a_signal_while_all_nodes_are_away(self):
        job = self.begin("at 500ms kill node=0 back=60m", "{notes} 6000 0.05", "--rehearse-nodes=1")
        until(lambda: self.seen("fault_injected"), "the fault")
        until(lambda: not [pid for pid in below(job.pid)][1:], "the node is gone")
        job.send_signal(signal.SIGTERM)
        _, err = self.end_whole(job, 128 + signal.SIGTERM)
        self.assertIn("expected exit=0, was 143", err)

    def test_a_job_that_is_over_waits_for_no_stopped_node(self):
        for lasts in ("60m", "4s"):  # 4 s: it wakes to a job without it
            with self.subTest(lasts=lasts):
                _, err = self.rehearse_nodes(0, f"at 1s stop node=1 for={lasts}; expect ranks=1", "{notes} 40 0.05 saves=4",
                                             options="--nnodes=1:2 --lease=1")
                self.assertIn("rehearsal passed", err)
                for name in os.listdir(self.scratch.name):
                    if name.startswith(("notes", "events")):
                        os.unlink(os.path.join(self.scratch.name, name))

    def test_nothing_outlives_a_killed_starter_with_a_stopped_node(self):
        job = self.begin("at 500ms stop node=1 for=60m", "{notes} 6000 0.05 deaf", "--rehearse-nodes=2")
        agent = until(lambda: [event["pid"] for event in self.seen("job_started") if event["host"] == "node1"], "the agent")[0]
        until(lambda: state(agent) == "T", "it is stopped")
        job.kill()
        job.wait()
        self.nothing_left()

    def test_the_open_line_of_a_killed_node_is_shown_before_its_next_life(self):
        worker = "printf 'half %s' $TORCHELASTIC_RESTART_COUNT; if [ ! -e {0}/second ]; then touch {0}/second; sleep 600; fi"
        job = self.begin("at 1s kill node=0 back=300ms", worker.format(self.scratch.name), "--rehearse-nodes=1", python=False)
        out, _ = self.end_whole(job, 0)
        self.assertEqual(out, "[node0] half 0\n[node0] half 0\n")

    def test_nothing_outlives_a_killed_starter(self):
        job = self.begin("expect exit=0", "{notes} 6000 0.05 deaf", "--rehearse-nodes=2")
        until(lambda: len(self.starts()) == 2, "two workers")
        job.kill()
        job.wait()
        self.nothing_left()

    def test_an_agent_that_somebody_kills_fails_the_rehearsal(self):
        job = self.begin("expect exit=0", "{notes} 60 0.05", "--rehearse-nodes=2 --nnodes=1:2")
        until(lambda: len(self.starts()) == 2, "two workers")
        agent = next(event["pid"] for event in self.seen("job_started") if event["host"] == "node1")
        os.kill(agent, signal.SIGKILL)
        _, err = self.end_whole(job, 128 + signal.SIGKILL)
        self.assertIn("rehearsal failed: expected exit=0, was 137\n", err)

    def test_each_node_has_its_result(self):
        path = os.path.join(self.scratch.name, "result")
        self.rehearse_nodes(0, "expect exit=0", "{notes} 3 0.01", options=f"--result-file={path}")
        for node in range(2):
            with open(f"{path}.node{node}") as file:
                self.assertEqual((json.load(file))["host"], f"node{node}")

    def test_a_program_that_is_not_there(self):
        done = subprocess.run([TORCHUP, "--rehearse-nodes=2", "--rehearse=expect exit=0", "--no-python", "/no/such"],
                              capture_output=True, text=True, timeout=LIMIT_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("[node0]", done.stderr)  # it is told once, before anybody is started

    def test_a_token_reaches_all_agents(self):
        _, err = self.rehearse_nodes(0, "expect exit=0", "{notes} 3 0.01", variables={"TORCHUP_TOKEN": "0123456789abcdef0123"})
        self.assertIn("rehearsal passed", err)
        self.assertNotIn("without a token", err)

    def test_workers_know_nothing_of_the_starter(self):
        job = self.begin("expect exit=0", "env; ls /proc/$$/fd | tr '\\n' ' '", "--rehearse-nodes=1", python=False)
        out, _ = self.end(job, 0, LIMIT_S)
        self.assertNotIn("TORCHUP_REHEARSED_NODE", out)
        self.assertNotIn("TORCHUP_TOKEN", out)


class OthersNodes(Rehearsed, unittest.TestCase):
    """Agents that were started one by one, as on two machines: each reads the same script."""

    def agents(self, script, worker, options):
        port = free_port()
        agents = []
        for node in range(2):
            self.events = os.path.join(self.scratch.name, f"events{node}")
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self.scratch.name}
            agent = subprocess.Popen(
                [TORCHUP, "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--no-worker-hook",
                 "--rdzv-id=rehearsed", f"--rdzv-conf=is_host={1 - node}", f"--rehearse={script}", *options.split(),
                 f"--events={self.events}", WORKER, *worker.format(notes=self.notes).split()],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                start_new_session=True)
            self.addCleanup(lambda job=agent: (job.poll() is None and job.kill(), job.wait(), job.stdout.close(), job.stderr.close()))
            agents.append(agent)
        return agents

    def test_each_does_what_concerns_its_own(self):
        agents = self.agents("at 1s kill node=1; expect ranks=1", "{notes} 60 0.05 saves=4", "--nnodes=1:2 --rank-order=join")
        ends = {}
        for agent in agents:
            _, err = agent.communicate(timeout=LIMIT_S)
            ends[agent.returncode] = err
        self.assertEqual(set(ends), {0, -signal.SIGKILL})
        self.assertIn("torchup: rehearsal passed\n", ends[0])
        self.assertNotIn("rehearsal passed", ends[-signal.SIGKILL])
        self.assertIn("rehearsal: kill node=1 at ", ends[-signal.SIGKILL])
        self.assertNotIn("rehearsal: kill node=1 at ", ends[0])
        self.nothing_left()

    def test_all_of_them_judge_the_same(self):
        agents = self.agents("at step 10 kill rank=1; expect restarts=0", "{notes} 40 0.05", "--nnodes=2 --max-restarts=1")
        for agent in agents:
            _, err = agent.communicate(timeout=LIMIT_S)
            self.assertEqual(agent.returncode, 1, err)
            self.assertIn("torchup: rehearsal failed: expected restarts=0, was 1\n", err)
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
