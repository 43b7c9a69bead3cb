"""All ranks of a new round come to one state: whose, is decided by each on the same list."""

import pickle
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ._image import Wire, pack


@dataclass(frozen=True)
class Facts:
    """What a rank says of its state."""

    step: int
    clean: int  # 0: a step has begun since the last commit
    fresh: int  # 1: it comes from nobody yet
    checksum: int
    run: int  # which `run` of its process this is


@dataclass(frozen=True)
class Decision:
    source: int  # -1: nobody knows better than a checkpoint
    takers: tuple = ()  # ranks that take the source's state
    odd: tuple = ()  # of them those that should have had it


def decide(facts):
    """The source is the lowest rank among the clean ones with the highest step; what a survivor has comes before what a
    newcomer begins with."""
    clean = [rank for rank, each in enumerate(facts) if each.clean]
    if not clean or all(each.fresh and each.step == 0 for each in facts):
        return Decision(-1)
    return source_among(facts, clean)


def source_among(facts, clean):
    source = max(clean, key=lambda rank: (facts[rank].step, -facts[rank].fresh, -rank))
    best = facts[source]
    takers = tuple(rank for rank, each in enumerate(facts)
                   if (each.step, each.clean, each.checksum) != (best.step, 1, best.checksum))
    odd = tuple(rank for rank in takers
                if facts[rank].clean and facts[rank].step == best.step and not facts[rank].fresh and not best.fresh)
    return Decision(source, takers, odd)


def exchange(mine):
    """Facts of all ranks."""
    group = dist.group.WORLD
    on_cpu = any(device.type == "cpu" for device in group._device_types)
    device = "cpu" if on_cpu else torch.device("cuda", torch.cuda.current_device())
    words = torch.tensor([mine.step, mine.clean, mine.fresh, mine.checksum, mine.run], dtype=torch.int64, device=device)
    found = [torch.empty_like(words) for _ in range(dist.get_world_size())]
    dist.all_gather(found, words)
    return [Facts(*each.tolist()) for each in found]


def agree(state, load, run):
    if not state._replicated:
        if load is not None:
            load(state)
        state._clean = True
        return
    facts = _facts(state, run)
    decision = decide(facts)
    if decision.source < 0:
        if load is not None:
            load(state)
            state._clean = True
            facts = _facts(state, run)
        elif not any(each.clean for each in facts):
            raise RuntimeError("torchup: no rank has a whole state: a step was begun on all and committed on none; "
                               "give torchup.elastic.run a `load`")
        decision = source_among(facts, [rank for rank, each in enumerate(facts) if each.clean])
    if decision.takers:
        _send(state, facts, decision)


def _facts(state, run):
    facts = exchange(Facts(state.step, int(state._clean), int(state._fresh), state._sum(), run))
    if any(each.run != run for each in facts):
        runs = sorted({each.run for each in facts})
        raise RuntimeError(f"torchup: ranks are in different calls of elastic.run ({runs}): newcomers begin anew")
    return facts


def _send(state, facts, decision):
    rank = dist.get_rank()
    if decision.odd and rank == decision.source:
        named = ", ".join(map(str, decision.odd))
        print(f"torchup: rank {named} had another state than rank {rank} after the same {facts[rank].step} steps: "
              "replicas were not equal. It goes on with this one", file=sys.stderr)
    wire = Wire(decision.source)
    tensors = []
    if rank == decision.source:
        wire.bytes(pickle.dumps(pack(state._image(), tensors)))
        return wire.tensors(tensors)
    image = state._room(pickle.loads(wire.bytes()), tensors)
    takes = rank in decision.takers
    wire.tensors(tensors, keep=takes)
    if takes:
        state._take(image)
