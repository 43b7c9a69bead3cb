"""What --preload is over the life of a job, whatever is preloaded: restarts from parked processes, and nothing that is left,
whoever is killed. The scripts that test it say what is started."""

import os
import signal
import subprocess

from preload_job import Case, Path, descendants, own_cgroup, state, until


def leads(pid):
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


class Lives(Case):
    """PRELOAD, and `program()`: words of a program that appends a line to the file `seen`, RESTART_COUNT RANK PID and the pid of
    the process that has loaded it, and lives until there is a file `end`."""

    def start(self, *options, workers=3):
        return self.start_job(f"--preload={self.PRELOAD}", "--events=events.jsonl", "--max-restarts=3",
                              f"--nproc-per-node={workers}", *options, *self.program(), stderr=subprocess.PIPE)

    def seen(self, attempt):
        path = self.folder / "seen"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [[int(field) for field in line[1:]] for line in lines if int(line[0]) == attempt]

    def attempt(self, number, workers):
        return until(lambda: len(self.seen(number)) == workers and sorted(self.seen(number)), f"attempt {number} runs")

    def parked(self, job, template):
        """Forked processes that are no worker: they lead sessions of their own, and no one has seen them work."""
        others = [template] + [pid for number in range(4) for _, pid, _ in self.seen(number)]
        return [pid for pid in descendants(job.pid) if pid not in others and leads(pid) and parent(pid) != job.pid]

    def end(self, job):
        (self.folder / "end").touch()
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        return err

    def restart_takes_what_is_parked(self):
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

    def parked_process_dies(self):
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

    def template_dies_and_has_one_successor(self):
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

    def killed(self, whom):
        job = self.start()
        first = self.attempt(0, 3)
        template = first[0][2]
        until(lambda: len(self.parked(job, template)) == 3, "three are parked")
        everybody = descendants(job.pid)
        os.kill({"guardian": job.pid, "agent": parent(template)}[whom], signal.SIGKILL)
        job.communicate(timeout=60)
        until(lambda: not any(state(pid) not in (None, "Z") for pid in everybody), "nobody is left")

    def nothing_is_left_at_the_end(self):
        def cgroups():
            return [name for name in os.listdir(folder) if name.startswith(f"torchup.{job.pid}.")]

        folder = own_cgroup()
        job = self.start()
        template = self.attempt(0, 3)[0][2]
        until(lambda: len(self.parked(job, template)) == 3, "three are parked")
        everybody = descendants(job.pid)
        if folder:
            self.assertGreater(len(cgroups()), 0)
        self.end(job)
        self.assertEqual([pid for pid in everybody if state(pid)], [])
        if folder:
            self.assertEqual(cgroups(), [])
