"""The wheel as pip and uv install it: it runs jobs, touches nothing of torch's, and leaves nothing behind.

usage: wheel_test.py CMAKE BUILD [unittest options]
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
MAKE_WHEEL = Path(__file__).resolve().parents[2] / "scripts/release.d/wheel.py"
VERSION = "0.9.1.dev3+gabc"


def pythons():
    """Those from 3.9 to 3.13 that run: on PATH, which may name some that do not, or where pyenv has them."""
    found = []
    for minor in range(9, 14):
        places = [shutil.which(f"python3.{minor}"), *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")]
        runs = (python for python in places if python and not subprocess.run([python, "-c", ""], capture_output=True).returncode)
        found += [python for python in [next(runs, None)] if python]
    return found or [sys.executable]


PYTHONS = pythons()


def pip(*words):
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]


class Wheel(unittest.TestCase):
    def setUp(self):
        if importlib.util.find_spec("pip") is None:
            self.skipTest("pip is not installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.stage, self.out = self.folder / "stage", self.folder / "out"
        for component in "programs", "python":
            self.run_it(CMAKE, "--install", BUILD, "--component", component, "--prefix", self.stage)
        (self.stage / "share/man/man1").mkdir(parents=True)
        (self.stage / "share/man/man1/torchup.1").write_text(".TH TORCHUP 1\n")
        self.out.mkdir()

    def run_it(self, *command, code=0, **options):
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC", "PYTHONPATH")}
        options.setdefault("env", {**environment, "SOURCE_DATE_EPOCH": "1700000000"})
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=140,
                              cwd=self.folder, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def wheel(self, architecture="x86_64"):
        made = self.run_it(sys.executable, MAKE_WHEEL, "--stage", self.stage, "--version", VERSION, "--architecture",
                           architecture, "--out", self.out)
        return Path(made.stdout.strip())

    def environment(self, python=PYTHONS[0]):
        """A virtual environment without pip in it, so that all its files are ours to count; a file stands for torch."""
        self.run_it(python, "-m", "venv", "--without-pip", self.folder / "venv")
        venv = self.folder / "venv"
        torch = next(venv.glob("lib/python3*/site-packages")) / "torch"
        torch.mkdir()
        (torch / "__init__.py").write_text("")
        (venv / "bin/torchrun").write_text("#!/bin/sh\necho torch\n")
        return venv

    def files(self, folder):
        """Empty folders do not count: pip leaves share/man, which others may use."""
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}

    def installed(self, venv, *options):
        self.run_it(*pip("--python", venv / "bin/python", "install", "--no-index", "--no-compile", *options, self.wheel()))

    def works(self, venv):
        """Two workers run, by that environment's Python although it is not the one that is activated."""
        program = venv / "bin/torchup"
        (self.folder / "show.py").write_text("import sys\nprint('worker', sys.prefix)\n")
        for start in [program], [venv / "bin/python", "-m", "torchup"]:
            done = self.run_it(*start, "--nproc-per-node=2", "show.py")
            self.assertEqual(sorted(done.stdout.splitlines()), [f"worker {venv}"] * 2)
        launched = self.run_it(venv / "bin/torchup-launch", "--nproc-per-node=2", "show.py")
        self.assertEqual(len(launched.stdout.splitlines()), 2)
        self.assertIn("PID", self.run_it(venv / "bin/torchup-stack", "--help").stdout)
        for name in "torchupd", "torchupctl":
            self.assertIn(name, self.run_it(venv / "bin" / name, "--help").stdout)
        asked = "import torchup, json; print(json.dumps([torchup.program('torchupd'), torchup.cmake_prefix_path, torchup.__version__]))"
        daemon, prefix, version = json.loads(self.run_it(venv / "bin/python", "-c", asked).stdout)
        self.assertEqual(daemon, str(venv / "bin/torchupd"))
        self.assertEqual(self.run_it(venv / "bin/python", "-m", "torchup", "--cmake-prefix-path").stdout, prefix + "\n")
        self.assertEqual(self.run_it(program, "--version").stdout, f"torchup {version}\n")
        self.assertTrue((venv / "share/man/man1/torchup.1").is_file())
        self.assertTrue(os.access(Path(prefix) / "drop_in/bin/torchrun", os.X_OK))

    def test_it_leaves_nothing_and_torchs_torchrun_alone(self):
        for python in PYTHONS:
            with self.subTest(python=python):
                venv = self.environment(python)
                before = self.files(venv)
                self.installed(venv)
                added = self.files(venv).keys() - before.keys()
                self.assertEqual({Path(name).name for name in added if name.startswith("bin/")},
                                 {"torchup", "torchupd", "torchupctl", "torchup-launch", "torchup-stack"})
                self.works(venv)
                self.run_it(*pip("--python", venv / "bin/python", "uninstall", "--yes", "torchup"))
                self.assertEqual(self.files(venv), before)
                shutil.rmtree(venv)

    def test_uv_installs_it(self):
        uv = shutil.which("uv")
        if not uv:
            self.skipTest("uv is not installed")
        venv = self.environment()
        before = self.files(venv)
        self.run_it(uv, "pip", "install", "--offline", "--no-index", "--python", venv / "bin/python", self.wheel())
        self.works(venv)
        self.run_it(uv, "pip", "uninstall", "--offline", "--python", venv / "bin/python", "torchup")
        self.assertEqual(self.files(venv).keys() - {".lock"}, before.keys())  # uv's own, of environments that it has seen

    def test_a_folder_of_ones_own(self):
        target = self.folder / "target"
        self.run_it(*pip("install", "--no-index", "--no-compile", "--target", target, self.wheel()))
        asked = "import torchup; print(torchup.program('torchup'))"
        found = self.run_it(sys.executable, "-S", "-c", asked, env={**os.environ, "PYTHONPATH": str(target)})
        self.assertEqual(found.stdout, f"{target}/bin/torchup\n")

    def test_same_files_same_bytes(self):
        first = self.wheel().read_bytes()
        for path in self.stage.rglob("*"):
            os.utime(path)
        self.assertEqual(self.wheel().read_bytes(), first)

    def test_what_it_is_not_for_has_no_matching_distribution(self):
        """As an index answers, which tells pip for which Pythons a wheel is."""
        page = self.folder / "simple/torchup/index.html"
        page.parent.mkdir(parents=True)
        link = '<a href="{}" data-requires-python="&gt;=3.9">{}</a>\n'
        page.write_text("".join(link.format(wheel.as_uri(), wheel.name) for wheel in (self.wheel(), self.wheel("aarch64"))))
        for fits, *words in ((True, "--platform=manylinux_2_28_x86_64"), (True, "--platform=manylinux_2_28_aarch64"),
                             (True, "--platform=manylinux_2_28_x86_64", "--python-version=3.9"),
                             (False, "--platform=manylinux_2_28_x86_64", "--python-version=3.8"),
                             (False, "--platform=musllinux_1_2_x86_64"), (False, "--platform=manylinux_2_17_x86_64"),
                             (False, "--platform=manylinux_2_28_ppc64le"), (False, "--platform=macosx_14_0_arm64")):
            with self.subTest(words=words):
                done = self.run_it(*pip("download", "--index-url", page.parents[1].as_uri(), "--only-binary=:all:", "--dest",
                                        self.folder / "got", "--pre", *words, "torchup"), code=0 if fits else 1)
                self.assertEqual("No matching distribution found for torchup" in done.stderr, not fits, done.stderr)

    def test_a_program_that_is_gone_is_told_with_the_places(self):
        venv = self.environment()
        self.installed(venv)
        (venv / "bin/torchup").unlink()
        done = self.run_it(venv / "bin/python", "-c", "import torchup; torchup.program('torchup')", code=1)
        self.assertIn("FileNotFoundError", done.stderr)
        self.assertIn(f"{venv}/bin", done.stderr)
        for start in [venv / "bin/python", "-m", "torchup"], [venv / "bin/torchup-launch"]:
            done = self.run_it(*start, "show.py", code=127 if len(start) > 1 else 1)
            self.assertIn(f"{venv}/bin", done.stderr)

    def test_what_it_says_of_itself(self):
        venv = self.environment()
        self.installed(venv)
        asked = ("import importlib.metadata as m, json; d = m.distribution('torchup'); "
                 "print(json.dumps([d.version, d.requires, d.metadata['Requires-Python'], d.read_text('WHEEL'), "
                 "[str(f) for f in d.files]]))")
        version, requires, python, wheel, files = json.loads(self.run_it(venv / "bin/python", "-c", asked).stdout)
        self.assertEqual((version, python), (VERSION, ">=3.9"))
        self.assertTrue(all("extra ==" in line for line in requires), requires)
        self.assertIn("Tag: py3-none-manylinux_2_28_x86_64\n", wheel)
        self.assertTrue(any(name.endswith("licenses/LICENSE") for name in files))


if __name__ == "__main__":
    unittest.main()
