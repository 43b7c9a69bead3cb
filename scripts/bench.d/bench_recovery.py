"""From a death, and from Enter, to workers that have torch and an optimizer: torchup --preload beside torchup and torchrun."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import measure

WORKER = """
import os, sys, time
import torch
torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
line = f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['RANK']} {time.monotonic_ns()} {os.getpid()}\\n"
with open(sys.argv[1], "a") as file:
    file.write(line)
time.sleep(1000)
"""
OURS = "torchup --preload"
LIMIT_S = 300
# After the last worker's stamp: by then torchup has made the next attempt's processes (1 s later), and all stand still.
SETTLE_S = 4


class Job:
    """One job whose workers write when they have an optimizer."""

    def __init__(self, launcher, workers):
        self.workers = workers
        self.folder = tempfile.TemporaryDirectory(prefix="bench_recovery_")
        self.stamps = os.path.join(self.folder.name, "stamps")
        script = os.path.join(self.folder.name, "worker.py")
        with open(script, "w") as file:
            file.write(WORKER)
        open(self.stamps, "w").close()
        self.begin_ns = time.monotonic_ns()
        self.process = subprocess.Popen([*launcher, f"--nproc-per-node={workers}", "--max-restarts=3", script, self.stamps],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "OMP_NUM_THREADS": "1"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def attempt(self, number):
        """Waits until all workers of this attempt have an optimizer. Their (rank, time, pid)."""
        end = time.monotonic() + LIMIT_S
        while True:
            with open(self.stamps) as file:
                lines = [[int(field) for field in line.split()] for line in file if line.endswith("\n")]
            found = [line[1:] for line in lines if line[0] == number]
            if len(found) == self.workers:
                return sorted(found)
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"{self.process.args[0]}: {len(found)} of {self.workers} workers came, launcher: {self.process.poll()}")
            time.sleep(0.01)


def enter_s(launcher, workers):
    def run():
        with Job(launcher, workers) as job:
            return (max(when for _, when, _ in job.attempt(0)) - job.begin_ns) / 1e9

    return run


def death_s(launcher, workers):
    def run():
        with Job(launcher, workers) as job:
            victim = job.attempt(0)[-1][2]
            time.sleep(SETTLE_S)
            killed_ns = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
            return (max(when for _, when, _ in job.attempt(1)) - killed_ns) / 1e9

    return run


def memory_mib(launcher, workers):
    """Two numbers: of one worker, and of all that the launcher has started (with --preload also the process with the
    imports and those that wait for a restart) divided by the workers."""

    def run():
        with Job(launcher, workers) as job:
            pids = [pid for _, _, pid in job.attempt(0)]
            time.sleep(SETTLE_S)
            return (sum(map(pss_kib, pids)) / 1024 / workers, sum(map(pss_kib, descendants(job.process.pid))) / 1024 / workers)

    return run


def pss_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def descendants(pid):
    found = [pid]
    for parent in found:
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def times_as_fast(what, results, least):
    rows = results["rows"]
    if "torchrun" not in rows:
        return what, "no torchrun", None
    ratio = rows["torchrun"]["median"] / rows[OURS]["median"]
    return what, f"{ratio:.1f} x", ratio >= least


def share_of_executed(what, results, most):
    share = results["rows"][OURS]["median"] / results["rows"]["torchup"]["median"]
    return what, f"{share:.2f}", share <= most


def main():
    parser = measure.arguments(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--torchrun", default=os.path.join(measure.ROOT, ".venv/bin/torchrun"), help="the torchrun to compare with")
    parser.add_argument("--python", default=os.path.join(measure.ROOT, ".venv/bin/python3"), help="the workers' Python, with torch")
    parser.add_argument("--quick", action="store_true", help="one round: whether it runs, not what to quote")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    if not os.access(options.python, os.X_OK):
        sys.exit(f"bench: {options.python} is not there; scripts/setup makes it")
    os.environ["PYTHON_EXEC"] = options.python
    print(measure.machine())
    print(f"load of the last minute before: {os.getloadavg()[0]:.1f}")
    torchup = measure.program(options, "torchup")
    found = {OURS: [torchup, "--preload=torch"], "torchup": [torchup]}
    if os.access(options.torchrun, os.X_OK):
        found["torchrun"] = [options.torchrun]
    else:
        print("torchrun: not found, left out (scripts/setup installs it into .venv)")
    results = {}
    times = measure.interleave({name: death_s(make, 4) for name, make in found.items()}, options.rounds, warm=False)
    results["death_s"] = measure.report("4 workers: kill -9 of one to 4 new ones with torch and an optimizer", "s", times, OURS, 3)
    times = measure.interleave({name: enter_s(make, 8) for name, make in found.items()}, options.rounds, warm=False)
    results["enter_s"] = measure.report("8 workers: Enter to all with torch and an optimizer", "s", times, OURS, 2)
    memory = measure.interleave({name: memory_mib(make, 3) for name, make in found.items()}, 1, warm=False)
    for index, (key, what) in enumerate((("pss_mib", "PSS of one"), ("job_pss_mib", "PSS of the whole job, per worker"))):
        one = {name: [values[index] for values in series] for name, series in memory.items()}
        results[key] = measure.report(f"3 workers: {what}", "MiB", one, OURS)
    results["goals"] = measure.goals([
        times_as_fast("death to its replacements, 4 workers: 25 x torchrun", results["death_s"], 25),
        times_as_fast("Enter to 8 workers: 2 x torchrun", results["enter_s"], 2),
        share_of_executed("PSS of one of 3 workers: 0.35 of an executed one", results["pss_mib"], 0.35),
    ])
    measure.finish(options, results)


if __name__ == "__main__":
    main()
