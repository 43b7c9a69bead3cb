#!/usr/bin/env python3
"""Whom a worker store lets in.

usage: tests/support/run_case.py worker_store_test.py CASE TORCHUP

Runs in a network namespace of its own where that is allowed: there, peers come from addresses that are not this machine's.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from torchupd import ELSEWHERE, FARTHER, PING, VALIDATE, enter_network as enter_namespace, needs_namespace

torchup = sys.argv[1]


@needs_namespace
class WorkerStore(unittest.TestCase):
    def start(self, *options, token=None):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        place = os.path.join(self.folder.name, "port")
        self.errors = tempfile.TemporaryFile("w+")
        self.addCleanup(self.errors.close)
        environment = {**os.environ, **({"TORCHUP_TOKEN": token} if token else {})}
        worker = f"echo $MASTER_PORT > {place}.new && mv {place}.new {place} && exec sleep 600"
        self.job = subprocess.Popen([torchup, *options, "/bin/sh", "-c", worker], env=environment, stderr=self.errors,
                                    stdin=subprocess.DEVNULL)
        self.addCleanup(self.end)
        limit = time.monotonic() + 30
        while not os.path.exists(place):
            self.assertLess(time.monotonic(), limit, self.said())
            time.sleep(0.02)
        with open(place) as file:
            self.port = int(file.read())

    def end(self):
        self.assertIsNone(self.job.poll(), "the job has ended: " + self.said())
        self.job.send_signal(signal.SIGTERM)
        self.assertEqual(self.job.wait(30), 143)

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def served(self, source):
        with socket.create_connection(("127.0.0.1", self.port), 10, source_address=(source, 0)) as peer:
            peer.sendall(VALIDATE + PING)
            try:
                return peer.recv(4, socket.MSG_WAITALL) == b"1234"
            except ConnectionResetError:
                return False

    def test_without_a_token_everybody(self):
        self.start()
        self.assertTrue(self.served("127.0.0.1"))
        self.assertTrue(self.served(ELSEWHERE))

    def test_with_a_token_this_machine_and_nobody_else(self):
        self.start(token="a token of 23 characters")
        self.assertTrue(self.served("127.0.0.1"))
        self.assertFalse(self.served(ELSEWHERE))
        limit = time.monotonic() + 10
        while f"--allow {ELSEWHERE}" not in self.said():
            self.assertLess(time.monotonic(), limit, self.said())
            time.sleep(0.02)

    def test_who_is_refused_is_told_of_once_a_minute_and_address(self):
        logs = tempfile.TemporaryDirectory()
        self.addCleanup(logs.cleanup)
        events = pathlib.Path(logs.name, "events.jsonl")
        self.start(f"--events={events}", token="a token of 23 characters")
        for source in ELSEWHERE, ELSEWHERE, FARTHER, ELSEWHERE:
            self.assertFalse(self.served(source))

        def refused():
            whole = [line for line in events.read_text().splitlines() if line.endswith("}")]
            return [event["address"] for event in map(json.loads, whole) if event["event"] == "store_refused"]

        limit = time.monotonic() + 30
        while len(refused()) < 2:
            self.assertLess(time.monotonic(), limit, self.said())
            time.sleep(0.02)
        self.assertEqual(refused(), [ELSEWHERE, FARTHER])

    def test_with_a_token_who_is_listed_too(self):
        self.start("--allow=10.9.0.0/24", token="a token of 23 characters")
        self.assertTrue(self.served("127.0.0.1"))
        self.assertTrue(self.served(ELSEWHERE))
        self.assertFalse(self.served(FARTHER))

    def test_a_list_without_a_token(self):
        self.start("--allow=10.9.0.0/24")
        self.assertTrue(self.served(ELSEWHERE))
        self.assertFalse(self.served(FARTHER))

    def test_networks_and_tokens_that_are_none(self):
        self.start()
        for options, token in ((["--allow=node7"], None), ([], "short")):
            environment = {**os.environ, **({"TORCHUP_TOKEN": token} if token else {})}
            ended = subprocess.run([torchup, *options, "/bin/true"], env=environment, capture_output=True, text=True, timeout=30)
            self.assertEqual(ended.returncode, 2, ended.stderr)
