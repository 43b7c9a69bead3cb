"""Who descends from this process: what a history leaves behind is found by parentage, whatever session, group and
environment it has."""

import ctypes
import os
import pathlib
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt():
    """Orphans among the descendants become children of this process from now on."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent():
    """By an exception, so that what this process has to put away is put away, when it is told to end or its parent has."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def processes():
    """pid -> (parent, state, name) of everything that can be seen."""
    table = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = pathlib.Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue
        name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        table[int(entry)] = (int(rest[1]), rest[0], name)
    return table


def descendants(of):
    table = processes()
    found, level = {}, {of}
    while level:
        level = {pid for pid, (parent, _, _) in table.items() if parent in level and pid not in found}
        found.update({pid: table[pid] for pid in level})
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def living():
    """Descendants that are no zombies: name and state."""
    reap()
    return {pid: f"{name} ({state})" for pid, (_, state, name) in descendants(os.getpid()).items() if state not in "ZX"}


def end_all():
    """Kills until nobody is left who can be killed."""
    for _ in range(100):
        for pid in living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not living():
            break
        time.sleep(0.01)
