"""Where a job's time goes: steps told from plain Python, the ledger of their events, and what people read of it.

usage: time_test.py TORCHUP EXAMPLES [name of a test ...]
"""

import json
import sys
import unittest
from pathlib import Path

from time_job import PARTS, TORCHUP, TimeJob, recomputed

try:
    import jsonschema
except ImportError:
    jsonschema = None


class Time(TimeJob, unittest.TestCase):
    def check_ledger(self):
        """The parts are those of the events, and sum to the ranks' time."""
        ledger, events = self.ledger(), self.events()
        expected = recomputed(events)
        for part in PARTS:
            self.assertAlmostEqual(ledger[part], expected[part] / 1e6, delta=max(0.01 * ledger["rank_seconds"] / 10, 1e-5),
                                   msg=f"{part}: {ledger} {expected}")
        micro = {part: round(seconds * 1e6) for part, seconds in ledger.items() if part != "basis"}
        self.assertEqual(sum(micro[part] for part in PARTS), micro["rank_seconds"])
        begin, end = events[0], next(event for event in events if event["event"] == "job_ended")
        self.assertEqual(micro["rank_seconds"], begin["local_world_size"] * (end["monotonic_us"] - begin["monotonic_us"]))
        return ledger

    def test_steps_are_told_with_the_hook_and_without(self):
        for options in ((), ("--no-worker-hook",)):
            with self.subTest(options=options):
                (self.folder / "events").write_text("")
                self.job("steps(7, 11)", *options)
                exited, = self.events("worker_exited")
                self.assertEqual([exited[name] for name in ("beats", "first_step", "last_step")], [5, 7, 11])
                self.assertAlmostEqual((exited["last_step_us"] - exited["first_step_us"]) / 1e6, 4 * 0.03, delta=1)
                self.assertGreater(exited["first_step_us"], self.events("worker_started")[0]["monotonic_us"])
                self.assertLess(exited["last_step_us"], exited["monotonic_us"])
                progress, = self.events("progress")
                self.assertEqual((progress["step_min"], progress["step_max"]), (11, 11))
                self.assertEqual(progress["ranks"], [[0, 7, 11, 0]])
                self.assertEqual(progress["times"], [[0, exited["first_step_us"], exited["last_step_us"]]])
                self.assertGreater(progress["steps_per_second"], 0)

    def test_a_failure_and_steps_that_are_done_again(self):
        self.job("steps(1, 20) if attempt == 0 else steps(12, 30)\nif attempt == 0: sys.exit(rank * 3)", "--nproc-per-node=2",
                 "--max-restarts=1")
        ledger = self.check_ledger()
        self.assertEqual(ledger["basis"], "steps")
        for part in ("useful", "redone", "failure", "startup"):
            self.assertGreater(ledger[part], 0, ledger)
        self.assertEqual([event["restarts_left"] for event in self.events("restarting")], [0])

    def test_ranks_that_wait_for_the_slowest(self):
        for options in ((), ("--no-worker-hook",)):
            with self.subTest(options=options):
                (self.folder / "events").write_text("")
                self.job("steps(1, 10, waited=0.02 if rank == 0 else 0.0)", "--nproc-per-node=2", *options)
                self.assertAlmostEqual(self.check_ledger()["straggler"], 9 * 0.02, delta=0.01)

    def test_a_hang(self):
        self.job("steps(1, 5)\nif attempt == 0 and rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
                 "if attempt == 0: time.sleep(100)\nsteps(6, 9)", "--nproc-per-node=2", "--max-restarts=1",
                 "--hang-timeout=1", "--on-hang=restart")
        self.assertEqual({event["rank"] for event in self.events("worker_hung")}, {1})
        self.assertGreater(self.check_ledger()["hang"], 1.5)

    def test_programs_without_steps(self):
        self.job("import os, sys, time\ntime.sleep(0.3)\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)",
                 "--nproc-per-node=2", "--max-restarts=1", program="")
        ledger = self.check_ledger()
        self.assertEqual(ledger["basis"], "processes")
        self.assertGreater(ledger["failure"], 0)

    def test_a_job_that_fails_ends_with_failure(self):
        self.job("steps(1, 5)\nsys.exit(4)", code=1)
        ledger = self.check_ledger()
        self.assertEqual(ledger["shutdown"], 0)
        self.assertGreater(ledger["failure"], 0)

    def test_what_people_read(self):
        for options, told in ((("--ledger=always",), True), (("--ledger=always", "-q"), False), ((), False),
                              (("--ledger=never",), False)):
            with self.subTest(options=options):
                done = self.job("steps(1, 5)", "--nproc-per-node=2", *options)
                self.assertEqual("torchup: 2 ranks x 0:00:0" in done.stderr, told, done.stderr)
                self.assertEqual(" % useful\n  " in done.stderr, told, done.stderr)

    @unittest.skipIf(jsonschema is None, "Python's jsonschema is not installed")
    def test_every_line_is_as_the_schema_has_it(self):
        self.job("steps(1, 5)\nif attempt == 0: sys.exit(rank * 3)", "--nproc-per-node=2", "--max-restarts=1",
                 "--on-event=exit 3")
        self.job("os.kill(os.getpid(), 9)", "--rehearse=at 0.1s kill rank=7; expect exit=1", code=1)
        self.job("sys.exit(75)", code=75)
        schema = json.loads((Path(__file__).parents[2] / "launcher/core/event_schema.json").read_text())
        validator = jsonschema.Draft202012Validator(schema)
        events = self.events()
        for event in events:
            self.assertEqual([error.message for error in validator.iter_errors(event)], [], event)
        names = {event["event"] for event in events}
        self.assertGreaterEqual(names, {"progress", "restarting", "hook_failed", "worker_exited", "state_saved", "job_ended"})
        for wrong in ({"event": "unheard_of"}, {"schema": 2}, {"monotonic_us": "1"}, {"pid": "x"}):
            self.assertTrue(list(validator.iter_errors({**events[0], **wrong})), wrong)


