#!/usr/bin/env python3
"""What a token keeps from those on the wire, and what --store-proxy leaves open in the network.

usage: tests/support/run_case.py trust_test.py CASE TORCHUP TORCHUPD
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from torchupd import PING, VALIDATE, Torchupd

TORCHUP = sys.argv.pop(1)
TORCHUPD = sys.argv.pop(1)
TOKEN = "a token of twenty-five..."
LIMIT_S = 120


class Wire:
    """A port that leads to another one, and keeps all that passes."""

    def __init__(self, port):
        self.to = port
        self.heard = bytearray()
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self.connections += 1
            for source, sink in (near, far), (far, near):
                threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    def carry(self, source, sink):
        try:
            while piece := source.recv(1 << 16):
                self.heard += piece
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for each in source, sink:
                each.close()

    def close(self):
        self.listener.close()


class TrustTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def daemon(self, token):
        environment = {**os.environ, **({"TORCHUP_TOKEN": token} if token else {})}
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", env=environment, stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.end)
        return daemon

    def start(self, port, count, command, *options, token=None, nodes=None):
        environment = {**os.environ, "SECRET_OF_MINE": "in-the-environment", **({"TORCHUP_TOKEN": token} if token else {})}
        return [subprocess.Popen([TORCHUP, f"--nnodes={nodes or count}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                                  "--rdzv-conf=is_host=0,join_timeout=60", "--rdzv-id=run-of-mine", *options, *command],
                                 env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for _ in range(count)]

    def end(self, agents):
        said = [agent.communicate(timeout=LIMIT_S)[1] for agent in agents]
        return [agent.returncode for agent in agents], "".join(said)


class Capture(TrustTest):
    def capture(self, token):
        wire = Wire(self.daemon(token).port)
        self.addCleanup(wire.close)
        codes, said = self.end(self.start(wire.port, 2, ["sh", "-c", "sleep 1.5; exit 3"], token=token))
        self.assertEqual(codes, [1, 1], said)
        self.assertGreaterEqual(wire.connections, 2)
        return bytes(wire.heard)

    def test_with_a_token_nothing_of_the_job_is_on_the_wire(self):
        heard = self.capture(TOKEN)
        for word in ("run-of-mine", socket.gethostname(), "in-the-environment", "127.0.0.1", TOKEN, "failed", "torchup\n"):
            self.assertNotIn(word.encode(), heard, word)

    def test_without_one_it_is(self):
        heard = self.capture(None)
        for word in "run-of-mine", socket.gethostname(), "torchup\n":
            self.assertIn(word.encode(), heard, word)

    def test_a_credential_of_the_service_manager_is_the_token(self):
        (self.folder / "token").write_text(TOKEN + "\n")
        (self.folder / "token").chmod(0o400)
        daemon = self.daemon(TOKEN)
        os.environ["CREDENTIALS_DIRECTORY"] = str(self.folder)
        self.addCleanup(os.environ.pop, "CREDENTIALS_DIRECTORY")
        codes, said = self.end(self.start(daemon.port, 1, ["true"]))
        self.assertEqual(codes, [0], said)
        (self.folder / "token").chmod(0o444)  # the folder is guarded, whatever the file's mode
        codes, said = self.end(self.start(daemon.port, 1, ["true"]))
        self.assertEqual(codes, [0], said)
        (self.folder / "token").write_text("short\n")
        codes, said = self.end(self.start(daemon.port, 1, ["true"]))
        self.assertEqual(codes, [2], said)


TORCH = """
import datetime, json, os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=90))
rank, size = dist.get_rank(), dist.get_world_size()
told = torch.tensor([float(rank + 1)])
dist.all_reduce(told)
evens = dist.new_group(list(range(0, size, 2)))
dist.barrier()
dist.monitored_barrier()
if rank % 2 == 0:
    dist.all_reduce(told, group=evens)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
