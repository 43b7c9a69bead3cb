#!/usr/bin/env python3
"""Our DistributedDataParallel against Python's: same model, weights' sizes, batch, backend (gloo), ranks and threads.

Two ranks of one thread each on this machine; ours and Python's take turns within every round. A step is zero_grad, forward,
backward, SGD. Per run the tenth percentile of its steps and the CPU time of rank 0 per step; over the rounds the median.
Exposed communication is the step less the step inside no_sync, waiting for the other rank included; overlap is the share of
the reduction alone that it hides.
"""
import json
import os
import subprocess
import sys

import measure

sys.path.append(os.path.join(measure.ROOT, "tests/support"))
from ranks import free_port  # noqa: E402

#   name: (layers, width, batch, steps, view), goal for our step over Python's
MODELS = {
    "small MLP": ((3, 64, 32, 400, 0), 0.8),
    "16 layers": ((16, 64, 32, 200, 0), 0.8),
    "25M parameters": ((6, 2048, 8, 12, 0), 1.03),
    "25M parameters, gradients as views": ((6, 2048, 8, 12, 1), 1.03),
}
GPU_MODEL = "ResNet-18 on one GPU, batch 64, world size 1"

PYTHON_RANK = """
import gc, json, sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
layers, width, batch, steps, view = map(int, sys.argv[1:6])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
ddp = DistributedDataParallel(model, gradient_as_bucket_view=bool(view))
optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
data = torch.randn(batch, width)
def step():
    optimizer.zero_grad()
    ddp(data).square().mean().backward()
    optimizer.step()
def measured():
    for _ in range(5): step()
    times, cpu = [], time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e6)
    return sorted(times)[len(times) // 10], (time.process_time() - cpu) / steps * 1e6
whole, cpu = measured()
with ddp.no_sync():
    local, _ = measured()
if dist.get_rank() == 0: print(json.dumps({"step": whole, "cpu": cpu, "local": local}))
del ddp  # as in examples/python/train_ddp.py
gc.collect()
dist.destroy_process_group()
"""


def run(command):
    """Two ranks; what rank 0 printed."""
    port = free_port()
    ranks = []
    for rank in range(2):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        ranks.append(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE))
    try:
        outputs = [rank.communicate(timeout=900)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        sys.exit(f"bench: {command[:2]} failed")
    return json.loads(outputs[0])


def one_gpu(options, goals):
    """DDP at world size 1 beside the bare step, where there is a GPU."""
    done = subprocess.run([measure.program(options, "bench_ddp_gpu"), str(options.rounds)], stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"bench: bench_ddp_gpu ended with {done.returncode}")
    times = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    if "skipped" in times:
        print(f"\n{GPU_MODEL}: left out: {times['skipped']}")
        return None
    result = measure.report(f"{GPU_MODEL}: step", "ms", times, "bare", digits=2)
    goals.at_most(f"{GPU_MODEL}: step / the bare step", result["rows"]["ddp"]["ratio_to_ours"], 1.01)
    return result


def main():
    parser = measure.arguments(__doc__.splitlines()[0])
    parser.add_argument("--python", default=os.path.join(measure.ROOT, ".venv/bin/python"), help="a Python with torch")
    parser.add_argument("--only", help="part of a model's name")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it runs, not what holds")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 2
    built = subprocess.run(["cmake", "--build", options.build, "--target", "bench_ddp_step", "bench_ddp_gpu"],
                           capture_output=True, text=True)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)
    program = measure.program(options, "bench_ddp_step")
    print(measure.machine())
    results, goals = {}, measure.Goals()
    for name, (shape, goal) in MODELS.items():
        if options.only and options.only not in name:
            continue
        arguments = [str(number) for number in shape]
        runs = measure.interleave({"torchup": lambda: run([program, *arguments]),
                                   "Python DDP": lambda: run([options.python, "-c", PYTHON_RANK, *arguments])}, options.rounds)

        def numbers(key):
            return {who: [result[key] for result in series] for who, series in runs.items()}

        results[name] = {"step": measure.report(f"{name}: step, p10", "us", numbers("step"), "torchup"),
                         "cpu": measure.report(f"{name}: CPU of rank 0 per step", "us", numbers("cpu"), "torchup")}
        ours = sorted(runs["torchup"], key=lambda result: result["step"])[len(runs["torchup"]) // 2]
        exposed = max(0.0, ours["step"] - ours["local"])
        results[name]["communication"] = {**ours, "exposed": exposed, "overlap": max(0.0, 1 - exposed / ours["reduction"])}
        print(f"  torchup: step {ours['step']:.0f}, inside no_sync {ours['local']:.0f}, reduction alone {ours['reduction']:.0f} in "
              f"{ours['buckets']} buckets: exposed {exposed:.0f}, overlap {100 * results[name]['communication']['overlap']:.0f} %")
        goals.at_most(f"{name}: our step / Python's", 1 / results[name]["step"]["rows"]["Python DDP"]["ratio_to_ours"], goal)
    if not options.only or options.only in GPU_MODEL:
        results[GPU_MODEL] = one_gpu(options, goals)
    if not results:
        sys.exit(f"bench: no model has {options.only!r} in its name; there are: {', '.join([*MODELS, GPU_MODEL])}")
    measure.finish(options, {"models": results, "goals": goals.table()})


if __name__ == "__main__":
    main()
