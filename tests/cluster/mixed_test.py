"""Jobs of real torchrun agents and ours. PROGRAM SCENARIO LAUNCHER TORCHUPD; TORCHRUN_PYTHON names the Python whose torchrun
is meant (default: this one). Skipped where it has no torch. Scenarios that begin with `other_` are of the torchrun of the
Python that TORCHUP_OTHER_TORCHRUN names, another release, and skipped where it names none."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster import Agent, Cluster, main, matches, skip, wait_for

PYTHON = os.environ.get("TORCHRUN_PYTHON", sys.executable)
WORKER = Path(__file__).with_name("reduce_worker.py")
scenarios = {}


def end_well(cluster, agents, daemon):
    cluster.release()
    for agent in agents:
        agent.ends_with(0, limit=LIMIT)
    daemon.kill()
    daemon.wait()
    cluster.nothing_left(5)


def scenario(function):
    scenarios[function.__name__] = function
    return function


class MixedCluster(Cluster):
    """Keep-alive 2 s times 6 on both sides: on a busy machine torchrun's agents fall silent for seconds."""

    keep_alive_s, keep_alives = 2, 6

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
        return self._begin("torchrun", node, [PYTHON, *TORCHRUN, *options, WORKER, self.dir])

    def torchup(self, node, nnodes="2", host=0, restarts=0, workers=1):
        options = self._options(node, nnodes, host, restarts, workers)
        return self._begin("torchup", node, [self.launcher, *options, "--shutdown-timeout=2", "--no-python", PYTHON, WORKER, self.dir])

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


TORCHRUN = ["-m", "torch.distributed.run"]


def torch_folder():
    """Where PYTHON's torch lies, found without the seconds that importing it takes; None where it has none."""
    origin = subprocess.run([PYTHON, "-c", "import importlib.util; print(importlib.util.find_spec('torch').origin)"],
                            capture_output=True, text=True).stdout.strip()
    return Path(origin).parent if origin else None


def mixed(launcher, nodes):
    if not torch_folder():
        skip(f"{PYTHON} has no torchrun")
    return MixedCluster(launcher, nodes)


LIMIT = 90  # two Python workers and two torchruns start on a busy machine


def ends(cluster, *agents):
    for agent in agents:
        agent.ends_with(0, limit=LIMIT)
    cluster.nothing_left(5)


@scenario
def ours_joins_theirs(launcher, _):
    """torchrun hosts the rendezvous; our agent joins, and both end with 0."""
    with mixed(launcher, 2) as cluster:
        theirs = cluster.torchrun(0)
        ours = cluster.torchup(1, workers=2)
        entries = cluster.round_of(3, limit=LIMIT)
        assert {(entry["group_rank"], entry["host"]) for entry in entries} == {(0, "node0"), (1, "node1")}, entries
        cluster.meets_at_first()
        cluster.release()
        ends(cluster, theirs, ours)


@scenario
def ours_first(launcher, _):
    """Our agent waits for an endpoint that torchrun opens later."""
    with mixed(launcher, 2) as cluster:
        ours = cluster.torchup(1)
        time.sleep(1)
        theirs = cluster.torchrun(0)
        cluster.round_of(2, limit=LIMIT)
        cluster.release()
        ends(cluster, theirs, ours)


@scenario
def theirs_joins_ours(launcher, _):
    """Our agent hosts the rendezvous; torchrun's joins, and both end with 0."""
    with mixed(launcher, 2) as cluster:
        ours = cluster.torchup(0, workers=2)
        wait_for("the endpoint", lambda: "hosted here" in ours.said())
        theirs = cluster.torchrun(1)
        theirs_host = {entry["host"]: entry["group_rank"] for entry in cluster.round_of(3, limit=LIMIT)}
        assert theirs_host == {"node0": 0, "node1": 1}, theirs_host
        cluster.meets_at_first()
        cluster.release()
        ends(cluster, theirs, ours)


