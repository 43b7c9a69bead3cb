"""Pods on one machine: what a container of Kubernetes sees of the world, made of namespaces, and nothing of Kubernetes.

A pod has a network namespace with an address of its own on one bridge, and namespaces of processes, where its command is
number 1, of mounts and of its host name. Its /dev is a container's: /dev/shm has 64 MiB, /dev/termination-log is a file.
Names are lines in one file of hosts that all pods have, which stands for DNS: they are written when the test says so.

For scripts of unittest cases. Everything is removed at the end of the case.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path

from cluster import Cluster, wait_for
from waiting import children

# Arguments: the pod's folder, its name, its network namespace is entered already; then the command. Variables READ_ONLY and
# RUN_AS say how. The world outside is seen by nobody in here but through /.
BEGIN = r"""
set -e
folder=$1; hostname "$2"; shift 2
mount -t proc proc /proc
cd "$folder/dev"
for name in null zero full random urandom tty; do touch "$name"; mount --bind "/dev/$name" "$name"; done
ln -s /proc/self/fd fd; ln -s /proc/self/fd/0 stdin; ln -s /proc/self/fd/1 stdout; ln -s /proc/self/fd/2 stderr
mkdir shm; mount -t tmpfs -o size=64m,mode=1777 shm shm
touch termination-log; mount --bind "$folder/termination-log" termination-log
mount --rbind . /dev
mount --bind "$folder/hosts" /etc/hosts
if [ -n "$READ_ONLY" ]; then
  mount --bind "$READ_ONLY" "$READ_ONLY"  # what the test has there is a volume
  mount -o remount,bind,ro /
fi
cd /
user=$RUN_AS
unset READ_ONLY RUN_AS
[ -z "$user" ] || set -- setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all -- "$@"
exec "$@"
"""


ASK = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=20)
connection.request("GET", sys.argv[3])
answer = connection.getresponse()
sys.stdout.write(f"{answer.status} {answer.read().decode()}")
"""


class Pod:
    """One that runs, until it is deleted or the case ends. `number` is its address's."""

    def __init__(self, pods, number, name, command, variables, domain="", read_only=False, uid=None):
        self.pods, self.number, self.name = pods, number, name
        self.folder = pods.dir / f"pod{len(pods.all)}"
        (self.folder / "dev").mkdir(parents=True)
        self.termination_log = self.folder / "termination-log"
        self.termination_log.touch()
        self.termination_log.chmod(0o666)
        # The kubelet's own lines: this pod's name, the long one in front.
        self.own_line = f"{pods.address(number)}\t{f'{name}.{domain}' if domain else name}\t{name}\n"
        self.hosts = self.folder / "hosts"
        self.tell_names()
        environment = {"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
                       "HOSTNAME": name, pods.mark[0]: pods.mark[1], **variables}
        environment.update(READ_ONLY=str(pods.dir) if read_only else "", RUN_AS="" if uid is None else str(uid))
        self.out, self.err = self.folder / "out", self.folder / "err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{pods.space(number)}", "unshare", "--mount", "--uts", "--pid", "--fork",
                 "--kill-child", "sh", "-c", BEGIN, "sh", str(self.folder), name, *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True)

    def tell_names(self):
        """In place: the file is mounted in the pod."""
        with open(self.hosts, "w") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n" + self.own_line + "".join(self.pods.names))

    def looks_names_up(self, times):
        """Waits until names have been looked up so often from now on: the file of hosts has been read."""
        for _ in range(times):
            self.tell_names()  # so that the next reading counts, where only the first one after a change does (relatime)

            def read():
                status = self.hosts.stat()
                return status.st_atime_ns > status.st_mtime_ns

            wait_for("names are looked up", read)
        return True

    def said(self):
        return self.err.read_text(errors="replace")

    def wrote(self):
        return self.out.read_text(errors="replace")

    def first(self):
        """The number by which the test knows the pod's process 1."""
        return wait_for("a pod begins", lambda: children(self.process.pid))[0]

    def terminate(self):
        """As the kubelet begins to delete a pod: SIGTERM to process 1."""
        os.kill(self.first(), signal.SIGTERM)

    def delete(self):
        """At once, as when its machine is gone: the kernel ends all in it."""
        os.kill(self.first(), signal.SIGKILL)
        self.process.wait()

    def code(self, limit=60):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {limit} s: {self.said()}") from None


class Pods(Cluster):
    """So many network namespaces for pods, and one of the machine's own, the last, for who asks from outside."""

    def __init__(self, launcher, count, family=socket.AF_INET):
        super().__init__(launcher, count + 1)
        self.family = family
        self.outside = count
        self.mark = ("TORCHUP_CLUSTER_TEST", self.name)
        self.names, self.all = [], []

    def address(self, number):
        return f"fd79::{number + 1:x}" if self.family == socket.AF_INET6 else super().address(number)

    def _make_spaces(self):
        super()._make_spaces()
        if self.family == socket.AF_INET6:
            for node in range(self.count):  # its address at once, and no other
                self.ip(node, "address", "flush", "dev", "eth0")
                self.ip(node, "address", "add", f"{self.address(node)}/64", "dev", "eth0", "nodad")

    def __enter__(self):
        super().__enter__()
        self.dir.chmod(0o755)
        self.log.chmod(0o666)
        return self

    def __exit__(self, *error):
        for pod in self.all:
            if pod.process.poll() is None:
                pod.delete()
        super().__exit__(*error)

    def start(self, number, name, command, variables, **how):
        pod = Pod(self, number, name, command, variables, **how)
        self.all.append(pod)
        self.others.append(pod.process)
        return pod

    def report(self):
        return "\n".join([f"--- workers: {self.log.read_text()}", *(
            f"--- pod {pod.name}, status {pod.process.poll()}:\n{pod.wrote()}\n{pod.said()}" for pod in self.all)])

    def name_pod(self, number, *names):
        """From now on these names lead to that address, and nowhere else."""
        self.names = [line for line in self.names if not set(line.split()[1:]) & set(names)]
        self.names.append(f"{self.address(number)}\t{' '.join(names)}\n")
        for pod in self.all:
            if pod.process.poll() is None:
                pod.tell_names()

    def probe(self, number, port, path):
        """What the kubelet is told, which asks from outside of the pod: status and text; None where nobody answers."""
        done = subprocess.run(["nsenter", f"--net=/run/netns/{self.space(self.outside)}", sys.executable, "-S", "-c", ASK,
                               self.address(number), str(port), path], capture_output=True, text=True)
        status, _, text = done.stdout.partition(" ")
        return (int(status), text) if done.returncode == 0 else None


class PodsCase(unittest.TestCase):
    """For cases with pods. The script sets `launcher`."""
    launcher = None

    def pods(self, count, family=socket.AF_INET):
        if not shutil.which("setpriv"):
            raise unittest.SkipTest("setpriv is missing")
        try:
            made = Pods(self.launcher, count, family)
            made.__enter__()
        except SystemExit:  # Cluster's way to skip, which has said why
            raise unittest.SkipTest("network namespaces cannot be made here") from None
        self.addCleanup(lambda: made.__exit__(None, None, None))
        self.addCleanup(lambda: print(made.report()))
        return made
