"""--preload over the life of a job: restarts from parked processes, and nothing of it outlives the job, whoever is killed.

usage: preload_test.py TORCHUP [unittest options]
"""

import os
import signal
import subprocess
import time
import unittest

from preload_job import Case, Path, command_line, descendants, own_cgroup, state, until


def leads(pid):
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


class Lives(Case, unittest.TestCase):
    """Restarts from parked processes, and what becomes of all of them."""

    PROGRAM = """
        import os, sys, time
        import mark
        with open('seen', 'a') as file:
            file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['RANK']} {os.getpid()} {mark.PID}\\n")
        while not os.path.exists('end'):
            time.sleep(0.01)
        """

    def seen(self, attempt):
        path = self.folder / "seen"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [[int(field) for field in line[1:]] for line in lines if int(line[0]) == attempt]

    def attempt(self, number, workers):
        return until(lambda: len(self.seen(number)) == workers and sorted(self.seen(number)), f"attempt {number} runs")

    def start(self, *words, workers=3):
        self.write("program.py", self.PROGRAM)
        return self.start_job("--preload=mark", "--events=events.jsonl", "--max-restarts=3", f"--nproc-per-node={workers}", *words,
                              "program.py", stderr=subprocess.PIPE)

    def parked(self, job, template):
        """Forked processes that are no worker: they show the template's command line still, in sessions of their own."""
        return [pid for pid in descendants(job.pid) if pid != template and command_line(pid)[2:3] == ["-c"] and leads(pid)]

    def end(self, job):
        (self.folder / "end").touch()
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        return err

    def test_restart_takes_what_is_parked(self):
        job = self.start()
        first = self.attempt(0, 3)
        template = first[0][2]
        self.assertTrue(all(each[2] == template != each[1] for each in first))
        for number in range(3):
            parked = until(lambda: len(self.parked(job, template)) == 3 and sorted(self.parked(job, template)), "three are parked")
            os.kill(self.attempt(number, 3)[1][1], signal.SIGKILL)
            self.assertEqual(sorted(each[1] for each in self.attempt(number + 1, 3)), parked)
        self.end(job)
        started = self.events("worker_started")
        self.assertEqual([event["rank"] for event in started], [0, 1, 2] * 4)
        self.assertEqual(len(self.events("template_ready")), 1)

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

    def test_parked_process_dies(self):
        job = self.start()
        template = self.attempt(0, 3)[0][2]
        before = until(lambda: len(self.parked(job, template)) == 3 and self.parked(job, template), "three are parked")
        os.kill(before[1], signal.SIGKILL)
        after = until(lambda: len(set(self.parked(job, template)) - {before[1]}) == 3 and self.parked(job, template),
                      "it is replaced")
        self.assertEqual(len(set(after) & set(before)), 2)
        self.assertIsNone(state(before[1]), "it is reaped")
        err = self.end(job)
        self.assertNotIn("restart", err)

    def test_template_dies_and_has_one_successor(self):
        job = self.start("--nproc-per-node=2", workers=2)
        first = self.attempt(0, 2)
        template = first[0][2]
        parked = until(lambda: len(self.parked(job, template)) == 2 and sorted(self.parked(job, template)), "two are parked")
        os.kill(template, signal.SIGKILL)
        until(lambda: len(self.events("template_ready")) == 2, "another one is there")
        self.assertEqual(len(self.events("template_lost")), 1)
        self.assertTrue(all(state(each[1]) for each in first), "workers live on")
        os.kill(first[0][1], signal.SIGKILL)
        second = self.attempt(1, 2)
        self.assertEqual(sorted(each[1] for each in second), parked)
        successor = self.events("template_ready")[1]["pid"]
        until(lambda: len(self.parked(job, successor)) == 2, "two of the new one's are parked")
        os.kill(second[0][1], signal.SIGKILL)
        self.assertTrue(all(each[2] == successor for each in self.attempt(2, 2)))
        os.kill(successor, signal.SIGKILL)
        until(lambda: self.events("preload_given_up"), "it is given up")
        for each in self.parked(job, successor):
            os.kill(each, signal.SIGKILL)
        os.kill(self.attempt(2, 2)[0][1], signal.SIGKILL)
        self.assertTrue(all(pid == mark for _, pid, mark in self.attempt(3, 2)), "executed")
        err = self.end(job)
        self.assertEqual(len(self.events("template_lost")) + len(self.events("preload_given_up")), 2)
        self.assertEqual(err.count("workers are started without it"), 1)

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

    def test_leftovers_are_swept_and_the_parked_spared(self):
        self.write("program.py", """
            import os, subprocess, sys, time
            again = os.environ['TORCHELASTIC_RESTART_COUNT']
            if again == '0':
                child = subprocess.Popen(['setsid', 'sleep', '1000'])
                open('left', 'w').write(str(child.pid))
                time.sleep(2.5)
                os._exit(1)
            """)
        job = self.start_job("--preload=mark", "--max-restarts=1", "--shutdown-timeout=2", "--events=events.jsonl", "program.py",
                             stderr=subprocess.PIPE)
        _, err = job.communicate(timeout=40)
        self.assertEqual(job.returncode, 0, err)
        self.assertIsNone(state(int((self.folder / "left").read_text())))
        self.assertNotIn("waiting for what the workers have left behind", err)
        self.assertEqual(len(self.events("template_ready")), 1)

    def killed(self, whom):
        job = self.start()
        first = self.attempt(0, 3)
        template = first[0][2]
        until(lambda: len(self.parked(job, template)) == 3, "three are parked")
        everybody = descendants(job.pid)
        inner = int(next(line.split()[1] for line in Path(f"/proc/{template}/status").read_text().splitlines()
                         if line.startswith("PPid")))
        os.kill({"guardian": job.pid, "agent": inner}[whom], signal.SIGKILL)
        job.communicate(timeout=60)
        until(lambda: not any(state(pid) not in (None, "Z") for pid in everybody), "nobody is left")

    def test_agent_is_killed(self):
        self.killed("agent")

    def test_guardian_is_killed(self):
        self.killed("guardian")

    def test_nothing_is_left_at_the_end(self):
        cgroup = Path("/proc/self/cgroup").read_text()
        job = self.start()
        template = self.attempt(0, 3)[0][2]
        until(lambda: len(self.parked(job, template)) == 3, "three are parked")
        everybody = descendants(job.pid)
        self.end(job)
        self.assertEqual([pid for pid in everybody if state(pid)], [])
        self.assertEqual(cgroup, Path("/proc/self/cgroup").read_text())
        folder = own_cgroup()
        if folder:
            self.assertEqual([name for name in os.listdir(folder) if name.startswith(f"torchup.{job.pid}.")], [])


if __name__ == "__main__":
    unittest.main()
