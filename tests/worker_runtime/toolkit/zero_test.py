"""ZeRO-1 beside ZeroRedundancyOptimizer."""

import contextlib
import ctypes
import functools
import os
import unittest

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from distributed_ranks import OURS, PYTHON, RANKS, compare, randn, run_ours

SHAPES = [(13, 7), (7,), (64, 9), (3, 2, 3, 3), (50,), (1,), (40, 11), (11,)]
STEPS = 6


@functools.cache
def zero_request(optimizer, bucket_view, scaled, large=False):
    shapes = [(60 * shape[0], *shape[1:]) for shape in SHAPES] if large else SHAPES
    parameters = [randn(index, *shape) for index, shape in enumerate(shapes)]
    gradients = [[randn(100 * step + index + 9, *shape) for index, shape in enumerate(shapes)] for step in range(STEPS)]
    if not bucket_view:  # Python's flat buffers lose the layout, and the last bits depend on the order in memory
        parameters[3] = parameters[3].contiguous(memory_format=torch.channels_last)
    asked = dict(case="zero", optimizer=optimizer, bucket_view=bucket_view, parameters=parameters, gradients=gradients,
                 second_group_lr=0.02, **{"from": 0, "to": STEPS})
    if scaled:
        found = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
        asked.update(grad_scale=torch.tensor(4.0), found_inf=found)
        gradients[2][0][0, 0] = torch.inf
    return asked


def complex_request(bucket_view):
    """The same with complex numbers, for an optimizer that knows them."""
    asked = dict(zero_request("plain_sgd", bucket_view, False))
    asked["parameters"] = [torch.complex(tensor, tensor.flip(0)) for tensor in asked["parameters"]]
    asked["gradients"] = [[torch.complex(tensor, tensor.flip(0)) for tensor in step] for step in asked["gradients"]]
    return asked


def python_zero(asked, rank):
    parameters = [tensor.clone().requires_grad_() for tensor in asked["parameters"]]
    kinds = {"sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01, fused=True)),
             "adamw": (torch.optim.AdamW, dict(lr=0.01, fused=True)),
             "plain_sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, foreach=False)),
             "plain_adam": (torch.optim.Adam, dict(lr=0.01, foreach=False))}
    kind, options = kinds[asked["optimizer"]]
    half = len(parameters) // 2
    groups = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": asked["second_group_lr"]}]
    zero = ZeroRedundancyOptimizer(groups, kind, parameters_as_bucket_view=asked["bucket_view"], **options)
    for step, gradients in enumerate(asked["gradients"]):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = torch.empty_like(parameter.detach()).copy_(gradient)  # the layout that autograd makes
        if step == 2:
            zero.param_groups[0]["lr"] = 0.05
        if "grad_scale" in asked:
            zero.optim.grad_scale, zero.optim.found_inf = asked["grad_scale"], asked["found_inf"][step]
        zero.step()
    zero.consolidate_state_dict(0)
    state = zero.state_dict()["state"] if rank == 0 else {}
    return {"parameters": [parameter.detach() for parameter in parameters],
            "owners": [zero._param_to_rank[parameter] for parameter in parameters],
            "kept": sum(parameter.numel() for group in zero.optim.param_groups for parameter in group["params"]),
            "state": state}


ZERO_CASES = [("sgd", False, False), ("sgd", True, False), ("adamw", False, False), ("adamw", True, False), ("adamw", True, True),
              ("plain_adam", True, False), ("adamw", False, False, True), ("adamw", True, False, True)]


