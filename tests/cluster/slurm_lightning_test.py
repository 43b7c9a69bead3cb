"""Lightning under torchup in a real Slurm (slurm_cluster.py): it takes torchup's places by itself, and Slurm's where it is told
to, which are then the workers'.

usage: slurm_lightning_test.py TORCHUP [unittest options]      skipped as slurm_test.py is, and without lightning (scripts/setup --tests
installs it)

The Python is the one that runs this, or TORCHUP_LIGHTNING_PYTHON.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from slurm_cluster import Cluster, why_not

TORCHUP = os.path.abspath(sys.argv.pop(1))
PYTHON = os.environ.get("TORCHUP_LIGHTNING_PYTHON", sys.executable)
PROGRAM = """
import sys, torch
import lightning
from lightning.pytorch.plugins.environments import SLURMEnvironment

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(32, 4, generator=torch.Generator().manual_seed(7)), batch_size=4)

lightning.seed_everything(1, verbose=False)
plugins = [SLURMEnvironment(auto_requeue=False)] if "slurm" in sys.argv else []
trainer = lightning.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", max_epochs=1, logger=False, plugins=plugins,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
model = Model()
trainer.fit(model)
weights = " ".join(f"{weight:.9f}" for weight in model.layer.weight.flatten().tolist())
environment = type(trainer.strategy.cluster_environment).__name__
print(f"rank {trainer.global_rank}/{trainer.world_size} node {trainer.node_rank} {environment} weights {weights}", flush=True)
"""


class Lightning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if not reason and subprocess.run([PYTHON, "-c", "import lightning, torch"], capture_output=True).returncode:
            reason = "lightning is not there (scripts/setup --tests installs it)"
        if reason:
            raise unittest.SkipTest(reason)
        cls.cluster = Cluster(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.addClassCleanup(cls.cluster.stop)
        if not cls.cluster.wait_until_idle():
            raise unittest.SkipTest("Slurm does not start here (is it built with --enable-multiple-slurmd?)")

    def train(self, environment, *words):
        program = self.cluster.folder / "program.py"
        program.write_text(PROGRAM)
        done = self.cluster.run("srun", *words[:-1], TORCHUP, *words[-1], "--no-python", PYTHON, program,
                                "slurm" if environment == "SLURMEnvironment" else "", limit=250, OMP_NUM_THREADS="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = re.findall(r"rank (\d/4) node (\d) (\w+) weights (.*)", done.stdout)
        self.assertEqual(sorted((rank, node) for rank, node, _, _ in said),
                         [("0/4", "0"), ("1/4", "0"), ("2/4", "1"), ("3/4", "1")], done.stdout)
        self.assertEqual({name for _, _, name, _ in said}, {environment})
        self.assertEqual(len({weights for _, _, _, weights in said}), 1)

    def test_a_trainer_just_runs(self):
        self.train("TorchElasticEnvironment", "-N2", "-n2", ["--nproc-per-node=2"])

    def test_one_that_is_told_to_read_slurms_variables(self):
        self.train("SLURMEnvironment", "-N2", "--ntasks-per-node=2", [])


if __name__ == "__main__":
    unittest.main()
