"""Jobs that save before the end of their time and come back, and signals that everybody gets: real agents and workers;
Slurm's commands are stood in for by scripts.

usage: stop_time_test.py TORCHUP [unittest options]
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from waiting import children, until  # noqa: E402

TORCHUP = os.path.abspath(sys.argv.pop(1))
FOREIGN = ("SLURM", "PMI", "OMPI_", "MPI_", "PET_", "KUBERNETES_", "MASTER_", "TORCH")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
# Says that it runs, and ends with a code when the signal comes.
HEARS = "trap 'exit {code}' {signal}; echo started; while :; do sleep 0.02; done"
DEAF = "trap '' TERM; echo started; while :; do sleep 0.02; done"


def in_seconds(seconds):
    """A time of the day's clock; the fraction of its second that is over is the job's to use."""
    return str(int(time.time()) + seconds)


class StopTime(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.job = str(random.randrange(1, 1 << 30))

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def slurm(self, state="RUNNING", preempted="None", requeue="exit 0", left="1:00:00"):
        self.script("squeue", f'echo "squeue $@" >> {self.folder}/asked; echo "{left}"')
        self.script("scontrol", f"""echo "scontrol $@" >> {self.folder}/asked
case $1 in
  show) echo "JobId=7 JobName=x JobState={state} Restarts=0 PreemptTime={preempted} Command=y" ;;
  *) {requeue} ;;
