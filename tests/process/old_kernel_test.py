"""A kernel that knows no pidfds, clone3 and close_range: Linux 4.18, as in RHEL 8. Nothing is otherwise; older ones are refused.

usage: old_kernel_test.py TORCHUP_OF_OLD_KERNEL FAKE_WORKER TORCHUP NO_CLONE_PIDFD OTHER_RELEASE [name of a test ...]

The cases of launcher_test.py, launcher_signals_test.py and launcher_leftovers_test.py run with such a kernel too.
"""

import json
import os
import subprocess
import sys
import unittest
import unittest.mock

import launcher_job
from launcher_job import TORCHUP, WORKER, Job, children

PRESENT, NO_CLONE_PIDFD, OTHER_RELEASE = (sys.argv.pop(1) for _ in range(3))


def threads(job):
    """Of the inner of the launcher's two processes."""
    inner, = children(job.pid)
    return len(os.listdir(f"/proc/{inner}/task"))


class OldKernel(Job, unittest.TestCase):
    def test_a_thread_waits_for_each_worker_and_goes_with_it(self):
        counts = []
        for program in PRESENT, TORCHUP:
            with unittest.mock.patch.object(launcher_job, "TORCHUP", program):
                events = os.path.join(self.scratch.name, f"events{len(counts)}")
                job = self.start(f"--nproc-per-node=3 --events={events}", "note {notes} wait")
            self.workers(3)
            self.started(events, 3)
            counts.append(threads(job))
            job.terminate()
            self.end(job, 143)
            os.unlink(self.notes)
        self.assertEqual(counts[1], counts[0] + 3)

    def test_restarts_without_the_flag_of_clone(self):
        environment = {**os.environ, "LD_PRELOAD": NO_CLONE_PIDFD, "OMP_NUM_THREADS": "1", "TMPDIR": self.scratch.name}
        result = os.path.join(self.scratch.name, "result")
        done = subprocess.run([PRESENT, "--max-restarts=3", f"--result-file={result}", WORKER, "note", self.notes, "exit", "9"],
                              env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(len(self.workers(4)), 4)
        with open(result) as file:
            self.assertEqual(json.load(file)["exit_code"], 1)
        self.nothing_left()

    def test_helpers_answer(self):
        done = subprocess.run([TORCHUP, "--health-check", "echo fit; exit 0", "--nproc-per-node=1", WORKER, "exit", "0"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([TORCHUP, "--health-check", "echo so tired; exit 3", "--nproc-per-node=1", WORKER, "exit", "0"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("so tired", done.stderr)

    def test_commands_of_events_run(self):
        told = os.path.join(self.scratch.name, "told")
        done = subprocess.run([TORCHUP, "--on-event", f'echo "$TORCHUP_EVENT" >>{told}', "--on-event-kinds=job_ended", WORKER,
                               "exit", "0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(told) as file:
            self.assertEqual(file.read(), "job_ended\n")

    def test_older_kernels_are_refused(self):
        for release, code in (("4.17.19-generic", 65), ("4.9.0", 65), ("3.10.0-1160.el7.x86_64", 65), ("4.18.0-553.el8.x86_64", 0),
                              ("5.4.0", 0), ("10.1", 0), ("unknown", 0)):
            with self.subTest(release=release):
                environment = {**os.environ, "LD_PRELOAD": OTHER_RELEASE, "KERNEL_RELEASE": release}
                done = subprocess.run([PRESENT, WORKER, "exit", "0"], env=environment, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, code, done.stderr)
                if code:
                    version = ".".join(release.split(".")[:2])
                    self.assertEqual(done.stderr, f"torchup: Linux {version} is too old: torchup needs 4.18\n")


if __name__ == "__main__":
    unittest.main()
