"""What tests of torchup.drop_in have in common: a folder of their own, a job to start, and what its workers saw."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SHOW = """import json, os, sys
with open("seen." + os.environ["RANK"], "w") as file:
    json.dump({"words": sys.argv, "python": sys.executable, "environment": dict(os.environ),
               "agent": os.readlink(f"/proc/{os.getppid()}/exe")}, file)
sys.exit(int(os.environ.get("CODE", "0")))
"""
# Of one start, not of a way to start: where workers meet (on one node 127.0.0.1, which torchrun calls localhost), and the
# names of runs and files.
OF_ONE_START = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}


class DropIn(unittest.TestCase):
    """With `torch` as the folder of a torch for PYTHONPATH; None: the one that this Python has."""

    torchup = package = torch = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.write("show.py", SHOW)
        path = [str(self.package), *([str(self.torch)] if self.torch else [])]
        self.environment = {**os.environ, "PYTHONPATH": ":".join(path), "OMP_NUM_THREADS": "1", "PWD": folder.name,
                            "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def start(self, *words, python=sys.executable, **environment):
        return subprocess.Popen([python, "-m", "torchup.drop_in", *words], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**self.environment, **environment})

    def run_in(self, *words, code=0, **environment):
        """stdout and stderr of what ended with that code."""
        with self.start(*words, **environment) as job:
            out, err = job.communicate(timeout=100)
        self.assertEqual(job.returncode, code, out + err)
        return out, err

    def seen(self, ranks=2):
        """What each worker saw. The next start's are others."""
        files = [self.folder / f"seen.{rank}" for rank in range(ranks)]
        self.assertEqual(sorted(self.folder.glob("seen.*")), files)
        found = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return found

    def plain(self, *words):
        """What workers see where torchup is started itself, by the name torchrun."""
        done = subprocess.run(["torchrun", *words], executable=self.torchup, cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.seen()

    def assert_same(self, workers, others):
        for worker, other in zip(workers, others, strict=True):
            self.assertEqual(worker["words"], other["words"])
            one, two = worker["environment"], other["environment"]
            differ = {name: (one.get(name), two.get(name)) for name in one.keys() | two if one.get(name) != two.get(name)}
            self.assertEqual({name: values for name, values in differ.items() if name not in OF_ONE_START}, {})
