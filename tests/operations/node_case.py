"""What tests of the agents' own doors have in common: real launchers and the real torchupctl. The first words of the
command line are torchupctl and torchup."""

import http.client
import json
import os
import re
import subprocess
import sys

from ctl_case import Ctl
from waiting import until

TORCHUP = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 60
# $$$$: of two dollars torchup makes one, as torchrun.
WAITS = ("touch $0/started.$RANK.$TORCHELASTIC_RESTART_COUNT.$$$$; while [ ! -e $0/go ]; do sleep 0.02; done; "
         "exit ${CODE:-0}")


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
