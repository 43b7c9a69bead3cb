#!/usr/bin/env python3
"""A gloo group over two nodes (network namespaces) whose host names tell gloo nothing, or loopback.

usage: nodes_test.py GROUP_WORKER        needs root; skipped where namespaces cannot be made
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import Checks, Job, contract, free_port

worker = sys.argv[1]
check = Checks()
ADDRESSES = ("10.78.0.1", "10.78.0.2")
ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


def ip(*arguments):
    made = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if made.returncode:
        print(f"skipped: ip {' '.join(arguments)}: {made.stderr.strip()}")
        sys.exit(77)


def job(folder, hosts, master, **more):
    """One rank on each node; `hosts` and `master` are what each of them finds in /etc/hosts and MASTER_ADDR."""
    port = free_port()
    started = Job()
    for node in range(2):
        file = Path(folder, f"hosts{node}")
        file.write_text(f"127.0.0.1 localhost\n{hosts[node]}\n")
        place = {**contract(node, 2, port, **more), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": master, "TEST_TIMEOUT_MS": 20000}
        started.start(["nsenter", f"--net=/run/netns/{spaces[node]}", "unshare", "--uts", "--mount", "sh", "-c", ENTER, "sh", str(file),
                       f"node{node}", worker, "meet"], place)
    return started.finish()


def meet(results):
    return all(code == 0 and f"rank {rank} of 2" in out and "gloo sum 1" in out for rank, (code, out, _) in enumerate(results))


spaces = [f"gloo-{os.getpid()}-{node}" for node in range(2)]
try:
    for space in spaces:
        ip("netns", "add", space)
    ip("link", "add", "eth0", "netns", spaces[0], "type", "veth", "peer", "name", "eth0", "netns", spaces[1])
    for node, space in enumerate(spaces):
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "address", "add", f"{ADDRESSES[node]}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", space, "route", "add", "default", "via", ADDRESSES[1 - node])
    with tempfile.TemporaryDirectory() as folder:
        check.that(meet(results := job(folder, ["", ""], ADDRESSES[0])), "host names that nothing resolves", results)
        own = [f"127.0.1.1 node0\n{ADDRESSES[1]} node1", f"127.0.1.1 node1\n{ADDRESSES[0]} node0"]
        check.that(meet(results := job(folder, own, "node0")), "host names that stand for loopback, as Debian writes them", results)
        both = [f"{ADDRESSES[0]} node0\n{ADDRESSES[1]} node1"] * 2
        check.that(meet(results := job(folder, both, "node0")), "host names that resolve", results)
        check.that(meet(results := job(folder, ["", ""], ADDRESSES[0], GLOO_SOCKET_IFNAME="eth0")), "GLOO_SOCKET_IFNAME", results)
        results = job(folder, both, "node0", GLOO_SOCKET_IFNAME="eth7")
        check.that(all(code == 1 and "eth7" in err for code, _, err in results), "a wrong GLOO_SOCKET_IFNAME is not passed over", results)
finally:
    for space in spaces:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True)
sys.exit(check.code())
