"""A job of one node at its own doors: the control socket, the status port, the page on demand.

usage: node_job_test.py TORCHUPCTL TORCHUP [unittest options]
"""

import json
import os
import signal
import socket
import stat
import sys
import unittest
import urllib.parse

from node_case import LIMIT_S, Node
from waiting import until


class Seen(Node):
    def test_a_job_is_listed_with_its_launcher_and_shown_with_its_ranks(self):
        agent = self.torchup("--nproc-per-node=2", "--rdzv-id=own/1")
        self.started(2)
        row = until(lambda: (row := self.row()).get("phase") == "running" and row, "the job runs", LIMIT_S)
        self.assertEqual((row["run_id"], row["pid"], row["name"], row["world_size"]), ("own/1", agent.pid, "sh", 2))
        job = self.status(lambda job: job["ranks"].get("running") == 2, "both ranks run", str(agent.pid))
        self.assertEqual([node["ranks"] for node in job["nodes"].values()], ["rr"])
        self.assertEqual(self.ctl("status", "nobody", code=1).stdout, "")

    def test_the_socket_is_its_users_alone_and_goes_with_the_job(self):
        agent = self.torchup()
        found = until(lambda: list(self.sockets.glob("*.sock")), "there is a socket", LIMIT_S)
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].name.startswith(f"{agent.pid}-"))
        self.assertEqual(stat.S_IMODE(found[0].stat().st_mode), 0o600)
        self.started(1)
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 0)
        self.assertEqual(list(self.sockets.iterdir()), [])

    def test_there_is_no_socket_where_none_is_wanted(self):
        self.torchup("--no-control-socket")
        self.started(1)
        self.assertEqual(list(self.sockets.iterdir()), [])
        self.assertEqual(self.json("ps")["jobs"], [])

    def test_a_directory_that_others_can_use_costs_a_warning_and_not_the_job(self):
        self.sockets.chmod(0o777)
        agent = self.torchup()
        self.started(1)
        until(lambda: "no control socket" in self.errors(agent), "it is said", LIMIT_S)
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 0)
        said = [line for line in self.errors(agent).splitlines() if "no control socket" in line]
        self.assertEqual(len(said), 1)
        self.assertIn(str(self.sockets), said[0])

    def test_events_are_kept_and_followed_to_the_end_and_its_code_is_waited_for(self):
        agent = self.torchup("--rdzv-id=told", CODE="3")
        self.started(1)
        kept = [json.loads(line) for line in self.ctl("events", "--json", code=0).stdout.splitlines()]
        names = [event["event"] for event in kept]
        for name in ("job_started", "node_joined", "round_completed", "worker_started"):
            self.assertIn(name, names)
        self.assertEqual([event["seq"] for event in kept], sorted({event["seq"] for event in kept}))
        following, waiting = self.start("events", "-f", "--json"), self.start("wait")
        until(lambda: "worker_started" in os.read(following.stdout.fileno(), 1 << 20).decode(), "it follows", LIMIT_S)
        self.assertEqual(self.ctl("wait", "--timeout", "0.1").returncode, 124)
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 1)
        self.assertEqual(waiting.wait(LIMIT_S), 1)
        told = following.communicate(timeout=LIMIT_S)[0]
        self.assertIn("worker_exited", told)
        self.assertIn("job_ended", told)


class Steered(Node):
    def test_it_is_stopped_and_who_did_it_is_recorded_before_anything_follows(self):
        events = self.folder / "events"
        agent = self.torchup("--events", events)
        self.started(1)
        self.ctl("stop", code=0)
        self.assertEqual(agent.wait(LIMIT_S), 143)
        told = [json.loads(line) for line in events.read_text().splitlines()]
        names = [event["event"] for event in told]
        self.assertEqual(names.count("order_received"), 1)
        self.assertLess(names.index("order_received"), names.index("stopping"))
        order = told[names.index("order_received")]
        self.assertEqual(order["verb"], "stop")
        self.assertIn(f"uid {os.getuid()}", order["by"])
        self.assertIn("by user", told[names.index("stopping")]["reason"])

    def test_it_is_restarted_and_its_budget_stays(self):
        agent = self.torchup()
        self.started(1)
        self.ctl("restart", code=0)
        self.started(2)
        job = self.status(lambda job: job["phase"] == "running" and job["round"] == 1, "the next round runs")
        self.assertEqual((job["restart_count"], job["membership_changes"]), (0, 1))
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 0)

    def test_what_cannot_be_is_refused_and_changes_nothing(self):
        self.torchup()
        self.started(1)
        self.ctl("drain", "--node", "0", code=1)
        self.ctl("resize", "--nodes", "2:4", code=1)
        self.assertEqual(self.row()["phase"], "running")


