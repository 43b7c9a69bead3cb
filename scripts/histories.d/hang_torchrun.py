"""The same history of hang_histories under torchrun: what its report, Flight Recorder's analyser and py-spy name.

With gloo nobody writes Flight Recorder's dumps by himself: a thread that is put in front of the program does, each second,
with the groups' true members, which the recorder does not know for gloo. What holds the interpreter lock, or is stopped,
keeps the thread from it, and the analyser works with the dump before.
"""

import os
import re
import shutil
import signal
import subprocess
import time

from hang_truth import culprits, stamps

LIMIT_S = 120
PATIENCE_S = 3       # behind the limit, as long as a verdict may take
ANALYSER_LIMIT_S = 60
PY_SPY_LIMIT_S = 20
DUMPS = '''
def _dumps():
    import os, pickle, sys, time
    while True:
        time.sleep(1)
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or not getattr(c10d, "_world", None) or not c10d._world.pg_map:
            continue
        import torch._C._distributed_c10d as recorder
        text = pickle.loads(recorder._dump_fr_trace(True, True, False))
        text["pg_config"] = {name: {"name": name, "desc": group.group_desc, "ranks": str(sorted(c10d._world.pg_group_ranks[group]))}
                             for group, name in list(c10d._world.pg_names.items())}
        path = os.path.join(FOLDER, "dumps", "trace_" + os.environ["RANK"])
        with open(path + ".new", "wb") as file:
            pickle.dump(text, file)
        os.rename(path + ".new", path)


import _thread
_thread.start_new_thread(_dumps, ())
'''


def beside(options, name):
    """A program of the workers' Python; None where it is not installed."""
    path = os.path.join(os.path.dirname(os.path.abspath(options.python)), name)
    return path if os.access(path, os.X_OK) else shutil.which(name)


def play(history):
    options, plan = history.options, history.plan
    torchrun = beside(options, "torchrun")
    if torchrun is None:
        return {"rank": None, "line": None, "said": "not installed"}
    (history.folder / "dumps").mkdir()
    history.prepare(f"FOLDER = {str(history.folder)!r}\n{DUMPS}\n")
    history.start(lambda node: [torchrun])
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and any(job.poll() is None for job in history.jobs):
        begun = [when / 1e9 for rank, when in stamps(history.folder, "begins").items() if rank in plan.ranks]
        if plan.kind.verdicts and len(begun) == len(plan.ranks) and time.monotonic() > max(begun) + plan.limit_s + PATIENCE_S:
            break
        time.sleep(0.05)
    seen, line, seconds = py_spy(history)
    for job in history.jobs:
        job.send_signal(signal.SIGKILL)
        job.wait()
    named, said = by_recorder(history) if plan.kind.verdicts else by_report(history)
    return {"rank": named == culprits(plan), "line": line, "py_spy_s": seconds,
            "said": f"{said} names {named}" + (f", py-spy has the line: {line}" if seen else "")}


def by_report(history):
    """Whose failure torchrun's report has as the root cause, on the node whose report is the first."""
    causes = []
    for path in sorted(history.folder.glob("stderr*")):
        found = re.search(r"Root Cause \(first observed failure\):.*?rank +: (\d+)", path.read_text(errors="replace"), re.DOTALL)
        if found:
            causes.append(int(found[1]))
    return sorted(set(causes)), "its report"


def by_recorder(history):
    analyser = beside(history.options, "torchfrtrace")
    if analyser is None:
        return [], "no torchfrtrace"
    text = ""
    for further in ([], ["--allow-incomplete-ranks"]):  # where a rank has left no dump
        try:
            done = subprocess.run([analyser, *further, "-p", "trace_", str(history.folder / "dumps")], capture_output=True, text=True,
                                  timeout=ANALYSER_LIMIT_S, env=history.environment())
        except subprocess.TimeoutExpired:
            return [], f"Flight Recorder's analyser takes over {ANALYSER_LIMIT_S} s and"
        text = done.stdout + done.stderr
        if done.returncode == 0:
            break
    first = re.search(r"missing ranks: \{([^}]*)\}|error msg: (.*)", text)
    if first is None:
        return [], "Flight Recorder's analyser" + (" fails and" if done.returncode else "")
    ranks = re.findall(r"\d+", first[1]) if first[1] else re.findall(r"Culprit rank (\d+)", first[2])
    return sorted({int(rank) for rank in ranks}), "Flight Recorder's analyser"


def py_spy(history):
    """(whether it was asked, whether the line of a rank whose fault it is stands in what it writes, seconds for all ranks)"""
    program = beside(history.options, "py-spy")
    if program is None or not history.plan.kind.verdicts:
        return False, None, None
    pids = {}
    for path in history.folder.glob("stamps*"):
        pids[int(path.name.removeprefix("stamps"))] = path.read_text().split()[2]
    began = time.monotonic()
    texts = {rank: dump_of(program, pid) for rank, pid in pids.items()}
    place = f"{history.plan.function} (program.py:{history.line})"
    return True, all(place in texts.get(rank, "") for rank in history.plan.ranks), round(time.monotonic() - began, 2)


def dump_of(program, pid):
    """Empty where py-spy does not come back: it waits until the process stops, which one in state D does not."""
    try:
        return subprocess.run([program, "dump", "--pid", pid], capture_output=True, text=True, timeout=PY_SPY_LIMIT_S).stdout
    except subprocess.TimeoutExpired:
        return ""
