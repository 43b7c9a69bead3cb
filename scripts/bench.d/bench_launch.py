"""Launching workers: torchup beside the real torchrun and MPI's hydra, in one run."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import measure

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}


def launchers(options):
    """Name to the command line that comes before the worker program, for `workers` workers."""
    found = {"torchup": lambda workers: [measure.program(options, "torchup"), f"--nproc-per-node={workers}"]}
    if options.also:
        found["also"] = lambda workers: [options.also, f"--nproc-per-node={workers}"]
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


def cpu_ms(command):
    """Of the launcher and all that it starts."""

    def run():
        launcher = subprocess.Popen(command, **QUIET)
        _, status, used = os.wait4(launcher.pid, 0)
        launcher.returncode = os.waitstatus_to_exitcode(status)
        if launcher.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {launcher.returncode}")
        return (used.ru_utime + used.ru_stime) * 1e3

    return run


def restart_ms(command, probe, restarts):
    """From the last instruction of a failing worker to the first of its replacement: median over the restarts of one job."""

    def run():
        with tempfile.NamedTemporaryFile(mode="r") as stamps:
            subprocess.run([*command, f"--max-restarts={restarts}", *(probe, "stamp", stamps.name, "stamp", stamps.name, "exit", "3")],
                           **QUIET)
            times = [int(line) for line in stamps]
        if len(times) != 2 * (restarts + 1):
            raise RuntimeError(f"{command[0]}: {len(times)} stamps of {restarts} restarts")
        return statistics.median(begin - end for end, begin in zip(times[1::2], times[2::2])) / 1e6

    return run


def restart_row(options, found, results):
    probe = measure.program(options, "fake_worker")
    contenders = {name: restart_ms(make(1), probe, 20) for name, make in found.items() if name != "hydra"}
    if "torchrun" in found:
        contenders["torchrun, 10 ms polls"] = restart_ms([*found["torchrun"](1), "--monitor-interval=0.01"], probe, 20)
    times = measure.interleave(contenders, min(options.rounds, 3), warm=not options.quick)
    results["restart_ms"] = measure.report("worker exit to replacement's first instruction, p50 of 20 restarts", "ms", times, "torchup", 2)


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


def agent_memory_mib(command, workers):
    """Rss and Pss of all of the launcher's own processes together while its workers sleep."""

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
            time.sleep(2)  # torchup keeps for one what only its start has needed
            own = [pid for pid in pids if pid not in sleeping]
            return {field: sum(memory_kib(pid, field) for pid in own) / 1024 for field in ("Rss", "Pss")}
        finally:
            launcher.terminate()
            launcher.wait()

    return run


