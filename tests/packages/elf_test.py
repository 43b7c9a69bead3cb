"""The reader that release programs are held against sees what breaks its rules.

usage: elf_test.py [unittest options]
"""

import importlib.util
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

spec = importlib.util.spec_from_file_location("elf", Path(__file__).resolve().parents[2] / "scripts/release.d/elf.py")
elf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(elf)

HARDENED = ("-fPIE", "-pie", "-s", "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack", "-Wl,--build-id=sha1")


class Elf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def faults(self, *options, source="int main() {}"):
        if not shutil.which("g++"):
            self.skipTest("g++ is not installed")
        path = self.folder / "program"
        (self.folder / "program.cpp").write_text(source)
        subprocess.run(["g++", "-O1", "-o", path, self.folder / "program.cpp", *options], check=True)
        # What this machine's own C library asks of itself is not the matter.
        return [fault for fault in elf.faults(path.read_bytes()) if not fault.startswith("it asks for GLIBC_2.3")]

    def test_each_rule(self):
        self.assertEqual(self.faults(*HARDENED), [])
        for options, fault in ((("-no-pie",), "it is not position-independent"),
                               (("-Wl,-z,norelro",), "its tables stay writable: no full RELRO"),
                               (("-Wl,-z,lazy",), "its tables stay writable: no full RELRO"),
                               (("-Wl,-z,execstack",), "its stack is executable"),
                               (("-Wl,--build-id=none",), "it has no build id"),
                               (("-Wl,-rpath,/x",), "it has a path of libraries"),
                               (("-Wl,--no-as-needed,-lz,--as-needed",), "it needs libz.so.1")):
            with self.subTest(options=options):
                self.assertEqual(self.faults(*HARDENED, *options), [fault])
        self.assertEqual(self.faults(*(option for option in HARDENED if option != "-s")), ["it is not stripped"])
        stream = "#include <iostream>\nint main() { std::cout << 1; }"
        told = self.faults(*HARDENED, source=stream)
        self.assertIn("it needs libstdc++.so.6", told)
        self.assertTrue(any(fault.endswith("of libstdc++.so.6") for fault in told), told)

    def test_paths_of_the_machine_that_built_it(self):
        told = self.faults(*HARDENED, source='const char* volatile p = "/home/someone/torchup/a.cpp"; int main() {}')
        self.assertEqual(told, ["it names /home/someone/torchup/a.cpp"])

    def test_a_newer_glibc(self):
        self.assertGreater(elf.number("GLIBC_2.28.1"), elf.NEWEST)
        self.assertGreater(elf.number("GLIBC_2.30"), elf.NEWEST)
        self.assertLess(elf.number("GLIBC_2.4"), elf.NEWEST)

    def test_what_is_none(self):
        for data in (b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60)):
            self.assertEqual(elf.faults(data), ["no 64-bit little-endian ELF file"])


if __name__ == "__main__":
    unittest.main()
