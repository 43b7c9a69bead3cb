"""Jobs of plain Python programs that tell their steps, and what of their events says where time went: the table of the
ledger once more, by the letter, from the events alone. For scripts that are started as SCRIPT TORCHUP EXAMPLES."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TORCHUP = os.path.abspath(sys.argv.pop(1))
EXAMPLES = os.path.abspath(sys.argv.pop(1))
PARTS = ("useful", "waiting", "startup", "failure", "change", "redone", "hang", "straggler", "shutdown")

PROGRAM = f"""
import os, signal, sys, time
sys.path.insert(0, {EXAMPLES!r} + "/python")
from heartbeat import Heartbeat
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
heartbeat = Heartbeat()
def steps(first, last, pause=0.03, waited=0.0):
    for step in range(first, last + 1):
        time.sleep(pause)
        heartbeat.step(step, waited)
"""


class TimeJob:
    """A folder of the case's own; jobs in it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def job(self, body, *options, code=0, program=PROGRAM, **more):
        script = self.folder / "train.py"
        script.write_text(program + body)
        done = subprocess.run([TORCHUP, f"--events={self.folder}/events", f"--result-file={self.folder}/result", *options,
                               script], stdin=subprocess.DEVNULL, capture_output=True, timeout=100, text=True, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def events(self, *names):
        lines = (self.folder / "events").read_text().splitlines()
        return [event for event in map(json.loads, lines) if not names or event["event"] in names]

    def ledger(self):
        return json.loads((self.folder / "result").read_text())["ledger"]


class Attempt:
    def __init__(self, event):
        self.at = event["monotonic_us"]
        self.restarts = event["restart_count"]
        self.started, self.exited, self.stopping, self.hung, self.ended, self.waits = {}, {}, None, None, None, None


def read_attempts(events):
    attempts = []
    for event in events:
        at, name = event["monotonic_us"], event["event"]
        last = attempts[-1] if attempts else None
        if name == "round_completed":
            attempts.append(Attempt(event))
        elif name == "worker_started":
            last.started[event["rank"]] = at
        elif name == "worker_exited":
            last.exited[event["rank"]] = event
        elif name == "stopping":
            last.stopping = last.stopping or at
        elif name == "worker_hung":
            last.hung = last.hung or at
        elif name == "attempt_ended":
            last.ended = at
        elif name == "waiting" and last and last.ended:
            last.waits = last.waits or at
    return attempts


def recomputed(events):
    """{part: rank microseconds}."""
    spent = dict.fromkeys(PARTS, 0)
    begin, end = events[0], next(event for event in events if event["event"] == "job_ended")
    ranks, attempts = begin["local_world_size"], read_attempts(events)
    last_cause = "failure" if end["failures"] else "shutdown"
    spent["waiting"] += ranks * ((attempts[0].at if attempts else end["monotonic_us"]) - begin["monotonic_us"])
    cause = "startup"
    for k, attempt in enumerate(attempts):
        before, following = cause, attempts[k + 1] if k + 1 < len(attempts) else None
        cause = last_cause if not following else "failure" if following.restarts > attempt.restarts else "change"
        firsts = [exited["first_step"] for later in attempts[k + 1:] for exited in later.exited.values() if "first_step" in exited]
        running_all = redone_all = 0
        waited = []
        for rank in range(ranks):
            exited = attempt.exited.get(rank, {})
            stops = [time for time in (exited.get("monotonic_us"), attempt.stopping) if time]
            if "first_step" in exited:
                r, q = exited["first_step_us"], exited["last_step_us"]
                waited.append(exited["waited_us"])
            elif rank in attempt.started:
                r, q = attempt.started[rank], min(stops)
            else:
                r = q = attempt.ended
            h = max(q, attempt.hung or q)
            running = max(q - r, 0)
            redone = 0
            a, z = exited.get("first_step", 0), exited.get("last_step", 0)
            if firsts and z > a:
                redone = running * min(z - a, max(0, z - max(min(firsts) - 1, a))) / (z - a)
            for part, time in ((before, r - attempt.at), ("useful", running - redone), ("redone", redone), ("hang", h - q),
                               (cause, attempt.ended - h)):
                spent[part] += time
            running_all, redone_all = running_all + running, redone_all + redone
        if waited and running_all:
            straggler = min(sum(waited) - len(waited) * min(waited), running_all) * (running_all - redone_all) / running_all
            spent["useful"] -= straggler
            spent["straggler"] += straggler
        after = following.at if following else end["monotonic_us"]
        waits = attempt.waits if following and attempt.waits else after
        spent[cause] += ranks * (waits - attempt.ended)
        spent["waiting"] += ranks * (after - waits)
    return spent
