#!/usr/bin/env python3
"""What torchupd writes to its log when strangers come: usage: daemon_log_test.py TORCHUPD [unittest options]"""
import json
import re
import signal
import socket
import subprocess
import sys
import unittest

torchupd = sys.argv[1]


class Log(unittest.TestCase):
    def serve(self, *options):
        self.process = subprocess.Popen([torchupd, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.process.stderr.close)
        self.addCleanup(self.process.stdout.close)
        self.port = int(self.process.stdout.readline().rsplit(b":", 1)[1])

    def ended(self):
        self.process.send_signal(signal.SIGTERM)
        log = self.process.communicate(timeout=20)[1].decode()
        self.assertEqual(self.process.returncode, 0)
        return log.splitlines()

    def stranger(self, first):
        with socket.create_connection(("127.0.0.1", self.port), 10) as peer:
            peer.sendall(first)
            try:
                self.assertEqual(peer.recv(1), b"")
            except ConnectionResetError:
                pass

    def test_a_crowd_of_strangers_is_a_line_and_a_count(self):
        self.serve()
        for _ in range(500):
            self.stranger(b"\x16\x03\x01")
        lines = [line for line in self.ended() if "TCPStore" in line]
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], r"^torchupd: closed 127\.0\.0\.1:\d+: not a TCPStore client")
        self.assertRegex(lines[1], r"^torchupd: … 499 more like this in the last [\d.]+ s, the last of them: closed 127")

    def test_json(self):
        self.serve("--log-format", "json")
        self.stranger(b"\x16\x03\x01")
        for line in map(json.loads, self.ended()):
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertEqual(line["program"], "torchupd")
            if line["level"] == "warning":
                self.assertEqual(line["peer"], "127.0.0.1")
                break
        else:
            self.fail("the stranger is in no line")

    def test_a_level(self):
        self.serve("--log-level", "error")
        self.stranger(b"\x16\x03\x01")
        self.assertEqual(self.ended(), [])

    def test_words_that_are_none(self):
        for option, word in (("--log-level", "loud"), ("--log-format", "xml")):
            ended = subprocess.run([torchupd, option, word], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
            self.assertEqual(ended.returncode, 2)
            self.assertTrue(re.search(rf'"{word}" is no', ended.stderr.decode()), ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
