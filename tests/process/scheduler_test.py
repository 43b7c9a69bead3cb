"""What torchup takes from schedulers' variables, tried with real agents and workers; the schedulers' own programs are
stood in for by scripts.

usage: scheduler_test.py TORCHUP EXAMPLES [unittest options]
"""

import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

TORCHUP = os.path.abspath(sys.argv.pop(1))
EXAMPLES = Path(sys.argv.pop(1))
FOREIGN = ("SLURM", "PMI", "OMPI_", "MPI_", "PBS_", "LSB_", "PE_", "PET_", "KUBERNETES_", "MASTER_", "TORCH")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def run(*words, program=TORCHUP, **variables):
    return subprocess.run([program, *words], capture_output=True, text=True, env={**CLEAN, **variables}, timeout=60)


def slurm_step(node=0, nodes=2, tasks=1, **more):
    """A task of a step whose nodes are addresses of this machine."""
    hosts = f"127.0.0.[1-{nodes}]"
    counts = f"{tasks}(x{nodes})" if nodes > 1 else str(tasks)
    step = {
        "SLURM_CLUSTER_NAME": "c", "SLURM_JOB_ID": str(random.randrange(1, 1 << 30)), "SLURM_JOB_NODELIST": hosts,
        "SLURM_STEP_NODELIST": hosts, "SLURM_STEP_ID": "0", "SLURM_NNODES": str(nodes), "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(nodes * tasks), "SLURM_STEP_NUM_TASKS": str(nodes * tasks), "SLURM_TASKS_PER_NODE": counts,
        "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": f"127.0.0.{node + 1}",
    }
    return {**step, **more}


