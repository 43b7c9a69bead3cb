"""--preload program: workers on our runtime that are forked from their own program are as executed ones.

usage: tests/support/run_case.py forked_test.py CASE TORCHUP FORKED_WORKER TOY_WORKER STRIPPED_PROGRAM UNMARKED_PROGRAM
"""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import unittest

import preload_lives
from preload_job import TORCHUP, Case, descendants, state, until

FORKED, TOY, STRIPPED, UNMARKED = map(os.path.abspath, sys.argv[1:5])
PRELOAD = "--preload=program"
WITHOUT_IT = "workers are started without it"
# These differ between any two jobs, or workers; what they are is looked at by the program.
VARYING = ("variable MASTER_PORT", "variable TORCHELASTIC_RUN_ID", "variable TORCHELASTIC_ERROR_FILE", "variable TORCHUP_WORKER_CHANNEL")


def plain(text):
    return re.sub(r"0x[0-9a-f]+|pid:? ?\d+|process \d+|\d\d:\d\d:\d\d\S*|localhost:\d+|/\S*error\.json|None_\w{8}|\d{10}", "~", text)


class Same(Case, unittest.TestCase):
    """What one says that was forked is what one says that was executed."""

    def both(self, *words, program=FORKED, launcher=(), **how):
        executed = self.run_job(*launcher, program, *words, **how)
        forked = self.run_job(PRELOAD, *launcher, program, *words, **how)
        self.assertNotIn(WITHOUT_IT, forked.stderr)
        return executed, forked

    def facts(self, text):
        lines = [line.partition("\t") for line in text.splitlines()]
        found = {name: value for name, _, value in lines if name not in VARYING}
        self.assertGreater(len(found), 60, text)
        self.assertEqual(found.get("channel is ours", "1"), "1")
        self.assertIn("socket", found["descriptor 4"])
        self.assertEqual(found["page"], "used")
        found["cgroup"] = re.sub(r"torchup\.\d+\.\w+\.", "", found["cgroup"])
        found["environ"] = [entry.split("=")[0] for entry in found["environ"].split("|")]
        found["order of variables"] = [name for name, _, _ in lines if name.startswith("variable ")]
        return found

    def compare(self, *words, **how):
        executed, forked = self.both("facts", *words, **how)
        self.assertEqual((executed.returncode, forked.returncode), (0, 0), executed.stderr + forked.stderr)
        executed, forked = self.facts(executed.stdout), self.facts(forked.stdout)
        self.assertEqual({name: (executed.get(name), forked.get(name)) for name in executed | forked
                          if executed.get(name) != forked.get(name)}, {})
        return forked

    def test_facts(self):
        facts = self.compare("", "a b", "--ü=3")
        self.assertEqual(facts["arguments"], f"{FORKED}|facts||a b|--ü=3|")
        self.assertEqual(facts["comm"].strip(), "forked_worker")
        self.assertEqual(facts["death signal"], str(int(signal.SIGKILL)))

    def test_facts_where_the_launcher_is_asked_for_more(self):
        self.compare(launcher=["--no-capture"])
        self.compare(launcher=["--virtual-local-rank", "--no-python"], env={"CUDA_VISIBLE_DEVICES": "3,4", "EMPTY": "", "LC_ALL": "C"})
        self.compare(env={"BIG": "x" * 100_000, **{f"MANY_{number}": str(number) for number in range(1000)}})

    def test_facts_after_what_main_has_done(self):
        facts = self.compare("variables", env={"CHANGED": "before", "TAKEN": "before"})
        self.assertEqual([facts.get(f"variable {name}") for name in ("ADDED", "CHANGED", "TAKEN")], ["by main", "by main", None])
        self.assertEqual(facts["variable MASTER_ADDR"], "127.0.0.1")
        self.assertIn("/dev/zero", self.compare("open")["descriptor 5"])
        self.compare("signals")
        self.assertEqual(self.compare("chdir")["cwd"], str(self.folder.resolve().parent))

    def test_standard_input_is_that_of_the_job(self):
        self.assertEqual(self.compare(stdin=None, input="xyz")["input"], str(ord("x")))

    def test_streams_on_a_terminal(self):
        seen = []
        for words in ([], [PRELOAD]):
            ours, theirs = pty.openpty()
            job = self.start_job(*words, FORKED, "facts", stdout=theirs, stderr=theirs)
            os.close(theirs)
            text = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:
                    break
                text += part
                if not part:
                    break
            os.close(ours)
            self.assertEqual(job.wait(), 0, text)
            facts = self.facts(text.decode().replace("\r\n", "\n"))
            seen.append({name: re.sub(r"/dev/pts/\d+", "~", str(value)) for name, value in facts.items()})
        self.maxDiff = None
        self.assertEqual(*seen)
        self.assertIn("a terminal", seen[0]["descriptor 1"])

    def ends(self, what, code):
        """Exit code or signal, and what is said of it: by the program, in its error file, in the launcher's report."""
        seen = []
        for words in ([], [PRELOAD]):
            logs = self.folder / f"logs{len(words)}"
            done = self.run_job(*words, f"--log-dir={logs}", "--result-file=result.json", TOY, what)
            result = json.loads((self.folder / "result.json").read_text())
            self.assertEqual([worker["exit_code"] for worker in result["attempts"][0]["workers"]], [code], done.stderr)
            files = [json.loads(path.read_text())["message"] for path in logs.glob("**/error.json")]
            said = [(file["message"], file["extraInfo"].get("step"), file["extraInfo"]["py_callstack"]) for file in files]
            seen.append(plain(f"{done.returncode} {done.stdout} {said} {done.stderr.partition('torchup: failed')[0]}"))
        self.assertEqual(*seen)
        return seen[1]

    def test_end_by_an_exit_code(self):
        self.ends("exit", 3)

    def test_end_by_an_exception(self):
        self.assertIn("fail_here", self.ends("throw", 1))

    def test_end_by_an_exception_of_torch(self):
        self.assertIn("fail_here", self.ends("throw-torch", 1))

    def test_end_by_a_signal(self):
        self.assertIn("fail_here", self.ends("segv", -signal.SIGSEGV))

    def test_end_by_a_signal_that_asks_for_stacks(self):
        self.assertIn("fail_here", self.ends("quit", -signal.SIGQUIT))

    def test_end_by_a_stack_overflow(self):
        self.assertIn("overflow", self.ends("overflow", -signal.SIGSEGV))

    def test_ranks_compute_and_meet(self):
        executed, forked = self.both("meet", launcher=["--nproc-per-node=3"])
        self.assertEqual(forked.returncode, 0, forked.stderr)
        self.assertEqual(executed.stdout, forked.stdout)
        self.assertEqual(len(forked.stdout.splitlines()), 3)

    def test_random_numbers(self):
        """Each worker has its own, unless the program has seeded them: then they are those of executed ones."""
        seen = [line for _ in range(2) for line in self.run_job(PRELOAD, "--nproc-per-node=3", FORKED, "random").stdout.splitlines()]
        self.assertEqual(len(set(" ".join(seen).split())), 2 * 3 * 2)
        executed, forked = self.both("random", "seed", launcher=["--nproc-per-node=2"])
        self.assertEqual(executed.stdout, forked.stdout)
        self.assertEqual(len(set(forked.stdout.splitlines())), 1)

    def test_spawn(self):
        """Under a launcher torchup::spawn is worker_main, in the template too."""
        done = self.run_job(PRELOAD, "--nproc-per-node=2", FORKED, "whose", "spawn")
        self.assertEqual((done.returncode, done.stdout), (0, "forked\nforked\n"), done.stderr)

    def test_steps_are_told_over_the_page(self):
        done = self.run_job(PRELOAD, "--events=events.jsonl", FORKED, "step")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([event["last_step"] for event in self.events("worker_exited")], [5])

    def test_what_main_prints_comes_once(self):
        done = self.run_job(PRELOAD, "--nproc-per-node=2", FORKED, "whose", "print")
        self.assertEqual(done.stdout, "[preload] on the way, to worker_main\nforked\nforked\n", done.stderr)

    def test_workers_that_end_at_once(self):
        for _ in range(3):
            done = self.run_job(PRELOAD, "--nproc-per-node=8", "--propagate-exit-code", TOY, "exit")
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_drain(self):
        job = self.start_job(PRELOAD, "--nproc-per-node=3", "--drain-signals=TERM", TOY, "steps", "1",
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3):
            self.assertIn("begun", job.stdout.readline())
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=100)
        self.assertEqual(job.returncode, 75, err)
        self.assertEqual(len(re.findall(r"stop \d+\n", out)), 3, out)
        self.assertEqual(len(set(re.findall(r"stop \d+\n", out))), 1, out)


