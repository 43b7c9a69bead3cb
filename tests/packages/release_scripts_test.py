"""scripts/release begins only with what it needs, knows its version, and says what differs of two builds.

usage: release_scripts_test.py [unittest options]
"""

import importlib.util
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = subprocess.run([ROOT / "scripts/release.d/version", "--plain"], capture_output=True, text=True).stdout.strip()


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def run_it(self, *command, code=0):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100,
                              cwd=self.folder, env=self.environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def checkout(self):
        """A small one, with the scripts that are tested and a commit."""
        clone = self.folder / "clone"
        shutil.copytree(ROOT / "scripts", clone / "scripts")
        shutil.copy(ROOT / "CMakeLists.txt", clone)
        self.git("init", "--quiet", ".", clone=clone)
        self.git("add", ".", clone=clone)
        self.git("commit", "--quiet", "-m", "all", clone=clone)
        return clone

    def git(self, *words, clone):
        return self.run_it("git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b", *words).stdout.strip()

    def stand_in(self, name, text):
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
        self.environment["PATH"] = f"{folder}:{os.environ['PATH']}"


class Version(Scripts):
    def version(self, clone):
        return self.run_it(clone / "scripts/release.d/version").stdout.split()

    def test_a_tag_of_it_and_no_change_is_a_release(self):
        clone = self.checkout()
        commit = self.git("rev-parse", "HEAD", clone=clone)
        developed = [f"{VERSION}.dev1+g{commit[:8]}", f"{VERSION}~dev1+g{commit[:8]}", commit, "no"]
        self.assertEqual(self.version(clone), developed)
        self.git("tag", f"v{VERSION}0", clone=clone)  # another version's
        self.assertEqual(self.version(clone), developed)
        self.git("tag", f"v{VERSION}", clone=clone)
        self.assertEqual(self.version(clone), [VERSION, VERSION, commit, "yes"])
        (clone / "new").write_text("")
        self.assertEqual(self.version(clone), [f"{VERSION}.dev1+g{commit[:8]}.dirty", f"{VERSION}~dev1+g{commit[:8]}.dirty", commit, "no"])

    def test_without_git(self):
        clone = self.checkout()
        shutil.rmtree(clone / ".git")
        self.assertEqual(self.version(clone), [f"{VERSION}.dev0", f"{VERSION}~dev0", "unknown", "no"])


class Begin(Scripts):
    def test_an_untagged_or_changed_checkout_is_refused(self):
        clone = self.checkout()
        self.assertIn(f"the tag v{VERSION}", self.run_it(clone / "scripts/release", code=2).stderr)
        self.git("tag", f"v{VERSION}", clone=clone)
        (clone / "CMakeLists.txt").write_text((clone / "CMakeLists.txt").read_text() + "\n")
        self.assertIn("this is no release", self.run_it(clone / "scripts/release", code=2).stderr)
        self.assertEqual(sorted(path.name for path in clone.iterdir()), [".git", "CMakeLists.txt", "scripts"])

    def test_all_that_is_missing_is_told_at_once_before_any_work(self):
        clone = self.checkout()
        self.stand_in("dpkg-query", 'for last; do :; done; case $last in llvm|cmake) exit 1;; esac; echo installed')
        for tool in ("apt-get", "cmake", "python3"):
            self.stand_in(tool, f"echo {tool} >>{self.folder}/called")
        told = self.run_it(clone / "scripts/release", "--allow-dirty", code=2).stderr
        self.assertEqual(told, "release: these Debian packages are missing: cmake llvm\n")
        self.assertFalse((self.folder / "called").exists())
        self.assertFalse((clone / "build").exists())

    def test_words_that_are_none(self):
        for words in ("--arch=riscv64",), ("--arch",), ("--upload",), ("--out=",):
            with self.subTest(words=words):
                self.run_it(ROOT / "scripts/release", *words, code=2)

    def test_a_folder_with_anothers_files_stays(self):
        clone, out = self.checkout(), self.folder / "precious"
        out.mkdir()
        (out / "file").write_text("mine")
        self.stand_in("dpkg-query", "echo installed")
        told = self.run_it(clone / "scripts/release", "--allow-dirty", "--out", out, code=2).stderr
        self.assertIn("not empty", told)
        self.assertEqual((out / "file").read_text(), "mine")
        self.assertFalse((clone / "build").exists())


class Parts(unittest.TestCase):
    def test_of_a_long_copyright_file_the_licence_is_taken(self):
        spec = importlib.util.spec_from_file_location("parts", ROOT / "scripts/release.d/parts.py")
        parts = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(parts)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "copyright"
            path.write_text("License: BSL-1.0\n a . short\n .\n one\n")
            self.assertEqual(parts.licence_text(path, "BSL-1.0"), path.read_text())
            authors = "Files: a\nCopyright: b\nLicense: BSL-1.0\n\n" * 3000
            path.write_text(f"{authors}License: BSL-1.0\n a . long\n .\n one.\n\nLicense: BSL-1.0-other\n x\n")
            self.assertEqual(parts.licence_text(path, "BSL-1.0"), "a . long\n\none.\n")


class Compare(Scripts):
    def compare(self, code):
        return self.run_it(ROOT / "scripts/release.d/compare.py", self.folder / "a", self.folder / "b", code=code).stdout

    def write(self, folder, name, data):
        (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / folder / name).write_bytes(data)

    def tar(self, **files):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return data.getvalue()

    def ar(self, **files):
        data = b"!<arch>\n"
        for name, content in files.items():
            head = f"{name.replace('_', '.'):<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            data += head + content + b"\n" * (len(content) % 2)
        return data

    def test_the_same(self):
        for folder in "a", "b":
            self.write(folder, "x.tar", self.tar(one=b"1"))
        self.assertEqual(self.compare(0), "")

    def test_the_innermost_member_that_differs_is_named(self):
        def wheel(text):
            data = io.BytesIO()
            with zipfile.ZipFile(data, "w") as archive:
                archive.writestr(zipfile.ZipInfo("same"), "same")
                archive.writestr(zipfile.ZipInfo("bin/torchup"), text)
            return data.getvalue()

        for folder, text in ("a", b"1"), ("b", b"2"):
            self.write(folder, "t.whl", wheel(text))
            self.write(folder, "t.deb", self.ar(debian=b"2.0\n", data_tar=self.tar(one=b"1", two=text)))
            self.write(folder, "t.txt", text)
        self.write("a", "alone", b"")
        self.assertEqual(self.compare(1).splitlines(),
                         ["differs: alone is in one of them alone", "differs: t.deb: data.tar: two", "differs: t.txt",
                          "differs: t.whl: bin/torchup"])

    def test_a_mode_is_a_difference(self):
        for folder, mode in ("a", 0o644), ("b", 0o755):
            data = io.BytesIO()
            with zipfile.ZipFile(data, "w") as archive:
                member = zipfile.ZipInfo("x")
                member.external_attr = (stat.S_IFREG | mode) << 16
                archive.writestr(member, "x")
            self.write(folder, "t.whl", data.getvalue())
        self.assertEqual(self.compare(1), "differs: t.whl: x\n")


if __name__ == "__main__":
    unittest.main()
