"""The memory that a worker shares with its agent, as the hook opens it. Layout: rendezvous/base/worker_page.hpp.

One file: the page, which is mapped; the sheet, into which faulthandler writes stacks at the offset that the agent has
set; the answer area. What the environment says of it is not trusted.
"""

import fcntl
import mmap
import os
import sys

import _signal

PAGE_BYTES, SHEET_BYTES, ANSWER_BYTES = 4096, 262144, 262144
MAGIC = 0x31474150505554
# Offsets in numbers of eight bytes.
AT_MAGIC, AT_PID, AT_NEWEST, AT_BEATS, BEAT = 0, 1, 2, 8, 8
(AT_SIGNAL, AT_HELPER, AT_RAISED, AT_COLLECTIVES, AT_COLLECTIVES_CHANGED, AT_PYTHON, AT_THREAD_RAISED,
 AT_ENDING) = range(32, 40)
AT_RECORDED = 72
TEXT, TEXT_BYTES, DRAIN = 320, 256, 2048  # offsets in bytes; from DRAIN on the agent writes
SEALS = 1 | 2 | 4  # SEAL, SHRINK, GROW: a page that is not sealed could be cut under us
GET_SEALS = 1034
HIGH = 1000


class Sheet:
    """The file of faulthandler's stacks, which keeps the number of the descriptor. The object itself tells by its life
    whether faulthandler still has it. And it keeps the mapping, whose end closes a descriptor, until the files of the
    program are closed, which may have that number by then."""

    def __init__(self, fd, memory):
        self.fd, self.memory = fd, memory

    def fileno(self):
        return self.fd

    def flush(self):
        pass


class Page:
    def __init__(self, fd, identity):
        self.identity = identity  # device and inode
        self.own = -1  # the descriptor that the mapping keeps for itself
        if sys.version_info >= (3, 13):
            self.memory = mmap.mmap(fd, PAGE_BYTES, trackfd=False)
        else:
            self.own = os.dup(fd)
            os.close(self.own)
            self.memory = mmap.mmap(fd, PAGE_BYTES)
        self.numbers = memoryview(self.memory).cast("q")
        self.fd = fd
        self.signal = 0

    def is_whole(self):
        """Whether the program has left our descriptor alone."""
        return is_file(self.fd, self.identity)

    def is_signal_ours(self):
        """False once the program has a handler of its own there, or has closed the descriptor: to send it would
        disturb the program."""
        return self.signal and self.is_whole() and _signal.getsignal(self.signal) == _signal.SIG_DFL

    def claim(self):
        """False: a living process of the worker's session has it."""
        numbers, other = self.numbers, self.numbers[AT_PID]
        if numbers[AT_MAGIC] == MAGIC and other != os.getpid() and is_living(other):
            return False
        numbers[AT_MAGIC] = 0
        self.memory[8 * AT_NEWEST:DRAIN] = bytes(DRAIN - 8 * AT_NEWEST)
        numbers[AT_PID] = os.getpid()
        numbers[AT_PYTHON] = sys.hexversion
        return True

    def close(self):
        """All that this process has of it. A descriptor that the program has put in its place stays."""
        self.numbers.release()
        if self.own < 0 or is_file(self.own, self.identity):
            self.memory.close()
        if self.is_whole():
            os.close(self.fd)


def is_file(fd, identity):
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


def is_living(pid):
    try:
        return 0 < pid < 1 << 31 and os.getsid(pid) == os.getsid(0)
    except OSError:
        return False


def four_numbers(text):
    fields = text.split(":")
    if len(fields) != 4 or not text.isascii() or not all(each.isdecimal() and len(each) <= 20 for each in fields):
        raise ValueError
    return map(int, fields)


def moved_up(fd):
    """Where descriptors that the program opens do not come to lie, though it may have closed this one."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError:  # so many it may not have
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return high


def open_page(text):
    """The page, or None: no such text, a process that is not of the worker, a descriptor that is another file."""
    try:
        fd, device, inode, pid = four_numbers(text)
        if pid not in (os.getpid(), os.getsid(0)):  # a shell may stand between
            return None
        if not is_file(fd, (device, inode)) or os.fstat(fd).st_size != PAGE_BYTES + SHEET_BYTES + ANSWER_BYTES:
            return None
        if fcntl.fcntl(fd, GET_SEALS) & SEALS != SEALS:
            return None
    except (OSError, OverflowError, ValueError):
        return None
    found = Page(moved_up(fd), (device, inode))
    if found.claim():
        return found
    found.close()
    return None


def open_channel(text):
    try:
        version, fd, inode, _ = four_numbers(text)
        status = os.fstat(fd)
        if version == 1 and status.st_ino == inode and status.st_mode & 0o170000 == 0o140000:
            return moved_up(fd)
    except (OSError, OverflowError, ValueError):
        pass
    return -1
