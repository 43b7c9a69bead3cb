"""A server that speaks the routes of operations (rendezvous/OPERATIONS.md) from a job that a test scripts: any state,
gap, break and refusal at the moment that the test wants. It serves the page's file as the programs do."""

import base64
import json
import os
import queue
import re
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "rendezvous" / "net" / "ops" / "status_page.html"


def policy(nonce):
    return (f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'")


def page(nonce, data="null"):
    """As page_text and report_text of rendezvous/core/ops/page_text make it."""
    values = {"@nonce@": nonce, "@data@": data.replace("<", "\\u003c")}
    return re.sub("@nonce@|@data@", lambda found: values[found[0]], PAGE.read_text())


def patched(target, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = patched(result.get(name), value)
    return result


def utc(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def node(host, first_rank, ranks, **more):
    return {"host": host, "state": "seated", "group_rank": more.pop("group_rank", 0), "first_rank": first_rank,
            "local_world_size": len(ranks), "ranks": ranks, "step": 41200, "agent": "torchup"} | more


LEDGER = {"rank_seconds": 7200.0, "useful": 6480.0, "waiting": 72.0, "startup": 144.0, "failure": 216.0, "change": 72.0,
          "redone": 108.0, "hang": 36.0, "straggler": 36.0, "shutdown": 36.0, "basis": "steps"}


def job(run_id="a1", nodes=None, **more):
    """A job of two nodes with four ranks each, running."""
    now = 1_700_000_600.0
    nodes = nodes or {"n0": node("node0", 0, "rrrr"), "n1": node("node1", 4, "rrrr", group_rank=1)}
    world_size = sum(len(each.get("ranks", "")) for each in nodes.values())
    return {"schema": 1, "run_id": run_id, "name": "train.py", "phase": "running", "started": utc(now - 600),
            "ended": None, "now": utc(now), "seq": 0, "round": 1, "world_size": world_size, "min_nodes": 1, "max_nodes": len(nodes),
            "restart_count": 1, "max_restarts": 3, "membership_changes": 0, "master": "10.0.0.1:29500", "waits_for": "",
            "last": "round 1 has formed", "step": {"min": 41200, "max": 41200, "per_second": 3.1, "age_s": 0.2},
            "ranks": {}, "ledger": dict(LEDGER), "incidents": [], "verdict": None, "nodes": nodes} | more


METRICS = "process_cpu_seconds_total 12.5\nprocess_resident_memory_bytes 6291456\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.script.answer(self, b"")

    def do_POST(self):
        self.server.script.answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_):
        pass  # a browser that goes away


class ScriptedServer:
    """Serves from its making to `stop`. Everything below may be called at any time from the test's thread."""

    def __init__(self, *jobs, right="control", token=None):
        self.lock = threading.RLock()
        self.right = right
        self.token = token
        self.jobs = {each["run_id"]: each for each in jobs}
        self.events = {each["run_id"]: [] for each in jobs}
        self.refuses = {}    # path: (status, error's message)
        self.requests = []   # (method, path, headers by their names in lower case, body)
        self.streams = []    # (run id or None, queue)
        self.opened = 0      # streams so far
        self.port = 0
        self.listener = None
        self.start()

    # ---- Being there.

    def start(self):
        """Again on the same port."""
        self.listener = Listener(("127.0.0.1", self.port), Handler)
        self.listener.script = self
        self.port = self.listener.server_address[1]
        threading.Thread(target=self.listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self):
        self.listener.shutdown()
        self.listener.server_close()
        self.break_streams()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    # ---- What happens in the job.

    def tell(self, run_id, name, data, seq=None):
        text = ("" if seq is None else f"id: {seq}\n") + f"event: {name}\ndata: {json.dumps(data)}\n\n"
        for wanted, out in self.streams:
            if wanted == run_id:
                out.put(text.encode())

    def change(self, run_id, patch, told=True):
        """`told=False`: it is one of those that a gap has swallowed."""
        with self.lock:
            self.jobs[run_id] = patched(self.jobs[run_id], patch)
            if told:
                self.tell(run_id, "change", patch)

    def happen(self, run_id, event, told=True, **fields):
        with self.lock:
            seq = self.jobs[run_id]["seq"] + 1
            self.jobs[run_id]["seq"] = seq
            made = {"schema": 1, "time": utc(1_700_000_000 + seq), "host": "node0", "event": event, "seq": seq} | fields
            self.events[run_id].append(made)
            if told:
                self.tell(run_id, "event", made, seq)
            return seq

    def gap(self, run_id, lost):
        with self.lock:
            self.tell(run_id, "gap", {"lost": lost})

    def snapshot(self, run_id):
        with self.lock:
            self.tell(run_id, "snapshot", self.jobs[run_id])

    def break_streams(self):
        with self.lock:
            for _, out in self.streams:
                out.put(None)

    def asked(self, method, path):
        with self.lock:
            return [each for each in self.requests if each[0] == method and each[1].partition("?")[0] == path]

    # ---- Answers.

    def answer(self, request, body):
        with self.lock:
            self.requests.append((request.command, request.path,
                                  {name.lower(): value for name, value in request.headers.items()}, body))
        path, _, query = request.path.partition("?")
        if path == "/" or path.startswith("/jobs/"):
            nonce = base64.b64encode(os.urandom(16)).decode()
            return self.send(request, 200, "text/html; charset=utf-8", page(nonce), policy(nonce))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.refuse(request, 401, "unauthorized", "the token is missing or wrong")
        if path in self.refuses:
            return self.refuse(request, self.refuses[path][0], "scripted", self.refuses[path][1])
        if path == "/metrics":
            return self.send(request, 200, "text/plain", METRICS)
        if path == "/v1/jobs":
            return self.json(request, self.rows())
        if path == "/v1/stream":
            return self.stream(request, None)
        return self.answer_job(request, path, urllib.parse.parse_qs(query))

    def rows(self):
        with self.lock:
            rows = []
            for each in self.jobs.values():
                row = {name: value for name, value in each.items() if name not in ("nodes", "incidents", "ledger")}
                step = each["step"] or {}
                rows.append(row | {"host": "node0", "step": step.get("max"), "steps_per_second": step.get("per_second")})
            return {"schema": 1, "right": self.right, "now": utc(1_700_000_600), "jobs": rows}

    def answer_job(self, request, path, query):
        found = re.fullmatch(r"/v1/jobs/([^/]+)(/.*)?", path)
        run_id = urllib.parse.unquote(found[1]) if found else None
        if run_id not in self.jobs:
            return self.refuse(request, 404, "no_such_job", f"there is no job '{run_id}'")
        rest = found[2] or ""
        if request.command == "POST":
            if self.right != "control":
                return self.refuse(request, 403, "forbidden", "this token may only read")
            return self.json(request, {"accepted": rest[1:]}, 202)
        if rest == "/stream":
            return self.stream(request, run_id)
        if rest == "/events":
            since = int(query.get("since", ["0"])[0])
            events = [each for each in self.events[run_id] if each["seq"] > since]
            return self.json(request, {"events": events, "next": events[-1]["seq"] if events else since, "lost": 0})
        return self.json(request, self.jobs[run_id])

    def stream(self, request, run_id):
        out = queue.Queue()
        with self.lock:
            first = self.rows() if run_id is None else self.jobs[run_id]
            out.put(f"event: snapshot\ndata: {json.dumps(first)}\n\n".encode())
            behind = request.headers.get("Last-Event-ID")
            if behind is not None and run_id is not None:
                for each in self.events[run_id]:
                    if each["seq"] > int(behind):
                        out.put(f"id: {each['seq']}\nevent: event\ndata: {json.dumps(each)}\n\n".encode())
            self.streams.append((run_id, out))
            self.opened += 1
        request.close_connection = True
        self.head(request, 200, "text/event-stream", None)
        try:
            while (piece := out.get()) is not None:
                request.wfile.write(piece)
                request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        finally:
            with self.lock:
                self.streams.remove((run_id, out))

    def json(self, request, value, status=200):
        self.send(request, status, "application/json", json.dumps(value))

    def refuse(self, request, status, code, message):
        self.json(request, {"error": {"code": code, "message": message}}, status)

    def send(self, request, status, kind, text, csp=None):
        body = text.encode()
        self.head(request, status, kind, len(body), csp)
        request.wfile.write(body)

    @staticmethod
    def head(request, status, kind, length, csp=None):
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Cache-Control", "no-store")
        request.send_header("X-Content-Type-Options", "nosniff")
        if csp:
            request.send_header("Content-Security-Policy", csp)
        if length is None:
            request.send_header("Connection", "close")
        else:
            request.send_header("Content-Length", str(length))
        request.end_headers()
