"""Requests to the C++ toolkit, beside the Python classes of the same torch.

One run of the C++ program replays every request of a script; each comparison is a unittest. Equal means equal bits.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import torch

REQUESTS = []
RESULTS = []


def request(**values):
    """Adds a request; returns what gives its result after the replay."""
    REQUESTS.append(values)
    index = len(REQUESTS) - 1
    return lambda: RESULTS[index]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def same(test, ours, python, message):
    test.assertEqual(ours.dtype, python.dtype, message)
    test.assertTrue(torch.equal(ours, python), f"{message}: differs by {(ours.double() - python.double()).abs().max()}")


PYTHON_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def python_optimizer(asked, parameters):
    names = {"momentum", "dampening", "weight_decay", "nesterov", "maximize", "eps", "amsgrad", "lr"}
    options = {name: value for name, value in asked.items() if name in names}
    if "beta1" in asked:
        options["betas"] = (asked["beta1"], asked.get("beta2", 0.999))
    groups = [{"params": parameters}]
    if "second_group_lr" in asked:
        half = len(parameters) // 2
        groups = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": asked["second_group_lr"]}]
    kind = asked["optimizer"]
    if kind.startswith("plain_"):
        # C++ SGD's arithmetic is that of Python without foreach and fused.
        return PYTHON_OPTIMIZERS[kind.removeprefix("plain_")](groups, foreach=False, **options)
    return PYTHON_OPTIMIZERS[kind](groups, fused=True, **options)


def kernel_keeps_bfloat16_momentum():
    """Not that of torch 2.11: its second step mixes the first one's buffer up, in Python as well."""
    parameter = torch.zeros(32, dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=1.0, fused=True)
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return bool(optimizer.state[parameter]["momentum_buffer"].eq(2).all())


def main():
    """Replays every request in one run of the C++ program that the command line names; then the script's tests."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} TOOLKIT_REPLAY [name of a test ...]")
    torch.set_num_threads(1)
    program = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        requests, results = os.path.join(folder, "requests.pt"), os.path.join(folder, "results.pt")
        torch.save(REQUESTS, requests)
        subprocess.run([program, requests, results], check=True, timeout=60)
        RESULTS.extend(torch.load(results, weights_only=False))
    unittest.main("__main__")
