"""Jobs of shell scripts, and reading what they leave behind.

For scripts that are started as SCRIPT TORCHUP SLOW_DISK_LIBRARY [name of a test ...].
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import time

from waiting import state  # noqa: F401; for those who import this

TORCHUP = os.path.abspath(sys.argv.pop(1))
SLOW_DISK = os.path.abspath(sys.argv.pop(1))


def run(*arguments, timeout=60, **options):
    """torchup with these arguments; its CompletedProcess with stdout and stderr as bytes."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([TORCHUP, *arguments], timeout=timeout, **options)


def shell(text):
    """A worker that is a shell script; `$` is for the shell, not for torchup's substitution."""
    return ["sh", "-c", text.replace("$$", "$$$$")]


class Scratch:
    """A folder of the case's own, and what a job has left there."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def json_of(self, name):
        with open(self.path(name)) as file:
            return json.load(file)

    def wait_for(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def events(self):
        with open(self.path("events.jsonl")) as file:
            return [json.loads(line) for line in file]

    def incident(self):
        paths = sorted(glob.glob(self.path("logs/*/attempt_*/incident.json")))
        with open(paths[-1]) as file:
            return json.load(file)
