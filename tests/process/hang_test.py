"""What is told of a job that makes no progress, and what is done: real jobs over gloo, on one node and on two.

usage: tests/support/run_case.py hang_test.py CASE TORCHUP
"""
import json
import os
import signal
import unittest

from hang_job import HOST, HangJob
from ranks import free_port
from waiting import until


class Hang(HangJob, unittest.TestCase):
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
        self.assertIn(f"rank 1 on {HOST} is stuck; rank 0 waits for it: all_reduce #", found["summary"])
        self.assertEqual(self.event("worker_hung")["rank"], 1)
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

    def test_a_rank_of_more_groups_than_a_look_has_room_for(self):
        self.start("""
            from torch.testing._internal.distributed import fake_pg  # gloo has threads for each group, which are busy
            for _ in range(66):
                dist.all_reduce(values, group=dist.new_group([0, 1], backend="fake"))
            group = dist.new_group([0, 1])
            dist.all_reduce(values, group=group)
            if rank == 1:
                time.sleep(1000)
            dist.all_reduce(values, group=group)
            """, "--nproc-per-node=2", "--on-hang=abort")
        self.end(1)
        found, = self.events("hang_found")
        self.assertEqual((found["kind"], found["culprits"]), ("stuck", [1]))
        self.assertEqual((found["collective"]["number"], found["collective"]["waiting"]), (2, "0"))

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
            while not os.path.exists("go_on"):
                torch.ones(1000).sum()

        if rank == 1:
            evaluate()
        dist.all_reduce(values)
        dist.destroy_process_group()
        """

    def test_a_rank_that_is_busy(self):
        self.start(self.BUSY, "--nproc-per-node=2")
        found = self.event("hang_found")
        self.assertEqual((found["kind"], found["culprits"], found["action"]), ("busy", [1], "none"))
        (self.folder / "go_on").touch()
        self.end(0)
        self.assertEqual(self.events("worker_hung"), [])

    def test_a_busy_rank_is_not_touched_in_auto(self):
        self.start(self.BUSY, "--nproc-per-node=2", "--on-hang=abort", timeout="auto")
        found = self.event("hang_found")
        self.assertEqual((found["kind"], found["action"]), ("busy", "none"))
        (self.folder / "go_on").touch()
        self.end(0)
        self.assertIn("nothing was done (--on-hang=abort: who is busy is left alone)", self.stderr())

    def test_two_nodes(self):
        port = free_port()
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
            def stand_still():
                open("here1", "w").close(), time.sleep(1000)

            if rank == 1:
                stand_still()
            open("here0", "w").close()
            dist.all_reduce(values)
            """, "--nproc-per-node=2", timeout="off")
        until(lambda: all((self.folder / f"here{rank}").exists() for rank in range(2)), "both ranks")
        job.send_signal(signal.SIGQUIT)
        self.end(128 + signal.SIGQUIT)
        self.assertEqual(len(self.events("ranks_shown")), 1)
        self.assertEqual(self.events("hang_found"), [])
        page = self.stderr()
        self.assertIn("torchup: What the ranks do: ", page)
        self.assertIn(f"program.py:{self.line_of('time.sleep(1000)')} stand_still", page)
        self.assertEqual(sorted(event["rank"] for event in self.events("worker_seen")), [0, 1])
        self.assertNotIn("rank 0 (pid", page)  # the page has said it


if __name__ == "__main__":
    unittest.main()
