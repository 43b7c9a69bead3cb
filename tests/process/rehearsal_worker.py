"""A worker that ends steps, in plain Python: it writes its page (rendezvous/base/worker_page.hpp) by hand.

usage: rehearsal_worker.py NOTES STEPS PACE_S [WORD ...]

Ends STEPS steps, one after PACE_S seconds of its own, and begins behind the last one that a process of its local rank
has saved. Appends a line to NOTES for its start: LOCAL_RANK PID RANK WORLD_SIZE RESTART_COUNT.

    saves=N   saves after each Nth step
    deaf      does not end by SIGTERM
"""

import mmap
import os
import signal
import struct
import sys
import time

NOTES, STEPS, PACE_S, WORDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
PAGE_MAGIC = 0x31474150505554


def note(*words):
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (" ".join(str(word) for word in words) + "\n").encode())
    os.close(file)


def main():
    if "deaf" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    saves = next((int(word[6:]) for word in WORDS if word.startswith("saves=")), 0)
    rank = os.environ["RANK"]
    saved = f"{NOTES}.saved.{rank}"
    step = int(open(saved).read()) if os.path.exists(saved) else 0
    note(os.environ["LOCAL_RANK"], os.getpid(), rank, os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"])
    fd, _, inode, pid = (int(field) for field in os.environ["TORCHUP_WORKER_PAGE"].split(":"))
    assert (pid, os.fstat(fd).st_ino) == (os.getpid(), inode)
    with mmap.mmap(fd, 4096) as page:
        beats = 0
        while step < STEPS:
            time.sleep(PACE_S)
            step += 1
            beats += 1
            struct.pack_into("<QQ", page, 0, PAGE_MAGIC, os.getpid())
            struct.pack_into("<Qqqqq", page, 64 + beats % 2 * 64, beats, step, time.monotonic_ns(), 0, 0)
            struct.pack_into("<Q", page, 16, beats)
            if saves and step % saves == 0:
                with open(saved + ".new", "w") as file:
                    file.write(str(step))
                os.rename(saved + ".new", saved)


main()
