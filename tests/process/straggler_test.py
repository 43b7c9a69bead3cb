"""What is told of a rank for which the others wait, window after window: real jobs over gloo.

usage: tests/support/run_case.py straggler_test.py CASE TORCHUP
"""
import unittest

from hang_job import HOST, HangJob
from ranks import free_port
from waiting import until


class Straggler(HangJob, unittest.TestCase):
    # Who is late is so by far more than what a busy machine does to one rank now and then.
    PROGRAM = """
        while True:
            time.sleep(0.25 if rank == 1 and not os.path.exists("well") else 0.01)
            dist.all_reduce(values)
            dist.all_reduce(is_done := torch.tensor(float(os.path.exists("done"))), dist.ReduceOp.MIN)
            if is_done: break
        dist.destroy_process_group()
        """

    def is_told(self, node=0):
        found = self.event("straggler_found", node)
        self.assertEqual((found["rank"], found["host"]), (1, HOST))
        self.assertIn("all_reduce", found["operation"])
        self.assertGreaterEqual(found["last_percent"], 70)
        self.assertGreaterEqual(found["share_percent"], 5)
        self.assertLess(found["late_ms"], found["step_ms"])
        until(lambda: f"torchup: rank 1 ({HOST}) is late: last in " in self.stderr(node), "the line")

    def is_told_once_until_it_is_well(self, nodes=1):
        for node in range(nodes):
            self.is_told(node)
        (self.folder / "well").touch()
        for node in range(nodes):
            over = self.event("straggler_over", node)
            self.assertEqual((over["rank"], over["host"]), (1, HOST))
        (self.folder / "done").touch()
        for node in range(nodes):
            self.end(0, node)
            self.assertEqual([event["rank"] for event in self.events("straggler_found", node)], [1])
            self.assertEqual([event["rank"] for event in self.events("straggler_over", node)], [1])

    def test_one_rank_of_three(self):
        self.start(self.PROGRAM, "--nproc-per-node=3", "--straggler-window=1", timeout="off")
        self.is_told_once_until_it_is_well()

    def test_the_rank_of_another_node(self):
        meet = "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=straggler"
        for _ in range(2):
            self.start(self.PROGRAM, *meet, "--straggler-window=1", timeout="off")
        self.is_told_once_until_it_is_well(nodes=2)


if __name__ == "__main__":
    unittest.main()
