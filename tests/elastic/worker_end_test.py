"""The worker's end of channel and page, and what ends gloo's collectives: each in forked processes of its own.

usage: worker_end_test.py [unittest options]
"""

import contextlib
import fcntl
import io
import os
import select
import socket
import struct
import threading
import time
import unittest
from pathlib import Path

import elastic_job  # noqa: F401; finds the package, or skips

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import fake_agent
from torchup import _channel, _gloo, _link, _page

CORPUS = Path(__file__).resolve().parent.parent / "fuzz" / "corpus" / "worker_channel"
LIMIT_S = 60


def in_a_fork(work):
    """What `work()` says, evaluated, from a forked process; an exception of its is this one's."""
    told, tell = os.pipe()
    pid = fake_agent.forked(lambda: os.write(tell, repr(work()).encode()) and 0)
    os.close(tell)
    try:
        if not select.select([told], [], [], LIMIT_S)[0]:
            raise AssertionError("blocked")
        said = os.read(told, 1 << 16)
    finally:
        os.close(told)
        try:
            os.killpg(pid, 9)
        except ProcessLookupError:
            pass
        os.waitpid(pid, 0)
    if not said:
        raise AssertionError("the forked process has failed; its traceback is above")
    return eval(said.decode(), {"inf": float("inf")})


def until(condition):
    end = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError("did not become true")
        time.sleep(0.002)
    return value


class Words(unittest.TestCase):
    def test_corpus_is_read_as_in_cpp(self):
        """tests/fuzz/worker_channel_fuzz.cpp reads the same files by rendezvous/base/worker_channel.cpp."""
        wanted = {"abort": ("abort", {"reason": "rank 1 was ended by signal 9"}), "cause": ("cause", {}),
                  "leave": ("leave", {}), "look": ("look", {"number": "7"}),
                  "looked": ("looked", {"number": "7", "length": "512"}),
                  "looked_too_long": ("looked", {"number": "7", "length": "262145"}),
                  "place": ("place", {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "::1", "EMPTY": ""}),
                  "raised": ("raised", {"text": "ValueError: a=b"}), "stay": ("stay", {}),
                  "parked": ("parked", {"step": "12"}), "too_large": ("parked", {"step": "99999999999999999999"}),
                  "address": None, "open_end": None, "twice": None}
        self.assertEqual(set(wanted), {path.name for path in CORPUS.iterdir()})
        for name, word in wanted.items():
            packet = (CORPUS / name).read_bytes()
            with self.subTest(name):
                if word is None:
                    self.assertRaises(_channel.BadPacket, _channel.parse_agent_word, packet)
                    continue
                self.assertEqual(_channel.parse_agent_word(packet), word)
                self.assertEqual(_channel.to_packet(*word), packet)
        self.assertEqual(_channel.parse_address((CORPUS / "address").read_text()), (4, 1099511627776, 4711))

    def test_what_is_none(self):
        for packet in (b"", b"\n", b"stay", b"stay\0\n", b"st ay\n", b"1\n", b"stay\nx\n", b"stay\n=x\n",
                       b"stay\n1=x\n", b"a" * (16 << 10) + b"\n", b"stay\n\n"):
            self.assertRaises(_channel.BadPacket, _channel.parse, packet)
        self.assertEqual(_channel.parse(b"a" * ((16 << 10) - 1) + b"\n"), ("a" * ((16 << 10) - 1), []))
        for address in ("", "1:2:3", "2:4:5:6", "1:4:5:0", "1:-4:5:6", "1:4:5:6:", "1:4:5:6 ", "1:4:5:\u0666",
                        "1:2147483648:5:6", "1:4:18446744073709551616:6", f"1:4:5:{1 << 63}", "1:4:5:" + "6" * 5000):
            self.assertIsNone(_channel.parse_address(address), address)

    def test_what_does_not_fit(self):
        self.assertRaises(_channel.BadPacket, _channel.to_packet, "place", {"A": "two\nlines"})
        self.assertRaises(_channel.BadPacket, _channel.to_packet, "place", {"A B": ""})
        self.assertRaises(_channel.BadPacket, _channel.to_packet, "place", {"A": "x" * (16 << 10)})
        text = _channel.fitted("a\nb\0c\ud800" + "é" * 9000)
        self.assertTrue(text.startswith("a b c"))
        verb, values = _channel.parse(_channel.to_packet("raised", {"text": text}))
        self.assertEqual(dict(values), {"text": text})
        self.assertLessEqual(len(text.encode("utf-8", "surrogateescape")), 8 << 10)


