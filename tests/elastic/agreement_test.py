"""Who takes whose state, and what becomes of who dies meanwhile.

usage: agreement_test.py [unittest options]
"""

import os
import types
import unittest

import elastic_job  # noqa: F401; finds the package, or skips

import torch
import torch.distributed as dist

import fake_agent
from torchup import elastic
from torchup._agreement import Decision, Facts, Wire, agree, decide, source_among
from worker_end_test import in_a_fork, until


class Deciding(unittest.TestCase):
    def rank(self, step, clean=1, fresh=0, checksum=0):
        return Facts(step, clean, fresh, checksum, 1)

    def test_source(self):
        at = self.rank
        self.assertEqual(decide([at(4), at(4)]), Decision(0))
        self.assertEqual(decide([at(4), at(5)]), Decision(1, (0,)))
        self.assertEqual(decide([at(5, clean=0), at(4), at(4)]), Decision(1, (0,)))
        self.assertEqual(decide([at(0, fresh=1), at(4), at(4)]), Decision(1, (0,)))
        self.assertEqual(decide([at(0, fresh=1), at(0)]), Decision(1, ()))
        self.assertEqual(decide([at(0, fresh=1, checksum=7), at(0)]), Decision(1, (0,)))
        self.assertEqual(decide([at(4), at(4, checksum=3), at(4)]), Decision(0, (1,), (1,)))
        self.assertEqual(decide([at(4, fresh=1), at(4, fresh=1)]), Decision(0))  # each has read the same checkpoint

    def test_checkpoint(self):
        at = self.rank
        self.assertEqual(decide([at(4, clean=0), at(0, fresh=1)]).source, -1)  # not what a newcomer begins with
        self.assertEqual(decide([at(4, clean=0), at(3, fresh=1)]).source, 1)
        self.assertEqual(decide([at(4, clean=0), at(4, clean=0)]).source, -1)
        begin = [at(0, fresh=1), at(0, fresh=1, checksum=3)]
        self.assertEqual(decide(begin).source, -1)
        self.assertEqual(source_among(begin, [0, 1]), Decision(0, (1,), ()))


class Agreeing(unittest.TestCase):
    """Two ranks of a group: what `first` and `second` say of their state, which is each rank's number everywhere."""

    def agree(self, first, second, load=None):
        host = fake_agent.StoreHost()

        def rank(number, prepare):
            store = dist.TCPStore("127.0.0.1", host.port, 2, False)
            dist.init_process_group("gloo", store=store, rank=number, world_size=2)
            net = torch.nn.ParameterList([torch.full((1 << 19,), float(number)) for _ in range(8)])
            state = elastic.State(model=net)
            prepare(state)
            failed = None
            try:
                agree(state, load, 1)
            except RuntimeError as error:
                failed = str(error)
            return failed, state.step, state._clean, sorted({float(each.detach().mean()) for each in net})

        other = fake_agent.forked(lambda: rank(1, second) and 0)
        try:
            return in_a_fork(lambda: rank(0, first))
        finally:
            os.kill(other, 9)
            os.waitpid(other, 0)
            host.close()

    @staticmethod
    def at(step, clean=True, fresh=False, then=lambda: None):
        def prepare(state):
            state._step, state._clean, state._fresh = step, clean, fresh
            then()
        return prepare

    def test_source_dies_while_it_sends(self):
        """What it leaves is no state to go on with: some tensors are of its step, some of the earlier one."""
        come, tell = os.pipe()
        self.addCleanup(os.close, come)
        self.addCleanup(os.close, tell)

        class Counted:
            """Broadcasts, of which the sixth MiB matters: whether it is under way, and whether it is over."""

            def __init__(self, started=lambda work: None, over=lambda: None):
                self.send, self.bytes, self.started, self.over = dist.broadcast, 0, started, over
                dist.broadcast = self

            def __call__(self, tensor, *words, **more):
                work = self.send(tensor, *words, **more)
                before, self.bytes = self.bytes, self.bytes + tensor.nbytes
                if before <= 6 << 20 < self.bytes:
                    self.started(work)
                    wait = work.wait
                    work = types.SimpleNamespace(wait=lambda: (wait(), self.over()))
                return work

        def dies_in_the_middle():
            """When the other one has all that was sent: what is on its way is lost with the connection."""
            Counted(started=lambda work: (work.wait(), os.read(come, 1), os._exit(0)))

        def tells():
            Counted(over=lambda: os.write(tell, b"."))

        failed, step, clean, values = self.agree(self.at(4, then=tells), self.at(5, then=dies_in_the_middle))
        self.assertIsNotNone(failed)
        self.assertEqual((step, clean, values), (4, False, [0, 1]))

    def test_newcomers_beginning_is_no_source(self):
        """A survivor was in the middle of a step: a checkpoint knows better, and without one nobody begins anew in
        silence."""
        def load(state):
            state.load_state_dict({**state.state_dict(), "step": 3})

        self.assertEqual(self.agree(self.at(4, clean=False), self.at(0, fresh=True), load), (None, 3, True, [0]))
        failed, *rest = self.agree(self.at(4, clean=False), self.at(0, fresh=True))
        self.assertIn("no rank has a whole state", failed)
        self.assertEqual(rest, [4, False, [0]])
        # One that finds no checkpoint makes nothing whole.
        self.assertEqual(self.agree(self.at(0, clean=False), self.at(0, fresh=True), lambda state: None),
                         (None, 0, True, [1]))
        failed, *rest = self.agree(self.at(4, clean=False), self.at(4, clean=False), lambda state: None)
        self.assertIn("a `load` that calls state.load_state_dict", failed)
        self.assertEqual(rest, [4, False, [0]])
        # Nothing is lost where nothing was committed.
        self.assertEqual(self.agree(self.at(0, clean=False), self.at(0, fresh=True)), (None, 0, True, [1]))


class Meeting(unittest.TestCase):
    def test_store_that_outlives_its_workers(self):
        """As torchrun's: in the second attempt it has all that the first one's ranks have left, whoever comes first."""
        host = fake_agent.StoreHost()
        store = dist.TCPStore("127.0.0.1", host.port, None, False)

        def rank(number):
            os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(host.port),
                              TORCHELASTIC_USE_AGENT_STORE="True")

            def train(state):
                total = torch.ones(1)
                dist.all_reduce(total)
                return int(total)
            return elastic.run(train, elastic.State(epoch=0), backend="gloo")

        def in_order(first, second):
            """The second one comes when the first one has."""
            word = f"torchup/word/{first}"
            before = store.get(word) if store.check([word]) else None

            def later():
                until(lambda: store.check([word]) and store.get(word) != before)
                return rank(second)
            other = fake_agent.forked(lambda: 0 if rank(first) == 2 else 1)
            try:
                self.assertEqual(in_a_fork(later), 2)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]), 0)
                other = None
            finally:
                if other:
                    os.kill(other, 9)
                    os.waitpid(other, 0)

        try:
            for first, second in ((0, 1), (0, 1), (1, 0), (1, 0)):
                with self.subTest(first):
                    in_order(first, second)
        finally:
            host.close()


if __name__ == "__main__":
    unittest.main()
