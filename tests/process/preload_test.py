"""--preload over the life of a job: restarts from parked processes, and nothing of it outlives the job, whoever is killed.

usage: tests/support/run_case.py preload_test.py CASE TORCHUP
"""

import os
import signal
import subprocess
import time
import unittest

import preload_lives
from preload_job import command_line, descendants, state, until
from preload_lives import parent


class Lives(preload_lives.Lives, unittest.TestCase):
    """Restarts from parked processes, and what becomes of all of them."""

    PROGRAM = """
        import os, sys, time
        import mark
        with open('seen', 'a') as file:
            file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['RANK']} {os.getpid()} {mark.PID}\\n")
        while not os.path.exists('end'):
            time.sleep(0.01)
        """
    PRELOAD = "mark"

    def program(self):
        self.write("program.py", self.PROGRAM)
        return ["program.py"]

    def test_restart_takes_what_is_parked(self):
        self.restart_takes_what_is_parked()

    def test_parked_process_dies(self):
        self.parked_process_dies()

    def test_template_dies_and_has_one_successor(self):
        self.template_dies_and_has_one_successor()

    def test_nothing_is_left_at_the_end(self):
        self.nothing_is_left_at_the_end()

    def test_restart_before_anything_is_parked(self):
        self.write("program.py", """
            import os, sys, mark
            assert mark.PID != os.getpid()
            sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '3')
            """)
        done = self.run_job("--preload=mark", "--max-restarts=3", "--nproc-per-node=2", "program.py")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_workers_that_end_at_once(self):
        """Who has started them may see their end before their start."""
        self.write("program.py", "import os; os._exit(int(os.environ['LOCAL_RANK']) % 2 * 3)\n")
        for _ in range(5):
            done = self.run_job("--preload=mark", "--nproc-per-node=8", "--propagate-exit-code", "program.py")
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_template_dies_while_workers_wait_for_it(self):
        self.write("slow.py", "import time; open('importing', 'w').close(); time.sleep(60)\n")
        self.write("program.py", self.PROGRAM)
        job = self.start_job("--preload=slow", "--nproc-per-node=2", "program.py", stderr=subprocess.PIPE)
        until(lambda: (self.folder / "importing").exists(), "it imports")
        time.sleep(0.3)
        self.assertEqual(self.seen(0), [])
        template = next(pid for pid in descendants(job.pid) if command_line(pid)[2:3] == ["-c"])
        os.kill(template, signal.SIGKILL)
        self.assertTrue(all(pid == mark for _, pid, mark in self.attempt(0, 2)))
        self.assertIn("was ended by SIGKILL while importing slow; workers are started without it", self.end(job))

    def test_stop_while_it_imports(self):
        self.write("slow.py", "import time; open('importing', 'w').close(); time.sleep(60)\n")
        self.write("program.py", self.PROGRAM)
        job = self.start_job("--preload=slow", "--nproc-per-node=2", "program.py", stderr=subprocess.PIPE)
        until(lambda: (self.folder / "importing").exists(), "it imports")
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=25)  # the import would take a minute, the grace is 30 s
        self.assertEqual(job.returncode, 130)
        self.assertEqual(descendants(os.getpid()), [])

    def test_trial_child_ends_with_the_template(self):
        self.write("numpy.py", """
            import os, time
            class ones:
                def __init__(self, shape): pass
                def __matmul__(self, other):
                    with open('half', 'w') as file: file.write(str(os.getpid()))
                    os.rename('half', 'trial')
                    time.sleep(60)
            """)
        self.write("program.py", self.PROGRAM)
        job = self.start_job("--preload=mark,numpy", "program.py", stderr=subprocess.PIPE)
        until(lambda: (self.folder / "trial").exists(), "it computes")
        trial = int((self.folder / "trial").read_text())
        os.kill(parent(trial), signal.SIGKILL)
        self.attempt(0, 1)
        until(lambda: state(trial) in (None, "Z"), "it is gone", limit_s=5)
        self.end(job)

    def test_modules_that_change_what_the_template_stands_on(self):
        """Whoever waits, waits on: for the order to fork, and for the order to start."""
        self.write("program.py", """
            import os, sys, time
            import mark
            links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")}
            channel, = (int(fd) for fd, link in links.items() if link.startswith("socket:"))
            assert mark.PID != os.getpid() and os.get_blocking(channel)
            if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':
                time.sleep(1.5)
                sys.exit(1)
            """)
        for text in ("import socket; socket.setdefaulttimeout(0.001)",
                     "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"):
            self.write("changes.py", text)
            done = self.run_job("--preload=mark,changes", "--max-restarts=1", "program.py")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("AssertionError", done.stderr)

    def test_leftovers_are_swept_and_the_parked_spared(self):
        """Between two attempts: what the first one's worker has left is gone when the second one runs in what was parked."""
        self.write("program.py", """
            import os, subprocess, sys, time
            import mark
            def until(name):
                while not os.path.exists(name):
                    time.sleep(0.01)
            def alive(pid):
                try:
                    return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] not in 'ZX'
                except FileNotFoundError:
                    return False
            again = os.environ['TORCHELASTIC_RESTART_COUNT']
            if again == '0':
                child = subprocess.Popen(['setsid', 'sleep', '1000'])
                open('left', 'w').write(str(child.pid))
            else:
                open('still', 'w').write(str(alive(int(open('left').read()))))
            with open('seen', 'a') as file:
                file.write(f"{again} 0 {os.getpid()} {mark.PID}\\n")
            until('fail' if again == '0' else 'end')
            if again == '0':
                os._exit(1)
            """)
        job = self.start_job("--preload=mark", "--max-restarts=1", "--shutdown-timeout=2", "--events=events.jsonl", "program.py",
                             stderr=subprocess.PIPE)
        [(_, worker, template)] = self.attempt(0, 1)
        left = int((self.folder / "left").read_text())
        self.assertTrue(state(left))
        [parked] = until(lambda: [pid for pid in self.parked(job, template) if pid != left], "one is parked")
        (self.folder / "fail").touch()
        self.assertEqual(self.attempt(1, 1), [[0, parked, template]])
        self.assertEqual((self.folder / "still").read_text(), "False")
        err = self.end(job)
        self.assertNotIn("waiting for what the workers have left behind", err)
        self.assertEqual(len(self.events("template_ready")), 1)

    def test_agent_is_killed(self):
        self.killed("agent")

    def test_guardian_is_killed(self):
        self.killed("guardian")
