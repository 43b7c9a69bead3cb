"""Recovery inside the process: who survives a fault keeps its state, and goes on in the next round.

    state = elastic.State(model=net, optimizer=opt, epoch=0)

    def train(state):                                # once per round, with a fresh default process group
        ddp = DistributedDataParallel(state.model)
        while state.epoch < 10:
            sampler.set_epoch(state.epoch)
            for x, y in state.batches(loader):       # goes on where the job stands
                loss(ddp(x), y).backward()
                opt.step(); opt.zero_grad()
                state.commit()
            state.epoch += 1

    elastic.run(train, state, load=load, seed=42)    # load(state): from a checkpoint, when nobody knows better

What the program guarantees: what must survive is in the state or made anew by `train`; a step's collectives come before
the optimizer's step, `commit` after it; replicas are equal. Under torchrun, or alone, it runs without recovery.
"""

import datetime
import os
import sys

from ._agreement import NoState, agree
from ._channel import channel
from ._group import Group, Leftover, drop
from ._link import Interrupted, link
from ._page import page
from ._sampler import DistributedSampler
from ._state import State

__all__ = ["DistributedSampler", "Interrupted", "State", "run"]

# Both leave the environment at once, so that no process started from here takes them for its own.
channel()
page()

_is_running = False
_runs = 0  # calls of `run` in this process
_groups = 0  # made in the place that this process has now
_leftover = None  # of a `run` that an exception has ended


def run(train, state, *, load=None, backend=None, timeout=None, seed=None):
    """Calls `train(state)` with a default process group, in every round anew; returns what that returns when all ranks
    are done.

    backend: torch's default for the machine. timeout: a timedelta or seconds, of collectives. seed: the numbers drawn
    in each step are a function of seed, rank and step; without it survivors keep theirs, and a newcomer's are fresh.
    load: called with `state` on all ranks when nobody knows better than a checkpoint, at the first start too; it calls
    `state.load_state_dict` where it has one.
    """
    global _is_running, _leftover, _runs
    if _is_running:
        raise RuntimeError("torchup.elastic.run: one at a time")
    if load is None and not state._replicated:
        raise ValueError("torchup.elastic.run: a State with replicated=False needs a `load`, with which every round "
                         "begins")
    if timeout is not None and not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    _is_running = True
    _runs += 1
    if _leftover is not None:
        _leftover.drop()
        _leftover = None
    excepthook = sys.excepthook
    try:
        return _rounds(train, state, load, backend, timeout, seed)
    except BaseException:
        _leftover = Leftover(excepthook)
        raise
    finally:
        _is_running = False
        link.end()
        state._seed = None


def _rounds(train, state, load, backend, timeout, seed):
    global _groups
    link.open()
    state._keep()
    if "RANK" in os.environ:
        state._check_parts()
    excepthook = sys.excepthook
    while True:
        link.stay()
        try:
            group = Group(backend, timeout, _groups)
            _groups += 1
            agree(state, load, _runs)
            state._begin(seed, group.rank)
            result = train(state)
            group.wait_for_all()
            link.check()
        except BaseException as error:
            if not _must_park(error):
                raise
            failure = error
        else:
            link.end()
            link.leave()
            group.close()
            return result
        group = None
        drop(failure, excepthook)
        failure = None
        link.end()
        state._restore()
        link.park(state.step)
        _groups = 0


def _must_park(error):
    """Whether the round is over for a reason that is not this process's own."""
    if isinstance(error, Interrupted):
        return link.is_over()
    if isinstance(error, Exception) and not isinstance(error, NoState):
        return link.blame(error)
    link.leave()  # Ctrl-C, sys.exit; nobody is to wait for whom
    return False
