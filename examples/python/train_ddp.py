"""Trains a small residual network on Fashion-MNIST with DistributedDataParallel: plain PyTorch, any launcher.

    torchup  --nproc-per-node=2 train_ddp.py --samples 6000
    torchrun --nproc-per-node=2 train_ddp.py --samples 6000

The C++ program examples/fashion_mnist trains the same network with the same options, order of data and arithmetic.
Started alone it trains as world size 1. With --elastic, which needs the package torchup, a worker that survives a fault
keeps its state and goes on with the next round.
"""

import argparse
import gc
import gzip
import json
import os

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class FashionMnist(Dataset):
    """Debian's package dataset-fashion-mnist, as bytes in memory; a batch is normalised when it is asked for."""

    def __init__(self, folder, part, samples=0):
        prefix = "train" if part == "train" else "t10k"
        images = self.read_idx(f"{folder}/{prefix}-images-idx3-ubyte.gz", 0x0803)
        labels = self.read_idx(f"{folder}/{prefix}-labels-idx1-ubyte.gz", 0x0801)
        kept = samples or len(images)
        self.images = torch.from_numpy(images[:kept].copy()).unsqueeze(1)
        self.labels = torch.from_numpy(labels[:kept].astype(numpy.int64))

    @staticmethod
    def read_idx(path, magic):
        with gzip.open(path) as file:
            data = file.read()
        if int.from_bytes(data[:4], "big") != magic:
            raise ValueError(f"{path}: not an IDX file with magic {magic:#06x}")
        shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(magic & 0xFF)]
        return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * len(shape)).reshape(shape)

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, rows):
        rows = torch.tensor(rows)
        pixels = self.images.index_select(0, rows).to(torch.float32)
        return pixels.div_(255).sub_(0.2860).div_(0.3530), self.labels.index_select(0, rows)


class Block(nn.Module):
    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x):
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.block1 = Block(16, 16, 1)
        self.block2 = Block(16, 32, 2)
        self.block3 = Block(32, 64, 2)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = self.block3(self.block2(self.block1(x)))
        return self.head(x.mean((2, 3)))


def parse_options():
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder with the gzip IDX files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=12000, help="training images used; 0: all 60,000")
    parser.add_argument("--batch-size", type=int, default=128, help="images per step over all workers")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--scheduler", choices=["linear", "none"], default="linear", help="linear: lr falls to 0 at the end")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps; 0: after the epochs")
    parser.add_argument("--weights", help="begin with these weights, saved by torch.save(model.state_dict())")
    parser.add_argument("--history", help="rank 0 writes each step's loss here, one JSON object a line")
    parser.add_argument("--elastic", action="store_true", help="go on in the process after a fault: torchup.elastic")
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)  # some launchers add it
    return parser.parse_args()


@record
def main():
    options = parse_options()
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if options.elastic:
        return train_elastically(options, device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    train = FashionMnist(options.data, "train", options.samples)
    sampler = DistributedSampler(train, world_size, rank, shuffle=True, seed=options.seed)
    loader = DataLoader(train, options.batch_size // world_size, sampler=sampler, collate_fn=lambda batch: batch)

    net = Net()
    if options.weights:
        net.load_state_dict(torch.load(options.weights))
    net.to(device)
    ddp = DistributedDataParallel(net, device_ids=[device] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), options.lr, options.momentum)
    total_steps = options.steps or options.epochs * len(loader)
    end_factor = 0.0 if options.scheduler == "linear" else 1.0
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end_factor, total_steps)
    history = open(options.history, "w") if options.history and rank == 0 else None

    step = 0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right answers, images
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            output = ddp(images)
            loss = nn.functional.cross_entropy(output, labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            right = (output.argmax(1) == labels).sum()
            totals += torch.stack([loss.detach().double() * len(labels), right.double(), torch.tensor(len(labels), device=device).double()])
            if history:
                print(json.dumps({"step": step, "loss": loss.item()}), file=history, flush=True)
            if step == options.steps:
                break
        dist.all_reduce(totals)
        if rank == 0:
            print(f"epoch {epoch}: loss {totals[0] / totals[2]:.4f}, accuracy {100 * totals[1] / totals[2]:.2f} %", flush=True)
        if step == options.steps:
            break

    accuracy = evaluate(net, FashionMnist(options.data, "test"), rank, world_size, device)
    if rank == 0:
        print(f"test accuracy {100 * accuracy:.2f} %", flush=True)
    del ddp  # it holds the group, in a circle of references: gloo's threads would outlive the interpreter, and abort it
    gc.collect()
    dist.destroy_process_group()


def train_elastically(options, device):
    """The same training. `train` is called in each round, with a new default group, and goes on where the job stands."""
    from torchup import elastic

    torch.manual_seed(options.seed)
    data = FashionMnist(options.data, "train", options.samples)
    sampler = elastic.DistributedSampler(data, shuffle=True, seed=options.seed)
    net = Net()
    if options.weights:
        net.load_state_dict(torch.load(options.weights))
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), options.lr, options.momentum)
    batch_size = options.batch_size // int(os.environ["WORLD_SIZE"])
    total_steps = options.steps or options.epochs * -(-len(sampler) // batch_size)
    end_factor = 0.0 if options.scheduler == "linear" else 1.0
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end_factor, total_steps)
    state = elastic.State(model=net, optimizer=optimizer, scheduler=scheduler, epoch=0)

    def train(state):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        loader = DataLoader(data, options.batch_size // world_size, sampler=sampler, collate_fn=lambda batch: batch)
        devices = [device] if device.type == "cuda" else None
        ddp = DistributedDataParallel(net, device_ids=devices, gradient_as_bucket_view=True)
        history = open(options.history, "a") if options.history and rank == 0 else None
        while state.epoch < options.epochs and state.step < total_steps:
            sampler.set_epoch(state.epoch)
            ddp.train()
            for images, labels in state.batches(loader):
                loss = nn.functional.cross_entropy(ddp(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                state.commit()
                if history:
                    print(json.dumps({"step": state.step, "loss": loss.item()}), file=history, flush=True)
                if state.step == options.steps:
                    break
            state.epoch += 1
        accuracy = evaluate(net, FashionMnist(options.data, "test"), rank, world_size, device)
        if rank == 0:
            print(f"test accuracy {100 * accuracy:.2f} % after {state.step} steps", flush=True)

    elastic.run(train, state)


@torch.no_grad()
def evaluate(net, test, rank, world_size, device):
    """Share of right answers over all workers: each takes every world_size-th image, with rank 0's statistics."""
    net.eval()
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)
    rows = list(range(rank, len(test), world_size))
    counts = torch.zeros(2, dtype=torch.float64, device=device)
    for begin in range(0, len(rows), 500):
        images, labels = test.__getitems__(rows[begin : begin + 500])
        right = (net(images.to(device)).argmax(1) == labels.to(device)).sum()
        counts += torch.tensor([float(right), float(len(labels))], dtype=torch.float64, device=device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


if __name__ == "__main__":
    main()
