"""torchup started by MPI's mpiexec.hydra, over ssh on hosts of a real sshd and inside a job of a real Slurm, and programs of
MPI as its workers.

usage: mpi_test.py TORCHUP [unittest options]      skipped without mpiexec.hydra (Debian: mpich), and as the hosts are
"""

import ctypes.util
import os
import shutil
import sys
import tempfile
import unittest

import slurm_cluster
from fan_out import HostCase, until

TORCHUP = os.path.abspath(sys.argv.pop(1))
HYDRA = shutil.which("mpiexec.hydra")
PLACE = ("sh", "-c", 'echo "$RANK/$WORLD_SIZE $GROUP_RANK $LOCAL_RANK $(hostname)"')
# Says how many are in its world, where MPI lets it begin.
MPI_WORKER = """
import ctypes, os, sys
mpi = ctypes.CDLL("libmpich.so.12")
assert mpi.MPI_Init(None, None) == 0
size = ctypes.c_int()
mpi.MPI_Comm_size(0x44000000, ctypes.byref(size))
print(f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']}: MPI world of {size.value}", flush=True)
mpi.MPI_Finalize()
"""


def needs_hydra(case):
    if not HYDRA:
        case.skipTest("there is no mpiexec.hydra (Debian: mpich)")


class OverSsh(HostCase):
    torchup = TORCHUP

    def setUp(self):
        needs_hydra(self)

    def mpiexec(self, hosts, *words, ppn=1, code=0, names=None):
        done = hosts.run(HYDRA, "-launcher", "ssh", "-hosts", ",".join(names or hosts.names), "-ppn", str(ppn), *words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        hosts.nothing_left()
        return done

    def test_an_endpoint_is_given(self):
        hosts = self.hosts("h1", "h2")
        done = self.mpiexec(hosts, TORCHUP, "--rdzv-endpoint=h1:29500", "--nproc-per-node=2", *PLACE)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0/4 0 0 h1", "1/4 0 1 h1", "2/4 1 0 h2", "3/4 1 1 h2"])

    def test_the_first_host_is_told_by_the_environment(self):
        hosts = self.hosts("h1", "h2")
        done = self.mpiexec(hosts, "-genv", "MASTER_ADDR", "h1", TORCHUP, *PLACE)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0/2 0 0 h1", "1/2 1 0 h2"])

    def test_several_processes_on_a_host_are_its_workers(self):
        hosts = self.hosts("h1", "h2")
        done = self.mpiexec(hosts, "-genv", "MASTER_ADDR", "h1", TORCHUP, *PLACE, ppn=2)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0/4 0 0 h1", "1/4 0 1 h1", "2/4 1 0 h2", "3/4 1 1 h2"])

    def test_nobody_says_where_the_first_host_is(self):
        hosts = self.hosts("h1", "h2")
        done = self.mpiexec(hosts, TORCHUP, *PLACE, code=2)
        self.assertIn("mpich says that this is node ", done.stderr)
        self.assertIn("of 2, but not where node 0 is", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_programs_of_mpi_are_workers(self):
        """Each is a world of its own. With the agent's place, which they would all inherit, none would begin."""
        if not ctypes.util.find_library("mpich"):
            self.skipTest("there is no libmpich")
        hosts = self.hosts("h1", "h2")
        done = self.mpiexec(hosts, "-genv", "MASTER_ADDR", "h1", TORCHUP, "--nproc-per-node=2", "--no-python", sys.executable,
                            "-c", MPI_WORKER)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"{rank}/4: MPI world of 1" for rank in range(4)])

    def test_mpiexec_is_killed(self):
        hosts = self.hosts("h1", "h2")
        mpiexec = hosts.start(HYDRA, "-launcher", "ssh", "-hosts", "h1,h2", "-ppn", "1", "-genv", "MASTER_ADDR", "h1", TORCHUP,
                              "--shutdown-timeout=2", "sh", "-c", f"touch {hosts.folder}/ran.$RANK; sleep 1000")
        until(lambda: len(list(hosts.folder.glob("ran.*"))) == 2, "both workers run")
        hosts.kill(mpiexec.pid)
        mpiexec.wait()
        hosts.nothing_left(10)

    def test_the_words_of_open_mpi(self):
        """Its mpirun is stood in for by ssh."""
        hosts = self.hosts("h1", "h2")
        jobs = []
        for rank, name in enumerate(hosts.names):
            place = [f"OMPI_COMM_WORLD_{key}={value}" for key, value in
                     {"SIZE": 2, "RANK": rank, "LOCAL_SIZE": 1, "LOCAL_RANK": 0}.items()]
            out = open(hosts.folder / f"{name}.out", "wb")
            self.addCleanup(out.close)
            tell = "'echo $RANK/$WORLD_SIZE $TORCHELASTIC_RUN_ID ${OMPI_COMM_WORLD_RANK-none}'"
            jobs.append(hosts.start("ssh", "-o", "BatchMode=yes", name, "env", *place, "PMIX_NAMESPACE=job7",
                                    "MASTER_ADDR=h1", TORCHUP, "sh", "-c", tell, stdout=out))
        self.assertEqual([job.wait(60) for job in jobs], [0, 0])
        said = [(hosts.folder / f"{name}.out").read_text() for name in hosts.names]
        self.assertEqual(said, ["0/2 job7 none\n", "1/2 job7 none\n"])


