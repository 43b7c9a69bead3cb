#!/usr/bin/env python3
"""examples/fashion_mnist and its Python twin: same weights, order of data and plain SGD; the losses of 50 steps have the same bits.

A tolerance would prove nothing: one wrong bit grows to 1e-3 within these steps.

usage: twin_test.py FASHION_MNIST TRAIN_DDP_PY
"""

import importlib.util
import json
import os
import struct
import sys
import tempfile

import torch

from ranks import Checks, run

program, script = sys.argv[1:3]
DATA = "/usr/share/datasets/fashion-mnist"
STEPS = 50
if not os.path.isdir(DATA):
    print(f"{DATA} is missing (package dataset-fashion-mnist)")
    sys.exit(77)

check = Checks()
spec = importlib.util.spec_from_file_location("twin", script)
twin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(twin)
torch.manual_seed(3)

with tempfile.TemporaryDirectory(prefix="torchup-twin-") as folder:
    weights = os.path.join(folder, "weights.pth")
    torch.save(twin.Net().state_dict(), weights)

    def losses(command, name):
        """As the bits of a float, step by step."""
        history = os.path.join(folder, name)
        results = run([*command, "--weights", weights, "--history", history, "--steps", str(STEPS), "--samples", "3200", "--batch-size", "64",
                       "--epochs", "1", "--lr", "0.05", "--momentum", "0", "--scheduler", "none"], 2, CUDA_VISIBLE_DEVICES="")
        check.that(all(code == 0 for code, _, _ in results), f"{name} trains", results)
        with open(history) as file:
            return [struct.pack("<f", json.loads(line)["loss"]) for line in file]

    ours = losses([program], "cpp")
    theirs = losses([sys.executable, script], "python")
    check.that(len(theirs) == STEPS and len(set(theirs)) > STEPS // 2, f"{STEPS} losses that change", len(theirs))
    differing = [step for step, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    check.that(ours == theirs, f"the losses of {STEPS} steps have the same bits", f"first difference at step {differing[:1]} of {len(ours)}")
sys.exit(check.code())
