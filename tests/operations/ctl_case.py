"""What tests of torchupctl have in common: its program, a folder with sockets that are nobody else's, and stand-ins for
launchers in it. The first word of the command line is the program."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

TORCHUPCTL = os.path.abspath(sys.argv.pop(1))


class Ctl(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.sockets = self.folder / "sockets"
        self.sockets.mkdir(mode=0o700)
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("TORCHUP_ENDPOINT", "TORCHUP_TOKEN", "NO_COLOR")}
        self.environment["TORCHUP_RUNTIME_DIR"] = str(self.sockets)

    def launcher(self, answer, pid=4242, folder=None):
        from fake_launcher import Launcher
        launcher = Launcher(answer, folder or self.sockets, pid)
        self.addCleanup(launcher.close)
        return launcher

    def ctl(self, *words, text=True, code=None, **environment):
        done = subprocess.run([TORCHUPCTL, *map(str, words)], capture_output=True, text=text, timeout=100,
                              stdin=subprocess.DEVNULL, cwd=self.folder, env={**self.environment, **environment})
        if code is not None:
            self.assertEqual(done.returncode, code, (done.stdout, done.stderr))
        return done

    def start(self, *words):
        process = subprocess.Popen([TORCHUPCTL, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL, cwd=self.folder, env=self.environment)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.communicate()))
        return process
