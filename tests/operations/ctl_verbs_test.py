"""torchupctl's verbs against a stand-in for a launcher, which says what a test wants.

usage: ctl_verbs_test.py TORCHUPCTL [unittest options]
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
import unittest

from ctl_case import TORCHUPCTL, Ctl
from fake_launcher import STREAM, Job, chunk, frame, refusal, response, snapshot


def event(seq, name="notice", **fields):
    return {"schema": 1, "time": f"2026-11-21T04:00:{seq % 60:02}.000000Z", "monotonic_us": seq, "host": "node0", "event": name,
            "seq": seq, **fields}


def kept(events, lost=0, page=3):
    """What /events says: a few at a time."""
    def answer(request):
        since = int(request.query.get("since", 0))
        part = [each for each in events if each["seq"] > since][:page]
        return response({"events": part, "next": part[-1]["seq"] if part else since, "lost": lost if since == 0 else 0})
    return answer


def stream(*frames, hold=None):
    def answer(request):
        yield STREAM
        for each in frames:
            yield each
        if hold:
            hold.wait(60)
    return answer


ENDED = {"phase": "ended", "ended": "2026-11-21T05:00:00.000000Z", "verdict": {"exit_code": 7, "reason": "rank 1 failed"}}
# As a job of torchrun's agents has ended: nobody says how.
ENDED_SO = {"phase": "ended", "ended": ENDED["ended"], "verdict": None}


class Status(Ctl):
    def test_a_job_for_people(self):
        self.launcher(Job())
        lines = self.ctl("status", code=0).stdout.splitlines()
        self.assertEqual(lines[0], "mnist  running  train.py  1:12:03")
        self.assertEqual(lines[-1].split(), ["n0", "node0", "seated", "0", "0", "41200", "rh"])

    def terminal(self, *words, **environment):
        """What a terminal gets until the program ends."""
        ours, theirs = pty.openpty()
        done = subprocess.run([TORCHUPCTL, *words], stdin=theirs, stdout=theirs, timeout=60,
                              env={**self.environment, "TERM": "xterm", **environment})
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:
            pass
        os.close(ours)
        return done.returncode, text.decode()

    def test_colours_are_for_terminals_without_no_color(self):
        self.launcher(Job())
        self.assertNotIn("\x1b", self.ctl("status", code=0).stdout)
        self.assertIn("\x1b[1;31mh", self.terminal("status")[1])
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn("\x1b", self.terminal("status", **environment)[1])


class Top(Ctl):
    def test_without_a_terminal_it_is_refused(self):
        self.launcher(Job())
        self.assertIn("needs a terminal", self.ctl("top", code=2).stderr)

    def test_it_shows_changes_and_ends_by_q_with_the_terminal_as_it_was(self):
        changes = threading.Event()

        def live(request):
            yield STREAM
            yield frame("snapshot", snapshot())
            changes.wait(60)
            yield frame("change", {"phase": "gathering", "nodes": {"n0": None, "n9": {"host": "newcomer", "state": "ready"}}})
            time.sleep(60)

        self.launcher(Job(more={"/stream": live}))
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(self.environment, TERM="xterm")
            os.execv(TORCHUPCTL, [TORCHUPCTL, "top"])
        self.addCleanup(os.close, terminal)
        shown = ""

        def see(pattern):
            nonlocal shown
            end = time.monotonic() + 60
            while not re.search(pattern, shown, re.S):
                ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
                self.assertTrue(ready, f"no {pattern} in {shown!r}")
                shown += os.read(terminal, 65536).decode()

        try:
            see(r"\x1b\[\?1049h.*mnist .*running.*n0 +node0")
            changes.set()
            see(r"gathering.*n9 +newcomer")
            os.write(terminal, b"q")
            see(r"\x1b\[\?1049l")
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            flags = termios.tcgetattr(terminal)[3]
            self.assertTrue(flags & termios.ICANON and flags & termios.ECHO)
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            raise


class Events(Ctl):
    def test_what_is_kept(self):
        events = [event(seq, "worker_exited", rank=seq, message="a\x1b[31m b") for seq in range(5, 12)]
        self.launcher(Job(more={"/events": kept(events, lost=4)}))
        done = self.ctl("events", code=0)
        self.assertEqual(done.stdout.splitlines()[0], '2026-11-21T04:00:05.000 node0 worker_exited message="a\\x1b[31m b" rank=5')
        self.assertEqual(len(done.stdout.splitlines()), 7)
        self.assertIn("4 events before this are not kept", done.stderr)
        lines = self.ctl("events", "--json", code=0).stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines], events)

    def test_with_f_nothing_is_lost_or_told_twice_and_it_ends_with_the_job(self):
        old = [event(seq) for seq in range(1, 4)]
        frames = [frame("snapshot", snapshot()), *(frame("event", event(seq), seq) for seq in (2, 3, 4, 5)), chunk(": alive\n\n"),
                  frame("gap", {"lost": 3}), frame("event", event(9, "job_ended", exit_code=7), 9), frame("change", ENDED)]
        hold = threading.Event()
        self.addCleanup(hold.set)
        self.launcher(Job(more={"/events": kept(old), "/stream": stream(*frames, hold=hold)}))
        done = self.ctl("events", "-f", "--json", code=0)
        self.assertEqual([json.loads(line)["seq"] for line in done.stdout.splitlines()], [1, 2, 3, 4, 5, 9])
        self.assertIn("3 events before this are not kept", done.stderr)

    def test_with_f_they_end_with_a_job_that_has_no_verdict(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        frames = [frame("snapshot", snapshot()), frame("event", event(4), 4), frame("change", ENDED_SO)]
        self.launcher(Job(more={"/events": kept([]), "/stream": stream(*frames, hold=hold)}))
        done = self.ctl("events", "-f", "--json", code=0)
        self.assertEqual([json.loads(line)["seq"] for line in done.stdout.splitlines()], [4])

    def test_a_stream_that_breaks_is_begun_again_behind_its_last_event(self):
        asked = []

        def breaking(request):
            asked.append(request.headers.get("last-event-id"))
            if len(asked) == 1:
                return stream(frame("snapshot", snapshot()), frame("event", event(4), 4))(request)
            return stream(frame("event", event(5), 5), frame("change", ENDED))(request)

        self.launcher(Job(more={"/events": kept([]), "/stream": breaking}))
        done = self.ctl("events", "-f", "--json", code=0)
        self.assertEqual([json.loads(line)["seq"] for line in done.stdout.splitlines()], [4, 5])
        self.assertEqual(asked[:2], [None, "4"])

    def test_a_launcher_that_is_gone_without_a_word_is_told(self):
        launcher = None
        listened = threading.Event()  # what is kept is asked for behind the stream: who goes sooner is not followed at all

        def empty(request):
            listened.set()
            return kept([])(request)

        def dying(request):
            yield STREAM
            yield frame("snapshot", snapshot())
            listened.wait(60)
            threading.Thread(target=launcher.close).start()

        launcher = self.launcher(Job(more={"/events": empty, "/stream": dying}))
        self.assertIn("nobody tells of the job any more", self.ctl("events", "-f", code=67).stderr)

    def file(self, *events, rest=""):
        path = self.folder / "events.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in events) + rest)
        return path

    def test_a_file(self):
        path = self.file(event(1), event(2, "job_ended", exit_code=0))
        self.assertEqual(self.ctl("events", path, "--json", code=0).stdout, path.read_text())
        self.assertIn("job_ended exit_code=0", self.ctl("events", path, code=0).stdout)
        self.assertIn("job_ended", self.ctl("events", path, "-f", code=0).stdout)

    def test_json_of_a_file_steers_no_terminal(self):
        wrote = "a\x7f\x9b31m\u00e9"
        path = self.folder / "events.jsonl"
        path.write_text(json.dumps(event(1, message=wrote), ensure_ascii=False).replace(', "', ',\r"') + "\n")
        out = self.ctl("events", path, "--json", text=False, code=0).stdout.decode()
        self.assertEqual([c for c in out if ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0], [], out)
        self.assertEqual(json.loads(out), event(1, message=wrote))

    def test_a_file_of_several_jobs_says_of_which_one_each_line_is(self):
        path = self.file({**event(1), "run_id": "a"}, {**event(2), "run_id": "b"})
        self.assertEqual([line.rpartition(" ")[2] for line in self.ctl("events", path, code=0).stdout.splitlines()],
                         ["run_id=a", "run_id=b"])

    def test_a_file_that_is_cut_is_read_up_to_there(self):
        for rest in ('{"schema": 1, "eve', "no JSON\n" + json.dumps(event(3)) + "\n", '{"a": 1}\n'):
            path = self.file(event(1), event(2), rest=rest)
            done = self.ctl("events", path, code=0)
            self.assertEqual(len(done.stdout.splitlines()), 2)
            self.assertRegex(done.stderr, r"^torchupctl: .*events\.jsonl:3: ")

    def test_a_later_schema_is_refused_with_both_numbers(self):
        done = self.ctl("events", self.file(event(1), {**event(2), "schema": 17}), code=2)
        self.assertIn("its schema is 17, and this torchupctl reads 1 at most", done.stderr)

    def test_a_file_that_grows_is_followed_to_the_jobs_end(self):
        path = self.file(event(1), rest='{"schema": 1,')
        following = self.start("events", path, "-f")
        self.assertIn("04:00:01", following.stdout.readline())
        with path.open("a") as file:
            file.write('"event": "notice"}\n' + json.dumps(event(3, "job_ended")) + "\n")
        self.assertEqual(following.wait(60), 0)
        self.assertEqual(len(following.stdout.read().splitlines()), 2)


class Wait(Ctl):
    def wait_for(self, *frames, hold=None):
        self.launcher(Job(more={"/stream": stream(frame("snapshot", snapshot()), *frames, hold=hold)}))

    def test_it_ends_with_the_jobs_code(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        self.wait_for(frame("change", {"step": None}), frame("change", ENDED),
                      frame("event", event(9, "job_ended", exit_code=7, launcher_exit_code=3), 9), hold=hold)
        self.ctl("wait", code=3)

    def test_a_launcher_that_goes_without_its_own_code_has_told_the_jobs(self):
        launcher = None

        def last_word(request):
            yield STREAM
            yield frame("snapshot", {**snapshot(), **ENDED})
            threading.Thread(target=launcher.close).start()

        launcher = self.launcher(Job(more={"/stream": last_word}))
        self.ctl("wait", code=7)

    def test_a_daemon_has_no_code_of_its_own(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        job = Job(more={"/stream": stream(frame("snapshot", snapshot()), frame("change", ENDED), hold=hold)})
        del job.row["pid"]
        self.launcher(job)
        self.ctl("wait", code=7)

    def test_of_a_job_without_a_verdict_nobody_says_how_it_ended(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        job = Job(more={"/stream": stream(frame("snapshot", snapshot()), frame("change", ENDED_SO), hold=hold)})
        del job.row["pid"]
        self.launcher(job)
        self.assertIn("nobody has said how the job ended", self.ctl("wait", "--timeout", "30", code=67).stderr)

    def test_a_node_says_how_it_ended_where_nobody_else_does(self):
        launcher = None

        def last_word(request):
            yield STREAM
            yield frame("snapshot", snapshot())
            yield frame("event", event(9, "job_ended", exit_code=75), 9)
            threading.Thread(target=launcher.close).start()

        launcher = self.launcher(Job(more={"/stream": last_word}))
        self.ctl("wait", code=75)

    def test_timeout(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        self.wait_for(hold=hold)
        self.ctl("wait", "--timeout", "0.3", code=124)
        self.ctl("wait", "--timeout", "-1", code=2)


class Output(Ctl):
    CONTENT = bytes(range(256)) * 40 + b"\x1b[31mred\xff\xfe"

    def log(self, content, part=1000, **headers):
        def answer(request):
            offset = int(request.query["offset"])
            body = content[offset:offset + part]
            return response(body, kind="application/octet-stream", Torchup_Offset=offset + len(body), **headers)
        return answer

    @staticmethod
    def ended(letters):
        """A job that has a verdict, with its ranks so."""
        node = {"host": "node0", "state": "stopping", "group_rank": 0, "first_rank": 0, "ranks": letters}
        return {**ENDED, "nodes": {"n0": node}}

    def test_logs_are_a_workers_bytes(self):
        launcher = self.launcher(Job(more={"/ranks/3/log": self.log(self.CONTENT)}))
        done = self.ctl("logs", "--rank", "3", "--stream", "stderr", text=False, code=0)
        self.assertEqual(done.stdout, self.CONTENT)
        self.assertEqual(done.stderr, b"")
        asked = [request.query["stream"] for request in launcher.requests if "log" in request.path]
        self.assertEqual(set(asked), {"stderr"})

    def test_what_memory_has_is_said_to_be_that(self):
        self.launcher(Job(more={"/ranks/0/log": self.log(b"last words\n", Torchup_Source="memory")}))
        done = self.ctl("logs", code=0)
        self.assertEqual(done.stdout, "last words\n")
        self.assertIn("memory", done.stderr)

    def test_with_f_they_are_followed_to_the_jobs_end(self):
        content, job = bytearray(b"one\n"), Job()

        def growing(request):
            if "wait_s" in request.query and b"two" not in content:
                content.extend(b"two\n")
                job.snapshot.update(self.ended("dd"))
            return self.log(bytes(content))(request)

        job.more["/ranks/0/log"] = growing
        self.launcher(job)
        self.assertEqual(self.ctl("logs", "-f", code=0).stdout, "one\ntwo\n")

    def test_with_f_what_was_written_before_the_end_was_told_is_not_lost(self):
        content, job = bytearray(b"one\n"), Job()

        def ended(request):
            content.extend(b"last\n")
            return response({**job.snapshot, **self.ended("dd")})

        job.more.update({"": ended, "/ranks/0/log": lambda request: self.log(bytes(content))(request)})
        launcher = self.launcher(job)
        self.assertEqual(self.ctl("logs", "-f", code=0).stdout, "one\nlast\n")
        self.assertNotIn("wait_s", launcher.requests[-1].query)

    def test_with_f_the_last_words_of_a_workers_grace_are_awaited(self):
        content, job, told = bytearray(b"one\n"), Job(), []

        def state(request):
            told.append(job.snapshot)
            return response(job.snapshot)

        def log(request):
            if told and "wait_s" in request.query:
                content.extend(b"last words\n")
                job.snapshot.update(self.ended("td"))
                told.clear()
            return self.log(bytes(content))(request)

        job.snapshot.update(self.ended("rd"))
        job.more.update({"": state, "/ranks/0/log": log})
        self.launcher(job)
        self.assertEqual(self.ctl("logs", "-f", code=0).stdout, "one\nlast words\n")

    def test_with_f_a_log_that_cannot_be_had_is_asked_for_again_while_the_job_goes_on(self):
        content, job, asked = bytearray(b"one\n"), Job(), []

        def log(request):
            asked.append(request)
            if len(asked) in (2, 3, 4):
                return refusal((504, 503, 404)[len(asked) - 2], "not now")
            if len(asked) == 5:
                content.extend(b"two\n")
                job.snapshot.update(self.ended("dd"))
            return self.log(bytes(content))(request)

        job.more["/ranks/0/log"] = log
        self.launcher(job)
        self.assertEqual(self.ctl("logs", "-f", code=0).stdout, "one\ntwo\n")

    def test_with_f_a_log_that_cannot_be_had_when_the_job_has_ended_has_been_told(self):
        job, asked = Job(), []

        def log(request):
            asked.append(request)
            if len(asked) == 1:
                return self.log(b"one\n")(request)
            job.snapshot.update(self.ended("rr"))
            return refusal(404, "no rank 0 here")

        job.more["/ranks/0/log"] = log
        self.launcher(job)
        self.assertEqual(self.ctl("logs", "-f", code=0).stdout, "one\n")

    def test_with_f_nobodys_answer_is_no_end(self):
        job, asked = Job(), []

        def log(request):
            asked.append(request)
            return self.log(b"one\n")(request) if len(asked) == 1 else refusal(504, "the node does not answer")

        job.more.update({"/ranks/0/log": log, "": lambda request: refusal(504, "nor does the job")})
        self.launcher(job)
        done = self.ctl("logs", "-f", code=67)
        self.assertEqual((done.stdout, done.stderr), ("one\n", "torchupctl: the node does not answer\n"))

    def test_with_f_a_rank_is_followed_to_its_other_node(self):
        contents, job = [b"one as long\n", b"a long line\n"], Job()

        def log(request):
            if "wait_s" in request.query and len(contents) > 1:
                contents.pop()
                job.snapshot.update(self.ended("dd"))
            number = str(len(contents))
            if request.query.get("log", number) != number:
                return response(b"", kind="application/octet-stream", Torchup_Offset=0, Torchup_Log=number)
            return self.log(contents[-1], Torchup_Log=number)(request)

        job.more["/ranks/0/log"] = log
        self.launcher(job)
        done = self.ctl("logs", "-f", code=0)
        self.assertEqual(done.stdout, "a long line\none as long\n")
        self.assertEqual(done.stderr, "torchupctl: rank 0 is on another node now: its log there, from its beginning\n")

    def test_with_f_a_rank_that_comes_back_is_followed_from_where_its_log_was_left(self):
        contents, job, at = {1: b"one\n", 2: b"there\n"}, Job(), [1]

        def log(request):
            if "wait_s" in request.query and at == [1]:
                at.append(2)
            elif request.query["offset"] != "0" and at == [1, 2] and request.query["log"] == "2":
                at.append(1)
                contents[1] += b"two\n"
                job.snapshot.update(self.ended("dd"))
            here = at[-1]
            if int(request.query.get("log", here)) != here:
                return response(b"", kind="application/octet-stream", Torchup_Offset=0, Torchup_Log=here)
            return self.log(contents[here], Torchup_Log=here)(request)

        job.more["/ranks/0/log"] = log
        self.launcher(job)
        done = self.ctl("logs", "-f", code=0)
        self.assertEqual(done.stdout, "one\nthere\ntwo\n")
        self.assertIn("from where it was left", done.stderr)

    def test_with_f_a_log_that_was_cut_goes_on_from_its_end(self):
        content, job, cut = bytearray(b"one\ntwo\n"), Job(), []

        def log(request):
            if "wait_s" in request.query and not cut:
                cut.append(True)
                del content[4:]
            elif "wait_s" in request.query and len(content) == 4:
                content.extend(b"new\n")
                job.snapshot.update(self.ended("dd"))
            if int(request.query["offset"]) > len(content):
                return response(b"", kind="application/octet-stream", Torchup_Offset=len(content), Torchup_Log=1)
            return self.log(bytes(content), Torchup_Log=1)(request)

        job.more["/ranks/0/log"] = log
        self.launcher(job)
        done = self.ctl("logs", "-f", code=0)
        self.assertEqual(done.stdout, "one\ntwo\nnew\n")
        self.assertEqual(done.stderr, "torchupctl: the log of rank 0 is shorter than it was: what comes from here on\n")

    def test_with_f_a_launcher_that_goes_has_said_all(self):
        launcher = None

        def last(request):
            if int(request.query["offset"]) == 0:
                yield self.log(b"one\n")(request)
            else:
                launcher.close()
                yield b""

        launcher = self.launcher(Job(more={"/ranks/0/log": last}))
        self.assertEqual(self.ctl("logs", "-f", code=0).stdout, "one\n")

    def test_no_such_rank(self):
        self.launcher(Job())
        self.ctl("logs", "--rank", "99", code=1)
        self.ctl("logs", "--rank", "-1", code=2)

    def test_stacks_are_text(self):
        stacks = response("rank 0: running\n  \x1b[31mred", kind="text/plain")
        launcher = self.launcher(Job(more={"/stacks": lambda request: stacks}))
        self.assertEqual(self.ctl("stacks", "--rank", "0", "--native", code=0).stdout, "rank 0: running\n  \\x1b[31mred\n")
        self.assertEqual(launcher.requests[-1].query, {"rank": "0", "native": "1"})


class Orders(Ctl):
    def setUp(self):
        super().setUp()
        accept = lambda request: response({"accepted": "accepted \x07"}, 202)
        paths = ("/stop", "/restart", "/resize", "/nodes/n0/drain", "/nodes/n/1/undrain")
        job = Job("a/b", more={path: accept for path in paths})
        job.snapshot["nodes"]["n/1"] = {"host": "node1", "state": "drained", "group_rank": None}
        job.snapshot["nodes"]["n2"] = {"host": "twice"}
        job.snapshot["nodes"]["n3"] = {"host": "twice"}
        self.job = self.launcher(job)

    def order(self, *words):
        self.assertEqual(self.ctl(*words, code=0).stdout, "accepted \\x07\n")
        request = self.job.requests[-1]
        self.assertEqual((request.method, request.headers["content-type"]), ("POST", "application/json"))
        return request.target.removeprefix("/v1/jobs/a%2Fb/"), json.loads(request.body)

    def test_each_is_its_route(self):
        self.assertEqual(self.order("stop"), ("stop", {"save": False, "now": False}))
        self.assertEqual(self.order("stop", "a/", "--save"), ("stop", {"save": True, "now": False}))
        self.assertEqual(self.order("stop", "--now"), ("stop", {"save": False, "now": True}))
        self.assertEqual(self.order("restart"), ("restart", {}))
        self.assertEqual(self.order("resize", "--nodes", "2:4"), ("resize", {"min": 2, "max": 4}))
        self.assertEqual(self.order("resize", "--nodes=3"), ("resize", {"min": 3, "max": 3}))

    def test_a_node_is_named_by_id_group_rank_or_host(self):
        for node in ("n0", "0", "node0"):
            self.assertEqual(self.order("drain", "--node", node), ("nodes/n0/drain", {}))
        self.assertEqual(self.order("undrain", "--node", "node1"), ("nodes/n%2F1/undrain", {}))

    def test_wrong_ones_are_not_given(self):
        for code, *words in ((2, "resize"), (2, "resize", "--nodes", "4:2"), (2, "resize", "--nodes", "0"),
                             (2, "resize", "--nodes", "x"), (2, "drain"), (1, "drain", "--node", "none"),
                             (1, "drain", "--node", "twice"), (2, "stop", "--save", "--now")):
            with self.subTest(words):
                self.assertTrue(self.ctl(*words, code=code).stderr)
        self.assertEqual([request for request in self.job.requests if request.method == "POST"], [])

    def test_the_page(self):
        url = "http://127.0.0.1:1234/jobs/a%2Fb#token=x"
        self.job.close()
        self.launcher(Job("a/b", more={"/v1/node/page": lambda request: response({"url": url})}))
        self.assertEqual(self.ctl("page", code=0).stdout, url + "\n")

    def test_a_daemons_page_is_that_of_the_job(self):
        self.job.close()
        door = "http://127.0.0.1:1234/"
        self.launcher(Job("a/b", more={"/v1/node/page": lambda request: response({"url": door + "#token=x"})}))
        self.assertEqual(self.ctl("page", code=0).stdout, door + "jobs/a%2Fb#token=x\n")
        self.assertEqual(json.loads(self.ctl("page", "--json", code=0).stdout), {"url": door + "jobs/a%2Fb#token=x"})

    def test_a_launchers_page_is_that_of_the_job_too(self):
        self.job.close()
        url = "http://[::1]:1234/jobs/its%2Fown#token=x"
        self.launcher(Job("a/b", more={"/v1/node/page": lambda request: response({"url": url})}))
        self.assertEqual(self.ctl("page", code=0).stdout, "http://[::1]:1234/jobs/a%2Fb#token=x\n")


if __name__ == "__main__":
    unittest.main()
