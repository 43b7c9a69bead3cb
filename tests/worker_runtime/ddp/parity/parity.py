#!/usr/bin/env python3
"""Gradients of torchup's DistributedDataParallel against Python's, bit for bit.

Every case trains six steps in Python's DDP and in parity_worker with the same weights and inputs, with gloo and 1 to 4 ranks.
All gradients of all steps, on all ranks, and the weights and buffers at the end must have the same bits.

usage: parity.py PARITY_WORKER [--world-sizes 1,2,3,4] [--only CASE] [--seed N]
"""

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

sys.path.append(os.path.join(os.path.dirname(__file__), "../../../support"))
from ranks import free_port  # noqa: E402

STEPS = 6
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


class Mlp(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(17, 33), nn.Linear(33, 29), nn.Linear(29, 5)

    def forward(self, x, turn):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x))))), {}


class Mixed(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.single = nn.Linear(17, 19)
        self.wide = nn.Linear(19, 23, dtype=torch.float64)
        self.narrow = nn.Linear(23, 7, dtype=torch.bfloat16)

    def forward(self, x, turn):
        hidden = torch.tanh(self.single(x)).double()
        return self.narrow(torch.tanh(self.wide(hidden)).bfloat16()).float(), {}


class Convolution(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3)
        self.last = nn.Linear(6 * 4 * 4, 5)
        self.to(memory_format=torch.channels_last)
        self.last.bias.requires_grad_(False)

    def forward(self, x, turn):
        hidden = torch.tanh(self.norm(self.first(x.view(-1, 3, 8, 8))))
        return self.last(torch.tanh(self.second(hidden)).flatten(1)), {}


class Branches(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.add_module("in", nn.Linear(17, 13))
        self.left, self.right, self.never = nn.Linear(13, 13), nn.Linear(13, 13), nn.Linear(13, 13)
        self.aside, self.out = nn.Linear(13, 3), nn.Linear(13, 5)

    def forward(self, x, turn):
        hidden = torch.tanh(getattr(self, "in")(x))
        if turn % 3 == 0:
            hidden = self.left(hidden)
        elif turn % 3 == 1:
            hidden = self.right(hidden)
        else:
            hidden = self.left(hidden) + self.right(hidden)
        hidden = torch.tanh(hidden)
        return self.out(hidden), {"aside": self.aside(hidden), "nothing": None}


class Static(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.add_module("in", nn.Linear(17, 13))
        self.even, self.odd, self.never, self.out = nn.Linear(13, 13), nn.Linear(13, 13), nn.Linear(13, 13), nn.Linear(13, 5)

    def forward(self, x, turn):
        first = getattr(self, "in")
        hidden = torch.tanh(first(x))
        hidden = torch.tanh(self.odd(hidden) if self.rank % 2 else self.even(hidden))
        return self.out(torch.tanh(first(x) * hidden)), {}


class Tied(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.down, self.up, self.out = nn.Linear(17, 17), nn.Linear(17, 17), nn.Linear(17, 5)
        self.up.weight = self.down.weight

    def forward(self, x, turn):
        return self.out(torch.tanh(self.up(torch.tanh(self.down(x))))), {}


MODELS = {"mlp": Mlp, "mixed": Mixed, "convolution": Convolution, "branches": Branches, "static": Static, "tied": Tied}


def cases():
    """{name: options}. Caps in MiB are chosen so that each model has three buckets and more after the rebuild."""
    result = {}

    def add(name, model, **options):
        # Not with bf16: LibTorch's Tensor::mul_(double) rounds the factor to bf16 first, Python's does not.
        # Not when resumed: the case is about gradients, and hands on no optimizer state.
        options["momentum"] = 0 if model == "mixed" or "resume" in options else 0.9
        result[name] = {"model": model, **options}

    for view in (0, 1):
        mode = "view" if view else "copy"
        for none in (0, 1):
            tag = f"{mode}-{'none' if none else 'zero'}"
            common = {"view": view, "set_to_none": none}
            add(f"mlp-{tag}", "mlp", cap=0.002, **common)
            add(f"mlp-accumulate-{tag}", "mlp", cap=0.002, accumulate=3, **common)
            add(f"mixed-{tag}", "mixed", cap=0.001, **common)
            add(f"convolution-{tag}", "convolution", cap=0.0005, evaluate=1, **common)
            add(f"branches-{tag}", "branches", cap=0.001, unused=1, **common)
            add(f"branches-accumulate-{tag}", "branches", cap=0.001, unused=1, accumulate=2, **common)
            add(f"static-{tag}", "static", cap=0.001, static=1, **common)
            add(f"tied-{tag}", "tied", cap=0.001, **common)
            if none or not view:  # Python, too, scales a gradient view that was zeroed otherwise than a fresh gradient
                add(f"resumed-{tag}", "mlp", cap=0.002, resume=1, **common)
            for hook in ("allreduce", "fp16", "bf16", "own"):
                add(f"{hook}-{tag}", "mlp", cap=0.002, hook=hook, **common)
        add(f"default-caps-{mode}", "mlp", view=view)
        add(f"caps-list-{mode}", "mlp", view=view, caps="0.0005,0.002,0.004")
        add(f"caps-list-mixed-{mode}", "mixed", view=view, caps="0.0005,0.002")
        add(f"mixed-one-bucket-each-{mode}", "mixed", view=view)
        add(f"mixed-unused-{mode}", "mixed", view=view, unused=1, cap=0.001)
        add(f"hook-unused-{mode}", "branches", view=view, unused=1, cap=0.001, hook="fp16")
        add(f"static-mixed-{mode}", "mixed", view=view, static=1, cap=0.001)
        add(f"resumed-convolution-{mode}", "convolution", view=view, cap=0.0005, resume=1)
    return result


def write_tensor(file, tensor):
    tensor = torch.zeros(()) if tensor is None else tensor.detach().contiguous()
    file.write(struct.pack("<2q", DTYPES.index(tensor.dtype), tensor.dim()) + struct.pack(f"<{tensor.dim()}q", *tensor.shape))
    file.write(bytes(tensor.view(-1).view(torch.uint8).numpy()) if tensor.dim() else struct.pack("<f", float(tensor))
               if tensor.dtype == torch.float32 else struct.pack("<q", int(tensor)))


def state_of(model):
    return [*model.parameters(), *model.buffers()]


def own_hook(group, bucket):
    """A sum, then half of it summed again: the two stages of parity_worker's hook."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    buffer.mul_(0.5)
    dist.all_reduce(buffer)
    future = torch.futures.Future()
    future.set_result(buffer)
    return future


HOOKS = {"allreduce": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook,
         "bf16": default_hooks.bf16_compress_hook, "own": own_hook}


def run_case(folder, name, options, rank):
    model = MODELS[options["model"]](rank)
    weights = torch.load(os.path.join(folder, options["model"] + ".pt"))
    with torch.no_grad():
        for tensor, value in zip(state_of(model), weights):
            tensor.copy_(value).add_(rank)
    caps = [float(cap) for cap in options["caps"].split(",")] if "caps" in options else None
    ddp = nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=options.get("cap"), bucket_cap_mb_list=caps, find_unused_parameters=bool(options.get("unused")),
        gradient_as_bucket_view=bool(options.get("view")), static_graph=bool(options.get("static")))
    if "hook" in options:
        ddp.register_comm_hook(None, HOOKS[options["hook"]])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=options["momentum"], foreach=False)
    inputs = iter(torch.load(os.path.join(folder, f"inputs.{rank}.pt")))
    flat = options["model"] == "convolution"
    with open(os.path.join(folder, f"{name}.{rank}.python"), "wb") as results:
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=bool(options.get("set_to_none", 1)))
            parts = options.get("accumulate", 1)
            for part in range(parts):
                batch = next(inputs)
                batch = batch if flat else batch[:, :17].contiguous()
                ddp.require_backward_grad_sync = part + 1 == parts
                output, _ = ddp(batch, step + rank)
                output.square().mean().backward()
            for parameter in parameters:
                write_tensor(results, parameter.grad)
            optimizer.step()
            if options.get("evaluate"):
                with torch.no_grad():
                    ddp.eval()
                    ddp(torch.zeros(2, 192 if flat else 17), 0)
                    ddp.train()
        for tensor in state_of(model):
            write_tensor(results, tensor)


def python_rank(folder, rank, world_size, store_file, selected):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store_file}", rank=rank, world_size=world_size)
    for name, options in selected.items():
        run_case(folder, name, options, rank)
    dist.destroy_process_group()


def wait_for(children, limit):
    """Exit codes of forked children, by pid."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def fork_ranks(world_size, run):
    """Forked and not spawned: importing torch once costs enough."""
    children = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(rank)
                code = 0
            except BaseException as error:
                print(f"python rank {rank}: {error}", file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    return children


def start_ours(program, folder, world_size):
    port = free_port()
    ranks = []
    for rank in range(world_size):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank),
                           LOCAL_WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        ranks.append(subprocess.Popen([program, folder], env=environment))
    return ranks


def prepare(folder, selected, world_size, seed):
    torch.manual_seed(seed)
    for name, make in MODELS.items():
        state = state_of(make(0))
        torch.save([tensor.detach().clone() for tensor in state], os.path.join(folder, name + ".pt"))
        with open(os.path.join(folder, name + ".weights"), "wb") as file:
            for tensor in state:
                write_tensor(file, tensor)
    for rank in range(world_size):
        batches = [torch.randn(4, 192) for _ in range(STEPS * 3)]
        torch.save(batches, os.path.join(folder, f"inputs.{rank}.pt"))
        with open(os.path.join(folder, f"inputs.{rank}"), "wb") as file:
            for batch in batches:
                write_tensor(file, batch)
    with open(os.path.join(folder, "cases"), "w") as file:
        for name, options in selected.items():
            file.write(" ".join([name, *(f"{key}={value}" for key, value in options.items())]) + "\n")


def compare(folder, selected, world_size):
    """Names of the cases whose bytes differ, with where."""
    wrong = []
    for name in selected:
        for rank in range(world_size):
            with open(os.path.join(folder, f"{name}.{rank}.python"), "rb") as file:
                theirs = file.read()
            with open(os.path.join(folder, f"{name}.{rank}.ours"), "rb") as file:
                ours = file.read()
            if ours != theirs:
                first = next((at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
                wrong.append(f"{name}, rank {rank} of {world_size}: first difference at byte {first} of {len(theirs)}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--world-sizes", default="1,2,3,4")
    parser.add_argument("--only", help="part of a case's name")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    selected = {name: case for name, case in cases().items() if not options.only or options.only in name}
    wrong = []
    for world_size in map(int, options.world_sizes.split(",")):
        with tempfile.TemporaryDirectory(prefix="torchup-parity-") as folder:
            prepare(folder, selected, world_size, options.seed + world_size)
            store = os.path.join(folder, "store")
            children = fork_ranks(world_size, lambda rank: python_rank(folder, rank, world_size, store, selected))
            codes = wait_for(children, 120)
            if any(codes):
                sys.exit(f"parity: Python's ranks failed: {codes}")
            ranks = start_ours(options.program, folder, world_size)
            codes = [rank.wait(timeout=120) for rank in ranks]
            if any(codes):
                sys.exit(f"parity: our ranks failed: {codes}")
            wrong += compare(folder, selected, world_size)
    for line in wrong:
        print(line)
    print(f"parity: {len(selected)} cases, world sizes {options.world_sizes}, torch {torch.__version__}: {len(wrong)} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