torch.manual_seed(rank)
losses = []
with torch.no_grad():
    next(model.parameters()).fill_(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
names = "MASTER_ADDR", "MASTER_PORT", "TORCHUP_MASTER_ADDR", "GROUP_RANK"
with open(os.path.join(sys.argv[1], f"rank{rank}"), "w") as file:
    json.dump({"sum": told.item(), "losses": losses, **{name: os.environ[name] for name in names}}, file)
dist.barrier()
dist.destroy_process_group()
"""


class StoreProxy(TrustTest):
    def train(self, nodes, workers, *options, token=None):
        program = self.folder / "train.py"
        program.write_text(TORCH)
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        agents = self.start(self.daemon(token).port, nodes, [str(program), str(out)], f"--nproc-per-node={workers}", *options,
                            token=token)
        codes, said = self.end(agents)
        self.assertEqual(codes, [0] * nodes, said)
        return [json.loads((out / f"rank{rank}").read_text()) for rank in range(nodes * workers)]

    def test_torch_trains_through_it_bit_by_bit_as_without(self):
        without = self.train(2, 2)
        for token in None, TOKEN:
            by_proxy = self.train(2, 2, "--store-proxy", token=token)
            for rank, (one, other) in enumerate(zip(without, by_proxy)):
                self.assertEqual((one["sum"], one["losses"]), (other["sum"], other["losses"]), rank)
                self.assertEqual(other["MASTER_ADDR"], "127.0.0.1")
            ports = {other["GROUP_RANK"]: other["MASTER_PORT"] for other in by_proxy}
            self.assertEqual(len(set(ports.values())), 2)  # each node has its own
            self.assertEqual(len({(other["GROUP_RANK"], other["MASTER_PORT"]) for other in by_proxy}), 2)
            self.assertEqual({other["TORCHUP_MASTER_ADDR"] for other in by_proxy}, {one["MASTER_ADDR"] for one in without})

    def test_a_node_without_it_is_refused(self):
        daemon = self.daemon(None)
        agents = self.start(daemon.port, 1, ["sleep", "60"], "--store-proxy", nodes=2)
        agents += self.start(daemon.port, 1, ["sleep", "60"], nodes=2)
        codes, said = set(), ""
        while 68 not in codes:
            ended = [agent for agent in agents if agent.poll() is not None]
            codes |= {agent.returncode for agent in ended}
        for agent in agents:
            agent.terminate()
            said += agent.communicate(timeout=LIMIT_S)[1]
        self.assertIn("--store-proxy is", said)

    def test_where_it_cannot_be(self):
        for options, variable in ((["--nnodes=2", "--master-port=0"], None),
                                  (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"],
                                   "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")):
            environment = {**os.environ, **({variable: "1"} if variable else {})}
            ended = subprocess.run([TORCHUP, "--store-proxy", *options, "true"], env=environment, capture_output=True, text=True,
                                   timeout=30)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn("--store-proxy", ended.stderr)

    def test_a_new_round_has_a_new_store(self):
        script = 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ]; then exit 3; fi; ' \
                 'echo $MASTER_PORT > $0/round$TORCHELASTIC_RESTART_COUNT.$RANK; exec sleep 1.5'
        daemon = self.daemon(TOKEN)
        codes, said = self.end(self.start(daemon.port, 2, ["sh", "-c", script, str(self.folder)], "--store-proxy", "--max-restarts=1",
                                          token=TOKEN))
        self.assertEqual(codes, [0, 0], said)
        self.assertTrue((self.folder / "round1.0").exists() and (self.folder / "round1.1").exists())

    def test_no_port_of_the_network_speaks_tcpstore(self):
        """Each listening port of both agents, asked in TCPStore: only those on 127.0.0.1 that are the workers' answer."""
        daemon = self.daemon(TOKEN)
        agents = self.start(daemon.port, 2, ["sh", "-c", "echo $MASTER_PORT > $0/port$RANK; exec sleep 600", str(self.folder)],
                            "--store-proxy", token=TOKEN)
        try:
            files = [self.folder / f"port{rank}" for rank in range(2)]
            while not all(file.exists() and file.read_text().endswith("\n") for file in files):
                self.assertTrue(all(agent.poll() is None for agent in agents))
            workers = {int(file.read_text()) for file in files}
            listening = self.listening([agent.pid for agent in agents])
            self.assertLessEqual(workers, set(listening))
            for port, address in listening.items():
                answers = self.speaks_tcpstore(port)
                if address == "127.0.0.1" and port in workers:
                    self.assertTrue(answers, port)
                elif port != daemon.port:
                    self.assertFalse(answers, (address, port))
        finally:
            for agent in agents:
                agent.terminate()
            self.end(agents)

    def listening(self, roots):
        """Ports of these processes and of theirs, with their addresses."""
        inodes, waiting = set(), list(roots)
        while waiting:
            process = pathlib.Path("/proc") / str(waiting.pop())
            try:
                waiting += (process / "task" / process.name / "children").read_text().split()
                for fd in (process / "fd").iterdir():
                    target = os.readlink(fd)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
            except OSError:
                continue
        ports = {}
        for table in "tcp", "tcp6":
            for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    ports[int(port, 16)] = "127.0.0.1" if address == "0100007F" else address
        return ports

    def speaks_tcpstore(self, port):
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as peer:
                peer.sendall(VALIDATE + PING)
                return peer.recv(4) == PING[1:]
        except OSError:
            return False
