#!/usr/bin/env python3
"""What torchupd costs when peers are hostile, and whom it lets in: memory, descriptors, jobs, tokens, pages.

usage: strangers_test.py TORCHUPD [unittest options]

Runs in a network namespace of its own where that is allowed: there, peers come from addresses that are not this machine's.
"""
import base64
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
import urllib.request

torchupd = sys.argv[1]
INSIDE = "TORCHUP_TEST_NAMESPACE"
VALIDATE = bytes.fromhex("00cef7853c")
MIB = 1 << 20
TOKEN = "a token of twenty-five..."
ELSEWHERE = "10.9.0.7"  # routed to lo, but no interface has it: as a peer's it is another machine's


def text(value):
    return struct.pack("<Q", len(value)) + value


def keys(names):
    return struct.pack("<Q", len(names)) + b"".join(map(text, names))


def ask(peer, request, size):
    peer.sendall(request)
    reply = peer.recv(size, socket.MSG_WAITALL)
    assert len(reply) == size, (request[:16], reply)
    return reply


def frame(kind, fields):
    return struct.pack("<IB", len(fields) + 1, kind) + fields


def hello(run_id, token=False, nonce=bytes(16)):
    return b"torchup\n" + frame(1, struct.pack("<HHB", 1, 1, token) + nonce + struct.pack("<I", len(run_id)) + run_id)


class Daemon(unittest.TestCase):
    options = ()
    descriptors = None
    memory = None
    token = None

    def setUp(self):
        def limit():
            if self.descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self.descriptors, self.descriptors))
            if self.memory:
                resource.setrlimit(resource.RLIMIT_AS, (self.memory, self.memory))

        environment = {**os.environ, **({"TORCHUP_TOKEN": self.token} if self.token else {})}
        self.log = tempfile.TemporaryFile("w+")
        self.addCleanup(self.log.close)
        self.process = subprocess.Popen([torchupd, "--port", "0", "--bind", "0.0.0.0", *self.options], env=environment,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=limit)
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.end)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        self.peers = []
        self.honest = self.connect(VALIDATE)

    def end(self):
        for peer in self.peers:
            peer.close()
        self.assertIsNone(self.process.poll(), "torchupd has ended: " + self.said()[-3000:])
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(20), 0)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def assert_said(self, what):
        """A line is written by a thread of its own, soon after what it tells of."""
        self.until(lambda: what in self.said())

    def connect(self, first=b"", source=None):
        peer = socket.create_connection(("127.0.0.1" if source is None else source, self.port), 20,
                                        source_address=(source, 0) if source else None)
        self.peers.append(peer)
        if first:
            peer.sendall(first)
        return peer

    def page(self, path, source=None, headers=()):
        peer = self.connect(source=source)
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{''.join(headers)}\r\n".encode())
        answer = b""
        while piece := peer.recv(1 << 16):
            answer += piece
        return answer

    def status(self):
        return json.loads(self.page("/status").split(b"\r\n\r\n", 1)[1])

    def resident(self):
        if os.environ.get("TORCHUP_SANITIZE"):
            return 0  # a sanitizer's memory is not the program's
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()

    def until(self, condition, limit=30):
        end = time.monotonic() + limit
        while not condition():
            self.assertLess(time.monotonic(), end, "condition not met in time: " + self.said()[-2000:])
            time.sleep(0.02)

    def assert_closed(self, peer, limit=20):
        peer.settimeout(limit)
        try:
            while peer.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass

    def assert_served(self, source=None):
        peer = self.connect(VALIDATE, source)
        self.assertEqual(ask(peer, b"\x0d1234", 4), b"1234")
        peer.close()


