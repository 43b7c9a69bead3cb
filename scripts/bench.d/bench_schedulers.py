"""Jobs of several nodes where they are started: `srun torchup` beside torchrun with the usual glue and a bare srun;
`torchup --hosts` beside MPI's hydra and pdsh on hosts of a real sshd; what the front takes of memory; and, with --before, a
launch without any scheduler beside an older torchup. Slurm's daemons and the sshd are started for it, on this machine; as root."""

import os
import shutil
import signal
import statistics
import sys
import tempfile
import time

import measure
from bench_launch import QUIET, memory_kib, program_of, tree, wall_ms

sys.path[:0] = [os.path.join(measure.ROOT, "tests/cluster"), os.path.join(measure.ROOT, "tests/support")]
import slurm_cluster  # noqa: E402
import ssh_hosts  # noqa: E402
from waiting import until  # noqa: E402

WORKERS = 4           # of the Slurm job, on two nodes
HOSTS = 16            # of the ssh jobs
MANY_HOSTS = 64       # whose front is looked at
LIMIT_S = 120         # of one job

# What people put into their batch scripts.
GLUE = """exec "$0" --nnodes=$SLURM_NNODES --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d \
--rdzv-endpoint=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29500 --no-python "$@" """


def peer(name, path, source):
    """Whether that program is here; told where it is not."""
    if path and os.access(path, os.X_OK):
        return True
    print(f"{name}: not found, left out ({source})")
    return False


# ---- Slurm

def last_start_ms(cluster, *command):
    """From the start of `command` to the first instruction of the last of its workers."""
    def run():
        with tempfile.NamedTemporaryFile(mode="r", dir=cluster.folder) as stamps:
            begin = time.monotonic_ns()
            done = cluster.run(*command, "stamp", stamps.name, limit=LIMIT_S)
            times = [int(line) for line in stamps]
        if done.returncode or len(times) != WORKERS:
            raise RuntimeError(f"{command}: code {done.returncode}, {len(times)} workers\n{done.stderr}")
        return (max(times) - begin) / 1e6

    return run


def bare_ms(cluster, *command):
    def run():
        begin = time.monotonic_ns()
        done = cluster.run(*command)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return (time.monotonic_ns() - begin) / 1e6

    return run


def slurm(options, results, goals):
    if reason := slurm_cluster.why_not():
        return print(f"Slurm: left out, {reason}")
    probe = measure.program(options, "fake_worker")
    step = ("srun", "-N2", "-n2")
    with tempfile.TemporaryDirectory() as folder:
        cluster = slurm_cluster.Cluster(folder)
        try:
            if not cluster.wait_until_idle():
                return print("Slurm: left out, it does not start here")
            ours = last_start_ms(cluster, *step, measure.program(options, "torchup"), "--nproc-per-node=2", probe)
            quick = measure.interleave({"torchup": ours, "srun true, to its end": bare_ms(cluster, *step, "true")}, 2 * options.rounds)
            times = None
            if peer("torchrun", options.torchrun, "scripts/setup installs it into .venv"):
                theirs = last_start_ms(cluster, *step, "sh", "-c", GLUE, options.torchrun, probe)
                times = measure.interleave({"torchup": ours, "torchrun, glue": theirs}, min(options.rounds, 5))
        finally:
            cluster.stop()
    what = f"srun -N2 to the first instruction of the last of {WORKERS} workers"
    results["slurm_bare_ms"] = measure.report(f"{what}, beside a bare srun", "ms", quick, "torchup")
    started, bare = (statistics.median(quick[name]) for name in ("torchup", "srun true, to its end"))
    goals.at_most("srun torchup, ms after srun true", started - bare, 100)
    if times:
        results["slurm_torchrun_ms"] = measure.report(what, "ms", times, "torchup")
        started, theirs = (statistics.median(times[name]) for name in ("torchup", "torchrun, glue"))
        goals.at_least("torchrun with glue / srun torchup", theirs / started, 10)


# ---- ssh

def job_ms(hosts, *command):
    def run():
        begin = time.monotonic_ns()
        done = hosts.run(*command, limit=LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"{command}: code {done.returncode}\n{done.stderr}")
        return (time.monotonic_ns() - begin) / 1e6

    return run


