#!/usr/bin/env python3
"""Whom torchupd lets in, and who gives way to whom: descriptors, jobs, tokens, pages.

usage: tests/support/run_case.py strangers_test.py CASE TORCHUPD

Runs in a network namespace of its own where that is allowed: there, peers come from addresses that are not this machine's.
"""
import base64
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from torchupd import ELSEWHERE, FARTHER, OURS, PING, VALIDATE, DaemonCase, ask, enter_network as enter_namespace, keys, needs_namespace, receive, text

torchupd = DaemonCase.program = sys.argv[1]
TOKEN = "a token of twenty-five..."


def frame(kind, fields):
    return struct.pack("<IB", len(fields) + 1, kind) + fields


def hello(run_id, token=False, nonce=bytes(16)):
    return b"torchup\n" + frame(1, struct.pack("<HHB", 1, 1, token) + nonce + struct.pack("<I", len(run_id)) + run_id)


class Silent(DaemonCase, unittest.TestCase):
    options = ("--max-connections", "40")

    def test_newcomers_that_say_nothing_do_not_keep_others_out(self):
        silent = [self.connect() for _ in range(200)]
        for _ in range(20):
            self.assert_served()
        self.assert_closed(silent[0], 5)
        self.assert_said("unproven_max")

    def test_a_full_house_lets_agents_and_pages_in(self):
        inside = [self.connect(VALIDATE + b"\x0d1234") for _ in range(39)]
        for peer in inside:
            receive(peer, 4)
        self.assert_closed(self.connect(VALIDATE))
        self.assert_said("connections_max: 40")
        agent = self.connect(hello(b"job"))
        self.assertEqual(receive(agent, 5)[4], 66)
        self.until(lambda: self.status()["connections"] == 40)  # agents and pages have left the store's table

    def test_a_full_house_is_no_fuller_when_many_begin_at_once(self):
        inside = [self.connect(VALIDATE + b"\x0d1234") for _ in range(38)]
        for peer in inside:
            receive(peer, 4)
        begun = [self.connect(VALIDATE[:1]) for _ in range(9)]
        self.until(lambda: self.status()["connections"] == 39 + len(begun))
        served = 0
        for peer in begun:
            try:
                peer.sendall(VALIDATE[1:] + b"\x0d1234")
                served += receive(peer, 4) == b"1234"
            except OSError:
                pass
        self.assertEqual(served, 1)


class Halves(DaemonCase, unittest.TestCase):
    descriptors = 400  # of which agents that have not proved themselves get a quarter at most

    def test_agents_that_say_half_of_hello_do_not_keep_others_out(self):
        halves = [self.connect(hello(b"job")[:20]) for _ in range(150)]
        self.assert_closed(halves[0])
        self.assert_said("unproven_max")
        agent = self.connect(hello(b"job"))
        self.assertEqual(receive(agent, 5)[4], 66)
        halves[-1].setblocking(False)
        with self.assertRaises(BlockingIOError):
            halves[-1].recv(1)


class Storm(DaemonCase, unittest.TestCase):
    descriptors = 400

    def test_who_connects_beside_many_and_speaks_later_is_no_stranger(self):
        peers = [self.connect() for _ in range(80)]  # a quarter of the descriptors is theirs
        self.until(lambda: self.status()["connections"] >= len(peers))
        for number, peer in enumerate(peers):
            said = b"%04d" % number
            peer.sendall(VALIDATE + b"\x0d" + said)
            self.assertEqual(receive(peer, 4), said)


class FewDescriptors(DaemonCase, unittest.TestCase):
    descriptors = 100

    def test_strangers_give_way_to_agents(self):
        for _ in range(400):
            self.connect()
        agent = self.connect(hello(b"job"))
        self.assertEqual(receive(agent, 5)[4], 66)
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")