esac""")

    def asked(self):
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def variables(self, node=None, nodes=2):
        """Of a batch script; or of a task of a step, whose nodes are addresses of this machine."""
        hosts = f"127.0.0.[1-{nodes}]" if node is not None else "127.0.0.1"
        job = {"SLURM_CLUSTER_NAME": "c", "SLURM_JOB_ID": self.job, "SLURM_JOB_NODELIST": hosts, "SLURM_NODEID": str(node or 0),
               "SLURM_PROCID": str(node or 0), "SLURM_LOCALID": "0", "SLURMD_NODENAME": f"127.0.0.{(node or 0) + 1}"}
        if node is None:
            return job
        count = {"SLURM_STEP_NODELIST": hosts, "SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": f"1(x{nodes})",
                 "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})"}
        for name in ("NNODES", "STEP_NUM_NODES", "NTASKS", "STEP_NUM_TASKS"):
            count["SLURM_" + name] = str(nodes)
        return {**job, **count}

    def start(self, *words, **variables):
        path = f"{self.folder}:{os.environ['PATH']}"
        agent = subprocess.Popen([TORCHUP, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env={**CLEAN, "PATH": path, **variables})
        self.addCleanup(lambda: (agent.poll() is None and agent.kill(), agent.communicate()))
        return agent

    def end(self, agent, code, limit=60):
        out, err = agent.communicate(timeout=limit)
        self.assertEqual(agent.returncode, code, out + err)
        return err

    def test_workers_are_asked_in_time_and_the_job_ends_with_75(self):
        for code in (0, 3, 75):
            agent = self.start("--nproc-per-node=2", f"--deadline={in_seconds(11)}", "--stop-before=6s@USR1", "sh", "-c",
                               HEARS.format(code=code, signal="USR1"))
            err = self.end(agent, 75)
            self.assertIn("the time of this job ends in ", err)
            self.assertNotIn("FAILED", err)

    def test_workers_that_do_not_save_are_ended_before_the_time_is(self):
        end = int(in_seconds(14))
        agent = self.start(f"--deadline={end}", "--stop-before=10s", "--shutdown-timeout=1", "sh", "-c", DEAF)
        err = self.end(agent, 75)
        self.assertLess(time.time(), end)
        self.assertIn("forcefully exiting", err)

    def test_a_job_that_is_done_first_is_just_done(self):
        agent = self.start(f"--deadline={in_seconds(60)}", "--stop-before=5s", "true")
        self.end(agent, 0)

    def test_one_nodes_time_is_that_of_all(self):
        self.slurm()
        far, near = in_seconds(50), in_seconds(11)
        agents = [self.start(f"--deadline={end}", "--stop-before=6s@USR1", "sh", "-c", HEARS.format(code=0, signal="USR1"),
                             **self.variables(node)) for node, end in enumerate((far, near))]
        said = [self.end(agent, 75) for agent in agents]
        # One report, and who has it.
        self.assertIn("the time of this job ends: its workers were asked to save and stop", said[0])
        self.assertNotIn("has the report", said[0])
        self.assertIn("exit code 75: the time of this job ends", said[1])
        self.assertIn("; 127.0.0.1 has the report", said[1])

    def test_a_node_that_cannot_ask_slurm_stops_with_the_others(self):
        self.script("squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
        words = ("--stop-before=6s@USR1", "sh", "-c", "trap 'echo saved; exit 0' USR1; while :; do sleep 0.02; done")
        asks = self.start(*words, **self.variables(1))
        knows = self.start(f"--deadline={in_seconds(14)}", *words, **self.variables(0))
        self.end(knows, 75)
        out, err = asks.communicate(timeout=60)
        self.assertEqual((asks.returncode, out), (75, "saved\n"), err)
        self.assertIn("Unable to contact slurm controller; this node stops when another one does", err)

    def test_a_node_that_cannot_ask_slurm_goes_on_asking_and_says_so_once(self):
        self.script("squeue", f'echo "squeue $@" >> {self.folder}/asked; echo "Unable to contact slurm controller" >&2; exit 1')
        words = ("--stop-before=6s@USR1", "sh", "-c", HEARS.format(code=0, signal="USR1"))
        asks = self.start(*words, **self.variables(1))
        knows = self.start(f"--deadline={in_seconds(80)}", *words, **self.variables(0))
        self.end(knows, 75, limit=120)
        err = self.end(asks, 75)
        self.assertGreater(len([line for line in self.asked() if line.startswith("squeue")]), 1)
        self.assertEqual(err.count("Unable to contact slurm controller"), 1, err)

    def test_where_the_first_node_cannot_do_it_none_waits(self):
        self.script("squeue", 'echo "Unable to contact slurm controller" >&2; exit 1')
        for option, why in (("--stop-before=5m", "Unable to contact slurm controller; --deadline=UNIX_SECONDS"),
                            ("--requeue=3", "--requeue=3: scontrol, which does it, is not on PATH")):
            self.job = str(random.randrange(1, 1 << 30))
            agents = [self.start(option, "--no-python", "/bin/echo", "started", **{**self.variables(node), "PATH": str(self.folder)})
                      for node in range(2)]
            for agent in agents:
                out, err = agent.communicate(timeout=60)  # nodes that hear nothing wait for ten minutes
                self.assertEqual((agent.returncode, out), (2, ""), err)
                self.assertIn(why, err)

    def test_a_plan_that_none_could_run_is_not_shown(self):
        self.script("squeue", 'echo "Unable to contact slurm controller" >&2; exit 1')
        agent = self.start("--dry-run", "--stop-before=5m", "true", **self.variables(0))
        out, err = agent.communicate(timeout=60)
        self.assertEqual((agent.returncode, out), (2, ""), err)
        self.assertIn("Unable to contact slurm controller", err)

    def test_where_one_node_has_too_little_time_none_waits(self):
        self.slurm(left="1:00")
        enough = self.start(f"--deadline={in_seconds(3600)}", "--stop-before=5m", "--no-python", "/bin/echo", "started",
                            **self.variables(0))
        short = self.start("--stop-before=5m", "--no-python", "/bin/echo", "started", **self.variables(1))
        for agent in (enough, short):
            out, err = agent.communicate(timeout=60)  # nodes that hear nothing wait for ten minutes
            self.assertEqual((agent.returncode, out), (2, ""), err)
            self.assertIn("longer than what is left of the time", err)

    def test_the_node_of_the_first_failure_reports(self):
        self.slurm()
        agents = [self.start("sh", "-c", "[ $RANK = 0 ] && exec sleep 100; exit 3", **self.variables(node)) for node in range(2)]
        said = [self.end(agent, 1) for agent in agents]
        self.assertIn("exit code 1: rank 1 failed with exit code 3 on 127.0.0.2, which has the report", said[0])
        self.assertNotIn("FAILED", said[0])
        self.assertNotIn("Root Cause", said[0])
        self.assertIn("Root Cause (first observed failure)", said[1])

    def test_only_the_first_node_tells_what_all_hear(self):
        agents = [self.start("sh", "-c", "exit 0", **self.variables(node, nodes=3)) for node in (0, 1)]
        while "not heard of" not in (line := agents[0].stderr.readline()):
            self.assertNotEqual(line, "")
        agents.append(self.start("sh", "-c", "exit 0", **self.variables(2, nodes=3)))
        said = [self.end(agent, 0) for agent in agents]
        for text in said[1:]:
            self.assertNotIn("heard of", text)

    # Slurm's word.

    def test_squeue_says_when_the_time_ends_and_is_asked_again(self):
        self.slurm(left="0:11")
        agent = self.start("--stop-before=7s@USR1", "sh", "-c", HEARS.format(code=0, signal="USR1"), **self.variables())
        self.assertEqual(agent.stdout.readline(), "started\n")
        until(lambda: len(self.asked()) == 2, "it is asked again")
        self.end(agent, 75)
        self.assertEqual(self.asked(), [f"squeue -h -j {self.job} -o %L"] * 2)

    def test_a_time_that_was_prolonged_is_not_the_end(self):
        self.script("squeue", f"[ -e {self.folder}/first ] && echo 1:00:00 || echo 0:12; touch {self.folder}/first")
        agent = self.start("--stop-before=6s@USR1", "sh", "-c", "trap 'exit 3' USR1; sleep 8; exit 0", **self.variables())
        self.end(agent, 0)

    def test_without_an_end_there_is_no_start(self):
        for words, variables, text in ((("--stop-before=5m",), {}, "nobody says when the time of this job ends"),
                                       (("--stop-before=5m", f"--deadline={in_seconds(9)}"), {}, "longer than what is left"),
                                       (("--requeue=3",), {}, "no job of Slurm")):
            agent = self.start(*words, "sh", "-c", "echo started", **variables)
            err = self.end(agent, 2)
            self.assertIn(text, err)
            self.assertEqual(err.count("\n"), 1, err)
        self.slurm(left="UNLIMITED")
        self.end(self.start("--stop-before=5m", "true", **self.variables()), 0)

    # Back into the queue.

    def saved(self, *words, code=75, **variables):
        (self.folder / "asked").unlink(missing_ok=True)
        agent = self.start("--requeue=3", *words, "sh", "-c", f"exit {code}", **{**self.variables(), **variables})
        err = self.end(agent, code)
        return self.asked(), err

    def test_a_job_that_is_saved_goes_back_into_the_queue(self):
        self.slurm()
        asked, err = self.saved()
        self.assertEqual(asked, [f"scontrol show job -o {self.job}", f"scontrol requeue {self.job}"])
        self.assertIn(f"job {self.job} goes back into the queue", err)
        asked, _ = self.saved(SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="2", SLURM_RESTART_COUNT="2")
        self.assertEqual(asked[1], "scontrol requeue 5_2")

    def test_other_jobs_do_not(self):
        self.slurm()
        asked, err = self.saved(SLURM_RESTART_COUNT="3")
        self.assertEqual(len(asked), 1)
        self.assertIn("has come back 3 times", err)
        self.assertEqual(self.saved(code=1)[0], [])
        self.assertEqual(self.saved(code=0)[0], [])
        self.slurm(state="COMPLETING")
        asked, err = self.saved()
        self.assertEqual(len(asked), 1)
        self.assertIn("does not go back into the queue: Slurm says that it is COMPLETING", err)

    def test_a_job_that_is_being_signalled_runs(self):
        self.slurm()
        first = self.folder / "first"
        self.script("scontrol", f"""echo "scontrol $@" >> {self.folder}/asked
