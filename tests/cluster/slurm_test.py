"""torchup under a real Slurm (slurm_cluster.py).

usage: slurm_test.py TORCHUP [unittest options]      skipped where there is no slurmctld, no slurmd, or no right to mount
"""

import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path

from slurm_cluster import GPUS, Cluster, why_not

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from waiting import until  # noqa: E402

TORCHUP = os.path.abspath(sys.argv.pop(1))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/slurm"
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

    def fails(self, code, *words):
        """What a job says that ends with this code."""
        done = self.cluster.run(*words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def plans(self, *words):
        """What the tasks of this say that they would do, by their node ranks."""
        text = self.run_job(*words, TORCHUP, "--dry-run", "true")
        return [dict(re.findall(r"^(\S[\w ]*?)  +(.*)$", part, re.M))
                for part in re.split(r"(?=^scheduler )", text, flags=re.M) if part.strip()]

    def test_one_task_per_node(self):
        said = self.run_job("srun", "-N2", "-n2", TORCHUP, "--nproc-per-node=2", "sh", "-c", PLACE)
        self.assertEqual(sorted(said.splitlines()), ["0/4 n1 0/4 0 0", "1/4 n1 1/4 0 1", "2/4 n2 2/4 1 0", "3/4 n2 3/4 1 1"])

    def test_one_task_per_worker(self):
        said = self.run_job("srun", "-N2", "--ntasks-per-node=2", "-m", "cyclic", TORCHUP, "sh", "-c", PLACE)
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
        told = self.cluster.folder / "spare"
        worker = f"echo $RANK/$WORLD_SIZE; until grep -q 'nodes: 3' {told}.0; do sleep 0.05; done"  # all have come
        said = self.run_job("srun", "-N3", "-n3", "sh", "-c",
                            f'exec {TORCHUP} --nnodes=2 sh -c "$0" 2> {told}.$SLURM_NODEID', worker)
        self.assertEqual(sorted(said.split()), ["0/2", "1/2"])

    def test_a_spare_that_comes_after_the_end_hears_of_it(self):
        over = self.cluster.folder / "over"
        over.unlink(missing_ok=True)
        task = f"[ $SLURM_NODEID != 2 ] || until [ -e {over} ]; do sleep 0.02; done; " \
               f"exec {TORCHUP} --nnodes=2 --rdzv-conf=join_timeout=30 touch {over}"
        self.run_job("srun", "-N3", "-n3", "sh", "-c", task)

    def test_two_steps_at_once_on_the_same_nodes(self):
        step = f"srun --overlap -N2 -n2 {TORCHUP} sh -c 'echo $TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE'"
        said = self.run_job("salloc", "-N2", "sh", "-c", f"{step} & {step} & wait")
        lines = sorted(line.split() for line in said.splitlines())
        self.assertEqual([place for _, place in lines], ["0/2", "1/2", "0/2", "1/2"])
        self.assertEqual(len({run_id for run_id, _ in lines}), 2)

    def test_a_port_that_is_taken(self):
        taken = f"{sys.executable} -c 'import socket, sys, time; s = socket.create_server((\"\", int(sys.argv[1]))); " \
                "print(\"held\", flush=True); time.sleep(100)'"
        job = f"""exec 3< <(exec {taken} $({sys.executable} {self.port_program()} slurm.{self.cluster.name}.$SLURM_JOB_ID.0.0))
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
        """Also with what it leaves to be filled in."""
        program = ("sh", "-c", "echo \"it's\" $WORLD_SIZE $SLURM_JOB_CPUS_PER_NODE")
        for options, filled, said in (
                (["--nnodes=1:2"], {}, ["it's 2 1(x2)"] * 2),
                ([], {"nodes=N": "nodes=2", "gpus-per-node=N": "gpus-per-node=1", "exclusive": "exclusive"}, ["it's 2 4(x2)"] * 2)):
            text = self.run_job(TORCHUP, "--print-batch-script=slurm", *options, *program)
            for blank, value in filled.items():
                self.assertIn(f"\n##SBATCH --{blank}", text)
                text = text.replace(f"\n##SBATCH --{blank}", f"\n#SBATCH --{value}")
            self.assertEqual(self.submitted(text), said)

    def test_a_printed_script_lets_nodes_save_where_the_first_code_would_end_the_step(self):
        """As KillOnBadExit=1 in slurm.conf has it, and this variable."""
        left, saved = self.cluster.folder / "left", self.cluster.folder / "kept"
        worker = f"if [ $RANK = 1 ]; then echo $PPID > {left}.new; mv {left}.new {left}; exit 75; fi; " \
                 f"until [ -e {left} ]; do sleep 0.05; done; while kill -0 $(cat {left}) 2>/dev/null; do sleep 0.05; done; " \
                 f"sleep 3; touch {saved}; exit 75"
        text = self.run_job(TORCHUP, "--print-batch-script=slurm", "--nnodes=2", "sh", "-c", worker)
        file = self.cluster.folder / "saves.sbatch"
        file.write_text(text)
        path = os.path.dirname(TORCHUP) + ":" + os.environ["PATH"]
        number, said = self.started_job(file, PATH=path, SLURM_KILL_BAD_EXIT="1")
        until(lambda: self.state(number) == "FAILED", f"the job ends: {said()}")
        self.assertTrue(saved.exists(), said())

    def submitted(self, script, *options):
        """The lines that workers of a batch script print, once it has ended well."""
        out, file = self.cluster.folder / "job.out", self.cluster.folder / "job.sbatch"
        out.unlink(missing_ok=True)
        file.write_text(script)
        path = os.path.dirname(TORCHUP) + ":" + os.environ["PATH"]
        number = self.run_job("sbatch", "--parsable", *options, "-o", out, file, PATH=path).strip()
        until(lambda: self.state(number) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), "the job ends")
        self.assertEqual(self.state(number), "COMPLETED", out.read_text())
        return sorted(line for line in out.read_text().splitlines() if line.startswith("it's"))

    def test_the_examples_are_what_sbatch_takes(self):
        """With this cluster's nodes and GPUs instead of theirs."""
        (self.cluster.folder / "train.py").write_text("import os\nprint(\"it's\", *(os.environ[name] for name in "
                                                      "('RANK', 'WORLD_SIZE', 'SLURM_JOB_CPUS_PER_NODE')))\n")
        examples = {"train": 2, "longer_than_its_limit": 2, "save_and_come_back": 2, "elastic": 3}
        self.assertEqual({path.stem for path in EXAMPLES.glob("*.sbatch")}, set(examples))
        for name, nodes in examples.items():
            said = self.submitted((EXAMPLES / f"{name}.sbatch").read_text(), f"--nodes={nodes}", f"--gpus-per-node={GPUS}")
            workers = nodes * GPUS
            self.assertEqual(said, [f"it's {rank} {workers} 4(x{nodes})" for rank in range(workers)], name)

    def test_a_task_that_does_not_start_is_named(self):
        said = self.fails(66, "srun", "-N2", "-n2", "sh", "-c",
                          f"[ $SLURM_NODEID = 1 ] || exec {TORCHUP} --rdzv-conf=join_timeout=2 echo started")
        self.assertRegex(said, "too few nodes .*n2")

    def test_all_ports_taken(self):
        hold = self.cluster.folder / "hold.py"
        hold.write_text("""import socket, sys, time
value = 2166136261
for byte in sys.argv[1].encode():
    value = (value ^ byte) * 16777619 & 0xFFFFFFFF
held = [socket.create_server(("", 20000 + (value + index * 4099) % 12288)) for index in range(4)]
print("held", flush=True)
time.sleep(100)
""")
        job = f"""exec 3< <(exec {sys.executable} {hold} slurm.{self.cluster.name}.$SLURM_JOB_ID.0.0)
read -u 3 held; srun -N2 -n2 {TORCHUP} --rdzv-conf=join_timeout=10 echo started; code=$?; kill $!; exit $code"""
        said = self.fails(67, "salloc", "-N2", "bash", "-c", job)
        self.assertRegex(said, r"each of the ports \d+ by pid \d+ \(.*hold.py")
        self.assertNotIn("started", said)

    # Several tasks on a node.

    def test_nodes_with_unlike_counts_of_tasks(self):
        said = self.run_job("srun", "-N2", "-n3", TORCHUP, "sh", "-c", PLACE)
        self.assertEqual(sorted(said.splitlines()), ["0/3 n1 0/3 0 0", "1/3 n1 1/3 0 1", "2/3 n2 2/3 1 0"])

    def test_gpus_that_are_bound_to_tasks_are_their_workers(self):
        program = (TORCHUP, "sh", "-c", "echo $GROUP_RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES")
        bound = ["0 0 0,1", "0 1 0,1", "1 0 0,1", "1 1 0,1"]
        said = self.run_job("srun", "-N2", "--ntasks-per-node=2", "--gpus-per-task=1", *program)
        self.assertEqual(sorted(said.splitlines()), bound)
        # One task per node has a worker for each.
        said = self.run_job("srun", "-N2", "--ntasks-per-node=1", "--gres=gpu:2", *program)
        self.assertEqual(sorted(said.splitlines()), bound)

    def test_gpus_that_are_bound_to_single_tasks_are_refused(self):
        # As where devices are constrained: every task's own is its 0.
        said = self.fails(65, "srun", "-N1", "--ntasks-per-node=2", "--gres=gpu:2", "--gpu-bind=map_gpu:0,0", TORCHUP, "echo",
                          "started")
        self.assertIn("--ntasks-per-node=1, or --gpu-bind=none", said)
        self.assertNotIn("started", said)
        said = self.run_job("srun", "-N1", "--ntasks-per-node=2", "--gres=gpu:2", "--gpu-bind=none", TORCHUP, "echo", "started")
        self.assertEqual(said, "started\nstarted\n")

    def test_array_tasks_at_once_on_the_same_nodes(self):
        out = self.cluster.folder / "array"
        step = f"srun -N2 -n2 {TORCHUP} sh -c 'echo $TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE'"
        self.run_job("sbatch", "-W", "--array=0-1", "-N2", "-n2", "-o", f"{out}.%a", "--wrap", step)
        said = [re.findall(r"^(slurm\S+) (\d/2)$", Path(f"{out}.{task}").read_text(), re.M) for task in range(2)]
        for lines in said:
            self.assertEqual(sorted(place for _, place in lines), ["0/2", "1/2"])
            self.assertEqual(len({run_id for run_id, _ in lines}), 1)
        self.assertNotEqual(said[0][0][0], said[1][0][0])

    # One report.

    def test_one_node_has_the_report(self):
        said = self.fails(1, "srun", "-N2", "-n2", TORCHUP, "--nproc-per-node=2", "sh", "-c", "[ $RANK = 2 ] && exit 3; exec sleep 100")
        self.assertEqual(said.count("Root Cause"), 1)
        self.assertEqual(said.count("exit code 1: rank 2 failed with exit code 3 on n2, which has the report"), 1)
        self.assertEqual(said.count("OMP_NUM_THREADS"), 1)

    # Nodes that die.

    def started_job(self, *words, **more):
        """A job in the background, and the file of its output."""
        out = self.cluster.folder / f"out-{self.id()}"
        number = self.run_job("sbatch", "--parsable", "--open-mode=append", "-o", out, *words, **more).strip()
        self.addCleanup(self.cluster.run, "scancel", "--signal=KILL", "--full", number)
        return number, lambda: out.read_text() if out.exists() else ""

    def state(self, number):
        shown = self.cluster.run("scontrol", "show", "job", "-o", number).stdout
        return re.search(r" JobState=(\S+)", shown).group(1)

    def dies(self, node):
        self.cluster.kill_node(node)
        self.addCleanup(self.cluster.begin_node, node)

    def test_a_dead_node_is_done_without(self):
        worker = "echo $RANK/$WORLD_SIZE $SLURMD_NODENAME; [ $WORLD_SIZE = 3 ] && exec sleep 100; exit 0"
        number, said = self.started_job("-N3", "-n3", "--no-kill", "--wrap",
                                        f"srun --no-kill --kill-on-bad-exit=0 {TORCHUP} --nnodes=2:3 sh -c '{worker}'")
        until(lambda: said().count("/3 n") == 3, "three nodes work")
        self.dies("n3")
        until(lambda: self.state(number) == "COMPLETED", f"two go on, and the job ends: {said()}")
        self.assertEqual(sorted(re.findall(r"./2 n.", said())), ["0/2 n1", "1/2 n2"])

    def test_a_spare_takes_the_place_of_a_dead_node(self):
        worker = "echo $RANK/$WORLD_SIZE $SLURMD_NODENAME $TORCHELASTIC_RESTART_COUNT; exec sleep 100"
        _, said = self.started_job("-N3", "-n3", "--no-kill", "--wrap",
                                   f"srun --no-kill --kill-on-bad-exit=0 {TORCHUP} --nnodes=2 sh -c '{worker}'")
        until(lambda: said().count("/2 n") == 2, "two nodes work")
        [dead] = set(re.findall(r"/2 (n[23]) 0", said()))  # node 0 has the coordinator
        spare = {"n2": "n3", "n3": "n2"}[dead]
        self.dies(dead)
        until(lambda: f"/2 {spare} 0" in said(), f"the spare works: {said()}")

    # Signals.

    COUNTS = """
import os, signal, sys
counted = 0
def count(*_):
    global counted
    counted += 1
    print("counted", os.environ["RANK"], flush=True)
def end(*_):
    print("in all", os.environ["RANK"], counted, flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, count)
signal.signal(signal.SIGUSR2, end)
print("started", flush=True)
while True:
    signal.pause()
"""

    def test_each_worker_gets_a_signal_once(self):
        program = self.cluster.folder / "counts.py"
        program.write_text(self.COUNTS)
        number, said = self.started_job("-N2", "-n4", "--wrap", f"srun {TORCHUP} {sys.executable} {program}")
        until(lambda: said().count("started") == 4, "four workers")
        self.run_job("scancel", "--signal=USR1", number)
        until(lambda: said().count("counted") >= 4, "each has it")
        self.run_job("scancel", "--signal=USR2", number)
        until(lambda: said().count("in all") == 4, "all end")
        self.assertEqual(sorted(re.findall(r"in all (\d \d)", said())), [f"{rank} 1" for rank in range(4)])
        until(lambda: self.state(number) == "COMPLETED", "the job ends")

    def test_a_step_that_gets_term_ends_with_143_and_one_report(self):
        number, said = self.started_job("-N2", "-n2", "--wrap", f"srun {TORCHUP} sh -c 'echo started; exec sleep 100'; echo code $?")
        until(lambda: said().count("started") == 2, "two workers")
        # On a busy machine tasks of a step run before Slurm lets it be signalled.
        until(lambda: self.cluster.run("scancel", "--signal=TERM", f"{number}.0").returncode == 0, "the step is there")
        # In a line of its own: the node that has no report says this code too, and may do so before the report is written.
        until(lambda: "\ncode 143\n" in said(), f"the step ends: {said()}")
        self.assertEqual(said().count("SignalException"), 1, said())

    # The end of the time, and back into the queue.

    SAVES = """
echo run ${SLURM_RESTART_COUNT:-0} $RANK
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
trap "echo saved $RANK; exit 0" TERM
while :; do sleep 0.05; done
"""

    def saving_job(self, *words):
        program = self.cluster.folder / "saves.sh"
        program.write_text(self.SAVES)
        told = self.cluster.folder / "told"
        torchup = " ".join(word for word in words if word.startswith("--stop") or word.startswith("--requeue="))
        slurm = [word for word in words if word not in torchup.split()]
        agent = self.cluster.folder / "agent.sh"
        agent.write_text(f"exec {TORCHUP} {torchup} sh {program} 2>> {told}.$SLURM_NODEID\n")
        number, said = self.started_job("-N2", "-n2", "--requeue", *slurm, "--wrap", f"srun sh {agent}")
        until(lambda: said().count("run 0") == 2, f"it runs: {said()}")
        return number, said, lambda: "".join(Path(f"{told}.{node}").read_text() for node in range(2))

    def starts_now(self, number):
        """The job's state. One that is in the queue again starts now, and not two minutes later, which Slurm says last of
        all when it puts it there."""
        if self.state(number) == "PENDING":
            self.cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")
        return self.state(number)

    def comes_back(self, number, said, ranks=2):
        until(lambda: self.state(number) == "PENDING", f"it is in the queue again: {said()}")
        end = int(time.time())  # nodes start nothing of a job in the second in which they ended it
        until(lambda: int(time.time()) > end, "the next second")
        until(lambda: self.starts_now(number) == "COMPLETED", f"it comes back and ends: {said()}")
        self.assertEqual(sorted(re.findall(r"^run 1 \d", said(), re.M)), [f"run 1 {rank}" for rank in range(ranks)])

    def test_a_job_that_is_longer_than_its_time_saves_and_comes_back(self):
        number, said, told = self.saving_job("--time=1", "--stop-before=55s", "--requeue=3")
        until(lambda: said().count("saved") == 2, f"both save: {told()}")
        until(lambda: "goes back into the queue" in told(), f"it says so: {told()}")
        self.assertEqual(told().count("goes back into the queue"), 1)
        self.comes_back(number, said)

    def test_array_tasks_with_seats_come_back_each(self):
        program, out = self.cluster.folder / "saves.sh", self.cluster.folder / "saving"
        program.write_text(self.SAVES)
        number = self.run_job("sbatch", "--parsable", "--array=0-1", "-N2", "--ntasks-per-node=2", "--requeue", "--time=1",
                              "--open-mode=append", "-o", f"{out}.%a", "--wrap",
                              f"srun {TORCHUP} --stop-before=50s --requeue=3 sh {program}").strip()
        self.addCleanup(self.cluster.run, "scancel", "--signal=KILL", "--full", number)
        said = [lambda path=Path(f"{out}.{task}"): path.read_text() if path.exists() else "" for task in range(2)]
        for task, text in enumerate(said):
            until(lambda: f"job {number}_{task} goes back into the queue" in text(), f"it says so: {text()}")
            self.assertEqual(text().count("saved"), 4, text())
        for task, text in enumerate(said):
            self.comes_back(f"{number}_{task}", text, 4)

    def test_a_cancelled_job_never_comes_back(self):
        number, said, _ = self.saving_job("--requeue=3")
        self.run_job("scancel", number)
        until(lambda: self.state(number) == "CANCELLED", "it is over")
        told = [(self.cluster.folder / f"told.{node}").read_text() for node in range(2)]  # srun reads no more by then
        self.assertIn("does not go back into the queue: Slurm says that it is C", told[0])
        self.assertNotIn("queue", told[1])
        self.assertNotIn("run 1", said())

    def test_a_job_that_makes_room_for_another_comes_back(self):
        number, said, told = self.saving_job("--partition=low", "--exclusive", "--requeue=3")
        other = self.run_job("sbatch", "--parsable", "--partition=high", "--exclusive", "-N3", "--wrap", "true").strip()
        until(lambda: "goes back into the queue" in told(), f"it says so: {told()}")
        until(lambda: self.state(other) == "COMPLETED", "the other one has run")
        self.comes_back(number, said)

if __name__ == "__main__":
    unittest.main()
