"""Those who look at jobs, for bench_operations: who asks once, by TCP or a unix socket, and who follows a stream of events."""

import http.client
import re
import selectors
import socket
import threading
import time

LIMIT_S = 120


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=LIMIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self.path)


def ask(connection, path):
    """(seconds from the request to the last byte, the body)."""
    begin = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - begin
    if answer.status != 200:
        raise RuntimeError(f"GET {path}: {answer.status} {body[:200]}")
    return seconds, body


def stream_request(path, token="", behind=None):
    headers = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
    headers += f"Authorization: Bearer {token}\r\n" if token else ""
    headers += "" if behind is None else f"Last-Event-ID: {behind}\r\n"
    return (headers + "\r\n").encode()


class Followers(threading.Thread):
    """`count` who read a job's stream from its first event on, and with `deaf` one who follows it and reads nothing. They come
    as soon as there is the job. What they get is looked at when all is over, for that takes time."""

    def __init__(self, port, path, count, deaf):
        super().__init__(daemon=True)
        self.port, self.path, self.count, self.deaf = port, path, count, deaf
        self.pieces = [[] for _ in range(count)]
        self.sockets = []
        self.over = threading.Event()

    def connect(self):
        while not self.over.is_set():
            peer = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
            peer.sendall(stream_request(self.path, behind=0))
            head = peer.recv(4096)
            if head.startswith(b"HTTP/1.1 200 "):
                self.sockets.append(peer)
                return head
            peer.close()
            time.sleep(0.002)
        return b""

    def run(self):
        if self.deaf:
            self.connect()
        waiting = selectors.DefaultSelector()
        for pieces in self.pieces:
            pieces.append(self.connect())
            if not self.over.is_set():
                self.sockets[-1].setblocking(False)
                waiting.register(self.sockets[-1], selectors.EVENT_READ, pieces)
        while not self.over.is_set():
            for key, _ in waiting.select(0.1):
                piece = key.fileobj.recv(1 << 20)
                key.data.append(piece)
                if not piece:
                    waiting.unregister(key.fileobj)
        waiting.close()

    def have_seen(self, seq):
        """Whether the event of that number has reached all of them."""
        last = f"\nid: {seq}\n".encode()
        return all(last in b"".join(pieces[-64:]) for pieces in self.pieces)

    def end(self):
        """How many events have not reached one of them, of all up to the last that has."""
        self.over.set()
        self.join()
        for peer in self.sockets:
            peer.close()
        seen = [[int(number) for number in re.findall(rb"\nid: (\d+)\n", b"".join(pieces))] for pieces in self.pieces]
        first = min((numbers[0] for numbers in seen if numbers), default=0)  # of the job: they count on from there
        return sum(numbers[-1] - first + 1 - len(numbers) if numbers else 1 for numbers in seen)
