"""Real etcd for tests: one to three members as plain processes on loopback, on ports and in a folder of their own.

For scripts that run_case.py, beside this file, runs; without etcd on this machine their cases are skipped.
"""
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from waiting import until

needs_etcd = unittest.skipUnless(shutil.which("etcd") and shutil.which("etcdctl"),
                                 "there is no etcd here: apt-get install etcd-server etcd-client")


def free_ports(count):
    """Ports that nobody listened on just now; all are held until all are known."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Certificates:
    """An authority of our own, a certificate of 127.0.0.1 and one of a client's, which has no CN; PEM files in `folder`."""

    def __init__(self, folder):
        self.ca = os.path.join(folder, "ca.pem")
        authority = os.path.join(folder, "ca-key.pem")
        self.run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", authority, "-out", self.ca, "-days", "2", "-subj",
                 "/CN=an authority")
        self.server = self.sign(folder, "server", authority, "/CN=etcd", "subjectAltName=IP:127.0.0.1")
        self.client = self.sign(folder, "client", authority, "/O=torchup", "subjectAltName=DNS:agent")

    def sign(self, folder, name, authority, subject, extension):
        key, request, signed, extra = (os.path.join(folder, name + end) for end in ("-key.pem", ".csr", ".pem", ".ext"))
        with open(extra, "w") as file:
            file.write(extension + "\n")
        self.run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", subject)
        self.run("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", authority, "-CAcreateserial", "-days", "2",
                 "-extfile", extra, "-out", signed)
        return signed, key

    @staticmethod
    def run(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True)


class Etcds:
    """A cluster. `endpoints` is what --rdzv-endpoint and --state-etcd take. With `certificates` it speaks https, and wants a
    certificate of its clients; `options` are each member's own."""

    def __init__(self, count=1, certificates=None, options=()):
        self.certificates, self.options, self.login = certificates, options, ()
        self.folder = tempfile.TemporaryDirectory()
        ports = free_ports(2 * count)
        self.clients, peers = ports[:count], ports[count:]
        self.cluster = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
        self.peers = peers
        self.members = [None] * count
        for i in range(count):
            self.start(i)
        self.endpoints = ",".join(f"127.0.0.1:{port}" for port in self.clients)
        until(self.healthy, "etcd is healthy")

    def start(self, i):
        tls = self.certificates
        client = f"{'https' if tls else 'http'}://127.0.0.1:{self.clients[i]}"
        peer = f"http://127.0.0.1:{self.peers[i]}"
        log = open(os.path.join(self.folder.name, f"m{i}.log"), "ab")
        known = os.path.exists(os.path.join(self.folder.name, f"m{i}"))
        command = ["etcd", "--name", f"m{i}", "--data-dir", os.path.join(self.folder.name, f"m{i}"),
                   "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                   "--initial-advertise-peer-urls", peer, "--initial-cluster", self.cluster,
                   "--initial-cluster-state", "existing" if known else "new", *self.options]
        if tls:
            command += ["--cert-file", tls.server[0], "--key-file", tls.server[1], "--client-cert-auth",
                        "--trusted-ca-file", tls.ca]
        if self.knows("--unsafe-no-fsync"):  # nobody cuts the power here, and disks are shared
            command.append("--unsafe-no-fsync")
        self.members[i] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        log.close()

    @staticmethod
    def knows(option):
        return option in subprocess.run(["etcd", "--help"], capture_output=True, text=True).stdout

    def ctl(self, *words, check=True, stdin=None):
        tls = self.certificates
        proof = ("--cacert", tls.ca, "--cert", tls.client[0], "--key", tls.client[1]) if tls else ()
        endpoints = ",".join(f"https://{each}" for each in self.endpoints.split(",")) if tls else self.endpoints
        done = subprocess.run(["etcdctl", "--endpoints", endpoints, "--dial-timeout", "1s", *proof, *self.login, *words],
                              env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, check=False, input=stdin)
        if check and done.returncode != 0:
            raise AssertionError(f"etcdctl {words}: {done.stderr}")
        return done.stdout

    def healthy(self):
        self.endpoints = ",".join(f"127.0.0.1:{port}" for port in self.clients)
        return "ok" in self.ctl("put", "probe", "1", check=False).lower()

    def seat(self, scope):
        """Who has the seat, and the revision that it has had it since; None: nobody."""
        found = json.loads(self.ctl("get", scope + "/seat", "-w", "json"))
        if not found.get("kvs"):
            return None
        return {**json.loads(base64.b64decode(found["kvs"][0]["value"])), "term": found["kvs"][0]["mod_revision"]}

    def kill(self, i=None):
        for member in self.members if i is None else [self.members[i]]:
            if member.poll() is None:
                member.send_signal(signal.SIGKILL)
            member.wait()

    def start_again(self):
        for i, member in enumerate(self.members):
            if member.poll() is not None:
                self.start(i)
        until(self.healthy, "etcd is healthy again")

    def close(self):
        self.kill()
        self.folder.cleanup()
