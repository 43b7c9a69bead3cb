"""torchup.drop_in with the real torch, Accelerate and Lightning: workers see what they see under torchrun.

usage: drop_in_torch_test.py TORCHUP PACKAGE [unittest options]    PACKAGE: the folder with the package torchup
"""

import importlib.util
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from drop_in import DropIn  # noqa: E402

TORCHUP, PACKAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
RUN = "from torch.distributed.run import parse_args, run\nimport sys\nrun(parse_args(sys.argv[1:]))\nprint('after')\n"


def needs(name):
    return unittest.skipUnless(importlib.util.find_spec(name), f"{name} is not installed in {sys.executable}")


@needs("torch")
class Torch(DropIn):
    torchup, package = TORCHUP, PACKAGE

    def assert_as_under_torchrun(self, *ways):
        """Each way starts workers that see what they see without us, where torchrun starts them."""
        done = subprocess.run(ways[0], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        others = self.seen()
        for way in ways:
            with self.subTest(way=way):
                self.run_in(*way)
                workers = self.seen()
                self.assert_same(workers, others)
                agent = {os.path.basename(worker["agent"]) for worker in workers}
                self.assertEqual(agent, {os.path.basename(os.path.realpath(TORCHUP))})

    def test_torchs_own_ways(self):
        words = ("--nproc-per-node=2", "--max-restarts=1", "show.py", "a", "--b")
        self.write("run.py", RUN)
        self.assert_as_under_torchrun(*((sys.executable, *way, *words) for way in (
            ("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch", "--use-env"), ("run.py",))))

    @needs("accelerate")
    def test_accelerate(self):
        self.assert_as_under_torchrun((sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2",
                                       "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "show.py", "a", "--b"))

    @needs("lightning")
    def test_lightning_fabric(self):
        self.assert_as_under_torchrun((sys.executable, "-m", "lightning.fabric.cli", "--accelerator=cpu", "--devices=2",
                                       "show.py", "a", "--b"))


if __name__ == "__main__":
    unittest.main()
