"""What scenarios of real torchrun agents and ours share. Their scripts are started as PROGRAM SCENARIO LAUNCHER TORCHUPD
[WORKER]; WORKER is a program that does the same as reduce_worker.py, the default.
TORCHRUN_PYTHON names the Python whose torchrun is meant (default: this one). Skipped where it has no torch. Scenarios that
begin with `other_` are of the torchrun of the Python that TORCHUP_OTHER_TORCHRUN names, another release, and skipped where
it names none."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster import Agent, Cluster, main, skip, wait_for

WORKER = Path(sys.argv.pop(4) if len(sys.argv) > 4 else Path(__file__).with_name("reduce_worker.py"))
LIMIT = 90  # two Python workers and two torchruns start on a busy machine
scenarios = {}


def scenario(function):
    scenarios[function.__name__] = function
    return function


class MixedCluster(Cluster):
    """Keep-alive 2 s times 6 on both sides: on a busy machine torchrun's agents fall silent for seconds."""

    keep_alive_s, keep_alives = 2, 6
    python = os.environ.get("TORCHRUN_PYTHON", sys.executable)
    torchrun_command = ["-m", "torch.distributed.run"]

    def _options(self, node, nnodes, host, restarts, workers):
        return [f"--nnodes={nnodes}", f"--nproc-per-node={workers}", "--rdzv-id=job1", "--rdzv-backend=c10d",
                f"--rdzv-endpoint={self.address(host)}:29400", f"--max-restarts={restarts}", f"--local-addr={self.address(node)}",
                f"--rdzv-conf=join_timeout=100,last_call_timeout=2,keep_alive_interval={self.keep_alive_s},"
                f"keep_alive_max_attempt={self.keep_alives}"]

    def _begin(self, kind, node, command):
        self.environment["OMP_NUM_THREADS"] = "1"
        self.environment["GLOO_SOCKET_IFNAME"] = "eth0"
        self.agents.append(Agent(self, node, command))
        self.agents[-1].kind = kind
        return self.agents[-1]

    def torchrun(self, node, nnodes="2", host=0, restarts=0, workers=1):
        own = str(node == host).lower()
        options = self._options(node, nnodes, host, restarts, workers)
        options[-1] += f",is_host={own}"
        return self._begin("torchrun", node, [self.python, *self.torchrun_command, *options, "--no-python", *self.worker(), self.dir])

    def worker(self):
        return [self.python, "-u", WORKER] if WORKER.suffix == ".py" else [WORKER]

    def torchup(self, node, nnodes="2", host=0, restarts=0, workers=1):
        options = self._options(node, nnodes, host, restarts, workers)
        return self._begin("torchup", node, [self.launcher, *options, "--shutdown-timeout=2", "--no-python", *self.worker(), self.dir])

    def kill_node(self, agent):
        """The agent and all below it, as when a machine loses its power (but its connections are closed)."""
        pids = [agent.process.pid]
        for pid in pids:
            try:
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                pass  # it has just ended
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        agent.process.wait()

    def port_open(self, node, port):
        return subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", "sh", "-c",
                               f"grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6"]).returncode == 0

    def status(self, node):
        """What torchupd on that node says of its jobs."""
        page = subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", sys.executable, "-S", "-c",
                               "import urllib.request as u; print(u.urlopen('http://127.0.0.1:29400/status').read().decode())"],
                              check=True, capture_output=True, text=True).stdout
        return json.loads(page)

    def kill_worker(self, entry):
        os.kill(entry["pid"], signal.SIGKILL)

    def next_round(self, world, since):
        """The entries of the first whole round of `world` workers after the first `since` entries."""
        def find():
            entries = [entry for entry in self.started()[since:] if entry["world"] == world]
            return entries if len(entries) >= world else None

        began = time.monotonic()
        entries = wait_for(f"a new round of {world} workers", find, LIMIT)
        print(f"  a round of {world} after {max(entry['time'] for entry in entries) - began:.1f} s, restarts "
              f"{sorted(entry['restarts'] for entry in entries)}", flush=True)
        return entries

    def meets_at_first(self):
        """Workers of the last round meet on group rank 0's node, where programs may open sockets of their own."""
        entries = self.started()
        entries = entries[-entries[-1]["world"]:]
        first = [int(entry["host"].removeprefix("node")) for entry in entries if entry["group_rank"] == 0][0]
        assert {entry["master"].rpartition(":")[0] for entry in entries} == {self.address(first)}, entries

    def check_ranks(self):
        """Restarts are counted per agent here: a round is as many entries as its world is large."""
        entries = self.started()
        while entries:
            world = entries[0]["world"]
            assert sorted(entry["rank"] for entry in entries[:world]) == list(range(world)), entries
            entries = entries[world:]


def torch_folder():
    """Where the torch of torchrun lies, found without the seconds that importing it takes; None where it has none."""
    origin = subprocess.run([MixedCluster.python, "-c", "import importlib.util; print(importlib.util.find_spec('torch').origin)"],
                            capture_output=True, text=True).stdout.strip()
    return Path(origin).parent if origin else None


def mixed(launcher, nodes):
    if not torch_folder():
        skip(f"{MixedCluster.python} has no torchrun")
    return MixedCluster(launcher, nodes)


def ends(cluster, *agents):
    for agent in agents:
        agent.ends_with(0, limit=LIMIT)
    cluster.nothing_left(5)


def end_well(cluster, agents, daemon):
    cluster.release()
    for agent in agents:
        agent.ends_with(0, limit=LIMIT)
    daemon.kill()
    daemon.wait()
    cluster.nothing_left(5)


def other(run):
    def of_other_release(launcher, torchupd):
        MixedCluster.python = os.environ.get("TORCHUP_OTHER_TORCHRUN") or skip("TORCHUP_OTHER_TORCHRUN names no Python")
        run(launcher, torchupd)

    return of_other_release


def run_scenario():
    """The one that the command line names, also as it is with another release of torchrun."""
    for name, run in list(scenarios.items()):
        scenarios[f"other_{name}"] = other(run)
    main(scenarios)
