#!/usr/bin/env python3
"""A user's short program: one rank gets the signal to stop, all save and ask to be started again, and the next run goes on.

usage: short_program_test.py SHORT_PROGRAM
"""

import os
import signal
import sys
import tempfile

from ranks import Checks, Job, contract, free_port

check = Checks()
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)

    def start(epochs):
        port = free_port()
        job = Job()
        for rank in range(2):
            job.start([sys.argv[1], str(epochs)], contract(rank, 2, port))
        return job

    job = start(10**6)
    for process in job.processes:
        assert process.stdout.readline() == "begins at step 0\n", job.finish()
    job.processes[1].send_signal(signal.SIGUSR1)
    results = job.finish()
    check.that([code for code, _, _ in results] == [75, 75], "a signal to one rank stops all, which have saved", results)
    (saved,) = os.listdir("ckpt")
    check.that(not saved.endswith("000000"), f"{saved} is there")
    results = start(1).finish()
    check.that(all(code == 0 and out == f"begins at step {int(saved[5:])}\n" for code, out, _ in results), "the next run goes on there", results)
sys.exit(check.code())
