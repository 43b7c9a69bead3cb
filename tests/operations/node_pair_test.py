"""Jobs of several nodes at the doors of each of them: one that hosts, one that is linked to it, and nodes of a daemon.

usage: node_pair_test.py TORCHUPCTL TORCHUP TORCHUPD [unittest options]
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

from node_case import LIMIT_S, Node, Nodes
from torchupd import Torchupd
from waiting import until

TORCHUPD = os.path.abspath(sys.argv.pop(1))


class Pair(Nodes):
    def start_both(self, *words, **more):
        self.host, self.other = self.begin("host", "other", words=words, **more)
        self.started(2)

    def token(self):
        """Who has one may read what workers wrote on other machines; and who can tell which node is on which?"""
        secret = self.folder / "token"
        secret.write_text("token-0123456789abcdef")
        secret.chmod(0o600)
        return ["--token-file", secret]

    def test_each_node_tells_of_the_whole_job_and_names_its_own_launcher(self):
        self.start_both()
        for name, agent in (("host", self.host), ("other", self.other)):
            with self.subTest(name):
                job = self.running(name)
                self.assertEqual((job["world_size"], len(job["nodes"])), (2, 2))
                self.assertEqual(sorted(node["ranks"] for node in job["nodes"].values()), ["r", "r"])
                row = self.row(**self.doors[name])
                self.assertEqual((row["run_id"], row["pid"], row["phase"]), ("pair/1", agent.pid, "running"))

    def test_the_log_and_the_stacks_of_any_rank_are_one_question_away(self):
        self.start_both(*self.token(), script="echo rank $RANK; touch $0/started.$RANK.$$$$; exec sleep 1000")
        for name in self.doors:
            self.running(name)
            for rank in (0, 1):
                with self.subTest(name, rank=rank):
                    shown = until(lambda: self.ctl("logs", "--rank", rank, code=0, **self.doors[name]).stdout,
                                  "it has spoken", LIMIT_S)
                    self.assertEqual(shown, f"rank {rank}\n")
            self.stacks(asleep=(0, 1), **self.doors[name])
            self.ctl("logs", "--rank", "2", code=1, **self.doors[name])

    def test_ranks_are_one_question_away_while_one_node_has_stopped_and_another_has_not(self):
        self.start_both(*self.token(), "--max-restarts=1", "--shutdown-timeout=90", script=(
            "trap 'until test -e $0/on; do sleep 0.02; done; exit 1' TERM; echo rank $RANK; "
            "touch $0/started.$RANK.$$$$; until test -e $0/go; do sleep 0.02; done"))
        for name in self.doors:
            self.running(name)
        pid, = (int(path.suffix[1:]) for path in self.folder.glob("started.1.*"))
        os.kill(pid, signal.SIGKILL)
        for name, door in self.doors.items():
            self.status(lambda job: sorted(node["state"] for node in job["nodes"].values()) == ["ready", "stopping"],
                        "one has stopped", **door)
            for rank in (0, 1):
                with self.subTest(name, rank=rank):
                    self.assertEqual(self.ctl("logs", "--rank", rank, code=0, **door).stdout, f"rank {rank}\n")
        (self.folder / "on").touch()
        self.started(4)
        (self.folder / "go").touch()
        self.assertEqual([self.host.wait(LIMIT_S), self.other.wait(LIMIT_S)], [0, 0])

    def test_without_a_token_a_linked_node_is_told_what_its_own_workers_wrote_alone(self):
        self.start_both(script="echo rank $RANK; touch $0/started.$RANK.$$$$.$OF; exec sleep 1000")
        self.running("other")
        own, = (int(path.name.split(".")[1]) for path in self.folder.glob("started.*.other"))
        self.assertEqual(self.ctl("logs", "--rank", own, code=0, **self.doors["other"]).stdout, f"rank {own}\n")
        self.stacks("--rank", own, asleep=[own], **self.doors["other"])
        for words in (("logs",), ("stacks",), ("stacks", "--native")):
            with self.subTest(words):
                refused = self.ctl(*words, "--rank", 1 - own, code=77, **self.doors["other"])
                self.assertEqual(refused.stdout, "")
                self.assertIn("--token-file", refused.stderr)
        whole = self.ctl("stacks", code=0, **self.doors["other"]).stdout
        self.assertRegex(whole, rf"rank {own}, pid \d+: ")
        self.assertNotIn(f"rank {1 - own}, pid", whole)

    def test_who_goes_on_behind_an_event_that_never_was_hears_of_a_gap_at_each_node(self):
        self.start_both()
        for name, door in self.doors.items():
            self.running(name)
            told = [event["seq"] for event in self.events(name)]
            for behind, gap in ((told[0], False), (told[0] // 2 or 10**6, True)):
                with self.subTest(name, behind=behind):
                    frames = self.frames(door["TORCHUP_RUNTIME_DIR"], behind)
                    self.assertEqual(next(frames)[0], "snapshot")
                    seen = []  # None for a gap
                    while len(seen) < len(told) - 1:
                        kind, data = next(frames)
                        seen += [data["seq"] if kind == "event" else None] if kind in ("gap", "event") else []
                    self.assertEqual(seen, [None, *told[:-2]] if gap else told[1:])

    def test_native_frames_of_any_rank_are_one_question_away(self):
        self.start_both(*self.token(), script="touch $0/started.$RANK.$$$$; exec sleep 1000")
        for name, door in self.doors.items():
            self.running(name)
            for rank in (0, 1):
                with self.subTest(name, rank=rank):
                    self.stacks("--native", "--rank", rank, asleep=[rank], thread="sleep", **door)
            self.stacks("--native", asleep=(0, 1), thread="sleep", **door)
            refused = self.ctl("stacks", "--native", "--rank", "2", code=1, **door)
            self.assertEqual(refused.stdout, "")
            self.assertIn("rank 2", refused.stderr)

    def test_what_a_node_is_told_goes_for_the_job(self):
        for name in self.doors:
            with self.subTest(name):
                for begun in self.folder.glob("started.*"):
                    begun.unlink()
                self.start_both()
                self.running(name)
                self.ctl("stop", code=0, **self.doors[name])
                self.assertEqual([self.host.wait(LIMIT_S), self.other.wait(LIMIT_S)], [143, 143])
                self.assertIn("by user", self.errors(self.host))

    def test_the_end_is_told_to_who_follows_at_a_node_that_does_not_host(self):
        self.start_both("--max-restarts=0", CODE="3")
        self.running("other")
        waiting = subprocess.Popen([*self.start_words("wait")], env={**self.environment, **self.doors["other"]})
        self.addCleanup(lambda: (waiting.poll() is None and waiting.kill(), waiting.wait()))
        events = subprocess.Popen([*self.start_words("events", "-f", "--json")], stdout=subprocess.PIPE, text=True,
                                  env={**self.environment, **self.doors["other"]})
        self.addCleanup(lambda: (events.poll() is None and events.kill(), events.communicate()))
        until(lambda: "round_formed" in os.read(events.stdout.fileno(), 1 << 20).decode(), "it follows", LIMIT_S)
        (self.folder / "go").touch()
        self.assertEqual([self.host.wait(LIMIT_S), self.other.wait(LIMIT_S)], [1, 1])
        self.assertEqual(waiting.wait(LIMIT_S), 1)
        self.assertIn("job_ended", events.communicate(timeout=LIMIT_S)[0])

    def start_words(self, *words):
        from ctl_case import TORCHUPCTL
        return [TORCHUPCTL, *words]

    def test_what_fails_on_one_node_is_heard_of_at_the_host(self):
        self.start_both("--max-restarts=1", script="touch $0/started.$RANK.$$$$; [ $RANK = 0 ] && exec sleep 1000; "
                                                   "while [ ! -e $0/go ]; do sleep 0.02; done; rm $0/go; exit 9")
        self.running("host")
        (self.folder / "go").touch()
        self.started(4)
        told = until(lambda: [event for event in self.events("host")
                              if event["event"] == "worker_exited" and event.get("exit_code") == 9],
                     "it is told", LIMIT_S)
        self.assertEqual([event["rank"] for event in told], [1])

    def test_the_rendezvous_port_answers_as_a_daemons(self):
        self.start_both()
        self.running("host")
        port = int(self.endpoint.rpartition(":")[2])
        status, body, _ = self.http(port, "/status")
        self.assertEqual((status, list(json.loads(body)["jobs"])), (200, ["pair/1"]))
        status, text, _ = self.http(port, "/metrics")
        self.assertEqual(status, 200)
        self.assertIn('torchup_job_world_size{run_id="pair/1"} 2\n', text)
        self.assertRegex(text, r'torchup_worker_up\{run_id="pair/1",rank="\d",local_rank="0"\} 1\n')
        self.assertRegex(text, r'torchup_job_ranks\{run_id="pair/1",state="running"\} 2\n')
        self.assertRegex(text, r"torchup_loop_turn_seconds_count [1-9]")

    def test_a_node_that_does_not_host_names_the_host_in_place_of_the_page(self):
        self.start_both()
        self.running("other")
        done = self.ctl("page", **self.doors["other"])
        self.assertEqual(done.returncode, 1)
        self.assertIn(self.endpoint, done.stderr)

    def test_the_ledger_of_all_nodes_is_told_by_the_host_alone(self):
        self.start_both("--ledger=always", "--nproc-per-node=1")
        self.running("host")
        (self.folder / "go").touch()
        self.assertEqual([self.host.wait(LIMIT_S), self.other.wait(LIMIT_S)], [0, 0])
        self.assertIn("2 ranks x", self.errors(self.host))
        self.assertNotIn("ranks x", self.errors(self.other))


class Front(Node):
    def test_who_has_started_the_agents_of_all_hosts_answers_for_the_job_too(self):
        front = self.torchup("--hosts=localhost:2", "--rdzv-id=far")
        self.started(2)
        rows = until(lambda: (rows := self.json("ps")["jobs"]) and front.pid in [row["pid"] for row in rows] and rows,
                     "the front is listed", LIMIT_S)
        self.assertEqual({row["run_id"] for row in rows}, {"far"})
        self.status(lambda job: job["world_size"] == 2 and job["phase"] == "running", "the job runs", str(front.pid))
        self.ctl("stop", str(front.pid), code=0)
        self.assertEqual(front.wait(LIMIT_S), 143)
        self.assertEqual(list(self.sockets.iterdir()), [])


class AtADaemon(Nodes):
    def setUp(self):
        super().setUp()
        self.daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL,
                               env={**self.environment, "TORCHUP_RUNTIME_DIR": str(self.sockets)})
        self.addCleanup(self.daemon.end, LIMIT_S)
        self.endpoint = self.daemon.endpoint
        self.host, self.other = self.agent("host"), self.agent("other")
        self.started(2)

    def test_a_coordinator_that_is_gone_leaves_what_the_node_knows_by_itself(self):
        self.running("other")
        self.daemon.process.kill()
        self.daemon.process.wait()
        job = self.status(lambda job: job["phase"] == "cut off", "the node is cut off", **self.doors["other"])
        self.assertEqual(len(job["nodes"]), 1)
        self.assertRegex(job["last"], r"out of reach for \d+ s")
        self.assertEqual(self.row(**self.doors["other"])["phase"], "cut off")
        self.ctl("restart", code=1, **self.doors["other"])
        events = self.ctl("events", code=0, **self.doors["other"]).stdout
        self.assertIn("worker_started", events)

    def test_who_follows_a_node_that_is_cut_off_looks_again_when_it_is_not(self):
        self.running("other")
        last, folder = self.events("other")[-1]["seq"], self.doors["other"]["TORCHUP_RUNTIME_DIR"]
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.status(lambda job: job["phase"] == "cut off", "the node is cut off", **self.doors["other"])
        alone = self.frames(folder, last)
        self.assertEqual(next(alone)[1]["phase"], "cut off")
        told = (kind for kind, _ in alone if kind in ("event", "gap"))
        self.assertEqual(next(told), "gap")  # it has numbers of its own
        again = Torchupd(TORCHUPD, "--bind", "127.0.0.1", port=self.daemon.port, stderr=subprocess.DEVNULL,
                         env={**self.environment, "TORCHUP_RUNTIME_DIR": str(self.sockets)})
        self.addCleanup(again.end, LIMIT_S)
        self.assertNotIn("running", [data.get("phase") for _, data in alone])  # and it comes to an end
        self.running("other")
        self.ctl("restart", code=0, **self.doors["other"])
        told = (kind for kind, _ in self.frames(folder, last) if kind in ("event", "gap"))
        self.assertEqual([next(told), next(told)], ["gap", "event"])

    def test_a_coordinator_that_has_stopped_keeps_no_list_waiting(self):
        self.running("other")
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.daemon.process.pid, signal.SIGCONT)
        begin = time.monotonic()
        row = self.row(**self.doors["other"])
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual((row["pid"], row["answering"]), (self.other.pid, True))

    def test_a_node_names_the_program_which_the_daemon_does_not_know(self):
        self.running("other")
        self.assertIsNone(self.row()["name"])
        self.assertEqual(self.row(**self.doors["other"])["name"], "sh")

    def test_what_has_ended_a_job_is_known_to_the_daemon(self):
        self.running("other")
        worker = next(self.folder.glob("started.*"))
        os.kill(int(worker.name.split(".")[-1]), signal.SIGKILL)
        self.assertEqual([agent.wait(LIMIT_S) for agent in (self.host, self.other)], [1, 1])
        self.status(lambda job: job["incidents"] and job["verdict"], "it says why")

    def test_a_log_that_is_followed_at_the_daemon_ends_with_the_job(self):
        self.running("other")
        following = self.start("logs", "-f", "--rank", "0")
        (self.folder / "go").touch()
        self.assertEqual([agent.wait(LIMIT_S) for agent in (self.host, self.other)], [0, 0])
        self.assertEqual(following.wait(LIMIT_S), 0)

    def test_orders_and_events_go_by_way_of_the_daemon(self):
        self.running("other")
        self.ctl("restart", code=0, **self.doors["other"])
        self.started(4)
        orders = [event for event in self.events("host") if event["event"] == "order_received"]
        self.assertEqual([order["verb"] for order in orders], ["restart"])
        self.assertIn(f"uid {os.getuid()}", orders[0]["by"])


class AtAnotherJobsHost(Nodes):
    """An agent whose job another job's launcher coordinates, for they have one endpoint; both launchers are here."""

    def test_its_job_is_no_other_ones(self):
        conf = "last_call_timeout=1"
        host, = self.begin("host", words=[f"--rdzv-conf=is_host=1,{conf}"], nnodes="1:2")
        here = self.doors["other"] = self.doors["host"]
        self.run_id = "guest"
        guest = self.agent("other", f"--rdzv-conf=is_host=0,{conf}", nnodes="1:2")
        self.started(2)
        rows = until(lambda: len(self.json("ps", **here)["jobs"]) == 2 and self.json("ps", **here)["jobs"], "two jobs", LIMIT_S)
        self.assertEqual({(row["run_id"], row["pid"]) for row in rows}, {("pair/1", host.pid), ("guest", guest.pid)})
        self.assertEqual(self.json("status", host.pid, **here)["run_id"], "pair/1")
        self.ctl("stop", guest.pid, code=0, **here)
        self.assertEqual(guest.wait(LIMIT_S), 143)
        self.ctl("wait", "guest", code=143, **here)  # by the word of who coordinates it, whose own end is another's
        self.assertIsNone(host.poll())
        (self.folder / "go").touch()
        self.assertEqual(host.wait(LIMIT_S), 0)


if __name__ == "__main__":
    unittest.main()
