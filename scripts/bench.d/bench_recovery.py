"""From a death, and from Enter, to workers that have torch and an optimizer, or that stand in worker_main: torchup --preload
beside torchup and torchrun.
From a death to the next step of a job that recovers inside the process, in Python and in C++, beside torchrun, which starts
it anew; what a newcomer's state and a commit cost."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import measure

HERE = os.path.dirname(os.path.abspath(__file__))
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
OURS_CPP = "torchup --preload program"
LIMIT_S = 300
# After the last worker's stamp: by then torchup has made the next attempt's processes (1 s later), and all stand still.
SETTLE_S = 4


class Job:
    """One job whose workers write when they have an optimizer."""

    def __init__(self, launcher, workers, command=None):
        """`command`: instead of one whose workers stamp when they have an optimizer, and wait. The folder is its last argument."""
        self.workers = workers
        self.folder = tempfile.TemporaryDirectory(prefix="bench_recovery_")
        self.stamps = os.path.join(self.folder.name, "stamps")
        arguments = [*(command or ()), self.folder.name]
        if command is None:
            arguments = [os.path.join(self.folder.name, "worker.py"), self.stamps]
            with open(arguments[0], "w") as file:
                file.write(WORKER)
        open(self.stamps, "w").close()
        self.begin_ns = time.monotonic_ns()
        self.process = subprocess.Popen([*launcher, f"--nproc-per-node={workers}", "--max-restarts=3", *arguments],
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
        def find(lines):
            found = [line[1:] for line in lines if line[0] == number]
            return sorted(found) if len(found) == self.workers else None

        return self.wait_for(find)

    def wait_for(self, find):
        """What `find` makes of the stamps, once that is something."""
        end = time.monotonic() + LIMIT_S
        while True:
            with open(self.stamps) as file:
                lines = [[int(field) for field in line.split()] for line in file if line.endswith("\n")]
            if found := find(lines):
                return found
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"{self.process.args[0]}: the workers did not come; {len(lines)} stamps, launcher: {self.process.poll()}")
            time.sleep(0.01)


def enter_s(launcher, workers):
    def run():
        with Job(launcher, workers) as job:
            return (max(when for _, when, _ in job.attempt(0)) - job.begin_ns) / 1e9

    return run


def death_s(launcher, workers, command=None):
    def run():
        with Job(launcher, workers, command) as job:
            victim = job.attempt(0)[-1][2]
            time.sleep(SETTLE_S)
            killed_ns = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
            return (max(when for _, when, _ in job.attempt(1)) - killed_ns) / 1e9

    return run


def step_s(launcher, workers, command):
    """To the first step that a process has committed which was not there before: all others have taken it, too."""
    def run():
        with Job(launcher, workers, command) as job:
            first = job.wait_for(lambda lines: sorted({pid for _, pid, _ in lines}) if lines and lines[-1][0] >= 40 else None)
            time.sleep(SETTLE_S)
            killed_ns = time.monotonic_ns()
            os.kill(first[-1], signal.SIGKILL)
            return job.wait_for(lambda lines: [when for _, pid, when in lines if pid not in first])[0] / 1e9 - killed_ns / 1e9

    return run


def state_ms(command):
    """{what: [milliseconds]}, which rank 0 of two says in seconds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    contract = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **contract, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    texts = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"bench: {command[0]} has failed")
    return {name: [1e3 * each for each in series] for name, series in json.loads(texts[0]).items()}


def built_for_cpp(options):
    """The program for C++; None where this build has no LibTorch."""
    built = subprocess.run(["cmake", "--build", options.build, "--target", "bench_recovery"], capture_output=True, text=True)
    if built.returncode and "unknown target" in built.stdout + built.stderr:
        print("C++: left out, there is no worker runtime in", options.build)
        return None
    if built.returncode:
        sys.exit(built.stdout + built.stderr)
    return measure.program(options, "bench_recovery")


def report_state(language, times, results):
    results["newcomer_ms"] = measure.report(f"{language}: a newcomer takes 100 MB of state (54 tensors), beside one broadcast of 100 MB",
                                            "ms", {name: times[name] for name in ("newcomer", "broadcast")}, "newcomer")
    results["commit_ms"] = measure.report(f"{language}: commit() with 21 buffers", "ms",
                                          {name: times[name] for name in ("commit", "seeded commit")}, "commit", 3)


