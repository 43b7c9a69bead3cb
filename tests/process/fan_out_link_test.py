"""`torchup --link`, the far end of a fan-out's link, alone: its front is this test.

usage: fan_out_link_test.py TORCHUP [unittest options]
"""

import ctypes
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from waiting import children, until  # noqa: E402

TORCHUP = os.path.abspath(sys.argv.pop(1))
PR_SET_CHILD_SUBREAPER = 36


class Link(unittest.TestCase):
    def setUp(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.far = subprocess.Popen([TORCHUP, "--link"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                    env={**os.environ, "TMPDIR": str(self.folder)})
        self.addCleanup(lambda: (self.far.poll() is None and self.far.kill(), self.far.wait(), self.far.stdin.close(),
                                 self.far.stdout.close()))
        greeting = b"torchup-link 1\n"
        self.assertEqual(self.far.stdout.read(len(greeting)), greeting)
        self.got = {}
        self.version = self.messages(1)[0][1]

    @staticmethod
    def text(words):
        data = words if isinstance(words, bytes) else str(words).encode()
        return struct.pack("<I", len(data)) + data

    def words(self, *items):
        return struct.pack("<I", len(items)) + b"".join(map(self.text, items))

    def say(self, *messages):
        """(type, body) of control messages, at once."""
        said = b"".join(struct.pack("<IB", len(body) + 1, kind) + body for kind, body in messages)
        self.far.stdin.write(struct.pack("<BI", 0, len(said)) + said)

    def plan(self, *program, version=None, directory="/", signal=None):
        body = [self.text(self.version if version is None else version), self.text("far"), struct.pack("<i", 0),
                self.text(""), self.text(directory), self.words("SEEN=yes"),
                self.words("torchup", "--no-python", "--rdzv-endpoint=localhost:0"),  # at 29400 tests would meet each other
                self.words(*program), struct.pack("<i", 0), self.text("run"), self.text(""), bytes([0, 0, 0])]
        self.say((1, b"".join(body)), *([(2, struct.pack("<i", signal))] if signal else []))

    def frames(self):
        """The next frame of another channel than control is kept; of control it is returned. None: the end."""
        while first := self.far.stdout.read(1):
            channel, length = struct.unpack("<BI", first + self.exactly(4))
            data = self.exactly(length)
            if channel == 0:
                return data
            self.got[channel] = self.got.get(channel, b"") + data
        return None

    def messages(self, most=None):
        """(type, first field) of control messages; pings are left out."""
        found = []
        while len(found) != most and (data := self.frames()) is not None:
            while data:
                length, kind = struct.unpack("<IB", data[:5])
                body = data[5:4 + length]
                data = data[4 + length:]
                if kind == 65:
                    found.append((kind, body[4:4 + struct.unpack("<I", body[:4])[0]].decode()))
                elif kind != 68:
                    found.append((kind, struct.unpack("<i", body[:4])[0]))
        return found

    def nothing_left(self, limit=10):
        self.far.wait(limit)
        until(lambda: not children(os.getpid()), "no process is left", limit)

    def test_a_plan_runs_and_its_end_is_told(self):
        self.plan("sh", "-c", "echo out $SEEN; echo err >&2; exit 3")
        self.assertEqual(self.messages(), [(67, 1)])
        self.assertEqual(self.got[1], b"out yes\n")
        self.assertIn(b"err\n", self.got[2])
        self.nothing_left()

    def test_another_version_is_refused(self):
        self.plan("true", version="0.0.0")
        self.assertEqual(self.messages(), [(66, 68)])
        self.nothing_left()

    def test_a_directory_that_is_not_there_is_refused(self):
        self.plan("true", directory="/not/here")
        self.assertEqual(self.messages(), [(66, 2)])
        self.nothing_left()

    def test_a_signal_that_comes_before_the_agent_has_begun_does_not_end_it(self):
        self.plan("true", signal=signal.SIGUSR1)
        self.assertEqual(self.messages(), [(67, 0)])
        self.nothing_left()

    def test_what_is_no_frame_ends_it(self):
        self.plan("sleep", "1000")
        until(lambda: self.running("sleep"), "it runs")
        self.far.stdin.write(b"\0\xff\xff\xff\xff")
        self.nothing_left()

    def running(self, name):
        found, pids = [], [os.getpid()]
        while pids:
            pid = pids.pop()
            pids += children(pid)
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
            except OSError:
                pass
        return found

    def test_the_end_of_its_input_ends_workers_that_ignore_it(self):
        self.plan("sh", "-c", "trap '' TERM INT HUP; sleep 1000")
        until(lambda: self.running("sleep"), "it runs")
        self.far.stdin.close()
        begun = time.monotonic()
        self.nothing_left()
        self.assertLess(time.monotonic() - begun, 8)

    def test_output_waits_for_its_credit(self):
        self.plan("sh", "-c", "head -c 1000000 /dev/zero; echo over >&2")
        window = 256 * 1024
        while self.taken() < window:
            self.take_one()
        self.assertEqual(self.taken(), window)
        self.say((3, struct.pack("<I", 1 << 20)))
        self.assertEqual(self.messages(), [(67, 0)])
        self.assertEqual(len(self.got[1]), 1000000)
        self.nothing_left()

    def taken(self):
        return sum(map(len, self.got.values()))

    def take_one(self):
        """One frame, of whatever channel."""
        header = self.exactly(5)
        channel, length = struct.unpack("<BI", header)
        data = self.exactly(length)
        if channel != 0:
            self.got[channel] = self.got.get(channel, b"") + data

    def exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.far.stdout.read(count - len(data))
            self.assertTrue(part, "the link has ended")
            data += part
        return data


if __name__ == "__main__":
    unittest.main()
