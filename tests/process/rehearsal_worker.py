"""A worker that ends steps, in plain Python: it writes its page by hand.

usage: rehearsal_worker.py NOTES STEPS PACE_S [WORD ...]

Ends STEPS steps, one after PACE_S seconds of its own, and begins behind the last one that a process of its local rank
has saved. Appends a line to NOTES for its start: LOCAL_RANK PID RANK WORLD_SIZE RESTART_COUNT.

    saves=N   saves after each Nth step
    deaf      does not end by SIGTERM
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from worker_memory import OwnPage  # noqa: E402

NOTES, STEPS, PACE_S, WORDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]


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
    page = OwnPage()
    while step < STEPS:
        time.sleep(PACE_S)
        step += 1
        page.beat(step)
        if saves and step % saves == 0:
            with open(saved + ".new", "w") as file:
                file.write(str(step))
            os.rename(saved + ".new", saved)


main()
