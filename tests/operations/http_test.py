#!/usr/bin/env python3
"""What torchupd answers over HTTP, and to whom: by its port and by its control socket, as raw bytes.

usage: tests/support/run_case.py http_test.py CASE TORCHUPD
"""
import json
import os
import pathlib
import re
import socket
import stat
import sys
import tempfile
import time
import unittest

from torchupd import DaemonCase

DaemonCase.program = sys.argv[1]
TOKEN, READ_TOKEN = "a token of twenty-five...", "another token, to read by"
NOBODY = 65534


class Answer:
    def __init__(self, received):
        self.head, _, self.body = received.partition(b"\r\n\r\n")
        lines = self.head.decode().split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}

    def json(self):
        return json.loads(self.body)


class HttpCase(DaemonCase):
    """Over the port unless `door` is the path of a socket."""
    tokens = False

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.runtime = pathlib.Path(self.folder.name) / "runtime"
        self.environment = {"TORCHUP_RUNTIME_DIR": str(self.runtime), **self.environment}
        if self.tokens:
            for name, token in ("token", TOKEN), ("read", READ_TOKEN):
                path = pathlib.Path(self.folder.name) / name
                path.write_text(token)
                path.chmod(0o600)
            self.options = (*self.options, "--token-file", f"{self.folder.name}/token", "--read-token-file", f"{self.folder.name}/read",
                            "--status-host", "door.example,other.example")
        super().setUp()

    def sockets(self):
        return sorted(self.runtime.glob("*")) if self.runtime.exists() else []

    def open(self, door=None):
        if door is None:
            return self.connect()
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(60)
        peer.connect(str(door))
        self.peers.append(peer)
        return peer

    def ask(self, target, *headers, method="GET", host="localhost", body=None, door=None):
        if body is not None:
            headers = (*headers, "Content-Type: application/json", f"Content-Length: {len(body)}")
        peer = self.open(door)
        lines = [f"{method} {target} HTTP/1.1", *([f"Host: {host}"] if host is not None else []), "Connection: close", *headers]
        peer.sendall("\r\n".join([*lines, "", body or ""]).encode())
        received = b""
        while piece := peer.recv(1 << 16):
            received += piece
        return Answer(received)

    def bearer(self, token):
        return f"Authorization: Bearer {token}"


class Open(HttpCase, unittest.TestCase):
    def test_an_answer_is_kept_by_nobody(self):
        answer = self.ask("/v1/jobs")
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.headers["cache-control"], "no-store")
        self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
        self.assertEqual(answer.headers["content-type"], "application/json")
        self.assertNotIn("access-control-allow-origin", answer.headers)
        jobs = answer.json()
        self.assertEqual((jobs["schema"], jobs["right"], jobs["jobs"]), (1, "read", []))

    def test_a_foreign_host_is_misdirected(self):
        for host in "evil.example", f"evil.example:{self.port}", "localhost.evil.example", "":
            for target in "/v1/jobs", "/status", "/metrics", "/":
                answer = self.ask(target, "Origin: http://evil.example", host=host)
                self.assertEqual(answer.status, 421, (host, target))
                self.assertEqual(answer.json()["error"]["code"], "misdirected_request")
        for host in "127.0.0.1", f"localhost:{self.port}", "[::1]", socket.gethostname():
            self.assertEqual(self.ask("/v1/jobs", host=host).status, 200, host)
        self.assertEqual(self.ask("/v1/jobs", host=None).status, 400)

    def test_nothing_is_steered_without_a_token(self):
        for target in "/v1/jobs/a/stop", "/v1/jobs/a/restart", "/v1/jobs/a/nodes/n/drain", "/v1/node/page":
            self.assertEqual(self.ask(target, method="POST", body="{}").status, 403)
        self.assertEqual(self.ask("/v1/jobs/a/ranks/0/log").status, 403)
        self.assertEqual(self.ask("/status", self.bearer("guessed")).status, 401)

    def test_an_error_is_one_object(self):
        for target, method, status, code in (("/nothing", "GET", 404, "no_such_route"), ("/v1/jobs/a%2Fb", "GET", 404, "no_such_job"),
                                             ("/v1/jobs/%zz", "GET", 400, "bad_request"), ("/status", "DELETE", 405, "method_not_allowed")):
            answer = self.ask(target, method=method)
            self.assertEqual(answer.status, status)
            self.assertEqual(answer.json()["error"]["code"], code)
            self.assertTrue(answer.json()["error"]["message"])
        self.assertEqual(answer.headers["allow"], "GET, HEAD")

    def test_the_page_may_run_its_own_script_alone(self):
        policies = {self.ask("/").headers["content-security-policy"] for _ in range(3)}
        self.assertEqual(len(policies), 3)
        nonces = [re.search(r"script-src 'nonce-([^']+)'", policy)[1] for policy in policies]
        self.assertTrue(all(len(nonce) >= 20 for nonce in nonces))
        self.assertIn("default-src 'none'", policies.pop())

    def test_probes_and_pages_of_before_are_as_they_were(self):
        for path in "/healthz", "/readyz":
            answer = self.ask(path)
            self.assertEqual((answer.status, answer.body), (200, b"ok\n"))
        self.assertEqual(self.status()["jobs"], {})
        self.assertIn(b"\ntorchup_store_connections ", self.ask("/metrics").body)


