#!/usr/bin/env python3
"""Clients of torchupd's store that send what no client sends, and what that costs others.

usage: tests/support/run_case.py hostile_shapes_test.py CASE TORCHUPD
"""
import os
import socket
import struct
import sys
import time
import unittest

from torchupd import MIB, PING, VALIDATE, DaemonCase, ask, keys, receive, text

DaemonCase.program = sys.argv[1]

GET_COUNT = b"\x07"


def reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


class Shapes(DaemonCase, unittest.TestCase):
    def serves_well(self, limit=30):
        """A proper client works, beside all others."""
        begin = time.monotonic()
        proper = self.connect(VALIDATE)
        proper.sendall(b"\x01" + text(b"/proper") + text(b"v" * 100_000))
        self.assertEqual(ask(proper, b"\x03" + text(b"/proper"), 8 + 100_000), text(b"v" * 100_000))
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.assertLess(time.monotonic() - begin, limit)

    def open_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def test_the_beginnings_of_huge_values(self):
        """512 MiB together would be allowed: they come with more, and all but their last byte."""
        closed = 0
        value = b"x" * (8 * MIB - 1)
        hostile = []
        for i in range(80):
            peer = self.connect(VALIDATE)
            try:
                peer.sendall(b"\x01" + text(b"/h") + struct.pack("<Q", 8 * MIB) + value)
            except OSError:
                closed += 1
            hostile.append(peer)
            if i % 16 == 15:
                self.serves_well()
        self.until(lambda: self.status()["arriving_bytes"] <= 512 * MIB)
        self.assert_said("arriving_bytes_max")
        self.assertLess(self.daemon.memory("VmHWM"), 640 * MIB)
        for peer in hostile:
            reset(peer)
        self.until(lambda: self.status()["arriving_bytes"] == 0)
        self.serves_well()
        self.until(lambda: self.resident() < 128 * MIB)

    def test_lengths_and_counts_that_no_message_has(self):
        for request in (
                b"\x01" + struct.pack("<Q", 1 << 63), b"\x01" + struct.pack("<Q", (1 << 64) - 1),
                b"\x01" + text(b"/k") + struct.pack("<Q", 1 << 63), b"\x01" + text(b"/k") + struct.pack("<Q", (1 << 64) - 8),
                b"\x05" + struct.pack("<Q", 1 << 32), b"\x0b" + struct.pack("<Q", 1 << 63), b"\x40" + struct.pack("<Q", (1 << 64) - 1),
                b"\x0a" + struct.pack("<Q", 131_073)):
            self.assert_closed(self.connect(VALIDATE + request))
        self.serves_well()
        self.assertLess(self.resident(), 64 * MIB)

    def test_keys_that_are_empty_or_hold_any_byte(self):
        for key in b"", b"\0", b"/a\0b", b"\xff" * 8192, b"\n\r\x1b[2J":
            peer = self.connect(VALIDATE + b"\x01" + text(key) + text(b"1"))
            self.assertEqual(ask(peer, b"\x03" + text(key), 9), text(b"1"))
            self.assertEqual(ask(peer, b"\x04" + text(key) + struct.pack("<q", 1), 8), struct.pack("<q", 2))
            self.assertEqual(ask(peer, b"\x05" + keys([key]), 1), b"\x00")
        self.serves_well()

    def test_one_byte_at_a_time_from_many(self):
        request = b"\x01" + text(b"/slow") + text(b"x" * 40)
        peers = [self.connect(VALIDATE) for _ in range(200)]
        for at in range(len(request)):
            for peer in peers:
                peer.send(request[at:at + 1])
            if at % 16 == 0:
                self.serves_well()
        for peer in peers:
            self.assertEqual(ask(peer, PING, 4), PING[1:])
        self.assertEqual(self.status()["arriving_bytes"], 0)

    def test_a_long_value_in_small_pieces_that_comes_again_and_again(self):
        peer = self.connect(VALIDATE)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(3):
            peer.sendall(b"\x01" + text(b"/long") + struct.pack("<Q", 8 * MIB))
            for _ in range(4096):
                peer.send(b"y")
            peer.sendall(b"y" * (8 * MIB - 4096))
            self.serves_well()
        self.assertEqual(ask(peer, PING, 4), PING[1:])
        self.assertLess(self.resident(), 64 * MIB)

    def test_ends_in_the_middle(self):
        before = self.open_descriptors()
        whole = VALIDATE + b"\x0b" + struct.pack("<Q", 3) + b"".join(text(b"/m%d" % i) + text(b"z" * 5000) for i in range(3))
        for at in range(1, len(whole), 211):
            for end in (lambda peer: peer.shutdown(socket.SHUT_WR)), (lambda peer: peer.shutdown(socket.SHUT_RD)), reset, socket.socket.close:
                peer = self.connect(whole[:at])
                end(peer)
        for peer in self.peers[1:]:
            peer.close()
        self.until(lambda: self.status()["connections"] <= 3)
        self.until(lambda: self.open_descriptors() <= before + 3)
        self.assertEqual(self.status()["arriving_bytes"], 0)
        self.serves_well()

    def test_who_waits_and_is_reset_while_it_is_woken(self):
        for round_number in range(20):
            names = [b"/w%d" % round_number]
            waiters = [self.connect(VALIDATE + b"\x40" + keys(names * 1000)) for _ in range(20)]
            self.until(lambda: self.status()["waiting"] == 20)
            for peer in waiters[:10]:
                reset(peer)
            self.honest.sendall(b"\x01" + text(names[0]) + text(b"w" * 2000))
            for peer in waiters[10:15]:
                reset(peer)
            for peer in waiters[15:]:
                self.assertEqual(receive(peer, 9), b"\x00" + struct.pack("<Q", 2000))
                reset(peer)
        self.until(lambda: self.status()["waiting"] == 0 and self.status()["unread_bytes"] == 0)
        self.serves_well()

    def test_requests_without_end_whose_answers_nobody_reads(self):
        self.honest.sendall(b"\x01" + text(b"/v") + text(b"x" * 1000))
        ask(self.honest, PING, 4)
        for request in (b"\x03" + text(b"/v")) * 4000, PING * 100_000, GET_COUNT * 100_000, b"\x11" * 100_000:
            for _ in range(4):
                peer = self.connect(VALIDATE)
                peer.setblocking(False)
                try:
                    while peer.send(request):
                        pass
                except BlockingIOError:
                    pass
            self.serves_well()
        self.assertLess(self.resident(), 200 * MIB)


