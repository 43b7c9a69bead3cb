#!/usr/bin/env python3
"""A program built with another torch than it finds ends before main, and names both. usage: another_torch_test.py PROGRAM BUILT"""

import subprocess
import sys

import torch

program, built = sys.argv[1:]
ended = subprocess.run([program], capture_output=True, text=True, timeout=60)
assert ended.returncode == 1 and ended.stdout == "", ended
assert f"built with torch {built}" in ended.stderr and f"found torch {torch.__version__.split('+')[0]}" in ended.stderr, ended
print("ok")