[ -e {first} ] && state=RUNNING || state=SIGNALING; touch {first}
[ $1 != show ] || echo "JobId=7 JobState=$state PreemptTime=None" """)
        asked, err = self.saved()
        self.assertEqual(asked[2:], [f"scontrol requeue {self.job}"], err)

    def test_a_job_that_makes_room_for_another_comes_back(self):
        for preempted, count in (("None", 1), ("2026-11-26T17:20:00", 2)):
            (self.folder / "asked").unlink(missing_ok=True)
            self.slurm(preempted=preempted)
            agent = self.start("--requeue=3", "sh", "-c", "echo started; exec sleep 100", **self.variables())
            self.assertEqual(agent.stdout.readline(), "started\n")
            agent.terminate()
            err = self.end(agent, 143)
            self.assertEqual(len(self.asked()), count, err)
            self.assertEqual("goes back" in err, count == 2, err)

    def test_a_signal_that_all_processes_get_does_not_keep_a_job_from_the_queue(self):
        self.slurm()
        first = self.folder / "first"
        self.script("scontrol", f"""echo "scontrol $@" >> {self.folder}/asked
[ -e {first} ] || {{ touch {first}; kill -TERM $PPID $$; kill -KILL $PPID $$; }}
[ $1 != show ] || echo "JobId=7 JobState=RUNNING" """)
        asked, err = self.saved()
        self.assertEqual(asked[1:], [f"scontrol show job -o {self.job}", f"scontrol requeue {self.job}"], err)

    def test_only_node_0_asks(self):
        self.slurm()
        agents = [self.start("--requeue=3", "sh", "-c", "exit 75", **self.variables(node)) for node in range(2)]
        for agent in agents:
            self.end(agent, 75)
        self.assertEqual(len(self.asked()), 2)

    def test_no_node_is_ended_while_it_saves(self):
        self.slurm()
        save = f"[ $RANK = 0 ] || sleep 12; echo saved $RANK >> {self.folder}/asked"  # longer than a verdict may take to go round
        agents = [self.start("--requeue=3", f"--deadline={in_seconds(26)}", "--stop-before=20s@USR1", "sh", "-c",
                             f"trap '{save}; exit 0' USR1; echo started; while :; do sleep 0.02; done", **self.variables(node))
                  for node in range(2)]
        said = [self.end(agent, 75) for agent in agents]
        self.assertEqual(self.asked(), ["saved 0", "saved 1", f"scontrol show job -o {self.job}", f"scontrol requeue {self.job}"],
                         said)

    def test_scontrol_that_fails_or_hangs_costs_a_line_and_ten_seconds(self):
        self.slurm(requeue="echo 'slurm_requeue error: disabled' >&2; exit 1")
        asked, err = self.saved()
        self.assertEqual(len(asked), 2)
        self.assertIn("slurm_requeue error: disabled", err)
        self.slurm(requeue="sleep 1000")
        begin = time.monotonic()
        _, err = self.saved()
        self.assertLess(time.monotonic() - begin, 25)
        self.assertIn("has not answered within 10 s", err)

    # Signals that every process of the job gets.

    COUNTS = """