class Ends(unittest.TestCase):
    def channel(self, work, pid=None, version=1, inode=0, kind=socket.SOCK_SEQPACKET):
        """`work(channel)` in a fork that was given one, with the agent's end."""
        def begin():
            ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
            theirs.set_inheritable(True)
            where = os.fstat(theirs.fileno()).st_ino + inode
            os.environ[_channel.VARIABLE] = f"{version}:{theirs.detach()}:{where}:{pid or os.getpid()}"
            found = _channel.channel()
            assert _channel.VARIABLE not in os.environ
            return work(found, ours)
        return in_a_fork(begin)

    def test_handlers_and_unknown_verbs(self):
        def work(found, agent):
            heard = []
            ended = threading.Event()
            found.on("abort", lambda values: heard.append(("abort", values)))
            found.on_end(ended.set)
            found.start()
            found.on("mark", lambda values: heard.append(("mark", values)))  # later than the start
            for packet in (b"dance\nstep=1\n", b"abort\nwhere=here\nreason=a=b\n", b"mark\n", b"abort"):
                agent.send(packet)
            assert ended.wait(LIMIT_S)
            found.say("stay")  # nobody listens; nothing happens
            return heard, found.is_open, os.get_inheritable(agent.fileno())
        heard, is_open, _ = self.channel(work)
        self.assertEqual(heard, [("abort", {"where": "here", "reason": "a=b"}), ("mark", {})])
        self.assertFalse(is_open)

    def test_closed_to_programs_and_forks(self):
        def work(found, agent):
            inheritable = os.get_inheritable(found._end.fileno())
            pid = os.fork()
            if pid == 0:
                os._exit(0 if _channel.channel() is None else 1)
            of_fork = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            found.say("stay")
            return inheritable, of_fork, agent.recv(100)
        self.assertEqual(self.channel(work), (False, 0, b"stay\n"))

    def test_fork_does_not_hold_it_open(self):
        """The agent sees the end of a worker whose children live on."""
        def work(found, agent):
            ready, tell = os.pipe()
            if os.fork() == 0:
                os.write(tell, b"x")
                time.sleep(LIMIT_S)
                os._exit(0)
            os.read(ready, 1)
            found._end.close()
            return bool(select.select([agent], [], [], 5)[0]) and agent.recv(10)
        self.assertEqual(self.channel(work), b"")

    def test_what_is_not_meant_for_us(self):
        for how in ({"pid": 1}, {"version": 2}, {"inode": 1}, {"kind": socket.SOCK_STREAM}):
            with self.subTest(how):
                self.assertTrue(self.channel(lambda found, agent: found is None, **how))

    def test_page(self):
        def page(seals, shift=0):
            def work():
                memory = os.memfd_create("page", os.MFD_ALLOW_SEALING)
                os.ftruncate(memory, 4096)
                fcntl.fcntl(memory, 1033, seals)
                copy = os.dup(memory)
                status = os.fstat(memory)
                os.environ[_page.VARIABLE] = f"{memory}:{status.st_dev}:{status.st_ino + shift}:{os.getpid()}"
                page = _page.page()
                if page is None:
                    return None
                page.beat(7)
                page.beat(8)
                if (pid := os.fork()) == 0:
                    page.beat(9)  # of a State that knew it before
                    os._exit(0 if _page.page() is None else 1)
                of_fork = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                content = os.pread(copy, 4096, 0)
                magic, whose, newest = struct.unpack_from("<8sqQ", content)
                number, step, at, took, waited = struct.unpack_from("<Qqqqq", content, 64)
                return (magic, whose == os.getpid(), newest, number, step, 0 < took < at, waited, of_fork,
                        struct.unpack_from("<Qq", content, 128), struct.unpack_from("<q", content, 24))
            return in_a_fork(work)
        def page_at(address):
            def work():
                os.environ[_page.VARIABLE] = address
                return _page.page() is None and _page.VARIABLE not in os.environ
            return in_a_fork(work)
        for address in ("", "0:1:2", "0:1:2:x", "3:4:5:" + "6" * 5000, "9" * 20 + f":4:5:{os.getpid()}"):
            self.assertTrue(page_at(address), address)
        self.assertEqual(page(7), (b"TUPPAG1\0", True, 2, 2, 8, True, 0, 0, (1, 7), (0,)))
        self.assertIsNone(page(2))
        self.assertIsNone(page(7, shift=1))


