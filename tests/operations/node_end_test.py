"""What launchers tell people and hooks on a node: at the start, and at the end of a job without a round.

usage: node_end_test.py TORCHUPCTL TORCHUP TORCHUPD [unittest options]
"""

import json
import os
import subprocess
import sys
import unittest

from node_case import LIMIT_S, Node
from ranks import free_port
from torchupd import Torchupd
from waiting import until

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


class Code(Node):
    def test_wait_ends_as_the_launcher_does(self):
        for words, code in ((), 1), (("--propagate-exit-code",), 3):
            with self.subTest(words):
                for name in "go", "stop":
                    (self.folder / name).unlink(missing_ok=True)
                # The other worker is stopped after the job has failed: until then the launcher has not said how it ends.
                agent = self.torchup("--nproc-per-node=2", "--status-port=0", *words, script=(
                    "trap 'while [ ! -e $0/stop ]; do sleep 0.02; done; exit 0' TERM; touch $0/up.$RANK; "
                    "while [ ! -e $0/go ] || [ $RANK = 1 ]; do sleep 0.02; done; exit 3"))
                _, port, _ = self.page_address(agent)
                until(lambda: self.json("ps")["jobs"], "its socket is there too", LIMIT_S)
                waiting = self.start("wait")
                until(lambda: "torchup_event_readers 1\n" in self.http(port, "/metrics")[1], "it is waited for", LIMIT_S)
                until(lambda: len(list(self.folder.glob("up.*"))) == 2, "the workers run", LIMIT_S)
                (self.folder / "go").touch()
                self.status(lambda job: job["verdict"], "the job has failed")
                (self.folder / "stop").touch()
                self.assertEqual((agent.wait(LIMIT_S), waiting.wait(LIMIT_S)), (code, code))
                for old in self.folder.glob("up.*"):
                    old.unlink()


class Page(Node):
    """The line that says where the page is, of a node and of the front of some."""

    def said(self, *words):
        """What was written to stderr by the time that a worker runs."""
        for started in self.folder.glob("started.*"):
            started.unlink()
        agent = self.torchup("--status-port=0", *words, script="touch $0/started.$RANK; exec sleep 1000")
        self.started(1)
        agent.terminate()
        agent.wait(LIMIT_S)
        return self.errors(agent).splitlines()

    def test_it_is_an_object_where_all_lines_are(self):
        for words in ((), ("--hosts=localhost",)):
            with self.subTest(words):
                lines = [json.loads(line) for line in self.said("--log-format=json", *words) if "#token=" in line]
                self.assertEqual([line["level"] for line in lines], ["info"])
                self.assertTrue(lines[0]["message"].startswith("the page of this job: http://127.0.0.1:"), lines)

    def test_who_wants_errors_alone_does_not_get_it(self):
        for words in ((), ("--hosts=localhost",)):
            with self.subTest(words):
                self.assertNotIn("#token=", "".join(self.said("-q", *words)))
                self.assertIn("#token=", "".join(self.said(*words)))


if __name__ == "__main__":
    unittest.main()
