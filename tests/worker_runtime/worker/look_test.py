#!/usr/bin/env python3
"""A C++ worker that leaves out a collective, under the real launcher: who asks is told which one, and who waits.

usage: tests/support/run_case.py look_test.py CASE TORCHUP TOY_WORKER
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

torchup, toy = sys.argv[1:3]
HOST = socket.gethostname()


class Skipped(unittest.TestCase):
    def hang(self, *program, options=()):
        """The hang of a job that is ended for it, and the page."""
        with tempfile.TemporaryDirectory() as folder:
            events = pathlib.Path(folder, "events")
            job = subprocess.run([torchup, "--nproc-per-node=2", "--hang-timeout=2,60", "--on-hang=abort",
                                  f"--events={events}", *options, toy, *program],
                                 env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=150)
            self.assertEqual(job.returncode, 1, job.stderr)
            told = [event for event in map(json.loads, events.read_text().splitlines()) if event["event"] == "hang_found"]
            self.assertEqual(len(told), 1, job.stderr)
            return told[0], job.stderr

    def assert_stuck(self, found, rank, **collective):
        self.assertEqual((found["kind"], found["culprits"]), ("stuck", [rank]), found)
        self.assertEqual({name: found["collective"][name] for name in collective}, collective, found)

    def test_one_of_the_jobs_group(self):
        found, page = self.hang("skip", "1")
        self.assert_stuck(found, 1, operation="all_reduce", missing="1", waiting="0", dtype="float32", group="default_pg")
        number = found["collective"]["number"]
        self.assertIn(f"rank 1 on {HOST} is stuck; rank 0 waits for it: all_reduce #{number} "
                      "(default_pg, 4.0 KiB float32)", page)
        self.assertIn("hang_here", page)  # its native stack

    def test_one_of_another_group(self):
        found, _ = self.hang("skip", "0", "other")
        self.assert_stuck(found, 0, operation="broadcast", missing="0", waiting="1", group="1")

    def test_inside_of_elastic_run(self):
        """What the round before has recorded under the group's name is not taken for this one's."""
        found, page = self.hang("skip-in-elastic-run", options=["--max-restarts=1"])
        self.assertIn("1 of 2 processes kept", page)
        self.assert_stuck(found, 0, operation="all_reduce", missing="0", waiting="1", group="default_pg")
        self.assertLess(found["collective"]["number"], 60, found)


if __name__ == "__main__":
    sys.exit(__doc__)