def ssh(options, results, goals):
    if reason := ssh_hosts.why_not():
        return print(f"ssh: left out, {reason}")
    with ssh_hosts.SshHosts([f"h{number}" for number in range(1, HOSTS + 1)]) as hosts:
        names = ",".join(hosts.names)
        contenders = {"torchup": job_ms(hosts, measure.program(options, "torchup"), "--hosts", names, "--nproc-per-node=1", "true")}
        if peer("hydra", shutil.which("mpiexec.hydra"), "Debian package mpich"):
            contenders["hydra"] = job_ms(hosts, "mpiexec.hydra", "-launcher", "ssh", "-hosts", names, "-ppn", "1", "true")
        if peer("pdsh", shutil.which("pdsh"), "Debian package pdsh"):
            contenders["pdsh"] = job_ms(hosts, "pdsh", "-S", "-R", "ssh", "-w", names, "true")
        times = measure.interleave(contenders, options.rounds)
    results["ssh_ms"] = measure.report(f"{HOSTS} hosts by ssh, a no-op on each, start to exit", "ms", times, "torchup")
    for name, limit in (("hydra", 1.10), ("pdsh", 1.15)):
        if name in times:
            goals.at_most(f"torchup --hosts / {name}", statistics.median(times["torchup"]) / statistics.median(times[name]), limit)


def front_mib(options, hosts, program, folder):
    """Rss and Pss of the front's own processes while workers run on all hosts. The front is a copy of the program, or it
    would share pages with the agents, which are on this machine only here."""
    def run():
        front = hosts.start(program, f"--remote-torchup={measure.program(options, 'torchup')}", "--hosts", ",".join(hosts.names),
                            "--nproc-per-node=1", "sh", "-c", f"touch {folder}/$RANK; exec sleep 1000", **{**QUIET, "stderr": None})
        try:
            until(lambda: len(os.listdir(folder)) == len(hosts.names), "all workers run", LIMIT_S)
            own = [pid for pid in tree(front.pid) if program_of(pid) == program]
            return {field: sum(memory_kib(pid, field) for pid in own) / 1024 for field in ("Rss", "Pss")}
        finally:
            front.send_signal(signal.SIGTERM)
            front.wait()
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))

    return run


def memory(options, results, goals):
    if reason := ssh_hosts.why_not():
        return print(f"memory of the front: left out, {reason}")
    with ssh_hosts.SshHosts([f"h{number}" for number in range(1, MANY_HOSTS + 1)]) as hosts:
        program = shutil.copy(measure.program(options, "torchup"), hosts.folder / "torchup.front")
        hosts.work.mkdir(exist_ok=True)
        (hosts.folder / "ran").mkdir()
        runs = measure.interleave({"torchup": front_mib(options, hosts, str(program), hosts.folder / "ran")}, min(options.rounds, 2), False)
    for field in ("Rss", "Pss"):
        results[f"front_{field.lower()}_mib"] = measure.report(
            f"memory of the front's own processes, {MANY_HOSTS} hosts, {field}", "MiB",
            {name: [run[field] for run in series] for name, series in runs.items()}, "torchup", 2)
    goals.at_most(f"front's memory at {MANY_HOSTS} hosts, MiB", statistics.median(run["Pss"] for run in runs["torchup"]), 12)


# ---- no scheduler

def launch(options, results, goals):
    if not options.before:
        return print("launches without a scheduler: left out, --before BIN names a torchup to compare with")
    contenders = {name: wall_ms([binary, "--nproc-per-node=2", "true"])
                  for name, binary in (("torchup", measure.program(options, "torchup")), ("before", options.before))}
    times = measure.interleave(contenders, 40 * options.rounds)
    results["launch_ms"] = measure.report("two no-op workers without a scheduler, start to exit", "ms", times, "torchup", 2)
    goals.at_most("launch of 2 no-ops / before", statistics.median(times["torchup"]) / statistics.median(times["before"]), 1.01)


SECTIONS = {part.__name__: part for part in (slurm, ssh, memory, launch)}


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--before", help="an older torchup, whose launches are compared")
    parser.add_argument("--torchrun", default=os.path.join(measure.ROOT, ".venv/bin/torchrun"), help="the torchrun to compare with")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: whether it runs, not what to quote")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 2
    if unknown := [name for name in options.parts if name not in SECTIONS]:
        parser.error(f"no part named {unknown[0]}; there are: {', '.join(SECTIONS)}")
    print(measure.machine())
    print(f"load of the last minute before: {os.getloadavg()[0]:.1f}")
    results, goals = {}, measure.Goals()
    for name in options.parts or SECTIONS:
        SECTIONS[name](options, results, goals)
    measure.finish(options, {**results, "goals": goals.table()})


if __name__ == "__main__":
    main()