class Readers(Daemon):
    """Peers that ask and never read."""

    def fill(self, count, size):
        names = [b"/%06d" % i for i in range(count)]
        for i in range(0, count, 4096):
            part = names[i:i + 4096]
            self.honest.sendall(b"\x0b" + struct.pack("<Q", len(part)) + b"".join(text(name) + text(b"x" * size) for name in part))
        ask(self.honest, b"\x0d1234", 4)
        return names

    def deaf(self, request):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(20)
        peer.connect(("127.0.0.1", self.port))
        self.peers.append(peer)
        peer.sendall(VALIDATE + request)

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
            ask(self.honest, b"\x0d1234", 4)
            self.deaf(b"\x03" + text(b"/v"))
        self.until(lambda: "unread_bytes_max" in self.said())
        self.until(lambda: self.resident() < 300 * MIB)
        ask(self.honest, b"\x0d1234", 4)

    def test_one_value_for_all_costs_its_own_size(self):
        self.honest.sendall(b"\x01" + text(b"/v") + text(b"x" * 8 * MIB))
        ask(self.honest, b"\x0d1234", 4)
        before = self.resident()
        peers = []
        for _ in range(64):
            self.deaf((b"\x03" + text(b"/v")) * 3)
            peers.append(self.peers[-1])
        self.until(lambda: self.status()["requests"] >= 64 * 1)
        self.assertLess(self.resident(), before + 16 * MIB)
        for peer in peers:  # and none of them was closed
            got = 0
            while got < 3 * (8 * MIB + 8):
                piece = peer.recv(1 << 20)
                self.assertTrue(piece)
                got += len(piece)

    def test_a_list_of_all_keys_that_is_too_long(self):
        for i in range(0, 8300, 100):
            names = [b"/%07d" % n + b"k" * 8184 for n in range(i, i + 100)]
            self.honest.sendall(b"\x0b" + struct.pack("<Q", 100) + b"".join(text(name) + text(b"") for name in names))
        ask(self.honest, b"\x0d1234", 4)
        before = self.resident()
        for _ in range(3):
            self.assert_closed(self.connect(VALIDATE + b"\x11"))
        self.assert_said("listed_bytes_max")
        self.assertLess(self.resident(), before + 8 * MIB)


class Amplified(Daemon):
    options = ("--max-reply-bytes", "64MB")

    def test_one_key_named_a_hundred_thousand_times(self):
        self.honest.sendall(b"\x01" + text(b"/k") + text(b"x" * 1023))
        ask(self.honest, b"\x0d1234", 4)
        peer = self.connect(VALIDATE + b"\x0a" + keys([b"/k"] * 131_072))
        self.assert_closed(peer)
        self.assert_said("reply_bytes_max")
        self.assertLess(self.resident(), 300 * MIB)
        self.assert_served()


class Waits(Daemon):
    def test_waits_for_long_names(self):
        request = b"\x06" + keys([b"/%06d" % i + b"k" * 8000 for i in range(10_000)])  # 80 MB each
        before = self.resident()
        for _ in range(8):
            self.connect(VALIDATE + request)
        self.until(lambda: "waits_bytes_max" in self.said())
        self.assertLess(self.resident(), before + 500 * MIB)
        self.assert_served()


class Senders(Daemon):
    options = ("--max-arriving-bytes", "300KB")

    def test_who_holds_the_memory_goes_and_not_who_comes(self):
        hog = self.connect(VALIDATE + b"\x01" + text(b"/k") + struct.pack("<Q", 250_000) + b"x" * 100_000)
        self.until(lambda: self.status()["arriving_bytes"] > 200_000)
        time.sleep(0.2)  # its age is what tells it from the others
        newcomer = self.connect(VALIDATE + b"\x01" + text(b"/n") + struct.pack("<Q", 120_000) + b"y" * 100_000)
        self.assert_closed(hog)
        self.assertEqual(ask(newcomer, b"y" * 20_000 + b"\x0d1234", 4), b"1234")
        self.assert_said("arriving_bytes_max")


class Silent(Daemon):
    options = ("--max-connections", "40")

    def test_newcomers_that_say_nothing_do_not_keep_others_out(self):
        silent = [self.connect() for _ in range(200)]
        for _ in range(20):
            self.assert_served()
        self.assert_closed(silent[0], 5)
        self.assert_said("unproven_max")

    def test_agents_that_say_half_of_hello_do_not_keep_others_out(self):
        halves = [self.connect(hello(b"job")[:20]) for _ in range(200)]
        agent = self.connect(hello(b"job"))
        self.assertEqual(agent.recv(5, socket.MSG_WAITALL)[4], 66)
        self.assertEqual(halves[-1].send(b"x"), 1)

    def test_a_full_house_lets_agents_and_pages_in(self):
        inside = [self.connect(VALIDATE + b"\x0d1234") for _ in range(39)]
        for peer in inside:
            peer.recv(4, socket.MSG_WAITALL)
        self.assert_closed(self.connect(VALIDATE))
        self.assert_said("connections_max: 40")
        agent = self.connect(hello(b"job"))
        self.assertEqual(agent.recv(5, socket.MSG_WAITALL)[4], 66)
        self.assertEqual(self.status()["connections"], 40)  # agents and pages have left the store's table