def tee(command, probe, ranks, lines, per_second=0):
    """Teed stdout of `ranks` workers with `lines` lines of 100 bytes each: wall time, delays, the launcher's own CPU time."""
    logs = tempfile.mkdtemp(prefix="bench_tee_")
    try:
        worker = [probe, "write", str(lines)] + ([str(per_second)] if per_second else [])
        begin = time.perf_counter()
        launcher = subprocess.Popen([*command, "--tee=1", f"--log-dir={logs}", *worker], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        reader = subprocess.Popen([probe, "read", str(ranks), str(lines)], stdin=launcher.stdout, stdout=subprocess.PIPE)
        launcher.stdout.close()
        _, status, used = os.wait4(launcher.pid, 0)
        launcher.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
        seen = json.loads(reader.communicate()[0])
        if launcher.returncode != 0 or seen["lines"] != ranks * lines:
            raise RuntimeError(f"{command[0]}: code {launcher.returncode}, {seen}")
        cpu_s = used.ru_utime + used.ru_stime - seen["writers_cpu_s"]
        return {**seen, "seconds": seconds, "cpu_s_per_million_lines": cpu_s / (ranks * lines) * 1e6}
    finally:
        shutil.rmtree(logs, ignore_errors=True)


def column(runs, field):
    return {name: [run[field] for run in series] for name, series in runs.items()}


def tee_rows(options, found, results):
    """The rows on output; a torn or missing line is no slow run but an error (torchrun's too: `wrong` counts them)."""
    probe = measure.program(options, "tee_probe")
    names = [name for name in found if name != "hydra"]
    rounds = 1 if options.quick else min(options.rounds, 3)
    warm = not options.quick
    floods = measure.interleave({name: lambda name=name: tee(found[name](64), probe, 64, 20_000) for name in names}, rounds, warm)
    results["tee_s"] = measure.report("tee: 64 ranks x 20,000 lines of 100 bytes, whole job", "s", column(floods, "seconds"), "torchup", 2)
    results["tee_cpu"] = measure.report("  launcher's own CPU time per million lines", "s", column(floods, "cpu_s_per_million_lines"), "torchup", 2)
    results["tee_flood_p50_ms"] = measure.report("  delay of a line in that flood, p50", "ms", column(floods, "p50_ms"), "torchup", 2)
    results["tee_flood_p99_ms"] = measure.report("  delay of a line in that flood, p99", "ms", column(floods, "p99_ms"), "torchup", 2)
    results["tee_wrong"] = measure.report("  lines torn, lost or out of order", "lines", column(floods, "wrong"), "torchup", 0)
    paced = measure.interleave({name: lambda name=name: tee(found[name](64), probe, 64, 300, 100) for name in names}, rounds, warm)
    results["tee_p99_ms"] = measure.report("delay of a line, p99: 64 ranks x 100 lines a second", "ms", column(paced, "p99_ms"), "torchup", 2)


def ratio_row(goal, results, key, peer, least):
    """`goal` holds when the peer's median is at least `least` times ours; the least times are shown too, which others'
    load on the machine disturbs less."""
    rows = results[key]["rows"]
    if peer not in rows:
        return goal, f"no {peer}", None
    ratios = [rows[peer][field] / rows["torchup"][field] for field in ("median", "min")]
    return goal, f"{ratios[0]:.2f} x (least times: {ratios[1]:.2f} x)", ratios[0] >= least


def value_row(goal, results, key, unit, holds):
    row = results[key]["rows"]["torchup"]
    return goal, f"{row['median']:.2f} {unit} ({row['min']:.2f} to {row['max']:.2f})", holds(row["median"])


def also_row(goal, results, key, most):
    """The other torchup's median, as a multiple of ours."""
    ratio = results[key]["rows"]["also"]["ratio_to_ours"]
    return f"{goal}: {most} x at most", f"{ratio:.2f} x", ratio <= most


def also_rows(results):
    return [also_row("the other torchup, 2 no-op workers, CPU time", results, "two_noops_cpu_ms", 1.05),
            also_row("  PSS with 8 workers", results, "agent_pss_mib", 1.10),
            also_row("  worker exit to its replacement", results, "restart_ms", 1.1)]


def goal_rows(results):
    flood = results["tee_wrong"]["rows"]["torchup"]
    return [
        ratio_row("2 no-op workers: no slower than hydra", results, "two_noops_hydra_ms", "hydra", 1),
        ratio_row("2 no-op workers: 300 x torchrun", results, "two_noops_ms", "torchrun", 300),
        ratio_row("256 no-op workers: 15 x torchrun", results, "noops_256_ms", "torchrun", 15),
        ratio_row("256 no-op workers: 1.3 x hydra", results, "noops_256_ms", "hydra", 1.3),
        value_row("worker exit to its replacement, p50: 2 ms at most", results, "restart_ms", "ms", lambda ms: ms <= 2),
        value_row("PSS of the launcher with 8 workers: 6 MB at most", results, "agent_pss_mib", "MiB", lambda mib: mib * 2**20 <= 6e6),
        ratio_row("tee, 64 ranks x 20,000 lines: 8 x torchrun", results, "tee_s", "torchrun", 8),
        value_row("  delay of a line in that flood, p99: below 10 ms", results, "tee_flood_p99_ms", "ms", lambda ms: ms < 10),
        ("  no line torn, lost or out of order", f"{flood['max']:.0f} lines", flood["max"] == 0),
        value_row("  the launcher's CPU time per million lines: reported", results, "tee_cpu", "s", lambda s: True),
    ]


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--torchrun", default=os.path.join(measure.ROOT, ".venv/bin/torchrun"), help="the torchrun to compare with")
    parser.add_argument("--also", metavar="PROGRAM", type=os.path.abspath,
                        help="another torchup, as that of scripts/release, which is held against this build's")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: below four minutes")
    options = parser.parse_args()
    if options.quick:
        options.rounds = min(options.rounds, 3)
    print(measure.machine())
    print(f"load of the last minute before: {os.getloadavg()[0]:.1f}")
    found = launchers(options)
    results = {}
    times = measure.interleave({name: wall_ms(make(2) + ["true"]) for name, make in found.items()}, options.rounds)
    results["two_noops_ms"] = measure.report("two no-op workers, start to exit", "ms", times, "torchup", 2)
    fast = {name: wall_ms(make(2) + ["true"]) for name, make in found.items() if name != "torchrun"}
    times = measure.interleave(fast, 20 * options.rounds)
    results["two_noops_hydra_ms"] = measure.report("two no-op workers, the fast ones alone, in turn", "ms", times, "torchup", 2)
    if options.also:
        both = {name: cpu_ms(found[name](2) + ["true"]) for name in ("torchup", "also")}
        times = measure.interleave(both, 20 * options.rounds)
        results["two_noops_cpu_ms"] = measure.report("two no-op workers, CPU time", "ms", times, "torchup", 2)
    times = measure.interleave({name: wall_ms(make(256) + ["true"]) for name, make in found.items()}, min(options.rounds, 5))
    results["noops_256_ms"] = measure.report("256 no-op workers, start to exit", "ms", times, "torchup")
    restart_row(options, found, results)
    memory = measure.interleave({name: agent_memory_mib(make(8), 8) for name, make in found.items() if name != "hydra"},
                                min(options.rounds, 3), warm=False)
    for field in ("Rss", "Pss"):
        results[f"agent_{field.lower()}_mib"] = measure.report(
            f"memory of the launcher's own processes, 8 workers, {field}", "MiB", column(memory, field), "torchup", 2)
    tee_rows(options, found, results)
    results["goals"] = measure.goals(goal_rows(results) + (also_rows(results) if options.also else []))
    measure.finish(options, results)


if __name__ == "__main__":
    main()
