"""torchup under a real Slurm (slurm_cluster.py).

usage: slurm_test.py TORCHUP [unittest options]      skipped where there is no slurmctld, no slurmd, or no right to mount
"""

import os
import re
import sys
import tempfile
import unittest

from slurm_cluster import Cluster, why_not

TORCHUP = os.path.abspath(sys.argv.pop(1))
PLACE = 'echo "$RANK/$WORLD_SIZE $SLURMD_NODENAME $SLURM_PROCID/$SLURM_NTASKS $SLURM_NODEID $SLURM_LOCALID"'


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            raise unittest.SkipTest(reason)
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.cluster = Cluster(folder)
        cls.addClassCleanup(cls.cluster.stop)
        if not cls.cluster.wait_until_idle():
            raise unittest.SkipTest("Slurm does not start here (is it built with --enable-multiple-slurmd?)")

    def run_job(self, *words, code=0, **more):
        done = self.cluster.run(*words, **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def plans(self, *words):
        """What the tasks of this say that they would do, by their node ranks."""
        text = self.run_job(*words, TORCHUP, "--dry-run", "true")
        return [dict(re.findall(r"^(\S[\w ]*?)  +(.*)$", part, re.M))
                for part in re.split(r"(?=^scheduler )", text, flags=re.M) if part.strip()]

    def test_one_task_per_node(self):
        said = self.run_job("srun", "-N2", "-n2", TORCHUP, "--nproc-per-node=2", "sh", "-c", PLACE)
        self.assertEqual(sorted(said.splitlines()), ["0/4 n1 0/4 0 0", "1/4 n1 1/4 0 1", "2/4 n2 2/4 1 0", "3/4 n2 3/4 1 1"])

    def test_one_task_per_worker(self):
        said = self.run_job("srun", "-N2", "-n4", "-m", "cyclic", TORCHUP, "sh", "-c", PLACE)
        self.assertEqual(sorted(said.splitlines()), ["0/4 n1 0/4 0 0", "1/4 n1 1/4 0 1", "2/4 n2 2/4 1 0", "3/4 n2 3/4 1 1"])
        self.run_job("srun", "-N2", "-n4", TORCHUP, "sh", "-c", "exit 3", code=1)

    def test_a_step_that_is_smaller_than_its_job(self):
        plans = self.plans("salloc", "-N3", "srun", "-N2", "-n2", "-w", "n3,n1")
        self.assertEqual(sorted(plan["node rank"][0] for plan in plans), ["0", "1"])
        for plan in plans:
            self.assertEqual((plan["nodes"], plan["hosts"]), ("2  (SLURM_STEP_NUM_NODES)", "n1 n3  (SLURM_STEP_NODELIST)"))

    def test_a_heterogeneous_step_is_one_job(self):
        program = (TORCHUP, "sh", "-c", 'echo "$RANK/$WORLD_SIZE $TORCHELASTIC_RUN_ID"')
        said = self.run_job("srun", "-N1", "-n1", *program, ":", "-N1", "-n1", *program).split()
        self.assertEqual(sorted(said[::2]), ["0/2", "1/2"])
        self.assertEqual(len(set(said[1::2])), 1)

    def test_a_spare_stands_by(self):
        said = self.run_job("srun", "-N3", "-n3", TORCHUP, "--nnodes=2", "sh", "-c", "echo $RANK/$WORLD_SIZE")
        self.assertEqual(sorted(said.split()), ["0/2", "1/2"])

    def test_two_steps_at_once_on_the_same_nodes(self):
        step = f"srun --overlap -N2 -n2 {TORCHUP} sh -c 'echo $TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE'"
        said = self.run_job("salloc", "-N2", "sh", "-c", f"{step} & {step} & wait")
        lines = sorted(line.split() for line in said.splitlines())
        self.assertEqual([place for _, place in lines], ["0/2", "1/2", "0/2", "1/2"])
        self.assertEqual(len({run_id for run_id, _ in lines}), 2)

    def test_a_port_that_is_taken(self):
        taken = f"{sys.executable} -c 'import socket, sys, time; s = socket.create_server((\"\", int(sys.argv[1]))); " \
                "print(\"held\", flush=True); time.sleep(100)'"
        job = f"""exec 3< <(exec {taken} $({sys.executable} {self.port_program()} slurm.c.$SLURM_JOB_ID.0.0))
read -u 3 held; srun -N2 -n2 {TORCHUP} sh -c 'echo $RANK/$WORLD_SIZE'; code=$?; kill $!; exit $code"""
        said = self.run_job("salloc", "-N2", "bash", "-c", job)
        self.assertEqual(sorted(said.split()), ["0/2", "1/2"])

    def port_program(self):
        program = self.cluster.folder / "port.py"
        program.write_text("import sys\nvalue = 2166136261\nfor byte in sys.argv[1].encode():\n"
                           "    value = (value ^ byte) * 16777619 & 0xFFFFFFFF\nprint(20000 + value % 12288)\n")
        return program

    def test_a_batch_script_runs_alone_and_says_so(self):
        plan, = self.plans("salloc", "-N3")
        self.assertEqual(plan["nodes"], "1  (default)")
        self.assertIn("this Slurm job has 3 nodes and this runs on ", plan["warning"])

    def test_a_job_that_is_submitted_from_within_a_step_is_not_that_step(self):
        inner = self.cluster.folder / "inner.out"
        inner.unlink(missing_ok=True)
        submit = f"[ $SLURM_PROCID != 0 ] || sbatch -W -N1 -o {inner} --wrap '{TORCHUP} --dry-run --format=json true'"
        self.run_job("srun", "--cpus-per-task=1", "-N2", "-n2", "sh", "-c", submit)
        text = inner.read_text()
        self.assertIn('"value": "1"', text)
        self.assertNotIn("SLURM_STEP", text)

    def test_a_printed_script_is_what_sbatch_takes(self):
        printed = self.run_job(TORCHUP, "--print-batch-script=slurm", "--nnodes=1:2", "sh", "-c", "echo \"it's\" $WORLD_SIZE")
        script = self.cluster.folder / "job.sbatch"
        script.write_text(printed)
        path = os.path.dirname(TORCHUP) + ":" + os.environ["PATH"]
        self.run_job("sbatch", "-W", "-o", self.cluster.folder / "job.out", script, PATH=path)
        said = (self.cluster.folder / "job.out").read_text()
        self.assertEqual(said.count("it's 2\n"), 2, said)


if __name__ == "__main__":
    unittest.main()
