"""All ranks of a new round come to one state: whose, is decided by each on the same list."""

import pickle
import sys
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from ._image import Wire, group_device, pack


class NoState(RuntimeError):
    """Nobody has a state to go on with: processes that have trained are to be replaced, all of them at once."""


@dataclass(frozen=True)
class Facts:
    """What a rank says of its state."""

    step: int
    clean: int  # 0: a step has begun since the last commit
    fresh: int  # 1: it comes from nobody yet
    checksum: int  # 0 where nobody could have another state after the same steps
    run: int  # which `run` of its process this is


@dataclass(frozen=True)
class Decision:
    source: int  # -1: nobody knows better than a checkpoint
    takers: tuple = ()  # ranks that take the source's state
    odd: tuple = ()  # of them those that should have had it


def decide(facts):
    """The source is the lowest rank among the clean ones with the highest step; what a survivor has comes before what a
    newcomer begins with. That alone is nothing to go on with, where survivors are in the middle of a step."""
    clean = [rank for rank, each in enumerate(facts) if each.clean]
    if all(facts[rank].fresh and facts[rank].step == 0 for rank in clean):
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


def _furthest(facts):
    return max((each.step for each in facts if each.clean), default=0)


def exchange(mine):
    """Facts of all ranks."""
    device = group_device()
    words = torch.tensor([mine.step, mine.clean, mine.fresh, mine.checksum, mine.run], dtype=torch.int64, device=device)
    found = [torch.empty_like(words) for _ in range(dist.get_world_size())]
    dist.all_gather(found, words)
    return [Facts(*each.tolist()) for each in found]


def agree(state, load, run):
    if not state._replicated:
        return _load_alone(state, load, run)
    facts = _facts(state, run)
    decision = decide(facts)
    if decision.source < 0:
        began = any(each.step for each in facts)
        if load is not None:
            load(state)  # whose load_state_dict makes a state whole; one that finds no checkpoint leaves it as it is
            facts = _facts(state, run)
        if (began and load is None) or not any(each.clean for each in facts):
            raise NoState("torchup: no rank has a whole state: all that are left were in the middle of a step, or took "
                          "another rank's state; give torchup.elastic.run a `load` that calls state.load_state_dict")
        decision = source_among(facts, [rank for rank, each in enumerate(facts) if each.clean])
    if decision.takers:
        _send(state, facts, decision)


def _facts(state, run):
    mine = Facts(state.step, int(state._clean), int(state._fresh), 0, run)
    facts = exchange(mine)
    furthest = [rank for rank, each in enumerate(facts) if each.clean and each.step == _furthest(facts)]
    if len(furthest) > 1:  # whether they are equal is worth a look at every byte
        facts = exchange(replace(mine, checksum=state._sum() if dist.get_rank() in furthest else 0))
    _check_runs(facts, run)
    return facts


def _check_runs(facts, run):
    if any(each.run != run for each in facts):
        runs = sorted({each.run for each in facts})
        raise RuntimeError(f"torchup: ranks are in different calls of elastic.run ({runs}): newcomers begin anew")


def _load_alone(state, load, run):
    """With what each rank has of its own nobody can help another."""
    _check_runs(exchange(Facts(state.step, int(state._clean), int(state._fresh), 0, run)), run)
    loads, trained = state._loads, state.step > 0 or not state._clean
    load(state)
    if trained and state._loads == loads:
        raise NoState("torchup: `load` has found nothing, and this rank has trained already, other than newcomers: with "
                      "replicated=False a checkpoint is needed to go on from (state.load_state_dict)")
    state._clean = True


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
    if takes:
        state._clean = False  # a fault from here on leaves some tensors of the one state and some of the other
    wire.tensors(tensors, keep=takes)
    if takes:
        state._take(image)
