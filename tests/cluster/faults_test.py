"""Jobs on several nodes, and what becomes of them when agents, workers and terms come, go and differ: real launchers in
network namespaces.

Usage: faults_test.py SCENARIO LAUNCHER TORCHUPD
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster import IPV6, Cluster, alive, main, scenario, scenarios, skip, wait_for
from workers_log import WORKER


@scenario
def start_and_finish(launcher, _):
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes=3, workers=2) for node in range(3)]
        entries = cluster.round_of(6)
        assert {entry["rank"]: entry["host"] for entry in entries} == {
            0: "node0", 1: "node0", 2: "node1", 3: "node1", 4: "node2", 5: "node2"}
        assert entries[0]["master"].startswith(cluster.address(0) + ":")
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        cluster.nothing_left()


@scenario
def worker_failure(launcher, _):
    """One worker fails: all nodes restart; again: all end with 1 and name the same cause."""
    with Cluster(launcher, 2) as cluster:
        agents = [cluster.start(node, "--max-restarts=1", "--shutdown-timeout=100", nnodes=2, workers=2) for node in range(2)]
        cluster.round_of(4)
        cluster.fail(3)
        cluster.round_of(4, after=1)
        assert cluster.restart_counts() == [0, 1]
        cluster.fail(2, code=7)
        for agent in agents:
            agent.ends_with(1, limit=20)  # nobody waits for the grace
        for agent in agents:
            cause = agent.said().split("Root Cause")[1]
            assert "host      : node1" in cause and "rank      : 2 " in cause and "exitcode  : 7 " in cause, cause
        cluster.nothing_left()


@scenario
def agent_killed(launcher, _):
    """kill -9 of an agent: its workers die, the others form a new round long before its lease ends, no restart is counted."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3", lease=30) for node in range(3)]
        first = cluster.round_of(3)
        killed = time.monotonic()
        agents[2].signal(signal.SIGKILL)
        second = cluster.round_of(2, after=1)
        assert max(entry["time"] for entry in second) - killed < 15.0
        lost = [entry["pid"] for entry in first if entry["host"] == "node2"]
        wait_for("the lost node's workers are dead", lambda: not any(map(alive, lost)))
        cluster.release()
        agents[0].ends_with(0)
        agents[1].ends_with(0)
        assert cluster.restart_counts() == [0, 0]
        cluster.nothing_left()


@scenario
def host_killed(launcher, _):
    """The agent that hosts the rendezvous dies: the others' workers stop at once; they give up with 67."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3", conf="join_timeout=8", lease=30) for node in range(3)]
        first = cluster.round_of(3)
        killed = time.monotonic()
        agents[0].signal(signal.SIGKILL)
        wait_for("no worker lives", lambda: not any(alive(entry["pid"]) for entry in first), 15.0)
        for agent in agents[1:]:
            agent.ends_with(67)
        assert time.monotonic() - killed > 7.5  # they tried for as long as they were asked to
        cluster.nothing_left()


@scenario
def host_returns(launcher, _):
    """The hosting agent is started again: the same job goes on in a further round."""
    with Cluster(launcher, 2) as cluster:
        host = cluster.start(0, nnodes=2)
        other = cluster.start(1, nnodes=2)
        cluster.round_of(2)
        host.signal(signal.SIGKILL)
        host.process.wait()
        host = cluster.start(0, nnodes=2)
        cluster.round_of(2, after=1)
        cluster.release()
        host.ends_with(0)
        other.ends_with(0)
        cluster.nothing_left()


@scenario
def agent_stopped(launcher, _):
    """SIGSTOP of an agent for longer than the lease: when it wakes, its workers end and it joins as a new node."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3", lease=2) for node in range(3)]
        first = cluster.round_of(3)
        lost = [entry["pid"] for entry in first if entry["host"] == "node2"]
        agents[2].stop()
        cluster.round_of(2, after=1)
        agents[2].resume()
        third = cluster.round_of(3, after=2)
        assert not any(map(alive, lost))
        assert {entry["host"] for entry in third} == {"node0", "node1", "node2"}
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        cluster.nothing_left()


@scenario
def late_joiner(launcher, _):
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3") for node in range(2)]
        cluster.round_of(2)
        agents.append(cluster.start(2, nnodes="2:3"))
        cluster.round_of(3, after=1)
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        assert cluster.restart_counts() == [0, 0]
        cluster.nothing_left()


@scenario
def replacement(launcher, _):
    """A fixed job loses a node and goes on with another one."""
    with Cluster(launcher, 3) as cluster:
        kept = cluster.start(0, nnodes=2)
        lost = cluster.start(1, nnodes=2)
        cluster.round_of(2)
        lost.signal(signal.SIGKILL)
        new = cluster.start(2, nnodes=2)
        cluster.round_of(2, after=1)
        cluster.release()
        kept.ends_with(0)
        new.ends_with(0)
        assert cluster.restart_counts() == [0, 0]
        cluster.nothing_left()


