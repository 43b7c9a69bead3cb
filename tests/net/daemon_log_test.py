#!/usr/bin/env python3
"""What torchupd writes to its log, and what it does not start with.

usage: daemon_log_test.py TORCHUPD [unittest options]
"""
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from torchupd import VALIDATE, Torchupd  # noqa: E402

torchupd = sys.argv.pop(1)


class Log(unittest.TestCase):
    def serve(self, *options):
        self.serve_into(subprocess.PIPE, *options)

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

    def test_a_port_for_everybody_without_a_token_is_one_warning(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        secret = os.path.join(folder.name, "token")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("a token of twenty-five...")
        for options, count in ((["--bind=0.0.0.0"], 1), (["--bind=0.0.0.0", "--store-only"], 1), ([], 0), (["--bind=127.0.0.2"], 0),
                               (["--bind=0.0.0.0", "--token-file", secret], 0), (["--bind=0.0.0.0", "--allow=10.0.0.0/8"], 0)):
            with self.subTest(options=options):
                self.serve(*options)
                lines = [line for line in self.ended() if "there is no token" in line]
                self.assertEqual(len(lines), count, lines)
                self.assertTrue(all(f"0.0.0.0:{self.port}" in line for line in lines), lines)

    def test_a_level(self):
        self.serve("--log-level", "error")
        self.stranger(b"\x16\x03\x01")
        self.assertEqual(self.ended(), [])

    def serve_into(self, stderr, *options):
        daemon = Torchupd(torchupd, *options, stderr=stderr)
        self.addCleanup(daemon.kill)
        self.process, self.port = daemon.process, daemon.port

    def assert_serves(self):
        with socket.create_connection(("127.0.0.1", self.port), 10) as peer:
            peer.sendall(VALIDATE + b"\x0d1234")
            self.assertEqual(peer.recv(4, socket.MSG_WAITALL), b"1234")

    def test_a_log_whose_reader_has_ended_ends_nobody(self):
        reader, writer = os.pipe()
        self.serve_into(writer)
        os.close(writer)
        os.close(reader)
        for _ in range(3):
            self.stranger(b"\x16\x03\x01")
        self.assert_serves()
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(20), 0)

    def test_a_log_that_nobody_reads_holds_up_nobody(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.serve_into(writer)
        os.set_blocking(writer, False)
        with open(writer, "wb", buffering=0) as full:
            while full.write(b"x" * 4096):
                pass
            os.set_blocking(writer, True)
        self.stranger(b"\x16\x03\x01")
        self.assert_serves()
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(10), 0)

    def test_closed_descriptors_belong_to_nobody(self):
        shell = f'exec "{torchupd}" --port 0 --bind 127.0.0.1 <&- 2>&-'
        self.process = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.addCleanup(self.process.stdout.close)
        self.process.stdout.readline()
        for descriptor in 0, 2:
            self.assertEqual(os.readlink(f"/proc/{self.process.pid}/fd/{descriptor}"), "/dev/null")

    def test_numbers_out_of_range_are_refused(self):
        seconds = ("--max-handshake", "--max-request", "--max-stalled", "--max-silence", "--grace")
        cases = [(option, word) for option in seconds for word in ("nan", "inf", "1e300", "1e12", "-1")]
        cases += [(option, "0") for option in seconds[:-1]]
        sizes = ("--max-bytes", "--max-request-bytes", "--max-arriving-bytes", "--max-reply-bytes", "--max-unread-bytes")
        cases += [(option, word) for option in ("--max-connections", "--max-keys", *sizes) for word in ("0", "-5", "1e300")]
        cases += [("--max-bytes", "3000PB"), ("--port", "65536"), ("--max-agents", "0")]
        for option, word in cases:
            with self.subTest(option=option, word=word):
                # Were it to start, it would end by this address.
                ended = subprocess.run([torchupd, "--bind", "none", f"{option}={word}"], capture_output=True, timeout=20)
                self.assertEqual(ended.returncode, 2)
                self.assertIn(option.encode(), ended.stderr)
        ended = subprocess.run([torchupd, "--bind", "none", "--grace=0", "--max-silence=31536000", "--max-bytes=8GB"],
                               capture_output=True, timeout=20)
        self.assertIn(b"cannot listen", ended.stderr)

    def test_words_that_are_none(self):
        for option, word in (("--log-level", "loud"), ("--log-format", "xml")):
            ended = subprocess.run([torchupd, option, word], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
            self.assertEqual(ended.returncode, 2)
            self.assertTrue(re.search(rf'"{word}" is no', ended.stderr.decode()), ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
