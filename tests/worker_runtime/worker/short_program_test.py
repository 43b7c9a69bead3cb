#!/usr/bin/env python3
"""A user's short program: one rank gets the signal to stop, all save and ask to be started again, and the next run goes on.

usage: tests/support/run_case.py short_program_test.py CASE SHORT_PROGRAM
"""

import os
import signal
import sys
import tempfile
import unittest

from ranks import Job, contract, free_port

program = os.path.abspath(sys.argv[1])


def start(epochs):
    port = free_port()
    job = Job()
    for rank in range(2):
        job.start([program, str(epochs)], contract(rank, 2, port))
    return job


class ShortProgram(unittest.TestCase):
    def test_a_signal_to_one_rank_stops_all_and_the_next_run_goes_on(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chdir(folder.name)
        self.addCleanup(os.chdir, "/")
        with start(10**6) as job:
            for process in job.processes:
                self.assertEqual(process.stdout.readline(), "begins at step 0\n")
            job.processes[1].send_signal(signal.SIGUSR1)
            results = job.finish()
        self.assertEqual([code for code, _, _ in results], [75, 75], results)
        (saved,) = [name for name in os.listdir("ckpt") if name.startswith("step-")]
        self.assertGreater(int(saved[5:]), 0)
        results = start(1).finish()
        self.assertEqual([(code, out) for code, out, _ in results], [(0, f"begins at step {int(saved[5:])}\n")] * 2, results)


if __name__ == "__main__":
    sys.exit(__doc__)
