"""torchupctl and those whom it asks: which job is meant, who is listed, and what bad folders, sockets and answers get.

usage: ctl_jobs_test.py TORCHUPCTL [unittest options]
"""

import json
import os
import time
import unittest
from pathlib import Path

from ctl_case import Ctl
from fake_launcher import Job, Launcher, job_row, leave_dead_socket, refusal, response

HEAD = ["RUN", "ID", "PID", "PHASE", "NODES", "RANKS", "STEP", "STEPS/S", "RESTARTS", "UP", "PROGRAM"]


class Ps(Ctl):
    def rows(self, *words):
        lines = [line.split() for line in self.ctl("ps", *words, code=0).stdout.splitlines()]
        self.assertEqual(lines[0], HEAD)
        return lines[1:]

    def test_no_job_is_a_head_alone(self):
        self.assertEqual(self.rows(), [])
        self.assertEqual(json.loads(self.ctl("ps", "--json").stdout)["jobs"], [])

    def test_json_says_what_may_be_done_and_when_that_was(self):
        told = json.loads(self.ctl("ps", "--json", code=0).stdout)
        self.assertEqual((told["schema"], told["right"]), (1, "control"))
        self.assertRegex(told["now"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        answer = {"schema": 1, "right": "read", "now": "2026-11-21T05:12:03.500000Z", "jobs": [job_row("far")]}
        daemon = Launcher(lambda request: response(answer))
        self.addCleanup(daemon.close)
        self.assertEqual(json.loads(self.ctl("ps", "--json", "--endpoint", daemon.endpoint, code=0).stdout), answer)

    def test_each_launcher_has_a_line(self):
        self.launcher(Job("mnist", 11), 11)
        self.launcher(Job("gpt", 12, max_nodes=4, restart_count=2), 12)
        self.assertEqual(sorted(self.rows()),
                         [["gpt", "12", "running", "1:4", "2", "41200", "3.14", "2/3", "1:12:03", "train.py"],
                          ["mnist", "11", "running", "1", "2", "41200", "3.14", "0/3", "1:12:03", "train.py"]])

    def test_json_says_who_answered_where(self):
        answering = self.launcher(Job("mnist", 11), 11)
        silent = self.launcher(lambda request: None, 12)
        rows = json.loads(self.ctl("ps", "--json", code=0).stdout)["jobs"]
        self.assertEqual([(row.get("run_id"), row["pid"], row["socket"], row["answering"]) for row in rows],
                         [("mnist", 11, answering.path, True), (None, 12, silent.path, False)])

    def test_twenty_that_do_not_answer_are_waited_for_at_once(self):
        self.launcher(Job("mnist", 11), 11)
        for pid in range(100, 120):
            self.launcher(lambda request: None, pid)
        begin = time.monotonic()
        rows = self.rows()
        self.assertLess(time.monotonic() - begin, 8)  # one after the other would be ten seconds
        self.assertEqual(sum(row[2:4] == ["not", "answering"] for row in rows), 20)
        self.assertEqual([row[0] for row in rows if row[0] != "-"], ["mnist"])

    def test_a_daemons_word_of_a_job_that_a_launcher_here_has_is_no_second_line(self):
        self.launcher(Job("mnist", 11), 11)
        rows = [job_row("mnist"), job_row("elsewhere")]
        self.launcher(lambda request: response({"jobs": rows}), 12)
        self.assertEqual(sorted(row[:2] for row in self.rows()), [["elsewhere", "-"], ["mnist", "11"]])

    def test_a_daemons_job_of_that_name_which_has_begun_at_another_time_is_another(self):
        self.launcher(Job("mnist", 11), 11)
        rows = [job_row("mnist", started="2026-11-21T05:00:00.000000Z")]
        self.launcher(lambda request: response({"jobs": rows}), 12)
        self.assertEqual(sorted(row[:2] for row in self.rows()), [["mnist", "-"], ["mnist", "11"]])

    def test_sockets_that_nobody_listens_at_go(self):
        dead = self.sockets / "77-0badcafe.sock"
        leave_dead_socket(dead)
        others = [self.sockets / name for name in ("78-0badcafe.new", "notes.sock")]
        for other in others:
            leave_dead_socket(other)
        self.assertEqual(self.rows(), [])
        self.assertFalse(dead.exists())
        self.assertTrue(all(other.exists() for other in others))

    def test_what_is_no_socket_is_left_alone(self):
        file = self.sockets / "77-0badcafe.sock"
        file.write_text("")
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        strangers = self.launcher(Job("stranger"), folder=elsewhere)
        (self.sockets / "78-0badcafe.sock").symlink_to(strangers.path)
        self.assertEqual([row[2:4] for row in self.rows()], [["not", "answering"]] * 2)
        self.assertEqual(strangers.requests, [])
        self.assertTrue(file.exists())

    def test_a_folder_that_others_may_use_is_not_looked_into(self):
        strangers = self.launcher(Job("stranger"))
        self.sockets.chmod(0o750)
        done = self.ctl("ps", code=0)
        self.assertEqual(done.stdout.split(), HEAD)
        self.assertIn(f"{self.sockets} is not looked into", done.stderr)
        self.assertIn("chmod 700", done.stderr)
        self.assertEqual(strangers.requests, [])

    def test_a_link_to_a_folder_is_none(self):
        strangers = self.launcher(Job("stranger"))
        link = self.folder / "link"
        link.symlink_to(self.sockets)
        done = self.ctl("ps", code=0, TORCHUP_RUNTIME_DIR=str(link))
        self.assertEqual(done.stdout.split(), HEAD)
        self.assertIn("that is no directory", done.stderr)
        self.assertEqual(strangers.requests, [])

    @unittest.skipIf(os.geteuid() != 0, "giving a folder to another user takes root")
    def test_another_users_folder_is_not_looked_into(self):
        strangers = self.launcher(Job("stranger"))
        os.chown(self.sockets, 12345, -1)
        done = self.ctl("ps", code=0)
        self.assertIn("it belongs to the user of uid 12345", done.stderr)
        self.assertEqual((done.stdout.split(), strangers.requests), (HEAD, []))

    @unittest.skipIf(os.geteuid() != 0, "it is for root")
    def test_root_may_look_at_all_users(self):
        uid = 50000 + os.getpid() % 10000  # nobody's; others may run this test, too
        folder = Path(f"/tmp/torchup-{uid}")
        folder.mkdir(mode=0o700)
        self.addCleanup(folder.rmdir)
        os.chown(folder, uid, -1)
        self.launcher(Job("theirs", 31, more={"/stop": lambda request: response({"accepted": "so be it"}, 202)}), 31, folder)
        self.assertNotIn("theirs", self.ctl("ps", code=0).stdout)
        self.assertIn(["theirs", "31"], [row[:2] for row in self.rows("--all-users")])
        self.ctl("stop", "theirs", code=1)
        self.assertEqual(self.ctl("stop", "theirs", "--all-users", code=0).stdout, "so be it\n")
        os.chown(folder, uid + 1, -1)  # not the one that it is named after
        done = self.ctl("ps", "--all-users", code=0)
        self.assertNotIn("theirs", done.stdout)
        self.assertIn(f"it belongs to the user of uid {uid + 1}", done.stderr)

    def test_a_long_path_is_no_hindrance(self):
        deep = self.folder / ("x" * 120)
        deep.mkdir(mode=0o700)
        os.chdir(deep)  # a socket's own name is short
        self.addCleanup(os.chdir, "/")
        launcher = Launcher(Job("far", 5), ".", 5)
        self.addCleanup(launcher.close)
        done = self.ctl("ps", code=0, TORCHUP_RUNTIME_DIR=str(deep))
        self.assertIn("far", done.stdout)


class Which(Ctl):
    def setUp(self):
        super().setUp()
        for run_id, pid in (("mnist", 11), ("mnist-2", 12), ("gpt", 13)):
            self.launcher(Job(run_id, pid), pid)

    def job_of(self, *words):
        return json.loads(self.ctl("status", *words, "--json", code=0).stdout)["run_id"]

    def test_run_id_pid_or_beginning(self):
        self.assertEqual([self.job_of(word) for word in ("mnist", "mnist-", "12", "g")], ["mnist", "mnist-2", "mnist-2", "gpt"])

    def test_ambiguous_names_are_listed(self):
        done = self.ctl("status", "mn", code=1)
        self.assertEqual(done.stdout, "")
        self.assertIn("mnist (pid 11)", done.stderr)
        self.assertIn("mnist-2 (pid 12)", done.stderr)
        self.assertNotIn("gpt", done.stderr)
        self.assertIn("gpt (pid 13)", self.ctl("status", code=1).stderr)

    def test_jobs_of_one_run_id_that_have_begun_at_two_times_are_two(self):
        accepted = {"/stop": lambda request: response({"accepted": "so be it"}, 202)}
        jobs = [self.launcher(Job("none", pid, more=accepted, max_nodes=2, started=f"2026-11-21T04:00:0{pid % 2}.000000Z"), pid)
                for pid in (20, 21)]
        done = self.ctl("stop", "none", code=1)
        self.assertIn("none (pid 20)", done.stderr)
        self.assertIn("none (pid 21)", done.stderr)
        self.assertEqual(self.ctl("stop", "21", code=0).stdout, "so be it\n")
        self.assertEqual([[request.method for request in job.requests].count("POST") for job in jobs], [0, 1])

    def test_no_such_job(self):
        self.assertIn("there is no job 'other'", self.ctl("status", "other", code=1).stderr)

    def test_one_that_hangs_keeps_nobody_waiting(self):
        self.launcher(lambda request: None, 14)
        begin = time.monotonic()
        self.assertEqual(self.job_of("gpt"), "gpt")
        self.assertLess(time.monotonic() - begin, 2.9)  # less than it takes to give one up
        self.assertIn("the launcher 14 does not answer", self.ctl("status", "14", code=67).stderr)

    def test_one_that_hangs_may_be_meant_by_a_beginning(self):
        self.launcher(lambda request: None, 14)
        done = self.ctl("status", "g", "--json", code=0)
        self.assertEqual(json.loads(done.stdout)["run_id"], "gpt")
        self.assertIn("14-0badcafe.sock", done.stderr)
        accepted = {"/stop": lambda request: response({"accepted": "so be it"}, 202)}
        alone = self.launcher(Job("alone", 15, more=accepted), 15)
        self.assertIn("14-0badcafe.sock", self.ctl("stop", "al", code=1).stderr)
        self.assertEqual([request for request in alone.requests if request.method == "POST"], [])
        for word in ("alone", "15"):
            begin = time.monotonic()
            self.assertEqual(self.ctl("stop", word, code=0).stdout, "so be it\n")
            self.assertLess(time.monotonic() - begin, 2.9)

    def test_one_that_is_slow_may_be_meant_by_a_beginning(self):
        def slow(request):
            time.sleep(1)
            return Job("gpt-2", 14)(request)

        self.launcher(slow, 14)
        done = self.ctl("status", "g", code=1)
        self.assertIn("gpt (pid 13)", done.stderr)
        self.assertIn("gpt-2 (pid 14)", done.stderr)


class Answers(Ctl):
    def test_no_job_at_all(self):
        self.assertIn("no job runs here", self.ctl("status", code=1).stderr)

    def test_nobody_answers(self):
        self.launcher(lambda request: None)
        self.assertIn("does not answer", self.ctl("status", code=67).stderr)

    def test_bad_answers(self):
        good = response({"jobs": [job_row(pid=1)]})
        for name, answer in {"none": b"", "half a head": good[:20], "half a body": good[:-5], "no HTTP": b"SSH-2.0-x\r\n\r\n",
                             "no JSON": response("hello"), "an endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
                             "a lie about its length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
                             "deep JSON": response("[" * 100_000)}.items():
            with self.subTest(name):
                launcher = self.launcher(lambda request: answer)
                done = self.ctl("status", code=67)
                self.assertTrue(done.stderr.startswith("torchupctl: "), done.stderr)
                self.assertIn("not answering", self.ctl("ps", code=0).stdout)
                launcher.close()

    def test_an_answer_without_end_is_given_up(self):
        def endless(request):
            yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            while True:
                yield b"10000\r\n" + b"x" * 65536 + b"\r\n"
        self.launcher(endless)
        self.assertIn("too long", self.ctl("status", code=67).stderr)

    def test_refusals_have_their_codes_and_reasons(self):
        for status, code in ((401, 77), (403, 77), (404, 1), (409, 1), (501, 1), (504, 67)):
            with self.subTest(status):
                job = Job(more={"": lambda request: refusal(status, "because of \x1b[31mthis")})
                launcher = self.launcher(job)
                self.assertEqual(self.ctl("status", code=code).stderr, "torchupctl: because of \\x1b[31mthis\n")
                launcher.close()

    def test_strangers_words_steer_no_terminal(self):
        job = Job("mnist", name="\x1b[2J\x9b31m\nsecond \x7f\u00e9")
        job.snapshot.update(name="\x1b]0;title\x07\x9d\x7f", last="\r\x1b[A", phase="\x1b[31m",
                            nodes={"\x1b[1m": {"host": "\x1bc", "state": "\x07", "ranks": "\x1b[5m"}},
                            incidents=[{"summary": "\x1b[8m"}])
        self.launcher(job)
        for verb in ("ps", "status"):
            out = self.ctl(verb, code=0).stdout
            self.assertEqual([c for c in out if ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0], [], out)
        self.assertIn("\\x1b[2J", self.ctl("ps").stdout)
        for verb in ("ps", "status"):
            out = self.ctl(verb, "--json", code=0).stdout
            self.assertEqual([c for c in out if ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0], [], out)
        self.assertEqual(json.loads(self.ctl("ps", "--json").stdout)["jobs"][0]["name"], "\x1b[2J\x9b31m\nsecond \x7f\u00e9")

    def test_a_run_id_may_be_anything(self):
        run_id = "a/b <\"é'>?#% &"
        self.launcher(Job(run_id))
        self.assertEqual(json.loads(self.ctl("status", run_id, "--json", code=0).stdout)["run_id"], run_id)


class Endpoint(Ctl):
    def daemon(self, token):
        def answer(request):
            if token and request.headers.get("authorization") != f"Bearer {token}":
                return refusal(401, "a token is needed")
            return Job("far", None)(request)
        launcher = Launcher(answer)
        self.addCleanup(launcher.close)
        return launcher

    def test_a_port_is_asked_with_the_token(self):
        token = "0123456789abcdefABCDEF"
        daemon = self.daemon(token)
        file = self.folder / "token"
        file.write_text(token + "\n")
        file.chmod(0o600)
        self.launcher(Job("here"))
        self.assertIn("far", self.ctl("ps", "--endpoint", daemon.endpoint, "--token-file", file, code=0).stdout)
        out = self.ctl("status", code=0, TORCHUP_ENDPOINT=daemon.endpoint, TORCHUP_TOKEN=token).stdout
        self.assertTrue(out.startswith("far  running"), out)
        self.assertTrue(all(request.headers["host"] == daemon.endpoint for request in daemon.requests))
        self.assertIn("a token is needed", self.ctl("ps", "--endpoint", daemon.endpoint, code=77).stderr)

    def test_wrong_words_are_refused(self):
        file = self.folder / "token"
        file.write_text("0123456789abcdefABCDEF")
        file.chmod(0o644)
        for words in (("--endpoint", "a:b:c"), ("--endpoint", "localhost:0"),
                      ("--endpoint", "localhost:1", "--token-file", "none"), ("--endpoint", "localhost:1", "--token-file", file)):
            self.assertEqual(self.ctl("ps", *words, code=2).stdout, "")

    def test_nobody_is_there(self):
        daemon = self.daemon("")
        daemon.close()
        self.assertTrue(self.ctl("ps", "--endpoint", daemon.endpoint, code=67).stderr)


if __name__ == "__main__":
    unittest.main()
