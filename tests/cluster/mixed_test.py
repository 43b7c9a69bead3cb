"""Jobs of real torchrun agents and ours: who begins, who joins, whose worker fails; mixed_job.py says how to start it."""

import time

from cluster import wait_for
from mixed_job import end_well, ends, LIMIT, mixed, run_scenario, scenario, scenarios, WORKER


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
        cluster.tell_to_fail(failing["pid"], 3)
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


def static(launcher, kinds):
    """A static rendezvous of agents of both kinds, which the first one hosts; then another, by the same words."""
    with mixed(launcher, len(kinds)) as cluster:
        for seen in (0, len(kinds)):
            agents = []
            for node, kind in enumerate(kinds):
                options = [f"--nnodes={len(kinds)}", "--nproc-per-node=1", "--rdzv-id=job1", f"--node-rank={node}", "--max-restarts=2",
                           f"--master-addr={cluster.address(0)}", "--master-port=29400"]
                torchup = [cluster.launcher, *options, "--no-python", cluster.python]
                own = [cluster.python, *cluster.torchrun_command, *options] if kind == "torchrun" else torchup
                agents.append(cluster._begin(kind, node, [*own, WORKER, cluster.dir]))
            entries = cluster.next_round(len(kinds), seen)
            assert {(entry["rank"], entry["host"]) for entry in entries} == {(node, f"node{node}") for node in range(len(kinds))}, entries
            assert {entry["master"] for entry in entries} == {f"{cluster.address(0)}:29400"}, entries
            cluster.release()
            ends(cluster, *agents)
            (cluster.dir / "release").unlink()


scenarios["static_at_ours"] = lambda launcher, _: static(launcher, ["torchup", "torchrun", "torchup", "torchrun"])
scenarios["static_at_theirs"] = lambda launcher, _: static(launcher, ["torchrun", "torchup", "torchrun", "torchup"])


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


if __name__ == "__main__":
    run_scenario()