def in_cpp(options, torchup, torchrun):
    """What the same binary does under either launcher."""
    program = built_for_cpp(options)
    if program is None:
        return None
    found = {OURS_CPP: [torchup, "--preload=program"], "torchup": [torchup]}
    if torchrun:
        found["torchrun"] = [*torchrun, "--no-python"]
    results = {}
    for workers in (1, 4):
        times = measure.interleave({name: death_s(make, workers, [program, "main"]) for name, make in found.items()}, options.rounds, warm=False)
        what = "1 worker: kill -9 to its successor" if workers == 1 else f"{workers} workers: kill -9 of one to {workers} new ones"
        results[f"death_of_{workers}_s"] = measure.report(f"C++, {what} in worker_main", "s", times, OURS_CPP, 4)
    times = measure.interleave({name: step_s(make, 3, [program, "job"]) for name, make in found.items()}, options.rounds, warm=False)
    results["step_s"] = measure.report("C++, 3 workers: kill -9 of one to the next step that its successor commits", "s", times, OURS_CPP, 3)
    report_state("C++", state_ms([program, "state", str(max(11, options.rounds))]), results)
    return results


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


def times_as_fast(what, results, least, ours=OURS):
    rows = results["rows"]
    if "torchrun" not in rows:
        return what, "no torchrun", None
    ratio = rows["torchrun"]["median"] / rows[ours]["median"]
    return what, f"{ratio:.1f} x", ratio >= least


def share_of_executed(what, results, most):
    share = results["rows"][OURS]["median"] / results["rows"]["torchup"]["median"]
    return what, f"{share:.2f}", share <= most


def state_goals(language, results):
    return [at_most(f"{language}: a newcomer's 100 MB: 2 x gloo's broadcast", 1 / results["newcomer_ms"]["rows"]["broadcast"]["ratio_to_ours"], 2, "x"),
            at_most(f"{language}: commit(): 0.2 ms", results["commit_ms"]["rows"]["commit"]["median"], 0.2, "ms")]


def at_most(what, measured, most, unit):
    return what, f"{measured:.2f} {unit}", measured <= most


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
    os.environ["PYTHONPATH"] = os.path.join(measure.ROOT, "launcher/python")
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
    job = [os.path.join(HERE, "recovery_step.py")]
    contenders = {name: step_s(make, 3, job) for name, make in found.items() if name != "torchup"}
    results["step_s"] = measure.report("Python, 3 workers: kill -9 of one to the next step that its successor commits", "s",
                                       measure.interleave(contenders, options.rounds, warm=False), OURS, 3)
    report_state("Python", state_ms([options.python, os.path.join(HERE, "recovery_state.py"), str(max(11, options.rounds))]), results)
    cpp = results["cpp"] = in_cpp(options, torchup, found.get("torchrun"))
    memory = measure.interleave({name: memory_mib(make, 3) for name, make in found.items()}, 1, warm=False)
    for index, (key, what) in enumerate((("pss_mib", "PSS of one"), ("job_pss_mib", "PSS of the whole job, per worker"))):
        one = {name: [values[index] for values in series] for name, series in memory.items()}
        results[key] = measure.report(f"3 workers: {what}", "MiB", one, OURS)
    results["goals"] = measure.goals([
        times_as_fast("death to its replacements, 4 workers: 25 x torchrun", results["death_s"], 25),
        times_as_fast("Enter to 8 workers: 2 x torchrun", results["enter_s"], 2),
        times_as_fast("Python: death to the successor's next step: 15 x torchrun", results["step_s"], 15),
        *state_goals("Python", results),
        *([at_most("C++: death to the successor's worker_main: 20 ms", 1e3 * cpp["death_of_1_s"]["rows"][OURS_CPP]["median"], 20, "ms"),
           times_as_fast("C++: death to the successor's next step: 4 x torchrun", cpp["step_s"], 4, OURS_CPP),
           *state_goals("C++", cpp)] if cpp else []),
        share_of_executed("PSS of one of 3 workers: 0.35 of an executed one", results["pss_mib"], 0.35),
    ])
    measure.finish(options, results)


if __name__ == "__main__":
    main()
