"""What a worker shares with its agent, as an agent has it: the page (rendezvous/base/worker_page.hpp), and behind it the
sheet for stacks and the area for answers."""

import fcntl
import os
import struct

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

    def __getattr__(self, name):
        if name not in FIELDS:
            raise AttributeError(name)
        at = FIELDS_AT + 8 * list(FIELDS).index(name)
        return struct.unpack("<" + FIELDS[name], os.pread(self.fd, 8, at))[0]

    def address(self, fd, pid):
        """What a worker's TORCHUP_WORKER_PAGE says, where it has the memory under that number."""
        status = os.fstat(self.fd)
        return f"{fd}:{status.st_dev}:{status.st_ino}:{pid}"

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
