"""Jobs on several nodes, and what becomes of them under each fault: real launchers in network namespaces.

Usage: faults_test.py SCENARIO LAUNCHER TORCHUPD
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster import WORKER, Cluster, alive, main, wait_for

scenarios = {}


def scenario(function):
    scenarios[function.__name__] = function
    return function


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
        agents = [cluster.start(node, "--max-restarts=1", nnodes=2, workers=2) for node in range(2)]
        cluster.round_of(4)
        cluster.fail(3)
        cluster.round_of(4, after=1)
        assert cluster.restart_counts() == [0, 1]
        failed = time.monotonic()
        cluster.fail(2, code=7)
        for agent in agents:
            agent.ends_with(1)
        assert time.monotonic() - failed < 2.0
        for agent in agents:
            cause = agent.said().split("Root Cause")[1]
            assert "host      : node1" in cause and "rank      : 2 " in cause and "exitcode  : 7 " in cause, cause
        cluster.nothing_left()


@scenario
def agent_killed(launcher, _):
    """kill -9 of an agent: its workers die, the others form a new round within a second, no restart is counted."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3", lease=10) for node in range(3)]
        first = cluster.round_of(3)
        killed = time.monotonic()
        agents[2].signal(signal.SIGKILL)
        second = cluster.round_of(2, after=1)
        assert max(entry["time"] for entry in second) - killed < 1.0
        lost = [entry["pid"] for entry in first if entry["host"] == "node2"]
        wait_for("the lost node's workers are dead", lambda: not any(map(alive, lost)), 2.0)
        cluster.release()
        agents[0].ends_with(0)
        agents[1].ends_with(0)
        assert cluster.restart_counts() == [0, 0]
        cluster.nothing_left()


@scenario
def host_killed(launcher, _):
    """The agent that hosts the rendezvous dies: the others' workers stop at once; they give up with 67."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3", conf="join_timeout=3") for node in range(3)]
        first = cluster.round_of(3)
        killed = time.monotonic()
        agents[0].signal(signal.SIGKILL)
        wait_for("no worker lives", lambda: not any(alive(entry["pid"]) for entry in first), 2.0)
        for agent in agents[1:]:
            agent.ends_with(67)
        assert time.monotonic() - killed > 2.5  # they tried for as long as they were asked to
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
def link_blip(launcher, _):
    """A cut that is shorter than the lease is nothing."""
    with Cluster(launcher, 2) as cluster:
        agents = [cluster.start(node, nnodes=2, lease=5) for node in range(2)]
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


def cut_off(launcher, cut, heal, torchupd=None):
    """Node 2 is cut off for longer than the lease: its workers are dead before the others run again; it comes back.

    The rendezvous is on node 0, or in a daemon on node 3.
    """
    with Cluster(launcher, 4 if torchupd else 3) as cluster:
        if torchupd:
            cluster.daemon(3, torchupd)
        endpoint = f"{cluster.address(3)}:29400" if torchupd else None
        agents = [cluster.start(node, nnodes="2:3", lease=1, endpoint=endpoint) for node in range(3)]
        first = cluster.round_of(3)
        lost = [entry["pid"] for entry in first if entry["host"] == "node2"]
        at = time.monotonic()
        cut(cluster)
        second = cluster.round_of(2, after=1)
        assert not any(map(alive, lost)), "workers of the node that was cut off still live"
        assert max(entry["time"] for entry in second) - at < 2.5  # lease + 1 s, and the workers' own start
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
        agent = cluster.start(0, nnodes=2, endpoint="coordinator.example:29400", conf="join_timeout=6", behind=behind)
        wait_for("the name is told", lambda: "coordinator.example" in agent.said(), 5.0)
        agent.ends_with(67)
        assert 5.9 < time.monotonic() - begin < 8, time.monotonic() - begin
        assert "coordinator.example" in agent.said().splitlines()[-1] or "was not found" in agent.said(), agent.said()
        cluster.nothing_left()


@scenario
def agent_stopped(launcher, _):
    """SIGSTOP of an agent for longer than the lease: when it wakes, its workers end and it joins as a new node."""
    with Cluster(launcher, 3) as cluster:
        agents = [cluster.start(node, nnodes="2:3", lease=1) for node in range(3)]
        first = cluster.round_of(3)
        lost = [entry["pid"] for entry in first if entry["host"] == "node2"]
        stopped = time.monotonic()
        agents[2].stop()
        second = cluster.round_of(2, after=1)
        assert max(entry["time"] for entry in second) - stopped < 2.5
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
        joined = time.monotonic()
        agents.append(cluster.start(2, nnodes="2:3"))
        grown = cluster.round_of(3, after=1)
        assert max(entry["time"] for entry in grown) - joined < 2.0
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
        agents = [cluster.start(node, nnodes=3, conf="join_timeout=2") for node in range(2)]
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
        wait_for("both sides say so", lambda: "token" in wrong.said() and "token" in host.said(), 3.0)
        wrong.ends_with(68)
        without.ends_with(68)
        right = cluster.start(1, f"--token-file={cluster.dir}/token0", nnodes=2)
        cluster.round_of(2)
        cluster.release()
        host.ends_with(0)
        right.ends_with(0)
        cluster.nothing_left()


def status(cluster, node):
    """What the daemon's page says of the job; only loopback may ask without the token."""
    ask = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:29400/status').read().decode())"
    page = subprocess.run(cluster.on(node, [sys.executable, "-S", "-c", ask]), capture_output=True, text=True, check=True)
    return json.loads(page.stdout)["jobs"]["job1"]


