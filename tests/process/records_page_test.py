"""launcher/RECORDS.md tells what the records hold: each event that jobs of many kinds write, field by field, and the result.

usage: tests/support/run_case.py records_page_test.py CASE TORCHUP
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from waiting import until

TORCHUP = sys.argv[1]
LAUNCHER = pathlib.Path(__file__).parents[2] / "launcher"
PAGE = (LAUNCHER / "RECORDS.md").read_text()
SOURCE = (LAUNCHER / "core/record/launch_event.cpp").read_text()
EVERY_LINE = {"schema", "time", "monotonic_us", "host", "event"}
WORKER = {"rank", "local_rank", "pid"}


def without_remarks(text):
    """What stands in parentheses is left out, also in those in others."""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def documented():
    """Event → the fields that it has, and those that it may have."""
    events = {}
    for names, fields in re.findall(r"^\| (`[a-z_`, ]+) \| [^|]* \| ([^|]+) \|$", PAGE, re.MULTILINE):
        fields = without_remarks(fields)
        always = set(re.findall(r"`(\w+)`(?!\?)", fields)) | (WORKER if "*worker*" in fields else set())
        for name in re.findall(r"`(\w+)`", names):
            events[name] = always, set(re.findall(r"`(\w+)`\?", fields))
    return events


def written():
    """The same, as the source writes them."""
    events = {}
    for body, name in re.findall(r"operator\(\)\(const event::\w+& e\) const \{\n(.*?)    return \"(\w+)\";\n  \}", SOURCE, re.DOTALL):
        always, sometimes = set(EVERY_LINE), set()
        for line in body.splitlines():
            found = re.findall(r"out\[\"(\w+)\"\]", line)
            (sometimes if line.lstrip().startswith("if (") else always).update(found)
        if "add_worker(" in body:
            always |= WORKER
        if "add_steps(" in body:
            sometimes |= {"last_step", "beats", "first_step", "first_step_us", "last_step_us", "waited_us"}
        if "add_ranks(" in body:
            always |= {"ranks", "times"}
        if "add_late(" in body:
            always |= {"rank", "host"}
        events[name] = always, sometimes
    return events


def section(title):
    """What stands below a heading."""
    return PAGE.partition(f"## {title}")[2].partition("\n## ")[0]


def shell(text):
    """A worker that is a shell script; `$` is for the shell, not for torchup's substitution."""
    return ["sh", "-c", text.replace("$$", "$$$$")]


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_job(self, script, *options, then=None):
        """The job's events and its result. `then`: a signal, when the launcher knows that its worker runs."""
        events, result = self.folder / "events", self.folder / "result"
        job = subprocess.Popen([TORCHUP, f"--events={events}", f"--result-file={result}", *options, *shell(script)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self.folder)
        with job.stdout:
            if then:
                self.assertEqual(job.stdout.readline(), "ready\n")
                until(lambda: '"worker_started"' in events.read_text(), "its start is known")
                job.send_signal(then)
            job.communicate(timeout=100)
        return [json.loads(line) for line in events.read_text().splitlines()], json.loads(result.read_text())

    def check(self, events, *expected):
        known = documented()
        for event in events:
            self.assertIn(event["event"], known)
            always, sometimes = known[event["event"]]
            self.assertLessEqual(EVERY_LINE | always, set(event), event)
            self.assertLessEqual(set(event), EVERY_LINE | always | sometimes, event)
        self.assertLessEqual(set(expected), {event["event"] for event in events})

    def test_each_event_that_the_source_has(self):
        told, real = documented(), written()
        self.assertGreater(len(real), 40)
        self.assertEqual(set(told), set(real))
        for name, (always, sometimes) in real.items():
            self.assertEqual((told[name][0] | EVERY_LINE, told[name][1]), (always, sometimes), name)

    def test_a_job_that_fails_and_restarts(self):
        events, result = self.run_job('test "$RANK" = 0 && exit 3; sleep 30', "--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs")
        self.check(events, "job_started", "round_completed", "attempt_started", "worker_started", "worker_exited", "stopping",
                   "closing_signal_sent", "attempt_ended", "restarting", "incident_recorded", "job_ended")
        self.assertEqual(set(events[-1]["failures"][0]),
                         {"rank", "local_rank", "exit_code", "pid", "host", "time", "message", "error_file", "consequence"})
        told = set(re.findall(r"`(\w+)`", section("Result")))
        for part in result, result["phases_s"], result["attempts"][0], result["attempts"][0]["workers"][0]:
            self.assertLessEqual(set(part) - {"schema"}, told)
        paths = sorted(str(path.relative_to(self.folder)) for path in self.folder.glob("logs/*/attempt_*/incident.json"))
        self.assertEqual((len(paths), result["incidents"]), (2, paths))

    def test_an_incident(self):
        # Of the others, those are told of whose start the launcher knows: as its events say.
        _, result = self.run_job('test "$RANK" = 1 && exec sleep 30; '
                                 'until grep -q \'"worker_started".*"rank":1\' events; do sleep 0.02; done; exit 3',
                                 "--nproc-per-node=2", "--log-dir=logs")
        incident = json.loads((self.folder / result["incidents"][0]).read_text())
        page = section("Incident")
        told = set(re.findall(r"`(\w+)`(?!\?)", page)) - {"job_ended"}
        parts = [incident, incident["evidence"], *(incident[name][0] for name in ("failures", "others", "attempts"))]
        self.assertLessEqual(told, set().union(*parts))
        failure = set(re.search(r"`failures` \(each ([^)]*)\)", PAGE)[1].replace("`", "").split(", "))
        self.assertLessEqual(set().union(*parts) - failure - {"schema"}, told)

    def test_a_job_that_is_interrupted(self):
        events, _ = self.run_job("trap '' INT TERM; echo ready; while :; do sleep 0.1; done", "--shutdown-timeout=1", then=signal.SIGINT)
        self.check(events, "signal_received", "worker_killed")

    def test_a_job_that_is_asked_where_it_is(self):
        events, _ = self.run_job("echo ready; sleep 30", then=signal.SIGQUIT)
        self.check(events, "worker_seen", "ranks_shown")

    def test_a_job_that_hangs(self):
        events, result = self.run_job("kill -STOP $$", "--hang-timeout=1,1", "--on-hang=abort", "--log-dir=logs")
        self.check(events, "hang_found", "worker_hung", "job_ended")
        path, = self.folder.glob("logs/*/attempt_0/hang_0.json")
        hang = json.loads(path.read_text())
        told = set(re.findall(r"`(\w+)`", section("Hang")))
        self.assertLessEqual((set(hang) | set(hang["ranks"][0])) - {"schema"}, told)
        self.assertEqual((hang["kind"], hang["culprits"], result["exit_code"]), ("stopped", [0], 1))
        self.assertTrue(path.with_suffix(".txt").read_text().startswith(hang["summary"]))

    def test_a_job_that_saves_its_state(self):
        events, _ = self.run_job("exit 75")
        self.check(events, "state_saved")

    def test_a_job_with_an_error_file_that_is_none(self):
        events, _ = self.run_job("echo x > $TORCHELASTIC_ERROR_FILE; exit 1", "--log-dir=logs")
        self.check(events, "error_file_refused")