@scenario
def our_first_at_theirs(launcher, _):
    """Torchrun's rule gives group rank 0 to ours, in torchrun's rendezvous: workers meet on our node."""
    with mixed(launcher, 2) as cluster:
        theirs = cluster.torchrun(1, host=1, restarts=1)
        ours = cluster.torchup(0, host=1, restarts=1)
        entries = cluster.next_round(2, 0)
        assert {(entry["group_rank"], entry["host"]) for entry in entries} == {(0, "node0"), (1, "node1")}, entries
        cluster.meets_at_first()
        cluster.kill_worker(entries[0])
        cluster.next_round(2, 2)
        cluster.meets_at_first()
        cluster.release()
        ends(cluster, theirs, ours)


@scenario
def their_first_at_ours(launcher, _):
    """Torchrun's rule gives group rank 0 to torchrun, in our rendezvous: workers meet on its node, in every round."""
    with mixed(launcher, 3) as cluster:
        ours = cluster.torchup(2, nnodes="2:3", host=2, restarts=3)
        wait_for("the endpoint", lambda: "hosted here" in ours.said())
        theirs = cluster.torchrun(0, nnodes="2:3", host=2, restarts=3)
        entries = cluster.next_round(2, 0)
        assert {(entry["group_rank"], entry["host"]) for entry in entries} == {(0, "node0"), (1, "node2")}, entries
        cluster.meets_at_first()
        late = cluster.torchrun(1, nnodes="2:3", host=2, restarts=3)
        entries = cluster.next_round(3, 2)
        cluster.meets_at_first()
        cluster.kill_worker(entries[0])
        cluster.next_round(3, 5)
        cluster.meets_at_first()
        cluster.release()
        ends(cluster, theirs, late, ours)


@scenario
def two_and_two_at_the_daemon(launcher, torchupd):
    """Two agents of each kind meet at torchupd."""
    with mixed(launcher, 5) as cluster:
        daemon = cluster.daemon(4, torchupd)
        agents = [start(node, nnodes="4", host=4) for node, start in
                  enumerate([cluster.torchup, cluster.torchrun, cluster.torchup, cluster.torchrun])]
        cluster.round_of(4, limit=LIMIT)
        job = cluster.status(4)["jobs"]["job1"]
        kinds = {(node["host"], node["state"], node.get("agent")) for node in job["nodes"]}
        cluster.meets_at_first()
        assert job["phase"] == "running" and job["max_nodes"] == 4, job
        assert kinds == {(cluster.address(node), "seated", "torchrun" if node % 2 else None) for node in range(4)}, job
        end_well(cluster, agents, daemon)


def failure(launcher, who, restarts, host):
    """A worker of `who` fails. Where a restart is left it costs no node more than one, and the job goes on."""
    with mixed(launcher, 2) as cluster:
        if host == "theirs":
            theirs = cluster.torchrun(0, restarts=restarts)
            ours = cluster.torchup(1, restarts=restarts)
        else:
            ours = cluster.torchup(0, restarts=restarts)
            theirs = cluster.torchrun(1, restarts=restarts)
        entries = cluster.round_of(2, limit=LIMIT)
        agent = ours if who == "ours" else theirs
        failing = [entry for entry in entries if entry["host"] == f"node{agent.node}"][0]
        (cluster.dir / f"fail.{failing['pid']}").write_text("3")
        if restarts == 0:
            theirs.ends_with(1, limit=LIMIT)
            # A torchrun that hosts takes the store with it as it fails: ours may learn no more than that (67).
            ours.ends_with(*((1, 67) if who == host == "theirs" else (1,)), limit=LIMIT)
            cluster.nothing_left(5)
            return
        again = wait_for("a second round", lambda: [e for e in cluster.started() if e not in entries] if
                         len(cluster.started()) == 4 else None, LIMIT)
        assert {entry["world"] for entry in again} == {2}
        # The other node's worker fails too, as its peer is gone; whichever agent leaves the round first has counted it.
        assert max(entry["restarts"] for entry in again) == 1, again
        cluster.release()
        ends(cluster, theirs, ours)