@scenario
def unlike_nodes(launcher, torchupd):
    """Nodes with different numbers of workers, ranks in the order of a list; the page shows who is awaited and why."""
    with Cluster(launcher, 4) as cluster:
        cluster.daemon(3, torchupd)
        options = "--rank-order=hostlist", "--expect-hosts=node2,node0,node1"
        where = {"nnodes": 3, "endpoint": f"{cluster.address(3)}:29400"}
        agents = [cluster.start(0, *options, workers=1, **where)]
        wait_for("a node waits", lambda: "joins with" in (cluster.dir / "daemon.err").read_text())
        misfit = cluster.start(1, *options, "--max-restarts=9", workers=3, **where)
        misfit.ends_with(68)
        page = status(cluster, 3)
        assert [(node["host"], node["state"]) for node in page["nodes"]] == [
            ("node0", "ready"), ("node1", "refused"), ("node2", "missing")], page
        assert page["waits_for"].startswith("1 of 3 nodes: node0; refused: node1 (--max-restarts is 9 here and 0 in the job); "
                                            "not heard of: node2"), page
        wait_for("the others hear of it", lambda: "refused: node1" in agents[0].said())
        agents += [cluster.start(1, *options, workers=3, **where), cluster.start(2, *options, workers=2, **where)]
        entries = cluster.round_of(6)
        assert {entry["rank"]: entry["host"] for entry in entries} == {
            0: "node2", 1: "node2", 2: "node0", 3: "node1", 4: "node1", 5: "node1"}
        page = status(cluster, 3)
        assert page["phase"] == "running" and page["world_size"] == 6 and page["master"] == entries[0]["master"], page
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        cluster.nothing_left_but_daemon()


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
        assert all(differ(agent.said()) for agent in agents)
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        cluster.nothing_left()


@scenario
def flapping(launcher, torchupd):
    """A node that is lost three times is put aside: it disturbs the others no more, until they need it."""
    with Cluster(launcher, 4) as cluster:
        cluster.daemon(3, torchupd)
        endpoint = f"{cluster.address(3)}:29400"
        steady = [cluster.start(node, nnodes="2:3", endpoint=endpoint) for node in range(2)]
        for loss in range(3):
            agent = cluster.start(2, nnodes="2:3", endpoint=endpoint)
            cluster.round_of(3, after=len(cluster.rounds()) - 1 if loss == 0 else len(cluster.rounds()))
            agent.signal(signal.SIGKILL)
            agent.process.wait()
            cluster.round_of(2, after=len(cluster.rounds()))
        before = len(cluster.rounds())
        back = cluster.start(2, nnodes="2:3", endpoint=endpoint)
        wait_for("it is put aside", lambda: [node["state"] for node in status(cluster, 3)["nodes"]][2:] == ["aside"])
        time.sleep(1)
        assert len(cluster.rounds()) == before
        steady[1].signal(signal.SIGKILL)
        hosts = {entry["host"] for entry in cluster.round_of(2, after=before)}
        assert hosts == {"node0", "node2"} and set(cluster.restart_counts()) == {0}
        cluster.release()
        steady[0].ends_with(0)
        back.ends_with(0)
        cluster.nothing_left_but_daemon()


@scenario
def daemon_restarted(launcher, torchupd):
    """The daemon is killed and started again: no worker is disturbed. An agent dies, the first one, that of rank 0."""
    with Cluster(launcher, 4) as cluster:
        endpoint = f"{cluster.address(3)}:29400"
        daemon = cluster.daemon(3, torchupd)
        agents = [cluster.start(node, nnodes="2:3", endpoint=endpoint, lease=3) for node in range(3)]
        cluster.round_of(3)
        daemon.kill()
        daemon.wait()
        time.sleep(1)
        cluster.daemon(3, torchupd)
        time.sleep(4)  # more than the lease
        assert len(cluster.rounds()) == 1
        agents[0].signal(signal.SIGKILL)
        cluster.round_of(2, after=1)
        cluster.release()
        agents[1].ends_with(0)
        agents[2].ends_with(0)
        assert cluster.restart_counts() == [0, 0]