class Hook(TimeJob, unittest.TestCase):
    def told(self):
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []

    def test_it_is_told_of_what_it_wants_to_hear(self):
        command = f'{{ echo "$TORCHUP_EVENT $TORCHUP_RUN_ID $TORCHUP_HOST"; cat; }} >> {self.folder}/told; echo said'
        done = self.job("steps(1, 2)\nif attempt == 0: sys.exit(3)", "--max-restarts=1", f"--on-event={command}")
        told = self.told()
        names = [line.split()[0] for line in told[::2]]
        self.assertEqual(sorted(names), ["incident_recorded", "job_ended", "restarting"])
        recorded = {event["event"]: event for event in self.events(*names)}
        for name, line in zip(names, told[1::2]):
            self.assertEqual(json.loads(line), recorded[name])
        self.assertEqual(len(told[0].split()), 3)
        self.assertEqual(done.stderr.count("said"), 3, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(self.events("hook_failed"), [])

    def test_other_kinds(self):
        self.job("", f"--on-event=echo $TORCHUP_EVENT >> {self.folder}/told", "--on-event-kinds=worker_exited, job_started")
        self.assertEqual(self.told(), ["job_started", "worker_exited"])

    def test_an_unknown_kind_is_refused_with_the_list(self):
        done = self.job("", "--on-event=true", "--on-event-kinds=job_ended,worker_died", code=2)
        self.assertIn("worker_died", done.stderr)
        self.assertIn("worker_exited", done.stderr)

    def test_a_failure_is_an_event_and_a_line(self):
        done = self.job("", "--on-event=exit 3", "--on-event-kinds=job_started")
        failed, = self.events("hook_failed")
        self.assertEqual((failed["command"], failed["reason"]), ("exit 3", "told of job_started: exit code 3"))
        self.assertEqual(done.stderr.count("told of job_started: exit code 3"), 1, done.stderr)

    def test_no_sweep_of_an_attempt_touches_it(self):
        """It, and what it leaves behind, live on while attempts end; the job's end ends both."""
        behind = self.folder / "behind"
        command = (f"(until test -e {self.folder}/second; do sleep 0.02; done; echo over >> {self.folder}/told; "
                   f"exec sleep 1000) >/dev/null 2>&1 & echo $! > {behind}")
        self.job(f"if attempt == 0: sys.exit(3)\nopen('{self.folder}/second', 'w').close()\n"
                 f"while not os.path.exists('{self.folder}/told'): time.sleep(0.02)", "--max-restarts=1",
                 f"--on-event={command}", "--on-event-kinds=job_started")
        self.assertEqual(self.told(), ["over"])
        self.assertFalse(Path(f"/proc/{behind.read_text().strip()}").exists())

    def test_at_the_end_it_has_five_seconds(self):
        self.job("", f"--on-event=echo $$ > {self.folder}/pid; exec sleep 1000", "--on-event-kinds=job_ended")
        failed, = self.events("hook_failed")
        self.assertIn("5 s after the job", failed["reason"])
        self.assertFalse(Path(f"/proc/{(self.folder / 'pid').read_text().strip()}").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
