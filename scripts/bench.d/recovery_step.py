"""A job of scripts/bench recovery: trains under torchup.elastic until it is ended. Argument: the folder.

Each worker appends STEP PID MONOTONIC_NS to FOLDER/stamps after each commit; rank 0 leaves a checkpoint every 20 steps,
from which the job goes on where nobody has survived.
"""

import os
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torchup import elastic

folder = sys.argv[1]
checkpoint = os.path.join(folder, "checkpoint")
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
state = elastic.State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))


def load(state):
    if os.path.exists(checkpoint):
        state.load_state_dict(torch.load(checkpoint))


def train(state):
    ddp = DistributedDataParallel(state.model, find_unused_parameters=True)
    stamps = os.open(os.path.join(folder, "stamps"), os.O_WRONLY | os.O_APPEND)
    while True:
        ddp(torch.randn(32, 512)).square().mean().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.commit()
        os.write(stamps, f"{state.step} {os.getpid()} {time.monotonic_ns()}\n".encode())
        if state.step % 20 == 0 and torch.distributed.get_rank() == 0:
            torch.save(state.state_dict(), checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        time.sleep(0.01)


elastic.run(train, state, load=load, seed=1)