class Sockets(unittest.TestCase):
    """Two ranks, of which the second one never takes part: the first is blocked until its sockets are shut."""

    def blocked(self, block, beside=lambda: lambda: None, unnamed=False):
        """(exception's name, seconds from the first shut to it, what `beside` found afterwards)."""
        host = fake_agent.StoreHost()

        def rank(number):
            own = beside() if number == 0 else None
            if unnamed:
                _gloo._LOOP = "no thread has it"
            sockets = _gloo.Sockets("localhost", host.port)
            store = dist.TCPStore("127.0.0.1", host.port, 2, False)
            dist.init_process_group("gloo", store=store, rank=number, world_size=2)
            sockets.group_made()
            if number == 1:
                time.sleep(LIMIT_S)
            later = beside()
            begun = threading.Event()
            shut_at = []

            def end_it():
                begun.wait()
                until(lambda: _is_blocked(main))
                shut_at.append(time.monotonic())
                until(lambda: done or (sockets.shut() and False) or done)

            main, done = threading.get_native_id(), []
            thread = threading.Thread(target=end_it)
            thread.start()
            try:
                begun.set()
                block(store)
            except Exception as error:
                name, after = type(error).__name__, time.monotonic() - shut_at[0]
            done.append(True)
            thread.join()
            found = own(), later()
            dist.destroy_process_group()
            return name, after, found

        other = fake_agent.forked(lambda: rank(1) and 0)
        try:
            return in_a_fork(lambda: rank(0))
        finally:
            os.kill(other, 9)
            os.waitpid(other, 0)
            host.close()

    def test_collective(self):
        for unnamed in (False, True):
            name, after, _ = self.blocked(lambda _: dist.all_reduce(torch.ones(1000)), unnamed=unnamed)
            self.assertEqual(name, "RuntimeError")
            self.assertLess(after, 5)

    def test_store_call(self):
        name, after, _ = self.blocked(lambda store: store.get("nobody sets it"))
        self.assertIn(name, ("DistNetworkError", "DistBackendError", "RuntimeError"))
        self.assertLess(after, 5)

    def test_nothing_else_is_touched(self):
        """Before the group and after it: the program's own epoll, connections, listener, a loader's processes."""
        for unnamed in (False, True):
            name, _, found = self.blocked(lambda _: dist.all_reduce(torch.ones(1000)), beside=bystanders,
                                          unnamed=unnamed)
            self.assertEqual((name, found), ("RuntimeError", (True, True)))


def open_link():
    """A link, and the agent's end of its channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _channel._channel = _channel.Channel(theirs)
    link = _link.Link()
    assert link.open()
    return link, ours


class Waiting(unittest.TestCase):
    """Who waits for a word of the agent's does so as long as there is one to say it."""

    def waits(self, how, packet):
        def work():
            link, ours = open_link()

            def agent():
                heard = ours.recv(100)
                if packet:
                    ours.send(packet)
                else:
                    ours.close()
                return heard

            threading.Thread(target=agent).start()
            try:
                return how(link)
            except ConnectionError as error:
                return str(error)
        return in_a_fork(work)

    def test_agent_that_ends_or_cannot_be_read(self):
        for packet in (None, b"no packet", b"abort\n" + b"a" * (1 << 15), b"place\nRANK=1\nRANK=2\n"):
            with self.subTest(packet and packet[:20]):
                self.assertIs(self.waits(lambda link: link.blame(ValueError("a fault")), packet), False)
                self.assertIn("while this worker waited", self.waits(lambda link: link.park(3), packet))

    def test_agent_that_answers(self):
        self.assertIs(self.waits(lambda link: link.blame(ValueError("a fault")), b"cause\n"), False)
        self.assertIs(self.waits(lambda link: link.blame(ValueError("a fault")), b"abort\n"), True)
        self.assertEqual(self.waits(lambda link: link.park(3) or os.environ["RANK"], b"place\nRANK=7\n"), "7")


class Aborting(unittest.TestCase):
    def test_goes_on_where_it_could_not(self):
        """No thread can be started any more, no descriptor is free at first: what blocks is ended when there is one."""
        class Failing:
            calls = 0

            def shut(self):
                self.calls += 1
                if self.calls < 3:
                    raise OSError(24, "Too many open files")

        def cannot_start(thread):
            raise RuntimeError("can't start new thread")

        def work():
            link, agent = open_link()
            threading.Thread.start = cannot_start
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                for _ in range(2):  # rounds
                    sockets = Failing()
                    link.begin(sockets)
                    agent.send(b"abort\nreason=over\n")
                    until(lambda: sockets.calls >= 3)
                    link.end()
                    agent.send(b"place\nRANK=1\n")
                    link.park(1)
            return said.getvalue().splitlines(), link.is_over(), link.is_open()
        said, *rest = in_a_fork(work)
        self.assertEqual([line.count("Too many open files") for line in said], [1, 1])
        self.assertEqual(rest, [False, True])


def bystanders():
    """A function that says whether what was made here still works."""
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    watch = select.epoll()
    for each in (listener, one, other):
        watch.register(each, select.EPOLLIN)
    loader = iter(DataLoader(range(8), num_workers=1))
    next(loader)

    def work():
        assert watch.poll(0) == []
        one.send(b"still here")
        assert other.recv(100) == b"still here"
        with socket.create_connection(listener.getsockname()):
            assert watch.poll(10) == [(listener.fileno(), select.EPOLLIN)]
        return len(list(loader)) == 7
    return work


def _is_blocked(thread):
    """It waits in the kernel: for a collective's end, or an answer."""
    with open(f"/proc/self/task/{thread}/syscall") as file:
        return file.read().split()[0] not in ("running", "-1")


if __name__ == "__main__":
    unittest.main()
