#!/usr/bin/env python3
"""etcd as it is met: certificates, passwords, members that are none or lie, a full database, states that cannot be used.

usage: tests/support/run_case.py etcd_test.py CASE TORCHUP TORCHUPD
"""
import base64
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import unittest

from etcd_jobs import Jobs
from etcds import Certificates, Etcds, free_ports, needs_etcd
from waiting import until

torchup, torchupd = Jobs.torchup, Jobs.torchupd = sys.argv[1:3]
PASSWORD = "a password of etcd's"


class AsItIs(Jobs):
    """One node is enough to see how etcd is spoken with."""

    def alone(self, conf="", endpoints=None, join_timeout=60):
        conf = ",".join(each for each in (f"join_timeout={join_timeout}", conf) if each)
        return self.start("--nnodes=1", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoints or self.etcd.endpoints}",
                          "--rdzv-id=job", f"--rdzv-conf={conf}")

    def assert_ends(self, node, code, *words, limit_s=40):
        self.assertEqual(node.process.wait(limit_s), code, node.said())
        for word in words:
            self.assertIn(word, node.said())

    def assert_works(self, *arguments):
        self.end_workers(0)
        self.assert_ends(self.alone(*arguments), 0)


@needs_etcd
class OverTls(AsItIs, unittest.TestCase):
    def make_etcd(self):
        self.certificates = Certificates(self.folder)
        return Etcds(1, self.certificates)

    def test_an_authority_of_our_own_and_a_certificate_of_ours(self):
        cert, key = self.certificates.client
        self.assert_works(f"cacert={self.certificates.ca},cert={cert},key={key}")

    def test_who_is_not_trusted_is_refused_at_once(self):
        other = os.path.join(self.folder, "other")
        os.mkdir(other)
        cert, key = self.certificates.client
        self.assert_ends(self.alone(f"cacert={Certificates(other).ca},cert={cert},key={key}"), 68, "certificate")

    def test_etcd_wants_a_certificate(self):
        self.assert_ends(self.alone(f"protocol=https,cacert={self.certificates.ca}"), 68, "certificate")

    def test_http_was_said(self):
        self.assert_ends(self.alone(), 67, "speaks TLS", "protocol=https")


@needs_etcd
class WithPasswords(AsItIs, unittest.TestCase):
    """root, and a user who may use one prefix."""

    def make_etcd(self):
        etcd = Etcds(1)
        for words in (("user", "add", f"root:{PASSWORD}"), ("user", "grant-role", "root", "root"),
                      ("user", "add", f"ours:{PASSWORD}"), ("role", "add", "ours"), ("user", "grant-role", "ours", "ours"),
                      ("role", "grant-permission", "--prefix=true", "ours", "readwrite", "/ours/"), ("auth", "enable")):
            etcd.ctl(*words)
        etcd.login = ("--user", f"root:{PASSWORD}")
        return etcd

    def password_file(self, text, mode=0o600):
        path = os.path.join(self.folder, "password")
        with open(path, "w") as file:
            file.write(text + "\n")
        os.chmod(path, mode)
        return f"password_file={path}"

    def set_password(self, text):
        for words in ("delete", "ours"), ("add", f"ours:{text}"), ("grant-role", "ours", "ours"):
            self.etcd.ctl("user", *words)

    def test_the_right_one_in_a_file_and_in_the_variable(self):
        self.assert_works(f"user=ours,etcd_prefix=/ours,{self.password_file(PASSWORD)}")
        os.environ["TORCHUP_ETCD_PASSWORD"] = PASSWORD
        self.addCleanup(os.environ.pop, "TORCHUP_ETCD_PASSWORD")
        self.etcd.ctl("del", "--prefix", "/ours/")
        self.assert_works("user=ours,etcd_prefix=/ours")

    def test_what_is_wrong_is_said_in_etcds_words_with_user_and_prefix(self):
        self.assert_ends(self.alone(f"user=ours,etcd_prefix=/ours,{self.password_file('another one')}"), 68,
                         "authentication failed", "'ours'", "/ours")
        self.assert_ends(self.alone(f"user=ours,etcd_prefix=/theirs,{self.password_file(PASSWORD)}"), 68,
                         "permission denied", "'ours'", "/theirs")
        self.assert_ends(self.alone(), 68, "user name is empty", "/torchup")

    def test_a_password_that_others_read_is_refused_before_anything_starts(self):
        self.assert_ends(self.alone(f"user=ours,{self.password_file(PASSWORD, 0o644)}"), 2, "password", "chmod")

    def test_a_daemon_stands_by_until_its_password_is_right(self):
        self.set_password("another one")
        log = open(os.path.join(self.folder, "torchupd.err"), "w")
        daemon = subprocess.Popen([torchupd, "--bind", "127.0.0.1", "--port", "0", "--state-etcd", self.etcd.endpoints,
                                   "--etcd-conf", f"user=ours,etcd_prefix=/ours,{self.password_file(PASSWORD)}",
                                   "--no-control-socket"], stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)

        def said(word):
            with open(log.name) as file:
                return word in file.read()
        until(lambda: said("authentication failed"), "it says why it cannot be active")
        self.set_password(PASSWORD)
        until(lambda: said("active, term"), "it is active")


