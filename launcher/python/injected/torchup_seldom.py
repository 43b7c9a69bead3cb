"""The part of the hook (torchup_worker.py) to which few programs come: those that have others beside or before them in
the worker's session, and that have their own way with what is ours."""

import os
import sys

import _signal
from torchup_worker import AT_MAGIC, AT_NEWEST, AT_PID, AT_SIGNAL, MAGIC, PAGE_BYTES, SHEET_BYTES, is_file

worker = sys.modules["torchup_worker"]
DRAIN = 2048  # offset in bytes; from there on the agent writes


# A page that another process has had.

def take_over(page):
    """False: a living process of the worker's session has it."""
    numbers, other = page.numbers, page.numbers[AT_PID]
    if numbers[AT_MAGIC] == MAGIC and other != os.getpid() and is_living(other):
        numbers.release()  # nothing of the program's has run yet: all is as we made it
        page.memory.close()
        os.close(page.fd)
        return False
    numbers[AT_MAGIC] = 0
    page.memory[8 * AT_NEWEST:DRAIN] = bytes(DRAIN - 8 * AT_NEWEST)
    os.pwrite(page.fd, bytes(SHEET_BYTES), PAGE_BYTES)
    os.lseek(page.fd, PAGE_BYTES, os.SEEK_SET)
    return True


def is_living(pid):
    try:
        if not 0 < pid < 1 << 31 or os.getsid(pid) != os.getsid(0):
            return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2][1:2] not in b"ZX"  # its parent is yet to hear of its end
    except OSError:
        return False


# What the program may have taken from us.

def signal_wanted(caller):
    """Somebody has asked for _signal.signal: the library's function, which has the number, or the program itself."""
    try:
        is_other = caller.f_globals.get("__name__") == "signal" and caller.f_locals["signalnum"] != worker.page.signal
    except Exception:  # whatever a number can be
        is_other = False
    if not is_other:
        worker.page.numbers[AT_SIGNAL] = 0  # until a helper thread finds that it is ours still


def is_whole(page):
    """Whether the program has left our descriptor alone."""
    return is_file(page.fd, page.identity)


def is_signal_ours(page):
    """False once the program has a handler of its own there, or has closed the descriptor: to send it would disturb the
    program."""
    return page.signal and is_whole(page) and _signal.getsignal(page.signal) == _signal.SIG_DFL


def has_channel(fd):
    return is_file(fd, worker.channel_identity)


def close_channel():
    fd, worker.channel = worker.channel, -1
    if has_channel(fd):
        os.close(fd)


def warn(text):
    """One line, if anybody hears it."""
    try:
        os.write(2, ("torchup: " + text + "\n").encode("utf-8", "replace"))
    except OSError:
        pass
