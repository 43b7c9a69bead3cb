#!/usr/bin/env python3
"""A gloo group over two nodes (network namespaces) whose host names tell gloo nothing, or loopback.

usage: tests/support/run_case.py nodes_test.py CASE GROUP_WORKER        needs root; skipped where namespaces cannot be made
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from ranks import Job, contract, free_port

worker = sys.argv[1]
ADDRESSES = ("10.78.0.1", "10.78.0.2")
ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class TwoNodes(unittest.TestCase):
    def ip(self, *arguments):
        made = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if made.returncode:
            self.skipTest(f"ip {' '.join(arguments)}: {made.stderr.strip()}")

    def setUp(self):
        self.spaces = [f"gloo-{os.getpid()}-{node}" for node in range(2)]
        for space in self.spaces:
            self.ip("netns", "add", space)
            self.addCleanup(subprocess.run, ["ip", "netns", "delete", space], capture_output=True)
        self.ip("link", "add", "eth0", "netns", self.spaces[0], "type", "veth", "peer", "name", "eth0", "netns", self.spaces[1])
        for node, space in enumerate(self.spaces):
            self.ip("-n", space, "link", "set", "lo", "up")
            self.ip("-n", space, "address", "add", f"{ADDRESSES[node]}/24", "dev", "eth0")
            self.ip("-n", space, "link", "set", "eth0", "up")
            self.ip("-n", space, "route", "add", "default", "via", ADDRESSES[1 - node])

    def job(self, hosts, master, **more):
        """One rank on each node; `hosts` and `master` are what each of them finds in /etc/hosts and MASTER_ADDR."""
        port = free_port()
        started = Job()
        with tempfile.TemporaryDirectory() as folder:
            for node in range(2):
                file = Path(folder, f"hosts{node}")
                file.write_text(f"127.0.0.1 localhost\n{hosts[node]}\n")
                place = {**contract(node, 2, port, **more), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": master,
                         "TEST_TIMEOUT_MS": 20000}
                started.start(["nsenter", f"--net=/run/netns/{self.spaces[node]}", "unshare", "--uts", "--mount", "sh", "-c", ENTER, "sh",
                               str(file), f"node{node}", worker, "meet"], place)
            return started.finish()

    def assert_meet(self, results):
        for rank, (code, out, err) in enumerate(results):
            self.assertEqual(code, 0, err)
            self.assertIn(f"rank {rank} of 2", out)
            self.assertIn("gloo sum 1", out)

    BOTH = [f"{ADDRESSES[0]} node0\n{ADDRESSES[1]} node1"] * 2

    def test_host_names_that_nothing_resolves(self):
        self.assert_meet(self.job(["", ""], ADDRESSES[0]))

    def test_host_names_that_stand_for_loopback_as_debian_writes_them(self):
        own = [f"127.0.1.1 node0\n{ADDRESSES[1]} node1", f"127.0.1.1 node1\n{ADDRESSES[0]} node0"]
        self.assert_meet(self.job(own, "node0"))

    def test_host_names_that_resolve(self):
        self.assert_meet(self.job(self.BOTH, "node0"))

    def test_gloo_socket_ifname(self):
        self.assert_meet(self.job(["", ""], ADDRESSES[0], GLOO_SOCKET_IFNAME="eth0"))

    def test_a_wrong_gloo_socket_ifname_is_not_passed_over(self):
        first, second = self.job(self.BOTH, "node0", GLOO_SOCKET_IFNAME="eth7")
        self.assertEqual([code for code, _, _ in (first, second)], [1, 1], (first, second))
        self.assertIn("eth7", first[2])
        if "look at what rank 0 says" not in second[2]:  # whose end, and the store's with it, may be what it sees
            self.assertIn("eth7", second[2])


if __name__ == "__main__":
    sys.exit(__doc__)