def coming_and_going(launcher, first, steps):
    """Two agents begin, of which the first one hosts; then others come and go. What ours count as a restart is none of it."""
    with mixed(launcher, 3) as cluster:
        def start(kind, node):
            return getattr(cluster, kind)(node, nnodes="2:3", restarts=4)

        agents = {0: start(first[0], 0)}
        wait_for("the endpoint", lambda: cluster.port_open(0, 29400), LIMIT)
        agents[1] = start(first[1], 1)
        cluster.next_round(2, 0)
        since = 2
        for step in steps:
            if step.startswith("torch"):
                agents[2] = start(step, 2)
                world = 3
            else:
                agent = agents.pop(2)
                agent.signal(signal.SIGTERM) if step == "term" else cluster.kill_node(agent)
                world = 2
            entries = cluster.next_round(world, since)
            since += world
            ours = [f"node{agent.node}" for agent in agents.values() if agent.kind == "torchup"]
            assert all(entry["restarts"] == 0 for entry in entries if entry["host"] in ours), entries
        cluster.release()
        ends(cluster, *agents.values())


scenarios["coming_and_going_at_ours"] = lambda launcher, _: coming_and_going(
    launcher, ["torchup", "torchrun"], ["torchrun", "term", "torchup", "kill"])
scenarios["coming_and_going_at_theirs"] = lambda launcher, _: coming_and_going(
    launcher, ["torchrun", "torchup"], ["torchup", "term", "torchrun", "kill"])


def leader_may_change():
    """Of the older releases an agent that becomes group rank 0 after its first round ends with an AssertionError."""
    source = torch_folder() / "distributed/elastic/rendezvous/dynamic_rendezvous.py"
    return "rank == 0 and self._shared_tcp_store_server is None" in source.read_text()


def healing(launcher, torchupd, first, late, replacement):
    """One job at torchupd: a node joins it late, a worker is killed, group rank 0's node dies, and is replaced."""
    with mixed(launcher, 5) as cluster:
        daemon = cluster.daemon(4, torchupd, "--torchrun-store=here")

        def start(kind, node):
            return getattr(cluster, kind)(node, nnodes="2:3", host=4, restarts=3)

        agents = [start(kind, node) for node, kind in enumerate(first)]
        entries = cluster.next_round(2, 0)
        agents.append(start(late, 2))
        entries = cluster.next_round(3, 2)
        assert {entry["restarts"] for entry in entries} == {0}, entries
        cluster.kill_worker(entries[0])
        entries = cluster.next_round(3, 5)
        assert max(entry["restarts"] for entry in entries) == 1, entries
        hosts = {entry["group_rank"]: entry["host"] for entry in entries}
        dead = [agent for agent in agents if f"node{agent.node}" == hosts[0 if leader_may_change() else 2]][0]
        cluster.kill_node(dead)
        agents.remove(dead)
        survivors = cluster.next_round(2, 8)
        agents.append(start(replacement, dead.node))
        entries = cluster.next_round(3, 10)
        restarts = {entry["host"]: entry["restarts"] for entry in entries}
        assert all(restarts[entry["host"]] == entry["restarts"] for entry in survivors), entries
        end_well(cluster, agents, daemon)


scenarios["healing_theirs"] = lambda *programs: healing(*programs, ["torchrun", "torchrun"], "torchrun", "torchrun")
scenarios["healing_with_ours"] = lambda *programs: healing(*programs, ["torchrun", "torchup"], "torchrun", "torchrun")


