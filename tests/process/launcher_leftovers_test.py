"""What is left of a job on one node: nothing, whoever is killed and whatever the system lacks.

usage: launcher_leftovers_test.py TORCHUP FAKE_WORKER [name of a test ...]
"""

import fcntl
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from launcher_job import LEFT_LIMIT_S, TORCHUP, WORKER, Job, cgroup_of, children, own_cgroup, state, until

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from ranks import free_port  # noqa: E402

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

# Runs a program as root without the right to signal other users' processes.
WITHOUT_KILL = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
# The call whose want surprises every program that waits for events.
EPOLL_CTL = {"x86_64": "233", "aarch64": "21"}
AS_NOBODY = "setpriv --reuid=65534 --clear-groups"
WITHOUT_CGROUP = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]


class Launcher(Job, unittest.TestCase):
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
        self.assertEqual(job.wait(30), 137)
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
            job.wait(30)
            self.nothing_left()
            until(lambda: not os.path.exists(folder), f"{folder} is removed", LEFT_LIMIT_S)
            os.unlink(self.notes)

    @unittest.skipUnless(os.geteuid() == 0, "a mount of our own takes root")
    def test_without_a_cgroup_the_workers_go_too(self):
        job = subprocess.Popen([*WITHOUT_CGROUP, TORCHUP, "--nproc-per-node=2", WORKER, "child", "note", self.notes, "wait"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual({cgroup_of(pid) for _, pid, _ in self.workers(2)}, {cgroup_of("self")})
        job.kill()
        job.wait(30)
        self.nothing_left()

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

    @unittest.skipUnless(own_cgroup(), "no cgroup of version 2 that is ours to divide")
    def test_the_cgroup_of_a_job_in_another_pid_namespace_stays(self):
        """Its number is nobody's here, and nobody lives in it before the first worker is born."""
        gone = subprocess.Popen(["true"])
        gone.wait()
        folder = f"{own_cgroup()}/torchup.{gone.pid}.unseen.0"
        os.mkdir(folder)
        self.addCleanup(lambda: os.path.exists(folder) and os.rmdir(folder))
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        self.end(self.start("", "exit 0"), 0)
        self.assertTrue(os.path.exists(folder))
        os.close(held)
        self.end(self.start("", "exit 0"), 0)
        self.assertFalse(os.path.exists(folder))

    @unittest.skipUnless(own_cgroup(), "no cgroup of version 2 that is ours to divide")
    def test_a_jobs_cgroup_is_held(self):
        job = self.start("", "note {notes} wait")
        [(_, pid, _)] = self.workers(1)
        folder = os.open(own_cgroup() + "/" + cgroup_of(pid).rpartition("/")[2], os.O_RDONLY)
        self.addCleanup(os.close, folder)
        with self.assertRaises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        job.terminate()
        job.wait(30)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)

    # What good workers leave behind.

    def test_what_a_good_worker_leaves_behind_may_tidy_up(self):
        done = os.path.join(self.scratch.name, "tidied")
        # It would not survive a TERM, which comes after a second more than torch's own helper takes.
        self.end(self.start("--nproc-per-node=2 --shutdown-timeout=1", f"heir 1.5 {done} exit 0"), 0)
        with open(done) as file:
            self.assertEqual(len(file.read().split()), 2)

    def test_what_stays_longer_is_ended(self):
        begin = time.monotonic()
        self.end(self.start("--shutdown-timeout=20", "heir 60 /dev/null exit 0"), 0)
        self.assertGreater(time.monotonic() - begin, 2.9)

    @staticmethod
    def is_heir(pid):
        """Whether this is the one who stays, who has closed stdout but not stdin; not one of those on the way to it."""
        return os.path.lexists(f"/proc/{pid}/fd/0") and not os.path.lexists(f"/proc/{pid}/fd/1")

    def test_what_is_left_by_what_was_left_is_told_to_end_too(self):
        """Who gets SIGTERM starts another process, which nobody has told to end yet."""
        leaves = """setsid sh -c 'trap "sleep 100 & exit 0" TERM; while :; do sleep 0.05; done' &"""
        begin = time.monotonic()
        done = subprocess.run([TORCHUP, "--shutdown-timeout=30", "--no-python", "sh", "-c", leaves], timeout=60,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(time.monotonic() - begin, 25)
        self.nothing_left()

    def test_what_was_left_may_tidy_up_by_others_when_it_is_told_to_end(self):
        tidied = os.path.join(self.scratch.name, "tidied")
        leaves = f"""setsid sh -c 'trap "sleep 1 && touch {tidied}; exit 0" TERM; while :; do sleep 0.05; done' &"""
        done = subprocess.run([TORCHUP, "--shutdown-timeout=30", "--no-python", "sh", "-c", leaves], timeout=60,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.exists(tidied))
        self.nothing_left()

    def test_the_first_signal_ends_the_wait_for_it(self):
        """By the launcher's own times: without a signal it never waits less than its patience, on a busy machine sometimes more."""
        patience_us, took_us = 3_000_000, None
        for _ in range(5):
            events = os.path.join(self.scratch.name, "events.jsonl")
            job = self.start(f"--events={events}", "note {notes} heir 60 /dev/null exit 0")
            [(_, worker, _)] = self.workers(1)
            until(lambda: state(worker) is None, "the worker has ended")
            # Or gone: the patience was over before all this was seen.
            until(lambda: job.poll() is not None or any(self.is_heir(heir) for inner in children(job.pid) for heir in children(inner)),
                  "its heir is there")
            job.terminate()
            job.communicate(timeout=20)
            self.nothing_left()
            with open(events) as file:
                times = {event["event"]: event["monotonic_us"] for event in map(json.loads, file)}
            took_us = times["attempt_ended"] - times["worker_exited"]
            if took_us < patience_us:
                return self.assertIn("signal_received", times)
            os.unlink(events), os.unlink(self.notes)
        self.fail(f"each time it waited; at last {took_us} us")

    # Whom not even SIGKILL ends. One that runs as another user stands for one that sleeps in the kernel for ever.

    def start_powerless(self, options, worker, cgroup):
        """A job that must not signal whom `{nobody}` starts, where cgroups are not to be had or are."""
        job = subprocess.Popen([*([] if cgroup else WITHOUT_CGROUP), sys.executable, "-S", "-c", WITHOUT_KILL, TORCHUP, *options.split(),
                                "--no-python", "sh", "-c", worker.format(nobody=AS_NOBODY, notes=self.notes)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stderr.close()))
        return job

    def end_the_immortal(self, count):
        left = children(os.getpid())
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(len(left), count)
        self.nothing_left()

    @unittest.skipUnless(os.geteuid() == 0, "another user's process takes root")
    def test_a_worker_whom_nothing_ends_makes_the_code_1(self):
        job = self.start_powerless("--shutdown-timeout=0", "echo 0 $$$$ 0 > {notes}; exec {nobody} sleep 100", cgroup=False)
        [(_, worker, _)] = self.workers(1)
        until(lambda: os.stat(f"/proc/{worker}").st_uid == 65534, "the worker is another user's")
        begin = time.monotonic()
        job.terminate()
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 1, err)  # and not 143, which says that all is over
        self.assertLess(time.monotonic() - begin, 19)  # ten seconds after SIGKILL, and no second time for the same process
        self.assertIn(f"rank 0 (pid {worker}) runs as another user", err)
        self.assertIn("a worker cannot be killed", err)
        self.end_the_immortal(1)

    @unittest.skipUnless(os.geteuid() == 0 and own_cgroup(), "takes root, and a cgroup of version 2 that is ours to divide")
    def test_a_cgroup_ends_whom_we_may_not_signal(self):
        job = self.start_powerless("--shutdown-timeout=0", "echo 0 $$$$ 0 > {notes}; exec {nobody} sleep 100", cgroup=True)
        [(_, worker, _)] = self.workers(1)
        until(lambda: os.stat(f"/proc/{worker}").st_uid == 65534, "the worker is another user's")
        job.terminate()
        self.assertEqual(job.wait(9), 143)  # before anybody gives it up
        self.nothing_left()

    @unittest.skipUnless(os.geteuid() == 0, "another user's process takes root")
    def test_what_nothing_ends_is_told_once_and_keeps_the_code_of_the_workers(self):
        job = self.start_powerless("--shutdown-timeout=0 --max-restarts=1",
                                   "setsid {nobody} sleep 100 & until test \"$(stat -c %u /proc/$!)\" = 65534; do sleep 0.02; done; "
                                   "exit $((1 - TORCHELASTIC_RESTART_COUNT))", cgroup=False)
        begin = time.monotonic()
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        self.assertLess(time.monotonic() - begin, 12)
        told = [line for line in err.splitlines() if "going on without" in line]
        self.assertEqual([(line.count("process "), line.count("of another user")) for line in told], [(1, 1), (1, 1)], err)
        self.end_the_immortal(2)

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

    @unittest.skipUnless(platform.machine() in EPOLL_CTL, "the number of epoll_ctl is not known here")
    def test_what_no_one_has_foreseen_is_an_internal_fault(self):
        done = subprocess.run([sys.executable, "-c", WITHOUT_CALL, EPOLL_CTL[platform.machine()], TORCHUP, WORKER, "note", self.notes, "wait"],
                              capture_output=True, text=True, timeout=20)
        self.assertEqual(done.returncode, 70, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^torchup: internal fault: .*Function not implemented")
        self.nothing_left()

    def test_an_endpoint_that_is_not_reached_is_67(self):
        for options in ("is_host=false,join_timeout=1", "join_timeout=1"):
            port = free_port()
            with socket.socket() as other:  # a port that is somebody else's, who never speaks
                if "is_host" not in options:
                    other.bind(("127.0.0.1", 0))
                    other.listen()
                    port = other.getsockname()[1]
                _, err = self.end(self.start(f"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=far "
                                             f"--rdzv-conf={options}", "note {notes} wait"), 67)
            self.assertIn(f"127.0.0.1:{port}", err)
            self.assertFalse(os.path.exists(self.notes))

    @unittest.skipUnless(own_cgroup(), "no cgroup of version 2 that is ours to divide")
    def test_workers_join_their_cgroup_where_they_cannot_be_born_in_it(self):
        job = subprocess.Popen([sys.executable, "-c", WITHOUT_CALL, "435", TORCHUP, WORKER, "note", self.notes, "on", "15", "0", "wait"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stderr.close()))
        [(_, worker, _)] = self.workers(1)
        self.assertRegex(cgroup_of(worker), r"/torchup\.\d+\.")
        job.terminate()
        self.assertEqual(job.wait(20), 143)

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
