#!/usr/bin/env python3
"""ZeRO-1, SyncBatchNorm, communication hooks, join and clipping of shards on 1 to 4 ranks, beside the Python classes of the same
torch; where Python has no CPU form (SyncBatchNorm), beside one big batch.

usage: distributed.py TOOLKIT_DISTRIBUTED_REPLAY

The ranks of the references are forks of this process. Equal means equal bits unless a tolerance is named.
"""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer

RANKS = (1, 2, 3, 4)


def randn(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- running the ranks --------------------------------------------------------------------------------------------


def run_ours(program, requests, folder, name, **variables):
    """requests[rank] is a list of requests; returns results[rank]."""
    ranks = len(requests)
    meeting = os.path.join(folder, f"meeting-{name}")
    processes, paths = [], []
    for rank, asked in enumerate(requests):
        paths.append(os.path.join(folder, f"{name}-{rank}"))
        torch.save(asked, paths[rank] + ".in")
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1", **variables)
        processes.append(subprocess.Popen([program, meeting, paths[rank] + ".in", paths[rank] + ".out"], env=environment))
    try:
        for process in processes:
            if process.wait(timeout=90) != 0:
                raise RuntimeError(f"{name}: a rank ended with {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(path + ".out", weights_only=False) for path in paths]


def run_python(ranks, function, folder, name):
    """function(rank) in one forked process per rank, in a gloo group; returns their results."""
    meeting = os.path.join(folder, f"python-meeting-{name}")
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            try:
                dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
                torch.save(function(rank), os.path.join(folder, f"python-{name}-{rank}"))
                dist.barrier()
                os._exit(0)
            except BaseException as error:
                print(f"{name}, rank {rank}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        children.append(pid)
    failed = [status for status in (os.waitpid(pid, 0)[1] for pid in children) if status]
    if failed:
        raise RuntimeError(f"{name}: {len(failed)} Python ranks failed")
    return [torch.load(os.path.join(folder, f"python-{name}-{rank}"), weights_only=False) for rank in range(ranks)]


# --- ZeRO-1 -------------------------------------------------------------------------------------------------------

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


def python_zero(asked, rank):
    parameters = [tensor.clone().requires_grad_() for tensor in asked["parameters"]]
    kinds = {"sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01, fused=True)),
             "adamw": (torch.optim.AdamW, dict(lr=0.01, fused=True)),
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


class Zero(unittest.TestCase):
    def test_equals_python(self):
        for ranks in RANKS:
            for index, case in enumerate(ZERO_CASES):
                with self.subTest(ranks=ranks, case=case):
                    asked = zero_request(*case)
                    for rank in range(ranks):
                        ours, python = OURS[ranks]["zero"][rank][index], PYTHON[ranks][rank]["zero"][index]
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
                    whole = OURS[ranks]["zero"][0][index]
                    if case[0] != "plain_adam":
                        for number, state in PYTHON[ranks][0]["zero"][index]["state"].items():
                            for key, value in state.items():
                                if value is not None:
                                    self.assertTrue(torch.equal(whole[f"{key}{number}"], value), f"{key} {number}")

    def test_state_is_shared_out(self):
        total = sum(parameter.numel() for parameter in zero_request(*ZERO_CASES[0])["parameters"])
        for ranks in RANKS:
            kept = [result[0]["kept"].item() for result in OURS[ranks]["zero"]]
            self.assertEqual(sum(kept), total)
            self.assertLessEqual(max(kept), max(1.2 * total / ranks, 64 * 9))
            states = sum(result[0]["states"].item() for result in OURS[ranks]["zero"])
            self.assertEqual(states, len(SHAPES))

    def test_parts_load_at_another_world_size(self):
        """Saved after three steps at W ranks, gone on with at another W: the bits of the run without a break."""
        for (before, after), results in RESUMED.items():
            with self.subTest(f"{before} to {after} ranks"):
                for result in results:
                    for number in range(len(SHAPES)):
                        expected = PYTHON[1][0]["zero"][3]["parameters"][number]
                        self.assertTrue(torch.equal(result[0][f"parameter{number}"], expected), f"parameter {number}")


# --- SyncBatchNorm ------------------------------------------------------------------------------------------------

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


class SyncBatchNorm(unittest.TestCase):
    def test_equals_one_big_batch(self):
        for ranks in RANKS:
            for number, case in enumerate(NORM_CASES):
                with self.subTest(ranks=ranks, case=case):
                    self.compare(ranks, number, case, [results[number] for results in OURS[ranks]["sync_batch_norm"]])

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
            results = [OURS[ranks]["convert"][rank][0] for rank in range(ranks)]
            for result in results:
                self.assertEqual(result["converted"].split(), ["model.2", "inner.0", "list.1", "dictionary.norm", "typed.ready"])
                self.assertEqual(result["left_alone"].split(), ["typed.plain"])
            # Over all ranks the outputs of a new BatchNorm have mean 0; of one rank only when it is alone.
            self.assertLess(sum(result["mean"] for result in results).abs().max().item(), 1e-5)
            if ranks > 1:
                self.assertGreater(results[0]["mean"].abs().max().item(), 1e-3)


# --- hooks --------------------------------------------------------------------------------------------------------

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


@functools.cache
def hook_steps(rank):
    return [[[randn(1000 * rank + 100 * step + 10 * index + number, *shape) for number, shape in enumerate(shapes)]
             for index, shapes in enumerate(BUCKETS)] for step in range(6)]


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
                        ours, python = OURS[ranks]["hooks"][rank][number], PYTHON[ranks][rank]["hooks"][number]
                        for step, expected in enumerate(python["steps"]):
                            mine = ours[f"step{step}"]
                            self.assertFalse(expected.isnan().any())
                            self.assertTrue(torch.equal(mine, expected), f"step {step}: {(mine - expected).abs().max()}")
                        if python["stats"]:
                            self.assertEqual((ours["before"].item(), ours["after"].item()), python["stats"])
                            self.assertLess(ours["after"].item(), ours["before"].item())

    def test_bf16_on_the_wire(self):
        """Half the bytes; two roundings to bfloat16 (8 bits) of each value, however many ranks there are."""
        wire = next(index for index, case in enumerate(HOOK_CASES) if case["hook"] == "bf16_wire")
        narrow = next(index for index, case in enumerate(HOOK_CASES) if case["hook"] == "bf16")
        for ranks in RANKS:
            wire_error = narrow_error = 0.0
            for step in range(6):
                flat = [torch.cat([g.flatten() for bucket in hook_steps(rank)[step] for g in bucket]).double() for rank in range(ranks)]
                mean, size = sum(flat) / ranks, sum(part.abs() for part in flat) / ranks
                results = [OURS[ranks]["hooks"][rank][wire][f"step{step}"] for rank in range(ranks)]
                for result in results:
                    self.assertTrue(torch.equal(result, results[0]))
                    self.assertTrue(((result - mean).abs() <= size * 2**-7).all())
                wire_error += (results[0] - mean).square().mean()
                narrow_error += (OURS[ranks]["hooks"][0][narrow][f"step{step}"] - mean).square().mean()
            if ranks > 2:
                self.assertLess(wire_error, narrow_error)


# --- clipping of shards -------------------------------------------------------------------------------------------


def clip_requests(rank):
    gradients = [randn(10 * rank + index, 20 + index) for index in range(3)] if rank != 1 else []
    return [dict(case="clip_shards", gradients=gradients, max_norm=0.7, norm_type=kind) for kind in (2.0, 1.0, torch.inf)]


class ClippingOfShards(unittest.TestCase):
    def test_norm_of_the_whole(self):
        for ranks in RANKS:
            for number, kind in enumerate((2.0, 1.0, torch.inf)):
                with self.subTest(ranks=ranks, kind=kind):
                    whole = [gradient for rank in range(ranks) for gradient in clip_requests(rank)[number]["gradients"]]
                    parameters = [torch.zeros_like(gradient) for gradient in whole]
                    for parameter, gradient in zip(parameters, whole):
                        parameter.grad = gradient.clone()
                    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.7, kind)
                    mine = []
                    for rank in range(ranks):
                        result = OURS[ranks]["clip_shards"][rank][number]
                        self.assertLess(abs(result["norm"].item() / norm.item() - 1), 1e-6)
                        mine += [result[f"gradient{index}"] for index in range(len(clip_requests(rank)[number]["gradients"]))]
                    for ours, parameter in zip(mine, parameters, strict=True):
                        self.assertTrue(torch.allclose(ours, parameter.grad, rtol=2e-6, atol=0))


# --- join ---------------------------------------------------------------------------------------------------------

JOIN_CASES = [{}, {"divide_by_active": True}, {"throw": True}]


def join_model():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(randn(index, *parameter.shape))
    return model


def join_request(case, rank):
    inputs = [randn(100 * rank + step, 5, 6) for step in range(13 if rank % 2 else 10)]
    return dict(case="join", inputs=inputs, parameters=[p.detach().clone() for p in join_model().parameters()], **case)


def python_join(asked):
    ddp = torch.nn.parallel.DistributedDataParallel(join_model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, foreach=False)
    steps, error = 0, ""
    try:
        with ddp.join(divide_by_initial_world_size="divide_by_active" not in asked, throw_on_early_termination="throw" in asked):
            for data in asked["inputs"]:
                optimizer.zero_grad()
                with ddp.no_sync() if steps % 4 == 2 else contextlib.nullcontext():
                    ddp(data).square().mean().backward()
                optimizer.step()
                steps += 1
    except RuntimeError as raised:
        error = str(raised)
    return {"steps": steps, "error": error, "parameters": [p.detach() for p in ddp.parameters()], "buffers": list(ddp.buffers())}


class Join(unittest.TestCase):
    def test_equals_python(self):
        for ranks in RANKS:
            for number, case in enumerate(JOIN_CASES):
                for rank in range(ranks):
                    with self.subTest(ranks=ranks, rank=rank, case=case):
                        ours, python = OURS[ranks]["join"][rank][number], PYTHON[ranks][rank]["join"][number]
                        self.assertEqual(ours["steps"].item(), python["steps"])
                        self.assertEqual(ours["error"], python["error"])
                        self.assertEqual(bool(ours["error"]), "throw" in case and ranks > 1)
                        for kind in ("parameter", "buffer"):
                            for index, value in enumerate(python[kind + "s"]):
                                self.assertTrue(torch.equal(ours[f"{kind}{index}"], value), f"{kind} {index}")


# --- everything at once -------------------------------------------------------------------------------------------

OURS, PYTHON, RESUMED, ON_ONE_GPU = {}, {}, {}, []
# What NCCL 2.30.3 and newer needs to let two ranks share a GPU; scripts/train_one_gpu knows the way of older ones.
ONE_GPU_WORKS = torch.cuda.is_available() and torch.cuda.nccl.version() >= (2, 30, 3)
ONE_GPU = {"TEST_ONE_GPU": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "2", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def requests_of(ranks, rank):
    return {
        "zero": [zero_request(*case) for case in ZERO_CASES],
        "sync_batch_norm": [norm_request(number, ranks, rank) for number in range(len(NORM_CASES))],
        "convert": [dict(case="convert", input=randn(rank, 4, 3))],
        "hooks": [hook_request(case, rank) for case in HOOK_CASES],
        "clip_shards": clip_requests(rank),
        "join": [join_request(case, rank) for case in JOIN_CASES],
    }


def python_rank(rank):
    return {"zero": [python_zero(zero_request(*case), rank) for case in ZERO_CASES],
            "hooks": [python_hooks(case, rank) for case in HOOK_CASES],
            "join": [python_join(join_request(case, rank)) for case in JOIN_CASES]}


def run_everything(program, folder):
    saved = dict(zero_request("adamw", True, False), folder=folder, save_part=True, to=3)
    for ranks in RANKS:
        kinds = [requests_of(ranks, rank) for rank in range(ranks)]
        flat = [[one for asked in kind.values() for one in asked] + [saved] for kind in kinds]
        results = run_ours(program, flat, folder, f"ours-{ranks}")
        OURS[ranks] = {}
        start = 0
        for name, asked in kinds[0].items():
            OURS[ranks][name] = [result[start : start + len(asked)] for result in results]
            start += len(asked)
        PYTHON[ranks] = run_python(ranks, python_rank, folder, f"{ranks}")
    if ONE_GPU_WORKS:
        asked = [[norm_request(number, 2, rank) for number in range(len(NORM_CASES))] for rank in range(2)]
        ON_ONE_GPU.extend(run_ours(program, asked, folder, "one-gpu", **ONE_GPU))
    for before, after in ((3, 2), (2, 3), (4, 1), (1, 4)):
        asked = dict(zero_request("adamw", True, False), bucket_view=False, folder=folder, load_parts=before, **{"from": 3})
        RESUMED[before, after] = run_ours(program, [[asked]] * after, folder, f"resumed-{before}-{after}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        run_everything(sys.argv.pop(1), scratch)
    unittest.main()
