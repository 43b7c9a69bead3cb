"""Steps of a plain Python program, told to the launcher in one line each:

    from heartbeat import Heartbeat

    heartbeat = Heartbeat()
    for step in range(first, last):
        ...
        if heartbeat.step(step):
            save(step)
            sys.exit(75)

With that torchup knows how fast the job is, when it hangs, and which of its time was lost to what; and the job saves its
state before it is stopped, restarted or moved (torchupctl, --drain-signals, --stop-before). Each rank is asked by itself,
at about the same time: where ranks wait for each other in a step, let them agree on the one after which they leave:

        asked = torch.tensor(int(heartbeat.step(step)))
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)

Copy the file beside your program: it needs nothing but Python, and does nothing where no torchup has started the
program.

torchup shares a page of memory with each worker (rendezvous/base/worker_page.hpp says where in it what lies). Where
torchup's hook is in this process, the page is the hook's already, and writes for us.
"""

import fcntl
import mmap
import os
import struct
import sys
import time

PAGE_BYTES = 4096
MAGIC = 0x31474150505554
SEALS = 1 | 2 | 4  # SEAL, SHRINK, GROW: without them the page could be cut under us
GET_SEALS = 1034
# Offsets in the page.
NEWEST, FIRST_STEP, FIRST_TIME, TOTAL_WAITED, BEATS, BEAT_BYTES = 16, 32, 40, 48, 64, 64
PYTHON, HEARS_DRAIN, DRAIN = 296, 584, 2048


class Heartbeat:
    def __init__(self):
        self.beats = self.last = self.waited = 0
        hook = sys.modules.get("torchup_worker")
        self.steps = hook.load("torchup_loaded").steps if hook is not None and hook.page is not None else None
        self.page = hook.page.memory if self.steps else open_page()
        if self.page is None:
            return
        struct.pack_into("<Q", self.page, HEARS_DRAIN, 1)
        if self.steps is None:
            struct.pack_into("<Q", self.page, PYTHON, sys.hexversion)
            struct.pack_into("<QQ", self.page, 0, MAGIC, os.getpid())

    def step(self, number, waited=0.0):
        """The step of that number has ended; `waited` seconds of it this process waited for other ranks.

        True: save, and exit with 75. The job is to stop here, to go on later."""
        if self.page is None:
            return False
        if self.steps is None:
            self.beat(number, int(waited * 1e9))
        elif self.steps.numbers is not None:  # else a child of the process whose page it is
            if self.beats > 0:
                self.add_waited(int(waited * 1e9))
            self.beats += 1
            self.steps.beat(number)
        return self.page[DRAIN:DRAIN + 8] != bytes(8)

    def add_waited(self, waited):
        """Behind the first step, in all."""
        self.waited += waited
        struct.pack_into("<q", self.page, TOTAL_WAITED, self.waited)

    def beat(self, number, waited):
        now = time.monotonic_ns()
        self.beats += 1
        if self.beats == 1:
            struct.pack_into("<qq", self.page, FIRST_STEP, number, now)
        else:
            self.add_waited(waited)
        # Two places, one after the other, so that a whole one is there at any instant.
        place = BEATS + self.beats % 2 * BEAT_BYTES
        struct.pack_into("<Q", self.page, place, 0)
        struct.pack_into("<qqqq", self.page, place + 8, number, now, now - self.last if self.last else 0, waited)
        struct.pack_into("<Q", self.page, place, self.beats)
        struct.pack_into("<Q", self.page, NEWEST, self.beats)
        self.last = now


def open_page():
    """The page that the environment names, or None: another launcher, or a process that a worker has started."""
    try:
        fd, device, inode, pid = (int(field) for field in os.environ.pop("TORCHUP_WORKER_PAGE", "").split(":"))
        status = os.fstat(fd)
        if pid != os.getpid() or (status.st_dev, status.st_ino) != (device, inode) or status.st_size < PAGE_BYTES:
            return None
        if fcntl.fcntl(fd, GET_SEALS) & SEALS != SEALS:
            return None
        page = mmap.mmap(fd, PAGE_BYTES)
        os.close(fd)  # the mapping stays, and no child inherits it
        return page
    except (OSError, OverflowError, ValueError):
        return None
