#!/usr/bin/env python3
"""Real PyTorch processes on torchupd: the whole Python Store API, process groups, many clients at once.

usage: store_interop.py TORCHUPD [unittest options]

Every API test runs twice, against torchupd and against PyTorch's own server, so that a wrong expectation shows.
Exits with 77 when this Python has no torch.
"""
import datetime
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from torchupd import Torchupd  # noqa: E402

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # read when torch is loaded
try:
    import torch
    import torch.distributed as dist
except ImportError as missing:
    print(f"skipped: {sys.executable} has no torch ({missing})")
    sys.exit(77)

torchupd = sys.argv[1]
fork = multiprocessing.get_context("fork")


def seconds(number):
    return datetime.timedelta(seconds=number)


class StoreApi:
    """What a user of the Python API sees, whoever serves it."""

    def client(self, timeout=60.0, host="localhost"):
        return dist.TCPStore(host, self.port, is_master=False, wait_for_workers=False, timeout=seconds(timeout))

    def setUp(self):
        # One server for all tests: keys must not meet.
        self.key = lambda name: f"{type(self).__name__}.{self._testMethodName}/{name}"
        self.store = self.client()

    def test_set_get(self):
        key = self.key("k")
        self.store.set(key, "first")
        self.store.set(key, b"\x00\xff second")
        self.assertEqual(self.store.get(key), b"\x00\xff second")
        self.store.set(key, "")
        self.assertEqual(self.store.get(key), b"")

    def test_large_values(self):
        value = os.urandom(8 << 20)
        self.store.set(self.key("large"), value)
        self.assertEqual(self.store.get(self.key("large")), value)
        self.store.multi_set([self.key("1"), self.key("2")], [value[:-1], value[1:]])
        self.assertEqual(self.store.multi_get([self.key("2"), self.key("large")]), [value[1:], value])
        self.store.append(self.key("large"), value)
        self.assertEqual(self.store.get(self.key("large")), value + value)

    def test_a_value_too_large_closes(self):
        with self.assertRaises(dist.DistNetworkError):
            self.store.set(self.key("k"), bytes((8 << 20) + 1))  # may be noticed here, or by the next call that reads
            for _ in range(100):
                self.store.add(self.key("n"), 1)
                time.sleep(0.01)

    def test_add(self):
        key = self.key("n")
        self.assertEqual(self.store.add(key, 5), 5)
        self.assertEqual(self.store.add(key, -7), -2)
        self.assertEqual(self.store.get(key), b"-2")
        self.store.set(key, "41")
        self.assertEqual(self.store.add(key, 1), 42)
        self.store.set(key, "text")
        with self.assertRaises(dist.DistError):
            self.store.add(key, 1)

    def test_compare_set(self):
        key = self.key("k")
        self.assertEqual(self.store.compare_set(key, "wrong", "new"), b"wrong")
        self.assertFalse(self.store.check([key]))
        self.assertEqual(self.store.compare_set(key, "", "new"), b"new")
        self.assertEqual(self.store.compare_set(key, "wrong", "newer"), b"new")
        self.assertEqual(self.store.compare_set(key, "new", "newer"), b"newer")

    def test_delete_check_num_keys(self):
        a, b = self.key("a"), self.key("b")
        before = self.store.num_keys()
        self.store.set(a, "1")
        self.assertTrue(self.store.check([a]))
        self.assertTrue(self.store.check([]))
        self.assertFalse(self.store.check([a, b]))
        self.assertEqual(self.store.num_keys(), before + 1)
        self.assertTrue(self.store.delete_key(a))
        self.assertFalse(self.store.delete_key(a))
        self.assertEqual(self.store.num_keys(), before)

    def test_append_multi(self):
        self.assertTrue(self.store.has_extended_api())
        a, b = self.key("a"), self.key("b")
        self.store.append(a, "po")
        self.store.append(a, "tato")
        self.store.multi_set([a + "2", b], ["x", "y"])
        self.assertEqual(self.store.multi_get([b, a, a + "2"]), [b"y", b"potato", b"x"])

    def test_list_keys(self):
        if not hasattr(self.store, "list_keys"):
            self.skipTest("this torch has no list_keys")
        names = [self.key(name) for name in ("one", "two", "")]
        for name in names:
            self.store.set(name, "1")
        listed = self.store.list_keys()
        self.assertLessEqual(set(names), set(listed))
        self.assertNotIn("init/", listed)

    def test_wait(self):
        key = self.key("k")
        setter = threading.Timer(0.1, lambda: self.client().set(key, "1"))
        setter.start()
        self.store.wait([key])
        self.assertEqual(self.store.get(key), b"1")
        setter.join()

    def test_wait_times_out_and_the_connection_lives_on(self):
        begin = time.monotonic()
        with self.assertRaises(dist.DistStoreError) as failed:
            self.store.wait([self.key("a"), self.key("b")], seconds(0.2))
        self.assertGreaterEqual(time.monotonic() - begin, 0.19)
        self.assertIn(f"keys: /{self.key('a')}, /{self.key('b')}", str(failed.exception))
        self.store.set(self.key("a"), "1")
        self.assertEqual(self.store.get(self.key("a")), b"1")

    def test_wait_answers_race_with_cancels(self):
        # Time-outs of about the time that the other client takes to set: both answers are under way together.
        other = self.client()
        timed_out = 0
        for i in range(200):
            key = self.key(i)
            setter = threading.Timer(0.002 + 0.00002 * (i % 100), other.set, (key, str(i)))
            setter.start()
            try:
                self.store.wait([key], datetime.timedelta(milliseconds=3))
            except dist.DistStoreError:
                timed_out += 1
            setter.join()
            self.assertEqual(self.store.add(self.key("n"), 1), i + 1)  # still in step
        self.assertGreater(timed_out, 0)

    def test_queue(self):
        if not hasattr(self.store, "queue_push"):
            self.skipTest("this torch has no queues")
        key = self.key("q")
        self.assertEqual(self.store.queue_len(key), 0)
        with self.assertRaises(dist.QueueEmptyError):
            self.store.queue_pop(key, block=False)
        for i in range(3):
            self.store.queue_push(key, str(i))
        self.assertEqual(self.store.queue_len(key), 3)
        self.assertTrue(self.store.check([key]))
        self.assertEqual([self.store.queue_pop(key) for _ in range(3)], [b"0", b"1", b"2"])
        pusher = threading.Timer(0.1, lambda: self.client().queue_push(key, "late"))
        pusher.start()
        self.assertEqual(self.store.queue_pop(key), b"late")
        pusher.join()

    def test_queue_wakes_one_consumer_per_element(self):
        if not hasattr(self.store, "queue_push"):
            self.skipTest("this torch has no queues")
        key, popped = self.key("q"), []
        consumers = [threading.Thread(target=lambda s: popped.append(s.queue_pop(key)), args=(self.client(),)) for _ in range(8)]
        for consumer in consumers:
            consumer.start()
        time.sleep(0.2)
        for i in range(8):
            self.store.queue_push(key, str(i))
        for consumer in consumers:
            consumer.join(10)
        self.assertEqual(sorted(popped), [str(i).encode() for i in range(8)])

    def test_barrier(self):
        if not hasattr(self.store, "barrier"):
            self.skipTest("this torch has no barrier")
        key, passed = self.key("b"), []

        def arrive(store):
            store.barrier(key, 4)
            passed.append(1)

        threads = [threading.Thread(target=arrive, args=(self.client(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        self.assertEqual(passed, [])
        self.store.barrier(key, 4)
        for thread in threads:
            thread.join(10)
        self.assertEqual(len(passed), 3)
        with self.assertRaises(dist.DistStoreError):
            self.store.barrier(self.key("lonely"), 2, seconds(0.1))
        self.assertEqual(self.store.add(self.key("n"), 1), 1)

    def test_prefix_store(self):
        outer = dist.PrefixStore("in/", dist.PrefixStore(self.key("pre"), self.store))
        outer.set("z", "1")
        self.assertEqual(self.store.get(self.key("pre") + "/in//z"), b"1")
        self.assertEqual(outer.get("z"), b"1")
        self.assertEqual(outer.add("n", 2), 2)
        outer.append("z", "2")
        self.assertEqual(outer.multi_get(["z", "n"]), [b"12", b"2"])
        outer.multi_set(["x", "y"], ["1", "2"])
        self.assertTrue(outer.check(["x", "y"]))
        self.assertEqual(outer.compare_set("x", "1", "3"), b"3")
        self.assertTrue(outer.delete_key("x"))
        with self.assertRaises(dist.DistStoreError):
            outer.wait(["absent"], seconds(0.05))
        if hasattr(outer, "queue_push"):
            outer.queue_push("q", "e")
            self.assertEqual(outer.queue_len("q"), 1)
            self.assertEqual(outer.queue_pop("q"), b"e")
        if hasattr(outer, "barrier"):
            outer.barrier("alone", 1)
        if hasattr(outer, "list_keys"):
            self.assertLessEqual({"y", "z", "n"}, set(outer.list_keys()))

    def test_clone(self):
        if not hasattr(self.store, "clone"):
            self.skipTest("this torch has no clone")
        clone = self.store.clone()
        clone.set(self.key("k"), "1")
        self.assertEqual(self.store.get(self.key("k")), b"1")

    def test_worker_count(self):
        def join():
            dist.TCPStore("localhost", self.port, world_size=3, is_master=False, timeout=seconds(10))

        before = self.store.num_keys() and int(raw_get(self.port, b"init/") or b"0")
        for _ in range(3):
            join()
        self.assertEqual(int(raw_get(self.port, b"init/")), before + 3)

    def test_many_clients_at_once(self):
        key, per_client, clients = self.key("n"), 200, 8

        def count():
            store = self.client()
            for i in range(per_client):
                store.add(key, 1)
                store.set(f"{key}/{os.getpid()}/{i % 5}", str(i))
            os._exit(0)

        children = [fork.Process(target=count) for _ in range(clients)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            if child.exitcode is None:
                child.kill()
            self.assertEqual(child.exitcode, 0)
        self.assertEqual(self.store.add(key, 0), clients * per_client)

    def test_process_group(self):
        for world_size in (2, 4, 8):
            run_ranks(self, world_size, dist.PrefixStore(self.key(world_size), self.store))


def raw_get(port, key):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(bytes.fromhex("00cef7853c") + b"\x03" + struct.pack("<Q", len(key)) + key)
        size = struct.unpack("<Q", peer.recv(8, socket.MSG_WAITALL))[0]
        return peer.recv(size, socket.MSG_WAITALL) if size else b""


def rank_main(rank, world_size, port, prefix):
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=seconds(60))
    dist.init_process_group("gloo", store=dist.PrefixStore(prefix, store), rank=rank, world_size=world_size, timeout=seconds(60))
    value = torch.full((1000,), float(rank))
    dist.all_reduce(value)
    assert value[0] == world_size * (world_size - 1) / 2, value[0]
    half = dist.new_group(list(range(world_size // 2)))
    if rank < world_size // 2:
        part = torch.ones(3)
        dist.all_reduce(part, group=half)
        assert part[0] == world_size // 2, part
    dist.monitored_barrier()
    gathered = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank})
    assert [entry["rank"] for entry in gathered] == list(range(world_size)), gathered
    dist.barrier()
    dist.destroy_process_group()


def env_main(rank, world_size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world_size),
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCH_DIST_INIT_BARRIER="1")
    dist.init_process_group("gloo", timeout=seconds(60))
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == world_size
    dist.destroy_process_group()


def run_children(test, target, arguments):
    children = [fork.Process(target=target, args=each) for each in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join(90)
        if child.exitcode is None:
            child.kill()
        test.assertEqual(child.exitcode, 0)


def run_ranks(test, world_size, prefix_store):
    run_children(test, rank_main, [(rank, world_size, test.port, test.key(world_size)) for rank in range(world_size)])


class Ours(StoreApi, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Torchupd(torchupd)
        cls.port = cls.daemon.port

    @classmethod
    def tearDownClass(cls):
        cls.daemon.kill()

    def test_every_way_to_name_the_host(self):
        for host in ("localhost", "127.0.0.1", "::1"):
            with self.subTest(host):
                try:
                    socket.create_connection((host, self.port), 2).close()
                except OSError as unreachable:
                    if host == "::1":
                        continue  # no IPv6 on this machine
                    raise unreachable
                self.assertEqual(self.client(host=host).add(self.key(host), 1), 1)

    def test_env_rendezvous(self):
        # As under a launcher: no rank hosts, all connect to the agent's store. A store of its own, as in every round.
        for world_size in (2, 4):
            daemon = Torchupd(torchupd)
            try:
                run_children(self, env_main, [(rank, world_size, daemon.port) for rank in range(world_size)])
            finally:
                daemon.kill()

    def test_a_client_learns_at_once_that_the_server_died(self):
        daemon = Torchupd(torchupd)
        store = dist.TCPStore("localhost", daemon.port, is_master=False, wait_for_workers=False, timeout=seconds(30))
        killer = threading.Timer(0.2, daemon.kill)
        killer.start()
        begin = time.monotonic()
        with self.assertRaises(dist.DistNetworkError):
            store.get("never")
        self.assertLess(time.monotonic() - begin, 10)
        killer.join()


class PyTorchs(StoreApi, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.master = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=seconds(10))
        cls.port = cls.master.port

    def test_process_group(self):
        self.skipTest("is PyTorch's own business")

    def test_many_clients_at_once(self):
        self.skipTest("its server looks up each peer's name, which takes as long as the resolver likes")


if __name__ == "__main__":
    print("torch", torch.__version__)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
