"""torchupd for tests: started on a port of its own, spoken to in PyTorch's bytes, ended; and a network namespace to do it in.

For scripts that run_case.py, beside this file, runs; others put this folder into sys.path.
"""
import hashlib
import hmac
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

VALIDATE = bytes.fromhex("00cef7853c")
PING = b"\x0d1234"  # answered with its last four bytes
MIB = 1 << 20


def text(value):
    return struct.pack("<Q", len(value)) + value


def keys(names):
    return struct.pack("<Q", len(names)) + b"".join(map(text, names))


def ask(peer, request, size):
    peer.sendall(request)
    reply = receive(peer, size)
    assert len(reply) == size, (request[:16], reply[:100])
    return reply


def receive(peer, size):
    """So many bytes, or what came before the end. MSG_WAITALL does not wait on a socket that has a time limit."""
    reply = b""
    while len(reply) < size and (piece := peer.recv(size - len(reply))):
        reply += piece
    return reply


class Encrypted:
    """OpenSSL's own client on a connection to a torchupd; with a token, which it proves as torchup's agents do."""

    def __init__(self, port, token=None, host="127.0.0.1"):
        key = hmac.new((token or "").encode(), b"torchup tls", hashlib.sha256).hexdigest()
        psk = ["-psk_identity", "torchup", "-psk", key, "-ciphersuites", "TLS_AES_128_GCM_SHA256"] if token else []
        self.process = subprocess.Popen(["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_3", "-quiet", *psk],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)

    def sendall(self, words):
        self.process.stdin.write(words)

    def recv(self, size):
        return self.process.stdout.read(size)

    def said(self):
        """What OpenSSL has to say of the connection, to its end."""
        return self.process.communicate(timeout=60)[1].decode(errors="replace")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in self.process.stdin, self.process.stdout, self.process.stderr:
            stream.close()


class Torchupd:
    """`torchupd --port 0 OPTION...`, ready. `behind` is a command that starts it. What Popen knows beside that is passed on."""

    def __init__(self, program, *options, behind=(), port=0, descriptors=None, memory=None, **popen):
        def limit():
            for what, most in (resource.RLIMIT_NOFILE, descriptors), (resource.RLIMIT_AS, memory):
                if most:
                    resource.setrlimit(what, (most, most))

        self.process = subprocess.Popen([*behind, program, "--port", str(port), *map(str, options)], stdout=subprocess.PIPE,
                                        preexec_fn=limit if descriptors or memory else None, **popen)
        line = self.process.stdout.readline()
        line = line if isinstance(line, str) else line.decode()
        assert line.startswith("torchupd: ready on "), line
        self.endpoint = line.split()[-1]
        self.port = int(self.endpoint.rpartition(":")[2])

    def end(self, limit=60):
        """Tells it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit)
        finally:
            self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()
        for stream in self.process.stdout, self.process.stderr:
            if stream:
                stream.close()

    def memory(self, name="VmRSS"):
        """Bytes of RAM; "VmHWM": the most there have been. 0 under a sanitizer, whose memory is not the program's."""
        if os.environ.get("TORCHUP_SANITIZE"):
            return 0
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(dict(line.split(":", 1) for line in status)[name].split()[0]) << 10


class DaemonCase:
    """For cases with a daemon, an honest client of its store, and whoever else comes. The script sets `program`."""
    program = None
    options = ()
    descriptors = None
    memory = None
    environment = {}

    def setUp(self):
        self.log = tempfile.TemporaryFile("w+")
        self.addCleanup(self.log.close)
        self.daemon = Torchupd(DaemonCase.program, "--bind", "0.0.0.0", *self.options, env={**os.environ, **self.environment},
                               stderr=self.log, text=True, descriptors=self.descriptors, memory=self.memory)
        self.process, self.port = self.daemon.process, self.daemon.port
        self.peers = []
        self.addCleanup(self.end)
        self.honest = self.connect(VALIDATE)

    def end(self):
        for peer in self.peers:
            peer.close()
        ended = self.process.poll()
        code = self.daemon.end()
        self.assertIsNone(ended, "torchupd has ended: " + self.said()[-3000:])
        self.assertEqual(code, 0)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def assert_said(self, what):
        """A line is written by a thread of its own, soon after what it tells of."""
        self.until(lambda: what in self.said())

    def connect(self, first=b"", source=None, timeout=60):
        peer = socket.create_connection((source or "127.0.0.1", self.port), timeout, source_address=(source, 0) if source else None)
        self.peers.append(peer)
        if first:
            peer.sendall(first)
        return peer

    def encrypted(self, token):
        peer = Encrypted(self.port, token)
        self.peers.append(peer)
        return peer

    def page(self, path, source=None, headers=()):
        peer = self.connect(source=source)
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{''.join(headers)}\r\n".encode())
        answer = b""
        while piece := peer.recv(1 << 16):
            answer += piece
        return answer

    def status(self):
        return json.loads(self.page("/status").split(b"\r\n\r\n", 1)[1])

    def resident(self):
        return self.daemon.memory()

    def until(self, condition, limit=60):
        end = time.monotonic() + limit
        while not condition():
            self.assertLess(time.monotonic(), end, "condition not met in time: " + self.said()[-2000:])
            time.sleep(0.02)

    def assert_closed(self, peer, limit=60):
        """Whatever is still answered."""
        peer.settimeout(limit)
        try:
            while peer.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass

    def assert_served(self, source=None):
        peer = self.connect(VALIDATE, source)
        self.assertEqual(ask(peer, PING, 4), PING[1:])
        peer.close()


INSIDE = "TORCHUP_TEST_NAMESPACE"
# Routed to lo there, but no interface has them: as a peer's they are another machine's. And one that lo has.
ELSEWHERE, FARTHER, OURS = "10.9.0.7", "10.8.0.7", "10.7.0.7"
needs_namespace = unittest.skipUnless(os.environ.get(INSIDE), "needs unshare -rn")


def enter_network():
    """Starts this script again in a network namespace of its own, where that is allowed."""
    setup = f"ip link set lo up && ip addr add {OURS}/32 dev lo && ip route add local {ELSEWHERE} dev lo && ip route add local {FARTHER} dev lo"
    enter = ["unshare", "--map-root-user", "--net", "sh", "-c", f'{setup} && exec "$@"', "sh"]
    if os.environ.get(INSIDE) or not shutil.which("unshare") or subprocess.run([*enter, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return
    os.environ[INSIDE] = "1"
    os.execvp(enter[0], [*enter, sys.executable, *sys.orig_argv[1:]])
