"""Launching workers: torchup beside the real torchrun and MPI's hydra, in one run."""

import os
import shutil
import subprocess
import time

import measure

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}


def launchers(options):
    """Name to the command line that comes before the worker program, for `workers` workers."""
    found = {"torchup": lambda workers: [measure.program(options, "torchup"), f"--nproc-per-node={workers}"]}
    torchrun = options.torchrun or shutil.which("torchrun")
    if torchrun and os.access(torchrun, os.X_OK):
        found["torchrun"] = lambda workers: [torchrun, f"--nproc-per-node={workers}", "--no-python"]
    else:
        print("torchrun: not found, left out (scripts/setup installs it into .venv)")
    hydra = shutil.which("mpiexec.hydra")
    if hydra:
        found["hydra"] = lambda workers: [hydra, "-n", str(workers)]
    else:
        print("hydra: not found, left out (Debian package mpich)")
    return found


def wall_ms(command):
    def run():
        begin = time.perf_counter()
        subprocess.run(command, check=True, **QUIET)
        return (time.perf_counter() - begin) * 1e3

    return run




def tree(pid):
    """`pid` and all its descendants, as seen now."""
    pids = [pid]
    for parent in pids:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    pids += [int(child) for child in file.read().split()]
        except FileNotFoundError:  # it has ended since its parent named it
            continue
    return pids


def program_of(pid):
    """Path of the program that `pid` runs; empty when it has just ended."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return ""


def memory_kib(pid, field):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise RuntimeError(f"no {field} for process {pid}")


def agent_memory_mib(command, workers, field):
    """Memory of all of the launcher's own processes together while its workers sleep."""

    def run():
        launcher = subprocess.Popen(command + ["sleep", "1000"], **QUIET)
        try:
            deadline = time.monotonic() + 60
            while True:
                pids = tree(launcher.pid)
                sleeping = [pid for pid in pids if program_of(pid).endswith("/sleep")]
                if len(sleeping) == workers:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]}: the workers did not start within 60 s")
                time.sleep(0.02)
            time.sleep(0.2)
            return sum(memory_kib(pid, field) for pid in pids if pid not in sleeping) / 1024
        finally:
            launcher.terminate()
            launcher.wait()

    return run


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--torchrun", default=os.path.join(measure.ROOT, ".venv/bin/torchrun"), help="the torchrun to compare with")
    options = parser.parse_args()
    print(measure.machine())
    found = launchers(options)
    results = {}
    times = measure.interleave({name: wall_ms(make(2) + ["true"]) for name, make in found.items()}, options.rounds)
    results["two_noops_ms"] = measure.report("two no-op workers, start to exit", "ms", times, "torchup")
    for field in ("Rss", "Pss"):
        memory = measure.interleave(
            {name: agent_memory_mib(make(2), 2, field) for name, make in found.items() if name != "hydra"}, min(options.rounds, 3))
        results[f"agent_{field.lower()}_mib"] = measure.report(
            f"memory of the launcher's own processes, 2 workers, {field}", "MiB", memory, "torchup")
    measure.finish(options, results)


if __name__ == "__main__":
    main()
