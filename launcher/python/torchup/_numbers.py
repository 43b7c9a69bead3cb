"""The generators that a program draws from without naming them: torch's, on each device in use, Python's, NumPy's."""

import contextlib
import hashlib
import random
import sys

import torch


def seed_of(*what):
    """64 bits that depend on each word of it and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def seed_all(number):
    torch.default_generator.manual_seed(number)  # torch.manual_seed notes a traceback where CUDA sleeps: 0.2 ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number & 0xFFFFFFFF)


def states():
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), cuda, random.getstate(), numpy and numpy.random.get_state()


def set_states(kept):
    cpu, cuda, python, numpy = kept
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


@contextlib.contextmanager
def undisturbed(number=None):
    """What is drawn inside is not missing outside; with a number, it is that number's."""
    kept = states()
    try:
        if number is not None:
            seed_all(number)
        yield
    finally:
        set_states(kept)
