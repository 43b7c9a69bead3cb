"""drain, undrain and resize, given at agents' own sockets: where the rendezvous is hosted, and where it is not.

usage: node_orders_test.py TORCHUPCTL TORCHUP [unittest options]
"""

import os
import signal
import subprocess
import unittest

from ctl_case import TORCHUPCTL
from node_case import LIMIT_S, Nodes
from ranks import free_port
from waiting import state, until

# A worker says where it is, and is seen for as long as its process lives.
STARTED = "touch $0/started.$OF.$GROUP_RANK.$WORLD_SIZE.$TORCHELASTIC_RESTART_COUNT.$$$$; "
WORKS = STARTED + "while [ ! -e $0/go ]; do sleep 0.02; done"
JOB = "/v1/jobs/pair%2F1"


class Orders(Nodes):
    names = ("node0", "node1", "node2")

    def start_nodes(self, count, nodes, *words, script=WORKS):
        """A job of as many of the names, each its own group's only worker."""
        for old in [*self.folder.glob("started.*"), *self.folder.glob("go")]:
            old.unlink()
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.nodes = {name: self.start_node(name, nodes, *words, script=script) for name in self.names[:count]}

    def start_node(self, name, nodes, *words, script=WORKS):
        return self.agent(name, f"--rdzv-conf=is_host={int(name == self.names[0])},last_call_timeout=1", *words,
                          nnodes=nodes, script=script)

    def workers(self):
        """Those that live, by node: group rank, world size, restart count, pid."""
        found = {}
        for path in self.folder.glob("started.*"):
            _, node, *numbers = path.name.split(".")
            if state(int(numbers[-1])) not in (None, "Z", "X"):
                found[node] = tuple(map(int, numbers))
        return found

    def placed(self, *names, but=None):
        """Once just these nodes have workers, of one world, and none of `but` (what this gave before) lives on."""
        former = {worker[-1] for worker in (but or {}).values()}

        def whole():
            workers = self.workers()
            places = {worker[:2] for worker in workers.values()}
            all_places = {(rank, len(names)) for rank in range(len(names))}
            whole = set(workers) == set(names) and places == all_places
            return whole and not former & {worker[-1] for worker in workers.values()} and workers

        return until(whole, f"the workers of {names} run", LIMIT_S)

    def seen(self, asked, *states, phase="running"):
        """The job, as that node shows it, once its nodes are in these states."""
        def wanted(job):
            return job["phase"] == phase and sorted(node["state"] for node in job["nodes"].values()) == sorted(states)
        return self.status(wanted, f"nodes are {states}", **self.doors[asked])

    def at(self, asked, *words, code=0):
        return self.ctl(*words, code=code, **self.doors[asked])

    def refused(self, asked, path, *words, **body):
        """torchupctl says no, and the interface 409, for one reason; it is returned."""
        said = self.at(asked, *words, code=1)
        self.assertEqual(said.stdout, "")
        status, error = self.order(JOB + path, self.folder / f"sockets.{asked}", **body)
        self.assertEqual((status, error["code"]), (409, "cannot_be"))
        self.assertEqual(said.stderr, f"torchupctl: {error['message']}\n")
        return error["message"]

    def unchanged(self, asked, before):
        now = self.status(lambda job: True, "it answers", **self.doors[asked])
        for member in ("phase", "round", "world_size", "min_nodes", "max_nodes", "restart_count", "membership_changes"):
            self.assertEqual(now[member], before[member], member)
        self.assertEqual({name: node["state"] for name, node in now["nodes"].items()},
                         {name: node["state"] for name, node in before["nodes"].items()})

    def counts(self, job):
        return job["restart_count"], job["membership_changes"]

    def verbs(self, asked):
        return [event["verb"] for event in self.events(asked) if event["event"] == "order_received"]

    def end_well(self):
        (self.folder / "go").touch()
        self.assertEqual([agent.wait(LIMIT_S) for agent in self.nodes.values()], [0] * len(self.nodes))

    # ---- drain and undrain

    def test_a_drained_node_lives_on_without_workers_until_it_is_undrained(self):
        for asked in ("node0", "node1"):
            with self.subTest(asked):
                self.start_nodes(2, "1:2", "--max-restarts=1")
                first = self.placed("node0", "node1")
                self.seen(asked, "seated", "seated")
                said = self.at(asked, "drain", "--node", first["node1"][0]).stdout
                self.assertIn("is drained", said)
                second = self.placed("node0", but=first)
                job = self.seen(asked, "seated", "drained")
                self.assertEqual((job["world_size"], *self.counts(job)), (1, 0, 1))
                self.assertIsNone(self.nodes["node1"].poll())
                for name, agent in self.nodes.items():  # it answers for the job, as the other
                    row = self.row(**self.doors[name])
                    self.assertEqual((row["pid"], row["phase"], row["world_size"]), (agent.pid, "running", 1))
                drained, = (name for name, node in job["nodes"].items() if node["state"] == "drained")
                self.assertIn("drained already", self.at(asked, "drain", "--node", drained).stdout)
                self.unchanged(asked, job)
                # No next round has a place for it.
                self.at(asked, "restart")
                third = self.placed("node0", but=second)
                self.seen(asked, "seated", "drained")
                self.at(asked, "undrain", "--node", drained)
                fourth = self.placed("node0", "node1", but=third)
                job = self.seen(asked, "seated", "seated")
                self.assertEqual((job["world_size"], *self.counts(job)), (2, 0, 3))
                self.assertIn("is not drained", self.at(asked, "undrain", "--node", drained).stdout)
                self.unchanged(asked, job)
                self.assertEqual(self.verbs(asked), ["drain", "drain", "restart", "undrain", "undrain"])
                # The one restart that there is has been spent by none of these.
                os.kill(fourth["node1"][-1], signal.SIGKILL)
                fifth = self.placed("node0", "node1", but=fourth)
                self.assertEqual({worker[2] for worker in fifth.values()}, {1})
                self.assertEqual(self.seen(asked, "seated", "seated")["restart_count"], 1)
                self.end_well()

    def test_who_is_needed_is_not_drained(self):
        self.start_nodes(2, "2")
        first = self.placed("node0", "node1")
        for asked in ("node0", "node1"):
            with self.subTest(asked):
                job = self.seen(asked, "seated", "seated")
                why = self.refused(asked, "/nodes/1/drain", "drain", "--node", "1")
                self.assertIn("the job needs 2 nodes, and without", why)
                self.assertIn("(phase: running)", why)
                self.assertIn("nobody", self.at(asked, "drain", "--node", "nobody", code=1).stderr)
                status, error = self.order(JOB + "/nodes/nobody/drain", self.folder / f"sockets.{asked}")
                self.assertEqual((status, error["code"]), (409, "cannot_be"))
                self.unchanged(asked, job)
                self.assertEqual(self.verbs(asked), [])
        self.assertEqual(self.workers(), first)
        self.end_well()

    def test_the_node_that_hosts_the_rendezvous_hosts_it_without_workers(self):
        self.start_nodes(2, "1:2")
        first = self.placed("node0", "node1")
        self.seen("node0", "seated", "seated")
        self.at("node0", "drain", "--node", first["node0"][0])
        second = self.placed("node1", but=first)
        for asked in ("node0", "node1"):
            job = self.seen(asked, "seated", "drained")
            self.assertEqual((job["world_size"], *self.counts(job)), (1, 0, 1))
        os.kill(second["node1"][-1], signal.SIGKILL)  # who is left cannot be done without
        self.assertEqual([agent.wait(LIMIT_S) for agent in self.nodes.values()], [1, 1])

    def test_as_many_are_drained_as_can_be_spared(self):
        self.start_nodes(3, "2:3")
        first = self.placed("node0", "node1", "node2")
        self.seen("node1", "seated", "seated", "seated")
        self.at("node1", "drain", "--node", first["node2"][0])
        second = self.placed("node0", "node1", but=first)
        job = self.seen("node2", "seated", "seated", "drained")  # which says so itself
        self.assertIn("the job needs 2 to 3 nodes", self.refused("node2", "/nodes/0/drain", "drain", "--node", "0"))
        self.unchanged("node2", job)
        self.assertEqual(self.workers(), second)
        drained, = (name for name, node in job["nodes"].items() if node["state"] == "drained")
        self.at("node2", "undrain", "--node", drained)
        self.placed("node0", "node1", "node2", but=second)
        self.assertEqual(self.counts(self.seen("node0", "seated", "seated", "seated")), (0, 2))
        self.end_well()

    # ---- resize

    def test_the_range_moves_and_nodes_beyond_it_stand_by(self):
        self.start_nodes(3, "1:3", "--max-restarts=1")
        first = self.placed("node0", "node1", "node2")
        last, = (name for name, worker in first.items() if worker[0] == 2)
        others = [name for name in self.names if name != last]
        self.seen("node1", "seated", "seated", "seated")
        self.at("node1", "resize", "--nodes", "1:2")
        second = self.placed(*others, but=first)
        job = self.seen("node2", "seated", "seated", "standby")
        self.assertEqual((job["min_nodes"], job["max_nodes"], *self.counts(job)), (1, 2, 0, 1))
        self.assertIsNone(self.nodes[last].poll())
        # Around the round that runs: nothing stops.
        self.at("node2", "resize", "--nodes", "2:2")
        job = self.seen("node0", "seated", "seated", "standby")
        self.assertEqual((job["min_nodes"], job["max_nodes"], *self.counts(job)), (2, 2, 0, 1))
        self.assertIn("already", self.at("node2", "resize", "--nodes", "2").stdout)
        self.assertEqual(self.refused("node2", "/resize", "resize", "--nodes", "4:5", min=4, max=5),
                         "3 nodes are there, too few for 4:5 (phase: running)")
        self.unchanged("node0", job)
        self.assertEqual(self.workers(), second)
        self.at("node0", "resize", "--nodes", "3")
        third = self.placed(*self.names, but=second)
        job = self.seen("node2", "seated", "seated", "seated")
        self.assertEqual((job["min_nodes"], job["max_nodes"], *self.counts(job)), (3, 3, 0, 2))
        self.assertEqual(self.verbs("node1"), ["resize"] * 4)
        os.kill(third[last][-1], signal.SIGKILL)
        fourth = self.placed(*self.names, but=third)
        self.assertEqual({worker[2] for worker in fourth.values()}, {1})
        self.end_well()

    def test_a_job_grows_beyond_what_it_began_with(self):
        self.start_nodes(2, "2")
        first = self.placed("node0", "node1")
        self.nodes["node2"] = self.start_node("node2", "2")  # with the terms of the others
        job = self.seen("node2", "seated", "seated", "standby")
        self.at("node2", "resize", "--nodes", "2:3")
        self.placed("node0", "node1", "node2", but=first)
        job = self.seen("node0", "seated", "seated", "seated")
        self.assertEqual((job["min_nodes"], job["max_nodes"], *self.counts(job)), (2, 3, 0, 1))
        self.end_well()

    def test_a_static_job_has_the_nodes_that_it_was_given(self):
        self.endpoint, port = "", free_port()
        self.nodes = {name: self.torchup("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1",
                                         f"--master-port={port}", "--rdzv-id=pair/1", script=WORKS, OF=name,
                                         sockets=self.doors[name]["TORCHUP_RUNTIME_DIR"])
                      for rank, name in enumerate(self.names[:2])}
        first = self.placed("node0", "node1")
        for asked in ("node0", "node1"):
            with self.subTest(asked):
                job = self.seen(asked, "seated", "seated")
                why = self.refused(asked, "/resize", "resize", "--nodes", "1:2", min=1, max=2)
                self.assertIn("their number is given", why)
                self.unchanged(asked, job)
        self.assertEqual(self.workers(), first)
        self.at("node1", "restart")
        self.placed("node0", "node1", but=first)
        self.end_well()

    # ---- what ranks have written, wherever they are now

    def with_token(self):
        secret = self.folder / "token"
        secret.write_text("token-0123456789abcdef")
        secret.chmod(0o600)
        return ["--token-file", secret]

    def test_a_node_without_workers_answers_not_for_a_rank_that_is_elsewhere_now(self):
        self.start_nodes(3, "2:3", *self.with_token(), script="echo $OF of $WORLD_SIZE; " + WORKS)
        first = self.placed("node0", "node1", "node2")
        drained = min("node1", "node2", key=lambda name: first[name][0])
        rank = first[drained][0]  # which the two that are left have, too
        self.seen(drained, "seated", "seated", "seated")
        self.at(drained, "drain", "--node", rank)
        others = [name for name in self.names if name != drained]
        second = self.placed(*others, but=first)
        self.seen(drained, "seated", "seated", "drained")
        there, = (name for name in others if second[name][0] == rank)
        for asked in (drained, there):
            with self.subTest(asked):
                until(lambda: self.at(asked, "logs", "--rank", rank).stdout == f"{there} of 2\n", "it has spoken", LIMIT_S)
                self.assertIn(f"rank {rank}, pid {second[there][-1]}", self.at(asked, "stacks", "--rank", rank).stdout)
        self.end_well()

    def test_the_log_of_a_rank_is_followed_to_its_other_node(self):
        # Of the same length: what was read of one says nothing of the other.
        self.start_nodes(2, "1:2", *self.with_token(), script="if [ $WORLD_SIZE = 2 ]; then echo two; else echo one; fi; " + WORKS)
        first = self.placed("node0", "node1")
        moves, = (name for name, worker in first.items() if worker[0] == 0)
        stays, = set(first) - {moves}
        self.seen(stays, "seated", "seated")
        following = subprocess.Popen([TORCHUPCTL, "logs", "-f", "--rank", "0"], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, env={**self.environment, **self.doors[stays]})
        self.addCleanup(lambda: (following.poll() is None and following.kill(), following.communicate()))
        said = ""

        def says(text):
            nonlocal said
            said += os.read(following.stdout.fileno(), 1 << 20).decode()
            return said == text

        until(lambda: says("two\n"), "it follows", LIMIT_S)
        self.at(stays, "drain", "--node", "0")
        self.placed(stays, but=first)
        until(lambda: says("two\none\n"), "it is followed", LIMIT_S)
        self.end_well()
        self.assertIn(b"another node", following.communicate(timeout=LIMIT_S)[1])
        self.assertEqual(following.returncode, 0)

    # ---- when nothing can be planned

    def test_while_workers_stop_nothing_is_planned_but_the_end(self):
        self.start_nodes(2, "1:2", "--shutdown-timeout=90", script="trap '' TERM; " + WORKS)
        first = self.placed("node0", "node1")
        self.seen("node0", "seated", "seated")
        self.at("node0", "drain", "--node", first["node1"][0])
        self.seen("node0", "draining", "stopping", phase="gathering")
        for asked in ("node0", "node1"):
            with self.subTest(asked):
                self.assertIn("(phase: gathering)", self.refused(asked, "/restart", "restart"))
                self.assertIn("(phase: gathering)",
                              self.refused(asked, "/resize", "resize", "--nodes", "1", min=1, max=1))
        self.assertEqual(self.verbs("node1"), ["drain"])
        self.assertEqual(self.workers(), first)
        self.at("node1", "stop", "--now")
        self.assertEqual([agent.wait(LIMIT_S) for agent in self.nodes.values()], [143, 143])
        self.assertEqual(self.workers(), {})


if __name__ == "__main__":
    unittest.main()
