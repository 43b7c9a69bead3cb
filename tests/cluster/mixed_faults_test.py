"""Jobs of real torchrun agents and ours whose nodes come, go, die and fall silent; mixed_job.py says how to start it."""

import signal
import time
from pathlib import Path

from cluster import wait_for
from mixed_job import end_well, ends, LIMIT, mixed, MixedCluster, run_scenario, scenario, scenarios, torch_folder


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
        before = len(cluster.started())  # the others may have begun without one that came late
        cluster.link(rest, "down")
        entries = cluster.next_round(rest, before)
        assert {entry["restarts"] for entry in entries} == {0}, entries
        assert f"node{rest}" not in {entry["host"] for entry in entries}
        time.sleep(8)
        assert len(cluster.started()) == before + rest, cluster.started()  # that was one round, and no second
        cluster.link(rest, "up")
        if restarts == 0:
            # Its worker sees that the others have gone, or it sees that it is called back: whichever is first.
            silent = agents[-1].process
            wait_for("it gives up or comes back", lambda: silent.poll() is not None or len(cluster.started()) > before + rest, LIMIT)
            if silent.poll() is not None:
                agents.pop().ends_with(1)
                time.sleep(3)
                assert len(cluster.started()) == before + rest, cluster.started()
                return end_well(cluster, agents, daemon)
        entries = cluster.next_round(all_of, before + rest)
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


scenarios["silent_among_theirs"] = lambda *programs: silence(*programs, ["torchrun"] * 3)
scenarios["silent_one_gives_up"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchrun"], restarts=0)
scenarios["their_silent"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchrun"])
scenarios["their_silent_at_ours"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchrun"], 0)
scenarios["their_only_one_silent_at_ours"] = lambda *programs: silence(*programs, ["torchup", "torchup", "torchrun"], 0)
scenarios["their_silent_at_theirs"] = lambda *programs: silence(*programs, ["torchrun", "torchup", "torchrun"], 0)
scenarios["our_silent"] = lambda *programs: silence(*programs, ["torchrun", "torchrun", "torchup"])
scenarios["our_silent_at_ours"] = lambda *programs: silence(*programs, ["torchup", "torchrun", "torchup"], 0)
scenarios["our_silent_at_theirs"] = lambda *programs: silence(*programs, ["torchrun", "torchup", "torchup"], 0)


def naive_times(launcher, _):
    """Torchrun's agents whose times do not say that they are UTC, and which die of times that do."""
    MixedCluster.torchrun_command = [Path(__file__).with_name("naive_torchrun.py")]
    coming_and_going(launcher, ["torchrun", "torchup"], ["torchrun"])


scenarios["naive_times"] = naive_times


if __name__ == "__main__":
    run_scenario()