class Said(Node):
    SPEAKS = ("echo out $RANK; echo err $RANK >&2; touch $0/started.$RANK.$$$$; "
              "while [ ! -e $0/go ]; do sleep 0.02; done")

    def test_what_memory_has_of_a_worker_is_shown_and_followed(self):
        agent = self.torchup("--nproc-per-node=2", script=self.SPEAKS + "; echo last $RANK")
        self.started(2)
        shown = until(lambda: (done := self.ctl("logs", "--rank", "1", code=0)).stdout and done, "it has spoken",
                      LIMIT_S)
        self.assertEqual(shown.stdout, "out 1\n")
        self.assertIn("memory", shown.stderr)
        self.assertEqual(self.ctl("logs", "--rank", "1", "--stream", "stderr", code=0).stdout, "err 1\n")
        self.ctl("logs", "--rank", "2", code=1)
        following = self.start("logs", "-f", "--rank", "0")
        until(lambda: os.read(following.stdout.fileno(), 1 << 20) == b"out 0\n", "it follows", LIMIT_S)
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 0)
        rest = following.communicate(timeout=LIMIT_S)[0]
        self.assertEqual((rest, following.returncode), ("last 0\n", 0))

    def test_files_are_shown_through_all_attempts(self):
        agent = self.torchup("--log-dir", self.folder / "logs", "-r", "3",
                             script="echo attempt $TORCHELASTIC_RESTART_COUNT $$$$; touch $0/started.$$$$; "
                                    "while [ ! -e $0/go ]; do sleep 0.02; done")
        self.started(1)
        self.ctl("restart", code=0)
        self.started(2)
        pids = {path.suffix[1:] for path in self.folder.glob("started.*")}
        done = until(lambda: (done := self.ctl("logs", code=0)).stdout.count("\n") == 2 and done, "both speak", LIMIT_S)
        self.assertEqual({line.split()[2] for line in done.stdout.splitlines()}, pids)
        self.assertEqual(done.stderr, "")
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 0)

    def test_a_log_is_followed_while_workers_stop_and_begin_again(self):
        agent = self.torchup("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=90", script=(
            "case $RANK.$TORCHELASTIC_RESTART_COUNT in "
            "0.0) trap 'echo stops; until test -e $0/on; do sleep 0.02; done; exit 1' TERM;; "
            "1.0) until test -e $0/fail; do sleep 0.02; done; exit 3;; esac; "
            "echo attempt $TORCHELASTIC_RESTART_COUNT; touch $0/started.$RANK.$TORCHELASTIC_RESTART_COUNT; "
            "until test -e $0/go; do sleep 0.02; done"))
        self.started(1)
        following, said = self.start("logs", "-f", "--rank", "0"), ""

        def says(text):
            nonlocal said
            said += os.read(following.stdout.fileno(), 1 << 20).decode()
            return said == text

        until(lambda: says("attempt 0\n"), "it follows", LIMIT_S)
        (self.folder / "fail").touch()
        until(lambda: says("attempt 0\nstops\n"), "the other one's failure ends it", LIMIT_S)
        self.assertEqual(self.ctl("logs", code=0).stdout, "attempt 0\nstops\n")
        self.assertIn("rank 0, pid ", self.ctl("stacks", code=0).stdout)
        self.assertIn("rank 0, pid ", self.ctl("stacks", "--rank", "0", code=0).stdout)
        (self.folder / "on").touch()
        until(lambda: says("attempt 0\nstops\nattempt 1\n"), "it is followed through all attempts", LIMIT_S)
        (self.folder / "go").touch()
        self.assertEqual((agent.wait(LIMIT_S), following.wait(LIMIT_S)), (0, 0))

    def test_stacks_tell_of_each_rank_what_it_does(self):
        self.torchup("--nproc-per-node=2", script="touch $0/started.$RANK.$$$$; exec sleep 1000")
        self.started(2)
        self.assertEqual(self.stacks(asleep=(0, 1)).count("last output"), 2)
        self.stacks("--rank", "1", asleep=[1])
        self.ctl("stacks", "--rank", "7", code=1)

    def test_native_frames_are_shown_to_who_asks_for_them(self):
        # Of another program than Python there are no other frames: they are shown unasked.
        program = self.folder / "program.py"
        program.write_text("import os, pathlib, sys, time\n"
                           "pathlib.Path(sys.argv[1], f'started.{os.environ[\"RANK\"]}.{os.getpid()}').touch()\n"
                           "time.sleep(1000)\n")
        self.torchup("--nproc-per-node=2", program=[program, self.folder], PYTHON_EXEC=sys.executable)
        self.started(2)
        text = self.stacks("--native", asleep=(0, 1), thread="python.*")
        self.assertEqual(text.count("program.py:3 <module>"), 2)
        text = self.stacks(asleep=(0, 1))
        self.assertEqual(text.count("program.py:3 <module>"), 2)
        self.assertNotIn("native thread", text)
        self.stacks("--native", "--rank", "1", asleep=[1], thread="python.*")
        refused = self.ctl("stacks", "--native", "--rank", "2", code=1)
        self.assertEqual(refused.stdout, "")
        self.assertIn("rank 2", refused.stderr)
        self.ctl("stacks", "--native", "--rank", "-1", code=2)


