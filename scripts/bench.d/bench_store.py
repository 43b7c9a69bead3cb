#!/usr/bin/env python3
"""torchupd's store against PyTorch's libuv server, Redis and the bare loop.

One client process and one server process, each pinned to its own CPU; closed loop, one request under way per
connection; contenders take turns within every round; medians. CPU per request is the server process's user and system
time. "floor" is the least an epoll server can do (scripts/bench.d/bench_store_floor.cpp); where it never sleeps it shows
the most that any server can give a client. At the end stands which of the project's goals the numbers meet: a ratio is
the median of the rounds' ratios, so that a disturbance that lasts longer than a round touches both sides alike.

One CPU of clients is about all that one CPU of server can serve: on loopback each side's kernel does a part of the
other's work, and whoever lets requests lie for 40 ms has acknowledgements sent for them, at the other's cost. With both
CPUs full it is the load that is measured. So something else takes a share of the server's CPU, the same for every
contender, and it is the server that is waited for, as where its clients have a cluster of CPUs. How busy the load's own
CPU is stands beside the rates.

PyTorch's server looks up the name of every peer; so that the resolver is not what is measured, it gets a hosts file in
which the peer is named (a mount namespace, needs root); without root its start-up stalls are part of its numbers.
"""
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import measure

TORCH_SERVER = """
import datetime, sys, time
import torch.distributed as dist
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print("ready on 127.0.0.1:%d" % store.port, flush=True)
time.sleep(100000)
"""

TORCH_CLIENT = """
import datetime, sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
for _ in range(2000): store.add("bench/0", 1)
print("warm", flush=True)
begin, spent, calls = time.perf_counter(), time.process_time(), 0
while calls % 256 or time.perf_counter() - begin < float(sys.argv[2]):
    store.add("bench/0", 1)
    calls += 1
print('{"per_second": %f, "client_cpu_us": %f}' % (calls / (time.perf_counter() - begin), 1e6 * (time.process_time() - spent) / calls))
"""


# Of the server's CPU in the closed loops, what is taken from it.
SHARE_TAKEN = 0.4


