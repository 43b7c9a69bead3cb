"""What a join costs does not depend on how many join: bytes and messages per agent, for 50 and for 800 agents. And when
some of 300 are lost, by an end of file or by silence, all others get new places, whose ranks agents_load checks. Agents that
are held tell how their workers do, until they are let go.

Usage: agents_load_test.py AGENTS_LOAD TORCHUPD
"""

import json
import os
import subprocess
import sys
import urllib.request

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from torchupd import Torchupd  # noqa: E402
from waiting import until  # noqa: E402

load, torchupd = sys.argv[1:3]


def join_all(agents, *losses):
    daemon = Torchupd(torchupd, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL)
    try:
        ran = subprocess.run([load, "127.0.0.1", str(daemon.port), str(agents), "8", *losses], stdout=subprocess.PIPE, text=True, timeout=140, check=True)
        return json.loads(ran.stdout)
    finally:
        daemon.kill()


few, many = join_all(50), join_all(800)
for result in (few, many):
    agents = result["agents"]
    # Hello and Join; Welcome and Placed; and once HostStore and its answer.
    assert result["sent_frames"] == 2 * agents + 1, result
    assert result["received_frames"] == 2 * agents + 1, result
for direction in ("sent_bytes", "received_bytes"):
    each = [(result[direction] / result["agents"]) for result in (few, many)]
    assert abs(each[0] - each[1]) < 1, (direction, each)
print("bytes of one join:", round(many["sent_bytes"] / 800), "sent,", round(many["received_bytes"] / 800), "received")
for how, least in (("end", 0), ("silence", 4)):  # less of a lease 300 agents of one slow process may not keep
    losses = join_all(300, how, "2", *[str(least)] * (least > 0))["losses"]
    assert len(losses) == 2 and all(least <= seconds < 60 for seconds in losses), (how, losses)
    print(f"lost by {how}: all others placed again after {losses} s")

daemon = Torchupd(torchupd, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL)
try:
    held = subprocess.Popen([load, "127.0.0.1", str(daemon.port), "60", "8", "hold", "held/1"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    assert json.loads(held.stdout.readline())["ranks"] == 480

    def row():
        with urllib.request.urlopen(f"http://{daemon.endpoint}/v1/jobs", timeout=60) as answer:
            job, = json.loads(answer.read())["jobs"]
        return job

    job = until(lambda: (job := row())["ranks"].get("running") == 480 and (job["step"] or 0) > 3 and job, "all have reported")
    assert job["run_id"] == "held/1" and job["steps_per_second"] == 3, job
    held.stdin.close()
    assert held.wait(60) == 0
finally:
    daemon.kill()