import signal, sys
counted = 0
def count(*_):
    global counted
    counted += 1
signal.signal(signal.SIGUSR1, count)
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(40 + counted))
print("started", flush=True)
while True:
    signal.pause()
"""

    def test_a_signal_to_all_processes_of_the_job_is_one(self):
        for who in ("outer", "all", "all, workers first"):
            events = self.folder / "events"
            events.unlink(missing_ok=True)
            agent = self.start("--nproc-per-node=2", f"--events={events}", "--no-worker-hook", "--no-python", sys.executable,
                               "-c", self.COUNTS)
            for _ in range(2):
                self.assertEqual(agent.stdout.readline(), "started\n")
            until(lambda: events.read_text().count('"worker_started"') == 2, "the agent knows them")
            [inner] = children(agent.pid)
            # The inner one before the outer, who passes it on: the other way the second could be too late, or no second.
            everybody = [inner, agent.pid, *children(inner)]
            for pid in [agent.pid] if who == "outer" else everybody if who == "all" else everybody[2:] + everybody[:2]:
                os.kill(pid, signal.SIGUSR1)
            until(lambda: '"signal_received"' in events.read_text(), "it is known what becomes of it")
            agent.send_signal(signal.SIGUSR2)  # passed on later than any copy of the first could be
            agent.communicate(timeout=60)
            with open(events) as file:
                told = [json.loads(line) for line in file]
            self.assertEqual([event["exit_code"] for event in told if event["event"] == "worker_exited"][0], 41, who)
            self.assertEqual(sum(event["event"] == "signal_received" and event["signal"] == signal.SIGUSR1 for event in told), 1)


if __name__ == "__main__":
    unittest.main()
