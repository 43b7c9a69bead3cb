"""What diagnosis costs a healthy job, and how soon and how rightly it names what is wrong: torchup with its worker hook
beside itself without, py-spy, gdb, torchrun with Flight Recorder, and, with --before, an older torchup."""

import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import measure
from bench_ddp import MODELS, PYTHON_RANK
from bench_launch import memory_kib, tree, wall_ms

sys.path[:0] = [os.path.join(measure.ROOT, "scripts/histories.d"), os.path.join(measure.ROOT, "tests/support")]
from hang_truth import events  # noqa: E402
from ranks import free_port  # noqa: E402

LIMIT_S = 2         # --hang-timeout
WAIT_S = 150        # for what comes within seconds where there is time
WINDOW_S = 3        # --straggler-window
WINDOWS_MAX = 4     # in which a straggler is to be named
STEP_S = 0.04       # of one that is not late
LATE = 1.3

# Says how much CPU time the interpreter has taken up to the program's first line, restart after restart. The second
# takes the hook's bytecode away from the third.
START = """
import time
used = time.process_time_ns()
import os, shutil, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 1 and "torchup_worker" in sys.modules:
    shutil.rmtree(os.path.join(os.path.dirname(sys.modules["torchup_worker"].__file__), "__pycache__"))
with open(sys.argv[1], "a") as file:
    file.write(f"{attempt} {used}\\n")
sys.exit(1 if attempt < int(sys.argv[2]) else 0)
"""
STEP = """
import sys, time, torch
torch.optim.SGD
hook, = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks.values()
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter_ns()
    for _ in range(1000): hook(None, (), {})
    print((time.perf_counter_ns() - begin) / 1e6)
"""
HANG = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(20):
    dist.all_reduce(torch.ones(1024))
with open(os.path.join(sys.argv[1], f"begins{rank}.new"), "w") as file:
    file.write(str(time.monotonic_ns()))
os.rename(file.name, file.name[:-4])
if rank == 1:
    os.mkfifo(os.path.join(sys.argv[1], "shard"))
    open(os.path.join(sys.argv[1], "shard")).read()
dist.all_reduce(torch.ones(1024))
"""
STRAGGLE = """
import random, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dice = random.Random(dist.get_rank())
step = float(sys.argv[2]) * (float(sys.argv[3]) if str(dist.get_rank()) == sys.argv[4] else 1)
open(sys.argv[1] + f"/begins{dist.get_rank()}", "w").write(str(time.monotonic_ns()))
while True:
    time.sleep(step * dice.uniform(0.975, 1.025))
    dist.all_reduce(torch.ones(1024))
