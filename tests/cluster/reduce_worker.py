"""A worker that meets the others by gloo and sums, each half second, until it is told to end. Argument: the folder.

Says that it started once the first sum was right. FOLDER/release: all exit 0 together. FOLDER/fail.PID: exits with the
number in it.
"""

import datetime
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

folder = sys.argv[1]
env = os.environ
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank, world = dist.get_rank(), dist.get_world_size()


def total(value):
    tensor = torch.tensor([float(value)])
    dist.all_reduce(tensor)
    return tensor.item()


assert total(rank + 1) == world * (world + 1) / 2
entry = {"pid": os.getpid(), "host": socket.gethostname(), "rank": rank, "world": world,
         "group_rank": int(env["GROUP_RANK"]), "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
         "master": f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}", "time": time.monotonic()}
log = os.open(f"{folder}/workers.jsonl", os.O_WRONLY | os.O_APPEND)
os.write(log, (json.dumps(entry) + "\n").encode())
while total(os.path.exists(f"{folder}/release")) == 0:
    if os.path.exists(f"{folder}/fail.{entry['pid']}"):
        with open(f"{folder}/fail.{entry['pid']}") as file:
            os._exit(int(file.read()))
    time.sleep(0.1)
dist.destroy_process_group()
