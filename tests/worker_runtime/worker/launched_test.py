#!/usr/bin/env python3
"""Workers of the runtime under our launcher: drain, hang, last step.

usage: tests/support/run_case.py launched_test.py CASE TORCHUP TOY_WORKER
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

torchup, toy = sys.argv[1:3]


class UnderTheLauncher(unittest.TestCase):
    def start(self, *arguments):
        job = subprocess.Popen([torchup, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def drain(self, asked):
        """The launcher is asked to drain: all ranks stop after the same step, it ends with 75, and no failure is reported."""
        job = self.start("--nproc-per-node=3", "--drain-signals=TERM", "--max-restarts=3", toy, "steps", "1")
        for _ in range(3):
            self.assertIn("begun", job.stdout.readline())
        job.send_signal(asked)
        stdout, stderr = job.communicate(timeout=100)
        self.assertEqual(job.returncode, 75, stderr)
        stops = [line for line in stdout.split("\n") if line.startswith("stop ")]
        self.assertEqual((len(stops), len(set(stops))), (3, 1), stdout)
        self.assertIn("asks to be started again", stderr)
        self.assertNotIn("failed", stderr)

    def failing(self, program, *options):
        with tempfile.TemporaryDirectory() as folder:
            logs, events = pathlib.Path(folder, "logs"), pathlib.Path(folder, "events.jsonl")
            job = self.start("--nproc-per-node=3", f"--log-dir={logs}", f"--events={events}", *options, toy, *program)
            _, stderr = job.communicate(timeout=150)
            self.assertEqual(job.returncode, 1, stderr)
            (path,) = logs.glob("**/incident.json")
            lines = map(json.loads, events.read_text().splitlines())
            return stderr, json.loads(path.read_text()), [line for line in lines if line["event"] == "worker_exited"]

    def test_drain_by_the_signal_for_it(self):
        self.drain(signal.SIGTERM)

    def test_drain_by_a_signal_that_is_forwarded(self):
        self.drain(signal.SIGUSR1)

    def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it(self):
        """It shows where it hangs, and is ended."""
        begun = time.monotonic()
        stderr, incident, _ = self.failing(["hang"], "--heartbeat-timeout=10")
        self.assertLess(time.monotonic() - begun, 100)
        self.assertRegex(stderr, r"No progress for \d+ s, last step 5: rank 1 on \S+ is")
        failure = incident["failures"][0]
        self.assertEqual((failure["rank"], failure["exit_code"]), (1, -signal.SIGABRT), incident)
        self.assertEqual(incident["last_step"], 5, incident)
        self.assertTrue(any("hang_here" in line for line in incident["evidence"]["native_backtrace"]), incident["evidence"])
        others = {other["rank"]: other["progress"] for other in incident["others"]}
        self.assertEqual(set(others), {0, 2}, others)
        for text in others.values():
            self.assertIn("step 5 ended", text)
            self.assertIn("waiting for other ranks", text)
        self.assertIn("hang_here", stderr)
        self.assertIn("step 5 ended", stderr)

    def test_the_last_step_of_a_rank_that_was_killed_stands_in_the_records(self):
        """Although it could say nothing."""
        _, incident, ended = self.failing(["five-steps", "segv"])
        self.assertEqual((incident["last_step"], incident["failures"][0]["exit_code"]), (5, -signal.SIGSEGV), incident)
        self.assertTrue(any("fail_here" in line for line in incident["evidence"]["native_backtrace"]), incident["evidence"])
        self.assertEqual([event["last_step"] for event in ended if event["rank"] == 1], [5], ended)


if __name__ == "__main__":
    sys.exit(__doc__)
