#!/usr/bin/env python3
"""What torchupd's memory and time cost when clients of its store are hostile.

usage: tests/support/run_case.py hostile_clients_test.py CASE TORCHUPD
"""
import base64
import os
import socket
import struct
import sys
import time
import unittest

from torchupd import MIB, PING, VALIDATE, DaemonCase, ask, keys, text

DaemonCase.program = sys.argv[1]
# They are about memory and time, in the daemon's one thread that serves: no sanitizer of threads learns anything there.
costly = unittest.skipIf("thread" in os.environ.get("TORCHUP_SANITIZE", ""), "takes ThreadSanitizer a minute")


class Readers(DaemonCase, unittest.TestCase):
    """Peers that ask and never read."""

    def fill(self, count, size):
        names = [b"/%06d" % i for i in range(count)]
        for i in range(0, count, 4096):
            part = names[i:i + 4096]
            self.honest.sendall(b"\x0b" + struct.pack("<Q", len(part)) + b"".join(text(name) + text(b"x" * size) for name in part))
        ask(self.honest, PING, 4)
        return names

    def deaf(self, request):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        peer.settimeout(60)
        peer.connect(("127.0.0.1", self.port))
        self.peers.append(peer)
        peer.sendall(VALIDATE + request)
        return peer

    @costly
    def test_sixty_four_that_ask_for_sixty_megabytes_each(self):
        names = self.fill(1, 1023)
        request = b"\x0a" + keys(names * 60_000)
        most = 0
        for _ in range(64):
            self.deaf(request)
            most = max(most, self.resident())
            self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.until(lambda: "unread_bytes_max" in self.said())
        self.assertLess(max(most, self.resident()), 300 * MIB)
        self.assertLess(self.status()["unread_bytes"], 129 * MIB)
        self.assertEqual(ask(self.honest, b"\x03" + text(names[0]), 8 + 1023), text(b"x" * 1023))

    def test_values_that_are_replaced_while_readers_hold_them(self):
        for _ in range(64):
            self.honest.sendall(b"\x01" + text(b"/v") + text(os.urandom(8 * MIB)))
            ask(self.honest, PING, 4)
            self.deaf(b"\x03" + text(b"/v"))
        self.until(lambda: "unread_bytes_max" in self.said())
        self.until(lambda: self.resident() < 300 * MIB)
        ask(self.honest, PING, 4)

    def test_values_that_are_gone_while_two_hold_each_and_each_holds_it_often(self):
        for i in range(40):
            name = b"/v%d" % i
            self.honest.sendall(b"\x01" + text(name) + text(os.urandom(8 * MIB)))
            ask(self.honest, PING, 4)
            before = self.status()["requests"]
            for _ in range(2):
                self.deaf(b"\x0a" + keys([name] * 7))
            self.until(lambda: self.status()["requests"] == before + 2)
            if i % 2:
                self.assertEqual(ask(self.honest, b"\x08" + text(name), 8), struct.pack("<q", 1))
            else:
                self.honest.sendall(b"\x01" + text(name) + text(b""))
        self.until(lambda: "unread_bytes_max" in self.said())
        self.until(lambda: self.resident() < 300 * MIB)
        self.assertLess(self.daemon.memory("VmHWM"), 400 * MIB)

    @costly
    def test_the_end_of_a_long_answer_costs_no_more_than_that(self):
        name = self.fill(1, 1023)
        for _ in range(16):
            peer = self.deaf(b"\x0a" + keys(name * 60_000))
            left = 60_000 * 1031 - 8 * MIB  # more than the kernel takes
            while left > 0:
                left -= len(peer.recv(1 << 18))
            self.assertLess(self.resident(), 300 * MIB)
        self.assertEqual(ask(self.honest, PING, 4), PING[1:])

    @costly
    def test_many_who_are_woken_with_long_answers(self):
        name = self.fill(1, 1023)
        for _ in range(30):
            self.deaf(b"\x40" + keys(name * 60_000 + [b"/late"]))
        small = self.connect(VALIDATE + b"\x40" + keys([b"/late"]))
        self.until(lambda: self.status()["waiting"] == 31)
        self.honest.sendall(b"\x01" + text(b"/late") + text(b"now"))
        self.assertEqual(ask(small, b"", 1 + 8 + 3), b"\x00" + text(b"now"))
        self.assert_said("unread_bytes_max")
        self.assertLess(self.daemon.memory("VmHWM"), 400 * MIB)
        self.assertEqual(ask(self.honest, PING, 4), PING[1:])

    def test_one_value_for_all_costs_its_own_size(self):
        self.honest.sendall(b"\x01" + text(b"/v") + text(b"x" * 8 * MIB))
        ask(self.honest, PING, 4)
        before = self.resident()
        requests = self.status()["requests"]
        for _ in range(64):
            last = self.deaf((b"\x03" + text(b"/v")) * 3)
        self.until(lambda: self.status()["requests"] >= requests + 64)
        self.assertLess(self.resident(), before + 16 * MIB)
        self.assertEqual(self.status()["connections"], 65)  # none of them was closed
        got = 0
        while got < 3 * (8 * MIB + 8):
            piece = last.recv(1 << 20)
            self.assertTrue(piece)
            got += len(piece)

    def test_a_list_of_all_keys_that_is_too_long(self):
        for i in range(0, 8300, 100):
            names = [b"/%07d" % n + b"k" * 8184 for n in range(i, i + 100)]
            self.honest.sendall(b"\x0b" + struct.pack("<Q", 100) + b"".join(text(name) + text(b"") for name in names))
        ask(self.honest, PING, 4)
        before = self.resident()
        for _ in range(3):
            self.assert_closed(self.connect(VALIDATE + b"\x11"))
        self.assert_said("listed_bytes_max")
        self.assertLess(self.resident(), before + 8 * MIB)