"""


class Job:
    """A job of one or two agents of this machine, whose program has the job's folder as its first argument."""

    def __init__(self, options, text, workers, *words, launcher=(), nodes=1):
        self.temporary = tempfile.TemporaryDirectory(prefix="bench_diagnosis_")
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "program.py").write_text(text)
        meet = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:%d" % free_port(), "--rdzv-id=bench"]
        self.agents = []
        for node in range(nodes):
            with open(self.folder / f"stderr{node}", "w") as errors:
                self.agents.append(subprocess.Popen(
                    [measure.program(options, "torchup"), f"--nproc-per-node={workers}", f"--events={self.folder}/events{node}",
                     *(meet if nodes > 1 else []), *launcher, str(self.folder / "program.py"), str(self.folder), *map(str, words)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment(options)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait()
        self.temporary.cleanup()

    def wait_for(self, what, find):
        end = time.monotonic() + WAIT_S
        while not (found := find()):
            if time.monotonic() > end or all(agent.poll() is not None for agent in self.agents):
                sys.exit(f"bench: {what} did not come: {self.said(0)[-2000:]}")
            time.sleep(0.002)
        return found

    def said(self, node):
        return (self.folder / f"stderr{node}").read_text(errors="replace")

    def events(self, name):
        return [event for path in self.folder.glob("events*") for event in events(path) if event["event"] == name]

    def begun_s(self, ranks):
        """When the last of them began to do what it does."""
        self.wait_for("the workers", lambda: len(list(self.folder.glob("begins?"))) == ranks)
        return max(int(path.read_text()) for path in self.folder.glob("begins?")) / 1e9

    def workers(self):
        return [event["pid"] for event in self.events("worker_started")]

    def launchers_mib(self):
        """PSS of the launcher's own processes."""
        theirs = {pid for worker in self.workers() for pid in tree(worker)}
        return sum(memory_kib(pid, "Pss") for agent in self.agents for pid in tree(agent.pid) if pid not in theirs) / 1024


def environment(options):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCH", "PYTHON"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": options.python}


# ---- what it costs

def start_ms(options, *launcher):
    """Of a job's first interpreter, of one without the hook's bytecode, and of those with it. torchup brings bytecode for
    the Python of its build: the first of another is one without.
    """
    def run():
        with tempfile.TemporaryDirectory(prefix="bench_diagnosis_") as folder:
            program, said = os.path.join(folder, "program.py"), os.path.join(folder, "said")
            pathlib.Path(program).write_text(START)
            restarts = 5
            subprocess.run([measure.program(options, "torchup"), f"--max-restarts={restarts}", *launcher, program, said, str(restarts)],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(options), check=True)
            used = [[int(word) for word in line.split()] for line in open(said)]
        first, second, bare, *others = (value / 1e6 for _, value in used)
        return first, bare, statistics.median([second, *others])

    return run


def start(options, results, goals):
    times = measure.interleave({"with the hook": start_ms(options), "without": start_ms(options, "--no-worker-hook")}, 5 * options.rounds)
    for at, what, most in ((2, "with bytecode", 1.5), (1, "without bytecode", 5.0), (0, "a job's first", 5.0)):
        values = {name: [pair[at] for pair in series] for name, series in times.items()}
        results[f"start_{what}_ms"] = measure.report(f"Python up to the program's first line, {what} of the hook: CPU", "ms", values, "without", 2)
        goals.at_most(f"hook at start, {what}, ms of CPU", statistics.median(values["with the hook"]) - statistics.median(values["without"]), most)


def output_of(options, text, *words, launcher=(), workers=1):
    """What rank 0 prints."""
    with tempfile.TemporaryDirectory(prefix="bench_diagnosis_") as folder:
        program = os.path.join(folder, "program.py")
        pathlib.Path(program).write_text(text)
        done = subprocess.run([measure.program(options, "torchup"), f"--nproc-per-node={workers}", *launcher, program, *map(str, words)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(options))
        if done.returncode:
            sys.exit(f"bench: a job has failed: {done.stderr[-2000:]}")
        return done.stdout


def step(options, results, goals):
    series = [float(line) for line in output_of(options, STEP, 50).split()]
    results["step_us"] = measure.report("the hook's share of one step, 1,000 in a row", "us", {"torchup": series}, "torchup", 2)
    goals.at_most("hook in a step, us", statistics.median(series), 2)
    for name, most, times_longer in (("25M parameters", 1.002, 1), ("small MLP", 1.01, 5)):
        layers, width, batch, steps, view = MODELS[name][0]
        shape = layers, width, batch, times_longer * steps, view
        contenders = {label: lambda launcher=launcher, shape=shape: json.loads(output_of(options, PYTHON_RANK, *shape, launcher=launcher, workers=2))["step"]
                      for label, launcher in (("with the hook", ()), ("without", ("--no-worker-hook",)))}
        times = measure.interleave(contenders, options.rounds)
        results[f"ddp_{name}_us"] = measure.report(f"DDP, 2 ranks, {name}: step, p10", "us", times, "without")
        goals.at_most(f"DDP step, {name}: with the hook / without", statistics.median(times["with the hook"]) / statistics.median(times["without"]), most)


def launch(options, results, goals):
    if not options.before:
        return print("launches: left out, --before BIN names a torchup to compare with")
    for workers in (2, 256):
        contenders = {name: wall_ms([binary, f"--nproc-per-node={workers}", "true"])
                      for name, binary in (("torchup", measure.program(options, "torchup")), ("before", options.before))}
        times = measure.interleave(contenders, (20 if workers == 2 else 3) * options.rounds)
        results[f"noops_{workers}_ms"] = measure.report(f"{workers} no-op workers, start to exit", "ms", times, "torchup", 2)
        goals.at_most(f"launch of {workers} no-ops / before", statistics.median(times["torchup"]) / statistics.median(times["before"]), 1.03)


# ---- how soon

def verdict_s(options, nodes, workers, memory):
    """From the limit, after the last rank's last collective, to the page."""
    def run():
        with Job(options, HANG, workers, launcher=[f"--hang-timeout={LIMIT_S},{WAIT_S}"], nodes=nodes) as job:
            begun = job.begun_s(nodes * workers)
            job.wait_for("the page", lambda: all("nothing was done" in job.said(node) for node in range(nodes)))
            seconds = time.monotonic() - begun - LIMIT_S
            if any(event["culprits"] != [1] for event in job.events("hang_found")):
                sys.exit(f"bench: another rank was named: {job.said(0)}")
            if nodes == 1:
                memory.append(job.launchers_mib())
            return seconds

    return run


def verdict(options, results, goals):
    memory = []
    rounds = min(options.rounds, 3)
    times = measure.interleave({"8 ranks on one node": verdict_s(options, 1, 8, memory), "2 nodes of 2": verdict_s(options, 2, 2, memory)},
                               rounds, warm=False)
    results["verdict_s"] = measure.report("from the limit to the page", "s", times, "8 ranks on one node", 2)
    goals.at_most("limit to page, 8 ranks on one node, s", statistics.median(times["8 ranks on one node"]), 2.5)
    goals.at_most("limit to page, 2 nodes, s", statistics.median(times["2 nodes of 2"]), 5)
    results["pss_mib"] = measure.report("launcher's own processes after a look at 8 torch workers, PSS", "MiB", {"torchup": memory}, "torchup", 2)
    goals.at_most("PSS with 8 Python workers, after a look, MiB", statistics.median(memory), 6)


def peer(options, name, package):
    beside = os.path.join(os.path.dirname(options.python), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if not found:
        print(f"{name}: not found, left out ({package})")
    return found


def seconds_and_mib(command):
    """Of one process, from its start to its end; the most memory that it had."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not text:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - begin, used.ru_maxrss / 1024


def stacks(options, results, goals):
    py_spy, gdb = peer(options, "py-spy", "pip install py-spy"), peer(options, "gdb", "Debian package gdb")
    python, native = {"torchup": [], **({"py-spy": []} if py_spy else {})}, {"torchup-stack": [], **({"gdb": []} if gdb else {})}
    for turn in range(min(options.rounds, 3)):
        with Job(options, HANG, 8, launcher=["--hang-timeout=off"]) as job:
            job.begun_s(8)
            time.sleep(2)  # until all of them wait
            workers = job.workers()
            for name in native:
                if name == "gdb" and turn > 0:
                    continue  # a quarter of a minute each
                command = [gdb, "-batch", "-ex", "bt", "-p", str(workers[0])] if name == "gdb" else [
                    measure.program(options, name), f"{workers[0]}:{workers[0]}"]
                native[name].append(seconds_and_mib(command))
            if py_spy:
                python["py-spy"].append(sum(1e3 * seconds_and_mib([py_spy, "dump", "--pid", str(pid)])[0] for pid in workers))
            begin = time.perf_counter()
            job.agents[0].send_signal(signal.SIGQUIT)
            job.wait_for("the page", lambda: "torchup: What the ranks do" in job.said(0))
            python["torchup"].append(1e3 * (time.perf_counter() - begin))
    results["stacks_ms"] = measure.report("stacks of 8 torch ranks: kill -QUIT to the page, beside py-spy dump of each", "ms", python, "torchup")
    goals.at_most("stacks of 8 torch ranks, ms", statistics.median(python["torchup"]), 100)
    if py_spy:
        goals.at_least("  py-spy dump of each / ours", results["stacks_ms"]["rows"]["py-spy"]["ratio_to_ours"], 5)
    for at, what, unit in ((0, "time", "s"), (1, "memory", "MiB")):
        values = {name: [pair[at] for pair in series] for name, series in native.items()}
        results[f"native_{what}"] = measure.report(f"native stack of a torch process, its main thread: {what}", unit, values, "torchup-stack", 2)
    if gdb:
        goals.at_least("native stack: gdb / ours", results["native_time"]["rows"]["gdb"]["ratio_to_ours"], 20)
    goals.at_most("  memory, MiB", statistics.median(pair[1] for pair in native["torchup-stack"]), 40)


def many_s(options):
    """256 workers: kill -QUIT to the page."""
    with tempfile.TemporaryDirectory(prefix="bench_diagnosis_") as folder:
        told, errors = pathlib.Path(folder, "events"), pathlib.Path(folder, "stderr")
        with open(errors, "w") as file:
            agent = subprocess.Popen([measure.program(options, "torchup"), "--nproc-per-node=256", f"--events={told}", "sleep", str(WAIT_S)],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file)
        try:
            wait_until(lambda: sum(event["event"] == "worker_started" for event in events(told)) == 256, "256 workers")
            begin = time.perf_counter()
            agent.send_signal(signal.SIGQUIT)
            wait_until(lambda: "torchup: What the ranks do" in errors.read_text(), "the page")
            return time.perf_counter() - begin
        finally:
            agent.terminate()
            agent.wait()


def wait_until(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"bench: {what} did not come")
        time.sleep(0.002)


def many(options, results, goals):
    times = [many_s(options) for _ in range(min(options.rounds, 3))]
    results["many_s"] = measure.report("where 256 workers are: kill -QUIT to the page", "s", {"torchup": times}, "torchup", 2)
    goals.at_most("256 workers looked at, s", statistics.median(times), 5)


# ---- how rightly

def histories(options, results, goals):
    with tempfile.NamedTemporaryFile(mode="r", suffix=".json") as told:
        command = [sys.executable, os.path.join(measure.ROOT, "scripts/hang_histories"), "--runs", str(options.faults), "--healthy", str(options.faults),
                   "--seed", options.seed, "--build", options.build, "--python", options.python, "--json", told.name]
        subprocess.run([*command, *(["--torchrun"] if peer(options, "torchrun", "scripts/setup") else [])])
        runs = results["histories"] = json.load(told)
    faults, healthy = ([run for run in runs if run["healthy"] == of] for of in (False, True))
    right = sum(not run["wrong"] for run in faults)
    goals.at_least(f"of {len(faults)} random faults, named rightly", right, math.ceil(0.95 * len(faults)))
    beside = [run["torchrun"] for run in faults if run.get("torchrun")]
    if beside:
        goals.at_least("  more than torchrun's report or Flight Recorder's analyser", right, sum(bool(one["rank"]) for one in beside))
    goals.at_most(f"of {len(healthy)} healthy runs, a verdict but busy", sum(bool(run["wrong"]) for run in healthy), 0)


def straggler(options, late):
    """(windows until one was named, its rank, whether it is the right one); None where nobody was named in time."""
    def run():
        ranks = 4 if late is None else 3
        with Job(options, STRAGGLE, ranks, STEP_S, LATE, -1 if late is None else late, launcher=[f"--straggler-window={WINDOW_S}"]) as job:
            begun = job.begun_s(ranks)
            end = time.monotonic() + WINDOWS_MAX * WINDOW_S + 1  # with the look itself
            while time.monotonic() < end and not job.events("straggler_found"):
                time.sleep(0.05)
            found = job.events("straggler_found")
            return (found[0]["monotonic_us"] / 1e6 - begun) / WINDOW_S if found and found[0]["rank"] == (late or 0) else -1 if found else None

    return run


def stragglers(options, results, goals):
    runs = 20 if not options.quick else 3
    for what, late in (("one rank 30 % slower", 1), ("equal ranks", None)):
        named = [straggler(options, late)() for _ in range(runs)]
        results[what] = named
        rightly = [windows for windows in named if windows is not None and windows >= 0]
        print(f"\n{what}: {runs} runs of windows of {WINDOW_S} s: {sum(windows is not None for windows in named)} named"
              + (f", after {statistics.median(rightly):.1f} windows ({min(rightly):.1f} to {max(rightly):.1f})" if rightly and late is not None else ""))
        if late is not None:
            goals.at_least(f"of {runs} runs with a rank 30 % slower, named in {WINDOWS_MAX} windows", len(rightly), math.ceil(0.95 * runs))
        else:
            goals.at_most(f"of {runs} runs of equal ranks, somebody named", sum(windows is not None for windows in named), 0)


SECTIONS = {part.__name__: part for part in (start, step, launch, verdict, stacks, many, stragglers, histories)}


def main():
    parser = measure.arguments(__doc__)
    parser.set_defaults(rounds=5)
    parser.add_argument("--only", help=f"parts, with commas between: {', '.join(SECTIONS)}")
    parser.add_argument("--before", help="a torchup without diagnosis, whose launches are compared")
    parser.add_argument("--python", default=os.path.join(measure.ROOT, ".venv/bin/python"), help="the workers' Python, with torch")
    parser.add_argument("--faults", type=int, default=100, help="random faults, and as many healthy runs (default 100)")
    parser.add_argument("--seed", default="15", help="theirs")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: whether it runs, not what to quote")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.faults = 2, min(options.faults, 6)
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"no part named {unknown[0]}; there are: {', '.join(SECTIONS)}")
    if not os.access(options.python, os.X_OK):
        sys.exit(f"bench: {options.python} is not there; scripts/setup makes it")
    print(measure.machine())
    print(f"load of the last minute before: {os.getloadavg()[0]:.1f}")
    results, goals = {}, measure.Goals()
    for name in wanted:
        SECTIONS[name](options, results, goals)
    measure.finish(options, {**results, "goals": goals.table()})


if __name__ == "__main__":
    main()
