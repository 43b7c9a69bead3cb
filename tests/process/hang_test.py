"""What is told of a job that makes no progress, and what is done: real jobs over gloo, on one node and on two.

usage: tests/support/run_case.py hang_test.py CASE TORCHUP
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import ranks  # noqa: E402

try:
    import torch  # noqa: F401
except ImportError:
    print("torch is not installed for", sys.executable)
    sys.exit(77)

TORCHUP = os.path.abspath(sys.argv[1])
HOST = socket.gethostname()
BEGINNING = """\
import os, signal, sys, time
import torch, torch.distributed as dist


class GoOn(Exception):
    pass


def go_on(*_):
    raise GoOn


signal.signal(signal.SIGUSR1, signal.SIG_IGN)
dist.init_process_group("gloo")
rank, values = dist.get_rank(), torch.ones(1024)
for _ in range(3):
    dist.all_reduce(values)
"""
LIMIT_S = 60  # for what comes within a few seconds on a machine that has time


class Hang(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.jobs = []

    def start(self, program, *options, timeout="2,60"):
        """A job whose ranks do this after three collectives. Several are nodes of one."""
        node = len(self.jobs)
        path = self.folder / "program.py"
        path.write_text(BEGINNING + textwrap.dedent(program))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "PET_"))}
        with open(self.folder / f"stderr{node}", "w") as stderr:
            job = subprocess.Popen([TORCHUP, f"--hang-timeout={timeout}", f"--events={self.folder}/events{node}",
                                    f"--log-dir={self.folder}/logs{node}", *options, str(path)], stderr=stderr,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self.folder,
                                   env={**environment, "OMP_NUM_THREADS": "1",
                                        "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]})
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))
        self.jobs.append(job)
        return job

    def stderr(self, node=0):
        return (self.folder / f"stderr{node}").read_text()

    def events(self, name, node=0):
        path = self.folder / f"events{node}"
        text = path.read_text() if path.exists() else ""
        whole = text[:text.rfind("\n") + 1]
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == name]

    def event(self, name, node=0):
        """The first event of that name, once it is there."""
        end = time.monotonic() + LIMIT_S
        while not (found := self.events(name, node)):
            self.assertLess(time.monotonic(), end, f"no {name}: {self.stderr(node)}")
            self.assertIsNone(self.jobs[node].poll(), self.stderr(node))
            time.sleep(0.02)
        return found[0]

    def end(self, status, node=0):
        self.assertEqual(self.jobs[node].wait(timeout=LIMIT_S), status, self.stderr(node))

    def line_of(self, text):
        lines = (self.folder / "program.py").read_text().splitlines()
        return 1 + next(i for i, line in enumerate(lines) if text in line)

    STUCK = """
        def wait_for_nothing():
            try:
                signal.signal(signal.SIGUSR1, go_on)
                time.sleep(1000)
            except GoOn:
                pass

        if rank == 1:
            wait_for_nothing()
        dist.all_reduce(values)
        dist.destroy_process_group()
        """

    def test_a_rank_that_sleeps(self):
        job = self.start(self.STUCK, "--nproc-per-node=2")
        found = self.event("hang_found")
        self.assertEqual((found["kind"], found["culprits"], found["action"]), ("stuck", [1], "none"))
        self.assertEqual((found["collective"]["operation"], found["collective"]["missing"]), ("all_reduce", "1"))
        self.assertEqual((found["collective"]["waiting"], found["collective"]["dtype"]), ("0", "float32"))
        self.assertIn(f"rank 1 on {HOST} is stuck; rank 0 waits for it in all_reduce #", found["summary"])
        self.assertEqual([event["rank"] for event in self.events("worker_hung")], [1])
        # The program is not touched, and goes on when it can.
        job.send_signal(signal.SIGUSR1)
        self.end(0)
        over, = self.events("hang_over")
        self.assertEqual(over["number"], found["number"])
        self.assertGreaterEqual(over["after_s"], found["silent_s"])
        page = self.stderr()
        self.assertIn("torchup: " + found["summary"] + "\n", page)
        self.assertIn(f"    program.py:{self.line_of('time.sleep(1000)')} wait_for_nothing\n", page)
        self.assertIn(f"    program.py:{self.line_of('    wait_for_nothing()')} <module>\n", page)
        self.assertIn("nothing was done (--on-hang=report)", page)
        self.assertIn("it goes on after ", page)
        text, = self.folder.glob("logs0/*/attempt_0/hang_0.txt")
        self.assertIn(f"all stacks: {text}; ", page)
        self.assertIn(f"{self.folder}/program.py:{self.line_of('time.sleep(1000)')} wait_for_nothing", text.read_text())
        numbers = json.loads(text.with_suffix(".json").read_text())
        self.assertEqual([one["rank"] for one in numbers["ranks"]], [0, 1])
        self.assertEqual(numbers["ranks"][0]["waits"]["operation"].rpartition(":")[2], "all_reduce")

    def test_a_rank_that_is_stopped(self):
        self.start("""
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.all_reduce(values)
            dist.destroy_process_group()
            """, "--nproc-per-node=2")
        found = self.event("hang_found")
        self.assertEqual((found["kind"], found["culprits"]), ("stopped", [1]))
        os.kill(self.event("worker_hung")["pid"], signal.SIGCONT)
        self.end(0)
        self.assertEqual(len(self.events("hang_over")), 1)

    def test_abort_ends_a_stopped_rank_and_the_job(self):
        """Although restarts are left."""
        self.start("""
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.all_reduce(values)
            """, "--nproc-per-node=2", "--on-hang=abort", "--max-restarts=3")
        self.end(1)
        found, = self.events("hang_found")
        self.assertEqual((found["kind"], found["action"]), ("stopped", "abort"))
        self.assertEqual(len(self.events("attempt_started")), 1)
        ended, = self.events("job_ended")
        cause = ended["failures"][0]
        self.assertEqual((cause["rank"], cause["exit_code"], cause["consequence"]), (1, -signal.SIGABRT, False))
        self.assertTrue(cause["message"].startswith(found["summary"]), cause)
        self.assertIn("the job is ended (--on-hang=abort)", self.stderr())
        incident, = self.folder.glob("logs0/*/attempt_0/incident.json")
        incident = json.loads(incident.read_text())
        self.assertEqual(incident["failures"][incident["root_cause"]]["rank"], 1, incident)

    def test_restart_uses_the_budget(self):
        self.start("""
            if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                time.sleep(1000)
            dist.all_reduce(values)
            dist.destroy_process_group()
            """, "--nproc-per-node=2", "--on-hang=restart", "--max-restarts=1")
        self.end(0)
        self.assertEqual([event["action"] for event in self.events("hang_found")], ["restart"])
        restarting, = self.events("restarting")
        self.assertEqual((restarting["restart"], restarting["restarts_left"]), (1, 0))

    def test_ranks_in_different_collectives(self):
        self.start("""
            if rank == 1:
                dist.broadcast(values, 0)
            else:
                dist.all_reduce(values)
            dist.barrier()
            """, "--nproc-per-node=3", "--on-hang=abort")
        self.end(1)
        found, = self.events("hang_found")
        self.assertEqual((found["kind"], found["culprits"], found["action"]), ("mismatch", [1], "abort"))
        sides = {side["ranks"]: side["operation"] for side in found["collective"]["operations"]}
        self.assertEqual(sides, {"0,2": "all_reduce", "1": "broadcast"})
        self.assertIn(f"rank 1 on {HOST} broadcast", found["summary"])

    def test_a_rank_that_has_raised_and_does_not_end(self):
        self.start("""
            import threading
            if rank == 1:
                threading.Thread(target=time.sleep, args=(1000,)).start()
                raise ValueError("loss is nan")
            dist.all_reduce(values)
            """, "--nproc-per-node=2", "--on-hang=abort")
        self.end(1)
        found, = self.events("hang_found")
        self.assertEqual((found["kind"], found["culprits"]), ("raised", [1]))
        self.assertIn("has raised an exception and does not end", found["summary"])

    def test_a_rank_that_hangs_while_its_exception_is_on_the_way(self):
        self.start("""
            def tidy_up():
                time.sleep(1000)

            if rank == 1:
                try:
                    raise ValueError("loss is nan")
                finally:
                    tidy_up()
            dist.all_reduce(values)
            """, "--nproc-per-node=2", "--on-hang=abort")
        self.end(1)
        found, = self.events("hang_found")
        self.assertEqual((found["kind"], found["culprits"]), ("stuck", [1]))
        self.assertIn(f"program.py:{self.line_of('    time.sleep(1000)')} tidy_up", self.stderr())

    BUSY = """
        def evaluate():
            end = time.monotonic() + {seconds}
            while time.monotonic() < end:
                torch.ones(1000).sum()

        if rank == 1:
            evaluate()
        dist.all_reduce(values)
        dist.destroy_process_group()
        """

    def test_a_rank_that_is_busy(self):
        self.start(self.BUSY.format(seconds=8), "--nproc-per-node=2")
        found = self.event("hang_found")
        self.assertEqual((found["kind"], found["culprits"], found["action"]), ("busy", [1], "none"))
        self.assertEqual(self.events("worker_hung"), [])
        self.end(0)

    def test_a_busy_rank_is_not_touched_in_auto(self):
        self.start(self.BUSY.format(seconds=75), "--nproc-per-node=2", "--on-hang=abort", timeout="auto")
        self.jobs[0].wait(timeout=200)
        self.end(0)
        found, = self.events("hang_found")
        self.assertEqual((found["kind"], found["action"]), ("busy", "none"))
        self.assertIn("nothing was done (--on-hang=abort: who is busy is left alone)", self.stderr())

    def test_two_nodes(self):
        port = ranks.free_port()
        for _ in range(2):
            self.start("""
                if rank == 3:
                    time.sleep(1000)
                dist.all_reduce(values)
                """, "--nnodes=2", "--nproc-per-node=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d",
                       "--rdzv-id=hang", "--on-hang=abort")
        for node in range(2):
            self.end(1, node)
        placed = [self.events("round_completed", node)[0]["group_rank"] for node in range(2)]
        first, second = placed.index(0), placed.index(1)
        for node in range(2):
            found, = self.events("hang_found", node)
            self.assertEqual((found["kind"], found["culprits"], found["action"]), ("stuck", [3], "abort"))
            self.assertEqual((found["collective"]["missing"], found["collective"]["waiting"]), ("3", "0-2"))
            failures = self.events("job_ended", node)[0]["failures"]
            self.assertEqual((failures[0]["rank"], failures[0]["consequence"]), (3, False))
            self.assertTrue(failures[0]["message"].startswith(found["summary"]))
        self.assertEqual(self.events("worker_hung", first), [])
        self.assertEqual([event["rank"] for event in self.events("worker_hung", second)], [3])
        # One node shows all of it, the other its own ranks.
        self.assertIn("  ranks 0-2: ", self.stderr(first))
        self.assertIn("  rank 2, ", self.stderr(second))
        for node in range(2):
            self.assertIn(f"program.py:{self.line_of('time.sleep(1000)')} <module>", self.stderr(node))
        pages = [json.loads(next(self.folder.glob(f"logs{node}/*/attempt_0/hang_0.json")).read_text()) for node in (first, second)]
        self.assertEqual([[one["rank"] for one in page["ranks"]] for page in pages], [[0, 1, 2, 3], [2, 3]])

    def test_what_all_ranks_do_for_who_asks(self):
        job = self.start("""
            open(f"here{rank}", "w").close()
            if rank == 1:
                time.sleep(1000)
            dist.all_reduce(values)
            """, "--nproc-per-node=2", timeout="off")
        end = time.monotonic() + LIMIT_S
        while not all((self.folder / f"here{rank}").exists() for rank in range(2)):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        job.send_signal(signal.SIGQUIT)
        asked = time.monotonic()
        self.event("ranks_shown")
        self.assertLess(time.monotonic() - asked, 3)
        self.end(128 + signal.SIGQUIT)
        self.assertEqual(self.events("hang_found"), [])
        page = self.stderr()
        self.assertIn("torchup: What the ranks do: ", page)
        self.assertIn(f"program.py:{self.line_of('time.sleep(1000)')} <module>", page)
        self.assertEqual(sorted(event["rank"] for event in self.events("worker_seen")), [0, 1])
        self.assertNotIn("rank 0 (pid", page)  # the page has said it


if __name__ == "__main__":
    unittest.main()
