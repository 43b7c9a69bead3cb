#!/usr/bin/env python3
"""Random valid sequences of requests by several clients: torchupd and PyTorch's libuv server give the same bytes.

usage: store_differential.py TORCHUPD [SEQUENCES [FIRST_SEED]]

Left out is what torchupd does otherwise on purpose (store.hpp): waits that PyTorch answers wrongly or never, that is,
COMPARE_SET on a key that is waited for, a second wait before the first has ended, deletion of a key of a longer wait,
full queues in longer waits, and clients that wait on a queue a second time.
Exits with 77 when this Python has no torch.
"""
import datetime
import os
import random
import socket
import struct
import subprocess
import sys

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
try:
    import torch
    import torch.distributed as dist
except ImportError as missing:
    print(f"skipped: {sys.executable} has no torch ({missing})")
    sys.exit(77)

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from torchupd import VALIDATE, Torchupd, keys, text  # noqa: E402

PLAIN = [b"/a", b"/b", b"/c", b"init/"]  # written, deleted, compared
KEPT = [b"/w1", b"/w2", b"/w3"]          # of longer waits: never deleted
QUEUES = [b"/q1", b"/q2"]
BARRIERS = [b"/b1", b"/b2", b"/b3"]
OWN_ANSWER = {0x04: 8, 0x0d: 4}          # bytes, of what a waiting client sends; the others have none
VALUES = [b"", b"1", b"-7", b" 12abc", b"text", b"9223372036854775807", b"x" * 3000, b"y" * 100_000]


def number(value):
    return struct.pack("<q", value)


class Client:
    """One connection to each server, fed alike."""

    def __init__(self, ports):
        self.sockets = [socket.create_connection(("127.0.0.1", port), 10) for port in ports]
        self.waits_for = set()
        self.used_queues = set()
        self.nonce = 0
        for peer in self.sockets:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # In a segment of its own: PyTorch's server wants VALIDATE complete in one read.
            peer.sendall(VALIDATE)
        assert self.collect() == [b"", b""]

    def send(self, request):
        for peer in self.sockets:
            try:
                peer.sendall(request)
            except OSError:
                pass  # closed; collect tells

    def collect(self):
        """What both servers have answered, up to the answer of a PING; None from one that has closed."""
        self.nonce += 1
        # A nonce that no reply ends with by chance.
        mark = struct.pack("<I", 0xA5000000 | self.nonce & 0xFFFFFF)
        self.send(b"\x0d" + mark)
        answers = []
        for peer in self.sockets:
            got = b""
            try:
                while not got.endswith(mark):
                    piece = peer.recv(1 << 20)
                    if not piece:
                        raise ConnectionResetError
                    got += piece
                answers.append(got[:-4])
            except ConnectionError:
                answers.append(None)
        return answers

    def close(self):
        for peer in self.sockets:
            peer.close()


def normal(request, answer):
    """LIST_KEYS may come in any order."""
    if answer is None or request[0] != 0x11:
        return answer
    # A wake-up of this client's own wait cannot come here: LIST_KEYS writes nothing.
    count, rest, names = struct.unpack("<q", answer[:8])[0], answer[8:], []
    for _ in range(count):
        size = struct.unpack("<Q", rest[:8])[0]
        names.append(rest[8:8 + size])
        rest = rest[8 + size:]
    return sorted(names), rest