class Crowds(DaemonCase, unittest.TestCase):
    descriptors = 256

    @needs_namespace
    def test_who_comes_by_thousands_pushes_out_its_own(self):
        first = self.connect()
        crowd = []
        for _ in range(500):
            crowd.append(self.connect(source=ELSEWHERE))
        self.assert_closed(crowd[0], 5)
        first.sendall(VALIDATE + PING)
        self.assertEqual(receive(first, 4), PING[1:])
        self.assert_said("unproven_max")

    def test_agents_get_in_beside_thousands_who_are_silent_and_thousands_who_come_and_go(self):
        """100 of 100, beside 8,000 connections that stay for as long as they may and 20,000 that do not. Whom a busy machine
        keeps from speaking for as long as 64 others take to come may be closed, and comes again at once, as agents do."""
        crowd = subprocess.Popen([sys.executable, "-c", CROWD, str(self.port)], stdout=subprocess.PIPE)
        self.addCleanup(crowd.wait)
        self.addCleanup(crowd.stdout.close)
        self.addCleanup(crowd.kill)
        crowd.stdout.readline()  # the silent ones are there, and the others come
        agents, slowest, again = [], 0, 0
        for number in range(100):
            begin = time.monotonic()
            while True:
                agent = self.connect(hello(b"job"))
                answer = self.answer(agent)
                if answer: break
                again += 1
                self.assertLess(again, 5, number)
            self.assertEqual(answer[4], 66, number)
            agents.append(agent)
            slowest = max(slowest, time.monotonic() - begin)
        self.assertIsNone(crowd.poll(), "the crowd was gone before the last agent came")
        print(f"the slowest of 100 agents was in after {1000 * slowest:.1f} ms; {again} came twice", file=sys.stderr)
        self.assertEqual(ask(self.honest, b"\x0d5678", 4), b"5678")

    @staticmethod
    def answer(agent):
        try:
            return receive(agent, 5)
        except ConnectionError:
            return b""


# Connects silent ones until 8,000 have come, and then for ever others that come and go, 20,000 a minute at least.
CROWD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(9000, most), most))
at = ("127.0.0.1", int(sys.argv[1]))
silent = []
for _ in range(8000):
    silent.append(socket.create_connection(at))
    if len(silent) > min(8000, most - 100): silent.pop(0)
print("ready", flush=True)
while True:
    try:
        socket.create_connection(at, 5).close()
    except OSError:
        pass
