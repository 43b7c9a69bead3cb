"""DistributedSampler: each rank's share of an epoch, from any position, for any world size."""

import math
import os

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


def deal(order, consumed, rank, world_size, drop_last):
    """One rank's indices of an epoch whose first `consumed` samples everybody has had: what remains is dealt like
    cards. Where it does not divide, the deal goes on from the beginning of `order`, or stops early with `drop_last`."""
    remaining = len(order) - consumed
    if remaining <= 0:
        return []
    count = remaining // world_size if drop_last else math.ceil(remaining / world_size)
    return [order[(consumed + rank + i * world_size) % len(order)] for i in range(count)]


_round = 0  # how many have begun in this process


def begin_round():
    global _round
    _round += 1


class DistributedSampler(Sampler):
    """The lists of torch's DistributedSampler, for every size, world size, seed, epoch and drop_last.

    It can be made before the group: rank and world size are those of the group in which a pass begins, unless they are
    given. Over `State.batches` it knows how many samples all ranks have had, and goes on there in the next round, with
    another world size too. Call `set_epoch` before each epoch, or the order repeats.
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        self.dataset = dataset
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._given = (rank, num_replicas)
        self._next_begin = 0  # where the next pass begins: samples consumed by all ranks
        self._named_in = -1  # the last round in which the program said which epoch is meant
        self._resumed = False  # that was set, and no set_epoch has said since which epoch is meant
        self._was_open = False  # in the middle of a pass, or behind its last sample
        self._pass = None  # this rank's indices of the last pass of `State.batches`, and where it began
        self._begin = self._delivered = 0  # and how many of them have arrived in the training loop
        self._world_size = 1
        self._is_open = False
        if num_replicas is not None and rank is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not in 0 .. {num_replicas - 1}")

    def _place(self):
        if dist.is_available() and dist.is_initialized():
            found = dist.get_rank(), dist.get_world_size()
        else:
            found = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        return tuple(other if given is None else given for given, other in zip(self._given, found))

    def _deal_from(self, consumed):
        rank, self._world_size = self._place()
        size = len(self.dataset)
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = torch.randperm(size, generator=generator).tolist()
        else:
            order = range(size)
        return deal(order, consumed, rank, self._world_size, self.drop_last)

    def __len__(self):
        """Samples of this rank in a whole epoch."""
        world_size = self._place()[1]
        size = len(self.dataset)
        return size // world_size if self.drop_last else math.ceil(size / world_size)

    def __iter__(self):
        return iter(self._pass if self._is_open else self._deal_from(self._next_begin))

    def set_epoch(self, epoch):
        """Chooses the order of the next pass. A position that was set for this very epoch is kept."""
        self._named_in, self._resumed = _round, False
        if epoch != self.epoch:
            self.epoch, self._next_begin, self._pass = epoch, 0, None

    # The position, for State.

    def state_dict(self):
        """Enough to go on with any number of ranks: samples of this epoch that all ranks together have had."""
        consumed = self._next_begin
        if self._pass is not None:
            consumed = min(self._begin + self._delivered * self._world_size, len(self.dataset))
        return {"epoch": self.epoch, "consumed": consumed, "seed": self.seed, "open": self._is_open}

    def beginning(self):
        """The position of one that nobody has used."""
        return {"epoch": 0, "consumed": 0, "seed": self.seed, "open": False}

    def load_state_dict(self, position):
        if self.shuffle and position["seed"] != self.seed:
            raise ValueError(f"the stored position belongs to seed {position['seed']}, this sampler has {self.seed}: "
                             "it would give other samples. Use the stored seed, or start the epoch anew")
        self.epoch, self._next_begin = position["epoch"], position["consumed"]
        self._resumed, self._pass, self._is_open = True, None, False
        self._was_open = position.get("open", False)

    def go_to(self, position):
        """As load_state_dict, but the program may have said already in this round which epoch it is at."""
        epoch = self.epoch
        self.load_state_dict(position)
        if self._named_in == _round:
            self.set_epoch(epoch)

    def begin_pass(self):
        """From here on, until `end_pass`, iterators give this rank's samples from the position on."""
        self._begin, self._next_begin = self._next_begin, 0
        self._pass = self._deal_from(self._begin)
        # A pass that has ended is not meant by a program that never calls set_epoch: it wants the next. One in which the
        # last sample was being worked on is.
        if self._resumed and not self._pass and not self._was_open:
            self._begin = 0
            self._pass = self._deal_from(0)
        self._resumed, self._delivered, self._is_open = False, 0, True

    def delivered(self, samples):
        """That many more have arrived in the training loop, at most what is left."""
        self._delivered = min(self._delivered + samples, len(self._pass))

    def end_pass(self, whole):
        """`whole`: the loader has given all that it gives, a tail that it drops included."""
        self._is_open = False
        if whole:
            self._delivered = len(self._pass)


def sampler_of(loader):
    """(the DistributedSampler behind a DataLoader, samples of a batch)."""
    if (batches := getattr(loader, "batch_sampler", None)) is not None:
        sampler, size = getattr(batches, "sampler", None), getattr(batches, "batch_size", None)
    else:
        sampler, size = getattr(loader, "sampler", None), 1
    if not isinstance(sampler, DistributedSampler) or not isinstance(size, int):
        raise TypeError("State.batches needs a DataLoader with torchup.elastic.DistributedSampler as its sampler: only "
                        "that one can go on in the middle of an epoch")
    return sampler, size
