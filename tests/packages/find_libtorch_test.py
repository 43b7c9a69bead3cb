"""Which torch FindLibTorch takes, and how it says that one is not fit: quietly where it is asked so.

usage: find_libtorch_test.py CMAKE [unittest options]
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE = os.path.abspath(sys.argv.pop(1))
MODULES = Path(__file__).resolve().parents[2] / "cmake"
PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH %s)
{before}
find_package(LibTorch {how})
message(STATUS "found: ${{LibTorch_FOUND}} ${{LibTorch_VERSION}} ${{LibTorch_NOT_FOUND_MESSAGE}}")
""" % MODULES


class FindLibTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        (self.folder / "gloo").mkdir()
        (self.folder / "gloo/context.h").write_text("")

    def torch(self, version, place="torch"):
        torch = self.folder / place
        (torch / "lib").mkdir(parents=True)
        (torch / "version.py").write_text(f"__version__ = '{version}'\n")
        for name in "libtorch_cpu.so", "libc10.so":
            (torch / "lib" / name).write_text("")
        return torch

    def configure(self, how="QUIET", torch=None, before="", code=0, **environment):
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(PROJECT.format(how=how, before=before))
        words = [CMAKE, "-G", "Ninja", "-S", source, "-B", source / "build", "--fresh", f"-DLibTorch_GLOO_INCLUDE_DIR={self.folder}"]
        if torch:
            words.append(f"-DTORCHUP_TORCH_DIR={torch}")
        environment = {**{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}, **environment}
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=100, env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def answer(self, done):
        return next(line for line in done.stdout.splitlines() if line.startswith("-- found: "))

    def test_a_fit_one(self):
        done = self.configure(torch=self.torch("2.15.0+cpu"))
        self.assertEqual(self.answer(done).strip(), "-- found: TRUE 2.15.0")
        self.assertEqual(done.stderr, "")

    def test_one_that_is_too_old_is_not_found_and_says_why(self):
        torch = self.torch("2.8.1")
        quiet = self.configure(torch=torch)
        self.assertIn("found: FALSE", self.answer(quiet))
        for word in "2.8.1", "2.9", str(torch):
            self.assertIn(word, self.answer(quiet))
        self.assertEqual(quiet.stderr, "")
        self.assertIn("2.8.1", self.configure("REQUIRED", torch, code=1).stderr)

    def test_none_is_not_found_and_says_where_it_looked(self):
        done = self.configure(torch=self.folder / "nowhere")
        self.assertIn(f"No PyTorch found (looked at: TORCHUP_TORCH_DIR={self.folder}/nowhere)", self.answer(done))
        self.assertEqual(done.stderr, "")

    def test_an_old_compiler_is_told(self):
        torch = self.torch("2.15.0")
        for compiler, version, fits in (("GNU", "10.2.1", False), ("GNU", "11.1.0", True), ("Clang", "14.0.6", False),
                                        ("Clang", "15.0.0", True), ("IntelLLVM", "1.0", True)):
            with self.subTest(compiler=compiler, version=version):
                before = f"set(CMAKE_CXX_COMPILER_ID {compiler})\nset(CMAKE_CXX_COMPILER_VERSION {version})"
                told = self.answer(self.configure(torch=torch, before=before))
                self.assertEqual("found: TRUE" in told, fits, told)
                if not fits:
                    self.assertIn(f"{compiler} {version}", told)

    def test_one_that_is_newer_than_tested_is_one_warning(self):
        torch = self.torch("2.16.0")
        self.assertEqual(self.configure("", torch).stderr.count("CMake Warning"), 1)
        self.assertEqual(self.configure("QUIET", torch).stderr, "")
        self.assertEqual(self.configure("", self.torch("2.15.9", "tested")).stderr, "")

    def test_the_activated_environment_comes_before_path(self):
        packages = self.torch("2.12.0", "env/packages/torch").parent
        (packages / "torch/__init__.py").write_text("")
        python = self.folder / "env/bin/python3"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        if (MODULES.parent / ".venv/bin/python").exists():
            self.skipTest("this checkout has an environment of its own, which comes first")
        self.assertIn("found: TRUE 2.12.0", self.answer(self.configure(VIRTUAL_ENV=str(self.folder / "env"))))


if __name__ == "__main__":
    unittest.main()
