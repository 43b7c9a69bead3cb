#!/usr/bin/env python3
"""What strangers and broken peers send to torchupd: it stays up, its memory stays bounded, honest clients notice nothing.

usage: tests/support/run_case.py store_bad_input.py CASE TORCHUPD

Runs in a network namespace of its own where that is allowed: there, packets can be dropped as when a machine vanishes.
"""
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from torchupd import MIB, PING, VALIDATE, DaemonCase, ask, enter_network as enter_namespace, needs_namespace, text

DaemonCase.program = sys.argv[1]


class Daemon(DaemonCase):
    def end(self):
        """Whatever happened: it lives, an old client and a new one are served, and nobody else is there."""
        ask(self.honest, b"\x01" + text(b"/still") + text(b"here") + PING, 4)
        for peer in self.peers:
            if peer is not self.honest:
                peer.close()
        self.peers = [self.honest]
        self.until(lambda: self.status()["connections"] == 1)
        newcomer = self.connect(VALIDATE)
        self.assertEqual(ask(newcomer, b"\x03" + text(b"/still"), 12), text(b"here"))
        self.assertEqual(self.status()["arriving_bytes"], 0)
        super().end()


class FirstBytes(Daemon, unittest.TestCase):
    def test_wrong_magic(self):
        self.assert_closed(self.connect(bytes.fromhex("00cef7853d")))

    def test_tls_hello(self):
        self.assert_closed(self.connect(bytes.fromhex("16030100c8010000c40303") + os.urandom(190)))

    def test_ssh(self):
        # Begins with a capital letter, as HTTP does; it is answered as that or closed, but not kept.
        peer = self.connect(b"SSH-2.0-OpenSSH_9.2\r\n")
        peer.settimeout(10)
        while peer.recv(4096):
            pass

    def test_a_request_without_validate(self):
        self.assert_closed(self.connect(b"\x0d\x01\x02\x03\x04"))

    def test_garbage(self):
        chance = random.Random(4)
        for _ in range(200):
            peer = self.connect()
            try:
                peer.sendall(VALIDATE * chance.choice([0, 1]) + chance.randbytes(chance.randrange(1, 2000)))
                peer.shutdown(socket.SHUT_WR)
                peer.settimeout(10)
                while peer.recv(65536):
                    pass
            except OSError:
                pass  # it closed while we were still talking

    def test_http(self):
        for path, status in (("/healthz", 200), ("/nothing", 404)):
            peer = self.connect(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while piece := peer.recv(4096):
                answer += piece
            self.assertTrue(answer.startswith(f"HTTP/1.1 {status} ".encode()), answer)
        peer = self.connect(b"POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")
        self.assertTrue(peer.recv(4096).startswith(b"HTTP/1.1 405 "))
        peer = self.connect(b"GET / HTTP/1.1\r\nX: " + b"x" * 20000)
        self.assertTrue(peer.recv(4096).startswith(b"HTTP/1.1 431 "))
        self.assert_closed(peer)

    def test_http_that_never_ends(self):
        begin = time.monotonic()
        peer = self.connect(b"GET /healthz HT")
        peer.settimeout(0.5)
        with self.assertRaises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() - begin < 20:  # a byte now and then does not keep it open
                peer.sendall(b"x")
                time.sleep(0.5)


class Lengths(Daemon, unittest.TestCase):
    def test_huge_lengths_close_and_cost_nothing(self):
        before = self.resident()
        huge = struct.pack("<Q", 2**64 - 1)
        for request in (b"\x01" + huge, b"\x01" + text(b"/k") + huge, b"\x06" + huge, b"\x0b" + huge, b"\x0a" + struct.pack("<Q", 131073)):
            for _ in range(20):
                self.assert_closed(self.connect(VALIDATE + request))
        self.assertLess(self.resident(), before + 4 * MIB)

    def test_claimed_lengths_cost_only_what_arrives(self):
        before = self.resident()
        for _ in range(100):
            self.connect(VALIDATE + b"\x01" + text(b"/k") + struct.pack("<Q", 8 * MIB) + b"x" * 100)
            self.connect(VALIDATE + b"\x06" + struct.pack("<Q", 131072) + text(b"/k"))
        time.sleep(0.2)
        self.assertLess(self.resident(), before + 16 * MIB)

    def test_everything_that_came_at_once_is_answered(self):
        # As much as the kernel holds, while the server stands still; after that nothing more comes to remind it.
        for finished in (False, True):
            peer = self.connect(VALIDATE)
            ask(peer, b"\x0d1234", 4)
            self.process.send_signal(signal.SIGSTOP)
            pings, sent = b"\x0d5678" * 1_000_000, 0
            peer.setblocking(False)
            try:
                while sent < len(pings):
                    sent += peer.send(pings[sent:sent + 5 * 13_000])
            except BlockingIOError:
                pass
            peer.settimeout(10)
            if finished:
                peer.shutdown(socket.SHUT_WR)
            self.process.send_signal(signal.SIGCONT)
            got = 0
            while got < sent // 5 * 4:
                piece = peer.recv(1 << 20)
                self.assertNotEqual(piece, b"")
                got += len(piece)
            self.assertGreater(sent, 1 << 20)
            if finished:
                self.assert_closed(peer)
            elif sent % 5:
                ask(peer, b"\x0d5678"[sent % 5:], 4)

    def test_a_value_of_exactly_the_limit(self):
        self.assertEqual(ask(self.honest, b"\x01" + text(b"/k") + text(b"x" * 8 * MIB) + b"\x0d1234", 4), b"1234")


class Vanishing(Daemon, unittest.TestCase):
    def test_cut_at_every_byte(self):
        request = VALIDATE + b"\x0b" + struct.pack("<Q", 2) + text(b"/a") + text(b"1") + text(b"/b") + text(b"2" * 5000)
        for size in range(0, len(request), 7):
            peer = self.connect(request[:size])
            if size % 2:  # a reset instead of an orderly end
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            self.peers.remove(peer)
        self.until(lambda: self.status()["connections"] == 1)
        self.assertEqual(ask(self.honest, b"\x05" + struct.pack("<Q", 1) + text(b"/a"), 1), b"\x01")

    def test_while_waiting(self):
        for _ in range(50):
            self.connect(VALIDATE + b"\x06" + struct.pack("<Q", 1) + text(b"/q"))
        self.until(lambda: self.status()["waiting"] == 50)
        for peer in self.peers[1:]:
            peer.close()
        self.until(lambda: self.status()["waiting"] == 0)
        waiter = self.connect(VALIDATE + b"\x06" + struct.pack("<Q", 1) + text(b"/q"))
        self.until(lambda: self.status()["waiting"] == 1)
        self.honest.sendall(b"\x0e" + text(b"/q") + text(b"element"))
        self.assertEqual(waiter.recv(1), b"\x00")

    def test_half_closed_after_asking(self):
        peer = self.connect(VALIDATE + b"\x01" + text(b"/v") + text(b"x" * 4 * MIB) + (b"\x03" + text(b"/v")) * 4)
        peer.shutdown(socket.SHUT_WR)
        got = 0
        while piece := peer.recv(1 << 20):
            got += len(piece)
        self.assertEqual(got, 4 * (4 * MIB + 8))


class Slow(Daemon, unittest.TestCase):
    options = ("--max-handshake", "0.5", "--max-request", "1", "--max-stalled", "1")

    def test_silent_newcomers(self):
        self.assert_closed(self.connect())
        self.assert_closed(self.connect(VALIDATE[:3]))

    def test_drip(self):
        peer = self.connect(VALIDATE)
        begin = time.monotonic()
        with self.assertRaises((ConnectionResetError, BrokenPipeError)):
            for byte in b"\x01" + text(b"/k") + text(b"x" * 1000):
                peer.send(bytes([byte]))
                time.sleep(0.02)
                self.assertLess(time.monotonic() - begin, 10)
        self.assertGreater(time.monotonic() - begin, 0.9)

    def test_waiting_is_not_slowness(self):
        waiter = self.connect(VALIDATE + b"\x06" + struct.pack("<Q", 1) + text(b"/late"))
        time.sleep(2.5)
        self.honest.sendall(b"\x01" + text(b"/late") + text(b"1"))
        self.assertEqual(waiter.recv(1), b"\x00")


class Unread(Daemon, unittest.TestCase):
    options = ("--max-stalled", "1")

    def test_who_does_not_read(self):
        ask(self.honest, b"\x01" + text(b"/v") + text(b"x" * 8 * MIB) + b"\x0d1234", 4)  # stored before anybody asks
        before = self.resident()
        for _ in range(20):
            peer = self.connect(VALIDATE)
            peer.settimeout(0.2)
            try:
                peer.sendall((b"\x03" + text(b"/v")) * 1000 + (b"\x03" + text(b"/small")) * 10000)
            except (TimeoutError, ConnectionError):
                pass  # it does not read us either, or not any more: right so
        self.assertLess(self.resident(), before + 24 * MIB)
        self.until(lambda: self.status()["connections"] == 1)


@needs_namespace
@unittest.skipUnless(shutil.which("nft"), "needs nft")
class HalfOpen(Daemon, unittest.TestCase):
    """Peers whose machines have vanished: no packet comes from them any more, and none reaches them."""
    options = ("--max-silence", "4")

    def cut(self, peer):
        port = peer.getsockname()[1]
        rules = "add table inet cut; add chain inet cut in { type filter hook input priority 0; };"
        rules += f"add rule inet cut in tcp sport {port} drop; add rule inet cut in tcp dport {port} drop"
        subprocess.run(["nft", rules], check=True)

    def waiter(self):
        peer = self.connect(VALIDATE + b"\x06" + struct.pack("<Q", 1) + text(b"/never"))
        self.until(lambda: self.status()["waiting"] == 1)
        self.cut(peer)
        return peer

    def test_a_waiter(self):
        self.waiter()
        self.assertEqual(self.status()["waiting"], 1)
        self.until(lambda: self.status()["waiting"] == 0)
        self.assertEqual(self.status()["connections"], 1)

    def test_one_who_is_owed_an_answer(self):
        self.waiter()
        self.honest.sendall(b"\x01" + text(b"/never") + text(b"now"))
        self.until(lambda: self.status()["waiting"] == 0)
        self.until(lambda: self.status()["connections"] == 1)

    def test_within_a_request(self):
        peer = self.connect(VALIDATE + b"\x01" + text(b"/k") + struct.pack("<Q", 8 * MIB) + b"x" * 100000)
        self.until(lambda: self.status()["arriving_bytes"] > 0)
        self.cut(peer)
        self.until(lambda: self.status()["connections"] == 1)

    def end(self):
        for peer in self.peers[1:]:
            peer.close()
        self.peers = [self.honest]
        super().end()
        subprocess.run(["nft", "delete table inet cut"], check=True)


class Crowd(Daemon, unittest.TestCase):
    options = ("--max-connections", "50")

    def test_more_connections_than_allowed(self):
        inside = [self.connect(VALIDATE) for _ in range(49)]
        for peer in inside:
            ask(peer, b"\x0d1234", 4)
        for _ in range(20):
            self.assert_closed(self.connect(VALIDATE))
        for peer in inside:
            self.assertEqual(ask(peer, b"\x0d5678", 4), b"5678")
        inside[0].close()

    def end(self):
        for peer in self.peers[1:]:
            peer.close()
        time.sleep(0.2)
        super().end()
        self.assertIn("connections_max", self.said())


class Descriptors(Daemon, unittest.TestCase):
    options = ("--max-connections", "1000")
    descriptors = 90

    def test_more_connections_than_descriptors(self):
        peers = [self.connect(VALIDATE) for _ in range(300)]
        served = 0
        for peer in peers:
            try:
                peer.sendall(b"\x0d1234")
                served += peer.recv(4) == b"1234"
            except OSError:
                pass
        self.assertGreater(served, 50)
        self.assertLess(served, 90)
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.assert_idle()

    def test_pages_and_clients_share_what_is_left(self):
        pages = [self.connect(b"GET /unfinished") for _ in range(60)]
        self.until(lambda: self.status()["connections"] == 1)  # all of them recognised
        peers = [self.connect(VALIDATE) for _ in range(100)]
        self.assert_idle()
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        for peer in peers + pages:
            peer.close()

    def assert_idle(self):
        def spent():
            with open(f"/proc/{self.process.pid}/stat") as stat:
                return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

        before = spent()
        time.sleep(0.5)
        self.assertLess(spent() - before, 0.2, "it spins")

    def end(self):
        for peer in self.peers[1:]:
            peer.close()
        time.sleep(0.2)
        super().end()
        self.assertRegex(self.said(), "no descriptor left|connections_max")
        if "pages" in self._testMethodName:
            self.assertIn("no descriptor left", self.said())


class Full(Daemon, unittest.TestCase):
    options = ("--max-keys", "10", "--max-bytes", "1MB", "--max-request-bytes", "200KB", "--max-arriving-bytes", "300KB")

    def test_keys(self):
        for i in range(9):
            self.honest.sendall(b"\x01" + text(b"/%d" % i) + text(b"1"))
        ask(self.honest, b"\x0d1234", 4)
        peer = self.connect(VALIDATE + (b"\x01" + text(b"/x") + text(b"1")) + b"\x01" + text(b"/y") + text(b"1"))
        self.assert_closed(peer)
        self.assertEqual(ask(self.honest, b"\x08" + text(b"/x"), 8), struct.pack("<q", 1))

    def test_bytes(self):
        peer = self.connect(VALIDATE)
        with self.assertRaises((ConnectionResetError, BrokenPipeError)):
            for i in range(1000):
                peer.sendall(b"\x09" + text(b"/k") + text(b"x" * 10000))
                time.sleep(0.001)

    def test_one_request(self):
        self.assert_closed(self.connect(VALIDATE + b"\x01" + text(b"/k") + struct.pack("<Q", 250_000)))
