"""A small training that can recover, and that is disturbed where it is told to.

usage: elastic_program.py --out FOLDER [--fault KIND:RANK:PLACE:STEP[:ROUND] ...] [--epochs N] [--workers N] …

KIND is kill, late (when another has loaded), stop, raise or member; PLACE one of those where `Faults.at` is called
below; STEP commits so far; ROUND restarts so far. Each happens once in a job. Into the folder go: birth.PID for each
process; samples.PID, a line for each batch; final.RANK.pt.
"""

import argparse
import contextlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from torchup import elastic
from torchup._link import link

SAMPLES = 48


class Numbered(Dataset):
    """Samples that know their number."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        numbers = torch.Generator().manual_seed(index)
        return index, torch.randn(6, generator=numbers), torch.randn(1, generator=numbers)


class Faults:
    def __init__(self, options):
        self.out = options.out
        self.state = None
        self.faults = [fault.split(":") for fault in options.fault]

    def at(self, place):
        if self.state is None:
            return
        here = [os.environ.get("RANK", "0"), place, str(self.state.step),
                os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")]
        for number, (kind, *where) in enumerate(self.faults):
            if all(wanted in ("-", found) for wanted, found in zip(where, here)) and self.first(f"fault.{number}"):
                self.wait_for_others(where)
                self.happen(kind)

    def wait_for_others(self, where):
        """Faults of several ranks at one place are one moment: who is there first does not end the others' round."""
        wanted = [os.path.join(self.out, f"fault.{number}") for number, (_, *there) in enumerate(self.faults)
                  if there[1:] == where[1:]]
        end = time.monotonic() + 30
        while not all(map(os.path.exists, wanted)) and time.monotonic() < end:
            time.sleep(0.002)

    def wait_for_a_load(self):
        """Another rank of this round has loaded."""
        end = time.monotonic() + 30
        while not os.path.exists(self.mark()) and time.monotonic() < end:
            time.sleep(0.002)

    def mark(self):
        return os.path.join(self.out, "loaded." + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    def first(self, name):
        """Whether no process of the job was here before."""
        try:
            os.close(os.open(os.path.join(self.out, name), os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def happen(self, kind):
        if kind == "raise":
            raise ValueError("a fault of the program's own")
        if kind == "member":  # comes or goes; this process computes until it hears of it
            open(os.path.join(self.out, "member"), "w").close()
            end = time.monotonic() + 60
            while not link.is_over() and time.monotonic() < end:
                time.sleep(0.005)
            return
        if kind == "late":
            self.wait_for_a_load()
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "late": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def groups_of_gloo():
    """How many live in this process: each has a thread. Others of the loader's may end while they are listed."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            names.append(file.read().strip())
    return names.count("gloo_tcp_loop")


def parse(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--outside", action="store_true", help="the wrapper is held until the next one")
    parser.add_argument("--unreplicated", action="store_true", help="each round begins with the checkpoint")
    parser.add_argument("--unseeded", action="store_true", help="weights differ at the start")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    faults = Faults(options)
    with open(os.path.join(options.out, f"birth.{os.getpid()}"), "w"):
        pass
    torch.manual_seed(os.getpid() if options.unseeded else 5)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                              torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    data = Numbered()
    sampler = elastic.DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=options.workers)
    state = elastic.State(model=net, optimizer=optimizer, scheduler=scheduler, epoch=0,
                          replicated=not options.unreplicated)
    faults.state = state
    loads = []
    log = open(os.path.join(options.out, f"samples.{os.getpid()}"), "a", buffering=1)

    net[0].register_forward_hook(lambda *_: faults.at("forward"))
    net[0].weight.register_hook(lambda _: faults.at("backward"))
    net[4].weight.register_hook(lambda _: faults.at("backward_begins"))
    optimizer.register_step_pre_hook(lambda *_: faults.at("step"))
    optimizer.register_step_post_hook(lambda *_: faults.at("stepped"))
    connect = dist.init_process_group

    def init_process_group(*words, **more):
        faults.at("connect")
        connect(*words, **more)

    dist.init_process_group = init_process_group

    def load(state):
        loads.append(state.step)
        faults.at("load")
        path = os.path.join(options.out, "checkpoint.pt")
        if options.checkpoint and os.path.exists(path):
            state.load_state_dict(torch.load(path, weights_only=False))
            open(faults.mark(), "w").close()

    def train(state):
        faults.at("train")
        round_number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        ddp = DistributedDataParallel(state.model, find_unused_parameters=True)
        if options.outside:
            state.model.__dict__["wrapper"] = ddp
        while state.epoch < options.epochs:
            sampler.set_epoch(state.epoch)
            for index, x, y in state.batches(loader):
                print(round_number, state.step, state.epoch, *index.tolist(), file=log)
                faults.at("before_forward")
                loss = (ddp(x) - y).pow(2).mean()
                faults.at("after_forward")
                loss.backward()
                faults.at("after_backward")
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                state.commit()
                faults.at("committed")
                if options.checkpoint and dist.get_rank() == 0:
                    path = os.path.join(options.out, "checkpoint.pt")
                    torch.save(state.state_dict(), path + ".new")
                    os.replace(path + ".new", path)
            state.epoch += 1
        return dist.get_rank(), dist.get_world_size(), groups_of_gloo()

    rank, world_size, groups = elastic.run(train, state, load=load, seed=42, backend="gloo")
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    torch.save({"parameters": parameters, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                "step": state.step, "epoch": state.epoch, "pid": os.getpid(), "loads": loads, "world_size": world_size,
                "groups": groups,
                "buffers": {name: buffer.clone() for name, buffer in net.named_buffers()},
                "finite": all(parameter.isfinite().all().item() for parameter in parameters.values())},
               os.path.join(options.out, f"final.{rank}.pt"))


if __name__ == "__main__":
    sys.exit(main())
