"""Stands in for a launcher: a control socket, or a port, that answers what a test wants, whatever that is."""

import json
import os
import socket
import socketserver
import threading
import urllib.parse


class Request:
    def __init__(self, method, target, headers, body):
        self.method, self.target, self.headers, self.body = method, target, headers, body
        path, _, query = target.partition("?")
        self.path = urllib.parse.unquote(path)
        self.query = dict(urllib.parse.parse_qsl(query))

    def __repr__(self):
        return f"{self.method} {self.target}"


def response(body, status=200, kind="application/json", **headers):
    """Of JSON, text or bytes."""
    if not isinstance(body, (str, bytes)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}",
             *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def refusal(status, message):
    return response({"error": {"code": "x", "message": message}}, status)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text):
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def frame(name, data, seq=None):
    """An event of a stream."""
    number = "" if seq is None else f"id: {seq}\n"
    return chunk(f"event: {name}\n{number}data: {json.dumps(data)}\n\n")


class Launcher:
    """`answer(request)` gives the bytes of an answer, an iterable of parts of one, or None: never any."""

    def __init__(self, answer, folder=None, pid=4242):
        self.requests = []
        launcher = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                data = b""
                while b"\r\n\r\n" not in data:
                    part = self.request.recv(65536)
                    if not part:
                        return
                    data += part
                head, _, body = data.partition(b"\r\n\r\n")
                first, *rest = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
                while len(body) < int(headers.get("content-length", 0)):
                    body += self.request.recv(65536)
                method, target, _ = first.split(" ")
                request = Request(method, target, headers, body)
                launcher.requests.append(request)
                self.give(answer(request))

            def give(self, answer):
                try:
                    if answer is None:
                        launcher.closing.wait(100)
                        return
                    for part in [answer] if isinstance(answer, bytes) else answer:
                        self.request.sendall(part)
                except OSError:
                    pass  # whoever asked has gone

        self.closing = threading.Event()
        server = socketserver.ThreadingUnixStreamServer if folder else socketserver.ThreadingTCPServer
        server = type("Server", (server,), {"daemon_threads": True, "block_on_close": False, "request_queue_size": 64})
        if folder:
            self.path = os.path.join(folder, f"{pid}-0badcafe.sock")
            self.server = server(self.path, Handler)
        else:
            self.server = server(("127.0.0.1", 0), Handler)
            self.endpoint = "127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        if hasattr(self, "path") and os.path.exists(self.path):
            os.unlink(self.path)


def leave_dead_socket(path):
    """As a killed launcher leaves it."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def job_row(run_id="mnist", **members):
    return {"schema": 1, "run_id": run_id, "host": "node0", "name": "train.py", "phase": "running",
            "started": "2026-11-21T04:00:00.000000Z", "now": "2026-11-21T05:12:03.500000Z", "ended": None, "round": 0,
            "world_size": 2, "min_nodes": 1, "max_nodes": 1, "restart_count": 0, "max_restarts": 3,
            "membership_changes": 0, "step": 41200, "steps_per_second": 3.14, "verdict": None, **members}


def snapshot(run_id="mnist", **members):
    return {**job_row(run_id), "seq": 7, "step": {"min": 41190, "max": 41200, "per_second": 3.14, "age_s": 0.2},
            "nodes": {"n0": {"host": "node0", "state": "seated", "group_rank": 0, "first_rank": 0, "ranks": "rh",
                             "step": 41200}}, "incidents": [], **members}


class Job:
    """The usual answers of one job's launcher; `more` answers before them what it wants to, by path below the job's."""

    def __init__(self, run_id="mnist", pid=4242, more=None, **members):
        self.row = job_row(run_id, pid=pid, **members)
        self.snapshot = snapshot(run_id)
        self.run_id = run_id
        self.more = more or {}

    def __call__(self, request):
        if request.path == "/v1/jobs":
            return response({"schema": 1, "right": "control", "now": self.row["now"], "jobs": [self.row]})
        own = f"/v1/jobs/{self.run_id}"
        if not request.path.startswith(own):
            return self.more[request.path](request) if request.path in self.more else refusal(404, "no such job")
        rest = request.path[len(own):]
        if rest in self.more:
            return self.more[rest](request)
        return response(self.snapshot) if rest == "" else refusal(404, f"no such thing: {rest}")
