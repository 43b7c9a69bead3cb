"""python -m torchup is torchup, with that Python.

usage: python_program_test.py TORCHUP PACKAGE [unittest options]    PACKAGE: the folder with the package torchup
"""

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from drop_in import DropIn  # noqa: E402

TORCHUP, PACKAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))


class PythonProgram(DropIn):
    torchup, package = TORCHUP, PACKAGE

    def start_torchup(self, *words, python=sys.executable, **environment):
        job = subprocess.Popen([python, "-m", "torchup", *words], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**self.environment, **environment})
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        return job

    def ended(self, job, code=0):
        out, err = job.communicate(timeout=100)
        self.assertEqual(job.returncode, code, err)
        return out, err

    def test_workers_run_in_it(self):
        other = self.folder / "other-python"
        other.symlink_to(os.path.realpath(sys.executable))
        self.ended(self.start_torchup("show.py", "a b", python=other))
        worker, = self.seen(1)
        self.assertEqual((worker["python"], worker["words"]), (str(other), ["show.py", "a b"]))
        self.assertNotIn("TORCHUP_CALLER", worker["environment"])
        self.ended(self.start_torchup("show.py", python=other, PYTHON_EXEC=sys.executable))
        self.assertEqual(self.seen(1)[0]["python"], sys.executable)
        told, _ = self.ended(self.start_torchup("--dry-run", "show.py", python=other))
        self.assertIn(f"{other}  (Python script, the Python that started torchup)", told)

    def test_it_is_torchup_itself(self):
        self.write("show.py", "print('begun', flush=True)\nwhile True:\n    pass\n")
        job = self.start_torchup("show.py")
        self.assertEqual(job.stdout.readline(), "begun\n")
        self.assertEqual(os.readlink(f"/proc/{job.pid}/exe"), os.path.realpath(TORCHUP))
        job.send_signal(signal.SIGTERM)
        self.ended(job, 128 + signal.SIGTERM)
        self.ended(self.start_torchup("--no-such-option"), 2)

    def test_without_torchup_it_says_where_it_looked(self):
        packages = self.folder / "alone"
        packages.mkdir()
        (packages / "torchup").symlink_to(Path(PACKAGE, "torchup").resolve())
        _, err = self.ended(self.start_torchup("show.py", PYTHONPATH=str(packages)), 127)
        self.assertEqual(err.count("\n"), 1)
        self.assertIn(f"{packages}/bin", err)


if __name__ == "__main__":
    unittest.main()