@scenario
def spare(launcher, _):
    """A node over the maximum stands by, takes the place of a lost one, and another that was never used ends with 0."""
    with Cluster(launcher, 4) as cluster:
        first = [cluster.start(node, nnodes="2:2") for node in range(2)]
        cluster.round_of(2)
        spares = [cluster.start(node, nnodes="2:2") for node in (2, 3)]
        wait_for("both stand by", lambda: all(f"node{node} joins with" in first[0].said() for node in (2, 3)))
        time.sleep(1)
        assert len(cluster.rounds()) == 1
        first[1].signal(signal.SIGKILL)
        cluster.round_of(2, after=1)
        cluster.release()
        for agent in [first[0], *spares]:
            agent.ends_with(0)
        cluster.nothing_left()


@scenario
def node_leaves(launcher, _):
    """TERM on one node: it leaves with 143, the others go on; a second leave falls below the minimum and ends the job."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3") for node in range(3)]
        cluster.round_of(3)
        agents[2].signal(signal.SIGTERM)
        agents[2].ends_with(143)
        cluster.round_of(2, after=1)
        agents[1].signal(signal.SIGTERM)
        agents[1].ends_with(143)
        agents[0].ends_with(143)
        assert cluster.restart_counts() == [0, 0]
        cluster.nothing_left()


@scenario
def interrupted(launcher, _):
    """Ctrl-C on one node ends the job on all."""
    with Cluster(launcher, 2) as cluster:
        agents = [cluster.start(node, nnodes=2, workers=2) for node in range(2)]
        cluster.round_of(4)
        agents[1].signal(signal.SIGINT)
        for agent in agents:
            agent.ends_with(130)
        cluster.nothing_left()


@scenario
def too_few(launcher, _):
    with Cluster(launcher, 2) as cluster:
        agents = [cluster.start(node, nnodes=3, conf="join_timeout=5") for node in range(2)]
        for agent in agents:
            agent.ends_with(66)
            assert "2 of 3 nodes: node0, node1" in agent.said(), agent.said()
        assert not cluster.started()


@scenario
def wrong_token(launcher, _):
    with Cluster(launcher, 2) as cluster:
        for number, secret in enumerate(["the right one: 1f7a9c", "the wrong one: 1f7a9c"]):
            path = cluster.dir / f"token{number}"
            path.write_text(secret)
            path.chmod(0o600)
        host = cluster.start(0, f"--token-file={cluster.dir}/token0", nnodes=2)
        wrong = cluster.start(1, f"--token-file={cluster.dir}/token1", nnodes=2, conf="join_timeout=3")
        without = cluster.start(1, nnodes=2)
        wait_for("both sides say so", lambda: "token" in wrong.said() and "token" in host.said())
        wrong.ends_with(68)
        without.ends_with(68)
        right = cluster.start(1, f"--token-file={cluster.dir}/token0", nnodes=2)
        cluster.round_of(2)
        cluster.release()
        host.ends_with(0)
        right.ends_with(0)
        cluster.nothing_left()


@scenario
def unlike_programs(launcher, _):
    """Two nodes with two versions of the program: told before the first worker, or refused."""
    with Cluster(launcher, 2) as cluster:
        programs = []
        for node in range(2):
            programs.append(cluster.dir / f"bin{node}" / "train")
            programs[node].parent.mkdir()
            programs[node].write_text(f"#!/bin/sh\nexec {sys.executable} -S {WORKER} {cluster.dir} # {node}\n")
            programs[node].chmod(0o755)

        def start(node, *options):
            return cluster.start(node, "--no-python", *options, nnodes=2, program=[programs[node]])

        def differ(text):
            return "the nodes differ" in text and "program" in text and ("node0" in text or "first node" in text)

        host = start(0, "--same-world=fail")
        wait_for("the host waits", lambda: "joins with" in host.said())
        refused = start(1, "--same-world=fail")
        refused.ends_with(68)
        assert differ(refused.said()), refused.said()
        assert not cluster.started()
        host.signal(signal.SIGINT)
        host.ends_with(130)
        agents = [start(node) for node in range(2)]
        cluster.round_of(2)
        wait_for("all say it", lambda: all(differ(agent.said()) for agent in agents))
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        cluster.nothing_left()


@scenario
def two_nodes_script(launcher, _):
    """scripts/two_nodes shows what README promises, and leaves none of its namespaces."""
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True).returncode != 0:
        skip("no network and mount namespaces can be made here")
    script = Path(__file__).resolve().parents[2] / "scripts" / "two_nodes"

    def run(*words):
        ran = subprocess.Popen([script, "--launcher", launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = ran.communicate(timeout=120)
        spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout  # others' too
        assert f"torchup-{ran.pid}-" not in spaces, spaces
        return ran.returncode, out, err

    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\nexit $1\n')
        program.chmod(0o755)
        for extra in ([], ["--ipv6"]) if IPV6 else ([],):
            code, out, err = run(*extra, program, "0")
            assert code == 0, err
            assert sorted(out.splitlines()) == ["node0: rank 0 of 2", "node1: rank 1 of 2"], out
        assert run(program, "5")[0] == 1


if __name__ == "__main__":
    main(scenarios)