class FewDescriptors(Daemon):
    descriptors = 100

    def test_strangers_give_way_to_agents(self):
        for _ in range(400):
            self.connect()
        agent = self.connect(hello(b"job"))
        self.assertEqual(agent.recv(5, socket.MSG_WAITALL)[4], 66)
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")


class ManyAgents(Daemon):
    descriptors = 256

    def test_agents_that_do_not_join_leave_descriptors_to_others(self):
        for _ in range(160):
            ask(self.connect(VALIDATE), b"\x0d1234", 4)
        for i in range(100):
            try:
                self.connect(hello(b"run %d" % i)).recv(5)
            except ConnectionError:
                pass
        for i in range(5):
            self.assertEqual(self.connect(hello(b"good %d" % i)).recv(5, socket.MSG_WAITALL)[4], 66)
        self.assertTrue(self.page("/healthz").startswith(b"HTTP/1.1 200 "))
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")


class Busy(Daemon):
    """Small requests that cost much must cost nobody else anything."""

    def assert_quick(self, limit=5):
        begin = time.monotonic()
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.assertTrue(self.page("/healthz").startswith(b"HTTP/1.1 200 "))
        self.assertLess(time.monotonic() - begin, limit)

    def test_a_state_that_is_none_is_read_once(self):
        state = base64.b64encode(b"\x80\x04" + b"N" * 999_990 + b".")
        key = text(b"/torch.rendezvous.X")
        attacker = self.connect(VALIDATE)
        attacker.sendall(b"\x02" + key + text(b"") + text(state))
        self.until(lambda: ask(self.honest, b"\x05" + keys([b"/torch.rendezvous.X"]), 1) == b"\x00")
        attacker.sendall((b"\x02" + key + text(b"x") + text(b"y")) * 200)
        self.assert_quick()

    def test_a_write_does_not_look_at_all_who_wait(self):
        request = b"\x06" + keys([b"/a"] * 131_071 + [b"/absent"])
        for _ in range(15):
            self.connect(VALIDATE + request)
        self.until(lambda: self.status()["waiting"] == 15)
        self.connect(VALIDATE + (b"\x01" + text(b"/a") + text(b"")) * 3000)
        self.assert_quick()


