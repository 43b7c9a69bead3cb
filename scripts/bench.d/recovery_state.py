"""What scripts/bench recovery measures between two ranks, gloo: argument ROUNDS. Rank 0 prints a line of JSON:
seconds in which a newcomer takes 100 MB of state from a survivor, and those of a plain broadcast of as many bytes to
memory that is as much in use; and those of a commit of a model with 21 buffers, without and with a seed."""

import json
import random
import sys
import time

import torch
import torch.distributed as dist
from torchup import elastic
from torchup._agreement import agree

rounds = int(sys.argv[1])
TENSORS, NUMBERS = 54, 100 * 10**6 // 54 // 4
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def timed(work):
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - begin


def newcomer():
    """The parameters are there already, with the newcomer's first values in them."""
    net = torch.nn.ParameterList([torch.nn.Parameter(torch.full((NUMBERS,), float(rank))) for _ in range(TENSORS)])
    state = elastic.State(model=net)
    if rank == 0:
        state._fresh, state._step = False, 5
    seconds = timed(lambda: agree(state, None, 1))
    assert state.step == 5 and not any(each.any() for each in net)
    return seconds


def broadcast():
    tensor = torch.full((TENSORS * NUMBERS,), float(rank))
    seconds = timed(lambda: dist.broadcast(tensor, 0))
    assert not tensor.any()
    return seconds


def commit(seed):
    net = torch.nn.Sequential(*(torch.nn.BatchNorm1d(64) for _ in range(7)))
    state = elastic.State(model=net, optimizer=torch.optim.AdamW(net.parameters()), epoch=0)
    state._seed = seed
    for _ in range(200):
        begin = time.perf_counter()
        state.commit()
        yield time.perf_counter() - begin


works = {"newcomer": newcomer, "broadcast": broadcast}
times = {name: [] for name in works}
for turn in range(rounds + 1):
    for name in random.Random(turn).sample(list(works), len(works)):
        seconds = works[name]()
        if turn > 0:
            times[name].append(seconds)
if rank == 0:
    times |= {"commit": list(commit(None)), "seeded commit": list(commit((42, 0)))}
    print(json.dumps(times))
dist.barrier()
dist.destroy_process_group()
