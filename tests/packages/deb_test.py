"""The Debian package: what is in it and where, and that the same files give the same bytes.

usage: deb_test.py CMAKE BUILD [unittest options]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
RELEASE = Path(__file__).resolve().parents[2] / "scripts/release.d"
VERSION = "0.9.1~dev3+gabc"
FILES = """\
usr/bin/torchup
usr/bin/torchup-launch
usr/bin/torchup-stack
usr/bin/torchupctl
usr/bin/torchupd
usr/lib/systemd/system/torchupd.service
usr/lib/torchup/drop-in/torchrun
usr/share/bash-completion/completions/torchup
usr/share/bash-completion/completions/torchupctl
usr/share/doc/torchup/changelog.gz
usr/share/doc/torchup/copyright
usr/share/doc/torchup/parts/Boost.txt
usr/share/fish/vendor_completions.d/torchup.fish
usr/share/fish/vendor_completions.d/torchupctl.fish
usr/share/lintian/overrides/torchup
usr/share/man/man1/torchup-launch.1.gz
usr/share/man/man1/torchup-stack.1.gz
usr/share/man/man1/torchup.1.gz
usr/share/man/man1/torchupctl.1.gz
usr/share/man/man8/torchupd.8.gz
usr/share/zsh/vendor-completions/_torchup
usr/share/zsh/vendor-completions/_torchupctl
""".splitlines()


@unittest.skipUnless(shutil.which("dpkg-deb"), "dpkg-deb is not installed")
class Deb(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.stage = self.folder / "stage"
        for component in "programs", "systemd":
            self.run_it(CMAKE, "--install", BUILD, "--component", component, "--prefix", self.stage)
        for program in "torchup", "torchupd", "torchupctl":
            if shutil.which("strip"):
                self.run_it("strip", self.stage / "bin" / program)
        for page in "man1/torchup.1", "man1/torchupctl.1", "man8/torchupd.8":
            path = self.stage / "share/man" / page
            path.parent.mkdir(parents=True, exist_ok=True)
            name, section = path.name.split(".")
            path.write_text(f".TH {name.upper()} {section}\n.SH NAME\n{name} \\- starts jobs\n")
        for name in "torchup", "torchupctl":
            for place in (f"bash-completion/completions/{name}", f"zsh/site-functions/_{name}",
                          f"fish/vendor_completions.d/{name}.fish"):
                path = self.stage / "share" / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("# words\n")
        self.licences = self.folder / "licences"
        self.licences.mkdir()
        (self.licences / "Boost.txt").write_text("Boost Software License\n")

    def run_it(self, *command, code=0):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "LC_ALL": "C"})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def package(self, out="out", architecture="x86_64"):
        folder = self.folder / out
        folder.mkdir(exist_ok=True)
        self.run_it(RELEASE / "deb", self.stage, self.licences, VERSION, architecture, folder)
        made, = folder.iterdir()
        return made

    def test_its_files_lie_where_they_are_looked_for(self):
        made = self.package()
        self.assertEqual(made.name, f"torchup_{VERSION}_amd64.deb")
        tree = self.folder / "tree"
        self.run_it("dpkg-deb", "--extract", made, tree)
        self.assertEqual(sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()), FILES)
        for link in "usr/bin/torchup-launch", "usr/lib/torchup/drop-in/torchrun":
            self.assertEqual((tree / link).resolve(), tree / "usr/bin/torchup")
        self.assertEqual((tree / "usr/share/man/man1/torchup-stack.1.gz").resolve().name, "torchup.1.gz")
        self.assertEqual(self.run_it("dpkg-deb", "--field", made, "Depends"), "libc6 (>= 2.28)\n")
        owners = {line.split()[1] for line in self.run_it("dpkg-deb", "--contents", made).splitlines()}
        self.assertEqual(owners, {"root/root"})

    def test_same_files_same_bytes(self):
        first = self.package().read_bytes()
        for path in self.stage.rglob("*"):
            os.utime(path, follow_symlinks=False)
        self.assertEqual(self.package("again").read_bytes(), first)

    def test_the_other_processor(self):
        made = self.package(architecture="aarch64")
        self.assertEqual(self.run_it("dpkg-deb", "--field", made, "Architecture"), "arm64\n")

    def test_its_scripts_are_shell_and_touch_nothing_of_a_system_without_systemd(self):
        control = self.folder / "control"
        self.run_it("dpkg-deb", "--control", self.package(), control)
        for script in "postinst", "prerm", "postrm":
            self.run_it("sh", "-n", control / script)
            text = (control / script).read_text()
            self.assertIn("[ -d /run/systemd/system ]", text)
            self.assertNotIn("systemctl enable", text)
            self.assertNotIn("systemctl start", text)

    def test_lintian_is_content(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        self.run_it("lintian", "--allow-root", "--fail-on", "error,warning", self.package())


if __name__ == "__main__":
    unittest.main()
