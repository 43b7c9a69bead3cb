"""Orders that a history of nodes gives at random, by torchupctl at some agent's own socket, and two who follow its events.

What an order allows: an accepted one holds from then on, until another takes it back, the agent that it was about ends,
or an agent that hosted the rendezvous has died with all that it knew. One that is refused has its reason, and has
changed nothing. Of one that nobody answered (while something was cut off) either is right. None costs a restart.
"""

import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

from cluster import wait_for

RUN_ID = "job1"
ANSWER_S = 40    # of torchupctl, which gives a question up after less
VIEW_S = 20      # until somebody knows the whole job
READ_S = 40      # … until who reads has heard of all: an answer that does not come is waited for for 15 s
PAGE_READER = pathlib.Path(__file__).with_name("page_reader.py")
# Why an order cannot be obeyed just then: another moment it could.
JUST_NOW = ("nodes are stopping their workers|no round runs|is being decided|has just started|no node has joined|"
            "out of reach|cut off|does not answer|there is no node|the job has no node|has several nodes|several agents|"
            "no job|have ended well")


class Order:
    def __init__(self, verb, node=None, least=None, most=None):
        self.verb, self.node, self.least, self.most = verb, node, least, most

    def words(self):
        if self.verb == "resize":
            return ["resize", RUN_ID, "--nodes", f"{self.least}:{self.most}"]
        return [self.verb, RUN_ID] + (["--node", f"node{self.node}"] if self.node is not None else [])

    def __str__(self):
        return " ".join(self.words()[:1] + self.words()[2:])


