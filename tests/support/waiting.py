"""Waiting for conditions, each with an end to it, and what the kernel says of a process. For scripts that run_case.py,
beside this file, runs."""

import os
import time

LIMIT_S = 100  # for what takes moments on a machine that has time; below the limits of the tests themselves


def until(condition, what, limit_s=LIMIT_S):
    """The first true value of `condition()`."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.005)
    return value


def state(pid):
    """The kernel's letter for what a process does; None: there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def children(pid):
    """Living children of a process; zombies are not."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    found += [int(child) for child in file.read().split()]
            except (FileNotFoundError, ProcessLookupError):
                pass
    except (FileNotFoundError, ProcessLookupError):
        pass
    return [child for child in found if state(child) not in (None, "Z", "X")]
