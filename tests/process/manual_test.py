"""Help, manual page and README say the same about exit codes, and the plan and version can be read by programs.

usage: manual_test.py TORCHUP README [unittest options]
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

TORCHUP = os.path.abspath(sys.argv.pop(1))
README = Path(sys.argv.pop(1)).read_text()


def run(*words, **environment):
    return subprocess.run([TORCHUP, *words], capture_output=True, text=True, env={**os.environ, **environment})


class Manual(unittest.TestCase):
    def test_exit_codes_of_help_stand_in_the_readme(self):
        help_text = run("--help").stdout
        told = dict(re.findall(r"^  (\d+(?:\+n)?) +(.+)$", help_text[help_text.index("Exit codes:"):], re.M))
        self.assertGreaterEqual(set(told), {"0", "1", "2", "65", "66", "67", "68", "70", "75", "128+n"})
        readme = dict(re.findall(r"^\| (\d+(?:\+n)?) \| (.+?) \|$", README, re.M))
        self.assertEqual({code: meaning for code, meaning in readme.items() if code in told}, told)

    def test_manual_page_has_what_help_has(self):
        page = Path(TORCHUP).parents[1] / "share/man/man1/torchup.1"  # as text, without roff's fonts and escapes
        text = " ".join(re.sub(r"\\f[A-Z]|\\&", "", page.read_text()).replace("\\-", "-").split())
        help_text = run("--help").stdout
        options = re.findall(r"^  (?:-\w, ?|-\w,)?(--[a-z-]+)", help_text, re.M)
        self.assertGreater(len(options), 50)
        self.assertEqual(re.findall(r"\.TP (?:-\w, )?(--[a-z-]+)", text), options)
        for code, meaning in re.findall(r"^  (\d+(?:\+n)?) +(.+)$", help_text[help_text.index("Exit codes:"):], re.M):
            self.assertIn(f".TP {code} {meaning}", text)
        # Who ends with another code than the other nodes stands there as in README.
        for who in "a node that left (its signal)", "one that was cut off", "nothing could end (1, where it would be 0 or 128+n)":
            self.assertIn(who, text)
            self.assertIn(who, " ".join(README.split()))

    def test_help_says_defaults_choices_and_how_to_begin(self):
        text = " ".join(run("--help").stdout.split())
        for words in ("default port 29400", "spawn|fork|forkserver", "node|socket|exclusive|core-complex", "PET_NPROC_PER_NODE",
                      "torchup --nproc-per-node=auto train.py"):
            self.assertIn(words, text)

    def test_version(self):
        plain, as_json = run("--version"), run("--version", "--json")
        self.assertEqual((plain.returncode, as_json.returncode), (0, 0))
        self.assertEqual(plain.stdout, f"torchup {json.loads(as_json.stdout)['version']}\n")  # more of it: packages/daemon_test

    def test_dry_run_starts_nothing_and_shows_the_plan(self):
        done = run("--dry-run", "--nproc-per-node=3", "--max-restarts=2", "sh", "-c", "echo started")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("started\n", done.stdout)
        self.assertRegex(done.stdout, r"\b3\b")
        self.assertIn("/sh", done.stdout)

    def test_environment_of_any_rank(self):
        done = run("--print-env", "--format=json", "--rank=5", "--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d",
                   "--rdzv-endpoint=localhost:29400", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        variables = json.loads(done.stdout)
        self.assertEqual({name: variables[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")},
                         {"RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "8"})
        self.assertEqual(run("--print-env", "--rank=8", "--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d",
                             "--rdzv-endpoint=localhost:29400", "true").returncode, 2)


if __name__ == "__main__":
    unittest.main()
