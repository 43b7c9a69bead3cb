#!/usr/bin/env python3
"""Our C++ client against PyTorch's own servers, libuv and legacy.

usage: store_client_interop.py STORE_CLIENT_TESTS
Exits with 77 when this Python has no torch.
"""
import datetime
import os
import subprocess
import sys

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
try:
    import torch
    import torch.distributed as dist
except ImportError as missing:
    print(f"skipped: {sys.executable} has no torch ({missing})")
    sys.exit(77)

failed = 0
for use_libuv in (True, False):
    print(f"torch {torch.__version__}, use_libuv={use_libuv}", flush=True)
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, use_libuv=use_libuv,
                           timeout=datetime.timedelta(seconds=30))
    without = [] if use_libuv else ["~[queue]"]
    for name in ("barrier", "list_keys"):
        if not hasattr(server, name):
            without.append(f"~[{name}]")
    failed += subprocess.run([sys.argv[1], "[store_client]~[own]" + "".join(without)], timeout=100,
                             env={**os.environ, "TORCHUP_STORE_PORT": str(server.port)}).returncode != 0
    del server
sys.exit(failed > 0)