def silence(launcher, torchupd, kinds, host=None, restarts=3):
    """The link of the last of these nodes breaks. The others go on without it, by themselves; then it comes back. Where it
    has no restart left it may end instead, but alone."""
    with mixed(launcher, len(kinds) + 1) as cluster:
        cluster.keep_alive_s, cluster.keep_alives = 1, 6
        lease = cluster.keep_alive_s * cluster.keep_alives
        server = len(kinds) if host is None else host
        daemon = cluster.daemon(server, torchupd) if host is None else None
        agents = []
        for node, kind in enumerate(kinds):
            own = restarts if node == len(kinds) - 1 else 3
            agents.append(getattr(cluster, kind)(node, nnodes=f"{len(kinds) - 1}:{len(kinds)}", host=server, restarts=own))
            wait_for("the endpoint", lambda: cluster.port_open(server, 29400), LIMIT)
        all_of, rest = len(kinds), len(kinds) - 1
        cluster.next_round(all_of, 0)
        cluster.link(rest, "down")
        entries = cluster.next_round(rest, all_of)
        assert {entry["restarts"] for entry in entries} == {0}, entries
        assert f"node{rest}" not in {entry["host"] for entry in entries}
        time.sleep(8)
        assert len(cluster.started()) == all_of + rest, cluster.started()  # that was one round, and no second
        cluster.link(rest, "up")
        if restarts == 0:
            # Its worker sees that the others have gone, or it sees that it is called back: whichever is first.
            silent = agents[-1].process
            wait_for("it gives up or comes back", lambda: silent.poll() is not None or len(cluster.started()) > all_of + rest, LIMIT)
            if silent.poll() is not None:
                agents.pop().ends_with(1)
                time.sleep(3)
                assert len(cluster.started()) == all_of + rest, cluster.started()
                return end_well(cluster, agents, daemon)
        entries = cluster.next_round(all_of, all_of + rest)
        assert {entry["restarts"] for entry in entries if entry["host"] != f"node{rest}"} == {0}, entries
        if daemon:
            return end_well(cluster, agents, daemon)
        cluster.release()
        ends(cluster, *agents)


def replaced(launcher, torchupd, kinds, rank, fault, spare):
    """At torchupd, a job of a fixed size: the node with that group rank dies, and another takes its place, which comes then
    or stands by already."""
    with mixed(launcher, 4) as cluster:
        # Torchrun's agents never read a second address: where group rank 0's node dies, they must not meet there.
        daemon = cluster.daemon(3, torchupd, *(["--torchrun-store=here"] if rank == 0 else []))

        def start(node):
            return getattr(cluster, kinds[node])(node, nnodes="2", host=3, restarts=3)

        agents = [start(0), start(1)]
        entries = cluster.next_round(2, 0)
        if spare:
            agents.append(start(2))
            wait_for("the spare", lambda: len(cluster.status(3)["jobs"]["job1"]["nodes"]) == 3, LIMIT)
        host = [entry["host"] for entry in entries if entry["group_rank"] == rank][0]
        dead = [agent for agent in agents if f"node{agent.node}" == host][0]
        if fault == "cut":
            cluster.link(dead.node, "down")
        cluster.kill_node(dead)
        agents.remove(dead)
        if not spare:
            agents.append(start(2))
        entries = cluster.next_round(2, 2)
        assert {entry["host"] for entry in entries} == {f"node{1 - dead.node}", "node2"}, entries
        end_well(cluster, agents, daemon)


for rank, place in enumerate(["first", "second"]):
    for fault in "killed", "cut":
        for spare in True, False:
            scenarios[f"their_{place}_{fault}_{'spare' if spare else 'replaced'}"] = (
                lambda *programs, rank=rank, fault=fault, spare=spare: replaced(*programs, ["torchrun"] * 3, rank, fault, spare))


