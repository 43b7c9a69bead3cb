"""Signals to the launcher of a job on one node: what workers and exit code become of them.

usage: launcher_signals_test.py TORCHUP FAKE_WORKER [name of a test ...]
"""

import fcntl
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time
import unittest

from launcher_job import TORCHUP, Job, children, state, until

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ranks import free_port  # noqa: E402


class Launcher(Job, unittest.TestCase):
    def test_a_signal_reaches_the_workers_and_is_the_status(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            _, err = self.end(self.signalled(number), 128 + number)
            self.assertEqual("What the ranks do" in err, number == signal.SIGQUIT)  # only then
            os.unlink(self.notes)

    def test_the_second_interrupt_kills(self):
        job = self.signalled(signal.SIGINT, "ignore {signal} ignore 15 note {{notes}} wait")
        self.said(job, "Ctrl-C again to force")
        self.apart()
        job.send_signal(signal.SIGINT)
        self.end(job, 130, 15)  # the grace alone is 30 s

    def test_a_signal_to_both_processes_is_one(self):
        for number, options in ((signal.SIGINT, ""), (signal.SIGTERM, ""), (signal.SIGTERM, "--drain-signals=TERM")):
            events = os.path.join(self.scratch.name, "events")
            job = self.start(f"--nproc-per-node=2 --events={events} {options}", f"late {int(number)} 5 note {{notes}} wait")
            self.workers(2)
            self.started(events, 2)  # a worker's own first words are earlier than its agent's
            for pid in (job.pid, children(job.pid)[0]):
                os.kill(pid, number)
            # Each worker has the time that it takes after the signal: nobody was killed.
            _, err = self.end(job, 1 if options else 128 + number)
            self.assertNotIn("Unable to shutdown", err)
            self.assertEqual("exitcode  : 5" in err, bool(options))
            os.unlink(self.notes)
            os.unlink(events)

    def test_the_second_term_kills(self):
        job = self.signalled(signal.SIGTERM, "ignore {signal} note {{notes}} wait")
        self.said(job, "SIGTERM again to force")
        self.apart()
        job.send_signal(signal.SIGTERM)
        self.end(job, 143, 15)  # the grace alone is 30 s

    def test_a_second_interrupt_does_not_end_the_attempt_twice(self):
        events = os.path.join(self.scratch.name, "events")
        # Nobody reads it: the output is still being drained when the workers are gone.
        job = self.start(f"--events={events}", "on 2 0 flood note {notes} wait")
        [(_, worker, _)] = self.workers(1)
        written = [0]

        def stands_still():
            with open(f"/proc/{children(worker)[0]}/io") as file:
                written.append(int(file.read().partition("wchar: ")[2].split()[0]))
            return written[-1] > 300_000 and len(set(written[-10:])) == 1

        until(stands_still, "nothing more is taken of the flood")
        job.send_signal(signal.SIGINT)

        def recorded():
            with open(events) as file:
                return "worker_exited" in file.read()

        until(lambda: os.path.exists(events) and recorded(), "the worker ends")
        self.apart()
        job.send_signal(signal.SIGINT)
        # Still nobody reads: a second drain would outlive the attempt whose output it drains.
        self.assertEqual(job.wait(20), 130)
        self.end(job, 130)
        with open(events) as file:
            told = file.read()
        self.assertIn('"use":"forces"', told)  # it came in time
        self.assertEqual(told.count('"event":"attempt_ended"'), 1)

    def test_a_forwarded_signal_changes_nothing_else(self):
        job = self.signalled(signal.SIGUSR1, "on {signal} 0 note {{notes}} wait")
        self.end(job, 0)  # both workers take it as their end

    def test_a_signal_during_a_stop_prevents_the_restart(self):
        job = self.start("--nproc-per-node=2 --max-restarts=5 --shutdown-timeout=4", "ignore 15 note {notes} only 0 await {notes} 2 exit 3")
        self.said(job, "closing signal SIGTERM")  # the other one ignores it
        job.terminate()
        self.end(job, 143)
        self.assertEqual(len(self.workers(2)), 2)

    def test_the_second_interrupt_ends_a_start_that_stands_still(self):
        """In its exec: whoever holds the program's lease lets it wait for 45 s."""
        program = os.path.join(self.scratch.name, "program")
        with open(program, "w") as file:
            file.write("#!/bin/sh\nexit 1\n")
        os.chmod(program, 0o755)
        job = subprocess.Popen([TORCHUP, "--nproc-per-node=2", "--max-restarts=1", "--restart-backoff=3..3", "--no-python", program],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stderr.close()))
        self.said(job, "failed (exitcode: 1)")
        [inner] = children(job.pid)
        until(lambda: not children(inner), "the first attempt is over")
        lease = os.open(program, os.O_RDWR)
        self.addCleanup(os.close, lease)
        self.addCleanup(signal.signal, signal.SIGIO, signal.signal(signal.SIGIO, signal.SIG_IGN))
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        until(lambda: len(children(inner)) == 2, "both are being started")
        job.send_signal(signal.SIGINT)
        self.said(job, "Received 2 death signal")
        self.apart()
        begin = time.monotonic()
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=30)
        self.assertEqual(job.returncode, 130)
        self.assertLess(time.monotonic() - begin, 5)  # without a word from the kernel they are given up after ten
        self.nothing_left()

    def test_what_the_user_ignores_workers_ignore_as_under_torchrun(self):
        def ignore():
            for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_IGN)

        done = subprocess.run([TORCHUP, "--no-python", "grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True,
                              preexec_fn=ignore, timeout=30)
        ignored = int(done.stdout.split()[1], 16)
        self.assertEqual({number for number in range(1, 65) if ignored >> number - 1 & 1}, {signal.SIGUSR1, signal.SIGALRM})

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
        events = os.path.join(self.scratch.name, "events")
        job = self.start(f"--nproc-per-node=2 --events={events}", "late 2 0 note {notes} wait", stdin=secondary,
                         preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))  # TIOCSCTTY
        os.close(secondary)
        self.workers(2)
        # The terminal's signals are for the outer process alone, which passes them on.
        [inner] = children(job.pid)
        self.assertEqual((os.getsid(job.pid), os.getsid(inner)), (job.pid, inner))
        os.write(primary, b"\x03")
        # Each worker has the time that it takes after the signal: it came once, and nobody was killed.
        self.end(job, 130)
        with open(events) as file:
            told = [json.loads(line) for line in file]
        self.assertEqual([event["use"] for event in told if event["event"] == "signal_received"], ["ends"])
        self.assertEqual([event["exit_code"] for event in told if event["event"] == "worker_exited"], [0, 0])
        os.close(primary)

    # Requests to save.

    def test_a_request_to_save_reaches_workers_that_know_no_page(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            name = number.name
            job = self.start(f"--nproc-per-node=2 --drain-signals={name}", f"on {int(number)} 75 note {{notes}} wait")
            self.workers(2)
            job.send_signal(number)
            self.end(job, 75)
            os.unlink(self.notes)
            # One that has no handler for it hears it too, in the end, and nobody calls it a failure.
            events = os.path.join(self.scratch.name, f"events-{name}")
            job = self.start(f"--max-restarts=3 --drain-signals={name} --events={events}", "note {notes} wait")
            # The launcher may hear of a start after the worker's first line; nobody could save before.
            self.started(events, 1)
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
        job = self.start("--nproc-per-node=2 --max-restarts=5 --shutdown-timeout=4 --drain-signals=USR1",
                         "ignore 15 ignore 10 note {notes} only 0 await {notes} 2 exit 3")
        self.said(job, "closing signal SIGTERM")
        job.send_signal(signal.SIGUSR1)
        self.end(job, 75)
        self.assertEqual({count for _, _, count in self.workers(2)}, {0})

    # Two nodes: one is told, and both end alike.

    def two_agents(self, options, *workers):
        where = f"--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{free_port()} --rdzv-id=two {options}"
        agents = [self.start(where, worker) for worker in workers]
        self.workers(4)
        return agents

    def end_both(self, agents, status):
        said = [agent.communicate(timeout=25)[1] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [status] * 2, said)
        self.nothing_left()

    def test_a_signal_to_one_of_two_agents_is_the_status_of_both(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            agents = self.two_agents("--max-restarts=3", *["note {notes} wait"] * 2)
            agents[1].send_signal(number)
            self.end_both(agents, 128 + number)
            self.assertEqual(len(self.workers(4)), 4)
            os.unlink(self.notes)

    def test_workers_of_two_agents_that_save_together_end_both_with_75(self):
        """One node is asked; its workers tell the other's, as those on our runtime do: here by a fifth line of the notes."""
        agents = self.two_agents("--max-restarts=3 --drain-signals=USR1", "note {notes} await {notes} 5 exit 75",
                                 "ignore 10 step 1 note {notes} drained 75")
        agents[1].send_signal(signal.SIGUSR1)
        with open(self.notes, "a") as file:
            file.write("0 0 0\n")
        self.end_both(agents, 75)
        self.assertEqual(len(self.workers(5)), 5)

    # The watchdog's.

    def test_a_worker_whose_timer_ran_out_has_failed(self):
        os.environ.update(TORCHELASTIC_ENABLE_FILE_TIMER="1", TORCHELASTIC_TIMER_FILE=self.scratch.name + "/timers")
        self.addCleanup(os.environ.pop, "TORCHELASTIC_ENABLE_FILE_TIMER")
        self.addCleanup(os.environ.pop, "TORCHELASTIC_TIMER_FILE")
        # It heeds the signal and ends with 0; the other one waits for it.
        _, err = self.end(self.start("--nproc-per-node=2", "note {notes} on 15 0 only 1 timer 15 wait"), 1)
        self.assertIn("did not come out of 'fake' in time", err)
        self.assertIn("rank      : 1 (local_rank: 1)\n  exitcode  : 0", err)


if __name__ == "__main__":
    unittest.main()