class Others(AsItIs, unittest.TestCase):
    """What answers at etcd's address is none."""

    def make_etcd(self):
        return None

    def serve(self, answer):
        """Each connection is given that, whatever it says."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def accept():
            while True:
                try:
                    peer = listener.accept()[0]
                except OSError:
                    return
                threading.Thread(target=speak, args=(peer,), daemon=True).start()

        def speak(peer):
            with peer:
                try:
                    while peer.recv(65536):
                        peer.sendall(answer)
                except OSError:
                    pass
        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def test_another_service_is_told_from_one_that_is_away(self):
        for answer, words in ((b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n", "is no etcd 3.4 or newer (404)"),
                              (b"SSH-2.0-OpenSSH_9.2\r\n", "is no etcd"),
                              (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{\"a\"", "is no etcd")):
            self.assert_ends(self.alone(endpoints=self.serve(answer)), 67, words)

    def test_one_that_is_away_is_waited_for_until_the_join_timeout(self):
        port = free_ports(1)[0]
        self.assert_ends(self.alone(endpoints=f"127.0.0.1:{port}", join_timeout=3), 67, f"127.0.0.1:{port}: refused")


class Liar(http.server.BaseHTTPRequestHandler):
    """A member that passes all on to a real one, and spoils each answer in a way of its own."""
    protocol_version = "HTTP/1.1"
    ways = 7

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with socket.create_connection(self.server.real, 10) as real:
            real.sendall(f"POST {self.path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                         .encode() + body)
            answer = b""
            while piece := real.recv(65536):
                answer += piece
        head, _, text = answer.partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            return self.give(text[:0])
        self.server.lies += 1
        self.give(self.lie(text.strip(), self.server.lies % self.ways))

    def lie(self, text, way):
        try:
            answer = json.loads(text)
        except ValueError:
            return text
        if way == 0:
            return text[:len(text) // 2]
        if way == 1:
            return b"[1, 2, 3]"
        if way == 2:
            answer["header"]["revision"] = "1"
        if way == 3:
            answer["header"]["revision"] = "-7"
        if way == 4:
            answer["header"]["revision"] = 1.5
        if way == 5:
            answer["responses"] = [{"response_range": {"kvs": [{"key": "?!", "value": "***", "mod_revision": "x"}]}}]
        if way == 6:
            answer["responses"] = "many"
        return json.dumps(answer).encode()

    def give(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@needs_etcd
class Lies(AsItIs, unittest.TestCase):
    def test_a_member_that_lies_decides_nothing(self):
        host, port = self.etcd.endpoints.split(":")
        liar = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
        liar.real, liar.lies = (host, int(port)), 0
        threading.Thread(target=liar.serve_forever, daemon=True).start()
        self.addCleanup(liar.server_close)
        self.addCleanup(liar.shutdown)
        endpoints = f"127.0.0.1:{liar.server_address[1]},{self.etcd.endpoints}"
        for _ in range(2):
            self.start("--nnodes=2", "--max-restarts=1", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoints}", "--rdzv-id=job",
                       "--rdzv-conf=join_timeout=60")
        before = self.wait_workers(2)
        os.kill(before[0][1], signal.SIGKILL)
        self.wait_workers(4)
        self.end_workers(0)
        self.assertEqual(self.codes(self.nodes), [0, 0], self.all_said())
        self.assertGreater(liar.lies, 1)


@needs_etcd
class States(AsItIs, unittest.TestCase):
    """What is kept there cannot be used: that is said, and no job begun in its place."""

    def leave_a_state(self):
        node = self.alone()
        self.wait_workers(1)
        until(lambda: self.etcd.ctl("get", "/torchup/job/job/state/job"), "a state is written")
        node.end_now()
        self.etcd.ctl("del", "/torchup/job/job/seat")

    def entries(self):
        found = json.loads(self.etcd.ctl("get", "--prefix", "/torchup/job/job/state/", "-w", "json"))["kvs"]
        return {base64.b64decode(each["key"]).decode(): base64.b64decode(each["value"]) for each in found}

    def put(self, key, value):
        self.etcd.ctl("put", key, stdin=value)

    def test_one_byte_is_changed(self):
        self.leave_a_state()
        head = "/torchup/job/job/state/job"
        piece = next(key for key in self.entries() if key != head)
        text = json.loads(self.entries()[head])
        text["sum"] = ("0" if text["sum"][0] != "0" else "1") + text["sum"][1:]
        self.put(head, json.dumps(text))
        self.assert_ends(self.alone(), 65, head, "etcdctl del --prefix")
        self.assertIn(piece, self.entries())  # it is there still

    def test_one_piece_is_lost(self):
        self.leave_a_state()
        head = "/torchup/job/job/state/job"
        self.etcd.ctl("del", next(key for key in self.entries() if key != head))
        self.assert_ends(self.alone(), 65, head)

    def test_it_is_of_another_version(self):
        self.leave_a_state()
        head = "/torchup/job/job/state/job"
        text = json.loads(self.entries()[head])
        text["version"] = 2
        self.put(head, json.dumps(text))
        self.assert_ends(self.alone(), 65, head)


@needs_etcd
class Full(AsItIs, unittest.TestCase):
    def make_etcd(self):
        return Etcds(1, options=("--quota-backend-bytes", "300000"))

    def test_a_full_database_is_named_and_waited_for(self):
        for number in range(20):
            self.etcd.ctl("put", f"filler{number}", "x" * 50000, check=False)
        until(lambda: "NOSPACE" in self.etcd.ctl("alarm", "list"), "etcd raises its alarm")
        node = self.alone()
        until(lambda: "etcd's database is full (alarm NOSPACE)" in node.said(), "it says so")
        self.assertIsNone(node.process.poll(), node.said())
        self.etcd.ctl("del", "--prefix", "filler", check=False)
        revision = json.loads(self.etcd.ctl("endpoint", "status", "-w", "json"))[0]["Status"]["header"]["revision"]
        self.etcd.ctl("compact", str(revision))
        self.etcd.ctl("defrag")
        self.etcd.ctl("alarm", "disarm")
        self.end_workers(0)
        self.assert_ends(node, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
