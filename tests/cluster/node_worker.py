"""A worker for cluster tests: says that it started, then waits to be told how to end. Argument: the test's folder."""

import json
import os
import socket
import sys
import time

folder = sys.argv[1]
env = os.environ
entry = {
    "pid": os.getpid(),
    "host": socket.gethostname(),
    "rank": int(env["RANK"]),
    "world": int(env["WORLD_SIZE"]),
    "group_rank": int(env["GROUP_RANK"]),
    "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
    "master": f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
    "time": time.monotonic(),
}
log = os.open(f"{folder}/workers.jsonl", os.O_WRONLY | os.O_APPEND)
os.write(log, (json.dumps(entry) + "\n").encode())
while True:
    if os.path.exists(f"{folder}/release"):
        sys.exit(0)
    if os.path.exists(f"{folder}/fail.{entry['pid']}"):
        with open(f"{folder}/fail.{entry['pid']}") as file:
            sys.exit(int(file.read()))
    time.sleep(0.02)
