"""Workers that outlive a change of the job's nodes.

usage: keep_nodes_test.py TORCHUP KEEP_WORKER TORCHUPD [name of a test ...]
"""

import os
import sys
import unittest

TORCHUPD = sys.argv.pop(3)

from launcher_job import Job, until  # noqa: E402
from torchupd import Torchupd  # noqa: E402


class KeptOverNodes(Job, unittest.TestCase):
    def agent(self, daemon):
        return self.start(f"--no-worker-hook --nnodes=1:2 --nproc-per-node=2 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint={daemon.endpoint} "
                          "--rdzv-id=kept", "{notes}")

    def rounds(self, count):
        """The first `count` notes of processes in rounds: (local rank, pid, rank, world size, restart count)."""

        def read():
            if not os.path.exists(self.notes):
                return None
            with open(self.notes) as file:
                lines = [line.split() for line in file.read().splitlines()]
            found = [tuple(int(word) for word in words) for what, *words in lines if what == "round"]
            return found if len(found) >= count else None

        return until(read, f"{count} processes in rounds")

    def test_a_node_goes_and_another_comes(self):
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1")
        self.addCleanup(daemon.end)
        agents = [self.agent(daemon) for _ in range(2)]
        first = self.rounds(4)
        self.assertEqual(sorted((rank, world, restarts) for _, _, rank, world, restarts in first), [(rank, 4, 0) for rank in range(4)])
        agents[1].kill()
        agents[1].wait()
        alone = self.rounds(6)[4:]
        pids = {pid for _, pid, *_ in alone}
        self.assertEqual(sorted((rank, world, restarts) for _, _, rank, world, restarts in alone), [(0, 2, 0), (1, 2, 0)])
        self.assertLess(pids, {pid for _, pid, *_ in first})
        agents.append(self.agent(daemon))
        last = self.rounds(10)[6:]
        self.assertEqual(sorted((rank, world, restarts) for _, _, rank, world, restarts in last), [(rank, 4, 0) for rank in range(4)])
        self.assertLess(pids, {pid for _, pid, *_ in last})
        open(self.notes + ".done", "w").close()
        for agent in (agents[0], agents[2]):
            agent.communicate(timeout=20)
            self.assertEqual(agent.returncode, 0)
        daemon.end()
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
