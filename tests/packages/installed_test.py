"""What `cmake --install` leaves of the package torchup: it finds its programs, and is no torchrun.

usage: installed_test.py CMAKE BUILD STAND_IN [unittest options]    STAND_IN: the folder with a stand-in for torch
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD, STAND_IN = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))


class Installed(unittest.TestCase):
    def test_the_package_is_whole(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        prefix = Path(folder.name).resolve()
        for component in "programs", "python":
            subprocess.run([CMAKE, "--install", BUILD, "--component", component, "--prefix", prefix], check=True,
                           timeout=100, stdout=subprocess.DEVNULL)
        packages = prefix / "share/torchup/python"
        self.assertEqual(list(prefix.rglob("torchrun")), [packages / "torchup/drop_in/bin/torchrun"])
        (prefix / "show.py").write_text("print('worker')\n")
        environment = {**os.environ, "PYTHONPATH": f"{packages}:{STAND_IN}"}
        for command, told in (("import torchup; print(torchup.program('torchup'))", f"{prefix}/bin/torchup\n"),
                              ("import torch.distributed.run as r; r.main(['show.py'])", "worker\n")):
            done = subprocess.run([sys.executable, "-m", "torchup.drop_in", sys.executable, "-c", command], cwd=prefix,
                                  env=environment, capture_output=True, text=True, timeout=100)
            self.assertEqual((done.returncode, done.stdout), (0, told), done.stderr)


if __name__ == "__main__":
    unittest.main()
