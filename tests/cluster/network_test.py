"""Jobs on several nodes whose network is cut, loses what one side sends, resets connections or answers no names.

Usage: network_test.py SCENARIO LAUNCHER TORCHUPD
"""

import signal
import time

from cluster import Cluster, alive, main, scenario, scenarios, wait_for


@scenario
def link_blip(launcher, _):
    """A cut that is shorter than the lease is nothing."""
    with Cluster(launcher, 2) as cluster:
        agents = [cluster.start(node, nnodes=2, lease=10) for node in range(2)]
        cluster.round_of(2)
        cluster.link(1, "down")
        time.sleep(2)
        cluster.link(1, "up")
        time.sleep(1)
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        assert len(cluster.rounds()) == 1
        cluster.nothing_left()


@scenario
def output_stays_where_it_was_written(launcher, torchupd):
    """The last lines of a failure are with the daemon of another machine only where a token says who may ask there."""
    for token in (False, True):
        with Cluster(launcher, 2) as cluster:
            secret = cluster.dir / "token"
            secret.write_text("a token of sixteen bytes or more")
            secret.chmod(0o600)
            with_token = [f"--token-file={secret}"] if token else []
            told, own = cluster.dir / "told", cluster.dir / "own"
            cluster.daemon(0, torchupd, f"--events={told}", *with_token)
            agent = cluster.start(1, f"--events={own}", "--max-restarts=1", "--no-python", *with_token, nnodes=1,
                                  program=["sh", "-c", "test $TORCHELASTIC_RESTART_COUNT = 1 && exit; echo its last words; exit 3"])
            agent.ends_with(0)
            wait_for("the daemon hears of it", lambda: told.exists() and "incident_recorded" in told.read_text())
            assert '"last_lines":["its last words"]' in own.read_text().replace(": ", ":"), own.read_text()
            assert ("its last words" in told.read_text()) == token, told.read_text()
            cluster.nothing_left_but_daemon()


def cut_off(launcher, cut, heal, torchupd=None):
    """Node 2 is cut off for longer than the lease: its workers are dead before the others run again; it comes back.

    The rendezvous is on node 0, or in a daemon on node 3.
    """
    with Cluster(launcher, 4 if torchupd else 3) as cluster:
        if torchupd:
            cluster.daemon(3, torchupd)
        endpoint = f"{cluster.address(3)}:29400" if torchupd else None
        agents = [cluster.start(node, nnodes="2:3", lease=3, endpoint=endpoint) for node in range(3)]
        first = cluster.round_of(3)
        lost = [entry["pid"] for entry in first if entry["host"] == "node2"]
        cut(cluster)
        cluster.round_of(2, after=1)
        assert not any(map(alive, lost)), "workers of the node that was cut off still live"
        heal(cluster)
        third = cluster.round_of(3, after=2)
        assert {entry["host"] for entry in third} == {"node0", "node1", "node2"}
        assert set(cluster.restart_counts()) == {0}
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        if torchupd:
            cluster.nothing_left_but_daemon()
        else:
            cluster.nothing_left()


@scenario
def condemned_by_its_pairs(launcher, torchupd):
    """A node that most others do not reach costs nobody a restart, and comes back when its ways are whole again."""
    with Cluster(launcher, 4) as cluster:
        endpoint = f"{cluster.address(0)}:29400"
        cluster.daemon(0, torchupd)
        cluster.limit_rates()  # all that is wrong with a pair is whether it has a connection
        cluster.drop_output(2, to=(1, 3))
        agents = [cluster.start(node, "--preflight=full", nnodes="2:4", endpoint=endpoint, conf="last_call_timeout=20")
                  for node in range(4)]
        first = cluster.round_of(3, limit=90)
        assert {entry["host"] for entry in first} == {"node0", "node1", "node3"}, first
        wait_for("the reason", lambda: "unfit: node2 has 2 of 3 pairs bad: no connection with node1" in agents[2].said())
        cluster.heal_output(2)
        second = cluster.round_of(4, after=1, limit=90)  # it looks every 30 s
        assert len(second) == 4 and len(cluster.rounds()) == 2
        assert set(cluster.restart_counts()) == {0}
        assert agents[2].said().count("pairs bad") == 1  # each finding once
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        cluster.nothing_left_but_daemon()


@scenario
def link_down(launcher, _):
    cut_off(launcher, lambda cluster: cluster.link(2, "down"), lambda cluster: cluster.link(2, "up"))


@scenario
def one_way_drop(launcher, _):
    cut_off(launcher, lambda cluster: cluster.drop_output(2), lambda cluster: cluster.heal_output(2))


@scenario
def node_reset(launcher, torchupd):
    """Resets reach node 2 alone: its connection breaks and its dials are refused, and the coordinator hears nothing."""
    cut_off(launcher, lambda cluster: cluster.reset_output(2), lambda cluster: cluster.heal_output(2), torchupd)


@scenario
def node_reset_at_host(launcher, _):
    cut_off(launcher, lambda cluster: cluster.reset_output(2), lambda cluster: cluster.heal_output(2))


@scenario
def coordinator_reset(launcher, torchupd):
    """Resets reach the coordinator alone: node 2 hears nothing, and runs until its own clock says so."""
    cut_off(launcher, lambda cluster: cluster.reset_output(3, 2), lambda cluster: cluster.heal_output(3), torchupd)


@scenario
def coordinator_reset_at_host(launcher, _):
    cut_off(launcher, lambda cluster: cluster.reset_output(0, 2), lambda cluster: cluster.heal_output(0))


@scenario
def silent_names(launcher, _):
    """A name server that does not answer: the name is told while it is looked up, and it is over with the join timeout."""
    with Cluster(launcher, 1) as cluster:
        behind = cluster.silence_names(0)
        begin = time.monotonic()
        agent = cluster.start(0, nnodes=2, endpoint="coordinator.example:29400", conf="join_timeout=3", behind=behind)
        wait_for("the name is told", lambda: "coordinator.example" in agent.said())
        agent.ends_with(67)
        assert 2.9 < time.monotonic() - begin < 9, time.monotonic() - begin
        assert "coordinator.example" in agent.said().splitlines()[-1] or "was not found" in agent.said(), agent.said()
        cluster.nothing_left()


@scenario
def silent_names_of_interfaces(launcher, _):
    """--set-socket-ifname with a name server that does not answer: a stop need not wait for it, nor do workers for ever."""
    with Cluster(launcher, 1) as cluster:
        behind = cluster.silence_names(0)

        def start():
            return cluster.start(0, "--set-socket-ifname", "--local-addr=node.example", nnodes="1:2", behind=behind)

        agent = start()
        wait_for("the round is complete", lambda: "opens the worker store" in agent.said())
        begin = time.monotonic()
        agent.signal(signal.SIGTERM)
        agent.ends_with(143)
        assert time.monotonic() - begin < 6, time.monotonic() - begin
        assert not cluster.started() and "could not be started" not in agent.said(), agent.said()
        agent = start()
        cluster.round_of(1)
        wait_for("it says why", lambda: "did not say within 8 s where node.example is" in agent.said())
        agent.signal(signal.SIGINT)
        agent.ends_with(130)
        cluster.nothing_left()


if __name__ == "__main__":
    main(scenarios)
