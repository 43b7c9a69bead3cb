"""Starts the ranks of a small job and collects what they say. For scripts that run_case.py, beside this file, runs."""

import os
import socket
import subprocess

LIMIT = 120  # seconds for any one job


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


def run(command, world_size, **more):
    """A job of `world_size` ranks on this machine."""
    port = free_port()
    job = Job()
    for rank in range(world_size):
        job.start(command, contract(rank, world_size, port, **more))
    return job.finish()
