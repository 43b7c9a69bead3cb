"""Nodes on one machine: network namespaces on one bridge, each with a host name of its own, and jobs that run on them.

Everything is removed when the `with` block ends: processes by the pids that were started here, namespaces by name.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from torchupd import Torchupd  # noqa: E402
from workers_log import WorkersLog  # noqa: E402

IPV6 = os.path.exists("/proc/net/if_inet6")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def wait_for(what, condition, limit=40.0):
    """The condition's first true value; fails when `limit` seconds pass without one."""
    until = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.005)


def alive(pid):
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Agent:
    """One launcher on one node."""

    def __init__(self, cluster, node, command):
        self.node, self.cluster = node, cluster
        self.number = len(cluster.agents)
        self.out = cluster.dir / f"agent{self.number}.out"
        self.err = cluster.dir / f"agent{self.number}.err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(cluster.on(node, command), stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                            start_new_session=True, env=cluster.environment)

    def processes(self):
        """The agent's own: the one that users signal, and the one below it."""
        below = [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]
        return [self.process.pid, *below]

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        for pid in self.processes():
            os.kill(pid, signal.SIGSTOP)

    def resume(self):
        for pid in reversed(self.processes()):
            os.kill(pid, signal.SIGCONT)

    def ends_with(self, *codes, limit=40.0):
        try:
            got = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {self.number} on node{self.node} still runs after {limit} s") from None
        if got not in codes:
            raise AssertionError(f"agent {self.number} on node{self.node} ended with {got}, not {' or '.join(map(str, codes))}")

    def said(self):
        return self.err.read_text(errors="replace")