class InSlurm(unittest.TestCase):
    """MPI tells the places, Slurm the hosts, the run id and the end."""

    @classmethod
    def setUpClass(cls):
        if reason := slurm_cluster.why_not():
            raise unittest.SkipTest(reason)
        cls.cluster = slurm_cluster.Cluster(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.addClassCleanup(cls.cluster.stop)
        if not cls.cluster.wait_until_idle():
            raise unittest.SkipTest("Slurm does not start here (is it built with --enable-multiple-slurmd?)")

    def setUp(self):
        needs_hydra(self)

    def mpiexec(self, *words):
        done = self.cluster.run("salloc", "-N2", HYDRA, *words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_the_allocation_s_first_host_is_where_they_meet(self):
        said = self.mpiexec("-ppn", "1", TORCHUP, "sh", "-c", "echo $RANK/$WORLD_SIZE $TORCHELASTIC_RUN_ID")
        self.assertEqual([line.split()[0] for line in sorted(said)], ["0/2", "1/2"])
        run_ids = {line.split()[1] for line in said}
        self.assertEqual(len(run_ids), 1)
        self.assertRegex(run_ids.pop(), r"^slurm\.")

    def test_the_words_of_open_mpi(self):
        """Its mpirun, in the batch script, starts what is on its own node, and by srun a daemon on each of the others."""
        out = self.cluster.folder / "openmpi"
        torchup = f"{TORCHUP} sh -c 'echo $RANK/$WORLD_SIZE $SLURMD_NODENAME $TORCHELASTIC_RUN_ID'"
        place = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_NAMESPACE=job7"
        script = (f"export {place}\nOMPI_COMM_WORLD_RANK=1 srun -N1 -n1 -w n2 {torchup} &\n"
                  f"OMPI_COMM_WORLD_RANK=0 {torchup}; code=$?\nwait $! && exit $code\n")
        done = self.cluster.run("sbatch", "--wait", "-N2", "-w", "n1,n2", "-o", out, "--wrap", script)
        said = out.read_text()
        self.assertEqual(done.returncode, 0, said)
        self.assertRegex("\n".join(sorted(said.splitlines())), r"^0/2 n1 slurm\.(\S+)\n1/2 n2 slurm\.\1\n")

    def test_programs_of_mpi_are_workers(self):
        if not ctypes.util.find_library("mpich"):
            self.skipTest("there is no libmpich")
        said = self.mpiexec("-ppn", "1", TORCHUP, "--no-python", sys.executable, "-c", MPI_WORKER)
        self.assertEqual(sorted(said), ["0/2: MPI world of 1", "1/2: MPI world of 1"])


if __name__ == "__main__":
    unittest.main()
