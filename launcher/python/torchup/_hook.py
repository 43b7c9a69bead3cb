"""The hook that torchup puts into Python workers (launcher/python/injected/torchup_worker.py): where it is in this
process, page and channel are its own."""

import sys


def hook():
    """None where it is not: another launcher, --no-worker-hook, a process that a worker has started."""
    found = sys.modules.get("torchup_worker")
    return found if found is not None and found.page is not None else None
