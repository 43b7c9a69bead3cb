"""An agent of ours among torchrun's: they meet in a store of PyTorch's, where nobody is who could obey orders.

usage: tests/support/run_case.py foreign_store_test.py CASE TORCHUPCTL TORCHUP
"""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import unittest
import urllib.parse

from node_case import LIMIT_S, Node
from waiting import state, until

STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
WORKS = ("trap 'touch $0/told.$OF; exit 1' TERM; echo said by $OF; touch $0/started.$OF.$RANK.$$$$; "
         "while [ ! -e $0/go ]; do sleep 0.02; done")
JOB = "/v1/jobs/foreign"


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch")
class Foreign(Node):
    def begin(self):
        """A store, torchrun's agent, ours, and their workers."""
        for old in [*self.folder.glob("started.*"), *self.folder.glob("told.*"), *self.folder.glob("events")]:
            old.unlink()
        options = self.options()
        # In a session of its own: what it leaves when it is killed is its group's.
        theirs = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *options, "--no-python", "sh", "-c",
                                   WORKS, self.folder], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env={**self.environment, "OF": "theirs"},
                                  start_new_session=True)
        self.addCleanup(self.end_theirs, theirs)
        ours = self.torchup(*options, "--events", self.folder / "events", script=WORKS, OF="ours")
        self.started(2)
        self.workers = {(of, int(rank), int(pid)) for _, of, rank, pid in
                        (path.name.split(".") for path in self.folder.glob("started.*"))}
        self.own_rank, = (rank for of, rank, _ in self.workers if of == "ours")
        return ours, theirs

    def options(self):
        """Of agents that meet in a store which is made now."""
        store = subprocess.Popen([sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
        self.addCleanup(lambda: (store.kill(), store.communicate()))
        return ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{store.stdout.readline().strip()}", "--rdzv-id=foreign",
                "--local-addr=127.0.0.1", "--rdzv-conf=is_host=0,join_timeout=100,last_call_timeout=1"]

    def test_two_launchers_of_ours_are_of_one_job(self):
        options = self.options()
        agents = [self.torchup(*options, OF="first")]
        # Each has a page from when it was first asked on, and nobody says when the job has begun.
        self.status(lambda job: job["phase"] == "gathering", "the first one is there")
        agents.append(self.torchup(*options, OF="second"))
        self.started(2)
        for words in ("status",), ("status", "foreign"), ("events", "foreign"), ("logs", "foreign", "--rank", "0"):
            self.ctl(*words, code=0)
        self.assertEqual([row["started"] for row in self.json("ps")["jobs"]], [None, None])
        (self.folder / "go").touch()
        self.assertEqual([agent.wait(LIMIT_S) for agent in agents], [0, 0])

    def end_theirs(self, theirs):
        theirs.terminate()
        try:
            theirs.wait(LIMIT_S)
        finally:
            theirs.poll() is None and os.killpg(theirs.pid, signal.SIGKILL)
            theirs.wait()

    def recorded(self):
        return [json.loads(line) for line in (self.folder / "events").read_text().splitlines()]

    def job(self):
        return self.status(lambda job: job["phase"] == "running" and job["ranks"].get("running") == 1, "it runs here")

    def test_its_doors_answer_for_this_node(self):
        ours, _ = self.begin()
        job = self.job()
        row = self.row()
        self.assertEqual((row["run_id"], row["pid"], row["phase"]), ("foreign", ours.pid, "running"))
        self.assertEqual((job["world_size"], [node["ranks"] for node in job["nodes"].values()]), (2, ["r"]))
        self.assertIn("torchrun's agents", job["last"])
        own, other = self.own_rank, 1 - self.own_rank
        self.assertEqual(self.ctl("logs", "--rank", own, code=0).stdout, "said by ours\n")
        self.ctl("logs", "--rank", other, code=1)
        self.assertRegex(self.ctl("stacks", code=0).stdout, rf"rank {own}, pid \d+: ")
        self.ctl("stacks", "--rank", other, code=1)
        told = [json.loads(line)["event"] for line in self.ctl("events", "--json", code=0).stdout.splitlines()]
        self.assertIn("worker_started", told)
        url = urllib.parse.urlsplit(self.ctl("page", code=0).stdout.strip())
        self.assertEqual(self.http(url.port, url.path)[0], 200)
        rows = self.http(url.port, "/v1/jobs", token=url.fragment.removeprefix("token="))[1]
        self.assertEqual([row["run_id"] for row in json.loads(rows)["jobs"]], ["foreign"])

    def test_no_order_but_its_own_stop_is_obeyed_and_none_changes_anything(self):
        ours, theirs = self.begin()
        job = self.job()
        node, = job["nodes"]
        for words, path, body in ((("restart",), "/restart", {}),
                                  (("resize", "--nodes", "1:2"), "/resize", {"min": 1, "max": 2}),
                                  (("drain", "--node", node), f"/nodes/{node}/drain", {}),
                                  (("undrain", "--node", socket.gethostname()), f"/nodes/{node}/undrain", {}),
                                  (("stop", "--save"), "/stop", {"save": True}),
                                  (("stop", "--now"), "/stop", {"now": True})):
            with self.subTest(words):
                said = self.ctl(*words, code=1)
                self.assertEqual(said.stdout, "")
                status, error = self.order(JOB + path, **body)
                self.assertEqual((status, error["code"]), (501, "foreign_store"))
                self.assertIn(f"torchrun's, which obeys no orders: {words[0]} cannot be done", error["message"])
                self.assertEqual(said.stderr, f"torchupctl: {error['message']}\n")
        now = self.job()
        for member in ("round", "world_size", "nodes", "restart_count", "min_nodes", "max_nodes"):
            self.assertEqual(now[member], job[member], member)
        self.assertTrue(all(state(pid) not in (None, "Z", "X") for _, _, pid in self.workers))
        self.assertEqual((ours.poll(), theirs.poll(), list(self.folder.glob("told.*"))), (None, None, []))
        self.assertNotIn("order_received", [event["event"] for event in self.recorded()])

    def test_its_stop_ends_this_node_as_a_signal_does(self):
        ends = {}
        for way in ("order", "signal"):
            ours, _ = self.begin()
            self.job()
            if way == "order":
                self.assertIn("this node ends", self.ctl("stop", code=0).stdout)
            else:
                ours.send_signal(signal.SIGTERM)
            code = ours.wait(LIMIT_S)
            self.assertTrue((self.folder / "told.ours").exists())  # its worker has had the time that TERM gives
            names = [event["event"] for event in self.recorded()]
            self.assertEqual(names.count("order_received"), int(way == "order"))
            if way == "order":
                self.assertLess(names.index("order_received"), names.index("stopping"))
            after = names[names.index("stopping"):]
            ends[way] = code, [name for name in after if name != "progress"], self.recorded()[-1].get("exit_code")
            self.assertEqual(list(self.sockets.iterdir()), [])
        self.assertEqual(ends["order"], ends["signal"])
        self.assertEqual(ends["order"][0], 143)


if __name__ == "__main__":
    unittest.main()