"""


class LastDescriptor(DaemonCase):
    """Each newcomer needs the place of somebody else."""

    def spare_none(self):
        numbers = [int(name) for name in os.listdir(f"/proc/{self.process.pid}/fd")]
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (max(numbers) + 1,) * 2)
        return max(numbers) + 1 - len(numbers)

    def closed(self, peer):
        try:
            peer.setblocking(False)
            return peer.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


class LastDescriptorWithoutToken(LastDescriptor, unittest.TestCase):
    def test_who_has_said_nothing_for_the_longest_time_goes_whatever_it_speaks(self):
        waiting = self.connect(VALIDATE + b"\x06" + keys([b"/later"]))
        agent = self.connect(hello(b"job"))
        self.assertEqual(receive(agent, 5)[4], 66)
        halves = [self.connect(hello(b"job")[:12]) for _ in range(4)]
        self.until(lambda: self.status()["connections"] == 2)  # the agents have left the store's table
        quiet = [self.connect() for _ in range(4)]
        self.until(lambda: self.status()["connections"] == 6)
        silent = halves + quiet  # the longest first
        holes = self.spare_none()
        for _ in range(holes + len(silent)):
            self.assertEqual(ask(self.connect(VALIDATE), b"\x0d5678", 4), b"5678")
            gone = [self.closed(peer) for peer in silent]
            self.assertEqual(gone, sorted(gone, reverse=True))
            if gone[5]:
                break
        self.assertEqual((gone[5], gone[7]), (True, False))
        self.assertFalse(self.closed(agent))
        self.honest.sendall(b"\x01" + text(b"/later") + text(b""))
        waiting.setblocking(True)
        self.assertEqual(waiting.recv(1), b"\x00")


class LastDescriptorWithToken(LastDescriptor, unittest.TestCase):
    environment = {"TORCHUP_TOKEN": TOKEN}

    def test_who_has_proven_the_token_stays(self):
        agent = self.encrypted(TOKEN)
        agent.sendall(hello(b"job", token=True))
        self.assertEqual(receive(agent, 5)[4], 66)
        for _ in range(self.spare_none()):
            self.connect(VALIDATE)
        self.assert_closed(self.connect(VALIDATE))
        self.assertIsNone(agent.process.poll())


class ManyAgents(DaemonCase, unittest.TestCase):
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


class Jobs(DaemonCase, unittest.TestCase):
    def test_hello_and_goodbye_leaves_no_job(self):
        for i in range(1100):
            peer = self.connect(hello(b"run %d" % i))
            self.assertEqual(receive(peer, 5)[4], 66)
            peer.close()
        self.until(lambda: not self.status()["jobs"])

    def test_so_many_at_once_and_one_more(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        peers = [self.connect(hello(b"run %d" % i)) for i in range(1024)]
        for peer in peers:
            self.assertEqual(receive(peer, 5)[4], 66)
        self.assertEqual(receive(self.connect(hello(b"one more")), 5)[4], 66)
        self.assert_closed(peers[0])  # nobody has joined its job, and it is the oldest
        self.assert_said("jobs_max")
        jobs = self.status()["jobs"]
        self.assertEqual(len(jobs), 1024)
        self.assertNotIn("run 0", jobs)
        self.assertLessEqual({"run 1", "one more"}, set(jobs))


class Tokens(DaemonCase, unittest.TestCase):
    environment = {"TORCHUP_TOKEN": TOKEN}

    def test_torchruns_keys_are_refused(self):
        for request in (b"\x02" + text(b"/torch.rendezvous.job") + text(b"") + text(b"state"),
                        b"\x01" + text(b"/torch.rendezvous.job") + text(b"state")):
            self.assert_closed(self.connect(VALIDATE + request))
        self.assert_said("cannot prove the token")
        self.assertEqual(ask(self.honest, b"\x05" + keys([b"/torch.rendezvous.job"]), 1), b"\x01")

    @needs_namespace
    def test_a_store_client_from_elsewhere_is_refused_and_told_how_to_come_in(self):
        self.assert_closed(self.connect(VALIDATE + b"\x0d1234", ELSEWHERE))
        self.assert_said(f"--allow {ELSEWHERE}")
        self.assert_served()

    @needs_namespace
    def test_pages_for_others_want_the_token(self):
        for wrong in ((), ("Authorization: Bearer wrong\r\n",), (f"Authorization: Bearer {TOKEN[:-1]}\r\n",),
                      (f"Authorization: Bearer {TOKEN}x\r\n",), (f"Authorization: {TOKEN}\r\n",), ("Authorization: Bearer \r\n",)):
            self.assertTrue(self.page("/status", ELSEWHERE, wrong).startswith(b"HTTP/1.1 401 "), wrong)
        right = (f"Authorization: Bearer {TOKEN}\r\n",)
        self.assertTrue(self.page("/status", ELSEWHERE, right).startswith(b"HTTP/1.1 200 "))
        self.assertTrue(self.page("/status").startswith(b"HTTP/1.1 200 "))

    def test_who_has_another_token_is_told_late_and_logged(self):
        begin = time.monotonic()
        agent = self.encrypted("another token of many letters")
        self.assertRegex(agent.said(), "alert (illegal parameter|decrypt error)")
        self.assertGreater(time.monotonic() - begin, 0.4)
        self.assert_said("agent at 127.0.0.1 refused: the agent's token is not this coordinator's")

    def test_who_has_none_is_told_and_logged(self):
        self.assertIn("alert handshake failure", self.encrypted(None).said())
        self.assert_said("it did not offer this coordinator's token")
        for says_so in False, True:
            refused = self.connect(hello(b"job", token=says_so)).recv(4096)
            self.assertEqual(refused[4], 68)

    def test_the_right_token_is_welcome(self):
        agent = self.encrypted(TOKEN)
        agent.sendall(hello(b"job", token=True))
        self.assertEqual(receive(agent, 5)[4], 66)

    def test_no_store_is_served_within_tls(self):
        agent = self.encrypted(TOKEN)
        agent.sendall(VALIDATE + PING)
        self.assertEqual(agent.recv(4), b"")
        self.assert_said("it speaks another language")

    def test_handshakes_that_do_not_end_keep_nobody_out(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        begun = [self.connect(bytes.fromhex("1603010200010001fc0303")) for _ in range(1100)]
        agent = self.encrypted(TOKEN)
        agent.sendall(hello(b"job", token=True))
        self.assertEqual(receive(agent, 5)[4], 66)
        self.assert_closed(begun[0])
        self.assert_said("unproven_max")


class NoToken(DaemonCase, unittest.TestCase):
    def test_a_client_with_a_token_is_told_that_there_is_none(self):
        self.assertIn("alert handshake failure", self.encrypted(TOKEN).said())
        self.assert_said("this coordinator has neither token nor certificate")


class Certificate(DaemonCase, unittest.TestCase):
    environment = {"TORCHUP_TOKEN": TOKEN}

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cert, self.key = (os.path.join(self.folder.name, name) for name in ("cert.pem", "key.pem"))
        self.certify("first")
        self.options = ("--tls-cert", self.cert, "--tls-key", self.key)
        super().setUp()

    def certify(self, name):
        made = [path + ".new" for path in (self.cert, self.key)]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", made[0], "-keyout", made[1]],
                       check=True, capture_output=True)
        for path in self.cert, self.key:
            os.replace(path + ".new", path)

    def curl(self, path, *options, source=None, scheme="https", trusted=True):
        where = ["--interface", source] if source else []
        done = subprocess.run(["curl", "--silent", "--max-time", "20", *(["--cacert", self.cert] if trusted else []), *where,
                               *options, "--write-out", "\n%{http_code}", f"{scheme}://127.0.0.1:{self.port}{path}"],
                              capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_curl_is_answered_on_the_same_port(self):
        code, answer = self.curl("/status")
        self.assertEqual(code, 0)
        self.assertTrue(answer.endswith("\n200"), answer)
        self.assertIn('"jobs"', answer)
        self.assertNotEqual(self.curl("/status", trusted=False)[0], 0)

    def test_agents_prove_the_token_beside_it_and_no_certificate_will_do(self):
        agent = self.encrypted(TOKEN)
        agent.sendall(hello(b"job", token=True))
        self.assertEqual(receive(agent, 5)[4], 66)
        for says_so in False, True:
            stranger = self.encrypted(None)
            stranger.sendall(hello(b"job", token=says_so))
            self.assertEqual(receive(stranger, 5)[4], 68)

    def test_a_large_answer_comes_whole(self):
        for _ in range(5):
            code, answer = self.curl("/")
            self.assertTrue(answer.endswith("\n200"), answer[-200:])
            self.assertIn("</html>", answer)

    @needs_namespace
    def test_others_must_come_by_https(self):
        bearer = ("--header", f"Authorization: Bearer {TOKEN}")
        code, answer = self.curl("/status", *bearer, source=ELSEWHERE, scheme="http")
        self.assertTrue(answer.endswith("\n403"), answer)
        self.assertIn("https", answer)
        code, answer = self.curl("/status", *bearer, source=ELSEWHERE)
        self.assertTrue(answer.endswith("\n200"), answer)
        code, answer = self.curl("/status", source=ELSEWHERE)
        self.assertTrue(answer.endswith("\n401"), answer)

    def test_a_new_pair_is_read_and_a_bad_one_is_not(self):
        self.certify("second")
        self.until(lambda: self.curl("/healthz")[0] == 0)
        self.assert_said("was read again")
        with open(self.key, "w") as file:
            file.write("no key")
        self.until(lambda: self.curl("/healthz")[0] == 0 and "the old one stays" in self.said())


class BadCertificates(unittest.TestCase):
    def start(self, *options):
        return subprocess.run([torchupd, "--port", "0", *options], capture_output=True, text=True, timeout=20)

    def test_what_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            cert = os.path.join(folder, "cert.pem")
            for options in (("--tls-cert", cert), ("--tls-key", cert), ("--tls-cert", cert, "--tls-key", cert)):
                ended = self.start(*options)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertNotIn("ready", ended.stdout)
            self.assertIn(cert, ended.stderr)


class Allowed(DaemonCase, unittest.TestCase):
    environment = {"TORCHUP_TOKEN": TOKEN}
    options = ("--allow", "10.9.0.0/24,fd00::1")

    @needs_namespace
    def test_who_is_listed_comes_in(self):
        self.assert_served(ELSEWHERE)
        self.assert_closed(self.connect(VALIDATE, FARTHER))


class AllowedWithoutToken(DaemonCase, unittest.TestCase):
    options = ("--allow", "10.9.0.0/24")

    @needs_namespace
    def test_agents_too_must_be_listed(self):
        self.assertEqual(receive(self.connect(hello(b"job"), ELSEWHERE), 5)[4], 66)
        self.assertEqual(receive(self.connect(hello(b"job")), 5)[4], 66)
        refused = self.connect(hello(b"job"), FARTHER).recv(4096)
        self.assertEqual(refused[4], 68)
        self.assertIn(b"--allow 10.8.0.7", refused)
        self.assert_closed(self.connect(VALIDATE, FARTHER))


class Pages(DaemonCase, unittest.TestCase):
    @needs_namespace
    def test_without_a_token_others_get_none(self):
        answer = self.page("/status", ELSEWHERE)
        self.assertTrue(answer.startswith(b"HTTP/1.1 403 "), answer)
        answer = self.page("/status", ELSEWHERE, ("Authorization: Bearer \r\n",))
        self.assertTrue(answer.startswith(b"HTTP/1.1 401 "), answer)

    @needs_namespace
    def test_without_a_token_another_address_of_this_machine_is_no_loopback(self):
        """It may be whose a router has made it."""
        self.assertTrue(self.page("/status", OURS).startswith(b"HTTP/1.1 403 "))
        self.assertTrue(self.page("/healthz", OURS).startswith(b"HTTP/1.1 200 "))

    def test_who_says_nothing_makes_room(self):
        silent = [self.connect(b"GET /healthz HTTP/1.1\r\n") for _ in range(300)]
        for _ in range(20):
            self.assertTrue(self.page("/healthz").startswith(b"HTTP/1.1 200 "))
        self.assert_closed(silent[0])  # who was silent for longest

    @needs_namespace
    def test_others_who_say_nothing_keep_nobody_out(self):
        silent = [self.connect(b"GET /healthz HTTP/1.1\r\n", ELSEWHERE) for _ in range(300)]
        for _ in range(20):
            self.assertTrue(self.page("/status", ELSEWHERE).startswith(b"HTTP/1.1 403 "))
            self.assertTrue(self.page("/healthz").startswith(b"HTTP/1.1 200 "))
        self.assert_closed(silent[0])

    @needs_namespace
    def test_probes_of_others_are_answered_and_keep_nobody_out(self):
        for path in ("/healthz", "/readyz"):
            answer = self.page(path, ELSEWHERE)
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\nok\n"), answer)
        for _ in range(300):  # each of them stays connected
            peer = self.connect(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", ELSEWHERE)
            self.assertTrue(receive(peer, 15).startswith(b"HTTP/1.1 200 "))
        self.assertTrue(self.page("/status", ELSEWHERE).startswith(b"HTTP/1.1 403 "))


def torchruns_state_when_its_writer_has_gone(case):
    """What an agent of torchrun's has written of its nodes, and what is left of it when its connection has ended."""
    key = b"/torch.rendezvous.job"
    with open(os.path.join(os.path.dirname(__file__), "..", "fuzz", "corpus", "torchrun_state", "three_nodes"), "rb") as state:
        written = text(base64.b64encode(state.read()))
    agent = case.connect(VALIDATE)
    case.assertEqual(ask(agent, b"\x02" + text(key) + text(b"") + written, len(written)), written)
    agent.shutdown(socket.SHUT_WR)
    case.assert_closed(agent)  # torchupd knows of it
    case.honest.sendall(b"\x03" + text(key))
    length = receive(case.honest, 8)
    return written, length + receive(case.honest, struct.unpack("<Q", length)[0])


class Hosted(DaemonCase, unittest.TestCase):
    def test_torchruns_agents_are_looked_after(self):
        written, left = torchruns_state_when_its_writer_has_gone(self)
        self.assertNotEqual(left, written)  # it has been taken out


class StoreOnly(DaemonCase, unittest.TestCase):
    options = ("--store-only",)

    def status(self):
        self.fail("there are no pages")

    def test_torchruns_keys_stay_as_they_were_written(self):
        written, left = torchruns_state_when_its_writer_has_gone(self)
        self.assertEqual(left, written)
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
