"""A job that hangs: after some steps rank 3 reads a shard from a file server that does not answer, for which a FIFO stands
that nobody writes. Shows what a launcher makes of it; takes four workers, ends with Ctrl-C."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def read_shard(folder, step):
    path = os.path.join(folder, f"shard-{step}.tar")
    if dist.get_rank() == 3 and step == 17:
        os.mkfifo(path)
        with open(path, "rb") as shard:
            return shard.read()
    return b""


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory(prefix="shards_") as folder:
        for step in range(100):
            read_shard(folder, step)
            optimizer.zero_grad()
            model(torch.ones(8, 512)).square().mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