class Lives(preload_lives.Lives, unittest.TestCase):
    PRELOAD = "program"

    def program(self):
        return [FORKED, "live"]

    def test_restart_takes_what_is_parked(self):
        self.restart_takes_what_is_parked()

    def test_parked_process_dies(self):
        self.parked_process_dies()

    def test_template_dies_and_has_one_successor(self):
        self.template_dies_and_has_one_successor()

    def test_nothing_is_left_at_the_end(self):
        self.nothing_is_left_at_the_end()

    def test_agent_is_killed(self):
        self.killed("agent")

    def test_guardian_is_killed(self):
        self.killed("guardian")


class CannotServe(Case, unittest.TestCase):
    """The job runs, by exec; one line says why."""

    def check(self, reason, *before):
        done = self.run_job(PRELOAD, "--nproc-per-node=2", "--events=events.jsonl", FORKED, "whose", *before)
        lines = [line for line in done.stderr.splitlines() if WITHOUT_IT in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], f"--preload: {reason}; {WITHOUT_IT}")
        self.assertEqual(len(self.events("preload_given_up")), 1)
        return done

    def runs(self, reason, *before):
        done = self.check(reason, *before)
        self.assertEqual((done.returncode, done.stdout), (0, "executed\nexecuted\n"), done.stderr)
        return done

    def test_a_thread(self):
        self.runs(r"before worker_main the program has started a thread \(\w+\), which no forked process would have", "thread")

    def test_children_that_cannot_compute(self):
        self.runs(r"a process forked from the program does not compute \(it ended with 4\)", "broken-children")

    def test_gpu(self):
        device = f"/dev/nvidia_test_{os.getpid()}"
        try:
            open(device, "w").close()
        except OSError as error:
            self.skipTest(f"takes a file in /dev: {error}")
        self.addCleanup(os.unlink, device)
        self.runs("before worker_main the program has opened the GPU, which no forked process could use", f"open={device}")

    def test_it_exits_on_its_way(self):
        done = self.check("the program ended with exit code 3 before it came to worker_main", "exit")
        self.assertEqual(done.returncode, 1)  # as its workers do

    def test_it_dies_on_its_way(self):
        self.check("the program was ended by SIGSEGV before it came to worker_main", "segv")

    def test_it_closes_what_it_is_spoken_to_by(self):
        """Nothing is trained by whom no agent knows."""
        done = self.runs("the program ended with exit code 1 before it came to worker_main", "closed")
        self.assertIn("[preload] torchup: worker_main was called in a process that --preload program cannot fork", done.stderr)

    def test_worker_main_in_a_child_of_it(self):
        done = self.check("the program ended with exit code 1 before it came to worker_main", "in-a-child")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[preload] torchup: worker_main was called in a process that --preload program cannot fork", done.stderr)

    def test_it_is_killed_while_workers_wait_for_it(self):
        job = self.start_job(PRELOAD, "--nproc-per-node=2", FORKED, "whose", "sleep", stderr=subprocess.PIPE)
        template = until(lambda: [pid for pid in descendants(job.pid) if self.sleeps(pid)], "it is on its way")[0]
        os.kill(template, signal.SIGKILL)
        until(lambda: len([pid for pid in descendants(job.pid) if self.sleeps(pid)]) == 2, "workers are executed")
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=60)
        self.assertIn(f"the program was ended by SIGKILL before it came to worker_main; {WITHOUT_IT}", err)
        self.assertEqual(job.returncode, 130)
        self.assertEqual([pid for pid in descendants(os.getpid()) if state(pid)], [])

    def sleeps(self, pid):
        try:
            with open(f"/proc/{pid}/comm") as name, open(f"/proc/{pid}/wchan") as place:
                return name.read().strip() == "forked_worker" and "nanosleep" in place.read()
        except (FileNotFoundError, ProcessLookupError):
            return False

    def test_arguments_that_differ(self):
        done = self.run_job(PRELOAD, "--nproc-per-node=2", FORKED, "whose", "${local_rank}")
        self.assertEqual(done.stdout, "executed\nexecuted\n", done.stderr)
        self.assertIn(f"has other arguments for each worker, and may look at them before worker_main; {WITHOUT_IT}", done.stderr)