class Cluster(WorkersLog):
    def __init__(self, launcher, nodes):
        if os.geteuid() != 0:
            skip("network namespaces need root")
        self.launcher = launcher
        self.count = nodes
        self.name = f"tu{os.getpid()}"
        self.agents, self.others = [], []
        self.environment = dict(os.environ, TORCHUP_CLUSTER_TEST=self.name)

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="torchup-cluster-")
        self.dir = Path(self.directory.name)
        self.begin_log(self.dir)
        self.spaces = []
        try:
            self._make_spaces()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            self.__exit__(None, None, None)
            skip(f"network namespaces cannot be made here: {error}")
        return self

    def _make_spaces(self):
        self._add_space("sw")
        self.ip("sw", "link", "add", "bridge0", "type", "bridge")
        self.ip("sw", "link", "set", "bridge0", "up")
        for node in range(self.count):
            self._add_space(node)
            subprocess.run(["ip", "link", "add", "eth0", "netns", self.space(node), "type", "veth", "peer", "name",
                            f"port{node}", "netns", self.space("sw")], check=True, capture_output=True)
            self.ip("sw", "link", "set", f"port{node}", "master", "bridge0", "up")
            self.ip(node, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            self.ip(node, "link", "set", "eth0", "up")

    def _add_space(self, node):
        subprocess.run(["ip", "netns", "add", self.space(node)], check=True, capture_output=True)
        self.spaces.append(self.space(node))
        self.ip(node, "link", "set", "lo", "up")

    def __exit__(self, kind, error, trace):
        if kind:
            print(self.report())
        for process in [agent.process for agent in self.agents] + self.others:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGCONT)
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        for pid in {entry["pid"] for entry in self.started()}:
            if alive(pid) and self.ours(pid):
                os.kill(pid, signal.SIGKILL)
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        self.directory.cleanup()

    def report(self):
        text = [f"--- workers: {self.log.read_text()}"]
        for agent in self.agents:
            text.append(f"--- agent {agent.number} on node{agent.node}, status {agent.process.poll()}:\n{agent.said()}")
        if (self.dir / "daemon.err").exists():
            text.append(f"--- daemon:\n{(self.dir / 'daemon.err').read_text(errors='replace')}")
        return "\n".join(text)

    def space(self, node):
        return f"{self.name}-{node}"

    def address(self, node):
        return f"10.79.0.{node + 1}"

    def ip(self, node, *words):
        subprocess.run(["ip", "-n", self.space(node), *words], check=True, capture_output=True)

    def on(self, node, command):
        """The command as it runs on that node."""
        return ["nsenter", f"--net=/run/netns/{self.space(node)}", "unshare", "--uts", "sh", "-c",
                'hostname "$1"; shift; exec "$@"', "sh", f"node{node}", *map(str, command)]

    def ours(self, pid):
        try:
            return f"TORCHUP_CLUSTER_TEST={self.name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # gone, or somebody else's
            return False

    def leftovers(self):
        """Live processes of this test's jobs, the ended agents' included."""
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and self.ours(entry) and alive(entry)]

    # Faults of the network.

    def link(self, node, state):
        self.ip("sw", "link", "set", f"port{node}", state)

    def drop_output(self, node, to=()):
        """What the node sends (to these nodes) is lost; what others send arrives."""
        where = f"ip daddr {{ {', '.join(map(self.address, to))} }} " if to else ""
        rules = f"add table inet t; add chain inet t o {{ type filter hook output priority 0; }}; add rule inet t o oif eth0 {where}drop"
        subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", "nft", rules], check=True)

    def limit_rates(self):
        """All ways between nodes are equally slow, whatever else this machine does: as fast as a busy one always is."""
        for node in range(self.count):
            subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", "tc", "qdisc", "add", "dev", "eth0", "root",
                            "tbf", "rate", "100mbit", "burst", "128kb", "latency", "50ms"], check=True)

    def reset_output(self, node, to=None):
        """What the node sends (to node `to`) is lost, and its own kernel says that the connection was reset."""
        where = "" if to is None else f"ip daddr {self.address(to)} "
        rules = ("add table inet t; add chain inet t o { type filter hook output priority 0; }; "
                 f"add rule inet t o oif eth0 {where}meta l4proto tcp reject with tcp reset")
        subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", "nft", rules], check=True)

    def silence_names(self, node):
        """Name servers do not answer there; a command on that node goes behind what this returns."""
        rules = "add table inet n; add chain inet n i { type filter hook input priority 0; }; add rule inet n i udp dport 53 drop"
        subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", "nft", rules], check=True)
        (self.dir / "resolv.conf").write_text("nameserver 127.77.0.1\n")
        return ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"', "sh",
                self.dir / "resolv.conf"]

    def heal_output(self, node):
        subprocess.run(["nsenter", f"--net=/run/netns/{self.space(node)}", "nft", "delete table inet t"], check=True)

    # Jobs.

    def start(self, node, *options, nnodes, workers=1, conf="", endpoint=None, program=(), lease=10.0, behind=()):
        """An agent on that node; the rendezvous is on node 0 unless `endpoint` names another.

        A busy machine lets an agent stand still for a second: who wants a short lease wants somebody given up by it.
        """
        conf = ",".join(filter(None, ["join_timeout=20,last_call_timeout=1", conf]))
        command = [self.launcher, f"--nnodes={nnodes}", f"--nproc-per-node={workers}", "--rdzv-id=job1",
                   "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint or self.address(0) + ':29400'}",
                   f"--rdzv-conf={conf}", f"--lease={lease}", "--shutdown-timeout=2", *options,
                   *(program or self.worker())]
        if not program:
            command.insert(-4, "--no-python")
        self.agents.append(Agent(self, node, [*behind, *command]))
        return self.agents[-1]

    def daemon(self, node, torchupd, *options):
        with open(self.dir / "daemon.err", "ab") as log:
            process = Torchupd(torchupd, "--bind", "::" if IPV6 else "0.0.0.0", *options, behind=self.on(node, []), port=29400, stderr=log,
                               env=self.environment, start_new_session=True).process
        self.others.append(process)
        return process

    def nothing_left(self, limit=10.0):
        wait_for("no process of the jobs lives", lambda: not self.leftovers(), limit)
        self.check_ranks()

    def nothing_left_but_daemon(self):
        daemons = {process.pid for process in self.others}
        wait_for("no process of the jobs lives", lambda: not set(self.leftovers()) - daemons)
        self.check_ranks()


scenarios = {}


def scenario(function):
    """One that `main(scenarios)` runs by its name."""
    scenarios[function.__name__] = function
    return function


def main(scenarios):
    """Runs the scenario that the command line names: PROGRAM SCENARIO LAUNCHER TORCHUPD."""
    if len(sys.argv) != 4 or sys.argv[1] not in scenarios:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(scenarios)} LAUNCHER TORCHUPD")
    scenarios[sys.argv[1]](Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve())
    print("ok")


def matches(pattern, text):
    return re.search(pattern, text) is not None
