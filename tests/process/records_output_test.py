"""Output, and what those who read it do: nothing of it ends a job.

usage: records_output_test.py TORCHUP SLOW_DISK_LIBRARY [name of a test ...]
"""

import fcntl
import glob
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from records_job import TORCHUP, Scratch, run, shell


def read_to(terminal, text):
    """What it shows up to this text; it comes in pieces."""
    seen = b""
    while text not in seen and select.select([terminal], [], [], 30)[0]:
        seen += os.read(terminal, 100)
    return seen


class Records(Scratch, unittest.TestCase):
    def test_quiet_leaves_output_and_report_only(self):
        done = run("--quiet", "--nproc-per-node=2", "--", *shell("echo out; test $RANK = 0 && exit 5; sleep 100"))
        self.assertEqual(done.returncode, 1)
        text = done.stderr.decode()
        self.assertNotIn("closing signal", text)
        self.assertNotIn("OMP_NUM_THREADS", text)
        self.assertIn("exitcode  : 5", text)

    def test_losses_are_told_to_the_quiet_too(self):
        done = run("--quiet", "--", *shell("echo lost"), stdout=os.open("/dev/full", os.O_WRONLY))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, b"torchup: stdout: No space left on device; 5 bytes are not shown so far, the job goes on\n")

    def test_a_reader_of_events_that_stalls_neither_stops_the_job_nor_its_restart(self):
        os.mkfifo(self.path("events"))
        reader = os.open(self.path("events"), os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # What each worker says at its end is more than a pipe holds, and all of it more than what is kept for a slow reader.
        done = run("--nproc-per-node=2", "--max-restarts=3", f"--log-dir={self.path('logs')}", "--tee=1",
                   f"--result-file={self.path('result')}", f"--events={self.path('events')}", "--",
                   *shell("yes | head -n 50000; test $TORCHELASTIC_RESTART_COUNT = 3 && exit 0; "
                          "printf '{\"message\": \"%0500000d\"}' 0 > $TORCHELASTIC_ERROR_FILE; exit 1"))
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        # Of the attempts that failed, one of the two may have been stopped in its midst.
        self.assertGreaterEqual(done.stdout.count(b":y\n"), 5 * 50_000)
        self.assertGreater(self.json_of("result")["log_bytes_lost"], 0)
        self.assertIn(b"bytes of logs and events are lost in all", done.stderr)

    def test_a_pager_gets_the_end_of_the_output(self):
        self.read_late("exit 3", 1, b"exitcode  : 3 (pid: ")

    def test_a_pager_gets_the_end_of_the_output_whose_code_is_that_of_a_killed_worker(self):
        self.read_late("kill -9 $$", 137, b"exitcode  : -9 (pid: ", "--propagate-exit-code")

    def read_late(self, end, status, said, *options):
        ends = os.pipe()
        job = subprocess.Popen([TORCHUP, f"--result-file={self.path('result')}", *options, "--", *shell(f"seq 30000; {end}")],
                               stdout=ends[1], stderr=ends[1])
        os.close(ends[1])
        pager = os.fdopen(ends[0], "rb")
        self.addCleanup(pager.close)
        self.wait_for(lambda: os.path.exists(self.path("result")))  # all is over but the reading
        job.send_signal(signal.SIGCONT)  # as `fg` after Ctrl-Z does, to everybody in the pipeline: it ends nothing
        with self.assertRaises(subprocess.TimeoutExpired):
            job.wait(3)
        text = pager.read()
        self.assertEqual(job.wait(20), status)
        self.assertIn(b"\n30000\n", text)
        self.assertIn(said, text)
        self.assertEqual(self.json_of("result")["console_bytes_lost"], 0)

    def test_an_end_that_waits_for_a_pager_can_be_interrupted(self):
        ends = os.pipe()
        self.addCleanup(os.close, ends[0])
        job = subprocess.Popen([TORCHUP, f"--result-file={self.path('result')}", "--", *shell("seq 30000")], stdout=ends[1],
                               stderr=subprocess.DEVNULL)
        os.close(ends[1])
        self.wait_for(lambda: os.path.exists(self.path("result")))
        time.sleep(16)  # longer than a job's end waits for its disk, which has nothing to do with this
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(20), 0)
        self.assertGreater(self.json_of("result")["console_bytes_lost"], 0)
        self.assertEqual(os.listdir(self.scratch.name), ["result"])

    def test_a_job_that_is_ended_by_a_signal_waits_for_no_pager(self):
        ends = os.pipe()
        self.addCleanup(os.close, ends[0])
        up = self.path("up")
        job = subprocess.Popen([TORCHUP, "--", *shell(f"seq 30000; touch {up}; sleep 100")], stdout=ends[1],
                               stderr=subprocess.DEVNULL)
        os.close(ends[1])
        self.wait_for(lambda: os.path.exists(up))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(30), 143)

    def test_a_worker_hears_of_the_terminal_s_new_size(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        job = subprocess.Popen([TORCHUP, "--", *shell("trap 'stty size <&1; exit 0' WINCH; echo up; while :; do sleep 0.05; done")],
                               stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL)
        os.close(slave)
        self.assertIn(b"up", read_to(master, b"up"))
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        job.send_signal(signal.SIGWINCH)  # it does not belong to this terminal's foreground
        self.assertEqual(job.wait(20), 0)
        self.assertIn(b"33 77", read_to(master, b"33 77"))

    def test_a_reader_that_leaves_does_not_end_the_job(self):
        done = subprocess.run(["bash", "-c", f"{TORCHUP} --result-file={self.path('result')} --tee=1 --log-dir={self.path('logs')} "
                               f"-- sh -c 'yes | head -n 200000; exit 0' | head -n 1; exit ${{PIPESTATUS[0]}}"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.json_of("result")["console_bytes_lost"], 100_000)
        log, = glob.glob(self.path("logs/*/attempt_0/0/stdout.log"))
        self.assertEqual(os.path.getsize(log), 400_000)

    def test_closed_standard_streams(self):
        for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
            with self.subTest(closed):
                done = subprocess.run(["sh", "-c", f"exec {TORCHUP} --nproc-per-node=2 --result-file={self.path('result')} "
                                       f"sh -c 'echo out; echo err >&2' {closed}"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_hundred_megabytes_without_line_end(self):
        size = 100_000_000
        with open(self.path("out"), "wb") as out:
            job = subprocess.Popen([TORCHUP, "--nproc-per-node=2", "--tee=1", f"--log-dir={self.path('logs')}", "--",
                                    *shell(f"test $RANK = 1 || head -c {size} /dev/zero")],
                                   stdout=out, stderr=subprocess.PIPE)
            _, status, usage = os.wait4(job.pid, 0)
            job.returncode = os.waitstatus_to_exitcode(status)
            error = job.stderr.read()
            job.stderr.close()
        self.assertEqual(job.returncode, 0, error)
        self.assertEqual(os.path.getsize(self.path("out")), size + len("[default0]:\n"))
        if not os.environ.get("TORCHUP_SANITIZE"):
            self.assertLess(usage.ru_maxrss, 40_000)  # KiB, of the outer process and what it waited for

    def test_every_line_arrives_after_a_kill(self):
        lines = 50_000
        done = run("--nproc-per-node=2", "--tee=1", f"--log-dir={self.path('logs')}", "--",
                   *shell(f"test $RANK = 1 && exec sleep 100; seq {lines}; kill -9 $$"), timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.decode().splitlines(), [f"[default0]:{line}" for line in range(1, lines + 1)])

    def test_control_bytes_of_a_report_do_not_reach_the_terminal(self):
        bell = "\\u001b]0;title\\u0007\\u001b[2J\\r"
        done = run("--nproc-per-node=1", "--", "python3", "-c", "import json, os, sys\n"
                   "print('\x1b[31mcolour\x1b[0m')\n"
                   f"json.dump({{'message': '{bell}', 'timestamp': 10}}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
                   "sys.exit(3)")
        self.assertEqual(done.stdout, b"\x1b[31mcolour\x1b[0m\n")  # a worker's output is its own
        self.assertIn(b"\\x1b]0;title\\x07\\x1b[2J\\x0d", done.stderr)
        self.assertEqual([byte for byte in done.stderr if byte < 32 and byte not in b"\n\t"], [])


if __name__ == "__main__":
    unittest.main()