class Mark(Case, unittest.TestCase):
    """Which programs are started so."""

    def plan(self, program, *words, **how):
        return self.run_job(PRELOAD, "--dry-run", *words, program, **how)

    def refused(self, program, *reasons):
        done = self.run_job(PRELOAD, program)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for reason in reasons:
            self.assertIn(reason, done.stderr)

    def test_marked_programs(self):
        stripped = shutil.copy(FORKED, self.folder / "stripped")
        subprocess.run(["strip", "--strip-all", stripped], check=True)
        for program in (FORKED, STRIPPED, stripped):
            done = self.plan(program)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"(?m)^preload +program$")
        self.assertEqual(self.run_job("--dry-run", FORKED, env={"PET_PRELOAD": "program"}).stdout.count("preload  "), 1)

    def test_other_programs_are_refused(self):
        for program in (TORCHUP, "/bin/true", UNMARKED):
            self.refused(program, "--preload=program: ", "has no mark of torchup's worker_main (ELF file): name a program")
        wrapper = self.write("wrapper", f"#!/bin/sh\nexec {FORKED} whose\n")
        wrapper.chmod(0o755)
        self.refused(str(wrapper), "has no mark of torchup's worker_main (executable script with #!)")
        self.refused(str(self.write("program.py", "")), "is run by Python", "name the modules that it imports")
