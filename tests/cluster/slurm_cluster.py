"""A real Slurm on this machine: munged, slurmctld and three slurmd, whose nodes have names of their own and addresses of its
loopback. Each has two GPUs, which are devices without a driver. Jobs of the partition `low` make room for those of `high`."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

NODES = ("n1", "n2", "n3")
ADMINISTRATION = os.environ["PATH"] + ":/usr/sbin:/sbin"


def find(name):
    return shutil.which(name, path=ADMINISTRATION)


# Under these names alone they know what they are: slurmctld-wlm has no GPUs.
CONTROLLER, DAEMON, SRUN = find("slurmctld"), find("slurmd"), find("srun")
MUNGE, GPUS = find("munged"), 2


def plugins():
    """Beside the programs, wherever these are."""
    return next(Path(SRUN).resolve().parents[1].glob("lib*/**/auth_munge.so"), None)


def why_not():
    if not (CONTROLLER and DAEMON and SRUN and MUNGE):
        return "Slurm is not there (Debian: slurm-wlm, munge)"
    if not plugins():
        return "this Slurm has no auth/munge"
    if subprocess.run(["unshare", "-m", "-u", "mount", "--bind", "/etc/hosts", "/etc/hosts"], capture_output=True).returncode:
        return "no right to a mount namespace"
    return None


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def space_of(pid):
    """The process's space of host names; a zombie has none."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")
    except OSError:
        return None


class Cluster:
    def __init__(self, folder):
        self.folder = Path(folder)
        ports = free_ports(1 + len(NODES))
        host = socket.gethostname()
        nodes = "\n".join(f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=100 Gres=gpu:{GPUS}"
                          for name, port in zip(NODES, ports[1:]))
        self.config = self.folder / "slurm.conf"
        # A name of its own: each cluster counts its jobs from 1, and run ids, with ports and seats, are made of both.
        self.name = f"c{ports[0]}"
        self.config.write_text(f"""ClusterName={self.name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/socket
CredType=cred/munge
MpiDefault=none
PluginDir={plugins().parent}
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=p Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
PartitionName=low Nodes=n[1-3] PriorityTier=1 GraceTime=30
PartitionName=high Nodes=n[1-3] PriorityTier=9
""")
        for index in range(GPUS):
            os.mknod(self.folder / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-3] Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {host}\n" + "".join(
            f"127.0.0.{index} {name}\n" for index, name in enumerate(NODES, 1)))
        (self.folder / "state").mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PET_"))}
        self.environment["SLURM_CONF"] = str(self.config)
        self.daemons = [self.start_munge(), self.start(CONTROLLER, "-D", "-f", self.config)]
        self.nodes = {}
        for name in NODES:
            self.begin_node(name)

    def begin_node(self, name):
        step_daemon = Path(DAEMON).resolve().parent / "slurmstepd-wlm"
        words = [DAEMON, "-D", "-N", name, "-f", str(self.config), *(["-d", str(step_daemon)] if step_daemon.exists() else [])]
        begin = f'mount --bind "$0" /etc/hosts && hostname {name} && exec "$@"'
        self.nodes[name] = self.start("unshare", "-m", "-u", "sh", "-c", begin, self.folder / "hosts", *words)

    def kill_node(self, name):
        """Everything that runs there, all at once as far as that goes."""
        node = self.nodes[name]
        if node.poll() is not None:
            return
        space = space_of(node.pid)
        if space in (None, space_of("self")):
            raise AssertionError(f"{name} has no space of its own")
        with open(f"/proc/{node.pid}/ns/uts"):  # else its number becomes that of another one, whose processes we would kill
            while there := [pid for pid in all_pids() if space_of(pid) == space]:
                for pid in there:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                node.poll()

    def start_munge(self):
        """munged trusts no folder that others may write to, wherever above its own."""
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        daemon = self.start(MUNGE, "--foreground", "--force", *(f"--{option}={folder}/{name}" for option, name in files.items()))
        until = time.monotonic() + 30
        while not (folder / "socket").exists() and daemon.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        return daemon

    def start(self, *words):
        return subprocess.Popen([str(word) for word in words], env=self.environment, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def wait_until_idle(self, limit=60):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            shown = self.run("sinfo", "-h", "-N", "-p", "p", "-o", "%N %T").stdout
            if shown.split().count("idle") == len(NODES):
                return True
            if any(daemon.poll() is not None for daemon in [*self.daemons, *self.nodes.values()]):
                return False
            time.sleep(0.2)
        return False

    def run(self, *words, limit=120, **more):
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, env={**self.environment, **more},
                              timeout=limit, cwd=self.folder)

    def stop(self):
        for name in NODES:  # with all that jobs have left there
            self.kill_node(name)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
