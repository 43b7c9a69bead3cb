"""find_package(torchup) of the wheel: what is gathered is whole, and a project of a stranger's finds it, or is told why not.

usage: cpp_package_test.py CMAKE BUILD [unittest options]

Nothing is compiled against a torch here: a folder stands for one. Whether it trains is tested by cpp_package_torch_test.py.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
ROOT = Path(__file__).resolve().parents[2]
PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES CXX)
set(CMAKE_REQUIRED_QUIET "the caller's")
function(values result)
  get_cmake_property(names VARIABLES)
  list(FILTER names EXCLUDE REGEX "^(torchup_|LibTorch_|ARG|names$|name$|all$|before$|after$|result$)")
  set(all "")
  foreach(name IN LISTS names)
    string(APPEND all "${name}=[${${name}}]\\n")
  endforeach()
  set(${result} "${all}" PARENT_SCOPE)
endfunction()
values(before)
find_package(torchup %s)
find_package(torchup %s)
values(after)
if(NOT before STREQUAL after)
  message(FATAL_ERROR "find_package(torchup) changed the caller's variables")
endif()
get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
message(STATUS "targets: ${targets} ${imported}")
set(answer "no: ${torchup_NOT_FOUND_MESSAGE}")
if(torchup_FOUND)
  set(answer yes)
endif()
message(STATUS "found: ${answer}")
if(torchup_FOUND)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/main.cpp "int main() {}")
  add_executable(train ${CMAKE_CURRENT_BINARY_DIR}/main.cpp)
  target_link_libraries(train PRIVATE torchup::worker_runtime)
endif()
"""


class Gathered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not Path("/usr/include/gloo").is_dir():
            raise unittest.SkipTest("gloo's headers are not installed (libgloo-dev)")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name).resolve()
        cls.prefix = cls.folder / "site-packages/torchup"
        subprocess.run([CMAKE, "--install", BUILD, "--component", "cpp", "--prefix", cls.prefix], check=True, timeout=100,
                       stdout=subprocess.DEVNULL)
        cls.cpp = cls.prefix / "share/torchup/cpp"

    def torch(self, version="2.15.0"):
        torch = self.folder / "site-packages/torch"
        for part in "lib", "include/torch/csrc/api/include":
            (torch / part).mkdir(parents=True, exist_ok=True)
        (torch / "version.py").write_text(f"__version__ = '{version}'\n")
        for name in "libtorch_cpu.so", "libc10.so":
            (torch / "lib" / name).write_text("")
        return torch

    def configure(self, how="QUIET", *options):
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(PROJECT % (how, how))
        words = [CMAKE, "-G", "Ninja", "-S", source, "-B", source / "build", "--fresh", f"-DCMAKE_PREFIX_PATH={self.prefix}"]
        done = subprocess.run([*map(str, words), *options], capture_output=True, text=True, timeout=100)
        return done, dict(re.findall(r"^-- (targets|found): (.*)$", done.stdout, re.M))

    def test_every_source_of_the_runtime_is_among_them(self):
        listed = set(re.findall(r"^  (\S+\.cpp)$", (self.cpp / "sources.cmake").read_text(), re.M))
        rooms = {str(path.relative_to(ROOT)) for path in (ROOT / "worker_runtime").glob("*/*.cpp")}
        self.assertEqual(rooms - listed, set())
        self.assertEqual({path for path in listed if not (self.cpp / path).is_file()}, set())

    def test_it_is_small(self):
        files = [path for path in self.prefix.rglob("*") if path.is_file()]
        self.assertLess(sum(path.stat().st_size for path in files), 8_000_000)
        self.assertFalse((self.cpp / "third_party/include/boost/winapi").exists())

    def test_headers_of_others_are_private(self):
        self.assertEqual({path.name for path in (self.cpp / "third_party/gloo").iterdir()}, {"gloo"})
        for header in (self.cpp / "worker_runtime/include").rglob("*.hpp"):
            self.assertEqual(re.findall(r"#include [<\"](?:boost|fmt|nlohmann|gloo|rendezvous)", header.read_text()), [], header)

    def test_it_is_found_beside_its_torch(self):
        self.torch()
        done, told = self.configure()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(told["found"], "yes")
        targets = re.split(r"[; ]", told["targets"].strip())
        self.assertIn("torchup_worker_runtime", targets)
        self.assertEqual([name for name in targets if not name.startswith(("torchup", "LibTorch::"))], [])
        rules = (self.folder / "source/build/build.ninja").read_text()
        self.assertIn(f"-isystem {self.cpp}/third_party/include", rules)
        main = re.search(r"build CMakeFiles/train\.dir/\S+: .*?\n\n", rules, re.S)[0]
        self.assertNotIn("third_party/include", main)

    def test_an_unfit_one_is_not_found_quietly(self):
        self.torch("2.8.0")
        done, told = self.configure()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("no: PyTorch 2.8.0", told["found"])
        done, _ = self.configure("REQUIRED")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("2.8.0", done.stderr)

    def test_versions(self):
        self.torch()
        version = re.search(r"VERSION (\d+)\.(\d+)\.(\d+)", (ROOT / "CMakeLists.txt").read_text()).groups()
        major, minor, patch = version
        for wanted, fits in ((".".join(version), True), (f"{major}.{minor}", True), (f"{major}.{int(minor) + 1}", False),
                             (f"{int(major) + 1}", False), (f"{major}.{minor}.{int(patch) + 1}", False)):
            with self.subTest(wanted=wanted):
                self.assertEqual("found: yes" in self.configure(f"{wanted} QUIET")[0].stdout, fits)


if __name__ == "__main__":
    unittest.main()
