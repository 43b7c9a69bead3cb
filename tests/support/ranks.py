"""Starts the ranks of a small job and collects what they say. For scripts that run_case.py, beside this file, runs."""

import os
import socket
import subprocess
import threading
import time

LIMIT = 120  # seconds for any one job


held_ports = []


def free_port():
    """A port for a server of ours. It is held until this process ends: the kernel gives it to nobody who asks for any port, and who
    connects is refused; but who asks for it by its number with SO_REUSEADDR, as every store does, may listen there."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    held_ports.append(holder)
    return holder.getsockname()[1]


def clean_environment(**values):
    """This process's environment without any launcher's variables, plus `values`; None unsets."""
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "OMPI_", "PMI_", "MPI_", "SLURM_")
    result = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    result["OMP_NUM_THREADS"] = "1"
    result.update({name: str(value) for name, value in values.items() if value is not None})
    return result


def contract(rank, world_size, port, **more):
    """What a launcher sets for one worker of one node."""
    return {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}


class Job:
    """Processes that run at the same time."""

    def __init__(self):
        self.processes = []

    def start(self, command, environment, **more):
        self.processes.append(subprocess.Popen(command, env=clean_environment(**environment), text=True,
                                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def finish(self):
        """[(exit code, stdout, stderr)] by the order of starting."""
        try:
            results = []
            for process in self.processes:
                out, err = process.communicate(timeout=LIMIT)
                results.append((process.returncode, out, err))
            return results
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()


class Relay:
    """A port that leads to another one of this machine. What clients say is kept, and their connections can be cut, by a
    call or, once, before what holds `cut_at` is passed on."""

    def __init__(self, port, cut_at=None):
        self.to, self.cut_at, self.said, self.open, self.lock = port, cut_at, b"", [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = self.connect()
            with self.lock:
                self.open += [client, server]
            threading.Thread(target=self.forward, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.forward, args=(server, client, False), daemon=True).start()

    def connect(self):
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def forward(self, source, target, from_client):
        try:
            while data := source.recv(1 << 16):
                if from_client:
                    self.said += data
                    if self.cut_at and self.cut_at in data:
                        self.cut_at = None
                        return self.cut()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # cut

    def wait_for(self, text, times=1):
        """Until clients have said that."""
        deadline = time.monotonic() + LIMIT
        while self.said.count(text) < times:
            assert time.monotonic() < deadline, (text, self.said[-1000:])
            time.sleep(0.01)

    def cut(self):
        """All connections of now; new ones can be made, also while this goes on."""
        with self.lock:
            ends, self.open = self.open, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was over

    def close(self):
        self.listener.close()
        self.cut()


def run(command, world_size, **more):
    """A job of `world_size` ranks on this machine."""
    port = free_port()
    job = Job()
    for rank in range(world_size):
        job.start(command, contract(rank, world_size, port, **more))
    return job.finish()