class Orders:
    """What a History has of them; with `--orders` only it gives any. All chance is of its own, so that without them a
    history is what it was."""

    def begin_orders(self, options, seed, index):
        self.with_orders = options.orders
        self.chance = random.Random(f"{seed}/{index}/orders")
        self.drained = set()    # nodes
        self.accepted = collections.Counter()
        self.unanswered = 0
        self.unsure = False     # what was obeyed of those
        self.waiting = []       # orders that are being answered
        self.readers = {}
        self.reset_orders()

    def reset_orders(self):
        """Nobody knows of any."""
        self.range = [self.least, self.nodes]
        self.drained.clear()

    def sockets(self, node):
        folder = self.cluster.dir / f"sockets.{node}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def lose(self, node):
        """The node's agent is none any more; one that comes after it is another."""
        self.drained.discard(node)
        return self.agents.pop(node)

    def candidates(self):
        return [node for node in self.agents if node not in self.drained]

    # ---- who follows the job

    def begin_to_read(self):
        coordinator = self.daemon_node if self.daemon_node is not None else 0
        other = self.chance.choice([node for node in self.agents if node != coordinator])
        for kind, node in (("page", coordinator), ("socket", other)):
            out = self.cluster.dir / f"read_by_{kind}"
            command = [sys.executable, "-S", PAGE_READER, self.sockets(node), RUN_ID, out, kind]
            with open(self.cluster.dir / f"{out.name}.err", "wb") as errors:
                process = subprocess.Popen(self.cluster.on(node, command), stdin=subprocess.DEVNULL, stdout=errors,
                                           stderr=errors, start_new_session=True)
            self.cluster.others.append(process)
            self.readers[kind] = process, out, node
            wait_for(f"somebody reads by {kind}", lambda: out.exists() and self.read(out), VIEW_S)

    @staticmethod
    def read(out):
        return [json.loads(line) for line in out.read_text().rpartition("\n")[0].splitlines()]

    def end_reading(self):
        for kind, (process, _, _) in self.readers.items():
            assert process.poll() is None, f"who read by {kind} has ended with {process.returncode}"
            process.send_signal(signal.SIGKILL)
            process.wait()

    def orders_read(self, told):
        """How often which order was told of, but for stops."""
        return collections.Counter(line["verb"] for line in told
                                   if line.get("event") == "order_received" and line["verb"] != "stop")

    def wait_for_readers(self):
        """Until each has heard of all orders, or that it missed something. Who is behind, for an answer was lost on its
        way, asks again."""
        for kind, (_, out, node) in self.readers.items():
            def is_told():
                told = self.read(out)
                return any("gap" in line for line in told) or not self.accepted - self.orders_read(told)

            if node == self.daemon_node or node in self.agents:
                wait_for(f"who reads by {kind} has heard of {self.accepted}", is_told, READ_S)

    def check_read(self):
        """No event is lost to who reads, but with a word; and of no order is told that nobody gave."""
        for kind, (_, out, _) in self.readers.items():
            told, last = self.read(out), None
            for line in told:
                if "gap" in line:
                    last = None
                elif "from" in line:
                    last = line["from"]
                else:
                    assert last in (None, line["seq"] - 1), f"by {kind}: {line} after event {last}, and no gap was told"
                    last = line["seq"]
            more = self.orders_read(told) - self.accepted
            assert sum(more.values()) <= self.unanswered, f"by {kind}: told of {more} more than {self.accepted}"

    # ---- orders

    def choose_order(self):
        verbs = {"restart": 3, "resize": 3, "drain": 3 if self.candidates() else 0, "undrain": 3 if self.drained else 0}
        verb = self.chance.choices(list(verbs), list(verbs.values()))[0]
        if verb == "drain":
            return Order(verb, node=self.chance.choice(sorted(self.candidates())))
        if verb == "undrain":
            return Order(verb, node=self.chance.choice(sorted(self.drained)))
        if verb == "resize":
            least = self.chance.randint(1, self.nodes)
            return Order(verb, least=least, most=self.chance.randint(least, self.nodes + 1))
        return Order(verb)

    def ask(self, node, *words):
        """torchupctl, about that node's socket."""
        return subprocess.Popen([self.build / "bin/torchupctl", *words], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "TORCHUP_RUNTIME_DIR": str(self.sockets(node))})

    def give(self, order, node, calm):
        self.say(f"node{node} is told: {order}")
        self.waiting.append((order, self.ask(node, *order.words()), calm))

    def take_answers(self):
        """Those of all that were given."""
        for order, process, calm in self.waiting:
            said, errors = process.communicate(timeout=ANSWER_S)
            text = (said or errors).strip()
            self.say(f"{order}: {process.returncode} {text}")
            if process.returncode == 0:
                self.obeyed(order)
            elif process.returncode == 1:
                self.check_refusal(order, text, calm)
            else:
                assert process.returncode == 67 and not calm, f"{order}: {process.returncode} {text}"
                self.unanswered += 1
                self.unsure = True
        self.waiting.clear()

    def obeyed(self, order):
        self.accepted[order.verb] += 1
        if order.verb == "drain":
            self.drained.add(order.node)
        elif order.verb == "undrain":
            self.drained.discard(order.node)
        elif order.verb == "resize":
            self.range = [order.least, order.most]

    def check_refusal(self, order, text, calm):
        few = re.search("the job needs|too few for", text)
        assert few or re.search(JUST_NOW, text), f"{order}: {text}"
        if not calm:
            return
        assert few, f"{order}, while nothing happened: {text}"
        there = len(self.candidates()) - (order.verb == "drain")
        assert there < (order.least if order.verb == "resize" else self.range[0]), f"{order}: {text}"

    def order_meanwhile(self):
        """While something goes wrong."""
        if self.with_orders and self.agents and self.chance.random() < 0.4:
            self.give(self.choose_order(), self.chance.choice(sorted(self.agents)), calm=False)

    def order_between(self):
        """After it, at once or when all have come together again."""
        if not self.with_orders:
            return
        self.take_answers()
        for _ in range(self.chance.choice([0, 1, 1, 2])):
            calm = self.chance.random() < 0.5
            if calm:
                self.settle()
                calm = not self.unheard() and not self.put_aside()  # who may take part any moment
            asked = sorted({entry["host"] for entry in self.cluster.rounds()[-1]}) if calm else \
                [f"node{node}" for node in sorted(self.agents)]
            node = int(self.chance.choice(asked).removeprefix("node"))
            if calm:  # its workers may have run on while it looked for the coordinator
                wait_for(f"node{node} knows the whole job", lambda: self.view_of(node), VIEW_S)
            self.give(self.choose_order(), node, calm)
            self.take_answers()

    # ---- what the coordinator knows

    def view_of(self, node):
        """The whole job, where the node's agent reaches the coordinator."""
        process = self.ask(node, "status", RUN_ID, "--json")
        said, _ = process.communicate(timeout=ANSWER_S)
        job = json.loads(said) if process.returncode == 0 else {"phase": "cut off"}
        return job if job["phase"] != "cut off" else None

    def view(self):
        """As some agent that reaches it shows it."""
        return next(filter(None, map(self.view_of, self.agents)), None)

    def there(self, job, *states):
        """Nodes with an agent of ours that are in one of these states, or in any but silent."""
        hosts = {node["host"] for node in job["nodes"].values()
                 if (node["state"] in states if states else node["state"] != "silent")}
        return {int(host.removeprefix("node")) for host in hosts} & set(self.agents)

    def drained_in(self, job):
        return self.there(job, "draining", "drained")

    def learn_orders(self):
        """Where it is not known what was obeyed, the coordinator says it."""
        if self.unsure:
            job = wait_for("somebody who knows the whole job", self.view, VIEW_S + self.limit(0))
            self.range = [job["min_nodes"], job["max_nodes"]]
            self.drained = self.drained_in(job) | self.drained - self.there(job)
            self.unsure = False

    def check_orders(self):
        """What was ordered holds, and no restart was paid for it. Of an agent that has been killed the coordinator knows
        for the time of a lease."""
        seen = {}

        def holds():
            job = self.view() or {"nodes": {}}
            seen.update(job=job, range=[job.get("min_nodes"), job.get("max_nodes")], drained=self.drained_in(job),
                        restarts=job.get("restart_count"))
            wanted = self.range, self.drained & self.there(job), self.restarts
            return (seen["range"], seen["drained"], seen["restarts"]) == wanted

        try:
            wait_for("what was ordered", holds, VIEW_S)
        except AssertionError:
            raise AssertionError(f"{self.range} nodes but {self.drained} and {self.restarts} restarts; it is {seen}") from None

    def let_take_part(self):
        """A drained node, for there are too few others."""
        order = Order("undrain", node=min(self.drained))

        def obeyed():
            process = self.ask(order.node, *order.words())
            process.communicate(timeout=ANSWER_S)
            return process.returncode == 0

        self.say(f"too few nodes are left: {order}")
        wait_for(str(order), obeyed, VIEW_S + self.limit(0))
        self.obeyed(order)

    # ---- the end

    def stop_job(self):
        """As one of the ways to stop it says. Returns the agents' exit code."""
        words = self.chance.choice([["stop"], ["stop", "--save"], ["stop", "--now"]])
        asked = int(self.chance.choice(sorted({entry["host"] for entry in self.cluster.rounds()[-1]})).removeprefix("node"))
        self.say(f"node{asked} is told: {' '.join(words)}")
        process = self.ask(asked, words[0], RUN_ID, *words[1:])
        _, errors = process.communicate(timeout=ANSWER_S)
        assert process.returncode == 0, f"{words}: {process.returncode} {errors}"
        return 75 if "--save" in words else 143
