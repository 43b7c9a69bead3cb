"""torchupd --events: what happens to all jobs, in one file.

usage: events_file_test.py TORCHUPD TORCHUP [name of a test ...]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from torchupd import Torchupd
from waiting import until

try:
    import jsonschema
except ImportError:
    jsonschema = None

TORCHUPD, TORCHUP = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
LIMIT_S = 60


class EventsFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.file = self.folder / "events"
        self.environment = {**os.environ, "TORCHUP_RUNTIME_DIR": folder.name}

    def daemon(self, file):
        log = open(self.folder / "log", "a")
        self.addCleanup(log.close)
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", f"--events={file}", stderr=log, env=self.environment)
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.end(LIMIT_S))
        return daemon

    def job(self, daemon, run_id, script="true", code=0):
        agents = [subprocess.Popen([TORCHUP, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={daemon.endpoint}",
                                    f"--rdzv-id={run_id}", "sh", "-c", script], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=self.environment) for _ in range(2)]
        self.assertEqual([agent.wait(LIMIT_S) for agent in agents], [code] * 2)

    def lines(self, run_id=None):
        events = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [event for event in events if run_id in (None, event["run_id"])]

    def shown(self, daemon, run_id):
        """As readers of the daemon get them."""
        url = f"http://{daemon.endpoint}/v1/jobs/{urllib.parse.quote(run_id, safe='')}/events"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())["events"]

    def test_each_event_of_each_job_is_a_line_as_readers_see_it(self):
        daemon = self.daemon(self.file)
        for run_id in "a/1", 'b "2"':
            self.job(daemon, run_id)
        for run_id in "a/1", 'b "2"':
            shown = until(lambda: self.shown(daemon, run_id), "events are shown")
            self.assertGreaterEqual({event["event"] for event in shown}, {"node_joined", "round_formed"})
            until(lambda: len(self.lines(run_id)) >= len(shown), "all are written")
            self.assertEqual(self.lines(run_id)[:len(shown)], [{"run_id": run_id, **event} for event in shown])
            first = shown[0]["seq"]
            self.assertEqual([event["seq"] for event in shown], list(range(first, first + len(shown))))

    @unittest.skipIf(jsonschema is None, "Python's jsonschema is not installed")
    def test_each_line_is_as_the_schema_has_it(self):
        daemon = self.daemon(self.file)
        self.job(daemon, "failing", "exit 3", 1)
        daemon.end(LIMIT_S)
        validator = jsonschema.Draft202012Validator(json.loads((Path(__file__).parents[2] / "launcher/core/event_schema.json").read_text()))
        self.assertTrue(self.lines("failing"))
        for event in self.lines():
            validator.validate(event)

    def test_the_next_daemon_goes_on_behind_them(self):
        self.file.write_text("what was there\n")
        for run_id in "first", "second":
            daemon = self.daemon(self.file)
            self.job(daemon, run_id)
            daemon.end(LIMIT_S)
        first, *others = self.file.read_text().splitlines()
        self.assertEqual(first, "what was there")
        self.assertEqual(list(dict.fromkeys(json.loads(line)["run_id"] for line in others)), ["first", "second"])

    def test_a_file_that_cannot_be_opened_is_refused_before_the_start(self):
        for file in self.folder / "none" / "events", self.folder:
            done = subprocess.run([TORCHUPD, "--port=0", f"--events={file}"], capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(str(file), done.stderr)

    def test_a_full_disk_is_one_warning_and_the_jobs_go_on(self):
        daemon = self.daemon("/dev/full")
        self.job(daemon, "first")
        log = self.folder / "log"
        until(lambda: "No space left" in log.read_text(), "a warning")
        self.job(daemon, "second", "exit 3", 1)
        self.assertEqual(daemon.end(LIMIT_S), 0)
        self.assertEqual(log.read_text().count("/dev/full: No space left on device"), 1, log.read_text())
        self.assertRegex(log.read_text(), r"--events: /dev/full: [0-9]+ events are lost")


if __name__ == "__main__":
    unittest.main()