def some_request(chance, client, awaited):
    """A request and the keys it makes `client` wait for."""
    plain, value = chance.choice(PLAIN + KEPT), chance.choice(VALUES)
    any_keys = [chance.choice(PLAIN + KEPT + QUEUES) for _ in range(chance.randrange(0, 4))]
    kind = chance.randrange(20)
    if client.waits_for:  # only requests whose own answer has a known size, so that the end of the wait shows
        kind = chance.choice([0, 3, 11, 13, 14, 15, 20])
    if kind == 0:
        return b"\x01" + text(plain) + text(value), ()
    if kind == 1:
        calm = [key for key in PLAIN if key not in awaited]
        return (b"\x02" + text(chance.choice(calm)) + text(value) + text(chance.choice(VALUES)), ()) if calm else (b"\x07", ())
    if kind == 2:
        return b"\x03" + text(plain), ()
    if kind in (3, 4):
        return b"\x04" + text(plain) + number(chance.choice([0, 1, -5, 2**62, -2**63])), ()
    if kind == 5:
        return b"\x05" + keys(any_keys), ()
    if kind in (6, 7) and not client.waits_for:
        names = [chance.choice(PLAIN)] if chance.random() < 0.5 else [chance.choice(KEPT) for _ in range(chance.randrange(0, 4))]
        return b"\x06" + keys(names), names
    if kind == 8 and not client.waits_for:
        queue = chance.choice(QUEUES)
        if queue not in client.used_queues:
            client.used_queues.add(queue)
            return b"\x06" + keys([queue]), [queue]
    if kind == 9:
        return b"\x07", ()
    if kind == 10:
        return b"\x08" + text(chance.choice(PLAIN)), ()
    if kind == 11:
        return b"\x09" + text(plain) + text(value), ()
    if kind == 12:
        return b"\x0a" + keys([chance.choice(PLAIN + KEPT) for _ in range(chance.randrange(0, 4))]), ()
    if kind == 13:
        names = [chance.choice(PLAIN + KEPT) for _ in range(chance.randrange(0, 4))]
        return b"\x0b" + struct.pack("<Q", len(names)) + b"".join(text(name) + text(chance.choice(VALUES)) for name in names), ()
    if kind == 14:
        return b"\x0c", None
    if kind == 15:
        return b"\x0e" + text(chance.choice(QUEUES)) + text(value), ()
    if kind == 16:
        return b"\x0f" + text(chance.choice(QUEUES)), ()
    if kind == 17:
        return b"\x10" + text(chance.choice(QUEUES)), ()
    if kind == 18:
        return b"\x11", ()
    if kind == 19 and not client.waits_for and hasattr(dist.TCPStore, "barrier"):
        barrier = chance.choice(BARRIERS)
        return b"\x12" + text(barrier) + number(chance.choice([0, 2, 3])), [barrier]
    return b"\x0d1234", ()


def run(seed, ports):
    chance = random.Random(seed)
    clients = [Client(ports) for _ in range(5)]
    history = []
    for _ in range(250):
        index = chance.randrange(len(clients))
        client = clients[index]
        awaited = set().union(*(each.waits_for for each in clients))
        request, waits_for = some_request(chance, client, awaited)
        history.append((index, request[:60]))
        client.send(request)
        if waits_for is None:
            client.waits_for = set()
        elif waits_for:
            client.waits_for = set(waits_for)
        # The sender first: when it has its answer the request is done, and what it woke is under way.
        for at in [index] + [other for other in range(len(clients)) if other != index]:
            ours, theirs = clients[at].collect()
            one = request if at == index else b"\0"
            if normal(one, ours) != normal(one, theirs):
                for step in history[-30:]:
                    print(step)
                print(f"seed {seed}: client {at} got\n  torchupd {ours and ours[:200]}\n  PyTorch  {theirs and theirs[:200]}")
                return False
            if ours is None:
                clients[at].close()
                clients[at] = Client(ports)
            elif clients[at].waits_for and len(ours) == (OWN_ANSWER.get(request[0], 0) if at == index else 0) + 1:
                if clients[at].used_queues:  # PyTorch keeps a registration on the queue: such a client is used up
                    clients[at].close()
                    clients[at] = Client(ports)
                clients[at].waits_for = set()
    for client in clients:
        client.close()
    return True


def main():
    sequences, first = int((sys.argv + ["6"])[2] if len(sys.argv) > 2 else 6), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    print("torch", torch.__version__)
    for seed in range(first, first + sequences):
        daemon = Torchupd(sys.argv[1], stderr=subprocess.DEVNULL)
        theirs = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=30))
        try:
            if not run(seed, [daemon.port, theirs.port]):
                return 1
        finally:
            daemon.kill()
            del theirs
    print(f"{sequences} sequences of 250 requests: the same answers")
    return 0


sys.exit(main())
