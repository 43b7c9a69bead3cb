"""The life of a job on one node: exit codes, stops, signals, restarts, and that nothing is left whatever happens.

usage: launcher_test.py TORCHUP FAKE_WORKER [name of a test ...]

Every test is a subreaper, so each process that a launcher leaves behind becomes its child and is found by parentage,
whatever it did to its session and environment.
"""

import ctypes
import os
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TORCHUP = sys.argv.pop(1)
WORKER = sys.argv.pop(1)
PR_SET_CHILD_SUBREAPER = 36
LEFT_LIMIT_S = 2.0  # from a launcher's end to the end of the last of its descendants


def children(pid):
    """Living children of a process; zombies are not."""
    found = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
        except FileNotFoundError:
            pass
    return [child for child in found if state(child) not in (None, "Z", "X")]


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def until(condition, what, limit_s=15):
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.005)


def cgroup_of(pid):
    """Path of a process in the hierarchy of cgroup version 2; None without one."""
    with open(f"/proc/{pid}/cgroup") as file:
        return next((line.rstrip("\n")[3:] for line in file if line.startswith("0::")), None)


def own_cgroup():
    """Folder of our cgroup (version 2) where we may make others; None: nowhere."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file if " - cgroup2 " in line]
    path = cgroup_of("self")
    if path is None or not mounts or os.path.exists("/run/systemd/system"):
        return None
    folder = mounts[0][4] + path.removeprefix(mounts[0][3].rstrip("/")).rstrip("/")
    return folder if os.access(folder + "/cgroup.procs", os.W_OK) else None


# Runs a program on a system that lacks a call (by its number on x86-64 and arm64 alike): a seccomp filter says ENOSYS.
WITHOUT_CALL = """
import ctypes, os, struct, sys
number = int(sys.argv[1])
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7fff0000)]
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(held := ctypes.create_string_buffer(code)))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[2], sys.argv[2:])
"""


class Launcher(unittest.TestCase):
    def setUp(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.notes = os.path.join(self.scratch.name, "notes")

    def start(self, options, worker, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self.scratch.name}
        job = subprocess.Popen([TORCHUP, *options.split(), WORKER, *worker.format(notes=self.notes).split()], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stdout.close(), job.stderr.close()))
        return job

    def end(self, job, status, limit_s=20):
        """Waits for the launcher's end with this status, and for that of everything it started."""
        out, err = job.communicate(timeout=limit_s)
        self.assertEqual(job.returncode, status, err)
        self.nothing_left()
        self.assertEqual([name for name in os.listdir(self.scratch.name) if name.startswith("torchelastic_")], [])
        return out, err

    def nothing_left(self):
        end = time.monotonic() + LEFT_LIMIT_S
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            if time.monotonic() > end:
                left = children(os.getpid())
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                self.fail(f"left behind: {left}")
            time.sleep(0.005)

    def workers(self, count):
        """Notes of `count` worker starts: (local rank, pid, restart count)."""

        def read():
            if not os.path.exists(self.notes):
                return None
            with open(self.notes) as file:
                lines = [tuple(int(word) for word in line.split()) for line in file]
            return lines if len(lines) >= count else None

        return until(read, f"{count} workers")

    # Ends.

    def test_success(self):
        self.end(self.start("--nproc-per-node=3", "exit 0"), 0)

    def test_the_first_failure_is_named_and_stops_the_others(self):
        begin = time.monotonic()
        _, err = self.end(self.start("--nproc-per-node=3", "only 1 exit 7"), 1)
        self.assertIn("rank      : 1 (local_rank: 1)\n  exitcode  : 7", err)
        self.assertLess(time.monotonic() - begin, 5)

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
        done = subprocess.run([TORCHUP, "nosuch_program"], capture_output=True, text=True, timeout=10)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))

    def test_timeout(self):
        _, err = self.end(self.start("--timeout=0.3", "wait"), 1)
        self.assertIn("--timeout", err)

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
        with open("/dev/null") as file:
            os.set_inheritable(file.fileno(), True)
            out, _ = self.end(self.start("", "descriptors", pass_fds=[file.fileno()]), 0)
        lines = [line for line in out.splitlines() if not line.startswith("descriptor 3")]
        self.assertEqual(lines, ["descriptors listed"])

    def test_a_worker_leads_its_session(self):
        job = self.start("--nproc-per-node=2", "note {notes} wait")
        for _, pid, _ in self.workers(2):
            self.assertEqual(os.getsid(pid), pid)
        job.terminate()
        self.end(job, 143)

    def test_closed_standard_descriptors_do_no_harm(self):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            done = subprocess.run(["sh", "-c", f'"{TORCHUP}" --nproc-per-node=2 "{WORKER}" say hello {closed}'], timeout=10,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, closed)
            self.nothing_left()

    # Stops.

    def test_grace_then_kill(self):
        begin = time.monotonic()
        job = self.start("--nproc-per-node=2 --shutdown-timeout=1", "ignore 15 note {notes} only 0 sleep 0.3 exit 3")
        _, err = self.end(job, 1)
        self.assertIn("exitcode  : -9", err)
        self.assertGreater(time.monotonic() - begin, 1.2)
        self.assertLess(time.monotonic() - begin, 6)

    def test_a_stopped_worker_acts_on_the_stop(self):
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=20", "note {notes} on 15 0 sleep 0.2 only 1 exit 3"), 1, 10)
        job = self.start("--nproc-per-node=1 --shutdown-timeout=20", "note {notes} hang wait")
        pid = self.workers(3)[-1][1]
        until(lambda: state(pid) == "T", "the worker stops")
        job.terminate()
        self.end(job, 143, 10)

    def test_children_of_a_worker_go_with_the_attempt(self):
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=1", "child exit 0"), 0)
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=1 --max-restarts=1", "child fail_first 4 exit 0"), 0)

    # Signals.

    def signalled(self, number, worker="on {signal} 0 note {{notes}} wait", options="--nproc-per-node=2"):
        job = self.start(options, worker.format(signal=int(number)))
        self.workers(2)
        job.send_signal(number)
        return job

    def test_a_signal_reaches_the_workers_and_is_the_status(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            _, err = self.end(self.signalled(number), 128 + number)
            self.assertEqual("rank 1 (pid" in err, number == signal.SIGQUIT)  # what each does, only then
            os.unlink(self.notes)

    def said(self, job, text):
        """Reads the job's stderr until `text` stands there; `end` gets the rest."""
        lines = []
        while not lines or text not in lines[-1]:
            lines.append(job.stderr.readline())
            self.assertNotEqual(lines[-1], "", f"never said: {text}; but {lines}")
        return lines

    @staticmethod
    def apart():
        """Two equal signals closer than this are one, by rule: what they protect is a span of time."""
        time.sleep(0.05)

    def test_the_second_interrupt_kills(self):
        job = self.signalled(signal.SIGINT, "ignore {signal} ignore 15 note {{notes}} wait")
        self.said(job, "Ctrl-C again to force")
        self.apart()
        job.send_signal(signal.SIGINT)
        self.end(job, 130, 15)  # the grace alone is 30 s

    def test_a_signal_to_both_processes_is_one(self):
        for number, options in ((signal.SIGINT, ""), (signal.SIGTERM, ""), (signal.SIGTERM, "--drain-signals=TERM")):
            job = self.start(f"--nproc-per-node=2 {options}", f"late {int(number)} 5 note {{notes}} wait")
            self.workers(2)
            for pid in (job.pid, children(job.pid)[0]):
                os.kill(pid, number)
            # Each worker has the time that it takes after the signal: nobody was killed.
            _, err = self.end(job, 1 if options else 128 + number)
            self.assertNotIn("Unable to shutdown", err)
            self.assertEqual("exitcode  : 5" in err, bool(options))
            os.unlink(self.notes)

    def test_the_second_term_kills(self):
        job = self.signalled(signal.SIGTERM, "ignore {signal} note {{notes}} wait")
        self.said(job, "SIGTERM again to force")
        self.apart()
        job.send_signal(signal.SIGTERM)
        self.end(job, 143, 15)  # the grace alone is 30 s

    def test_a_request_to_save_reaches_workers_that_know_no_page(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            name = number.name
            job = self.start(f"--nproc-per-node=2 --drain-signals={name}", f"on {int(number)} 75 note {{notes}} wait")
            self.workers(2)
            job.send_signal(number)
            self.end(job, 75)
            os.unlink(self.notes)
            # One that has no handler for it hears it too, in the end, and nobody calls it a failure.
            job = self.start(f"--max-restarts=3 --drain-signals={name}", "note {notes} wait")
            self.workers(1)
            job.send_signal(number)
            _, err = self.end(job, 128 + number)
            self.assertNotIn("failed (exitcode", err)
            self.assertEqual(len(self.workers(1)), 1)
            os.unlink(self.notes)

    def test_a_request_to_save_is_heard_over_the_page(self):
        job = self.start("--nproc-per-node=2 --drain-signals=USR1", "ignore 10 step 1 note {notes} drained 75")
        self.workers(2)
        job.send_signal(signal.SIGUSR1)
        self.end(job, 75)

    def test_a_request_to_save_during_a_restart_is_not_lost(self):
        job = self.start("--nproc-per-node=2 --max-restarts=5 --shutdown-timeout=2 --drain-signals=USR1",
                         "ignore 15 ignore 10 note {notes} only 0 sleep 0.5 exit 3")
        self.said(job, "closing signal SIGTERM")
        job.send_signal(signal.SIGUSR1)
        self.end(job, 75)
        self.assertEqual({count for _, _, count in self.workers(2)}, {0})

    def test_a_worker_whose_timer_ran_out_has_failed(self):
        os.environ.update(TORCHELASTIC_ENABLE_FILE_TIMER="1", TORCHELASTIC_TIMER_FILE=self.scratch.name + "/timers")
        self.addCleanup(os.environ.pop, "TORCHELASTIC_ENABLE_FILE_TIMER")
        self.addCleanup(os.environ.pop, "TORCHELASTIC_TIMER_FILE")
        # It heeds the signal and ends with 0; the other one waits for it.
        _, err = self.end(self.start("--nproc-per-node=2", "note {notes} on 15 0 only 1 timer 15 wait"), 1)
        self.assertIn("did not come out of 'fake' in time", err)
        self.assertIn("rank      : 1 (local_rank: 1)\n  exitcode  : 0", err)

    def test_a_second_interrupt_does_not_end_the_attempt_twice(self):
        events = os.path.join(self.scratch.name, "events")
        # Nobody reads it: the output is still being drained when the workers are gone.
        job = self.start(f"--events={events}", "note {notes} on 2 0 flood wait")
        self.workers(1)
        job.send_signal(signal.SIGINT)

        def recorded():
            with open(events) as file:
                return "worker_exited" in file.read()

        until(lambda: os.path.exists(events) and recorded(), "the worker ends")
        self.apart()
        job.send_signal(signal.SIGINT)
        self.end(job, 130)
        with open(events) as file:
            self.assertEqual(file.read().count('"event":"attempt_ended"'), 1)

    def test_a_forwarded_signal_changes_nothing_else(self):
        job = self.signalled(signal.SIGUSR1, "on {signal} 0 note {{notes}} wait")
        self.end(job, 0)  # both workers take it as their end

    def test_a_signal_during_a_stop_prevents_the_restart(self):
        job = self.start("--nproc-per-node=2 --max-restarts=5 --shutdown-timeout=2", "ignore 15 note {notes} only 0 sleep 0.5 exit 3")
        self.said(job, "closing signal SIGTERM")  # the other one ignores it
        job.terminate()
        self.end(job, 143)
        self.assertEqual(len(self.workers(2)), 2)

    def test_nohup_is_kept(self):
        job = self.start("", "note {notes} sleep 0.5 exit 0", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.workers(1)
        job.send_signal(signal.SIGHUP)
        self.end(job, 0)

    def test_stop_and_go(self):
        job = self.start("--nproc-per-node=2", "note {notes} on 15 0 wait")
        pids = [pid for _, pid, _ in self.workers(2)]
        job.send_signal(signal.SIGTSTP)
        until(lambda: {state(pid) for pid in pids} == {"T"} and state(job.pid) == "T", "all are stopped")
        job.send_signal(signal.SIGCONT)
        until(lambda: {state(pid) for pid in pids} == {"S"}, "all go on")
        job.terminate()
        self.end(job, 143)

    def test_ctrl_c_on_a_terminal(self):
        primary, secondary = pty.openpty()
        job = self.start("--nproc-per-node=2", "on 2 0 note {notes} wait", stdin=secondary,
                         preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))  # TIOCSCTTY
        os.close(secondary)
        self.workers(2)
        os.write(primary, b"\x03")
        self.end(job, 130)
        os.close(primary)

    # Kills.

    def test_sigkill_of_the_outer_process_leaves_nothing(self):
        job = self.start("--nproc-per-node=2", "child note {notes} ignore 15 wait")
        self.workers(2)
        job.kill()
        job.wait()
        self.nothing_left()

    def test_sigkill_of_the_inner_process_leaves_nothing(self):
        job = self.start("--nproc-per-node=2", "child note {notes} ignore 15 wait")
        self.workers(2)
        os.kill(children(job.pid)[0], signal.SIGKILL)
        self.assertEqual(job.wait(10), 137)
        self.nothing_left()

    @unittest.skipUnless(own_cgroup(), "no cgroup of version 2 that is ours to divide")
    def test_the_workers_cgroup_goes_whatever_ends_the_job(self):
        def kill_inner(job):
            os.kill(children(job.pid)[0], signal.SIGKILL)

        for end in (subprocess.Popen.terminate, subprocess.Popen.kill, kill_inner):
            job = self.start("--nproc-per-node=2 --shutdown-timeout=1", "child note {notes} wait")
            folders = {own_cgroup() + "/" + cgroup_of(pid).rpartition("/")[2] for _, pid, _ in self.workers(2)}
            self.assertEqual(len(folders), 1)
            folder = folders.pop()
            self.assertTrue(os.path.basename(folder).startswith(f"torchup.{job.pid}."), folder)
            os.mkdir(folder + "/of_a_worker")
            end(job)
            job.wait(10)
            self.nothing_left()
            until(lambda: not os.path.exists(folder), f"{folder} is removed", LEFT_LIMIT_S)
            os.unlink(self.notes)

    @unittest.skipUnless(os.geteuid() == 0, "a mount of our own takes root")
    def test_without_a_cgroup_the_workers_go_too(self):
        hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]
        job = subprocess.Popen([*hide, TORCHUP, "--nproc-per-node=2", WORKER, "child", "note", self.notes, "wait"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual({cgroup_of(pid) for _, pid, _ in self.workers(2)}, {cgroup_of("self")})
        job.kill()
        job.wait(10)
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

    def test_sigkill_of_both_ends_the_workers(self):
        job = self.start("--nproc-per-node=2", "note {notes} ignore 15 wait")
        self.workers(2)
        os.kill(children(job.pid)[0], signal.SIGKILL)
        job.kill()
        job.wait()
        self.nothing_left()
        # Nobody was left to remove their cgroup; the next launcher does.
        self.assertEqual(self.start("", "exit 0").wait(20), 0)
        if own_cgroup():
            self.assertEqual([name for name in os.listdir(own_cgroup()) if name.startswith(f"torchup.{job.pid}.")], [])

    # Restarts.

    def test_restart_count_and_logs(self):
        job = self.start(f"--nproc-per-node=2 --max-restarts=2 --log-dir={self.scratch.name}/logs -r 3", "note {notes} say hello sleep 1 fail_first 5 exit 0")
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

    def test_a_worker_without_steps_is_aborted_and_restarted(self):
        begin = time.monotonic()
        job = self.start("--nproc-per-node=2 --max-restarts=1 --heartbeat-timeout=0.5",
                         "note {notes} step 41 fail_first_wait sleep 0.2 step 42 exit 0")
        _, err = self.end(job, 0)
        self.assertIn("the last one was step 41", err)
        self.assertEqual(sorted(count for _, _, count in self.workers(4)), [0, 0, 1, 1])
        self.assertLess(time.monotonic() - begin, 8)

    def test_a_worker_in_uninterruptible_sleep_ends_the_job(self):
        os.environ["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"] = "0.4"
        self.addCleanup(os.environ.pop, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT")
        job = self.start("--max-restarts=3 --shutdown-timeout=1", "note {notes} vfork")
        _, err = self.end(job, 1)
        self.assertIn("stuck in uninterruptible sleep (D-state)", err)
        self.assertEqual(len(self.workers(1)), 1)

    def test_a_pause_is_no_hang(self):
        job = self.start("--nproc-per-node=2 --heartbeat-timeout=2", "on 15 0 step 1 note {notes} wait")
        pids = [pid for _, pid, _ in self.workers(2)]
        job.send_signal(signal.SIGTSTP)
        until(lambda: {state(pid) for pid in pids} == {"T"}, "all are stopped")
        time.sleep(2.5)  # longer than the timeout: this is what must not count
        job.send_signal(signal.SIGCONT)
        until(lambda: {state(pid) for pid in pids} == {"S"}, "all go on")
        job.terminate()
        _, err = self.end(job, 143)
        self.assertNotIn("aborted", err)

    # Shortages.

    @unittest.skipUnless(os.geteuid() == 0, "another user's limit of processes takes root")
    @unittest.skipIf(os.environ.get("TORCHUP_SANITIZE"), "a sanitizer ends the process that gets no thread")
    def test_too_few_processes_are_named_wherever_they_end(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", folder]))
        os.chmod(folder, 0o755)
        program = os.path.join(folder, "torchup")
        subprocess.run(["cp", TORCHUP, program], check=True)
        user = 54_321
        for limit in range(1, 9):

            def become_poor(limit=limit):
                resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
                os.setgid(user), os.setuid(user)

            done = subprocess.run([program, "--nproc-per-node=3", "/bin/sh", "-c", "sleep 0.2"], preexec_fn=become_poor, cwd=folder,
                                  capture_output=True, text=True, timeout=30, env={"PATH": "/bin", "TMPDIR": folder, "OMP_NUM_THREADS": "1"})
            self.assertIn(done.returncode, (0, 1, 65), done.stderr)
            self.assertNotIn("internal fault", done.stderr)
            if done.returncode:
                self.assertRegex(done.stderr, "Resource temporarily unavailable|no more threads|no new thread")
            self.nothing_left()

    def test_a_system_without_close_range_is_refused_with_the_oldest_kernel(self):
        done = subprocess.run([sys.executable, "-c", WITHOUT_CALL, "436", TORCHUP, WORKER, "exit", "0"], capture_output=True, text=True, timeout=20)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertRegex(done.stderr, r"^torchup: torchup needs Linux 5\.9 or newer, .*here: Linux ")

    @unittest.skipUnless(own_cgroup(), "no cgroup of version 2 that is ours to divide")
    def test_workers_join_their_cgroup_where_they_cannot_be_born_in_it(self):
        job = subprocess.Popen([sys.executable, "-c", WITHOUT_CALL, "435", TORCHUP, WORKER, "note", self.notes, "on", "15", "0", "wait"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stderr.close()))
        [(_, worker, _)] = self.workers(1)
        self.assertRegex(cgroup_of(worker), r"/torchup\.\d+\.")
        job.terminate()
        self.assertEqual(job.wait(20), 143)

    # What good workers leave behind.

    def test_what_a_good_worker_leaves_behind_may_tidy_up(self):
        done = os.path.join(self.scratch.name, "tidied")
        # It would not survive a TERM; two seconds are what torch's own helper takes.
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=1", f"heir 2 {done} exit 0"), 0)
        with open(done) as file:
            self.assertEqual(len(file.read().split()), 2)

    def test_what_stays_longer_is_ended(self):
        begin = time.monotonic()
        self.end(self.start("--shutdown-timeout=20", "heir 60 /dev/null exit 0"), 0)
        self.assertGreater(time.monotonic() - begin, 2.9)

    # Standard input.

    def test_all_workers_inherit_standard_input(self):
        for count in (1, 3):
            job = self.start(f"--nproc-per-node={count}", "only_reads", stdin=subprocess.PIPE)
            out, _ = job.communicate("x\n" * count, timeout=20)
            self.assertEqual((job.returncode, out.split()), (0, ["x"] * count))

    # Containers.

    def test_as_pid_1(self):
        namespace = ["unshare", "--pid", "--fork", "--mount-proc"]
        if os.geteuid() != 0 or subprocess.run([*namespace, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no pid namespaces here")
        job = subprocess.Popen([*namespace, TORCHUP, "--nproc-per-node=2", "--shutdown-timeout=1", WORKER, *f"child on 15 0 note {self.notes} wait".split()],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.workers(2)
        os.kill(children(job.pid)[0], signal.SIGTERM)  # PID 1 of the namespace, which ignores what it does not handle
        self.assertEqual(job.wait(20), 143)
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
