"""The page of memory that a worker shares with its agent: steps and when they ended.

Layout: rendezvous/base/worker_page.hpp. The agent reads it and takes it for a stranger's words.
"""

import fcntl
import mmap
import os
import sys
import time

from ._address import take
from ._hook import hook

VARIABLE = "TORCHUP_WORKER_PAGE"
_BYTES = 4096
_MAGIC = 0x31474150505554
# Offsets in numbers of eight bytes.
_AT_MAGIC, _AT_PID, _AT_NEWEST, _AT_FIRST, _AT_BEATS, _BEAT = 0, 1, 2, 4, 8, 8
_NUMBER, _STEP, _TIME, _TOOK, _WAITED = range(5)
_AT_PYTHON = 37  # who writes it hears no word of the agent's there
_F_GET_SEALS = 1034
_SEALS = 1 | 2 | 4  # SEAL, SHRINK, GROW: a page that is not sealed could be cut under us


class Page:
    def __init__(self, memory):
        self._numbers = memoryview(memory).cast("q")
        self._beats = 0
        self._last = 0
        self._numbers[_AT_PID] = os.getpid()
        self._numbers[_AT_PYTHON] = sys.hexversion
        self._numbers[_AT_MAGIC] = _MAGIC

    def begin(self):
        """For the hook's, which counts optimizers' steps until then."""

    def beat(self, step):
        """A step has ended. Two slots, so that one of them is whole at any instant."""
        numbers, now = self._numbers, time.monotonic_ns()
        if numbers is None:
            return
        self._beats += 1
        slot = _AT_BEATS + (self._beats % 2) * _BEAT
        numbers[slot + _NUMBER] = 0
        numbers[slot + _STEP] = step
        numbers[slot + _TIME] = now
        numbers[slot + _TOOK] = now - self._last if self._last else 0
        numbers[slot + _WAITED] = 0
        if self._beats == 1:
            numbers[_AT_FIRST], numbers[_AT_FIRST + 1] = step, now
        numbers[slot + _NUMBER] = self._beats
        numbers[_AT_NEWEST] = self._beats
        self._last = now


_page = None


def _adopt():
    address = take(VARIABLE)
    if address is None:
        return None
    fd, device, inode, _ = address
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (device, inode) or status.st_size < _BYTES:
            return None
        if fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS != _SEALS:
            return None
        memory = mmap.mmap(fd, _BYTES)
        os.close(fd)  # the mapping stays; nothing is left that a child could inherit
    except (OSError, OverflowError):
        return None
    return memory


def page():
    """This process's page, or None: another launcher, or a process that a worker has started."""
    global _page
    if _page is None and (memory := _adopt()) is not None:
        _page = Page(memory)
    if _page is None and (found := hook()) is not None:
        return found.load("torchup_loaded").steps
    return _page


def _forget():
    global _page
    if _page is not None:
        _page._numbers = None  # shared memory: a forked child must not write there, whoever knows the page
    _page = None


os.register_at_fork(after_in_child=_forget)