class Jobs(Daemon):
    def test_hello_and_goodbye_leaves_no_job(self):
        for i in range(1100):
            peer = self.connect(hello(b"run %d" % i))
            self.assertEqual(peer.recv(5, socket.MSG_WAITALL)[4], 66)
            peer.close()
        self.until(lambda: not self.status()["jobs"])

    def test_so_many_at_once_and_one_more(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        peers = [self.connect(hello(b"run %d" % i)) for i in range(1024)]
        for peer in peers:
            self.assertEqual(peer.recv(5, socket.MSG_WAITALL)[4], 66)
        self.assertEqual(self.connect(hello(b"one more")).recv(5, socket.MSG_WAITALL)[4], 66)
        self.assert_closed(peers[0])  # nobody has joined its job, and it is the oldest
        self.assert_said("jobs_max")
        jobs = self.status()["jobs"]
        self.assertEqual(len(jobs), 1024)
        self.assertNotIn("run 0", jobs)
        self.assertLessEqual({"run 1", "one more"}, set(jobs))


class LittleMemory(Daemon):
    memory = 400 * MIB

    @unittest.skipIf(os.environ.get("TORCHUP_SANITIZE"), "a sanitizer takes more")
    def setUp(self):
        super().setUp()

    def test_a_request_that_finds_no_memory_closes_its_connection(self):
        closed = False
        for i in range(100):
            peer = self.connect(VALIDATE)
            try:
                ask(peer, b"\x01" + text(b"/%d" % i) + text(b"x" * 8 * MIB) + b"\x0d1234", 4)
            except (AssertionError, ConnectionError):
                closed = True
                break
        self.assertTrue(closed)
        self.assert_said("memory")
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")
        self.assertEqual(ask(self.honest, b"\x08" + text(b"/0"), 8), struct.pack("<q", 1))
        self.assert_served()


class Tokens(Daemon):
    token = TOKEN

    def test_torchruns_keys_are_refused(self):
        for request in (b"\x02" + text(b"/torch.rendezvous.job") + text(b"") + text(b"state"),
                        b"\x01" + text(b"/torch.rendezvous.job") + text(b"state")):
            self.assert_closed(self.connect(VALIDATE + request))
        self.assert_said("cannot prove the token")
        self.assertEqual(ask(self.honest, b"\x05" + keys([b"/torch.rendezvous.job"]), 1), b"\x01")

    @unittest.skipUnless(os.environ.get(INSIDE), "needs unshare -rn")
    def test_a_store_client_from_elsewhere_is_refused_and_told_how_to_come_in(self):
        self.assert_closed(self.connect(VALIDATE + b"\x0d1234", ELSEWHERE))
        self.assert_said(f"--allow {ELSEWHERE}")
        self.assert_served()

    @unittest.skipUnless(os.environ.get(INSIDE), "needs unshare -rn")
    def test_pages_for_others_want_the_token(self):
        for wrong in ((), ("Authorization: Bearer wrong\r\n",), (f"Authorization: Bearer {TOKEN[:-1]}\r\n",),
                      (f"Authorization: Bearer {TOKEN}x\r\n",), (f"Authorization: {TOKEN}\r\n",), ("Authorization: Bearer \r\n",)):
            self.assertTrue(self.page("/status", ELSEWHERE, wrong).startswith(b"HTTP/1.1 403 "), wrong)
        right = (f"Authorization: Bearer {TOKEN}\r\n",)
        self.assertTrue(self.page("/status", ELSEWHERE, right).startswith(b"HTTP/1.1 200 "))
        self.assertTrue(self.page("/status").startswith(b"HTTP/1.1 200 "))

    def test_a_wrong_proof_is_answered_late_and_logged(self):
        agent = self.connect(hello(b"job", token=True))
        challenge = agent.recv(5 + 2 + 16 + 32, socket.MSG_WAITALL)
        self.assertEqual(challenge[4], 65)
        begin = time.monotonic()
        agent.sendall(frame(2, bytes(32)))
        answer = agent.recv(4096)
        self.assertEqual(answer[4], 68)
        self.assertGreater(time.monotonic() - begin, 0.9)
        self.assert_said("agent at 127.0.0.1 refused")

    def test_the_right_proof_is_welcome(self):
        agent = self.connect(hello(b"job", token=True))
        challenge = agent.recv(5 + 2 + 16 + 32, socket.MSG_WAITALL)
        version, nonce = challenge[5:7], challenge[7:23]
        proved = b"torchup job token\n" + b"\x01" + version + bytes(16) + nonce + struct.pack("<I", 3) + b"job"
        agent.sendall(frame(2, hmac.new(TOKEN.encode(), proved, hashlib.sha256).digest()))
        self.assertEqual(agent.recv(5, socket.MSG_WAITALL)[4], 66)

    def test_an_agent_that_goes_at_the_challenge_is_logged(self):
        agent = self.connect(hello(b"job", token=True))
        agent.recv(5 + 2 + 16 + 32, socket.MSG_WAITALL)
        agent.close()
        self.until(lambda: "went when it was asked to prove the token" in self.said())


class Allowed(Daemon):
    token = TOKEN
    options = ("--allow", "10.9.0.0/24,fd00::1")

    @unittest.skipUnless(os.environ.get(INSIDE), "needs unshare -rn")
    def test_who_is_listed_comes_in(self):
        self.assert_served(ELSEWHERE)
        self.assert_closed(self.connect(VALIDATE, "10.8.0.7"))


class AllowedWithoutToken(Daemon):
    options = ("--allow", "10.9.0.0/24")

    @unittest.skipUnless(os.environ.get(INSIDE), "needs unshare -rn")
    def test_agents_too_must_be_listed(self):
        self.assertEqual(self.connect(hello(b"job"), ELSEWHERE).recv(5, socket.MSG_WAITALL)[4], 66)
        self.assertEqual(self.connect(hello(b"job")).recv(5, socket.MSG_WAITALL)[4], 66)
        refused = self.connect(hello(b"job"), "10.8.0.7").recv(4096)
        self.assertEqual(refused[4], 68)
        self.assertIn(b"--allow 10.8.0.7", refused)
        self.assert_closed(self.connect(VALIDATE, "10.8.0.7"))


class Pages(Daemon):
    @unittest.skipUnless(os.environ.get(INSIDE), "needs unshare -rn")
    def test_without_a_token_others_get_none(self):
        answer = self.page("/status", ELSEWHERE, ("Authorization: Bearer \r\n",))
        self.assertTrue(answer.startswith(b"HTTP/1.1 403 "), answer)

    def test_more_than_sixty_four_at_once(self):
        held = [self.connect(b"GET /healthz HTTP/1.1\r\n") for _ in range(64)]
        self.until(lambda: self.connect(b"GET /healthz HTTP/1.1\r\n\r\n").recv(4096).startswith(b"HTTP/1.1 503 "), 4)
        for _ in range(20):  # the answer comes whole: a reset would end page()
            self.assertTrue(self.page("/healthz").startswith(b"HTTP/1.1 503 "))
        held[0].close()
        self.until(lambda: self.page("/healthz").startswith(b"HTTP/1.1 200 "))


class StoreOnly(Daemon):
    options = ("--store-only",)

    def status(self):
        self.fail("there are no pages")

    def test_torchruns_keys_stay_as_they_were_written(self):
        key = b"/torch.rendezvous.job"
        request = b"\x02" + text(key) + text(b"") + text(b"not even a pickle")
        self.assertEqual(ask(self.honest, request, 8 + 17), text(b"not even a pickle"))
        for _ in range(5):
            time.sleep(0.1)  # a turn of the host, were there one
            self.assertEqual(ask(self.honest, b"\x03" + text(key), 8 + 17), text(b"not even a pickle"))
        self.assertEqual(ask(self.honest, b"\x07", 8), struct.pack("<q", 1))

    def test_agents_and_pages_are_strangers(self):
        self.assert_closed(self.connect(hello(b"job")))
        self.assert_closed(self.connect(b"GET / HTTP/1.1\r\n\r\n"))


class BadTokens(unittest.TestCase):
    def start(self, token, *options):
        environment = {**os.environ, "TORCHUP_TOKEN": token} if token is not None else dict(os.environ)
        return subprocess.run([torchupd, "--port", "0", *options], env=environment, capture_output=True, text=True, timeout=20)

    def test_one_that_can_be_guessed(self):
        for token in ("x", "secret", "x" * 15, "x" * 64, "abababababababababab"):
            ended = self.start(token)
            self.assertEqual(ended.returncode, 2, token)
            self.assertIn("can be guessed", ended.stderr)
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(token + "\n")
                file.flush()
                ended = self.start(None, "--token-file", file.name)
            self.assertEqual(ended.returncode, 2, token)
            self.assertNotIn(token + " ", ended.stderr)

    def test_networks_that_are_none(self):
        ended = self.start(None, "--allow", "10.0.0.0/8,node7")
        self.assertEqual(ended.returncode, 2)
        self.assertIn('"node7" is no address', ended.stderr)


def enter_namespace():
    """Starts this script again in a network namespace of its own."""
    addresses = f"ip link set lo up && ip route add local {ELSEWHERE} dev lo && ip route add local 10.8.0.7 dev lo"
    enter = ["unshare", "--map-root-user", "--net", "sh", "-c", f'{addresses} && exec "$@"', "sh"]
    if os.environ.get(INSIDE) or not shutil.which("unshare") or subprocess.run([*enter, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return
    os.environ[INSIDE] = "1"
    os.execvp(enter[0], [*enter, sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    enter_namespace()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