class ManyKeys(DaemonCase, unittest.TestCase):
    count = 400_000

    def fill(self):
        for begin in range(0, self.count, 100_000):
            names = [b"/%07d" % i for i in range(begin, begin + 100_000)]
            self.honest.sendall(b"\x0b" + struct.pack("<Q", len(names)) + b"".join(text(name) + text(b"") for name in names))
        ask(self.honest, PING, 4)

    def test_who_asks_for_a_list_and_has_no_room_for_it_gives_way(self):
        self.fill()
        self.honest.sendall(b"\x01" + text(b"/big") + text(bytes(7 * MIB)))
        ask(self.honest, PING, 4)
        for _ in range(2):  # the answer to his wait comes while his list is being made
            full = self.connect(VALIDATE)
            full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            other = self.connect(VALIDATE)
            full.sendall(b"\x40" + keys([b"/go", b"/big"]) + b"\x11")
            ask(self.honest, PING, 4)
            self.honest.sendall(b"\x01" + text(b"/go") + text(b"1"))
            other.sendall(b"\x11")
            self.assertEqual(receive(other, 8), struct.pack("<q", self.count + 2))
            other.close()
            self.assertEqual(ask(self.honest, b"\x08" + text(b"/go"), 8), struct.pack("<q", 1))
            full.close()

    def test_lists_of_all_keys_keep_nobody_waiting(self):
        self.fill()
        before = self.resident()
        askers = [self.connect(VALIDATE + b"\x11" * 3) for _ in range(32)]
        first = askers[0]
        answered, size = 0, 8 + self.count * 16
        first.setblocking(False)
        got = 0
        while got < size:
            self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
            answered += 1
            try:
                got += len(first.recv(1 << 20))
            except BlockingIOError:
                pass
        self.assertGreater(answered, 5)
        self.assertLess(self.resident(), before + 200 * MIB)  # unread_bytes_max, and one that is being made


class UnservedRequests(DaemonCase, unittest.TestCase):
    options = ("--max-arriving-bytes", "8MB")

    def test_they_go_before_those_that_are_on_their_way(self):
        self.honest.sendall(b"\x01" + text(b"/big") + text(bytes(7 * MIB)))
        ask(self.honest, PING, 4)
        holders = []
        for _ in range(200):  # 60 KB each, behind an answer that nobody reads
            peer = self.connect(VALIDATE)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            try:
                peer.send(b"\x03" + text(b"/big") + PING * 14_000)
            except BlockingIOError:
                pass
            holders.append(peer)
        self.assert_said("arriving_bytes_max")
        self.assertLessEqual(self.status()["arriving_bytes"], 8 * MIB)
        proper = self.connect(VALIDATE)
        request = b"\x01" + text(b"/proper") + text(b"v" * MIB)
        for begin in range(0, len(request), 100_000):
            proper.sendall(request[begin:begin + 100_000])
            ask(self.honest, PING, 4)
        self.assertEqual(ask(proper, PING, 4), b"1234")
