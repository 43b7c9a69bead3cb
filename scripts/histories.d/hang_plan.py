"""What happens in one history of hang_histories, and what is right to say of it: all chance comes from seed and number."""

import dataclasses
import random

STILL, ENDLESS, DIFFERENT = ("stuck",), ("busy",), ("mismatch",)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault, or of pause."""

    way: str                   # the function in hang_ways.py
    verdicts: tuple = ()       # that are right; none: the rank dies
    code: int = None           # with which it dies, negative for a signal
    words: str = ""            # in the cause, as it is told
    everybody: bool = False    # all ranks call it, and it knows what to do for whom
    shapes: tuple = ("sums", "ddp", "several")  # of the job, in which it can happen
    least: int = 2             # ranks
    line: bool = True          # the page can have its line: the rank's main thread is there
    most: int = 1              # ranks at once whose fault it may be


HANGS = [
    *(Kind(way, STILL, most=2) for way in ("fifo", "pipe", "file_lock", "silent_server", "interpreter_lock", "c_code", "child", "sleep")),
    *(Kind(way, STILL) for way in ("thread_lock", "dead_producer", "event_loop", "loader", "uninterruptible", "finally_sleeps")),
    Kind("stopped", ("stopped",), line=False, most=2),
    Kind("receives", STILL, everybody=True, least=3),
    *(Kind(way, ENDLESS) for way in ("endless_loop", "endless_match")),
    Kind("polls", STILL + ENDLESS),
    *(Kind(way, DIFFERENT, shapes=("several",), line=way == "other") for way in ("extra", "other", "skipped")),
    Kind("finally_collects", DIFFERENT, shapes=("sums", "several")),
    Kind("circle", ("order",), everybody=True),
    *(Kind(way, ("raised",), line=False) for way in ("thread_stays", "exit_handler")),
]
DEATHS = [
    *(Kind(way, code=1, words="ValueError: loss is nan") for way in ("exception", "slow_exception", "slow_end")),
    Kind("chained", code=1, words="cannot read the labels"),
    Kind("exit_code", code=41), Kind("exit_at_once", code=42),
    Kind("fault", code=-11), Kind("abort", code=-6), Kind("bus_error", code=-7), Kind("killed", code=-9),
    Kind("loader_killed", code=1, words="a process of its DataLoader died"),
    Kind("disk_full", code=1, words="a file system is full"),
    Kind("port_taken", code=1, words="its port is taken"),
    Kind("open_files", code=1, words="it had as many files open as it may"),
    # gloo ends whoever it finds with another size, by an exception of its own or by abort().
    *(Kind(way, words="ranks gave tensors of different sizes to one collective", shapes=("sums", "several")) for way in ("sizes", "dtype")),
]
PAUSES = [Kind(way, ENDLESS, most=2) for way in ("evaluates", "saves", "compiles", "downloads", "loads")]
KINDS = {kind.way: kind for kind in HANGS + DEATHS + PAUSES}

# Names that a program has; the fault's own tells nothing.
FUNCTIONS = ["read_shard", "next_batch", "prepare", "augment", "write_summary", "sync_state", "update_cache", "collect_metrics"]


@dataclasses.dataclass
class Plan:
    """A value that says all of one history."""

    about: str
    kind: Kind
    healthy: bool
    ranks: list            # whose fault it is, or who pauses
    nodes: int
    workers: int           # of each node
    shape: str
    at: int                # before this step it happens
    steps: int
    function: str
    on_hang: str
    limit_s: int           # --hang-timeout
    tidy: bool             # destroy_process_group on the way out, also of an exception
    seconds: float         # of a pause

    @property
    def world(self):
        return self.nodes * self.workers


def kind_of(seed, index, healthy):
    """From a deck that each seed shuffles anew, and that has hangs twice: so many histories have all kinds."""
    deck = list(PAUSES if healthy else 2 * HANGS + DEATHS)
    random.Random(f"{seed}-deck").shuffle(deck)
    return deck[index % len(deck)]


def make_plan(seed, index, healthy=False, only=None):
    dice = random.Random(f"{seed}-{index}-{'healthy' if healthy else 'fault'}")
    kind = KINDS[only] if only else kind_of(seed, index, healthy)
    nodes = 2 if dice.random() < 0.25 else 1
    workers = dice.choice([1, 2] if nodes == 2 else [2, 3, 3, 4])
    if nodes * workers < kind.least:
        workers = 2 if nodes == 2 else kind.least
    world = nodes * workers
    several = dice.randint(2, world) if kind.way == "circle" else min(kind.most, world - 1) if dice.random() < 0.2 else 1
    at = dice.randint(0, 6)
    hangs = bool(kind.verdicts)
    return Plan(
        about=f"history {index} of seed {seed}", kind=kind, healthy=healthy, ranks=sorted(dice.sample(range(world), several)),
        nodes=nodes, workers=workers, shape=dice.choice(kind.shapes), at=at, steps=at + dice.randint(3, 8),
        function=f"{dice.choice(FUNCTIONS)}_{dice.randrange(1000)}", limit_s=dice.choice([2, 2, 3]),
        on_hang="abort" if hangs and not healthy and dice.random() < 0.5 else "report",
        # Who leaves the group while others use it takes them along: the way out of a death, not of a hang.
        tidy=healthy or (not hangs and kind.way != "slow_exception" and dice.random() < 0.5), seconds=round(dice.uniform(5, 9), 1))