class Port(Node):
    def test_reading_needs_no_token_here_and_shows_nothing_that_was_typed(self):
        agent = self.torchup("--status-port=0", "--rdzv-id=a b",
                             script="echo secret; touch $0/started.$$$$; sleep 1000")
        self.started(1)
        _, port, token = self.page_address(agent)
        path = "/v1/jobs/" + urllib.parse.quote("a b", safe="")
        self.assertEqual(self.http(port, "/healthz")[0], 200)
        status, body, _ = self.http(port, "/v1/jobs")
        self.assertEqual((status, json.loads(body)["right"]), (200, "read"))
        events = self.http(port, path + "/events")[1]
        self.assertNotIn("secret", events)
        self.assertIn('"withheld"', events)
        self.assertIn('"command"', self.http(port, path + "/events", token=token)[1])
        self.assertIn(self.http(port, path + "/ranks/0/log")[0], (401, 403))
        self.assertEqual(self.http(port, path + "/ranks/0/log", token=token)[1], "secret\n")
        self.assertEqual(self.http(port, "/v1/jobs", token="x" * 32)[0], 401)
        self.assertEqual(self.http(port, "/v1/jobs", host="evil.example")[0], 421)
        status, page, headers = self.http(port, "/jobs/a%20b")
        self.assertEqual(status, 200)
        self.assertIn("<html", page)
        self.assertIn("script-src 'nonce-", headers["Content-Security-Policy"])
        self.assertEqual(self.http(port, path + "/stop", "POST", body="{}")[0], 401)
        self.assertEqual(self.http(port, path + "/stop", "POST", token=token, body="{}")[0], 202)
        self.assertEqual(agent.wait(LIMIT_S), 143)
        self.assertNotIn(token, "".join(path.read_text() for path in self.folder.glob("events*")))

    def test_an_incident_has_its_last_lines_for_who_may_know_them(self):
        events = self.folder / "events"
        agent = self.torchup("--status-port=0", "--rdzv-id=fails", "--max-restarts=1", "--events", events, script=(
            "touch $0/started.$TORCHELASTIC_RESTART_COUNT; "
            "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then echo loss nan; exit 3; fi; "
            "while [ ! -e $0/go ]; do sleep 0.02; done; echo gives up; exit 4"))
        _, port, token = self.page_address(agent)
        path = "/v1/jobs/fails"
        job = until(lambda: (job := json.loads(self.http(port, path, token=token)[1])).get("incidents") and job,
                    "it is told of", LIMIT_S)
        self.assertEqual(job["incidents"][0]["last_lines"], ["loss nan"])
        job = json.loads(self.http(port, path)[1])
        self.assertIn("summary", job["incidents"][0])
        self.assertNotIn("last_lines", job["incidents"][0])
        self.assertTrue(job["withheld"])
        (self.folder / "go").touch()
        self.assertEqual(agent.wait(LIMIT_S), 1)
        told = [json.loads(line) for line in events.read_text().splitlines()]
        self.assertEqual([event["last_lines"] for event in told if event["event"] == "incident_recorded"],
                         [["loss nan"], ["gives up"]])

    def test_further_names_and_a_token_to_read_are_as_they_were_given(self):
        secret = self.folder / "token"
        secret.write_text("read-token-0123456789abcdef\n")
        secret.chmod(0o600)
        agent = self.torchup("--status-port=0", "--status-host=page.example", f"--read-token-file={secret}")
        _, port, _ = self.page_address(agent)
        self.assertEqual(self.http(port, "/v1/jobs", host="page.example")[0], 200)
        status, body, _ = self.http(port, "/v1/jobs", token="read-token-0123456789abcdef", host="else.example")
        self.assertEqual((status, json.loads(body)["right"]), (200, "read"))

    def test_a_port_that_is_taken_costs_a_warning_and_not_the_job(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            agent = self.torchup(f"--status-port={other.getsockname()[1]}")
            self.started(1)
            (self.folder / "go").touch()
            self.assertEqual(agent.wait(LIMIT_S), 0)
        self.assertEqual(self.errors(agent).count("no --status-port"), 1)

    def test_what_cannot_be_an_option_is_refused_before_the_start(self):
        for words in (["--status-port=70000"], ["--status-port=x"], ["--status-port=0", "--status-bind=here"],
                      ["--status-host=a:b"], ["--read-token-file=/nowhere"]):
            with self.subTest(words):
                agent = self.torchup(*words)
                self.assertEqual(agent.wait(LIMIT_S), 2)
                self.assertIn(words[-1].partition("=")[0], self.errors(agent))
        self.assertEqual(list(self.folder.glob("started.*")), [])

    def test_a_page_is_opened_on_demand_and_asked_for_again_it_is_the_same(self):
        self.torchup("--rdzv-id=shown")
        self.started(1)
        address = self.ctl("page", code=0).stdout.strip()
        self.assertEqual(self.ctl("page", code=0).stdout.strip(), address)
        url, _, token = address.partition("#token=")
        port = urllib.parse.urlsplit(url).port
        self.assertEqual(self.http(port, "/jobs/shown")[0], 200)
        self.assertEqual(json.loads(self.http(port, "/v1/jobs", token=token)[1])["right"], "control")

    def test_metrics_tell_of_the_workers_and_of_the_job(self):
        agent = self.torchup("--nproc-per-node=2", "--status-port=0", "--rdzv-id=counted")
        self.started(2)
        _, port, _ = self.page_address(agent)
        text = self.http(port, "/metrics")[1]
        for line in ('torchup_worker_up{run_id="counted",rank="1",local_rank="1"} 1',
                     'torchup_worker_starts_total{run_id="counted",rank="0",local_rank="0"} 1',
                     'torchup_job_world_size{run_id="counted"} 2'):
            self.assertIn(line + "\n", text)
        for name in ("torchup_build_info", "torchup_node_rank_seconds", "torchup_log_lost_bytes_total",
                     "torchup_loop_turn_seconds_bucket", "torchup_worker_cpu_seconds_total"):
            self.assertRegex(text, rf"(?m)^{name}[{{ ]")


if __name__ == "__main__":
    unittest.main()