class Amplified(DaemonCase, unittest.TestCase):
    options = ("--max-reply-bytes", "64MB")

    def test_one_key_named_a_hundred_thousand_times(self):
        self.honest.sendall(b"\x01" + text(b"/k") + text(b"x" * 1023))
        ask(self.honest, PING, 4)
        peer = self.connect(VALIDATE + b"\x0a" + keys([b"/k"] * 131_072))
        self.assert_closed(peer)
        self.assert_said("reply_bytes_max")
        self.assertLess(self.resident(), 300 * MIB)
        self.assert_served()


class Waits(DaemonCase, unittest.TestCase):
    def test_waits_for_long_names(self):
        request = b"\x06" + keys([b"/%06d" % i + b"k" * 8000 for i in range(10_000)])  # 80 MB each
        before = self.resident()
        for _ in range(8):
            self.connect(VALIDATE + request)
        self.until(lambda: "waits_bytes_max" in self.said())
        self.assertLess(self.resident(), before + 500 * MIB)
        self.assert_served()


class ManyValues(DaemonCase, unittest.TestCase):
    options = ("--max-arriving-bytes", "64MB")

    @costly
    def test_half_a_request_of_many_small_values_counts_for_what_it_takes(self):
        pairs = (text(b"/k") + text(b"")) * 131_071  # and not the last
        before = self.resident()
        for _ in range(40):
            self.connect(VALIDATE + b"\x0b" + struct.pack("<Q", 131_072) + pairs)
        self.assert_said("arriving_bytes_max")
        self.assertLess(self.resident(), before + 100 * MIB)
        self.assert_served()


class Senders(DaemonCase, unittest.TestCase):
    options = ("--max-arriving-bytes", "300KB")

    def test_who_holds_the_memory_goes_and_not_who_comes(self):
        hog = self.connect(VALIDATE + b"\x01" + text(b"/k") + struct.pack("<Q", 250_000) + b"x" * 100_000)
        self.until(lambda: self.status()["arriving_bytes"] > 200_000)
        time.sleep(0.2)  # its age is what tells it from the others
        newcomer = self.connect(VALIDATE + b"\x01" + text(b"/n") + struct.pack("<Q", 120_000) + b"y" * 100_000)
        self.assert_closed(hog)
        self.assertEqual(ask(newcomer, b"y" * 20_000 + PING, 4), b"1234")
        self.assert_said("arriving_bytes_max")


class Busy(DaemonCase, unittest.TestCase):
    """Small requests that cost much must cost nobody else anything."""

    def spent(self):
        """Seconds of a processor: those of the clock are the machine's business."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            return sum(map(int, stat.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def assert_quick(self, limit=5):
        begin = self.spent()
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.assertTrue(self.page("/healthz").startswith(b"HTTP/1.1 200 "))
        self.assertLess(self.spent() - begin, limit)

    def waiting(self):
        try:
            return self.status()["waiting"]
        except ConnectionResetError:  # a sanitizer's pace, beside other work: a page has 5 s
            return None

    def test_a_state_that_is_none_is_read_once(self):
        state = base64.b64encode(b"\x80\x04" + b"N" * 999_990 + b".")
        key = text(b"/torch.rendezvous.X")
        attacker = self.connect(VALIDATE)
        attacker.sendall(b"\x02" + key + text(b"") + text(state))
        self.until(lambda: ask(self.honest, b"\x05" + keys([b"/torch.rendezvous.X"]), 1) == b"\x00")
        attacker.sendall((b"\x02" + key + text(b"x") + text(b"y")) * 200)
        self.assert_quick()

    @costly
    def test_a_write_does_not_look_at_all_who_wait(self):
        request = b"\x06" + keys([b"/a"] * 131_071 + [b"/absent"])
        for _ in range(15):
            self.connect(VALIDATE + request)
        self.until(lambda: self.waiting() == 15)
        self.connect(VALIDATE + (b"\x01" + text(b"/a") + text(b"")) * 3000)
        self.assert_quick()


class LittleMemory(DaemonCase, unittest.TestCase):
    memory = 400 * MIB

    @unittest.skipIf(os.environ.get("TORCHUP_SANITIZE"), "a sanitizer takes more")
    def setUp(self):
        super().setUp()

    def test_a_request_that_finds_no_memory_closes_its_connection(self):
        closed = False
        for i in range(100):
            peer = self.connect(VALIDATE)
            try:
                ask(peer, b"\x01" + text(b"/%d" % i) + text(b"x" * 8 * MIB) + PING, 4)
            except (AssertionError, ConnectionError):
                closed = True
                break
        self.assertTrue(closed)
        self.assert_said("memory")
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.assertEqual(ask(self.honest, b"\x08" + text(b"/0"), 8), struct.pack("<q", 1))
        self.assert_served()

    def test_small_requests_that_find_no_memory_close_their_connections(self):
        number, closed = 0, 0
        while closed < 20:
            self.assertLess(number, 1_000_000)
            peer = self.connect(VALIDATE)
            try:
                for _ in range(500):
                    number += 1
                    peer.sendall(b"\x01" + text(b"/%d" % number) + text(b"x" * 1000))
                ask(peer, PING, 4)
            except (AssertionError, ConnectionError):
                closed += 1
            self.assertIsNone(self.process.poll(), self.said()[-2000:])
            peer.close()
            self.peers.remove(peer)
        self.assert_said("memory")
        for i in range(1, 2000):
            ask(self.honest, b"\x08" + text(b"/%d" % i), 8)
        self.assert_served()
