"""Communication hooks beside Python's."""

import functools
import unittest

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from distributed_ranks import OURS, PYTHON, RANKS, compare, randn

BUCKETS = [[(40, 30), (30,), (8, 4, 3, 3)], [(64, 20), (20,), (64, 20), (12, 12)], [(5,)]]


class Bucket:
    """What Python's hooks ask of a GradBucket."""

    def __init__(self, index, last, gradients):
        self._index, self._last = index, last
        self._shapes = [gradient.shape for gradient in gradients]
        self._buffer = torch.cat([gradient.flatten() for gradient in gradients])

    def index(self):
        return self._index

    def is_last(self):
        return self._last

    def buffer(self):
        return self._buffer

    def set_buffer(self, buffer):
        self._buffer = buffer

    def gradients(self):
        parts = self._buffer.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes)]


def power_sgd(**options):
    defaults = dict(matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=2.0, use_error_feedback=True,
                    warm_start=True, orthogonalization_epsilon=0.0, random_seed=0, batch_tensors_with_same_shape=False)
    return dict(hook="power_sgd", **dict(defaults, **options))


HOOK_CASES = [
    power_sgd(), power_sgd(matrix_approximation_rank=2, random_seed=11), power_sgd(matrix_approximation_rank=4, min_compression_rate=1.0),
    power_sgd(use_error_feedback=False, start_powerSGD_iter=1, warm_start=False, random_seed=5),
    power_sgd(batch_tensors_with_same_shape=True, orthogonalization_epsilon=1e-8, matrix_approximation_rank=2), dict(hook="fp16_wrapper"), dict(hook="bf16_wrapper"), dict(hook="bf16_wire"), dict(hook="bf16"),
]

# What adds complex numbers up does not know of them, and what makes them smaller would lose half of them.
COMPLEX_CASES = [dict(hook="all_reduce"), power_sgd()] + [
    dict(hook=hook) for hook in ("fp16", "bf16", "fp16_wrapper", "bf16_wrapper", "bf16_wire")]


@functools.cache
def hook_steps(rank):
    return [[[randn(1000 * rank + 100 * step + 10 * index + number, *shape) for number, shape in enumerate(shapes)]
             for index, shapes in enumerate(BUCKETS)] for step in range(6)]


def complex_steps(rank):
    return [[[torch.view_as_complex(randn(100 * rank + step, 4, 3, 2)), torch.view_as_complex(randn(100 * rank + step + 50, 5, 2))]]
            for step in range(2)]


def complex_request(case, rank):
    return dict(case="hooks", steps=complex_steps(rank), reload_after=0, **case)


def hook_request(case, rank):
    return dict(case="hooks", steps=hook_steps(rank), reload_after=4, **case)


def python_hooks(case, rank):
    if case["hook"] == "power_sgd":
        options = {key: value for key, value in case.items() if key != "hook"}
        state = powerSGD_hook.PowerSGDState(None, **options)
        hook = powerSGD_hook.powerSGD_hook
    else:
        state = None
        hook = {"fp16_wrapper": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
                "bf16_wrapper": default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
                "bf16": default_hooks.bf16_compress_hook, "bf16_wire": default_hooks.allreduce_hook}[case["hook"]]
    steps = []
    for step in hook_steps(rank):
        parts = []
        for index, gradients in enumerate(step):
            # One bucket after the other: Python would issue later reductions in completion order.
            parts.append(hook(state, Bucket(index, index + 1 == len(step), gradients)).wait().flatten().float())
        steps.append(torch.cat(parts))
    stats = state.compression_stats()[1:] if state else None
    return {"steps": steps, "stats": stats}


class Hooks(unittest.TestCase):
    def test_equals_python(self):
        for ranks in RANKS:
            for number, case in enumerate(HOOK_CASES):
                if case["hook"] == "bf16_wire":
                    continue
                with self.subTest(ranks=ranks, case=case):
                    for rank in range(ranks):
                        ours, python = OURS[ranks][rank][number], PYTHON[ranks][rank][number]
                        for step, expected in enumerate(python["steps"]):
                            mine = ours[f"step{step}"]
                            self.assertFalse(expected.isnan().any())
                            self.assertTrue(torch.equal(mine, expected), f"step {step}: {(mine - expected).abs().max()}")
                        if python["stats"]:
                            self.assertEqual((ours["before"].item(), ours["after"].item()), python["stats"])
                            self.assertLess(ours["after"].item(), ours["before"].item())

    def test_complex_numbers(self):
        """Averaged as Python averages them, or refused: a cast to float16 would drop the imaginary parts without a word."""
        for ranks in RANKS:
            for rank in range(ranks):
                averaged, *others = OURS[ranks][rank][len(HOOK_CASES):]
                for step, expected in enumerate(PYTHON[ranks][rank][-1]):
                    self.assertTrue(torch.equal(averaged[f"step{step}"], expected), f"{ranks} ranks, step {step}")
                for case, refused in zip(COMPLEX_CASES[1:], others, strict=True):
                    self.assertIn("complex", refused.get("error", "no error"), case)

    def test_bf16_on_the_wire(self):
        """Half the bytes; two roundings to bfloat16 (8 bits) of each value, however many ranks there are."""
        wire = next(index for index, case in enumerate(HOOK_CASES) if case["hook"] == "bf16_wire")
        narrow = next(index for index, case in enumerate(HOOK_CASES) if case["hook"] == "bf16")
        for ranks in RANKS:
            wire_error = narrow_error = 0.0
            for step in range(6):
                flat = [torch.cat([g.flatten() for bucket in hook_steps(rank)[step] for g in bucket]).double() for rank in range(ranks)]
                mean, size = sum(flat) / ranks, sum(part.abs() for part in flat) / ranks
                results = [OURS[ranks][rank][wire][f"step{step}"] for rank in range(ranks)]
                for result in results:
                    self.assertTrue(torch.equal(result, results[0]))
                    self.assertTrue(((result - mean).abs() <= size * 2**-7).all())
                wire_error += (results[0] - mean).square().mean()
                narrow_error += (OURS[ranks][0][narrow][f"step{step}"] - mean).square().mean()
            if ranks > 2:
                self.assertLess(wire_error, narrow_error)


def requests(_ranks, rank, _folder):
    return [hook_request(case, rank) for case in HOOK_CASES] + [complex_request(case, rank) for case in COMPLEX_CASES]


def python(rank):
    # It gives the sums back as pairs of real numbers.
    averaged = [torch.view_as_complex(torch.cat([default_hooks.allreduce_hook(None, Bucket(0, True, gradients)).wait() for gradients in step]))
                for step in complex_steps(rank)]
    return [python_hooks(case, rank) for case in HOOK_CASES] + [averaged]



if __name__ == "__main__":
    compare(requests, python)
