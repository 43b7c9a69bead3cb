"""What the workers of the contract cases leave behind, and what they wait for: imported by every case's script."""
import json
import os
import sys
import time


def record(**extra):
    """Writes what this worker sees of itself to $PROBE_DIR, complete once it is there."""
    seen = {
        "argv": sys.argv[1:],
        "env": dict(os.environ),
        "unbuffered": bool(sys.flags.unbuffered) if hasattr(sys.flags, "unbuffered") else None,
        "own_session": os.getsid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0") if os.path.exists("/proc/self/fd/0") else None,
        "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and is_open(fd)),
        "affinity": sorted(os.sched_getaffinity(0)),
        "pid": os.getpid(),
    }
    seen.update(extra)
    name = "{}.{}".format(os.environ.get("TORCHELASTIC_RESTART_COUNT"), os.environ.get("RANK"))
    path = os.path.join(os.environ["PROBE_DIR"], name)
    temporary = "{}.{}.tmp".format(path, os.getpid())  # two jobs may have the same ranks
    with open(temporary, "w") as file:
        json.dump(seen, file)
    os.rename(temporary, path + ".json")


def is_open(fd):
    try:
        os.fstat(int(fd))  # listdir's own descriptor is closed by now
        return True
    except OSError:
        return False


def mark(name, text=""):
    """Leaves a file that a case's steps can wait for, and that is part of what is compared."""
    path = os.path.join(os.environ["PROBE_DIR"], name)
    temporary = "{}.{}.tmp".format(path, os.getpid())  # two jobs may have the same ranks
    with open(temporary, "w") as file:
        file.write(text)
    os.rename(temporary, path + ".mark")


def until(condition):
    while not condition():
        time.sleep(0.005)


def stay(seconds=50):
    """Does nothing for so long. Python calls a signal's handler between two of its own steps: a signal right before one
    long sleep would wait for the sleep's end."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end)


def path_of(rank):
    """Where the worker of that rank in this attempt records what it sees."""
    name = "{}.{}.json".format(os.environ["TORCHELASTIC_RESTART_COUNT"], rank)
    return os.path.join(os.environ["PROBE_DIR"], name)


def others_recorded():
    """Waits until all workers of this attempt have recorded: what stands before their `record()` is done."""
    ranks = range(int(os.environ["WORLD_SIZE"]))
    until(lambda: all(os.path.exists(path_of(rank)) for rank in ranks))


def other_ended(rank):
    """Waits until the worker of that rank, which records, has ended."""
    until(lambda: os.path.exists(path_of(rank)))
    with open(path_of(rank)) as file:
        pid = json.load(file)["pid"]
    until(lambda: state_of(pid) in (None, "Z"))


def state_of(pid):
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None