@scenario
def daemon_killed(launcher, torchupd):
    """kill -9 of a daemon with --state-dir, for longer than the lease: nobody notices. A failure after it is everybody's,
    what was counted before it stays counted, and when an agent ended meanwhile its node is lost."""
    with Cluster(launcher, 4) as cluster:
        endpoint = f"{cluster.address(3)}:29400"
        keeping = "--state-dir", cluster.dir / "state"

        def replace(daemon, pause, number=signal.SIGKILL):
            daemon.send_signal(number)
            daemon.wait()
            time.sleep(pause)
            return cluster.daemon(3, torchupd, *keeping)

        daemon = cluster.daemon(3, torchupd, *keeping)
        agents = [cluster.start(node, "--max-restarts=2", nnodes="2:3", endpoint=endpoint, lease=3) for node in range(2)]
        wait_for("a node waits", lambda: "joins with" in (cluster.dir / "daemon.err").read_text())
        daemon = replace(daemon, 0.5)  # while the job forms
        agents.append(cluster.start(2, "--max-restarts=2", nnodes="2:3", endpoint=endpoint, lease=3))
        # What it did not know to be decided it has not kept: it waits whether a round runs that it has not heard of.
        cluster.round_of(3, limit=60)
        before = len(cluster.rounds())  # two of them may have begun without the third
        daemon = replace(daemon, 4)
        time.sleep(4)
        assert len(cluster.rounds()) == before
        cluster.fail(1)
        cluster.round_of(3, after=before)
        assert cluster.restart_counts()[before:] == [1]
        daemon = replace(daemon, 0, signal.SIGTERM)
        time.sleep(1)
        daemon.kill()
        daemon.wait()
        lost = agents.pop(2)
        lost.signal(signal.SIGKILL)
        lost.process.wait()
        cluster.daemon(3, torchupd, *keeping)
        cluster.round_of(2, after=before + 1, limit=45)  # 33 s after the daemon's start
        cluster.fail(0)
        cluster.round_of(2, after=before + 2)
        assert cluster.restart_counts()[before:] == [1, 1, 2]
        cluster.fail(1)
        for agent in agents:
            agent.ends_with(1)
        cluster.nothing_left_but_daemon()


@scenario
def state_refused(launcher, torchupd):
    """A damaged file, a foreign one, a folder in use: one line that names it, and 65."""
    with Cluster(launcher, 1) as cluster:
        endpoint = f"{cluster.address(0)}:29400"
        folder = cluster.dir / "state"
        daemon = cluster.daemon(0, torchupd, "--state-dir", folder)
        agent = cluster.start(0, nnodes=2, endpoint=endpoint)
        file = folder / "job-0.state"
        wait_for("the job is saved", file.exists)

        def refused(*words):
            ran = subprocess.run(cluster.on(0, [torchupd, "--port", 0, "--state-dir", folder]), capture_output=True, text=True,
                                 timeout=10)
            assert ran.returncode == 65 and ran.stderr.count("\n") == 1 and not ran.stdout, ran
            assert all(word in ran.stderr for word in words), ran.stderr

        refused(str(folder), "another torchupd")
        daemon.kill()
        daemon.wait()
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        refused(str(file), "damaged", "move the file away")
        file.write_bytes(b"hello\n")
        refused(str(file), "not a file of torchupd")
        version = len(b"torchupd job\n")
        file.write_bytes(whole[:version] + bytes([whole[version] + 1]) + whole[version + 1:])
        refused(str(file), "format 2", "reads format 1")
        file.write_bytes(whole)
        daemon = cluster.daemon(0, torchupd, "--state-dir", folder)
        agent.signal(signal.SIGINT)
        agent.ends_with(130)


@scenario
def daemon_stopped(launcher, torchupd):
    """The daemon is there and says nothing for longer than the lease: workers are fenced; it wakes, the job goes on."""
    with Cluster(launcher, 3) as cluster:
        daemon = cluster.daemon(2, torchupd)
        agents = [cluster.start(node, nnodes=2, endpoint=f"{cluster.address(2)}:29400", lease=1) for node in range(2)]
        first = cluster.round_of(2)
        os.kill(daemon.pid, signal.SIGSTOP)
        wait_for("workers are fenced", lambda: not any(alive(entry["pid"]) for entry in first), 3.0)
        os.kill(daemon.pid, signal.SIGCONT)
        cluster.round_of(2, after=1)
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        assert cluster.restart_counts() == [0, 0]


@scenario
def two_nodes_script(launcher, _):
    """scripts/two_nodes shows what README promises, and leaves no namespace."""
    if os.geteuid() != 0:
        sys.exit(77)
    script = Path(__file__).resolve().parents[2] / "scripts" / "two_nodes"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\nexit $1\n')
        program.chmod(0o755)
        for extra in ([], ["--ipv6"]):
            ran = subprocess.run([script, "--launcher", launcher, *extra, program, "0"], capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
            assert sorted(ran.stdout.splitlines()) == ["node0: rank 0 of 2", "node1: rank 1 of 2"], ran.stdout
        ran = subprocess.run([script, "--launcher", launcher, program, "5"], capture_output=True, text=True)
        assert ran.returncode == 1, ran.returncode
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    assert "torchup-" not in left, left


if __name__ == "__main__":
    main(scenarios)