class Scheduler(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def test_two_agents_of_a_step_make_one_job(self):
        job = slurm_step()["SLURM_JOB_ID"]
        agents = [subprocess.Popen([TORCHUP, "sh", "-c", "echo $RANK/$WORLD_SIZE $SLURM_PROCID $SLURM_NTASKS $SLURM_NODEID"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**CLEAN, **slurm_step(node, SLURM_JOB_ID=job, SLURM_GPUS_ON_NODE="2")})
                  for node in range(2)]
        said = [agent.communicate(timeout=60) for agent in agents]
        for node, agent in enumerate(agents):
            self.assertEqual(agent.returncode, 0, said)
            self.assertEqual(sorted(said[node][0].splitlines()),
                             [f"{rank}/4 {rank} 4 {node}" for rank in (2 * node, 2 * node + 1)])

    def test_workers_have_no_place_but_their_own(self):
        step = slurm_step(nodes=1, SLURM_TASK_PID="7", SLURM_GTIDS="0", SLURM_NTASKS_PER_NODE="1", PMI_RANK="0", PMI_FD="9",
                          PMIX_RANK="0", OMPI_MCA_ess_x="1", OMPI_MCA_btl="tcp")
        done = run("--nproc-per-node=2", "sh", "-c", "[ $RANK = 0 ] || env", **step)
        self.assertEqual(done.returncode, 0, done.stderr)
        worker = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        self.assertEqual({name: worker.get(name) for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                                                              "SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")},
                         {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2",
                          "SLURM_STEP_TASKS_PER_NODE": "2"})
        for name in ("SLURM_TASK_PID", "SLURM_GTIDS", "PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_MCA_ess_x"):
            self.assertNotIn(name, worker)
        self.assertEqual(worker["OMPI_MCA_btl"], "tcp")
        self.assertEqual(worker["TORCHELASTIC_RUN_ID"], f"slurm.c.{step['SLURM_JOB_ID']}.0.0")

    def tasks(self, *words, count=2, bound=None, **variables):
        """The tasks of a node, each started as srun starts it; their codes and outputs, in their order."""
        step = slurm_step(nodes=1, tasks=count)
        started = []
        for task in range(count):
            own = {name: value[task] for name, value in variables.items()}
            bind = (lambda cpu=bound[task]: os.sched_setaffinity(0, {cpu})) if bound else None
            started.append(subprocess.Popen([TORCHUP, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                            preexec_fn=bind, env={**CLEAN, **step, "SLURM_LOCALID": str(task), **own}))
        self.addCleanup(lambda: [task.kill() for task in started])
        return started

    def test_one_task_per_worker_is_one_agent_with_seats(self):
        cpus = sorted(os.sched_getaffinity(0))
        bound = [cpus[0], cpus[-1]]
        tasks = self.tasks("sh", "-c", "grep Cpus_allowed_list /proc/self/status; echo $LOCAL_RANK $LOCAL_WORLD_SIZE "
                           "$CUDA_VISIBLE_DEVICES", "x", bound=bound, CUDA_VISIBLE_DEVICES=("0", "1"))
        said = [task.communicate(timeout=60) for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [0, 0], said)
        self.assertEqual(said[1], ("", ""))
        lines = said[0][0].splitlines()
        for rank, cpu in enumerate(bound):
            self.assertIn(f"{rank} 2 0,1", lines)
            self.assertIn(f"Cpus_allowed_list:\t{cpu}", lines)
        tasks = self.tasks("sh", "-c", "exit 7")
        said = [task.communicate(timeout=60) for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [1, 1], said)

    def node_tasks(self, job, node, *words):
        """Both tasks of one of two nodes, on one machine."""
        return [lambda task=task: subprocess.Popen(
            [TORCHUP, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**CLEAN, **slurm_step(node, tasks=2, SLURM_JOB_ID=job, SLURM_LOCALID=str(task))}) for task in range(2)]

    def test_nodes_on_one_machine_have_seats_of_their_own(self):
        job = str(random.randrange(1, 1 << 30))
        nodes = [self.node_tasks(job, node, "sh", "-c", "echo $RANK/$WORLD_SIZE") for node in range(2)]
        started = [start() for pair in zip(*nodes) for start in pair]  # the agents first
        said = [task.communicate(timeout=60) for task in started]
        self.assertEqual([task.returncode for task in started], [0] * 4, said)
        self.assertEqual([sorted(out.split()) for out, _ in said], [["0/4", "1/4"], ["2/4", "3/4"], [], []])

    def test_a_node_that_cannot_seat_its_tasks_ends_the_job_everywhere(self):
        job = str(random.randrange(1, 1 << 30))
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(taken.close)
        taken.bind(f"\0torchup.slurm.c.{job}.0.0.1.{os.geteuid()}")
        words = ("sh", "-c", "echo started; exec sleep 100")  # on a node that does not wait for this one
        second = self.node_tasks(job, 1, *words)[0]()  # nobody is there to be told yet
        self.assertIn("Address already in use", second.stderr.readline())
        first = [start() for start in self.node_tasks(job, 0, *words)]
        said = [task.communicate(timeout=60) for task in [second, *first]]
        self.assertEqual([task.returncode for task in [second, *first]], [66] * 3, said)
        self.assertEqual(said[0][0], "")

    def test_of_two_reasons_for_which_a_node_can_start_nothing_the_first_is_told(self):
        step = slurm_step(nodes=1, tasks=2, PATH=str(self.folder))
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(taken.close)
        taken.bind(f"\0torchup.slurm.c.{step['SLURM_JOB_ID']}.0.0.0.{os.geteuid()}")
        for options, code, told, untold in ((["--requeue=3"], 2, "scontrol, which does it, is not on PATH", "Address already in use"),
                                            ([], 66, "Address already in use", "scontrol")):
            ended = run(*options, "--no-python", "/bin/true", **step)
            self.assertEqual((ended.returncode, ended.stdout), (code, ""), ended.stderr)
            self.assertIn(told, ended.stderr)
            self.assertNotIn(untold, ended.stderr)

    def test_no_worker_starts_where_the_node_that_comes_last_cannot_seat_its_tasks(self):
        job = str(random.randrange(1, 1 << 30))
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(taken.close)
        taken.bind(f"\0torchup.slurm.c.{job}.0.0.1.{os.geteuid()}")
        words = ("sh", "-c", "echo started; exec sleep 100")
        first = [start() for start in self.node_tasks(job, 0, *words)]
        while (line := first[0].stderr.readline()) and "1 of 2 nodes" not in line:
            pass
        self.assertIn("not heard of: 127.0.0.2", line)
        last = self.node_tasks(job, 1, *words)[0]()
        said = [task.communicate(timeout=60) for task in [*first, last]]
        self.assertEqual([task.returncode for task in [*first, last]], [66] * 3, said)
        self.assertEqual([out for out, _ in said], [""] * 3)
        self.assertIn("127.0.0.2: unfit: the socket of this node's tasks", said[0][1])

    def test_the_node_that_has_the_report_writes_the_files_of_the_job(self):
        """A name for each, to see who does."""
        fails = ("sh", "-c", "[ $RANK = 0 ] && exec sleep 100; exit 3")
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}  # has files of its own
        for words, more, code, writers in ((("true",), {}, 0, [0]), (fails, {}, 1, [1]), (fails, pod, 1, [0, 1])):
            job = str(random.randrange(1, 1 << 30))
            agents = [subprocess.Popen([TORCHUP, f"--result-file={self.folder}/{job}.result.{node}",
                                        f"--termination-log={self.folder}/{job}.last.{node}", *words], stderr=subprocess.PIPE,
                                       text=True, env={**CLEAN, **slurm_step(node, SLURM_JOB_ID=job), **more})
                      for node in range(2)]
            said = [agent.communicate(timeout=60)[1] for agent in agents]
            self.assertEqual([agent.returncode for agent in agents], [code] * 2, said)
            written = sorted(path.name for path in self.folder.glob(f"{job}.*"))
            kinds = ("last", "result") if code else ("result",)
            self.assertEqual(written, [f"{job}.{kind}.{node}" for kind in kinds for node in writers])
            for node in writers:
                result = json.loads((self.folder / f"{job}.result.{node}").read_text())
                self.assertEqual((result["host"], result["exit_code"]), (f"127.0.0.{node + 1}", code))

    def test_the_files_of_the_job_are_those_of_a_node_that_is_there_at_its_end(self):
        daemon = subprocess.Popen([TORCHUP + "d", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lambda: (daemon.kill(), daemon.wait(), daemon.stdout.close()))
        endpoint = daemon.stdout.readline().split()[-1]
        words = ("sh", "-c", "[ $WORLD_SIZE = 2 ] || exit 0; echo started; exec sleep 100")
        for number in (signal.SIGKILL, signal.SIGTERM):
            job = str(random.randrange(1, 1 << 30))
            agents = [subprocess.Popen([TORCHUP, f"--rdzv-endpoint={endpoint}", "--nnodes=1:2",
                                        f"--result-file={self.folder}/{job}.{node}", *words], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True,
                                       env={**CLEAN, **slurm_step(node, SLURM_JOB_ID=job)}) for node in range(2)]
            self.addCleanup(lambda started=agents: [agent.kill() for agent in started])
            self.assertEqual([agent.stdout.readline() for agent in agents], ["started\n"] * 2)
            agents[0].send_signal(number)
            said = [agent.communicate(timeout=60) for agent in agents]
            self.assertEqual(agents[1].returncode, 0, said)
            self.assertEqual([path.name for path in self.folder.glob(f"{job}.*")], [f"{job}.1"], said)
            result = json.loads((self.folder / f"{job}.1").read_text())
            self.assertEqual((result["host"], result["exit_code"]), ("127.0.0.2", 0))

    def test_gpus_that_are_bound_to_single_tasks_are_refused(self):
        tasks = self.tasks("sh", "-c", "echo started", CUDA_VISIBLE_DEVICES=("0", "0"), SLURM_GPUS_ON_NODE=("2", "2"))
        said = [task.communicate(timeout=60) for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [65, 65], said)
        self.assertEqual([out for out, _ in said], ["", ""])
        self.assertIn("--gpu-bind=none", said[0][1])

    def test_signals_do_nothing_to_a_seat_and_its_agents_death_ends_it(self):
        agent, seat = self.tasks("sh", "-c", "echo started; exec sleep 100")
        self.assertEqual(agent.stdout.readline(), "started\n")
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            seat.send_signal(number)
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=60)
        seat.communicate(timeout=60)
        self.assertEqual((agent.returncode, seat.returncode), (143, 143))
        agent, seat = self.tasks("sh", "-c", "echo started; exec sleep 100")
        self.assertEqual(agent.stdout.readline(), "started\n")
        agent.kill()
        _, err = seat.communicate(timeout=60)
        self.assertEqual(seat.returncode, 70)
        self.assertIn("its agent, has ended without a word", err)

    def test_a_seats_death_is_nothing_to_the_job(self):
        agent, seat = self.tasks("sh", "-c", "trap 'exit 0' USR1; echo started; while :; do sleep 0.02; done")
        for _ in range(2):
            self.assertEqual(agent.stdout.readline(), "started\n")
        seat.kill()
        seat.communicate(timeout=60)
        agent.send_signal(signal.SIGUSR1)
        self.assertEqual(agent.communicate(timeout=60)[0], "")
        self.assertEqual(agent.returncode, 0)

    @unittest.skipUnless(shutil.which("mpiexec.hydra"), "there is no mpiexec.hydra (Debian: mpich)")
    def test_two_runs_of_mpiexec_in_one_batch_job_are_two_jobs(self):
        """Both are there at once, with their seats on the same node."""
        program = ("sh", "-c", f'touch {self.folder}/$TORCHELASTIC_RUN_ID; while [ "$(ls {self.folder} | wc -l)" -lt 2 ]; do '
                   "sleep 0.02; done; echo $RANK/$WORLD_SIZE")
        job = {"SLURM_CLUSTER_NAME": "c", "SLURM_JOB_ID": str(random.randrange(1, 1 << 30))}
        runs = [subprocess.Popen(["mpiexec.hydra", "-rmk", "user", "-launcher", "fork", "-n", "2", TORCHUP, *program],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**CLEAN, **job})
                for _ in range(2)]
        self.addCleanup(lambda: [run.kill() for run in runs])
        said = [run.communicate(timeout=60) for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], said)
        self.assertEqual([sorted(out.split()) for out, _ in said], [["0/2", "1/2"]] * 2)

    def test_in_a_pod_probes_come_from_outside(self):
        for pod, reached in (({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True), ({}, False)):
            with socket.socket() as free:
                free.bind(("", 0))
                port = free.getsockname()[1]
            agent = subprocess.Popen([TORCHUP, "sh", "-c", "echo started; exec sleep 100"], stdout=subprocess.PIPE, text=True,
                                     env={**CLEAN, **pod, "TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
            try:
                self.assertEqual(agent.stdout.readline(), "started\n")

                def ask(host):
                    with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=10) as answer:
                        return answer.read()

                self.assertEqual(ask("127.0.0.1"), b"ok\n")
                if reached:
                    self.assertEqual(ask("127.0.0.2"), b"ok\n")
                else:
                    with self.assertRaises(urllib.error.URLError):
                        ask("127.0.0.2")
            finally:
                agent.terminate()
                agent.communicate(timeout=60)

    def test_the_plan_says_where_values_came_from(self):
        step = slurm_step(1, SLURM_GPUS_ON_NODE="4", PET_MAX_RESTARTS="1")
        text = run("--dry-run", "--shutdown-timeout=9", "true", **step).stdout
        for line in ("scheduler         slurm", "nodes             2  (SLURM_STEP_NUM_NODES)",
                     "node rank         1  (SLURM_NODEID)", "hosts             127.0.0.1 127.0.0.2  (SLURM_STEP_NODELIST)",
                     "workers here      4  (SLURM_GPUS_ON_NODE)", "stop              signal, 9 s, SIGKILL  (--shutdown-timeout)"):
            self.assertIn(line + "\n", text)
        plan = json.loads(run("--dry-run", "--format=json", "true", **step).stdout)
        self.assertEqual(plan["scheduler"], "slurm")
        self.assertEqual(plan["workers"], {"value": 4, "from": "SLURM_GPUS_ON_NODE"})
        self.assertIsNone(json.loads(run("--dry-run", "--format=json", "true").stdout)["scheduler"])

    def test_under_torchruns_name_nothing_is_derived(self):
        for name in ("torchrun", "torchup-launch"):
            link = self.folder / name
            link.symlink_to(TORCHUP)
            words = ("--dry-run", "--format=json", "true")
            self.assertIsNone(json.loads(run(*words, program=link, **slurm_step()).stdout)["scheduler"])
            told = run("--scheduler=slurm", *words, program=link, **slurm_step()).stdout
            self.assertEqual(json.loads(told)["scheduler"], "slurm")
        self.assertEqual(run("true", program=self.folder / "torchrun", SLURM_JOB_ID="x").returncode, 0)

    def test_wrong_variables_are_refused_in_one_line(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        endless = self.folder / "large"
        with open(endless, "wb") as file:
            file.truncate((16 << 20) + 1)
        cases = (({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x"), (slurm_step(SLURM_LOCALID="1"), "SLURM_LOCALID=1"),
                 ({"PBS_NODEFILE": str(pipe)}, "PBS_NODEFILE="), ({"PBS_NODEFILE": str(endless)}, "more than 16 MiB"),
                 ({"PBS_NODEFILE": "/dev/zero"}, "PBS_NODEFILE=/dev/zero"), ({"PBS_NODEFILE": "/none"}, "No such file"),
                 ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}, "not where node 0 is"))
        for variables, text in cases:
            done = run("sh", "-c", "echo started", **variables)
            self.assertEqual((done.returncode, done.stdout), (2, ""), variables)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertEqual(run("--scheduler=none", "sh", "-c", "echo started", **variables).stdout, "started\n")
        done = run("--scheduler=lsf", "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("LSB_JOBID", done.stderr)

    def test_one_process_in_a_job_of_several_nodes_is_told_so(self):
        batch = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-4]", "SLURMD_NODENAME": "n1"}
        done = run("true", **batch)
        self.assertEqual(done.returncode, 0)
        self.assertIn("this Slurm job has 4 nodes and this runs on n1 alone", done.stderr)
        self.assertEqual(run("--standalone", "true", **batch).stderr, "")

    def test_a_printed_batch_script_starts_what_it_was_printed_for(self):
        program = ["it's", "a b", "$HOME", "`x`", "two\nlines"]
        printed = run("--print-batch-script=slurm", "--nnodes=2:3", "--role=a b", *program)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("#SBATCH --nodes=3\n", printed.stdout)
        self.script("srun", r"""printf '%s\0' "$@" """)
        job = self.folder / "job"
        job.write_text(printed.stdout)
        done = subprocess.run(["bash", job], capture_output=True, text=True, env={"PATH": f"{self.folder}:/usr/bin:/bin"})
        self.assertEqual(done.stdout.split("\0")[:-1],
                         ["--no-kill", "--kill-on-bad-exit=0", "torchup", "--nnodes=2:3", "--role=a b", *program])
        self.assertEqual(run("--print-batch-script=slurm", "--nnodes=x", "true").returncode, 2)
        refused = run("--print-batch-script=kubernetes", "x.py", b"a\xff")
        self.assertEqual((refused.returncode, refused.stdout, refused.stderr.count("\n")), (2, "", 1), refused.stderr)
        self.assertIn("'a\\xff' is not UTF-8", refused.stderr)

    def test_the_examples_are_command_lines_of_ours(self):
        self.script("srun", 'while [[ $1 == --* ]]; do shift; done; shift; exec "$TORCHUP" --dry-run "$@"')
        self.script("squeue", "echo 1:00:00")
        self.script("scontrol", "exit 1")
        (self.folder / "train.py").touch()
        jobs = sorted((EXAMPLES / "slurm").glob("*.sbatch"))
        self.assertEqual(len(jobs), 4)
        for job in jobs:
            done = subprocess.run(["bash", job], capture_output=True, text=True, cwd=self.folder,
                                  env={**CLEAN, "PATH": f"{self.folder}:{CLEAN['PATH']}", "TORCHUP": TORCHUP, **slurm_step(nodes=5)})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("scheduler         slurm\n", done.stdout)
            stops = "save and stop" in done.stdout
            self.assertEqual(stops, job.name in ("longer_than_its_limit.sbatch", "save_and_come_back.sbatch"), job)
            self.assertTrue(not stops or "\nsrun --kill-on-bad-exit=0 torchup " in job.read_text(), job)

    def test_the_lines_of_the_readme_are_command_lines_of_ours(self):
        """Of jobs of several nodes, behind what starts them there; pod_test.py starts those of pods."""
        self.script("squeue", "echo 1:00:00")
        self.script("scontrol", "exit 1")
        for name in ("train.py", "alive.sh"):
            (self.folder / name).touch()
        (self.folder / "hosts").write_text("h1\nh2:8\nh3 slots=8 addr=10.0.0.3\n")
        seen = {}
        for words in self.lines_of_the_readme():
            around = {
                "srun": slurm_step(nodes=5), "torchup": {"PBS_NODEFILE": str(self.folder / "hosts")} if "auto" in words else {},
                "mpirun": {f"OMPI_COMM_WORLD_{name}": value for name, value in
                           (("SIZE", "2"), ("RANK", "0"), ("LOCAL_SIZE", "1"), ("LOCAL_RANK", "0"))},
            }[words[0]]
            at = words.index("torchup")
            given = dict(word.split("=") for word in words[:at] if word.startswith("MASTER_ADDR="))
            done = subprocess.run([TORCHUP, "--dry-run", "--format=json", *words[at + 1:]], capture_output=True, text=True,
                                  cwd=self.folder, env={**CLEAN, "PATH": f"{self.folder}:{CLEAN['PATH']}", **around, **given})
            self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
            plan = json.loads(done.stdout)
            seen.setdefault(words[0], []).append((plan["scheduler"], plan["nodes"]["value"]))
        self.assertEqual(seen, {
            "srun": [("slurm", "5"), ("slurm", "3:4"), ("slurm", "5")], "mpirun": [("openmpi", "2")],
            "torchup": [(None, "4"), (None, "3"), (None, "1:1024"), (None, "3"), (None, "2")]})

    @staticmethod
    def lines_of_the_readme():
        text = (EXAMPLES.parent / "README.md").read_text()
        for line in re.findall(r"^(?:(?:srun|mpirun) .*torchup|torchup --host).*$", text, re.M):
            yield shlex.split(line, comments=True)

    def test_a_job_that_is_saved_comes_back_and_no_other(self):
        self.script("srun", "exit ${CODE}")
        self.script("scontrol", f'echo "$@" >> {self.folder}/asked')
        job = EXAMPLES / "slurm/save_and_come_back.sbatch"

        def asked(**variables):
            (self.folder / "asked").write_text("")
            done = subprocess.run(["bash", job], env={"PATH": f"{self.folder}:/usr/bin:/bin", **variables})
            self.assertEqual(done.returncode, int(variables["CODE"]))
            return (self.folder / "asked").read_text()

        self.assertEqual(asked(CODE="75", SLURM_JOB_ID="7"), "requeue 7\n")
        self.assertEqual(asked(CODE="75", SLURM_JOB_ID="7", SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="2"), "requeue 5_2\n")
        self.assertEqual(asked(CODE="75", SLURM_JOB_ID="7", SLURM_RESTART_COUNT="20"), "")
        for code in ("0", "1", "143"):
            self.assertEqual(asked(CODE=code, SLURM_JOB_ID="7"), "")


if __name__ == "__main__":
    unittest.main()
