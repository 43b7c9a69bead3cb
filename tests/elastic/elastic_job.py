"""What the scenarios of recovery share: a job of elastic_program.py, and what it has left behind.

The agent is the fake one; with --launcher TORCHUP it is the real one. Another program of the same kind: a subclass of
Case (tests/worker_runtime/elastic has one in C++).
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "launcher" / "python"
LIMIT_S = 120
LAUNCHER = None
if "--launcher" in sys.argv:
    place = sys.argv.index("--launcher")
    LAUNCHER = os.path.abspath(sys.argv[place + 1])
    del sys.argv[place : place + 2]

if importlib.util.find_spec("torch") is None:
    print("torch is not installed for", sys.executable)
    sys.exit(77)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # DDP's advice about unused parameters
os.environ["PYTHONPATH"] = f"{PACKAGE}:{os.environ.get('PYTHONPATH', '')}"
sys.path[:0] = [str(PACKAGE), str(HERE), str(HERE.parent / "support")]

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401; the first optimizer would import it, in every worker

import elastic_program  # noqa: E402
import fake_agent  # noqa: E402


def finals(folder):
    """{rank: what it ended with}."""
    return {int(path.suffixes[0][1:]): torch.load(path, weights_only=False) for path in folder.glob("final.*.pt")}


class Outcome:
    def __init__(self, folder, code, agent, read_finals=finals):
        self.code, self.agent = code, agent
        log = folder / "log"
        self.log = log.read_text(errors="replace") if log.exists() else ""
        self.births = {int(path.suffix[1:]) for path in folder.glob("birth.*")}
        self.faults = {path.name for path in folder.glob("fault.*")}
        self.final = read_finals(folder)
        self.batches = [tuple(map(int, line.split())) for path in folder.glob("samples.*")
                        for line in path.read_text().splitlines()]

    def pids(self):
        return {rank: final["pid"] for rank, final in self.final.items()}

    def samples(self, epoch):
        """Those that made each step what it became: of the last round in which it was begun."""
        last = {}
        for round_number, step, *_ in self.batches:
            last[step] = max(last.get(step, 0), round_number)
        return sorted(index for round_number, step, its_epoch, *indices in self.batches
                      if its_epoch == epoch and last[step] == round_number for index in indices)


class Case(unittest.TestCase):
    undisturbed_jobs = {}
    read_finals = staticmethod(finals)

    @staticmethod
    def work(words):
        """What a worker of the fake agent does."""
        return elastic_program.main(words)

    @staticmethod
    def command(words):
        """What the real launcher is to start, with options of its own before it."""
        return ["--preload=torch", str(HERE / "elastic_program.py"), *words]

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Path(folder.name)

    def play(self, world_size, *faults, more=(), restarts=4, worlds=None, code=0):
        folder = self.folder()
        words = ["--out", str(folder), *(word for fault in faults for word in ("--fault", fault)), *more]
        if LAUNCHER:
            if worlds:
                self.skipTest("a change of the world size needs more than one agent")
            agent = None
            with open(folder / "log", "w") as log:
                command = [LAUNCHER, f"--nproc-per-node={world_size}", f"--max-restarts={restarts}",
                           "--shutdown-timeout=8", "--log-level=debug",  # what workers ask, when one is not kept
                           *self.command(words)]
                environment = {**os.environ, "PYTHON_EXEC": sys.executable}
                ended = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=LIMIT_S).returncode
        else:
            agent = fake_agent.FakeAgent(lambda: self.work(words), str(folder), worlds or [world_size], restarts)
            ended = agent.run()
        outcome = Outcome(folder, ended, agent, self.read_finals)
        self.assertEqual(outcome.code, code, outcome.log[-6000:])
        self.assertEqual(len(outcome.faults), len(faults), "not all faults happened")
        return outcome

    def undisturbed(self, world_size, more=()):
        if (world_size, *more) not in Case.undisturbed_jobs:
            Case.undisturbed_jobs[world_size, *more] = self.play(world_size, more=more)
        return Case.undisturbed_jobs[world_size, *more]

    def assert_same_bits(self, one, other, what):
        self.assertEqual(type(one), type(other), what)
        if isinstance(one, torch.Tensor):
            self.assertTrue(one.dtype == other.dtype and torch.equal(one, other), what)
        elif isinstance(one, dict):
            self.assertEqual(one.keys(), other.keys(), what)
            for key in one:
                self.assert_same_bits(one[key], other[key], f"{what}.{key}")
        elif isinstance(one, (list, tuple)):
            self.assertEqual(len(one), len(other), what)
            for number, (a, b) in enumerate(zip(one, other)):
                self.assert_same_bits(a, b, f"{what}.{number}")
        else:
            self.assertEqual(one, other, what)

    def assert_as_undisturbed(self, outcome, world_size, more=()):
        """Weights, optimizer and schedule to the last bit; each sample once; nobody needed the checkpoint."""
        wanted = self.undisturbed(world_size, more)
        self.assertEqual(sorted(outcome.final), list(range(world_size)))
        for rank, final in outcome.final.items():
            for part in ("parameters", "optimizer", "scheduler", "step", "epoch"):
                self.assert_same_bits(final[part], wanted.final[0][part], f"rank {rank}: {part}")
            self.assertLessEqual(final["loads"], [0])
            self.assertEqual(final["groups"], 1, "an earlier round's group is alive")
        for epoch in range(2):
            self.assertEqual(outcome.samples(epoch), list(range(elastic_program.SAMPLES)))

    def assert_kept(self, outcome, world_size, died):
        """All but `died` processes of the first round are those of the last one, and no round began from further back
        than one step, which the dead may have been ahead."""
        self.assertEqual(len(outcome.births), world_size + died, outcome.log[-6000:])
        self.assertEqual(len(set(outcome.pids().values())), world_size)
        if outcome.agent and outcome.agent.restarts == 1:
            self.assertEqual(outcome.agent.kept, [world_size - died])
        steps = {}
        for round_number, step, *_ in outcome.batches:
            steps.setdefault(round_number, []).append(step)
        for round_number in sorted(steps)[1:]:
            furthest = max(step for earlier in steps if earlier < round_number for step in steps[earlier])
            self.assertGreaterEqual(min(steps[round_number]), furthest - 1)
