"""Jobs on several nodes that meet at a daemon: what its page says of them, and what becomes of them when it is gone.

Usage: daemon_faults_test.py SCENARIO LAUNCHER TORCHUPD
"""

import json
import os
import signal
import subprocess
import sys
import time

from cluster import Cluster, alive, main, scenario, scenarios, wait_for


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
def flapping(launcher, torchupd):
    """A node that is lost three times is put aside: it disturbs the others no more, until they need it."""
    with Cluster(launcher, 4) as cluster:
        cluster.daemon(3, torchupd)
        endpoint = f"{cluster.address(3)}:29400"
        steady = [cluster.start(node, nnodes="2:3", endpoint=endpoint) for node in range(2)]
        for _ in range(3):
            before = len(cluster.rounds())
            agent = cluster.start(2, nnodes="2:3", endpoint=endpoint)
            cluster.round_of(3, after=before)
            before = len(cluster.rounds())
            agent.signal(signal.SIGKILL)
            agent.process.wait()
            cluster.round_of(2, after=before)
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
        agents = [cluster.start(node, nnodes="2:3", endpoint=endpoint, lease=6) for node in range(3)]
        cluster.round_of(3)
        daemon.kill()
        daemon.wait()
        time.sleep(1)
        cluster.daemon(3, torchupd)
        time.sleep(7)  # more than the lease
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
                                 timeout=60)
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
        agents = [cluster.start(node, nnodes=2, endpoint=f"{cluster.address(2)}:29400", lease=2) for node in range(2)]
        first = cluster.round_of(2)
        os.kill(daemon.pid, signal.SIGSTOP)
        wait_for("workers are fenced", lambda: not any(alive(entry["pid"]) for entry in first))
        os.kill(daemon.pid, signal.SIGCONT)
        cluster.round_of(2, after=1)
        cluster.release()
        for agent in agents:
            agent.ends_with(0)
        assert set(cluster.restart_counts()) == {0}


if __name__ == "__main__":
    main(scenarios)
