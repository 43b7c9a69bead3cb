"""Hosts on one machine that a real sshd reaches: network namespaces on one bridge, each with a host name, a home, a
/etc/hosts and a /etc/passwd of its own. The front, which starts jobs on them, is a host too, without sshd.

Everything is removed when the `with` block ends: what lives in the namespaces, then these.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from waiting import until  # noqa: E402

FRONT = "front"
ADMINISTRATION = os.environ["PATH"] + ":/usr/sbin:/sbin"
SSHD = shutil.which("sshd", path=ADMINISTRATION)

# What a command of a host begins with: $1 the test's folder, $2 the host.
ENTER = """#!/bin/sh
folder=$1 host=$2
shift 2
hostname "$host"
mount -t tmpfs none /run && mkdir /run/sshd
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/$host/passwd" /etc/passwd
mount --bind "$folder/shadow" /etc/shadow
while read -r hidden; do mount -t tmpfs none "$hidden"; done <"$folder/$host/hidden"
while read -r real other; do mount --bind "$other" "$real"; done <"$folder/$host/replaced"
export HOME="$folder/$host/home" HOSTNAME="$host"
exec "$@"
"""


def why_not():
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (SSHD and shutil.which("ssh")):
        return "there is no sshd (Debian: openssh-server)"
    if not shutil.which("nsenter") or not shutil.which("ip", path=ADMINISTRATION):
        return "there is no nsenter or no ip (Debian: iproute2)"
    tried = ["unshare", "--mount", "--uts", "--net", "mount", "-t", "tmpfs", "none", "/run"]
    if subprocess.run(tried, capture_output=True).returncode:
        return "no right to namespaces"
    return None


def read(path):
    """A file of /proc; empty when its process has just gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def program(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def parent(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


class SshHosts:
    """`hidden`: by host, folders that are empty there; `replaced`: by host, files that are other files there; `shells`:
    by host, whose login shell is not bash; `greetings`: by host, what a login shell runs first."""

    def __init__(self, names=("h1", "h2", "h3"), hidden=None, replaced=None, shells=None, greetings=None):
        self.names = tuple(names)
        self.hidden, self.replaced = hidden or {}, replaced or {}
        self.shells, self.greetings = shells or {}, greetings or {}
        self.prefix = f"tu{os.getpid()}"
        self.servers, self.spaces = {}, {}

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="torchup-hosts-")
        self.folder = Path(self.directory.name)
        try:
            self._write_files()
            self._make_spaces()
            for name in self.names:
                self.start_server(name)
            until(lambda: all(map(self._listens, self.names)), "every sshd listens")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _write_files(self):
        (self.folder / "enter").write_text(ENTER)
        (self.folder / "enter").chmod(0o755)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{self.address(name)} {name}\n" for name in (*self.names, FRONT)))
        for key in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/key.pub\nPidFile none\nUsePAM no\nUseDNS no\n"
            "StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxStartups 200\nLogLevel ERROR\n")
        (self.folder / "shadow").write_text("root:*:1:0:99999:7:::\n")  # sshd lets nobody in whose password is locked by !
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        for name in (*self.names, FRONT):
            home = self.folder / name / "home"
            (home / ".ssh").mkdir(parents=True)
            shell = shutil.which(self.shells.get(name, "bash"))
            (self.folder / name / "passwd").write_text("\n".join([f"root:x:0:0:root:{home}:{shell}", *others, ""]))
            (self.folder / name / "hidden").write_text("".join(f"{path}\n" for path in self.hidden.get(name, ())))
            (self.folder / name / "replaced").write_text(
                "".join(f"{real} {other}\n" for real, other in self.replaced.get(name, {}).items()))
            (home / ".bashrc").write_text(self.greetings.get(name, ""))
        ssh = self.folder / FRONT / "home/.ssh"
        (ssh / "config").write_text(f"IdentityFile {self.folder}/key\nUserKnownHostsFile {self.folder}/known_hosts\n")
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        (self.folder / "known_hosts").write_text(f"* {kind} {key}\n")

    def _make_spaces(self):
        self._add_space("switch")
        self.ip("switch", "link", "add", "bridge0", "type", "bridge")
        self.ip("switch", "link", "set", "bridge0", "up")
        for name in (*self.names, FRONT):
            self._add_space(name)
            subprocess.run(["ip", "link", "add", "eth0", "netns", self.space(name), "type", "veth", "peer", "name", name,
                            "netns", self.space("switch")], check=True, capture_output=True)
            self.ip("switch", "link", "set", name, "master", "bridge0", "up")
            self.ip(name, "address", "add", f"{self.address(name)}/16", "dev", "eth0")
            self.ip(name, "link", "set", "eth0", "up")

    def _add_space(self, name):
        subprocess.run(["ip", "netns", "add", self.space(name)], check=True, capture_output=True)
        self.spaces[name] = os.stat(f"/run/netns/{self.space(name)}").st_ino
        self.ip(name, "link", "set", "lo", "up")

    def _listens(self, name):
        server = self.servers[name]
        if server.poll() is not None:
            raise AssertionError(f"{name}: sshd has ended: {self.folder.joinpath(name, 'sshd.log').read_text()}")
        if server.pid not in self.everything(name):  # not there yet: these would be others' listeners
            return False
        return any(line.split()[3] == b"0A" for line in read(f"/proc/{server.pid}/net/tcp").splitlines()[1:])

    def __exit__(self, *_):
        for name in self.spaces:
            for pid in self.everything(name):
                self.kill(pid)
        for server in self.servers.values():
            server.wait()
        for name in self.spaces:
            subprocess.run(["ip", "netns", "delete", self.space(name)], capture_output=True)
        self.directory.cleanup()

    def space(self, name):
        return f"{self.prefix}-{name}"

    def address(self, name):
        index = (*self.names, FRONT).index(name)
        return f"10.79.{index // 250}.{index % 250 + 1}"

    def ip(self, name, *words):
        subprocess.run(["ip", "-n", self.space(name), *words], check=True, capture_output=True)

    def on(self, name, *words):
        """The command as it runs on that host."""
        return ["nsenter", f"--net=/run/netns/{self.space(name)}", "unshare", "--uts", "--mount", str(self.folder / "enter"),
                str(self.folder), name, *map(str, words)]

    def start_server(self, name):
        with open(self.folder / name / "sshd.log", "ab") as log:
            self.servers[name] = subprocess.Popen(self.on(name, SSHD, "-D", "-e", "-f", self.folder / "sshd_config"),
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self, *words, host=FRONT, env=None, **more):
        """Begins on the front's host, in the folder `work`, which all hosts see; the process that begins is the command's."""
        self.work.mkdir(exist_ok=True)
        return subprocess.Popen(self.on(host, *words), env=self.environment if env is None else env,
                                **{"cwd": self.work, "stdin": subprocess.DEVNULL, **more})

    def run(self, *words, limit=100, **more):
        """The same to its end; its output is text."""
        process = self.start(*words, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more})
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            for pid in self.everything(FRONT):
                self.kill(pid)
            out, err = process.communicate()
            raise AssertionError(f"still runs after {limit} s: {words}\n{out}{err}") from None
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @property
    def work(self):
        return self.folder / "work"

    @property
    def environment(self):
        foreign = ("SLURM", "PMI", "OMPI_", "MPI_", "PET_", "TORCH", "SSH_", "MASTER_")
        return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}

    # What lives there.

    def everything(self, name):
        """All processes of that host that live; zombies do not."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino == self.spaces[name] and read(f"/proc/{pid}/cmdline"):
                    found.append(int(pid))
            except OSError:  # it has gone
                pass
        return found

    def processes(self, name):
        """The same but for sshd's own, of which one for each connection may wait for a client that is gone."""
        return [pid for pid in self.everything(name) if program(pid) != "sshd"]

    def left(self):
        """By host, what lives there."""
        found = {name: [f"{pid} {read(f'/proc/{pid}/cmdline').decode(errors='replace')!r}" for pid in self.processes(name)]
                 for name in (*self.names, FRONT)}
        return {name: lives for name, lives in found.items() if lives}

    def nothing_left(self, limit=5.0):
        """Of the job: `limit` seconds after its end no host has a process of it, the front's own included."""
        try:
            until(lambda: not self.left(), "nothing lives on any host", limit)
        except AssertionError as error:
            raise AssertionError(f"{error}; there is {self.left()}") from None

    # What befalls them.

    def kill(self, pid, number=signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def link(self, name, state):
        """What it sends and is sent, to all or nobody."""
        self.ip("switch", "link", "set", name, state)