@scenario
def our_spare_is_released(launcher, _):
    """Our agent is a spare in torchrun's rendezvous; when the job ends well, so does it."""
    with mixed(launcher, 2) as cluster:
        theirs = cluster.torchrun(0, nnodes="1")
        cluster.next_round(1, 0)
        ours = cluster.torchup(1, nnodes="1")
        wait_for("the spare", lambda: "this node is a spare" in ours.said(), LIMIT)
        cluster.release()
        ends(cluster, theirs, ours)


def static(launcher, kinds):
    """A static rendezvous of agents of both kinds, which the first one hosts; then another, by the same words."""
    with mixed(launcher, len(kinds)) as cluster:
        for seen in (0, len(kinds)):
            agents = []
            for node, kind in enumerate(kinds):
                options = [f"--nnodes={len(kinds)}", "--nproc-per-node=1", "--rdzv-id=job1", f"--node-rank={node}", "--max-restarts=2",
                           f"--master-addr={cluster.address(0)}", "--master-port=29400"]
                own = [PYTHON, *TORCHRUN, *options, WORKER] if kind == "torchrun" else [cluster.launcher, *options, "--no-python", PYTHON, WORKER]
                agents.append(cluster._begin(kind, node, [*own, cluster.dir]))
            entries = cluster.next_round(len(kinds), seen)
            assert {(entry["rank"], entry["host"]) for entry in entries} == {(node, f"node{node}") for node in range(len(kinds))}, entries
            assert {entry["master"] for entry in entries} == {f"{cluster.address(0)}:29400"}, entries
            cluster.release()
            ends(cluster, *agents)
            (cluster.dir / "release").unlink()


scenarios["static_at_ours"] = lambda launcher, _: static(launcher, ["torchup", "torchrun", "torchup", "torchrun"])
scenarios["static_at_theirs"] = lambda launcher, _: static(launcher, ["torchrun", "torchup", "torchrun", "torchup"])


scenarios["silent_among_theirs"] = lambda *programs: silence(*programs, ["torchrun"] * 3)
scenarios["silent_one_gives_up"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchrun"], restarts=0)
scenarios["their_silent"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchrun"])
scenarios["their_silent_at_ours"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchrun"], 0)
scenarios["their_silent_at_theirs"] = lambda *programs: silence(*programs, ["torchrun", "torchup", "torchrun"], 0)
scenarios["our_silent"] = lambda *programs: silence(*programs, ["torchrun", "torchrun", "torchup"])
scenarios["our_silent_at_ours"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchup"], 0)
scenarios["our_silent_at_theirs"] = lambda *programs: silence(*programs, ["torchrun", "torchup", "torchup"], 0)


def naive_times(launcher, _):
    """Torchrun's agents whose times do not say that they are UTC, and which die of times that do."""
    TORCHRUN[:] = [Path(__file__).with_name("naive_torchrun.py")]
    coming_and_going(launcher, ["torchrun", "torchup"], ["torchrun"])


scenarios["naive_times"] = naive_times


for name, arguments in {
    "our_worker_fails": ("ours", 2, "theirs"),
    "their_worker_fails": ("theirs", 2, "theirs"),
    "our_worker_fails_for_good": ("ours", 0, "theirs"),
    "their_worker_fails_for_good": ("theirs", 0, "theirs"),
    "our_worker_fails_at_ours": ("ours", 2, "ours"),
    "their_worker_fails_at_ours": ("theirs", 2, "ours"),
    "their_worker_fails_for_good_at_ours": ("theirs", 0, "ours"),
}.items():
    scenarios[name] = lambda launcher, _, arguments=arguments: failure(launcher, *arguments)


def other(run):
    def of_other_release(launcher, torchupd):
        global PYTHON
        PYTHON = os.environ.get("TORCHUP_OTHER_TORCHRUN") or skip("TORCHUP_OTHER_TORCHRUN names no Python")
        run(launcher, torchupd)

    return of_other_release


for name, run in list(scenarios.items()):
    scenarios[f"other_{name}"] = other(run)

if __name__ == "__main__":
    main(scenarios)
