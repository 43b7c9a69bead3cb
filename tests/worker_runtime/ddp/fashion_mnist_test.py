#!/usr/bin/env python3
"""examples/fashion_mnist: the same bits as its Python twin, and what becomes of its last checkpoint.

usage: tests/support/run_case.py fashion_mnist_test.py CASE FASHION_MNIST TRAIN_DDP_PY
"""

import importlib.util
import json
import os
import resource
import signal
import struct
import sys
import tempfile
import unittest
import zlib

from ranks import Job, contract, free_port, run
from small_fashion_mnist import WHOLE, small_fashion_mnist

program, script = sys.argv[1:3]
STEPS = 50


@unittest.skipUnless(os.path.isdir(WHOLE), f"{WHOLE} is missing (package dataset-fashion-mnist)")
class FashionMnist(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="torchup-twin-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.data = ["--data", small_fashion_mnist(os.path.join(self.folder, "data"))]

    def losses(self, command, name, weights):
        """As the bits of a float, step by step."""
        history = os.path.join(self.folder, name)
        results = run([*command, *self.data, "--weights", weights, "--history", history, "--steps", str(STEPS), "--samples", "3200", "--batch-size", "64",
                       "--epochs", "1", "--lr", "0.05", "--momentum", "0", "--scheduler", "none"], 2, CUDA_VISIBLE_DEVICES="")
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        with open(history) as file:
            return [struct.pack("<f", json.loads(line)["loss"]) for line in file]

    def test_same_weights_data_and_sgd_give_losses_with_the_same_bits(self):
        """A tolerance would prove nothing: one wrong bit grows to 1e-3 within these steps."""
        import torch
        spec = importlib.util.spec_from_file_location("twin", script)
        twin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(twin)
        torch.manual_seed(3)
        weights = os.path.join(self.folder, "weights.pth")
        torch.save(twin.Net().state_dict(), weights)
        ours = self.losses([program], "cpp", weights)
        theirs = self.losses([sys.executable, script], "python", weights)
        self.assertEqual(len(theirs), STEPS)
        self.assertGreater(len(set(theirs)), STEPS // 2)
        self.assertEqual(ours, theirs)

    def test_a_last_checkpoint_that_cannot_be_written_fails_the_job_on_every_rank(self):
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk is an error of write, not a signal
            resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
        port = free_port()
        job = Job()
        for rank in range(2):
            job.start([program, *self.data, "--epochs", "1", "--samples", "256", "--checkpoint", os.path.join(self.folder, "ckpt")],
                      contract(rank, 2, port, CUDA_VISIBLE_DEVICES=""), preexec_fn=small_files, restore_signals=False)
        for code, _, err in job.finish():
            self.assertEqual(code, 1, err)
            self.assertIn("File too large", err)

    def test_a_run_that_was_stopped_after_an_epochs_last_step_goes_on_with_the_next(self):
        history, checkpoints = os.path.join(self.folder, "losses"), os.path.join(self.folder, "ckpt")
        manifest = os.path.join(checkpoints, "step-000000000004", "manifest.json")
        said = {}
        for epochs in ("1", "2"):
            results = run([program, *self.data, "--epochs", epochs, "--samples", "256", "--batch-size", "64", "--history", history,
                           "--checkpoint", checkpoints], 2, CUDA_VISIBLE_DEVICES="")
            self.assertEqual([code for code, _, _ in results], [0, 0], results)
            said[epochs] = results[0][1]
            if epochs == "1":  # its end, as a stop would have left it
                with open(manifest) as file:
                    body, mark, _ = file.read().partition(',\n "crc32": ')
                body = body.replace('\n "epoch": 1,', '\n "epoch": 0,')
                with open(manifest, "w") as file:
                    file.write(f"{body}{mark}{zlib.crc32(body.encode())}\n}}\n")
        self.assertNotIn("epoch 0", said["2"])
        self.assertIn("epoch 1", said["2"])
        with open(history) as file:  # the losses of the steps before stay
            self.assertEqual([json.loads(line)["step"] for line in file], list(range(1, 9)))


if __name__ == "__main__":
    sys.exit(__doc__)
