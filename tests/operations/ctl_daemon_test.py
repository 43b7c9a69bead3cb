"""torchupctl and the real programs: jobs of two nodes at a daemon, asked by its control socket and by its port.

usage: ctl_daemon_test.py TORCHUPCTL TORCHUP TORCHUPD [unittest options]
"""

import json
import os
import signal
import subprocess
import sys
import unittest

from ctl_case import Ctl
from torchupd import Torchupd
from waiting import until

TORCHUP, TORCHUPD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
LIMIT_S = 60


class Daemon(Ctl):
    def setUp(self):
        super().setUp()
        self.daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(self.daemon.end, LIMIT_S)
        self.doors = {"socket": (), "port": ("--endpoint", self.daemon.endpoint)}

    def job(self, run_id, script):
        """Starts two agents, and waits until their workers run."""
        agents = [subprocess.Popen([TORCHUP, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.daemon.endpoint}",
                                    f"--rdzv-id={run_id}", "sh", "-c", script, self.folder], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=self.environment) for _ in range(2)]
        for agent in agents:
            self.addCleanup(lambda agent=agent: (agent.poll() is None and agent.kill(), agent.wait(LIMIT_S)))
        until(lambda: len(list(self.folder.glob("started.*"))) == 2, "the workers run")
        return agents

    WAITS = "touch $0/started.$RANK; while [ ! -e $0/go ]; do sleep 0.02; done; exit 3"

    def test_a_job_is_seen_by_each_door_and_its_end_is_waited_for(self):
        agents = self.job("ctl/1", self.WAITS)
        for name, words in self.doors.items():
            with self.subTest(name):
                rows = until(lambda: [row for row in json.loads(self.ctl("ps", "--json", *words, code=0).stdout)["jobs"]
                                      if row.get("phase") == "running"], "the job runs")
                self.assertEqual({row["run_id"] for row in rows}, {"ctl/1"})
                told = json.loads(self.ctl("status", "ctl", "--json", *words, code=0).stdout)
                self.assertEqual((told["run_id"], told["world_size"], len(told["nodes"])), ("ctl/1", 2, 2))
                self.assertIn("ctl/1  running", self.ctl("status", *words, code=0).stdout)
                self.assertEqual(self.ctl("status", "other", *words, code=1).stdout, "")
        waiting = [self.start("wait", *words) for words in self.doors.values()]
        self.assertEqual(self.ctl("wait", "--timeout", "0.1").returncode, 124)
        (self.folder / "go").touch()
        self.assertEqual([each.wait(LIMIT_S) for each in waiting], [1, 1])
        self.assertEqual([agent.wait(LIMIT_S) for agent in agents], [1, 1])

    def test_a_job_is_stopped(self):
        agents = self.job("stopped", self.WAITS)
        self.ctl("stop", "stopped", code=0)
        self.assertEqual([agent.wait(LIMIT_S) for agent in agents], [143, 143])
        self.ctl("stop", "stopped", code=1)  # it has ended
        self.ctl("stop", "stopped", "--endpoint", self.daemon.endpoint, code=77)  # who has no token may only look

    def test_a_daemon_that_has_stopped_is_shown_so(self):
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.daemon.process.pid, signal.SIGCONT)
        rows = json.loads(self.ctl("ps", "--json", code=0).stdout)["jobs"]
        self.assertEqual([(row["pid"], row["answering"]) for row in rows], [(self.daemon.process.pid, False)])
        self.ctl("ps", "--endpoint", self.daemon.endpoint, code=67)
        self.ctl("status", code=67)


if __name__ == "__main__":
    unittest.main()
