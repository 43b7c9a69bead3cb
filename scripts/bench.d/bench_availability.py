"""What a lost coordinator costs, with real etcd on loopback: without a daemon, with two, and with one torchupd that is
started again by hand (--state-dir), which is what there is without etcd."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import measure

sys.path.insert(0, os.path.join(measure.ROOT, "tests/support"))
from etcds import Etcds, free_ports  # noqa: E402
from waiting import until  # noqa: E402

NODES = 8
LEASE_S = 3
AWAY_S = 20  # etcd, under a running job

WORKER = """import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{time.monotonic()} {os.getpid()} {os.environ['WORLD_SIZE']}\\n")
time.sleep(3600)
"""


class Job:
    """NODES launchers of one job on this machine, and what its workers say."""

    def __init__(self, torchup, folder, *options, minimum=1):
        worker = os.path.join(folder, "worker.py")
        with open(worker, "w") as file:
            file.write(WORKER)
        self.said_file = os.path.join(folder, "said")
        open(self.said_file, "w").close()
        self.nodes = [subprocess.Popen([torchup, f"--nnodes={minimum}:{NODES}", f"--lease={LEASE_S}", "--rdzv-id=bench",
                                        "--preflight=off", "--no-worker-hook", "--local-addr=127.0.0.1",
                                        "--rdzv-conf=last_call_timeout=20", *options, worker, self.said_file],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
                      for _ in range(NODES)]
        until(lambda: len(self.said()) == NODES, "all workers have started")

    def said(self):
        with open(self.said_file) as file:
            return [line.split() for line in file if line.endswith("\n")]

    def inner(self, node):
        with open(f"/proc/{node.pid}/task/{node.pid}/children") as file:
            return int(file.read().split()[0])

    def end(self):
        for node in self.nodes:
            if node.poll() is None:
                node.kill()
            node.wait()


def in_etcd(torchup, etcd, work):
    with tempfile.TemporaryDirectory() as folder:
        etcd.ctl("del", "--prefix", "/torchup")
        job = Job(torchup, folder, "--rdzv-backend=etcd", f"--rdzv-endpoint={etcd.endpoints}")
        try:
            return work(job)
        finally:
            job.end()


def holder_of(job, etcd):
    pid = etcd.seat("/torchup/job/bench")["pid"]
    return next(node for node in job.nodes if pid in (node.pid, job.inner(node)))


def killed_holder_s(torchup, etcd):
    def work(job):
        holder = holder_of(job, etcd)
        begin = time.monotonic()
        holder.kill()
        until(lambda: len(job.said()) >= NODES + NODES - 1, "the next round")
        return max(float(line[0]) for line in job.said()) - begin
    return in_etcd(torchup, etcd, work)


def stopped_holder_s(torchup, etcd):
    def work(job):
        holder = holder_of(job, etcd)
        before = etcd.seat("/torchup/job/bench")["term"]
        pids = [holder.pid, job.inner(holder)]
        begin = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: (seat := etcd.seat("/torchup/job/bench")) and seat["term"] != before, "another serves")
        took = time.monotonic() - begin
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return took
    return in_etcd(torchup, etcd, work)


def etcd_away(torchup, etcd):
    """Workers that were started anew while etcd was away, and after."""
    def work(job):
        etcd.kill()
        time.sleep(AWAY_S)
        etcd.start_again()
        time.sleep(3)
        return len(job.said()) - NODES
    return in_etcd(torchup, etcd, work)


class Daemons:
    """One torchupd at each port."""

    def __init__(self, torchupd, ports, *options):
        self.command, self.options = torchupd, options
        self.processes = {port: self.start(port) for port in ports}

    def start(self, port):
        process = subprocess.Popen([self.command, "--bind", "127.0.0.1", "--port", str(port), "--no-control-socket",
                                    *self.options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.readline()
        return process

    def ready(self, port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def nodes_at(self, port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                nodes = json.load(answer)["jobs"].get("bench", {}).get("nodes", [])
        except OSError:
            return 0
        return sum(node["state"] != "away" and "reason" not in node for node in nodes)

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()


def standby_s(torchup, torchupd, etcd):
    ports = free_ports(2)
    etcd.ctl("del", "--prefix", "/torchup")
    daemons = Daemons(torchupd, ports, "--state-etcd", etcd.endpoints)
    with tempfile.TemporaryDirectory() as folder:
        job = None
        try:
            active = until(lambda: next((port for port in ports if daemons.ready(port)), None), "one is active")
            other = next(port for port in ports if port != active)
            job = Job(torchup, folder, "--rdzv-backend=c10d",
                      "--rdzv-endpoint=" + ",".join(f"127.0.0.1:{port}" for port in ports))
            begin = time.monotonic()
            daemons.processes[active].kill()
            until(lambda: daemons.nodes_at(other) == NODES, "all agents are at the other one")
            took = time.monotonic() - begin
            if len(job.said()) != NODES:
                raise RuntimeError("a worker was restarted")
            return took
        finally:
            if job:
                job.end()
            daemons.end()


def by_hand_s(torchup, torchupd):
    """Killed, and at once started again on the same machine."""
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory() as folder:
        daemons = Daemons(torchupd, [port], "--state-dir", os.path.join(folder, "state"))
        job = None
        try:
            job = Job(torchup, folder, "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0")
            begin = time.monotonic()
            daemons.processes[port].kill()
            daemons.processes[port].wait()
            daemons.processes[port] = daemons.start(port)
            until(lambda: daemons.nodes_at(port) == NODES, "all agents are back")
            return time.monotonic() - begin
        finally:
            if job:
                job.end()
            daemons.end()


def main():
    options = measure.arguments(__doc__).parse_args()
    torchup, torchupd = measure.program(options, "torchup"), measure.program(options, "torchupd")
    print(f"{measure.machine()}; {NODES} nodes on it, lease {LEASE_S} s")
    etcd = Etcds(3)
    try:
        values = measure.interleave({"no daemon: holder killed": lambda: killed_holder_s(torchup, etcd),
                                     "two daemons: active killed": lambda: standby_s(torchup, torchupd, etcd),
                                     "one, started again": lambda: by_hand_s(torchup, torchupd),
                                     "no daemon: holder stopped": lambda: stopped_holder_s(torchup, etcd)},
                                    options.rounds, warm=False)
        away = etcd_away(torchup, etcd)
    finally:
        etcd.close()
    result = measure.report("until the job is whole again (torchrun: its host's loss ends the job)", "s", values,
                            "no daemon: holder killed", digits=2)
    median = {name: statistics.median(series) for name, series in values.items()}
    goals = measure.goals([
        ("two daemons, active killed: all agents there again <= 1 s", f"{median['two daemons: active killed']:.2f} s",
         median["two daemons: active killed"] <= 1),
        ("no daemon, holder killed: next round <= 1 s + workers' start", f"{median['no daemon: holder killed']:.2f} s",
         median["no daemon: holder killed"] <= 1.5),
        (f"silent holder: another serves <= {LEASE_S + 1} s", f"{median['no daemon: holder stopped']:.2f} s",
         median["no daemon: holder stopped"] <= LEASE_S + 1),
        (f"etcd away for {AWAY_S} s: 0 workers restarted", str(away), away == 0)])
    measure.finish(options, {"whole_again": result, "goals": goals})


if __name__ == "__main__":
    main()
