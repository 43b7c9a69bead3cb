"""SyncBatchNorm, which has no CPU form in Python, beside one big batch."""

import functools
import unittest

import torch

from distributed_ranks import OURS, RANKS, compare, randn, run_ours

SHARDS = (5, 2, 0, 3)
NORM_CASES = [
    dict(shape=(4,)), dict(shape=(4, 6)), dict(shape=(4, 3, 5)), dict(shape=(4, 3, 5), channels_last=True),
    dict(shape=(3, 2, 2, 2)), dict(shape=(4, 6), no_affine=True), dict(shape=(4, 6), cumulative=True),
    dict(shape=(4, 6), no_tracking=True), dict(shape=(4, 6), eval_last=True), dict(shape=(4, 6), dtype=torch.float64),
    dict(shape=(4, 6), dtype=torch.bfloat16),
]


@functools.cache
def norm_data(number, ranks):
    case = NORM_CASES[number]
    dtype = case.get("dtype", torch.float32)
    rows = sum(SHARDS[:ranks])
    inputs = [randn(7 * number + step, rows, *case["shape"], dtype=dtype) * 3 + 2 for step in range(3)]
    gradients = [randn(7 * number + step + 50, rows, *case["shape"], dtype=dtype) for step in range(3)]
    channels = case["shape"][0]
    parameter_type = torch.float64 if dtype == torch.float64 else torch.float32
    return inputs, gradients, randn(number, channels, dtype=parameter_type), randn(number + 1, channels, dtype=parameter_type)


def shard(tensor, rank, channels_last):
    start = sum(SHARDS[:rank])
    part = tensor[start : start + SHARDS[rank]]
    return part.contiguous(memory_format=torch.channels_last) if channels_last else part.contiguous()


def norm_request(number, ranks, rank):
    case = NORM_CASES[number]
    inputs, gradients, weight, bias = norm_data(number, ranks)
    last = case.get("channels_last", False)
    flags = {name: True for name in ("no_affine", "cumulative", "no_tracking", "eval_last") if case.get(name)}
    return dict(case="sync_batch_norm", inputs=[shard(x, rank, last) for x in inputs],
                gradients=[shard(x, rank, last) for x in gradients], weight=weight, bias=bias, **flags)


ON_ONE_GPU = []
# What NCCL 2.30.3 and newer needs to let two ranks share a GPU; scripts/train_one_gpu knows the way of older ones.
ONE_GPU_WORKS = torch.cuda.is_available() and torch.cuda.nccl.version() >= (2, 30, 3)
ONE_GPU = {"TEST_ONE_GPU": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "2", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


class SyncBatchNorm(unittest.TestCase):
    def test_equals_one_big_batch(self):
        for ranks in RANKS:
            for number, case in enumerate(NORM_CASES):
                with self.subTest(ranks=ranks, case=case):
                    self.compare(ranks, number, case, [results[number] for results in OURS[ranks]])

    def test_two_nccl_ranks_on_one_gpu(self):
        if not ONE_GPU_WORKS:
            self.skipTest("torch finds no GPU on this machine, or NCCL is older than 2.30.3")
        for number, case in enumerate(NORM_CASES):
            with self.subTest(case=case):
                self.compare(2, number, case, [results[number] for results in ON_ONE_GPU])

    def compare(self, ranks, number, case, ours):
        inputs, gradients, weight, bias = norm_data(number, ranks)
        # One big batch in float64: the exact answer, as far as either side's rounding goes.
        layer = torch.nn.BatchNorm1d(case["shape"][0], affine=not case.get("no_affine"), momentum=None if case.get("cumulative") else 0.1,
                                     track_running_stats=not case.get("no_tracking"), dtype=torch.float64)
        if layer.affine:
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        tolerance = {torch.float32: 4e-6, torch.float64: 1e-13, torch.bfloat16: 4e-2}[case.get("dtype", torch.float32)]

        def close(ours, exact, what):
            self.assertEqual(ours.shape, exact.shape, what)
            if ours.numel():
                scale = max(1.0, exact.abs().max().item())
                self.assertLess((ours.double() - exact).abs().max().item(), tolerance * scale, what)

        for step in range(3):
            layer.train(not (case.get("eval_last") and step == 2))
            x = inputs[step].double().flatten(2).requires_grad_() if inputs[step].dim() > 2 else inputs[step].double().requires_grad_()
            y = layer(x)
            y.backward(gradients[step].double().view(y.shape))
            close(torch.cat([result[f"output{step}"] for result in ours]), y.detach().view(inputs[step].shape), f"output {step}")
            close(torch.cat([result[f"grad{step}"] for result in ours]), x.grad.view(inputs[step].shape), f"input's gradient {step}")
        if layer.affine:
            close(sum(result["grad_weight"].double() for result in ours), layer.weight.grad, "weight's gradient")
            close(sum(result["grad_bias"].double() for result in ours), layer.bias.grad, "bias's gradient")
        for result in ours:
            if layer.track_running_stats:
                close(result["running_mean"], layer.running_mean, "running mean")
                close(result["running_var"], layer.running_var, "running variance")
                self.assertEqual(result["num_batches_tracked"].item(), layer.num_batches_tracked.item())
                for name in ("running_mean", "running_var"):  # the same bits on every rank
                    self.assertTrue(torch.equal(result[name], ours[0][name]))
            else:
                self.assertNotIn("running_mean", result)

    def test_conversion(self):
        for ranks in RANKS:
            results = [OURS[ranks][rank][-1] for rank in range(ranks)]
            for result in results:
                self.assertEqual(result["converted"].split(), ["model.2", "inner.0", "list.1", "dictionary.norm", "typed.ready"])
                self.assertEqual(result["left_alone"].split(), ["typed.plain"])
            # Over all ranks the outputs of a new BatchNorm have mean 0; of one rank only when it is alone.
            self.assertLess(sum(result["mean"] for result in results).abs().max().item(), 1e-5)
            if ranks > 1:
                self.assertGreater(results[0]["mean"].abs().max().item(), 1e-3)


def requests(ranks, rank, _folder):
    return [norm_request(number, ranks, rank) for number in range(len(NORM_CASES))] + [dict(case="convert", input=randn(rank, 4, 3))]


def on_one_gpu(program, folder):
    if ONE_GPU_WORKS:
        asked = [[norm_request(number, 2, rank) for number in range(len(NORM_CASES))] for rank in range(2)]
        ON_ONE_GPU.extend(run_ours(program, asked, folder, "one-gpu", **ONE_GPU))



if __name__ == "__main__":
    compare(requests, also=on_one_gpu)