def cpu_s(pid):
    """Of all threads of a process, to the nanosecond (stat counts in ticks of 10 ms)."""
    spent = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat") as schedstat:
                spent += int(schedstat.read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
    return 1e-9 * spent


class Server:
    def __init__(self, name, command, port=None):
        self.name = name
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = port
        if port is None:
            line = self.process.stdout.readline()
            assert "ready on" in line, (command, line)
            self.port = int(line.rsplit(":", 1)[1])
        self.pid = self.process.pid

    def cpu_s(self):
        return cpu_s(self.pid)

    def memory(self):
        """Private memory in bytes."""
        with open(f"/proc/{self.pid}/smaps_rollup") as rollup:
            return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_"))

    def stop(self):
        self.process.kill()
        self.process.wait()


class Bench:
    def __init__(self, options):
        self.options = options
        cpus = sorted(os.sched_getaffinity(0))
        self.server_cpu, self.client_cpu = cpus[0], cpus[-1]
        self.python = options.python or next(
            (path for path in (os.path.join(measure.ROOT, ".venv/bin/python"), shutil.which("python3")) if path and os.path.exists(path)), None)
        self.load = measure.program(options, "bench_store_load")
        self.warm_up = 0 if options.quick else 1  # rounds that are not counted
        self.goals = measure.Goals()

    def on_cpu(self, cpu, command, priority=5):
        first = ["chrt", "--rr", str(priority)] if self.options.realtime else []
        return [*first, "taskset", "-c", str(cpu), *command]

    def start(self, name):
        if name == "torchup":
            command = [measure.program(self.options, "torchupd"), "--port", "0", "--bind", "127.0.0.1", "--max-connections", "30000"]
        elif name in ("floor", "floor awake"):
            command = [measure.program(self.options, "bench_store_floor"), *name.split()[1:]]
        elif name == "redis":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            server = Server(name, self.on_cpu(self.server_cpu, ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no",
                            "--maxclients", "30000", "--tcp-backlog", "4096", "--protected-mode", "no"]), port)
            for _ in range(200):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    return server
                except OSError:
                    time.sleep(0.05)
            raise RuntimeError("redis-server did not start")
        else:
            command = [self.python, "-c", TORCH_SERVER]
            if os.geteuid() == 0:
                hosts = tempfile.NamedTemporaryFile("w", prefix="hosts", delete=False)
                hosts.write("127.0.0.1 localhost\n::1 localhost\n::ffff:127.0.0.1 localhost\n")
                hosts.close()
                command = ["unshare", "-m", "sh", "-c", f'mount --bind {hosts.name} /etc/hosts && exec "$@"', "sh", *command]
        return Server(name, self.on_cpu(self.server_cpu, command))

    # The goals.

    @staticmethod
    def ratio(values, ours, peer):
        if not values.get(ours) or not values.get(peer):
            return None
        return statistics.median(a / b for a, b in zip(values[ours], values[peer]))

    def at_least(self, what, values, ours, peer, least):
        if (ratio := self.ratio(values, ours, peer)) is not None:
            self.goals.at_least(what, ratio, least)

    def at_most(self, what, values, ours, peer, most):
        if (ratio := self.ratio(values, ours, peer)) is not None:
            self.goals.at_most(what, ratio, most)

    def contenders(self):
        names = ["torchup", "floor"]
        if subprocess.run([self.python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0:
            names.append("pytorch")
        else:
            print(f"left out: pytorch ({self.python} has no torch)")
        if shutil.which("redis-server"):
            names.append("redis")
        else:
            print("left out: redis (apt-get install redis-server)")
        return names

    def measure(self, server, command, duration):
        """Runs a load; returns what it printed and the server's CPU per request in microseconds."""
        client = subprocess.Popen(self.on_cpu(self.client_cpu, command), stdout=subprocess.PIPE, text=True)
        before = None
        for line in client.stdout:
            if line == "warm\n":
                before, load_before, begin = server.cpu_s(), cpu_s(client.pid), time.perf_counter()
            elif line.startswith("{"):
                spent, load_spent = server.cpu_s() - (before or 0), cpu_s(client.pid) - load_before
                passed = time.perf_counter() - begin
                result = json.loads(line)
        if client.wait() != 0:
            raise RuntimeError(f"{server.name}: load {command} failed")
        result["cpu_us"] = 1e6 * spent / (result["per_second"] * passed)
        result["load_busy"] = load_spent / passed
        return result

    def closed_loop(self, connections, names):
        taker = subprocess.Popen(self.on_cpu(self.server_cpu, [self.load, "take", str(SHARE_TAKEN)], priority=6))
        try:
            return self.closed_loop_beside_taker(connections, names)
        finally:
            taker.kill()
            taker.wait()

    def closed_loop_beside_taker(self, connections, names):
        seconds = self.options.seconds
        rates, costs, busy = ({name: [] for name in names} for _ in range(3))
        for turn in range(self.options.rounds + self.warm_up):
            for name in names:
                server = self.start(name)
                try:
                    result = self.measure(server, [self.load, "incr" if name == "redis" else "add", str(server.port), str(connections), str(seconds)], seconds)
                finally:
                    server.stop()
                if turn >= self.warm_up:
                    rates[name].append(result["per_second"] / 1000)
                    costs[name].append(result["cpu_us"])
                    busy[name].append(result["load_busy"])
        where = f"{connections} connections"
        for peer, least in (("pytorch", 1.15), ("redis", 1.05)):
            self.at_least(f"{where}: ADD, of {peer}'s rate", rates, "torchup", peer, least)
        for peer, most in (("pytorch", 0.87), ("floor", 1.08)):
            self.at_most(f"{where}: server CPU per ADD, of {peer}'s", costs, "torchup", peer, most)
        return {"rate": measure.report(f"ADD, {connections} connections on {1 - SHARE_TAKEN:.1f} of a CPU", "thousand per second", rates, "torchup"),
                "cpu": measure.report(f"server CPU per ADD, {connections} connections", "microseconds", costs, "torchup", 2),
                "load_busy": measure.report(f"the load's CPU, {connections} connections", "of it busy", busy, "torchup", 2)}

    def one_connection(self):
        seconds = self.options.seconds
        torch_client = [self.python, "-c", TORCH_CLIENT]
        runs = {"pytorch client, torchup": ("torchup", torch_client), "pytorch client, pytorch": ("pytorch", torch_client),
                "pytorch client, floor awake": ("floor awake", torch_client),
                "our client, torchup": ("torchup", None), "our client, pytorch": ("pytorch", None)}
        rates, client_cpu = {name: [] for name in runs}, {name: [] for name in runs if name.startswith("pytorch client")}
        for turn in range(self.options.rounds + self.warm_up):
            for name, (server_name, client) in runs.items():
                server = self.start(server_name)
                try:
                    port = str(server.port)
                    command = [*client, port, str(seconds)] if client else [self.load, "client", port, "1", str(seconds)]
                    result = self.measure(server, command, seconds)
                finally:
                    server.stop()
                if turn >= self.warm_up:
                    rates[name].append(result["per_second"] / 1000)
                    if name in client_cpu:
                        client_cpu[name].append(result["client_cpu_us"])
        self.at_least("1 connection, PyTorch's client: ADD, of pytorch's rate", rates, "pytorch client, torchup", "pytorch client, pytorch", 1.5)
        self.at_least("1 connection, our client: ADD, of pytorch's rate with its own", rates, "our client, torchup", "pytorch client, pytorch", 4)
        return {"rate": measure.report("ADD, one connection", "thousand per second", rates, "pytorch client, pytorch"),
                "client_cpu": measure.report("PyTorch's client alone: its CPU per ADD", "microseconds", client_cpu, "pytorch client, pytorch")}

    def idle(self, names):
        rates = {}
        names = [name for name in names if name in ("torchup", "pytorch")]
        for turn in range(self.options.rounds + self.warm_up):
            for name in names:
                for idle in (0, 10000):
                    server = self.start(name)
                    try:
                        result = self.measure(server, [self.load, "idle", str(server.port), str(idle), str(self.options.seconds)], 0)
                    finally:
                        server.stop()
                    if turn >= self.warm_up:
                        rates.setdefault(f"{name}, {idle} idle", []).append(result["per_second"] / 1000)
        self.at_least("1 active connection beside 10,000 idle: of its rate alone", rates, "torchup, 10000 idle", "torchup, 0 idle", 0.9)
        return measure.report("ADD on one connection beside idle ones", "thousand per second", rates, "torchup, 0 idle")

    def storm(self, names):
        clients = 12500
        connect, barrier, memory = {}, {}, {}
        for turn in range(self.options.rounds + self.warm_up):
            for name in names:
                if name in ("redis", "floor"):
                    continue
                server = self.start(name)
                try:
                    empty = server.memory()
                    load = subprocess.Popen(self.on_cpu(self.client_cpu, [self.load, "storm", str(server.port), str(clients)]),
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    if load.stdout.readline() != "connected\n":
                        raise RuntimeError(f"{name}: storm failed")
                    per_client = (server.memory() - empty) / clients
                    out, _ = load.communicate("\n")
                    result = json.loads(out)
                finally:
                    server.stop()
                if turn >= self.warm_up:
                    connect.setdefault(name, []).append(1000 * result["connect_s"])
                    barrier.setdefault(name, []).append(1000 * result["barrier_s"])
                    memory.setdefault(name, []).append(per_client)
        self.goals.at_most(f"{clients} clients connect, ms", statistics.median(connect["torchup"]), 500)
        self.goals.at_most(f"{clients} clients meet at a barrier, ms", statistics.median(barrier["torchup"]), 250)
        self.goals.at_most("memory per idle connection, bytes", statistics.median(memory["torchup"]), 4096)
        return {"connect": measure.report(f"{clients} clients connect at once", "milliseconds until all have their PING", connect, "torchup"),
                "barrier": measure.report(f"{clients} clients meet at a barrier", "milliseconds", barrier, "torchup"),
                "memory": measure.report("memory per idle connection", "bytes of the server's own memory", memory, "torchup")}

    def values(self, names):
        sets, gets = {}, {}
        for turn in range(self.options.rounds + self.warm_up):
            for name in names:
                if name in ("redis", "floor"):
                    continue
                server = self.start(name)
                try:
                    command = self.on_cpu(self.client_cpu, [self.load, "values", str(server.port), "1", str(self.options.seconds)])
                    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                finally:
                    server.stop()
                if turn >= self.warm_up:
                    sets.setdefault(name, []).append(result["set_gb_per_s"])
                    gets.setdefault(name, []).append(result["get_gb_per_s"])
        self.at_least("values of 8 MiB: MULTI_SET, of pytorch's rate", sets, "torchup", "pytorch", 1)
        self.at_least("values of 8 MiB: MULTI_GET, of pytorch's rate", gets, "torchup", "pytorch", 1)
        return {"set": measure.report("MULTI_SET of four values of 8 MiB", "GB per second", sets, "torchup", 2),
                "get": measure.report("MULTI_GET of four values of 8 MiB", "GB per second", gets, "torchup", 2)}


def main():
    parser = measure.arguments(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement (default 2)")
    parser.add_argument("--python", help="a Python that has torch (default .venv)")
    parser.add_argument("--realtime", action="store_true", help="run both sides before everything else on this machine (root); "
                        "for one that has other work, which would otherwise be measured too")
    parser.add_argument("--only", nargs="+", help="one, 50, 1000, 9900, idle, storm, values (default: all)")
    parser.add_argument("--quick", action="store_true", help="three rounds of 0.6 s, without one to warm up: some minutes instead of half an hour")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 3, 0.6
    build = subprocess.run(["cmake", "--build", options.build, "--target", "bench_store_load", "bench_store_floor", "torchupd"],
                           capture_output=True, text=True)
    if build.returncode != 0:
        sys.exit(f"bench: the load does not build:\n{build.stdout[-2000:]}")
    print(measure.machine())
    bench = Bench(options)
    names = bench.contenders()
    parts = {"one": bench.one_connection, **{str(n): (lambda n=n: bench.closed_loop(n, names)) for n in (50, 1000, 9900)},
             "idle": lambda: bench.idle(names), "storm": lambda: bench.storm(names), "values": lambda: bench.values(names)}
    results = {}
    for name, part in parts.items():
        if options.only and name not in options.only:
            continue
        if name == "one" and "pytorch" not in names:
            continue
        results[name] = part()
    results["goals"] = bench.goals.table()
    measure.finish(options, results)


main()
