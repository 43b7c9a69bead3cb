"""Requests to the C++ toolkit on 1 to 4 ranks, beside the Python classes of the same torch in a gloo group.

The ranks of the references are forks of this process. Equal means equal bits unless a tolerance is named.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

RANKS = (1, 2, 3, 4)
OURS = {}    # [ranks][rank]: the results of the C++ program
PYTHON = {}  # [ranks][rank]: what the script's Python function says


def randn(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


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


def compare(requests, python=None, also=None):
    """Runs a script: for each number of ranks what `requests(ranks, rank, folder)` lists by the C++ program that the command
    line names, and `python(rank)`, if there is one; then `also(program, folder)`; then the script's tests."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} TOOLKIT_DISTRIBUTED_REPLAY [name of a test ...]")
    torch.set_num_threads(1)
    program = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            OURS[ranks] = run_ours(program, [requests(ranks, rank, folder) for rank in range(ranks)], folder, f"ours-{ranks}")
            if python:
                PYTHON[ranks] = run_python(ranks, python, folder, f"{ranks}")
        if also:
            also(program, folder)
    unittest.main("__main__")