def memory_is_readable():
    """Whether the kernel lets one process of this user read another one's memory."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/yama/ptrace_scope") as scope:
        if scope.read().strip() != "0":
            return False
    word, seen = ctypes.c_int64(7), ctypes.c_int64()
    vectors = [(ctypes.c_size_t * 2)(ctypes.addressof(number), 8) for number in (seen, word)]
    return ctypes.CDLL(None).process_vm_readv(os.getpid(), vectors[0], 1, vectors[1], 1, 0) == 8


RESUMED = {}


class Zero(unittest.TestCase):
    def test_equals_python(self):
        for ranks in RANKS:
            for index, case in enumerate(ZERO_CASES):
                with self.subTest(ranks=ranks, case=case):
                    asked = zero_request(*case)
                    for rank in range(ranks):
                        ours, python = OURS[ranks][rank][index], PYTHON[ranks][rank][index]
                        self.assertEqual(ours["owners"].int().tolist(), python["owners"])
                        self.assertEqual(ours["kept"].item(), python["kept"])
                        if ranks == 1 or len(case) == 3:  # alone, or small parameters
                            self.assertFalse(ours["reads"].item())
                        elif memory_is_readable():
                            self.assertTrue(ours["reads"].item())
                        for number, parameter in enumerate(python["parameters"]):
                            mine = ours[f"parameter{number}"]
                            if case[0] == "plain_adam":  # LibTorch's Adam rounds otherwise than Python's
                                self.assertLess((mine - parameter).abs().max(), 1e-6)
                            else:
                                self.assertTrue(torch.equal(mine, parameter), f"parameter {number}")
                            self.assertFalse(torch.equal(mine, asked["parameters"][number]))
                    whole = OURS[ranks][0][index]
                    if case[0] != "plain_adam":
                        for number, state in PYTHON[ranks][0][index]["state"].items():
                            for key, value in state.items():
                                if value is not None:
                                    self.assertTrue(torch.equal(whole[f"{key}{number}"], value), f"{key} {number}")

    def test_complex_numbers(self):
        for ranks in RANKS:
            for rank in range(ranks):
                for ours, python in zip(OURS[ranks][rank][-2:], PYTHON[ranks][rank][-2:], strict=True):
                    for number, parameter in enumerate(python["parameters"]):
                        self.assertTrue(parameter.is_complex())
                        self.assertTrue(torch.equal(ours[f"parameter{number}"], parameter), f"{ranks} ranks, parameter {number}")

    def test_state_is_shared_out(self):
        total = sum(parameter.numel() for parameter in zero_request(*ZERO_CASES[0])["parameters"])
        for ranks in RANKS:
            kept = [result[0]["kept"].item() for result in OURS[ranks]]
            self.assertEqual(sum(kept), total)
            self.assertLessEqual(max(kept), max(1.2 * total / ranks, 64 * 9))
            states = sum(result[0]["states"].item() for result in OURS[ranks])
            self.assertEqual(states, len(SHAPES))

    def test_parts_load_at_another_world_size(self):
        """Saved after three steps at W ranks, gone on with at another W: the bits of the run without a break."""
        for (before, after), results in RESUMED.items():
            with self.subTest(f"{before} to {after} ranks"):
                for result in results:
                    for number in range(len(SHAPES)):
                        expected = PYTHON[1][0][3]["parameters"][number]
                        self.assertTrue(torch.equal(result[0][f"parameter{number}"], expected), f"parameter {number}")


def requests(_ranks, _rank, folder):
    part = dict(zero_request("adamw", True, False), folder=folder, save_part=True, to=3)
    return [*(zero_request(*case) for case in ZERO_CASES), part, complex_request(False), complex_request(True)]


def python(rank):
    return [python_zero(asked, rank) for asked in (*(zero_request(*case) for case in ZERO_CASES), complex_request(False), complex_request(True))]


def resume(program, folder):
    for before, after in ((3, 2), (2, 3), (4, 1), (1, 4)):
        asked = dict(zero_request("adamw", True, False), bucket_view=False, folder=folder, load_parts=before, **{"from": 3})
        RESUMED[before, after] = run_ours(program, [[asked]] * after, folder, f"resumed-{before}-{after}")



if __name__ == "__main__":
    compare(requests, python, resume)
