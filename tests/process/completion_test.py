"""Completion as real shells do it: bash, zsh and fish load the script that the launcher prints, and complete with it.

usage: completion_test.py TORCHUP [unittest options]
"""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TORCHUP = os.path.abspath(sys.argv.pop(1))


def script(shell):
    return subprocess.run([TORCHUP, "--print-completion", shell], check=True, capture_output=True, text=True).stdout


class Completion(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "train_here.py").touch()

    def shell(self, name):
        path = shutil.which(name)
        if not path:
            self.skipTest(f"{name} is not installed")
        return path

    def check(self, complete):
        """`complete` gives the words that the shell offers for a line."""
        self.assertIn("--nproc-per-node", complete("torchup --nproc"))
        self.assertIn("--rdzv-endpoint", complete("torchup --nproc-per-node 2 --rdzv-e"))
        offered = complete("torchup --nproc-per-node 2 --same-world ")
        self.assertTrue({"warn", "fail", "off"} <= set(offered), offered)
        self.assertIn("train_here.py", complete("torchup --nproc-per-node 2 train_h"))

    def check_behind_the_program(self, complete):
        self.assertNotIn("--nproc-per-node", complete("torchup train_here.py --nproc"))

    def test_bash(self):
        bash = self.shell("bash")
        (self.folder / "script").write_text(script("bash"))
        program = """source "$1/script"; cd "$1"; line=$2; read -ra COMP_WORDS <<<"$line"
                     [[ $line == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _torchup
                     printf '%s\\n' "${COMPREPLY[@]}" """

        def complete(line):
            return subprocess.run([bash, "--norc", "-c", program, "bash", self.folder, line], check=True,
                                  capture_output=True, text=True).stdout.split()

        self.check(complete)
        self.check_behind_the_program(complete)

    def test_fish(self):
        fish = self.shell("fish")
        (self.folder / "script").write_text(script("fish"))

        def complete(line):
            done = subprocess.run([fish, "--no-config", "-c", 'source script; complete -C "$argv[1]"', line], check=True,
                                  capture_output=True, text=True, cwd=self.folder,
                                  env={**os.environ, "HOME": str(self.folder)})
            self.assertEqual(done.stderr, "")
            return [offer.split("\t")[0] for offer in done.stdout.splitlines()]

        self.check(complete)
        self.check_behind_the_program(complete)

    def test_zsh(self):
        zsh = self.shell("zsh")
        (self.folder / "_torchup").write_text(script("zsh"))
        for line, *words in (("torchup --nproc", "--nproc-per-node"),
                             ("torchup --nproc-per-node 2 --rdzv-e", "--rdzv-endpoint"),
                             ("torchup --nproc-per-node 2 --same-world ", "warn", "fail", "off"),
                             ("torchup -m -r 3 --nproc", "--nproc-per-node"),
                             ("torchup --nproc-per-node 2 train_h", "train_here.py")):
            self.zsh_offers(zsh, line, words)

    def zsh_offers(self, zsh, line, words):
        """A shell of its own is asked for its list (C-d), which must have these words."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.environ.update(TERM="dumb", PS1="ready> ", ZDOTDIR=str(self.folder), COLUMNS="250", LINES="60")
            os.execv(zsh, [zsh, "-f", "-i"])

        def until(pattern, limit_s=60):
            text, end = "", time.monotonic() + limit_s
            while not re.search(pattern, text, re.S):
                ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
                self.assertTrue(ready, f"no {pattern} in {text!r}")
                text += os.read(terminal, 65536).decode(errors="replace")

        try:
            until("ready> ")
            os.write(terminal, b"setopt no_beep; LISTMAX=9999; zstyle ':completion:*' menu no; fpath=($PWD $fpath); "
                               b"autoload -Uz compinit; compinit -u -D; compdef _torchup torchup; print loa''ded\n")
            until("loaded.*ready> ")
            os.write(terminal, line.encode() + b"\x04")
            # What was typed is echoed; the words must stand once more than in it.
            until("".join(rf"(?=(?:.*{re.escape(word)}){{{line.count(word) + 1}}})" for word in words))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)


if __name__ == "__main__":
    unittest.main()
