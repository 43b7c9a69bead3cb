"""Agents that join one job at once: time until all are placed, and the bytes of one join; and the time from the loss of
one of them to the new places of all others.

torchup: a torchupd and one load generator on real sockets. The peer: torchrun's own rendezvous handlers, one thread and
one store connection each, in one Python process with one store, which spares them the start of as many interpreters.

torchupd and the generator have a processor each, as if they were two machines: left alone, the scheduler wakes the reader
on the writer's processor and lets the other one idle.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time

import measure

# A torchupd without memory begins no job before the agents of a running one could have dialled: 2 s after its own start,
# once in its life, and no part of what is measured here.
FIRST_WAIT = 2.1
TORCHRUN = r"""
import os, socket, struct, sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout
agents = int(sys.argv[1])
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
handlers = []
for number in range(agents):
    client = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
    handlers.append(DynamicRendezvousHandler.from_backend("load", client, C10dRendezvousBackend(client, "load"), agents, agents,
        local_addr="127.0.0.1", timeout=RendezvousTimeout(timedelta(seconds=120))))
done = []
def join(handler):
    handler.next_rendezvous()
    done.append(time.monotonic())
threads = [threading.Thread(target=join, args=(handler,), daemon=True) for handler in handlers]
begin = time.monotonic()
for thread in threads: thread.start()
for thread in threads: thread.join(120)
moved = [0, 0]  # sent and received by the handlers, as the kernel counts a connection's bytes
for name in os.listdir("/proc/self/fd"):
    try:
        connection = socket.socket(fileno=os.dup(int(name)))
        if connection.getpeername()[1] != store.port: continue
        counts = struct.unpack_from("QQ", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 120)
    except OSError:
        continue
    moved = [total + count for total, count in zip(moved, counts)]
print(max(done) - begin if len(done) == agents else "nan", *(total / agents for total in moved), flush=True)
os._exit(0)
"""


def on_processor(number):
    """What a child does before its program: it binds itself to one of the processors that we have."""
    ours = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {ours[number % len(ours)]})


def torchup(build, agents, *losses):
    daemon = subprocess.Popen([os.path.join(build, "bin/torchupd"), "--bind", "127.0.0.1", "--port", "0"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=on_processor(0))
    try:
        port = daemon.stdout.readline().strip().rsplit(":", 1)[1]
        time.sleep(FIRST_WAIT)
        load = [os.path.join(build, "bin/agents_load"), "127.0.0.1", port, str(agents), "8", *map(str, losses)]
        ran = subprocess.run(load, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=on_processor(1))
        return json.loads(ran.stdout)
    finally:
        daemon.kill()
        daemon.wait()


def torchrun(python, agents):
    """Seconds, and the bytes that one handler sent and received; NaN when they did not come together."""
    try:
        ran = subprocess.run([python, "-I", "-c", TORCHRUN, str(agents)], stdout=subprocess.PIPE, text=True, timeout=200)
    except subprocess.TimeoutExpired:
        return math.nan, math.nan, math.nan
    if ran.returncode:
        sys.exit(f"bench: {python} could not run torchrun's handlers")
    return tuple(map(float, ran.stdout.split()[-3:]))


def exponent(points):
    """Of the power of x with which y grows: the slope of the line through the logarithms."""
    xs, ys = zip(*[(math.log(x), math.log(y)) for x, y in points])
    count = len(points)
    return (count * sum(x * y for x, y in zip(xs, ys)) - sum(xs) * sum(ys)) / (count * sum(x * x for x in xs) - sum(xs) ** 2)


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--agents", default="100,1000,12500", help="numbers of torchup agents (default 100,1000,12500)")
    parser.add_argument("--torchrun-agents", default="8,32,64", help="numbers of torchrun handlers (default 8,32,64)")
    parser.add_argument("--python", default=os.path.join(measure.ROOT, ".venv/bin/python"), help="a Python with torch")
    options = parser.parse_args()
    for program in ("torchupd", "agents_load"):
        if not os.path.exists(os.path.join(options.build, "bin", program)):
            sys.exit(f"bench: {options.build}/bin/{program} is missing: build it first")
    print(measure.machine())
    results, goals = {}, measure.Goals()
    # First: what 12,500 closed connections leave behind in the kernel takes its time for a minute.
    for how, title, limit in (("end", "1,000 agents, one's connection ends: all others placed again", 20),
                              ("silence", "1,000 agents, one falls silent, lease 1 s: all others placed again", 1200)):
        lost = torchup(options.build, 1000, how, 3 * options.rounds if how == "end" else options.rounds)["losses"]
        times = {"torchup": [1000 * seconds for seconds in lost]}
        results[f"lost by {how}"] = measure.report(title, "ms", times, "torchup")
        goals.at_most(f"{title} [ms]", statistics.median(times["torchup"]), limit)
    join_bytes = {}
    for agents in map(int, options.agents.split(",")):
        runs = [torchup(options.build, agents) for _ in range(options.rounds)]
        times = {"torchup": [1000 * run["seconds"] for run in runs]}
        results[f"torchup {agents}"] = measure.report(f"{agents} agents, {runs[0]['ranks']} ranks, placed", "ms", times, "torchup")
        print(f"  one join: {runs[0]['sent_bytes'] / agents:.0f} bytes sent, {runs[0]['received_bytes'] / agents:.0f} received")
        results[f"torchup {agents}"]["bytes"] = [runs[0]["sent_bytes"] / agents, runs[0]["received_bytes"] / agents]
        join_bytes[agents] = (runs[0]["sent_bytes"] + runs[0]["received_bytes"]) / agents
        if agents == 12500:
            goals.at_most("12,500 agents placed [ms]", statistics.median(times["torchup"]), 1000)
    if len(join_bytes) > 1:
        growth = max(join_bytes.values()) / min(join_bytes.values())
        goals.at_most(f"bytes of a join, most / least of {options.agents} agents", growth, 1.01)

    times_of, bytes_of = [], []
    if not os.path.exists(options.python):
        print(f"\ntorchrun: left out, {options.python} is missing (--python names another)")
        options.torchrun_agents = ""
    for agents in map(int, filter(None, options.torchrun_agents.split(","))):
        theirs = [torchrun(options.python, agents) for _ in range(min(options.rounds, 3))]
        ours = [torchup(options.build, agents)["seconds"] for _ in theirs]
        times = {"torchup": ours, "torchrun": [run[0] for run in theirs]}
        result = results[f"torchrun {agents}"] = measure.report(f"{agents} agents placed", "s", times, "torchup", digits=3)
        if any(map(math.isnan, times["torchrun"])):
            print("  torchrun's handlers did not all come together within 120 s")
            continue
        result["bytes"] = [statistics.median(column) for column in list(zip(*theirs))[1:]]
        print("  one join of torchrun's: {:,.0f} bytes sent, {:,.0f} received".format(*result["bytes"]))
        times_of.append((agents, result["rows"]["torchrun"]["median"]))
        bytes_of.append((agents, sum(result["bytes"])))
    if len(times_of) > 1:
        results["torchrun exponents"] = {"time": exponent(times_of), "bytes": exponent(bytes_of)}
        print("\nwith the number of agents torchrun's time grows to the power of {time:.2f}, the bytes of one of its joins to the "
              "power of {bytes:.2f}".format(**results["torchrun exponents"]))
    results["goals"] = goals.table()
    measure.finish(options, results)


if __name__ == "__main__":
    main()
