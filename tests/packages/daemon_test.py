"""torchupd as a package brings it: what it says of itself, the secret that systemd hands it, its unit, all pages.

usage: daemon_test.py TORCHUP TORCHUPD TORCHUPCTL BUILD [unittest options]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAMS = {name: os.path.abspath(sys.argv.pop(1)) for name in ("torchup", "torchupd", "torchupctl")}
BUILD = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[2]
TORCHUPD = PROGRAMS["torchupd"]
GOOD, SHORT = "a token of twenty-five...", "short"


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


class Version(unittest.TestCase):
    def test_each_program_says_which_it_is_and_what_it_reads_and_writes(self):
        numbers = {"torchup": {"events_schema", "result_schema", "incident_schema", "state_schema"},
                   "torchupd": {"state_schema"}, "torchupctl": {"events_schema", "page_schema"}}
        versions = set()
        for name, program in PROGRAMS.items():
            plain, answer = run(program, "--version"), run(program, "--version", "--json")
            self.assertEqual((plain.returncode, answer.returncode), (0, 0), answer.stderr)
            said = json.loads(answer.stdout)
            self.assertEqual(said.keys(), {"name", "version", "commit", "target", "agent_protocol", *numbers[name]})
            self.assertEqual(plain.stdout, f"{name} {said['version']}\n")
            self.assertEqual(said["name"], name)
            self.assertEqual(said["target"].partition("-")[0], os.uname().machine)
            oldest, newest = said["agent_protocol"]
            self.assertLessEqual(oldest, newest)
            versions.add(said["version"])
        self.assertEqual(len(versions), 1)

    def test_json_alone_is_refused(self):
        self.assertEqual(run(TORCHUPD, "--json").returncode, 2)


class Credential(unittest.TestCase):
    """No daemon is left running: whoever gets past its token ends at an address that is none."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def start(self, credential=None, options=(), **environment):
        if credential is not None:
            (self.folder / "token").unlink(missing_ok=True)
            (self.folder / "token").write_text(credential)
            (self.folder / "token").chmod(0o400)
        done = run(TORCHUPD, "--bind", "none", *options, CREDENTIALS_DIRECTORY=str(self.folder), **environment)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_it_is_the_token(self):
        self.assertIn("credential", self.start(SHORT))
        self.assertIn("can be guessed", self.start(SHORT, TORCHUP_TOKEN=GOOD))
        self.assertIn("cannot listen", self.start(GOOD + "\n"))

    def test_a_line_end_is_none(self):
        for empty in "\n", " \n", "":
            with self.subTest(credential=empty):
                self.assertIn("cannot listen", self.start(empty))
                self.assertIn("TORCHUP_TOKEN", self.start(TORCHUP_TOKEN=SHORT))

    def test_without_the_file_it_is_the_variable(self):
        self.assertIn("cannot listen", self.start())
        self.assertIn("TORCHUP_TOKEN", self.start(TORCHUP_TOKEN=SHORT))

    def test_a_named_file_comes_before_it(self):
        named = self.folder / "named"
        named.write_text(GOOD)
        named.chmod(0o600)
        self.assertIn("cannot listen", self.start(SHORT, ("--token-file", named)))

    def test_one_that_others_may_read_is_refused(self):
        self.start(GOOD)
        (self.folder / "token").chmod(0o444)
        self.assertIn("others can read it", self.start())


class Pages(unittest.TestCase):
    def pages(self):
        pages = sorted((BUILD / "share/man").glob("man*/*"))
        if len(pages) < 3:
            self.skipTest("the pages are not built")
        self.assertEqual([page.name for page in pages], ["torchup.1", "torchupctl.1", "torchupd.8"])
        return pages

    def test_they_are_pages(self):
        if not shutil.which("mandoc"):
            self.skipTest("mandoc is not installed")
        for page in self.pages():
            told = run("mandoc", "-T", "lint", "-W", "warning", page)
            # The date is left to the package: the same sources give the same bytes.
            lines = [line for line in told.stdout.splitlines() if "missing date" not in line]
            self.assertEqual(lines, [])

    def test_the_daemons_has_every_option_and_every_code(self):
        page = next(page for page in self.pages() if page.name == "torchupd.8").read_text().replace("\\-", "-")
        told = run(TORCHUPD, "--help").stdout
        options = set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", told, re.M))
        self.assertGreater(len(options), 20)
        self.assertEqual(options - set(re.findall(r"^\\fB(--[\w-]+)", page, re.M)), set())
        codes = re.findall(r"^  (\d+) +(.+)$", told.partition("Exit codes")[2], re.M)
        self.assertEqual([code for code, _ in codes], ["0", "2", "65", "67", "70"])
        for code, meaning in codes:
            self.assertIn(f".TP\n\\fB{code}\\fR\n{meaning}\n", page)


class Unit(unittest.TestCase):
    def test_it_is_one(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not installed")
        told = run("systemd-analyze", "verify", ROOT / "rendezvous/torchupd.service",
                   PATH=f"{Path(TORCHUPD).parent}:{os.environ['PATH']}")
        lines = [line for line in told.stderr.splitlines() if "torchupd" in line and "not executable" not in line
                 and "is not an absolute path" not in line]
        self.assertEqual(lines, [])

    def test_it_names_no_place_of_its_build(self):
        unit = (ROOT / "rendezvous/torchupd.service").read_text()
        self.assertIn("\nExecStart=torchupd ", unit)
        self.assertIn("\nLoadCredential=token:/etc/torchup/token\nSetCredential=token:\\n\n", unit)


if __name__ == "__main__":
    unittest.main()
