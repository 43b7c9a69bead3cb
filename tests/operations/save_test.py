"""A job of plain Python programs is asked to save and stop: each hears it at the end of a step, and no signal reaches it.

usage: save_test.py TORCHUP EXAMPLES TORCHUPD TORCHUPCTL [name of a test ...]
"""

import os
import signal
import subprocess
import sys
import unittest

from time_job import EXAMPLES, PROGRAM, TORCHUP, TimeJob
from torchupd import Torchupd
from waiting import until

TORCHUPD, TORCHUPCTL = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
LIMIT_S = 60

# Whoever is signalled leaves a mark and ends: what is saved by then is only what it had been asked for over its page.
TRAIN = """
folder = sys.argv[1]
mark = lambda name, text="": open(f"{folder}/{name}", "a").write(f"{text}\\n")
def signalled(number, _):
    mark("signalled", number)
    os._exit(1)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, signalled)
saved = f"{folder}/saved.{rank}"
step = int(open(saved).read()) if os.path.exists(saved) else 0
while not os.path.exists(f"{folder}/enough"):
    step += 1
    time.sleep(0.02)
    mark(f"steps.{rank}", f"{step} {attempt}")
    if heartbeat.step(step):
        open(saved, "w").write(str(step))
        sys.exit(75)
"""


class Save(TimeJob, unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHUP_")}
        sockets = self.folder / "sockets"
        sockets.mkdir(mode=0o700)
        self.environment["TORCHUP_RUNTIME_DIR"] = str(sockets)

    def launch(self, *options):
        script = self.folder / "train.py"
        script.write_text(PROGRAM + TRAIN)
        process = subprocess.Popen([TORCHUP, "--shutdown-timeout=50", *options, script, self.folder],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=self.environment)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.wait(LIMIT_S)))
        return process

    def steps(self, rank):
        """(step, restart count) of each that it has ended."""
        path = self.folder / f"steps.{rank}"
        return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_steps(self, ranks, count):
        until(lambda: all(len(self.steps(rank)) >= count for rank in range(ranks)), f"{count} steps of each of {ranks} ranks")

    def assert_saved(self, ranks):
        self.assertFalse((self.folder / "signalled").exists())
        for rank in range(ranks):
            self.assertEqual(int((self.folder / f"saved.{rank}").read_text()), self.steps(rank)[-1][0])

    def test_a_signal_that_asks_is_heard_with_the_hook_and_without(self):
        for options in ((), ("--no-worker-hook",)):
            with self.subTest(options=options):
                for old in [*self.folder.glob("s*.[01]")]:
                    old.unlink()
                job = self.launch("--nproc-per-node=2", "--drain-signals=USR2", "--forward-signals=USR1", *options)
                self.wait_for_steps(2, 3)
                job.send_signal(signal.SIGUSR2)
                self.assertEqual(job.wait(LIMIT_S), 75)
                self.assert_saved(2)

    def two_nodes(self):
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(daemon.end, LIMIT_S)
        job = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={daemon.endpoint}", "--rdzv-id=saves")
        agents = [self.launch(*job) for _ in range(2)]
        # The first step has ended: long before the next of an agent's looks, which come each second, that counts.
        self.wait_for_steps(2, 2)
        return agents

    def ctl(self, *words):
        return subprocess.run([TORCHUPCTL, *words, "saves"], capture_output=True, text=True, timeout=LIMIT_S,
                              env=self.environment)

    def order(self, *words):
        done = self.ctl(*words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_stop_of_both_nodes_saves_on_both(self):
        agents = self.two_nodes()
        self.order("stop", "--save")
        self.assertEqual([agent.wait(LIMIT_S) for agent in agents], [75, 75])
        self.assert_saved(2)

    def test_a_planned_restart_does_at_most_a_step_again(self):
        agents = self.two_nodes()
        self.order("restart")
        until(lambda: all((self.folder / f"saved.{rank}").exists() for rank in range(2)), "both have saved")
        before = [len(self.steps(rank)) for rank in range(2)]
        self.wait_for_steps(2, max(before) + 3)
        (self.folder / "enough").touch()
        self.assertEqual([agent.wait(LIMIT_S) for agent in agents], [0, 0])
        self.assertFalse((self.folder / "signalled").exists())
        for rank in range(2):
            steps = self.steps(rank)
            self.assertLessEqual(len(steps) - len({step for step, _ in steps}), 1, steps)
            self.assertEqual({restarts for _, restarts in steps}, {0})

    def test_without_torchup_nobody_asks(self):
        program = f"import sys; sys.path.insert(0, {EXAMPLES!r} + '/python'); from heartbeat import Heartbeat; " \
                  "heartbeat = Heartbeat(); print([heartbeat.step(number, 0.1) for number in range(3)])"
        for page in ("", "3:1:2:4", "nonsense"):
            with self.subTest(page):
                done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S,
                                      env={**self.environment, "TORCHUP_WORKER_PAGE": page})
                self.assertEqual((done.stdout, done.stderr), ("[False, False, False]\n", ""))


if __name__ == "__main__":
    unittest.main()
