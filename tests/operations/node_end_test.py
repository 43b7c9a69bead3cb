"""What is told of the end of a node's job.

usage: node_end_test.py TORCHUPCTL TORCHUP TORCHUPD [unittest options]
"""

import os
import subprocess
import sys
import unittest

from node_case import LIMIT_S, Node
from ranks import free_port
from torchupd import Torchupd

TORCHUPD = os.path.abspath(sys.argv.pop(1))
TOO_FEW = 66


class Hook(Node):
    """A node that waits for another in vain."""

    def told(self, endpoint, *words):
        told = self.folder / "told"
        agent = self.torchup("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=alone",
                             "--rdzv-conf=join_timeout=1", f"--on-event=echo $TORCHUP_EVENT >> {told}",
                             "--on-event-kinds=job_started,job_ended", *words)
        self.assertEqual(agent.wait(LIMIT_S), TOO_FEW, self.errors(agent))
        return told.read_text().split()

    def test_who_hosts_tells_of_the_job_before_a_round(self):
        self.assertEqual(self.told(f"127.0.0.1:{free_port()}"), ["job_started", "job_ended"])

    def test_at_a_daemon_a_node_tells_of_its_own_end(self):
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(daemon.end, LIMIT_S)
        self.assertEqual(self.told(daemon.endpoint), ["job_ended"])


if __name__ == "__main__":
    unittest.main()
