"""What a worker shares with its agent: the page (rendezvous/base/worker_page.hpp), and behind it the sheet for stacks and
the area for answers; as an agent has it, and as a worker that writes its page by hand."""

import fcntl
import mmap
import os
import struct
import time

PAGE, SHEET, ANSWER = 4096, 262144, 262144
MAGIC = 0x31474150505554
F_ADD_SEALS = 1033
SEALED, SHRINK, GROW = 1, 2, 4
SEALS = SEALED | SHRINK | GROW
# The hook's own fields, one after the other.
FIELDS_AT = 256
FIELDS = dict(signal="Q", helper="Q", raised_at="q", collectives="Q", collectives_at="q", python="Q",
              thread_raised_at="q", ending_at="q")
TEXT_AT, TEXT_SIZE = 320, 256


class Memory:
    def __init__(self, size=PAGE + SHEET + ANSWER, seals=SEALS):
        self.fd = os.memfd_create("torchup-worker", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        if seals:
            fcntl.fcntl(self.fd, F_ADD_SEALS, seals)
        os.lseek(self.fd, PAGE, os.SEEK_SET)
        self.status = os.fstat(self.fd)

    def __getattr__(self, name):
        if name not in FIELDS:
            raise AttributeError(name)
        at = FIELDS_AT + 8 * list(FIELDS).index(name)
        return struct.unpack("<" + FIELDS[name], os.pread(self.fd, 8, at))[0]

    def address(self, fd, pid):
        """What a worker's TORCHUP_WORKER_PAGE says, where it has the memory under that number."""
        return f"{fd}:{self.status.st_dev}:{self.status.st_ino}:{pid}"

    def claimed_by(self):
        magic, pid = struct.unpack("<QQ", os.pread(self.fd, 16, 0))
        return pid if magic == MAGIC else 0

    def beats(self):
        """(beats, step of the last, when it ended, how long it took)."""
        newest = struct.unpack("<Q", os.pread(self.fd, 8, 16))[0]
        number, *beat = struct.unpack("<Qqqq", os.pread(self.fd, 32, 64 + newest % 2 * 64))
        assert number == newest
        return (newest, *beat)

    def text(self):
        """Of the last exception of a thread."""
        return os.pread(self.fd, TEXT_SIZE, TEXT_AT).rstrip(b"\0").decode()

    def wipe(self):
        os.pwrite(self.fd, bytes(SHEET), PAGE)
        os.lseek(self.fd, PAGE, os.SEEK_SET)

    def sheet(self):
        return os.pread(self.fd, SHEET, PAGE).rstrip(b"\0").decode()

    def answer(self, length):
        return os.pread(self.fd, length, PAGE + SHEET).decode()

    def close(self):
        os.close(self.fd)


class OwnPage:
    """The page of this process, a worker, which ends steps."""

    def __init__(self):
        fd, _, inode, pid = (int(field) for field in os.environ["TORCHUP_WORKER_PAGE"].split(":"))
        assert (pid, os.fstat(fd).st_ino) == (os.getpid(), inode)
        self.page = mmap.mmap(fd, PAGE)

    def beat(self, step=None):
        """The end of a step; without a number of its own it is the next one that the page has."""
        number = struct.unpack_from("<Q", self.page, 16)[0] + 1
        struct.pack_into("<QQ", self.page, 0, MAGIC, os.getpid())
        struct.pack_into("<Qqqqq", self.page, 64 + number % 2 * 64, number, number if step is None else step, time.monotonic_ns(), 0, 0)
        struct.pack_into("<Q", self.page, 16, number)
