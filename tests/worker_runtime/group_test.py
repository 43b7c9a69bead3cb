#!/usr/bin/env python3
"""Process groups: how ranks find each other, what they say when they do not, collectives, a Python rank among ours.

usage: group_test.py GROUP_WORKER
"""

import multiprocessing
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from ranks import Checks, Job, contract, free_port, run

worker = sys.argv[1]
check = Checks()


def meets(results, world_size, backend="gloo"):
    total = world_size * (world_size - 1) // 2
    return all(code == 0 and f"rank {rank} of {world_size} local" in out and f"{backend} sum {total}" in out
               for rank, (code, out, _) in enumerate(results))


def all_fail(results, *texts):
    return all(code == 1 and all(text in err for text in texts) for code, _, err in results)


# --- every way to say who one is
check.that(meets(run([worker, "meet"], 3), 3), "three ranks meet by env://")
check.that(meets(Job().start([worker, "meet"], {}).finish(), 1), "without any variable the group has one member")
port = free_port()
results = Job().start([worker, "meet"], {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}).finish()
check.that(all_fail(results, "MASTER_PORT"), "a missing variable is named", results)

for url, name in ((f"tcp://127.0.0.1:{port}", "tcp://"), (f"tcp://[::1]:{port}", "tcp:// with IPv6")):
    job = Job()
    for rank in range(2):
        job.start([worker, "meet"], {"TEST_INIT_METHOD": url, "TEST_RANK": rank, "TEST_WORLD_SIZE": 2})
    results = job.finish()
    check.that(meets(results, 2), f"two ranks meet by {name}", results)
with tempfile.TemporaryDirectory() as folder:
    job = Job()
    for rank in range(2):
        job.start([worker, "meet"], {"TEST_INIT_METHOD": f"file://{folder}/store?rank={rank}&world_size=2"})
    results = job.finish()
    check.that(meets(results, 2), "two ranks meet by file://, ranks behind the address", results)

point = {"MASTER_ADDR": "127.0.0.1"}
for name, variables in {
    "Open MPI": lambda r: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": r,
                           "OMPI_COMM_WORLD_LOCAL_SIZE": 2},
    "PMI": lambda r: {"PMI_RANK": r, "PMI_SIZE": 2},
    "Slurm": lambda r: {"SLURM_PROCID": r, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": r, "SLURM_STEP_ID": 0},
}.items():
    port = free_port()
    job = Job()
    for rank in range(2):
        job.start([worker, "meet"], {**point, "MASTER_PORT": port, **variables(rank)})
    results = job.finish()
    check.that(meets(results, 2), f"two ranks meet by the ranks of {name}", results)

# --- contradictions, all at once
for name, change, texts in (
    ("two world sizes", {"WORLD_SIZE": 3}, ["world size 3", "world size 2", "do not agree"]),
    ("rank 0 twice", {"RANK": 0, "LOCAL_RANK": 0}, ["two processes say that they are rank 0"]),
):
    port = free_port()
    job = Job().start([worker, "meet"], contract(0, 2, port)).start([worker, "meet"], {**contract(1, 2, port), **change})
    began = time.monotonic()
    results = job.finish()
    check.that(all(code == 1 for code, _, _ in results) and all(text in err for _, _, err in results for text in texts)
               and time.monotonic() - began < 5, f"{name}: everybody fails at once", results)
port = free_port()
job = Job().start([worker, "meet"], contract(0, 3, port))
for _ in range(2):
    job.start([worker, "meet"], contract(1, 3, port))
results = job.finish()
check.that(all_fail(results, "two processes say that they are rank 1", "LOCAL_RANK passed as rank?"),
           "two ranks alike beside a third: everybody is told", results)
results = Job().start([worker, "meet"], {**contract(3, 4, free_port()), "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "TEST_RANK": 1}).finish()
check.that(all_fail(results, "rank=1 was passed, but RANK=3", "LOCAL_RANK passed as rank?"), "LOCAL_RANK passed as rank", results)
results = Job().start([worker, "meet"], {**contract(0, 1, free_port()), "TEST_BACKEND": "mpi"}).finish()
check.that(all_fail(results, "backend mpi"), "mpi is refused", results)
results = Job().start([worker, "meet"], {**contract(0, 1, free_port()), "TEST_BACKEND": "nccl", "CUDA_VISIBLE_DEVICES": ""}).finish()
check.that(all_fail(results, "backend nccl", "no GPU"), "nccl without a GPU is refused", results)
results = run([worker, "meet"], 2, GLOO_SOCKET_IFNAME="nosuch7")
check.that(all_fail(results, "process group 0: rank", "cannot connect to the others"), "a backend that cannot be made is our Error", results)

# --- somebody does not come
port = free_port()
began = time.monotonic()
results = (Job().start([worker, "meet"], contract(0, 3, port, TEST_TIMEOUT_MS=7000))
           .start([worker, "meet"], contract(1, 3, port, TEST_TIMEOUT_MS=7000)).finish())
took = time.monotonic() - began
check.that(all(code == 1 and err.count("2 of 3 ranks are here, missing: rank 2") == 2 and "after 7 s" in err for code, _, err in results)
           and took < 12, "a missing rank is named after 5 s, and in the error at the timeout", (took, results))
results = Job().start([worker, "meet"], contract(1, 2, free_port(), TEST_TIMEOUT_MS=6000)).finish()
check.that(all_fail(results, "waits for the store", "cannot reach the store", "rank 0"), "rank 0 does not come", results)

# --- collectives
for world_size in (1, 3):
    results = run([worker, "collectives"], world_size)
    check.that(all(code == 0 and out == "ok\n" for code, out, _ in results), f"collectives, {world_size} ranks", results)
results = run([worker, "seeds"], 2)
check.that(all(code == 0 and out == "ok\n" for code, out, _ in results), "seeds by rank and alike", results)


def python_rank(rank, world_size, port, queue):
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor = torch.full((4,), rank + 1.0)
    dist.all_reduce(tensor)
    word = torch.full((2,), rank)
    dist.broadcast(word, 1)
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(gathered, torch.full((1,), rank))
    sub = dist.new_group([0, 1])
    again = torch.ones(1)
    if rank < 2:
        dist.all_reduce(again, group=sub)
    dist.barrier()
    queue.put(f"sum {tensor[0].item():g} word {word[0].item()} all {gathered[-1].item()} sub {again.item():g}\n")


for python in (0, 2):  # serving the store, and as its client
    port = free_port()
    queue = multiprocessing.Queue()
    other = multiprocessing.Process(target=python_rank, args=(python, 3, port, queue))
    other.start()
    job = Job()
    for rank in {0, 1, 2} - {python}:
        job.start([worker, "beside_python"], contract(rank, 3, port))
    results = job.finish()
    theirs = queue.get(timeout=30)
    other.join(30)
    ranks = [rank for rank in range(3) if rank != python]
    said = dict(zip(ranks, (out.splitlines()[0] + "\n" if out else "" for _, out, _ in results))) | {python: theirs}
    check.that(all(code == 0 for code, _, _ in results)
               and all(line == f"sum 6 word 1 all 2 sub {2 if rank < 2 else 1}\n" for rank, line in said.items()),
               f"a Python rank {python} does collectives with two of ours", (said, results))
    check.that(all("some ranks of this job are Python" in out for _, out, _ in results), "DDP with it is refused", results)

sys.exit(check.code())