class Tokens(HttpCase, unittest.TestCase):
    tokens = True

    def test_a_right_follows_from_the_token(self):
        for headers, right in ((), "read"), ((self.bearer(TOKEN),), "control"), ((self.bearer(READ_TOKEN),), "read"):
            self.assertEqual(self.ask("/v1/jobs", *headers).json()["right"], right)
        for wrong in self.bearer("wrong"), self.bearer(TOKEN + "x"), self.bearer(""), f"Authorization: Basic {TOKEN}":
            answer = self.ask("/v1/jobs", wrong)
            self.assertEqual(answer.status, 401, wrong)
            self.assertEqual(answer.headers["www-authenticate"], "Bearer")

    def test_who_may_what(self):
        stop = dict(method="POST", body="{}")
        self.assertEqual(self.ask("/v1/jobs/a/stop", **stop).status, 401)
        self.assertEqual(self.ask("/v1/jobs/a/stop", self.bearer(READ_TOKEN), **stop).status, 403)
        self.assertEqual(self.ask("/v1/jobs/a/stop", self.bearer(TOKEN), **stop).json()["error"]["code"], "no_such_job")
        self.assertEqual(self.ask("/v1/node/page", self.bearer(TOKEN), **stop).status, 403)

    def test_a_token_in_the_address_or_a_cookie_is_none(self):
        for target, headers in ((f"/v1/jobs/a/stop?token={TOKEN.replace(' ', '%20')}", ()), ("/v1/jobs/a/stop", (f"Cookie: token={TOKEN}",))):
            self.assertEqual(self.ask(target, *headers, method="POST", body="{}").status, 401)

    def test_a_form_steers_nothing(self):
        form = ("Content-Type: application/x-www-form-urlencoded", "Content-Length: 9")
        peer = self.connect()
        peer.sendall("\r\n".join(["POST /v1/jobs/a/stop HTTP/1.1", "Host: localhost", self.bearer(TOKEN), *form, "", "now=false"]).encode())
        self.assertTrue(peer.recv(4096).startswith(b"HTTP/1.1 415 "))

    def test_with_a_token_any_name_will_do(self):
        self.assertEqual(self.ask("/v1/jobs", host="evil.example").status, 421)
        self.assertEqual(self.ask("/v1/jobs", self.bearer(READ_TOKEN), host="proxy.example").status, 200)
        for host in "door.example", "OTHER.example:443":
            self.assertEqual(self.ask("/v1/jobs", host=host).status, 200)


