#!/usr/bin/env python3
"""The example language_model under torchup: it learns, ZeRO-1 changes no printed digit, and too short a text is refused.

usage: language_model_test.py TORCHUP LANGUAGE_MODEL
"""

import re
import subprocess
import sys
import tempfile

torchup, program = sys.argv[1:]


def bits(*options):
    command = [torchup, "--nproc-per-node=2", program, "--steps=12", "--batch-size=8", "--sample=0", *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    unseen, guess = re.search(r"unseen text: (\S+) bits per character \((\S+) for a guess\)", output).groups()
    assert float(unseen) < float(guess) - 1, output
    assert len(re.findall(r"^torch \d\.\d+.*; gloo, world size 2, 2 on this node; cpu, \d+ threads$", output, re.M)) == 1, output  # the banner
    return unseen


whole, shared = bits(), bits("--zero")
assert whole == shared, (whole, shared)
assert bits("--amp") != whole  # bfloat16 shows

with tempfile.NamedTemporaryFile("w") as short:
    short.write("too short " * 64)
    short.flush()
    ended = subprocess.run([program, "--text", short.name, "--steps=1"], stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1 and "640 characters are too few" in ended.stderr, ended
