"""What tests of the agents' own doors have in common: real launchers and the real torchupctl. The first words of the
command line are torchupctl and torchup."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path

from ctl_case import Ctl
from ranks import free_port
from waiting import until

TORCHUP = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 60
# $$$$: of two dollars torchup makes one, as torchrun.
WAITS = ("touch $0/started.$RANK.$TORCHELASTIC_RESTART_COUNT.$$$$; while [ ! -e $0/go ]; do sleep 0.02; done; "
         "exit ${CODE:-0}")


class SocketConnection(http.client.HTTPConnection):
    """By a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=LIMIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(str(self.path))


class Node(Ctl):
    def torchup(self, *words, sockets=None, script=WAITS, program=None, **environment):
        """Starts an agent with `script` for sh as its workers; its stderr goes to a file that `errors` reads."""
        self.agents = getattr(self, "agents", 0) + 1
        log = self.folder / f"stderr.{self.agents}"
        program = program or ["--no-python", "sh", "-c", script, str(self.folder)]
        own = {"TORCHUP_RUNTIME_DIR": str(sockets)} if sockets else {}
        with log.open("wb") as errors:
            agent = subprocess.Popen([TORCHUP, *map(str, words), *map(str, program)], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=errors, cwd=self.folder,
                                     env={**self.environment, **own, **environment})
        agent.log = log
        self.addCleanup(lambda: (agent.poll() is None and (agent.terminate(), agent.wait(LIMIT_S))))
        return agent

    def started(self, count):
        """Waits until so many workers have begun."""
        until(lambda: len(list(self.folder.glob("started.*"))) == count, f"{count} workers have begun", LIMIT_S)

    def errors(self, agent):
        return agent.log.read_text(errors="replace")

    def json(self, *words, code=0, **environment):
        return json.loads(self.ctl(*words, "--json", code=code, **environment).stdout)

    def row(self, **environment):
        """The only job's."""
        rows = self.json("ps", **environment)["jobs"]
        self.assertEqual(len(rows), 1, rows)
        return rows[0]

    def stacks(self, *words, asleep=(), thread=None, **environment):
        """The text, once these ranks sleep; with `thread` they have a native thread of that name that does so."""
        native = rf"(.*\n)*?  native thread \d+, {thread}\n(    .*\n)*?    .*nanosleep" if thread else ""

        def look():
            text = self.ctl("stacks", *words, code=0, **environment).stdout
            if "install libdw1" in text:
                self.skipTest("no libdw.so.1")
            parts = dict(re.findall(r"(?ms)^rank (\d+), (.*?)(?=^rank |\Z)", text))
            found = all(re.match(rf"pid \d+: sleeping{native}", parts.get(str(rank), "")) for rank in asleep)
            return found and set(map(int, parts)) == set(asleep) and text

        return until(look, f"just the ranks {asleep} are shown, and sleep", LIMIT_S)

    def status(self, wanted, what, *words, **environment):
        def look():
            done = self.ctl("status", *words, "--json", **environment)
            job = json.loads(done.stdout) if done.returncode == 0 else None
            return job if job and wanted(job) else None
        return until(look, what, LIMIT_S)

    def page_address(self, agent):
        """Host, port and token of the page that --status-port has opened."""
        told = re.compile(r"page of this job: http://([^:/]+):(\d+)/jobs/(\S*)#token=(\w+)")
        found = until(lambda: told.search(self.errors(agent)), "the page's address is told", LIMIT_S)
        return found[1], int(found[2]), found[4]

    def http(self, port, path, method="GET", token=None, body=None, host=None):
        headers = {"Host": host or f"127.0.0.1:{port}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def order(self, path, folder=None, **body):
        """Posts to the only socket of the folder: status, and the answer's `error`, empty where there is none."""
        own, = (folder or self.sockets).glob("*.sock")
        connection = SocketConnection(own)
        try:
            connection.request("POST", path, body=json.dumps(body), headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()).get("error", {})
        finally:
            connection.close()

    def frames(self, folder, behind=None):
        """(kind, data) of each frame that the socket of the folder tells of its job, to who goes on behind that event;
        to the end of the stream."""
        own, = Path(folder).glob("*.sock")
        job = urllib.parse.quote(self.run_id, safe="")
        connection = SocketConnection(own)
        self.addCleanup(connection.close)
        headers = {} if behind is None else {"Last-Event-ID": str(behind)}
        connection.request("GET", f"/v1/jobs/{job}/stream", headers=headers)
        stream, kind = connection.getresponse(), ""
        while line := stream.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            kind = value if name == "event" else kind
            if name == "data":
                yield kind, json.loads(value)


class Nodes(Node):
    """Agents of one job, each with a folder of its own for its socket."""

    names = ("host", "other")
    run_id = "pair/1"

    def setUp(self):
        super().setUp()
        self.doors = {}
        for name in self.names:
            folder = self.folder / f"sockets.{name}"
            folder.mkdir(mode=0o700)
            self.doors[name] = {"TORCHUP_RUNTIME_DIR": str(folder)}

    def agent(self, name, *words, nnodes="2", **more):
        return self.torchup(f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}",
                            f"--rdzv-id={self.run_id}", *words, OF=name,
                            sockets=self.doors[name]["TORCHUP_RUNTIME_DIR"], **more)

    def begin(self, *names, words=(), **more):
        """Agents of these names, of which the first hosts the rendezvous."""
        self.endpoint = f"127.0.0.1:{free_port()}"
        return [self.agent(name, f"--rdzv-conf=is_host={int(name == names[0])}", *words, **more) for name in names]

    def events(self, name):
        lines = self.ctl("events", "--json", code=0, **self.doors[name]).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def running(self, name, ranks=2):
        return self.status(lambda job: job["phase"] == "running" and job["ranks"].get("running") == ranks,
                           "the job runs", **self.doors[name])