class Socket(HttpCase, unittest.TestCase):
    def test_it_is_the_users_alone_and_goes_with_the_process(self):
        [path] = self.sockets()
        self.assertRegex(path.name, rf"^{self.process.pid}-[0-9a-f]{{8}}\.sock$")
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.runtime.stat().st_mode), 0o700)
        self.assertEqual(self.ask("/v1/jobs", door=path, host="evil.example").json()["right"], "control")
        self.assertEqual(self.ask("/v1/jobs/a/stop", method="POST", body="{}", door=path).json()["error"]["code"], "no_such_job")
        self.end()
        self.assertEqual(self.sockets(), [])

    def end(self):
        if self.process.poll() is None:
            super().end()

    def test_it_refuses_when_its_process_was_killed(self):
        [path] = self.sockets()
        self.process.kill()
        self.process.wait()
        with self.assertRaises(ConnectionRefusedError):
            self.open(path)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be somebody else")
    def test_others_get_nothing_even_where_they_get_in(self):
        [path] = self.sockets()
        for opened in pathlib.Path(self.folder.name), self.runtime, path:
            opened.chmod(0o777)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:  # no program of its own: it might not be allowed to read that one
            try:
                os.setgroups([])
                os.setresuid(NOBODY, NOBODY, NOBODY)
                peer = socket.socket(socket.AF_UNIX)
                peer.settimeout(60)
                peer.connect(str(path))
                peer.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
                os.write(theirs, peer.recv(4096))
            finally:
                os._exit(0)
        os.close(theirs)
        os.waitpid(child, 0)
        with os.fdopen(ours, "rb") as answer:
            self.assertTrue(answer.read().startswith(b"HTTP/1.1 403 "))

    def test_a_page_is_opened_for_its_user(self):
        [path] = self.sockets()
        url = self.ask("/v1/node/page", method="POST", body="{}", door=path).json()["url"]
        again = self.ask("/v1/node/page", method="POST", body="{}", door=path).json()["url"]
        self.assertEqual(url, again)
        [port, token] = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=([0-9a-f]{32})", url).groups()
        self.port = int(port)
        self.assertEqual(self.ask("/").status, 200)
        self.assertEqual(self.ask("/v1/jobs", self.bearer(token)).json()["right"], "control")
        self.assertEqual(self.ask("/v1/jobs", self.bearer(token[::-1])).status, 401)
        self.assertNotIn(token, self.said())


class NoSocket(HttpCase, unittest.TestCase):
    options = ("--no-control-socket",)

    def test_there_is_none_where_none_is_wanted(self):
        self.assertEqual(self.sockets(), [])


class TakenDirectory(HttpCase, unittest.TestCase):
    def setUp(self):
        self.elsewhere = tempfile.TemporaryDirectory()
        self.addCleanup(self.elsewhere.cleanup)
        os.chmod(self.elsewhere.name, 0o755)
        self.environment = {"TORCHUP_RUNTIME_DIR": self.elsewhere.name}
        super().setUp()

    def test_it_is_told_once_and_the_daemon_serves(self):
        self.assert_said(self.elsewhere.name)
        self.assertEqual(self.said().count(self.elsewhere.name + ": others may use it"), 1)
        self.assertEqual(os.listdir(self.elsewhere.name), [])
        self.assertEqual(self.ask("/healthz").status, 200)


class Slow(HttpCase, unittest.TestCase):
    def test_a_request_has_five_seconds_however_slowly_it_comes(self):
        begin = time.monotonic()
        peer = self.connect(b"POST /v1/jobs/a/stop HTTP/1.1\r\nHost: localhost\r\n")
        peer.settimeout(0.5)
        with self.assertRaises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() - begin < 30:
                peer.sendall(b"X: y\r\n")
                time.sleep(0.2)
        self.assertGreater(time.monotonic() - begin, 4.5)
        self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    unittest.main()
