#!/usr/bin/env python3
"""DistributedDataParallel beyond the bits: errors that name what is wrong and reach every rank, output types, optimizers on
gradient views, uneven inputs against Python's join, a rank that dies.

usage: ddp_test.py GROUP_WORKER
"""

import multiprocessing
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

from ranks import Checks, run

worker = sys.argv[1]
check = Checks()


def same(results):
    return all(code == 0 for code, _, _ in results) and len({out for _, out, _ in results}) == 1


for what, texts in (
    ("width", ["parameter 0 (in.weight) on rank 2", "[9, 4]", "on rank 0 (in.weight)", "[8, 4]"]),
    ("count", ["rank 2 has 3 parameters that require a gradient, rank 0 has 4", "out.bias"]),
    ("dtype", ["parameter 0 (in.weight) on rank 2", "double", "float"]),
    ("frozen", ["(frozen) on rank 2", "[5]", "on rank 0 (frozen)", "[4]"]),
    ("buffer", ["(table) on rank 2", "[5]", "on rank 0 (table)", "[4]"]),
    ("more", ["rank 2 has 5 parameters and buffers, rank 0 has 4", "table"]),
):
    began = time.monotonic()
    results = run([worker, "shapes", what], 3)
    check.that(same(results) and all(text in results[0][1] for text in texts) and time.monotonic() - began < 10,
               f"another {what} on one rank: every rank says so", results)

results = run([worker, "unused_error"], 2)
check.that(all(code == 0 and out.startswith("Expected to have finished reduction in the prior iteration") and "b.weight, b.bias" in out
               and f"rank {rank}" in out for rank, (code, out, _) in enumerate(results)), "unused parameters are named", results)
check.that(len({out.partition("after reset")[2] or rank for rank, (_, out, _) in enumerate(results)}) == 1,
           "reset() makes the next step work", results)
for view in ("copy", "view"):
    results = run([worker, "reset_in_flight", view], 2)
    check.that(same(results), f"reset() with a reduction under way, {view}", results)
results = run([worker, "static_first_fails"], 2)
check.that(same(results), "a static graph whose first iteration fails", results)
results = run([worker, "outputs"], 2)
check.that(same(results), "tensors are found in pair, map, vector, optional and an own type", results)
results = run([worker, "optimizers"], 2)
check.that(same(results) and results[0][1].count("\n") == 10, "every torch::optim works on gradient views", results)
results = run([worker, "refusals"], 2)
check.that(same(results) and results[0][1] == "ok\n", "refusals name what and where", results)
results = run([worker, "failing_hook"], 2)
check.that(same(results), "an exception out of a hook costs one step", results)
results = run([worker, "second_backward"], 2, TORCH_DISTRIBUTED_DEBUG="INFO")
check.that(same(results) and all("4 gradients came after their step was reduced" in err for _, _, err in results),
           "a second backward of one forward is told in debug mode", results)
results = run([worker, "die_in_backward"], 3)
check.that(results[2][0] == 9 and all(code == 0 and len(out) > 10 and "imed out" not in out for code, out, _ in results[:2]),
           "when a rank dies the others get an exception", results)

# --- hooks that reduce in stages, in DDP itself
results = run([worker, "wire_hook"], 3)
check.that(same(results), "bfloat16 on the wire", results)
# Python's own hook cannot be asked here: with several buckets it reduces them in the order of completion, which hangs.
results = run([worker, "power_sgd"], 3)
check.that(same(results) and results[0][1].count("step ") == 6, "PowerSGD over several buckets", results)

# --- uneven inputs, against Python's join
WORLD_SIZE = 3


def python_rank(rank, store, by_active, view, graph, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(rank)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("in", nn.Linear(4, 8))
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            return self.out(torch.tanh(getattr(self, "in")(x)))

    net = Net()
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001, gradient_as_bucket_view=view, find_unused_parameters=graph == "unused",
                                              static_graph=graph == "static")
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)

    def fingerprint(tensors):
        return sum(tensor.detach().double().abs().sum().item() for tensor in tensors)

    steps = []
    with ddp.join(divide_by_initial_world_size=not by_active):
        for step in range(3 + rank):
            optimizer.zero_grad()
            ddp(torch.full((2, 4), step + 1.0)).square().mean().backward()
            steps.append(fingerprint(p.grad for p in net.parameters()))
            optimizer.step()
    queue.put((rank, [fingerprint(net.parameters()), *steps]))
    dist.destroy_process_group()


for by_active in (False, True):
    for view, graph in ((False, "used"), (True, "unused"), (True, "static")):
        with tempfile.TemporaryDirectory() as folder:
            queue = multiprocessing.Queue()
            others = [multiprocessing.Process(target=python_rank, args=(rank, os.path.join(folder, "store"), by_active, view, graph, queue))
                      for rank in range(WORLD_SIZE)]
            for other in others:
                other.start()
            theirs = dict(queue.get(timeout=60) for _ in others)
            for other in others:
                other.join(30)
        results = run([worker, "join", "active" if by_active else "initial", "view" if view else "copy", graph, "3"], WORLD_SIZE)
        ours = {rank: [float(line.split()[1]) for line in out.splitlines()] for rank, (_, out, _) in enumerate(results)}
        check.that(all(code == 0 for code, _, _ in results) and ours == theirs,
                   f"uneven inputs as Python's join: by {'active' if by_active else 'initial'} ranks, {'views' if view else 'copies'}, {graph}",
                   (ours, theirs, results))
without_first, plain = (run([worker, "join", "initial", "copy", graph, "0"], WORLD_SIZE) for graph in ("static", "used"))
check.that(all(code == 0 for code, _, _ in without_first) and [out for _, out, _ in without_first] == [out for _, out, _ in plain],
           "a static graph with a rank that has no inputs at all", (without_first, plain))
results = run([worker, "join_throws"], 2)
check.that(results[0][1].startswith("Rank 0 exhausted all inputs.") and results[1][1].startswith("Detected at least one rank"),
           "throw_on_early_termination", results)

sys.exit(check.code())
