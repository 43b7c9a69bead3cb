"""How long a job of real torchrun agents and ours is without workers: from each fault to the last worker of the next round.

PROGRAM LAUNCHER TORCHUPD [HOST [KIND]]: HOST is torchupd, torchup or torchrun, KIND is what comes and goes, torchup or
torchrun; default: all. Workers are shell scripts that say when they start, so that no start of Python is in the times, and
talk to nobody, so that agents learn of a change from each other alone: with workers that notice it is quicker. One line for
each fault, with the nodes' restart counts; of a torchrun agent that joins, Python's start is left out. Not a test: torchrun's
own waiting is in the times, and a disk that stalls is too (TMPDIR=/dev/shm).
"""

import os
import signal
import sys
import time
from pathlib import Path

from cluster import wait_for
from mixed_job import LIMIT, MixedCluster

WORKER = """#!/bin/sh
echo "{\\"time\\": $(date +%s.%N), \\"pid\\": $$, \\"host\\": \\"$(hostname)\\", \\"rank\\": $RANK, \\"world\\": $WORLD_SIZE,\
 \\"group_rank\\": $GROUP_RANK, \\"restarts\\": $TORCHELASTIC_RESTART_COUNT, \\"master\\": \\"$MASTER_PORT\\"}" >> $1
exec sleep 1000
"""
LAST_CALL_S = 1


class TimedCluster(MixedCluster):
    def start(self, kind, node, host):
        script = self.dir / "worker"
        if not script.exists():
            script.write_text(WORKER)
            script.chmod(0o755)
        options = self._options(node, "2:3", host, 1000, 1)
        options[-1] = options[-1].replace("last_call_timeout=2", f"last_call_timeout={LAST_CALL_S}") + f",is_host={str(node == host).lower()}"
        own = [self.python, Path(__file__).with_name("timed_torchrun.py"), self.dir / f"joins.{node}"]
        program = own if kind == "torchrun" else [self.launcher]
        return self._begin(kind, node, [*program, *options, "--no-python", script, self.log])

    def joined_at(self, agent):
        """When a torchrun agent asked for its place, which is seconds after it was started."""
        file = self.dir / f"joins.{agent.node}"
        wait_for("torchrun's start", lambda: file.exists() and file.read_text(), LIMIT)
        text = file.read_text()
        file.unlink()
        return float(text)

    def round_after(self, since, world):
        def last_of_round():
            entries = [entry for entry in self.started()[since:] if entry["world"] == world]
            return entries[:world] if {entry["rank"] for entry in entries} == set(range(world)) else None

        entries = wait_for(f"a round of {world}", last_of_round, LIMIT)
        time.sleep(2.5)  # a second round, if there is one, comes within torchrun's polls
        return max(entry["time"] for entry in entries), len(self.started()) - since - world


def measure(programs, host, kind):
    """Two nodes, one of each kind, and a third one of `kind`, which joins, loses a worker, leaves, joins and is killed."""
    with TimedCluster(programs[0], 4) as cluster:
        kinds = ["torchrun", "torchup"] if host == "torchrun" else ["torchup", "torchrun"]
        server = 3 if host == "torchupd" else 0
        if host == "torchupd":
            cluster.daemon(server, programs[1])
        for node in range(2):
            cluster.start(kinds[node], node, server)
            wait_for("the endpoint", lambda: cluster.port_open(server, 29400), LIMIT)
        cluster.round_after(0, 2)

        def report(fault, at, world, since):
            last, extra = cluster.round_after(since, world)
            restarts = {entry["host"]: entry["restarts"] for entry in cluster.started()[-world:]}
            print(f"{host:9} {kind:9} {fault:22} {last - at:5.2f} s" + (f"  and {extra} starts more" if extra else ""),
                  f" restarts {sorted(restarts.values())}", flush=True)

        def join(fault):
            since, at = len(cluster.started()), time.time()
            agent = cluster.start(kind, 2, server)
            if kind == "torchrun":
                at = cluster.joined_at(agent)
            report(fault, at, 3, since)
            return agent

        def strike(fault, world, act, *arguments):
            since, at = len(cluster.started()), time.time()
            act(*arguments)
            report(fault, at, world, since)

        agent = join("node joins")
        for node in (2, 1 - kinds.index(kind) if kind in kinds else 0):
            victim = [entry for entry in cluster.started() if entry["host"] == f"node{node}"][-1]
            strike(f"worker of node {node} killed", 3, os.kill, victim["pid"], signal.SIGKILL)
        strike("node leaves (SIGTERM)", 2, agent.signal, signal.SIGTERM)
        agent.process.wait()
        agent = join("node joins again")
        strike("agent killed (SIGKILL)", 2, os.kill, agent.process.pid, signal.SIGKILL)


if __name__ == "__main__":
    programs = [Path(name).resolve() for name in sys.argv[1:3]]
    for chosen_host in sys.argv[3:4] or ["torchupd", "torchup", "torchrun"]:
        for chosen_kind in sys.argv[4:5] or ["torchup", "torchrun"]:
            measure(programs, chosen_host, chosen_kind)
