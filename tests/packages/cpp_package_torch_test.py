"""A project of five lines against what the wheel brings, and the real torch: it is compiled there and trains under torchup.

usage: cpp_package_torch_test.py CMAKE BUILD TORCHUP TORCH_DIR [unittest options]

As root the headers of Boost, nlohmann-json, fmt and gloo that this machine has are hidden meanwhile, by empty folders.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD, TORCHUP, TORCH = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
ROOT = Path(__file__).resolve().parents[2]
HIDDEN = [name for name in ("boost", "nlohmann", "fmt", "gloo") if Path("/usr/include", name).is_dir()]
HIDE = "".join(f"mount -t tmpfs none /usr/include/{name} && " for name in HIDDEN) + 'exec "$@"'
PROJECT = f"""\
cmake_minimum_required(VERSION 3.25)
project(train LANGUAGES CXX)
find_package(torchup REQUIRED)
add_executable(train {ROOT}/examples/linear/main.cpp)
target_link_libraries(train PRIVATE torchup::worker_runtime)
"""


class Consumer(unittest.TestCase):
    def test_a_stranger_trains_with_it(self):
        if not Path(TORCH, "version.py").is_file():
            self.skipTest("torch is not installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        source, prefix = Path(folder.name) / "source", Path(folder.name) / "torchup"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(PROJECT)
        run = lambda *words: subprocess.run([str(word) for word in words], check=True, timeout=1200)  # noqa: E731
        run(CMAKE, "--install", BUILD, "--component", "cpp", "--prefix", prefix)
        hidden = ["unshare", "--mount", "sh", "-c", HIDE, "sh"] if os.geteuid() == 0 else []
        run(*hidden, CMAKE, "-G", "Ninja", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DTORCHUP_TORCH_DIR={TORCH}", "-DCMAKE_BUILD_TYPE=Release")
        run(*hidden, CMAKE, "--build", source / "build")
        again = subprocess.run([CMAKE, "--build", source / "build"], capture_output=True, text=True, check=True)
        self.assertIn("no work to do", again.stdout)
        run(TORCHUP, "--nproc-per-node=2", source / "build/train")


if __name__ == "__main__":
    unittest.main()
