"""Recovery inside the process, in C++, where nodes go and come: real agents around a torchupd.

usage: nodes_test.py ELASTIC_WORKER TORCHUP TORCHUPD [unittest options]
"""

import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

TORCHUP, TORCHUPD = map(os.path.abspath, sys.argv[2:4])
del sys.argv[2:4]

from elastic_case import WORKER, Case  # noqa: E402
from elastic_job import LIMIT_S, Outcome  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from torchupd import Torchupd  # noqa: E402


def ancestors(pid):
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Nodes(Case):
    def agent(self, daemon, folder, *faults):
        words = [word for fault in faults for word in ("--fault", fault)]
        with open(folder / "log", "a") as log:
            agent = subprocess.Popen(
                [TORCHUP, "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={daemon.endpoint}",
                 "--rdzv-id=elastic", WORKER, "--out", str(folder), *words], stdout=log, stderr=log)
        self.addCleanup(lambda: (agent.kill(), agent.wait()))
        return agent

    def who_asks(self, folder):
        """The process that has come to a place where the members are to change."""
        file, end = folder / "member", time.monotonic() + LIMIT_S
        while not (file.exists() and file.read_text()):
            self.assertLess(time.monotonic(), end, (folder / "log").read_text())
            time.sleep(0.01)
        pid = int(file.read_text())
        file.unlink()
        return pid

    def test_world_size_2_1_2(self):
        """The rest of the epoch is dealt anew, twice; neither costs a restart, of which there are none."""
        folder = self.folder()
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1")
        self.addCleanup(daemon.end)
        faults = [f"member:0:before_forward:{step}:0" for step in (3, 6)]
        agents = [self.agent(daemon, folder, *faults) for _ in range(2)]
        survivor = self.who_asks(folder)
        lost = next(agent for agent in agents if agent.pid not in ancestors(survivor))
        lost.kill()
        self.assertEqual(self.who_asks(folder), survivor)
        agents[agents.index(lost)] = self.agent(daemon, folder, *faults)
        for agent in agents:
            self.assertEqual(agent.wait(LIMIT_S), 0, (folder / "log").read_text()[-6000:])
        outcome = Outcome(folder, 0, None, self.read_finals)
        self.assertEqual(len(outcome.births), 3)
        self.assertIn(survivor, [final["pid"] for final in outcome.final.values()])
        for epoch in range(2):
            self.assertEqual(outcome.samples(epoch), list(range(48)))
        self.assert_same_bits(outcome.final[0]["parameters"], outcome.final[1]["parameters"], "parameters")
        for rank, final in outcome.final.items():
            # 3 steps of two, 3 of one, 2 of two for the 12 samples that are left; then 6.
            self.assertEqual((final["step"], final["world_size"], final["restart_count"]), (14, 2, 0))
            self.assertEqual(final["ranks"], [rank] * 3)


if __name__ == "__main__":
    unittest.main()
