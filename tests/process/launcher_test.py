"""The life of a job on one node: exit codes, what workers get, stops, restarts.

usage: launcher_test.py TORCHUP FAKE_WORKER [name of a test ...]
"""

import os
import signal
import subprocess
import tempfile
import time
import unittest

from launcher_job import TORCHUP, WORKER, Job, children, state, until


def program_kib(pid, field):
    """Of the file that it executes what is mapped, and what of it is in memory: where the process cannot have changed it."""
    program = os.readlink(f"/proc/{pid}/exe")
    found, counts = 0, False
    with open(f"/proc/{pid}/smaps") as file:
        for words in map(str.split, file):
            if "-" in words[0]:
                counts = "w" not in words[1] and words[-1] == program
            elif counts and words[0] == f"{field}:":
                found += int(words[1])
    return found


class Launcher(Job, unittest.TestCase):
    # Ends.

    def test_success(self):
        self.end(self.start("--nproc-per-node=3", "exit 0"), 0)

    def test_the_first_failure_is_named_and_stops_the_others(self):
        _, err = self.end(self.start("--nproc-per-node=3", "only 1 exit 7"), 1)  # the grace alone is longer than end() waits
        self.assertIn("rank      : 1 (local_rank: 1)\n  exitcode  : 7", err)

    def test_the_code_of_the_worker_is_ours_when_asked_for(self):
        self.end(self.start("--propagate-exit-code", "exit 7"), 7)
        self.end(self.start("--propagate-exit-code", "kill 9"), 137)

    def test_every_deadly_signal_is_a_failure(self):
        os.environ["ASAN_OPTIONS"] = "handle_segv=0:handle_abort=0"  # a sanitized worker dies of them, too
        self.addCleanup(os.environ.pop, "ASAN_OPTIONS")
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE, 34):
            _, err = self.end(self.start("", f"kill {int(number)}"), 1)
            self.assertIn(f"exitcode  : -{int(number)} (pid:", err)

    def test_what_reads_our_output_is_none_of_our_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            # bash's `exec` makes torchup the parent of what reads its output; this one reads when torchup has ended.
            script = (f'exec > >(while kill -0 $$ 2>/dev/null; do sleep 0.02; done; cat >{folder}/part; mv {folder}/part {folder}/all); '
                      f'exec "{TORCHUP}" --nproc-per-node=2 --no-python echo read')
            done = subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
            self.assertEqual(done.returncode, 0)
            limit = time.monotonic() + 10
            while not os.path.exists(f"{folder}/all"):
                self.assertLess(time.monotonic(), limit, "what read torchup's output was killed")
                time.sleep(0.02)
            with open(f"{folder}/all") as text:
                self.assertEqual(text.read(), "read\nread\n")

    def test_no_such_program_is_one_line_and_2(self):
        done = subprocess.run([TORCHUP, "nosuch_program"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))

    def test_timeout(self):
        _, err = self.end(self.start("--timeout=0.3", "wait"), 1)
        self.assertIn("--timeout", err)

    @unittest.skipIf(os.environ.get("TORCHUP_SANITIZE"), "sanitized programs have other sizes")
    def test_what_only_the_start_needs_is_given_back(self):
        """Pages of the programs themselves, of which a start touches three quarters, and the outer process a quarter;
        both go on with those that they need again."""
        job = self.start("--shutdown-timeout=1", "note {notes} wait")
        until(lambda: os.path.exists(self.notes), "the worker runs")
        for pid, part in ((job.pid, 10), (children(job.pid)[0], 2)):
            until(lambda: part * program_kib(pid, "Rss") < program_kib(pid, "Size"), f"process {pid} has given back most of its program")
        job.terminate()
        self.end(job, 128 + signal.SIGTERM)

    def test_error_files_are_in_memory_until_the_end(self):
        job = self.start("", "note {notes} wait")
        self.workers(1)
        (link,) = [os.path.join(self.scratch.name, name) for name in os.listdir(self.scratch.name) if name.startswith("torchelastic_")]
        memory = os.path.realpath(link)
        if memory == link:
            self.skipTest("/dev/shm is not in memory here, or the temporary directory is")
        error_file = os.path.join(link, os.listdir(link)[0], "attempt_0", "0", "error.json")
        with open(error_file, "w") as file:
            file.write("{}")
        job.terminate()
        job.communicate(timeout=20)
        self.assertEqual((os.path.exists(memory), os.path.islink(link), os.path.exists(error_file)), (False, False, True))

    # What workers get.

    def test_workers_have_three_descriptors_and_no_others(self):
        """Page and channel apart. What we were started with lies anywhere, not only where our own come."""
        offered = []
        with open("/dev/null") as file:
            for number in (9, 35, 200):
                self.assertRaises(OSError, os.fstat, number)
                offered.append(os.dup2(file.fileno(), number))
                self.addCleanup(os.close, number)
        out, _ = self.end(self.start("", "descriptors", pass_fds=offered), 0)
        lines = out.splitlines()
        self.assertEqual(lines, ["descriptor 3", "descriptor 4", "descriptors listed"])

    def test_a_worker_leads_its_session(self):
        job = self.start("--nproc-per-node=2", "note {notes} wait")
        for _, pid, _ in self.workers(2):
            self.assertEqual(os.getsid(pid), pid)
        job.terminate()
        self.end(job, 143)

    def test_closed_standard_descriptors_do_no_harm(self):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            done = subprocess.run(["sh", "-c", f'"{TORCHUP}" --nproc-per-node=2 "{WORKER}" say hello {closed}'], timeout=60,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, closed)
            self.nothing_left()

    def test_the_token_is_in_no_environment(self):
        os.environ["TORCHUP_TOKEN"] = "a-secret-of-many-letters"
        self.addCleanup(os.environ.pop, "TORCHUP_TOKEN")
        job = self.start("", "note {notes} wait")
        [(_, worker, _)] = self.workers(1)
        for pid in (job.pid, children(job.pid)[0], worker):
            with open(f"/proc/{pid}/environ", "rb") as file:
                self.assertNotIn(b"a-secret", file.read())
        job.terminate()
        self.end(job, 143)

    def test_all_workers_inherit_standard_input(self):
        for count in (1, 3):
            job = self.start(f"--nproc-per-node={count}", "only_reads", stdin=subprocess.PIPE)
            out, _ = job.communicate("x\n" * count, timeout=20)
            self.assertEqual((job.returncode, out.split()), (0, ["x"] * count))

    # Stops.

    def test_grace_then_kill(self):
        begin = time.monotonic()
        job = self.start("--nproc-per-node=2 --shutdown-timeout=1", "ignore 15 note {notes} only 0 await {notes} 2 exit 3")
        _, err = self.end(job, 1)
        self.assertIn("exitcode  : -9", err)
        self.assertGreater(time.monotonic() - begin, 1)

    def test_a_stopped_worker_acts_on_the_stop(self):
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=60", "on 15 0 note {notes} only 1 await {notes} 2 exit 3"), 1)
        job = self.start("--nproc-per-node=1 --shutdown-timeout=60", "note {notes} hang wait")
        pid = self.workers(3)[-1][1]
        until(lambda: state(pid) == "T", "the worker stops")
        job.terminate()
        self.end(job, 143)

    def test_children_of_a_worker_go_with_the_attempt(self):
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=1", "child exit 0"), 0)
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=1 --max-restarts=1", "child fail_first 4 exit 0"), 0)

    # Restarts.

    def test_restart_count_and_logs(self):
        job = self.start(f"--nproc-per-node=2 --max-restarts=2 --log-dir={self.scratch.name}/logs -r 3", "say hello note {notes} await {notes} 2 fail_first 5 exit 0")
        self.end(job, 0)
        self.assertEqual(sorted(count for _, _, count in self.workers(4)), [0, 0, 1, 1])
        run = os.path.join(self.scratch.name, "logs", os.listdir(f"{self.scratch.name}/logs")[0])
        for attempt in ("attempt_0", "attempt_1"):
            with open(f"{run}/{attempt}/1/stdout.log") as file:
                self.assertEqual(file.read(), "hello\n")

    def test_all_restarts_are_used(self):
        self.end(self.start("--max-restarts=3", "note {notes} exit 5"), 1)
        self.assertEqual([count for _, _, count in self.workers(4)], [0, 1, 2, 3])

    def test_backoff_paces_restarts(self):
        begin = time.monotonic()
        self.end(self.start("--max-restarts=2 --restart-backoff=0.3..0.5", "exit 5"), 1)
        self.assertGreater(time.monotonic() - begin, 0.8)

    # Workers that live and do not work.

    def test_workers_without_steps_are_aborted_and_restarted(self):
        job = self.start("--nproc-per-node=2 --max-restarts=1 --heartbeat-timeout=1", "note {notes} step 41 fail_first_wait step 42 exit 0")
        _, err = self.end(job, 0)
        self.assertIn("last step 41: ranks 0-1", err)
        self.assertIn("the workers are started again (--on-hang=restart)", err)
        self.assertEqual(sorted(count for _, _, count in self.workers(4)), [0, 0, 1, 1])

    def test_a_worker_in_uninterruptible_sleep_ends_the_job(self):
        os.environ["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"] = "0.4"
        self.addCleanup(os.environ.pop, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT")
        job = self.start("--max-restarts=3 --shutdown-timeout=1", "note {notes} uninterruptible")
        _, err = self.end(job, 1)
        self.assertIn("stuck in uninterruptible sleep (D-state)", err)
        self.assertEqual(len(self.workers(1)), 1)

    def test_a_pause_is_no_hang(self):
        timeout, pause = 4, 4.5
        begin = time.monotonic()
        job = self.start(f"--nproc-per-node=2 --heartbeat-timeout={timeout}", "step 1 note {notes} wait")
        pids = [pid for _, pid, _ in self.workers(2)]
        job.send_signal(signal.SIGTSTP)
        until(lambda: {state(pid) for pid in pids} == {"T"}, "all are stopped")
        time.sleep(pause)  # longer than the timeout: this is what must not count
        job.send_signal(signal.SIGCONT)
        _, err = self.end(job, 1)
        self.assertIn("last step 1: ranks 0-1", err)
        self.assertGreater(time.monotonic() - begin, pause + timeout / 2)  # a look a quarter of the timeout, at both ends


if __name__ == "__main__":
    unittest.main()
