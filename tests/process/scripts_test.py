"""The scripts as somebody trips over them: in a folder with spaces in its name, called from elsewhere, called again.

usage: tests/support/run_case.py scripts_test.py CASE
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
# What the scripts call, as far as they need its answers; `cmake` keeps what it is told, as the real one does.
STANDINS = {
    "dpkg-query": "echo installed",
    "python3": 'echo "python3 $*" >> called; mkdir -p .venv/bin; test -e .venv/bin/python || ln -s "$0" .venv/bin/python',
    "cmake": 'echo "cmake $*" >> called; test "$1" = --build && exit; mkdir -p build/$2\n'
             'for word; do case $word in -DTORCHUP_PYTHON=*) echo "TORCHUP_PYTHON:UNINITIALIZED=${word#*=}" > build/$2/CMakeCache.txt;; esac; done',
    "ctest": 'case $* in *-N*) echo "Total Tests: 0";; *) echo "ctest $*" >> called;; esac',
    "a python": "echo 2.15.0",
}


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="a folder ")
        self.addCleanup(folder.cleanup)
        self.clone, self.programs = Path(folder.name, "the clone"), Path(folder.name, "programs")
        for part in "scripts", "tests/cluster", "tests/support":
            # Other tests write Python's own files there meanwhile, by names that last for a moment.
            shutil.copytree(SOURCE / part, self.clone / part, ignore=shutil.ignore_patterns("__pycache__"))
        self.programs.mkdir()
        for name, text in STANDINS.items():
            self.stand_in(name, text)

    def stand_in(self, name, text):
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def run_script(self, name, *options, standins=True):
        path = f"{self.programs}:{os.environ['PATH']}" if standins else os.environ["PATH"]
        done = subprocess.run([self.clone / "scripts" / name, *options], capture_output=True, text=True, cwd=self.programs, timeout=120,
                              stdin=subprocess.DEVNULL, env={**os.environ, "PATH": path})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def called(self):
        """What was called since the last time."""
        path = self.clone / "called"
        calls = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return calls

    def test_all_say_what_they_are_for(self):
        names = [path.name for path in (SOURCE / "scripts").iterdir() if path.is_file()]
        self.assertGreater(len(names), 5)
        for name in names:
            self.assertIn(f"scripts/{name}", self.run_script(name, "--help", standins=False))

    def test_fuzz_tells_all_its_targets(self):
        known = re.findall(r"^torchup_fuzz_target\((\w+)", (SOURCE / "tests/fuzz/CMakeLists.txt").read_text(), re.M)
        self.assertEqual(sorted(known), sorted(re.findall(r"^  ([a-z_]+)  +\S", self.run_script("fuzz", "--help"), re.M)))

    def test_setup_keeps_to_the_python_that_it_was_told(self):
        python = self.programs / "a python"
        for script, options in (("setup", ["--python", "./a python"]), ("setup", []), ("setup", ["--tests"]), ("test", []),
                                ("test", ["-L", "unit"])):
            with self.subTest(script=script, options=options):
                self.run_script(script, *options)
                calls = self.called()
                self.assertRegex(calls, f"-DTORCHUP_WORKER_RUNTIME=ON -DTORCHUP_PYTHON={self.programs}/(\\./)?a python\\s")
                self.assertNotIn("venv", calls)
        python.write_text("#!/bin/sh\nexit 1\n")  # its torch is gone
        self.run_script("setup")
        calls = self.called()
        self.assertIn("python3 -m venv .venv", calls)
        # What needs no torch is built while it is installed.
        self.assertRegex(calls, r"(?s)-DTORCHUP_WORKER_RUNTIME=OFF\n.*-DTORCHUP_WORKER_RUNTIME=ON\n")

    def test_servers_that_came_for_the_tests_are_not_left_running(self):
        (self.programs / "there").write_text("g++ cmake slurmd")
        self.stand_in("dpkg-query", 'for last; do :; done; grep -qw -e "$last" "$(dirname "$0")/there" && echo installed')
        for name in ("apt-get", "apt-cache", "systemctl", "sudo"):
            self.stand_in(name, f'echo "{name} $*" >> called' if name != "sudo" else 'exec "$@"')
        self.run_script("setup", "--launcher-only", "--tests")
        lines = [line for line in self.called().splitlines() if "systemctl" in line]
        self.assertEqual(lines, ["systemctl --quiet disable --now ssh slurmctld munge prometheus"])  # slurmd was there
        self.run_script("setup", "--launcher-only")
        self.assertNotIn("systemctl", self.called())

    def test_setup_installs_what_tests_alone_need_beside_torch(self):
        self.stand_in("python3", STANDINS["python3"] + "\ncase $* in *sys.argv*) exit 1;; esac")
        self.run_script("setup", "--tests")
        self.assertRegex(self.called(), r"-m pip install .*torch==\S+ safetensors lightning accelerate jsonschema\n")
        self.run_script("setup")
        self.assertNotIn("lightning", self.called())

    def test_setup_makes_the_package_importable_in_the_venv(self):
        self.run_script("setup")
        site = self.clone / ".venv/lib/python3.11/site-packages"
        site.mkdir(parents=True)
        for _ in range(2):
            self.run_script("setup")
            self.assertEqual((site / "torchup.pth").read_text(), f"{self.clone}/build/release/python\n")

    def test_setup_needs_no_torch_for_what_is_built_without(self):
        for options in ("--launcher-only",), ("--preset", "asan"), ("--preset=tsan", "--tests"):
            self.run_script("setup", *options)
            calls = self.called()
            self.assertIn("-DTORCHUP_WORKER_RUNTIME=OFF", calls)
            self.assertNotIn("venv", calls)


if __name__ == "__main__":
    unittest.main()
