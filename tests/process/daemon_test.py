"""Jobs at one daemon, by the real programs: a run id that is used again, and jobs that nobody joins.

usage: tests/support/run_case.py daemon_test.py CASE TORCHUP TORCHUPD
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from torchupd import Torchupd
from waiting import until

TORCHUP = sys.argv.pop(1)
TORCHUPD = sys.argv.pop(1)
LIMIT_S = 40


def caught(pid):
    """Signals that a process has a handler of."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    bits = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1], 16)
    return {number for number in signal.valid_signals() if bits >> number - 1 & 1}


@contextlib.contextmanager
def daemon(*options, log=subprocess.DEVNULL):
    """A daemon on a port of its own; gives its endpoint."""
    process = Torchupd(TORCHUPD, "--bind", "127.0.0.1", *options, stderr=log)
    try:
        yield process.endpoint
    finally:
        process.end(LIMIT_S)


class DaemonTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def agents(self, endpoint, count, script, *options):
        """Starts `count` agents of one job whose workers run `script`; $0 is our folder."""
        return [subprocess.Popen([TORCHUP, f"--nnodes={count}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                                  "--monitor-interval=0.1", *options, "sh", "-c", script, self.folder],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for _ in range(count)]

    def run_job(self, endpoint, count, script, *options):
        """Exit codes of the agents, and what they said."""
        agents = self.agents(endpoint, count, script, *options)
        said = [agent.communicate(timeout=LIMIT_S)[1] for agent in agents]
        return [agent.returncode for agent in agents], "".join(said)

    def lines(self, name):
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def test_the_same_command_twice_runs_twice(self):
        for count in 1, 2:
            with self.subTest(nodes=count), daemon() as endpoint:
                for run in "first", "second", "third":
                    name = f"{run}_{count}"
                    codes, said = self.run_job(endpoint, count, f'echo $RANK/$WORLD_SIZE/$TORCHELASTIC_RESTART_COUNT >> "$0/{name}"')
                    self.assertEqual(codes, [0] * count, said)
                    self.assertEqual(sorted(self.lines(name)), [f"{rank}/{count}/0" for rank in range(count)])

    def test_a_verdict_is_its_own_jobs(self):
        with daemon() as endpoint:
            # Nobody fails before both have begun: the first failure stops the other.
            both = 'until test $(wc -l < "$0/failing") -ge $((2 + 2 * TORCHELASTIC_RESTART_COUNT)); do sleep 0.01; done'
            codes, said = self.run_job(endpoint, 2, f'echo $RANK >> "$0/failing"; {both}; exit 3', "--max-restarts=1")
            self.assertEqual(codes, [1, 1], said)
            self.assertEqual(len(self.lines("failing")), 4)
            codes, said = self.run_job(endpoint, 2, 'echo $TORCHELASTIC_RESTART_COUNT >> "$0/good"', "--max-restarts=2")
            self.assertEqual(codes, [0, 0], said)
            self.assertEqual(self.lines("good"), ["0", "0"])
            codes, said = self.run_job(endpoint, 1, "exit 4")
            self.assertEqual(codes, [1], said)

    def test_the_state_directory_knows_both_jobs(self):
        state = self.folder / "state"
        with daemon("--state-dir", str(state)) as endpoint:
            self.assertEqual(self.run_job(endpoint, 1, "exit 5")[0], [1])
        with daemon("--state-dir", str(state)) as endpoint:
            codes, said = self.run_job(endpoint, 1, 'echo $RANK >> "$0/after"')
            self.assertEqual(codes, [0], said)
            self.assertEqual(self.lines("after"), ["0"])

    def test_who_reads_that_it_is_ready_may_end_it(self):
        """Its word waits in a pipe that is full: it has set how it ends before it says that it is ready."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        process = subprocess.Popen([TORCHUPD, "--bind", "127.0.0.1", "--port", "0"], stdout=writing, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        os.close(writing)
        with open(reading, "rb") as said:
            until(lambda: signal.SIGTERM in caught(process.pid), "SIGTERM is caught", LIMIT_S)
            self.assertIn(b"torchupd: ready on ", said.readline())
            process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 0)

    def test_jobs_that_nobody_joins_leave_nothing(self):
        """Each says another run id, as the first words of an agent do (rendezvous/PROTOCOL.md), and hangs up."""
        state = self.folder / "state"
        log = self.enterContext(open(self.folder / "log", "w+"))
        process = Torchupd(TORCHUPD, "--bind", "127.0.0.1", "--state-dir", str(state), stderr=log)
        try:
            written = written_by(process.process)
            for number in range(1100):
                with socket.create_connection(("127.0.0.1", process.port)) as stranger:
                    stranger.sendall(hello(f"stranger {number}"))
                    stranger.settimeout(LIMIT_S)
                    self.assertTrue(stranger.recv(1))  # it is welcome
            codes, said = self.run_job(process.endpoint, 1, 'echo $RANK >> "$0/proper"')
            self.assertEqual(codes, [0], said)
            self.assertEqual(self.lines("proper"), ["0"])
            self.assertLess(written_by(process.process) - written, 200)  # nothing went to the disk for a stranger
        finally:
            self.assertEqual(process.end(LIMIT_S), 0)
        # The first number was the first stranger's; the proper job's is the last, where the job is still known.
        self.assertLessEqual(set(os.listdir(state)), {"lock", "job-1100.state"})


def written_by(process):
    """How often it has written to a file or a pipe."""
    return int(re.search("^syscw: ([0-9]+)", pathlib.Path(f"/proc/{process.pid}/io").read_text(), re.MULTILINE)[1])


def hello(run_id):
    name = run_id.encode()
    # type, the versions spoken, no token, a nonce, the run id
    body = b"\x01" + (1).to_bytes(2, "little") * 2 + b"\x00" + bytes(NONCE_BYTES) + len(name).to_bytes(4, "little") + name
    return PREFACE + len(body).to_bytes(4, "little") + body


PREFACE = b"torchup\n"
NONCE_BYTES = 16
