"""Options of the launcher end to end: each is given, and what it promises is looked for in a real job.

usage: options_test.py TORCHUP FAKE_NVML_LIBRARY [unittest options]
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TORCHUP = os.path.abspath(sys.argv.pop(1))
FAKE_NVML = os.path.abspath(sys.argv.pop(1))


def until(condition, what, limit_s=20):
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.005)
    return value


class Options(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_job(self, *words, **environment):
        return subprocess.run([TORCHUP, *words], capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **environment})

    def lines(self, *words, **environment):
        done = self.run_job(*words, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(done.stdout.splitlines())

    def with_gpus(self, *words):
        """The same on a machine whose driver shows two GPUs."""
        (self.folder / "libnvidia-ml.so.1").symlink_to(FAKE_NVML)
        inside = ("mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && touch /proc/driver/nvidia/version && "
                  f"LD_LIBRARY_PATH={shlex.quote(str(self.folder))} exec {shlex.join([TORCHUP, *words])}")
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("a mount of our own takes root")
        return subprocess.run(["unshare", "--mount", "sh", "-c", inside], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "FAKE_NVML": "whole"}, cwd=self.folder)

    def test_restart_window(self):
        third = "sleep 0.3; test $TORCHELASTIC_RESTART_COUNT -ge 3"
        self.assertEqual(self.run_job("--max-restarts=1", "--restart-window=0.2", "sh", "-c", third).returncode, 0)
        self.assertEqual(self.run_job("--max-restarts=1", "--restart-window=60", "sh", "-c", third).returncode, 1)

    def test_forward_signals(self):
        for options, number in (((), signal.SIGUSR1), (("--forward-signals=ALRM",), signal.SIGALRM)):
            with self.subTest(options=options):
                ready, got = self.folder / f"ready{number}", self.folder / f"got{number}"
                job = subprocess.Popen([TORCHUP, *options, "sh", "-c",
                                        f"trap 'touch {got}; exit 0' {number.name[3:]}; touch {ready}; "
                                        "while :; do sleep 0.02; done"], stderr=subprocess.DEVNULL)
                self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))
                until(ready.exists, "the worker waits for its signal")
                job.send_signal(number)
                self.assertEqual(job.wait(20), 0)
                self.assertTrue(got.exists())

    def test_log_max_bytes(self):
        done = self.run_job("--log-dir=logs", "--redirects=1", "--log-max-bytes=100000", "sh", "-c",
                            "seq -w 1 30000; echo the end")
        self.assertEqual(done.returncode, 0, done.stderr)
        new, = self.folder.glob("logs/*/attempt_0/0/stdout.log")
        old = new.with_name("stdout.log.1")
        self.assertTrue(max(new.stat().st_size, old.stat().st_size) <= 100_000)
        kept = (old.read_text() + new.read_text()).splitlines()
        self.assertEqual(kept[-1], "the end")
        # What is kept is the end of the output without a gap, in whole lines.
        numbers = [int(line) for line in kept[:-1]]
        self.assertEqual(numbers, list(range(numbers[0], 30001)))

    def test_no_capture(self):
        words = ("sh", "-c", "readlink /proc/self/fd/1")
        for options, ours in ((("--no-capture",), True), ((), False)):
            with open(self.folder / "out", "w+") as out:
                self.assertEqual(subprocess.run([TORCHUP, *options, *words], stdout=out, stderr=subprocess.DEVNULL).returncode, 0)
                out.seek(0)
                self.assertEqual(out.read().strip() == str(self.folder / "out"), ours, options)

    def test_gpus(self):
        words = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK")
        done = self.with_gpus("--gpus=1", "--nproc-per-node=gpu", *words)
        self.assertEqual((done.returncode, done.stdout), (0, "1 0\n"), done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        done = self.with_gpus("--gpus=1,0", "--nproc-per-node=gpu", *words)
        self.assertEqual((done.returncode, sorted(done.stdout.splitlines())), (0, ["1,0 0", "1,0 1"]), done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        done = self.with_gpus("--gpus=7", "--nproc-per-node=gpu", *words)
        self.assertIn(done.returncode, (2, 65))
        self.assertIn("7", done.stderr)

    def test_more_workers_than_gpus_by_name(self):
        words = ("--nproc-per-node=3", "--gpus=0,1", "sh", "-c", "echo $LOCAL_RANK")
        done = self.with_gpus(*words)
        self.assertEqual((done.returncode, done.stdout), (65, ""), done.stderr)
        self.assertIn("--oversubscribe", done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        done = self.with_gpus("--oversubscribe", *words)
        self.assertEqual((done.returncode, sorted(done.stdout.split())), (0, ["0", "1", "2"]), done.stderr)

    def test_no_gpus_where_they_are_asked_for(self):
        done = self.run_job("--nproc-per-node=gpu", "sh", "-c", "echo started")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")

    def test_numa_binding_keeps_to_cpus_that_we_may_use(self):
        allowed = os.sched_getaffinity(0)
        done = self.with_gpus("--numa-binding=node", "--nproc-per-node=2", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            cpus = set()
            for part in line.split()[-1].split(","):
                first, _, last = part.partition("-")
                cpus |= set(range(int(first), int(last or first) + 1))
            self.assertTrue(cpus and cpus <= allowed, line)

    def test_a_low_soft_limit_of_descriptors_is_raised_and_workers_keep_theirs(self):
        done = self.run_with_limit(64, 4096, "--nproc-per-node=32", "-t", "3", "--log-dir=logs", "sh", "-c", "ulimit -n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split(":")[-1] for line in done.stdout.splitlines()], ["64"] * 32)

    def test_a_low_hard_limit_of_descriptors_is_named_before_anything_starts(self):
        done = self.run_with_limit(64, 64, "--nproc-per-node=32", "sh", "-c", "echo started")
        self.assertEqual((done.returncode, done.stdout), (65, ""))
        self.assertIn("the hard limit is 64", done.stderr)
        self.assertIn("ulimit -Hn", done.stderr)

    def run_with_limit(self, soft, hard, *words):
        return subprocess.run(["prlimit", f"--nofile={soft}:{hard}", TORCHUP, *words], capture_output=True, text=True,
                              cwd=self.folder, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def test_omp(self):
        show = ("sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertEqual(self.lines("--omp=3", "--nproc-per-node=2", *show), ["3", "3"])
        workers = 1
        cores = len(os.sched_getaffinity(0))
        told = int(self.lines("--omp=auto", f"--nproc-per-node={workers}", *show)[0])
        self.assertTrue(1 <= told <= cores)

    def test_virtual_local_rank(self):
        self.assertEqual(self.lines("--virtual-local-rank", "--nproc-per-node=2", "sh", "-c",
                                    "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="4,6"),
                         ["0 0 4", "1 0 6"])

    def test_timeout(self):
        begin = time.monotonic()
        done = self.run_job("--timeout=0.3", "--shutdown-timeout=1", "sleep", "600")
        self.assertNotEqual(done.returncode, 0)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertRegex(done.stderr, r"--timeout|0\.3")

    def test_propagate_exit_code(self):
        self.assertEqual(self.run_job("sh", "-c", "exit 37").returncode, 1)
        self.assertEqual(self.run_job("--propagate-exit-code", "sh", "-c", "exit 37").returncode, 37)

    def test_config(self):
        (self.folder / "job.conf").write_text("# a job\nnproc_per_node = 3\nrole = 'r'\n")
        words = ("--config=job.conf", "sh", "-c", "echo $WORLD_SIZE $ROLE_NAME")
        self.assertEqual(self.lines(*words), ["3 r"] * 3)
        self.assertEqual(self.lines("--nproc-per-node=1", *words), ["1 r"])
        self.assertEqual(self.lines(*words, PET_ROLE="p"), ["3 p"] * 3)
        (self.folder / "job.conf").write_text("rank-order = hostlst\n")
        done = self.run_job(*words)
        self.assertEqual(done.returncode, 2)
        self.assertIn("job.conf:1: rank-order: invalid choice", done.stderr)

    def test_standalone_jobs_side_by_side(self):
        jobs = [subprocess.Popen([TORCHUP, "--standalone", "--nproc-per-node=2", "sh", "-c", "echo $MASTER_PORT"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(4)]
        ports = [set(job.communicate(timeout=30)[0].split()) for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0] * 4)
        self.assertEqual([len(own) for own in ports], [1] * 4)
        self.assertEqual(len(set.union(*ports)), 4)


if __name__ == "__main__":
    unittest.main()
