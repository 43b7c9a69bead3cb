"""How the agent names what it shares with a worker: four numbers with colons between, the last the worker's pid."""

import os
import re

_NUMBER_MAX = (1 << 63) - 1


def numbers(text):
    """The four, or None: no such text. Inodes take all of 64 bits, a pid has to be one."""
    if not re.fullmatch(r"[0-9]{1,20}(:[0-9]{1,20}){3}", text, re.ASCII):
        return None
    first, second, third, pid = map(int, text.split(":"))
    return (first, second, third, pid) if 0 < pid <= _NUMBER_MAX else None


def take(variable, parse=numbers):
    """What `parse` makes of the variable if it is meant for this process, else None. It leaves the environment, so that
    no process started from here takes it for its own."""
    text = os.environ.pop(variable, None)
    found = parse(text) if text is not None else None
    return found if found is not None and found[-1] == os.getpid() else None
