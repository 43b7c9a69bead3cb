"""Rehearsals of faults on real jobs: what is done to whom, what is told of it, and which code follows from what was expected.

usage: tests/support/run_case.py rehearsal_test.py CASE TORCHUP REHEARSAL_WORKER
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from launcher_job import TORCHUP, WORKER, Job, children, state, until

LIMIT_S = 60


class Rehearsed(Job):
    def begin(self, script, worker="{notes} 40 0.05", options="--nproc-per-node=2", python=True, **more):
        self.events = os.path.join(self.scratch.name, "events")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self.scratch.name, **more.pop("variables", {})}
        program = [WORKER, *worker.format(notes=self.notes).split()] if python else ["--no-python", "sh", "-c", worker]
        job = subprocess.Popen(
            [TORCHUP, *options.split(), "--no-worker-hook", f"--rehearse={script}", f"--events={self.events}", *program],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **more)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stdout.close(), job.stderr.close()))
        return job

    def rehearse(self, status, script, *words, **more):
        """A whole rehearsal: what it wrote to stderr."""
        return self.end(self.begin(script, *words, **more), status, LIMIT_S)[1]

    def end_whole(self, job, status):
        """The same where a node was killed, which leaves its temporary folder."""
        out, err = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, status, err)
        self.nothing_left()
        return out, err

    def seen(self, name):
        if not os.path.exists(self.events):
            return []
        with open(self.events) as file:
            events = [json.loads(line) for line in file if line.endswith("\n")]
        return [event for event in events if event["event"] == name]

    def result(self):
        (ended,) = self.seen("rehearsal_ended")
        return ended

    def fault(self, beginning):
        (found,) = [fault for fault in self.result()["faults"] if fault["text"].startswith(beginning)]
        return found

    def starts(self):
        """Of all workers: (local rank, pid, rank, world size, restart count)."""
        if not os.path.exists(self.notes):
            return []
        with open(self.notes) as file:
            return [tuple(int(word) for word in line.split()) for line in file if line.endswith("\n")]


class OneNode(Rehearsed, unittest.TestCase):
    def test_a_killed_rank_and_what_its_restart_took(self):
        err = self.rehearse(0, "at step 10 kill rank=1; expect restarts=1 recovery<=30s ranks=2", "{notes} 40 0.05 saves=4",
                            options="--nproc-per-node=2 --max-restarts=1")
        self.assertRegex(err, r"rehearsal: kill rank=1 at [0-9.]+ s\n")
        self.assertIn("torchup: rehearsal passed\n", err)
        self.assertRegex(err, r"\nfault +at +noticed after +going on after +steps lost\nkill rank=1 +[0-9.]+ s +[0-9.]+ m?s +[0-9.]+ m?s +\d+\n")
        fault = self.fault("kill rank=1")
        self.assertFalse(fault["missing"])
        self.assertGreaterEqual(fault["going_on_after_s"], fault["noticed_after_s"])
        # What was done after the last save is done again: at least the steps behind it, at most those up to the look.
        self.assertGreaterEqual(fault["steps_lost"], 0)
        self.assertLess(fault["steps_lost"], 20)
        self.assertEqual([event["text"].split(" at ")[0] for event in self.seen("fault_injected")], ["kill rank=1"])
        (exited,) = [event for event in self.seen("worker_exited") if event["end"] == "failed"]
        self.assertEqual((exited["rank"], exited["exit_code"]), (1, -signal.SIGKILL))

    def test_the_code_follows_from_what_is_expected(self):
        for expected, options, status, words in (
                ("exit=0", "", 1, "rehearsal failed: expected exit=0, was 1"),
                ("exit=1", "", 0, "rehearsal passed"),
                ("restarts=0", "--max-restarts=1", 1, "rehearsal failed: expected restarts=0, was 1"),
                ("restarts<=1", "--max-restarts=1", 0, "rehearsal passed"),
                ("ranks=3", "--max-restarts=1", 1, "rehearsal failed: expected ranks=3, was 2"),
                ("exit=143", "--propagate-exit-code", 0, "rehearsal passed"),
                ("exit=3", "--propagate-exit-code", 143, "rehearsal failed: expected exit=3, was 143")):
            with self.subTest(expected=expected, options=options):
                err = self.rehearse(status, f"at 200ms kill rank=0 signal=TERM; expect {expected}", "sleep 3", python=False,
                                    options=f"--nproc-per-node=2 {options}")
                self.assertIn(words + "\n", err)
                self.assertEqual(self.seen("rehearsal_ended")[-1]["passed"], words == "rehearsal passed")
                os.unlink(self.events)

    def test_a_target_that_is_not_there_fails_the_rehearsal(self):
        err = self.rehearse(1, "at 100ms kill rank=2", "sleep 1.5", python=False)
        self.assertIn("rehearsal: kill rank=2 at 0.1 s: no rank 2 among 2\n", err)
        self.assertIn("rehearsal failed: kill rank=2 had no target\n", err)
        self.assertIn("kill rank=2: not there", err)
        os.unlink(self.events)
        err = self.rehearse(1, "at 1500ms kill rank=1", 'if [ "$RANK" = 0 ]; then sleep 3; fi', python=False)
        self.assertIn(": its worker has ended\n", err)
        os.unlink(self.events)
        err = self.rehearse(1, "at 100ms cut node=0 for=1s", "sleep 1.5", python=False)
        self.assertIn(": this node has no link to a coordinator that could be cut\n", err)

    def test_a_fault_that_never_came_fails_the_rehearsal(self):
        err = self.rehearse(1, "at 60s kill rank=1", "true", python=False)
        self.assertIn("rehearsal failed: at 60s kill rank=1 did not come before the end\n", err)

    def test_a_stopped_rank_stands_still_and_nobody_warns_of_it(self):
        job = self.begin("at step 5 stop rank=1 for=5s", "{notes} 150 0.05",
                         "--nproc-per-node=2 --hang-timeout=2,60 --on-hang=restart")
        second = until(lambda: [pid for local, pid, *_ in self.starts() if local == 1], "rank 1")[0]
        until(lambda: state(second) == "T", "rank 1 is stopped")
        _, err = self.end(job, 0, LIMIT_S)
        self.assertEqual(self.seen("worker_stopped"), [])
        self.assertEqual(self.seen("hang_found"), [])
        fault = self.fault("stop rank=1")
        self.assertGreaterEqual(fault["going_on_after_s"], 5)
        self.assertEqual((fault["noticed_after_s"], fault["steps_lost"]), (None, 0))
        self.assertIn("rehearsal passed", err)

    def test_a_stop_that_nobody_knows_of_is_warned_of(self):
        job = self.begin("at step 5 kill rank=1 signal=STOP", "{notes} 60 0.05")
        second = until(lambda: [pid for local, pid, *_ in self.starts() if local == 1], "rank 1")[0]
        until(lambda: self.seen("worker_stopped"), "a warning")
        os.killpg(second, signal.SIGCONT)
        self.end(job, 0, LIMIT_S)

    def until_done(self):
        return "while [ ! -e {}/done ]; do :; done".format(self.scratch.name)

    def done(self, job):
        open(os.path.join(self.scratch.name, "done"), "w").close()
        self.end(job, 0, LIMIT_S)
        self.assertEqual(self.seen("worker_stopped"), [])

    def first_and_second(self):
        until(lambda: self.seen("fault_injected"), "the fault")
        return [event["pid"] for event in sorted(self.seen("worker_started"), key=lambda event: event["rank"])]

    def test_a_slow_rank_is_stopped_now_and_then(self):
        job = self.begin("at 300ms slow rank=0 by=300% for=60s", self.until_done(), python=False)
        first, second = self.first_and_second()

        def used(pid):
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        states = set()
        before = used(first), used(second)
        until(lambda: states.add(state(first)) or (used(second) - before[1] >= 60), "0.6 s of work")
        after = used(first), used(second)
        self.assertIn("T", states)
        self.assertGreater(states, {"T"})  # and goes on in between
        # It runs a quarter of the time, where the other has all that the machine gives.
        self.assertLess(after[0] - before[0], 0.7 * (after[1] - before[1]))
        self.done(job)

    def test_a_rank_is_slow_for_a_time(self):
        job = self.begin("at 300ms slow rank=0 by=300% for=500ms", self.until_done(), python=False)
        first, _ = self.first_and_second()
        until(lambda: all(state(first) != "T" for _ in range(200)), "the end of the fault")
        self.done(job)

    def test_a_restart_lets_a_stopped_rank_go(self):
        # Rank 0 dies while rank 1 is stopped for an hour: rank 1 ends by the stop signal, not by SIGKILL.
        self.rehearse(0, "at 300ms stop rank=1 for=60m; at 600ms kill rank=0; expect restarts=1", "{notes} 30 0.05",
                      options="--nproc-per-node=2 --max-restarts=1")
        ends = {event["rank"]: event["exit_code"] for event in self.seen("worker_exited") if event["exit_code"] != 0}
        self.assertEqual(ends, {0: -signal.SIGKILL, 1: -signal.SIGTERM})

    def test_a_node_that_stands_still_and_goes_on(self):
        job = self.begin("at step 5 stop node=0 for=3s", "{notes} 60 0.05")
        pids = until(lambda: len(self.starts()) == 2 and [start[1] for start in self.starts()], "workers")
        inner = until(lambda: children(job.pid), "the inner process")[0]
        until(lambda: all(state(pid) == "T" for pid in (*pids, inner, job.pid)), "all are stopped")
        _, err = self.end(job, 0, LIMIT_S)
        self.assertEqual(self.seen("signal_received"), [])
        self.assertEqual(self.seen("worker_stopped"), [])
        self.assertGreaterEqual(self.fault("stop node=0")["going_on_after_s"], 3)
        self.assertIn("rehearsal passed", err)

    def test_a_stopped_node_whose_launcher_is_killed_leaves_nobody(self):
        for victim in ("outer", "inner"):
            with self.subTest(victim=victim):
                job = self.begin("at 500ms stop node=0 for=60m", "setsid sleep 600 & sleep 600", python=False)
                inner = until(lambda: children(job.pid), "the inner process")[0]
                until(lambda: state(inner) == "T" and state(job.pid) == "T", "both are stopped")
                os.kill(job.pid if victim == "outer" else inner, signal.SIGKILL)
                job.communicate(timeout=LIMIT_S)
                self.nothing_left()
                os.unlink(self.events)

    def test_two_stops_of_a_node_at_once_come_one_after_the_other(self):
        begin = time.monotonic()
        err = self.rehearse(0, "at 500ms stop node=0 for=700ms; at 500ms stop node=0 for=600ms", "{notes} 60 0.05")
        self.assertIn("rehearsal passed", err)
        # 60 steps of 50 ms; a step under way when it is stopped ends meanwhile.
        self.assertGreaterEqual(time.monotonic() - begin, 60 * 0.05 + 0.7 + 0.6 - 2 * 0.05)

    def test_a_killed_node_leaves_nobody(self):
        job = self.begin("at 500ms kill node=0", "setsid sleep 600 & sleep 600", python=False)
        _, err = self.end_whole(job, -signal.SIGKILL)
        self.assertIn("rehearsal: kill node=0 at 0.5 s\n", err)

    def test_the_only_node_leaves(self):
        err = self.rehearse(0, "at 300ms leave node=0; expect exit=143", "sleep 600", python=False)
        self.assertIn("rehearsal passed", err)

    def test_random_is_the_seeds(self):
        texts = []
        # The command is in an event too, its quotes escaped.
        told = f"""grep -c '"event":"fault_injected"' {self.scratch.name}/events"""
        six = f'while [ "$({told})" -lt 6 ]; do sleep 0.02; done'
        for seed in (1, 1, 2):
            self.rehearse(0, f"every 100ms slow rank=random by=10% for=10ms times=6; seed={seed}", six, python=False,
                          options="--nproc-per-node=4")
            texts.append([fault["text"] for fault in self.result()["faults"]])
            os.unlink(self.events)
        self.assertEqual([len(faults) for faults in texts], [6, 6, 6])
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_a_result_file_and_json_lines(self):
        path = os.path.join(self.scratch.name, "result")
        err = self.rehearse(1, "at 100ms kill rank=5", "sleep 1.5", python=False,
                            options=f"--log-format=json --result-file={path}")
        lines = [json.loads(line) for line in err.splitlines()]
        self.assertIn("rehearsal failed: kill rank=5 had no target", [line["message"] for line in lines])
        self.assertIn("rehearsal: kill rank=5 at 0.1 s: no rank 5 among 1", json.load(open(path))["warnings"])

    def test_quiet_tells_of_a_failure_alone(self):
        self.assertEqual(self.rehearse(0, "expect exit=0", "true", python=False, options="-q"), "")
        err = self.rehearse(1, "expect ranks=5", "true", python=False, options="-q")
        self.assertEqual(err, "torchup: rehearsal failed: expected ranks=5, was 1\n")


class Mistakes(Rehearsed, unittest.TestCase):
    def refusal(self, *words, **variables):
        mark = os.path.join(self.scratch.name, "started")
        done = subprocess.run([TORCHUP, *words, "--no-python", "sh", "-c", f"touch {mark}"], capture_output=True, text=True,
                              env={**os.environ, **variables}, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(os.path.exists(mark))
        return done.stderr

    def test_a_mistake_is_told_with_its_place_before_anything_starts(self):
        self.assertIn("--rehearse: 1:4: '3' is no time: expected a time such as 1.5s, 500ms or 2m, or step N",
                      self.refusal("--rehearse=at 3 kill rank=1"))
        path = os.path.join(self.scratch.name, "script")
        with open(path, "w") as file:
            file.write("# all of it\nat 3s kill rank=1\n  every 2s halt rank=1\n")
        self.assertIn(f"--rehearse: {path}:3:12: 'halt' is no action: expected kill, stop, slow, leave or cut",
                      self.refusal(f"--rehearse=@{path}"))
        self.assertIn("--rehearse: 1:1: the script is empty", self.refusal(PET_REHEARSE=""))
        self.assertRegex(self.refusal(f"--rehearse=@{path}.none"), r"--rehearse: .*/script\.none: No such file")
        with open(path, "w") as file:
            file.write("#" * (64 << 10) + "\n")
        self.assertIn(f"--rehearse: {path}:1:1: a script has at most 65536 bytes", self.refusal(f"--rehearse=@{path}"))

    def test_a_script_that_is_no_file_is_not_waited_for(self):
        path = os.path.join(self.scratch.name, "pipe")
        os.mkfifo(path)
        for name in (path, self.scratch.name, "/dev/zero"):
            self.assertIn(f"--rehearse: {name} is no regular file", self.refusal(f"--rehearse=@{name}"))

    def test_a_variable_that_no_starter_has_set_is_refused(self):
        for text in ("rubbish", "1 1 80", "0 1 80 x", "0 1 80"):
            self.assertIn(f"TORCHUP_REHEARSED_NODE='{text}': ", self.refusal(TORCHUP_REHEARSED_NODE=text))
        self.assertIn("no starter listens on descriptor 3", self.refusal(TORCHUP_REHEARSED_NODE="0 1 80"))

    def test_what_does_not_go_together(self):
        self.assertIn("--rehearse: 'at 3s kill node=0 back=1s': back= needs --rehearse-nodes: nobody else starts a node again",
                      self.refusal("--rehearse=at 3s kill node=0 back=1s"))
        self.assertIn("--rehearse-nodes needs --rehearse", self.refusal("--rehearse-nodes=2"))
        for number in ("0", "65", "-1"):
            self.assertIn(f"--rehearse-nodes={number} is not from 1 to 64",
                          self.refusal("--rehearse=expect exit=0", f"--rehearse-nodes={number}"))
        self.assertIn("--rehearse-nodes=2: the job is one of 3 to 4 nodes",
                      self.refusal("--rehearse=expect exit=0", "--rehearse-nodes=2", "--nnodes=3:4"))
        self.assertIn("invalid int value: 'x'", self.refusal("--rehearse=expect exit=0", "--rehearse-nodes=x"))

    def test_the_plan_shows_it(self):
        done = subprocess.run([TORCHUP, "--dry-run", "--rehearse=at 1500ms kill rank=1 # c\nexpect exit=3", "--rehearse-nodes=3",
                               "--standalone", "true"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("nodes             3  (--rehearse-nodes)",
                     "rendezvous        c10d, on a free port of 127.0.0.1  (--rehearse-nodes)",
                     "rehearsal         at 1.5s kill rank=1; expect exit=3; seed=0", "rehearsal nodes   3, agents on this machine"):
            self.assertIn(line + "\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
