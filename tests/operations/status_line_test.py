"""The line at the bottom of a terminal: drawn while nobody writes, gone before the next byte, and nowhere else.

Started as SCRIPT TORCHUP [name of a test ...]."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from waiting import LIMIT_S  # noqa: E402

TORCHUP = sys.argv.pop(1)
EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")
LINE = "1 rank on 1 node"
LONG_S = 4  # longer than the line waits for


def screen(text):
    """What a terminal shows: the lines, after carriage returns, erasures and colours."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.", text, re.S):
        if part == "\n":
            lines.append("")
        elif part == "\r":
            column = 0
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif part.endswith("m") and len(part) > 1:
            pass
        else:
            assert len(part) == 1, f"{part!r} moves the cursor"
            lines[-1] = lines[-1][:column] + part + lines[-1][column + 1:]
            column += 1
    return lines


class Terminal:
    """A command that was started from a terminal of its own, which it controls."""

    def __init__(self, command, columns=80, **environment):
        self.text = ""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execve(command[0], command, {"TERM": "xterm", **{name: value for name, value in os.environ.items()
                                                               if name not in ("NO_COLOR", "TERM")}, **environment})

    def read(self):
        """What comes within a moment; False at the end."""
        if not select.select([self.master], [], [], 0.05)[0]:
            return True
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # EIO: the last one that had it is gone
            return False
        self.text += piece.decode()
        return bool(piece)

    def until(self, part):
        end = time.monotonic() + LIMIT_S
        while part not in self.text:
            if not self.read() or time.monotonic() > end:
                raise AssertionError(f"{part!r} is not in {self.text!r}")

    def rest(self):
        """All that was written, and how it ended."""
        end = time.monotonic() + LIMIT_S
        while self.read():
            if time.monotonic() > end:
                raise AssertionError(f"it does not end: {self.text!r}")
        return self.text, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self):
        os.close(self.master)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass


class StatusLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.go = self.folder / "go"
        self.wait = f"until test -e {self.go}; do sleep 0.05; done"

    def start(self, script, *options, shell=None, **more):
        command = [TORCHUP, "--standalone", *options, "/bin/sh", "-c", script]
        if shell is not None:
            command = ["/bin/sh", "-c", shell, *command]
        terminal = Terminal(command, TMPDIR=str(self.folder), **more)
        self.addCleanup(terminal.close)
        return terminal

    def test_it_comes_when_nobody_writes_and_nothing_of_it_is_left(self):
        terminal = self.start(f"echo one; {self.wait}; echo two; rm {self.go}; {self.wait}; echo three")
        terminal.until(LINE)
        self.assertEqual(screen(terminal.text), ["one", LINE])
        self.assertIn("\x1b[90m", terminal.text)
        self.go.touch()
        terminal.until("two\r\n")
        self.assertEqual(screen(terminal.text)[:2], ["one", "two"])
        terminal.text = ""
        terminal.until(LINE)
        self.go.touch()
        text, status = terminal.rest()
        self.assertEqual((screen(text), status), (["three", ""], 0))

    def test_it_goes_at_the_end_of_a_silent_job(self):
        terminal = self.start(self.wait)
        terminal.until(LINE)
        self.go.touch()
        text, status = terminal.rest()
        self.assertEqual((screen(text), status), ([""], 0))

    def test_a_half_line_is_never_touched(self):
        for half in "Loading... ", "50%|###   |\r", "\x1b[1mbold":
            with self.subTest(half):
                text, status = self.start(f"printf %s '{half}'; sleep {LONG_S}; echo done").rest()
                self.assertEqual((text, status), (half + "done\r\n", 0))

    def test_what_tee_shows_is_never_touched(self):
        script = f"echo one; {self.wait}; printf half; sleep {LONG_S}; echo; rm {self.go}; {self.wait}"
        terminal = self.start(script, shell='"$0" "$@" | cat')
        terminal.until(LINE)
        self.go.touch()
        terminal.until("half\r\n")
        self.assertIn("\r\x1b[Khalf\r\n", terminal.text)
        terminal.text = ""
        terminal.until(LINE)
        self.go.touch()
        self.assertEqual(screen(terminal.rest()[0]), [""])

    def test_not_while_a_program_reads_single_keys(self):
        shell = 'stty -icanon; "$0" "$@"'
        self.assertEqual(self.start(f"sleep {LONG_S}; echo done", shell=shell).rest(), ("done\r\n", 0))

    def test_on_a_terminal_that_nobody_controls(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        job = subprocess.Popen([TORCHUP, "--standalone", "/bin/sh", "-c", self.wait], stdin=subprocess.DEVNULL,
                               stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}, start_new_session=True)
        os.close(slave)
        self.addCleanup(lambda: (job.kill(), job.wait()))
        seen = b""
        while LINE.encode() not in seen:
            self.assertTrue(select.select([master], [], [], LIMIT_S)[0], seen)
            seen += os.read(master, 65536)
        self.go.touch()
        self.assertEqual(job.wait(LIMIT_S), 0)

    def test_how_far_the_job_is_as_its_workers_tell(self):
        program, events = self.folder / "program.py", self.folder / "events"
        program.write_text(f"""
import os, sys, time
sys.path.insert(0, {EXAMPLES!r} + "/python")
from heartbeat import Heartbeat
heartbeat, step = Heartbeat(), 0
while not os.path.exists({str(self.go)!r}):
    step += 1
    time.sleep(0.05)
    heartbeat.step(step)
""")
        terminal = self.start(f"exec {sys.executable} {program}", f"--events={events}")

        def shown():
            terminal.text = ""
            terminal.until(" steps/s")
            found = re.fullmatch(LINE + r", step (\d+), (\d+\.\d) steps/s", screen(terminal.text)[-1])
            self.assertTrue(found, terminal.text)
            return int(found[1])

        first = shown()
        self.assertLess(first, shown())  # drawn again each second, and not with what is recorded each 30 s
        self.assertNotIn('"progress"', events.read_text())
        self.go.touch()
        text, status = terminal.rest()
        self.assertEqual((screen(text), status), ([""], 0))

    def test_it_is_cut_to_the_width(self):
        terminal = self.start(self.wait, columns=8)
        terminal.until("1 rank ")
        self.go.touch()
        self.assertNotIn("1 rank o", terminal.rest()[0])

    def test_it_has_no_colour_where_none_is_wanted(self):
        terminal = self.start(self.wait, NO_COLOR="1")
        terminal.until(LINE)
        self.assertNotIn("\x1b[90m", terminal.text)
        self.go.touch()
        self.assertEqual(screen(terminal.rest()[0]), [""])

    def test_not_where_less_is_wanted_or_the_terminal_is_dumb(self):
        for options, environment in (["-q"], {}), ([], {"TERM": "dumb"}), (["--no-capture"], {}):
            with self.subTest(options=options, environment=environment):
                self.assertEqual(self.start(f"sleep {LONG_S}", *options, **environment).rest(), ("", 0))

    def test_not_while_the_terminal_is_somebody_elses(self):
        # In the background of a shell with job control, whose prompt stands in the last line.
        text, status = self.start(f"sleep {LONG_S}; echo done", shell='set -m; "$0" "$@" & printf "$ "; wait').rest()
        self.assertEqual((text, status), ("$ done\r\n", 0))

    def test_not_one_byte_where_stderr_is_no_terminal(self):
        command = [TORCHUP, "--standalone", "/bin/sh", "-c", f"sleep {LONG_S}"]
        ended = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
        self.assertEqual((ended.stdout, ended.stderr, ended.returncode), (b"", b"", 0))
        # Nor where only stdout is one.
        terminal = self.start(f"sleep {LONG_S}", shell=f'"$0" "$@" 2>{self.folder}/err')
        self.assertEqual(terminal.rest(), ("", 0))
        self.assertEqual(Path(self.folder, "err").read_bytes(), b"")

    def test_errors_of_ours_are_red(self):
        text, _ = self.start("exit 3").rest()
        self.assertIn("\x1b[31mtorchup: failed (exitcode: 3)", text)
        text, _ = self.start("exit 3", NO_COLOR="1").rest()
        self.assertIn("torchup: failed (exitcode: 3)", text)
        self.assertNotIn("\x1b", text)


if __name__ == "__main__":
    unittest.main()
