"""State and the sampler: without processes and groups, but for one that is alone.

usage: state_test.py [unittest options]
"""

import builtins
import os
import random
import statistics
import sys
import time
import unittest
import unittest.mock
import weakref

import elastic_job  # noqa: F401; finds the package, or skips

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data import DistributedSampler as TorchSampler

from torchup import _image, elastic
from torchup._group import drop
from torchup._link import link
from worker_end_test import in_a_fork


class Sampler(unittest.TestCase):
    def test_torchs_lists(self):
        for size in (1, 2, 3, 7, 16, 48):
            for world_size in (1, 2, 3, 5):
                for how in ({}, {"drop_last": True}, {"shuffle": False}, {"seed": 9}):
                    for rank in range(world_size):
                        ours = elastic.DistributedSampler(range(size), world_size, rank, **how)
                        theirs = TorchSampler(range(size), world_size, rank, **how)
                        for epoch in (0, 4):
                            ours.set_epoch(epoch)
                            theirs.set_epoch(epoch)
                            self.assertEqual(list(ours), list(theirs))
                            self.assertEqual(len(ours), len(theirs))

    def test_goes_on_in_the_very_list(self):
        whole = list(elastic.DistributedSampler(range(48), 3, 1, seed=5))
        later = elastic.DistributedSampler(range(48), 3, 1, seed=5)
        later.load_state_dict({"epoch": 0, "consumed": 12, "seed": 5})
        self.assertEqual(list(later), whole[4:])

    def test_other_world_size_deals_the_rest(self):
        for consumed in (0, 7, 10, 20, 47):
            order = list(elastic.DistributedSampler(range(48), 1, 0, seed=5))
            dealt = []
            for rank in range(5):
                one = elastic.DistributedSampler(range(48), 5, rank, seed=5)
                one.load_state_dict({"epoch": 0, "consumed": consumed, "seed": 5})
                dealt.append(list(one))
            rest = [dealt[i % 5][i // 5] for i in range(5 * len(dealt[0]))]
            self.assertEqual(rest[: 48 - consumed], order[consumed:])
            self.assertEqual(rest[48 - consumed :], order[: len(rest) - 48 + consumed])  # and on from the beginning

    def test_passes_and_positions(self):
        data = range(12)
        sampler = elastic.DistributedSampler(data, 2, 0, shuffle=False)
        state = elastic.State(epoch=0)
        batches = state.batches(DataLoader(data, batch_size=2, sampler=sampler))
        self.assertEqual(next(batches).tolist(), [0, 2])
        self.assertEqual(sampler.state_dict()["consumed"], 4)
        kept = sampler.state_dict()
        self.assertEqual([batch.tolist() for batch in batches], [[4, 6], [8, 10]])
        self.assertEqual(sampler.state_dict()["consumed"], 12)
        sampler.load_state_dict(kept)
        sampler.set_epoch(0)  # the same: the position stays
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        self.assertEqual([batch.tolist() for batch in state.batches(loader)], [[4, 6], [8, 10]])
        self.assertEqual(len(list(state.batches(loader))), 3)  # the next pass is a whole one
        sampler.load_state_dict({"epoch": 0, "consumed": 12, "seed": 0})
        sampler.set_epoch(0)
        self.assertEqual(list(state.batches(loader)), [])  # this very epoch is over
        sampler.set_epoch(1)
        self.assertEqual(len(list(state.batches(loader))), 3)
        sampler.load_state_dict({"epoch": 1, "consumed": 12, "seed": 0})
        self.assertEqual(len(list(state.batches(loader))), 3)  # nobody says which epoch is meant: the next

    def test_the_last_batch_of_a_pass(self):
        """A position in the middle of a pass, behind its last sample: that pass is over, whoever never calls set_epoch.
        Behind a pass that has ended: the next one is a whole one."""
        data = range(4)
        for behind, expected in (("commit in the loop", 0), ("the loop", 2)):
            sampler = elastic.DistributedSampler(data, 1, 0, shuffle=False)
            state = elastic.State(epoch=0)
            loader = DataLoader(data, batch_size=2, sampler=sampler)
            for _ in state.batches(loader):
                position = sampler.state_dict()
            if behind == "the loop":
                position = sampler.state_dict()
            self.assertEqual(position["consumed"], 4)
            later = elastic.DistributedSampler(data, 1, 0, shuffle=False)
            later.load_state_dict(position)
            loader = DataLoader(data, batch_size=2, sampler=later)
            self.assertEqual([len(list(state.batches(loader))) for _ in range(2)], [expected, 2], behind)

    def test_samplers_that_each_round_makes_anew(self):
        """They go on where the job stands, in a survivor as in a newcomer, and nothing of them piles up."""
        data = range(12)

        def loader():
            return DataLoader(data, batch_size=2, sampler=elastic.DistributedSampler(data, 1, 0, shuffle=False))

        survivor, newcomer = elastic.State(epoch=0), elastic.State(epoch=0)
        for state in (survivor, newcomer):
            state._begin(None, 0)
        for round_number in range(3):
            batches = survivor.batches(loader())
            self.assertEqual(next(batches).tolist(), [2 * round_number, 2 * round_number + 1])
            survivor.commit()
            next(batches)
            survivor._restore()
            survivor._begin(None, 0)
        newcomer._take(_image.unpack(_image.pack(survivor._image(), []), {}, []))
        newcomer._begin(None, 0)
        self.assertEqual(next(newcomer.batches(loader())).tolist(), [6, 7])
        self.assertEqual(next(survivor.batches(loader())).tolist(), [6, 7])
        self.assertEqual(len(survivor.state_dict()["samplers"]), 1)

    def test_an_epoch_that_was_named_before_the_round(self):
        """It says nothing of this round, in which no set_epoch comes: a survivor and a newcomer give the same."""
        data = range(4)

        def make():
            sampler = elastic.DistributedSampler(data, 1, 0, shuffle=False)
            sampler.set_epoch(0)
            return elastic.State(epoch=0), DataLoader(data, batch_size=2, sampler=sampler)

        (survivor, its), (newcomer, others) = make(), make()
        survivor._begin(None, 0)
        self.assertEqual(len(list(survivor.batches(its))), 2)
        survivor.commit()
        survivor._restore()
        newcomer._go_to(survivor._where())
        for state, loader in ((survivor, its), (newcomer, others)):
            state._begin(None, 0)
            self.assertEqual(len(list(state.batches(loader))), 2)

    def test_a_position_that_nobody_has_is_the_beginning(self):
        data = range(12)
        state = elastic.State(epoch=0)
        sampler = elastic.DistributedSampler(data, 1, 0, shuffle=False)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        batches = state.batches(loader)
        next(batches)
        state.commit()
        state._restore()
        self.assertEqual(state._where().popitem()[1]["consumed"], 2)
        state._go_to({})  # of a newcomer, or of a checkpoint from before the first batch
        self.assertEqual(len(list(state.batches(loader))), 6)

    def test_loaders(self):
        data = range(10)
        state = elastic.State(epoch=0)
        dropping = DataLoader(data, batch_size=4, sampler=elastic.DistributedSampler(data, 1, 0), drop_last=True)
        self.assertEqual(len(list(state.batches(dropping))), 2)
        self.assertEqual(dropping.sampler.state_dict()["consumed"], 10)
        singly = DataLoader(data, batch_size=None, sampler=elastic.DistributedSampler(data, 1, 0, shuffle=False))
        self.assertEqual([int(each) for each in state.batches(singly)], list(data))
        own = elastic.DistributedSampler(data, 1, 0, shuffle=False)
        batched = DataLoader(data, batch_sampler=BatchSampler(own, 5, False))
        self.assertEqual([each.tolist() for each in state.batches(batched)], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
        for stranger in (DataLoader(data), [1, 2]):
            self.assertRaises(TypeError, next, state.batches(stranger))

    def test_other_seed_is_refused(self):
        self.assertRaisesRegex(ValueError, "seed 1", elastic.DistributedSampler(range(4), 1, 0).load_state_dict,
                               {"epoch": 0, "consumed": 2, "seed": 1})


class Parts(unittest.TestCase):
    def make(self, **more):
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return elastic.State(model=net, optimizer=optimizer, scheduler=scheduler, epoch=0, seen=[], **more)

    def step(self, state):
        state.model(torch.randn(4, 3)).sum().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.scheduler.step()

    def test_names(self):
        state = self.make()
        self.assertRaises(AttributeError, lambda: state.unknown)
        with self.assertRaises(AttributeError):
            state.unknown = 1
        with self.assertRaises(AttributeError):
            state.step = 1
        with self.assertRaises(AttributeError):
            state.model = torch.nn.Linear(1, 1)
        state.epoch += 1
        self.assertEqual((state.epoch, state.step), (1, 0))
        for name in ("commit", "step", "_kept"):
            self.assertRaises(ValueError, elastic.State, **{name: 1})

    def test_back_to_the_last_commit(self):
        """All but parameters and the optimizer's tensors, which only a whole step changes."""
        state = self.make(total=torch.zeros(2))
        self.step(state)
        state.commit()
        buffers = [buffer.clone() for buffer in state.model.buffers()]
        rate = state.optimizer.param_groups[0]["lr"]
        numbers = torch.rand(1), random.random(), numpy.random.rand()
        state._restore()
        again = torch.rand(1), random.random(), numpy.random.rand()
        self.assertEqual(numbers, again)
        state.epoch = 5
        state.seen.append(1)
        state.total += 1
        state.model(torch.randn(4, 3)).sum().backward()
        state.scheduler.step()
        self.assertNotEqual(state.optimizer.param_groups[0]["lr"], rate)
        state._restore()
        self.assertEqual((state.epoch, state.seen, state.total.tolist(), state.step), (0, [], [0, 0], 1))
        self.assertTrue(all(map(torch.equal, state.model.buffers(), buffers)))
        self.assertEqual((state.optimizer.param_groups[0]["lr"], state.scheduler.get_last_lr()), (rate, [rate]))
        self.assertTrue(all(parameter.grad is None for parameter in state.model.parameters()))

    def test_buffers_that_a_forward_pass_makes(self):
        """A mask that is there only then, a cache that grows: as they were, and nothing is shared with what is kept."""
        net = torch.nn.Linear(2, 2)
        net.register_buffer("mask", None)
        net.register_buffer("cache", torch.zeros(2))
        state = elastic.State(model=net)
        for _ in range(2):
            state.commit()
            net.mask, net.cache = torch.ones(3), torch.ones(5)
            state._restore()
            self.assertEqual((net.mask, net.cache.tolist()), (None, [0, 0]))
            net.cache += 1
            state._restore()
            self.assertEqual(net.cache.tolist(), [0, 0])
        net.mask = torch.ones(3)
        state.commit()
        net.mask = None
        state._restore()
        self.assertEqual(net.mask.tolist(), [1, 1, 1])

    def test_buffers_that_a_forward_pass_registers(self):
        """They are gone again at the last commit's place, and a newcomer gets those that were there then."""
        state, newcomer = (elastic.State(model=torch.nn.Sequential(torch.nn.Linear(2, 2))) for _ in range(2))
        inner = state.model[0]
        state.commit()
        inner.register_buffer("codebook", torch.ones(3))
        state._restore()
        self.assertFalse(hasattr(inner, "codebook"))
        inner.register_buffer("codebook", torch.ones(3))
        inner.register_buffer("passing", torch.ones(1), persistent=False)
        state.model.add_module("later", torch.nn.BatchNorm1d(2, affine=False))
        state.commit()
        inner.codebook += 1
        state._restore()
        self.assertEqual(inner.codebook.tolist(), [1, 1, 1])
        sent, room = [], []
        skeleton = _image.pack(state._image(), sent)
        self.assertRaisesRegex(RuntimeError, "not the same modules", newcomer._room, skeleton, [])
        newcomer.model.add_module("later", torch.nn.BatchNorm1d(2, affine=False))
        image = newcomer._room(skeleton, room)
        for target, source in zip(room, sent, strict=True):
            target.copy_(source)
        newcomer._take(image)
        self.assertEqual(newcomer.model[0].codebook.tolist(), [1, 1, 1])
        self.assertEqual(list(newcomer.model.state_dict()), list(state.model.state_dict()))

    def test_a_buffer_that_overlaps_itself(self):
        net = torch.nn.Linear(2, 2)
        net.register_buffer("wide", torch.ones(1, 2).expand(3, 2))
        state = elastic.State(model=net)
        state.commit()
        state._restore()
        self.assertEqual(net.wide.tolist(), [[1, 1]] * 3)
        self.assertTrue(_image.overlaps(torch.ones(1).expand(3)))
        self.assertFalse(_image.overlaps(torch.ones(1, 2).t()))

    def test_a_state_that_was_loaded_is_what_a_round_goes_back_to(self):
        """A peer may be lost while it loads: nothing is a mixture of the loaded state and the one before."""
        stored = self.make()
        for _ in range(3):
            self.step(stored)
            stored.commit()
        stored.epoch = 2
        checkpoint = _image.copied(stored.state_dict())
        state = self.make()
        state._keep()  # as `run` does
        state.load_state_dict(checkpoint)
        state._restore()
        self.assertEqual((state.step, state.epoch), (3, 2))
        self.assertEqual(state.optimizer.param_groups[0]["lr"], stored.optimizer.param_groups[0]["lr"])
        self.assertTrue(all(map(torch.equal, state.model.buffers(), stored.model.buffers())))

    def test_a_scaler_in_the_middle_of_a_step(self):
        """Gradients of the next round are unscaled as those of any other."""
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        state = elastic.State(model=net, optimizer=optimizer, scaler=scaler)
        state.commit()
        for broken in (True, False):
            scaler.scale(net(torch.ones(1, 1)).sum()).backward()
            scaler.unscale_(optimizer)
            self.assertEqual(net.weight.grad.item(), 1)
            if broken:
                optimizer.grad_scale = torch.ones(1)  # a fused optimizer's
                state._restore()
        self.assertFalse(hasattr(optimizer, "grad_scale"))

    def test_parts_in_another_order(self):
        """Keywords may come from a set, whose order is each process's own."""
        def linear(number):
            made = torch.nn.Linear(2, 2, bias=False)
            torch.nn.init.constant_(made.weight, number)
            return made

        state = elastic.State(one=linear(1), two=linear(2))
        newcomer = elastic.State(two=linear(0), one=linear(0))
        sent, room = [], []
        image = newcomer._room(_image.pack(state._image(), sent), room)
        for target, source in zip(room, sent, strict=True):
            target.copy_(source)
        newcomer._take(image)
        self.assertEqual((newcomer.one.weight[0, 0].item(), newcomer.two.weight[0, 0].item()), (1, 2))
        self.assertEqual(state._sum(), newcomer._sum())

    def test_what_cannot_be_sent(self):
        """It is found before the first round, not at a fault, by one survivor after the other."""
        log_alpha = torch.zeros(1, requires_grad=True)
        for what, parts in (("part how cannot be sent", {"how": lambda: 1}),
                            ("part adjacency cannot be sent", {"adjacency": torch.eye(2).to_sparse()}),
                            ("part alpha trains a tensor", {"alpha": torch.optim.SGD([log_alpha], 0.1)}),
                            ("part log_alpha trains a tensor", {"log_alpha": log_alpha})):
            def work():
                os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
                try:
                    elastic.run(lambda state: None, elastic.State(epoch=0, **parts))
                except TypeError as error:
                    return str(error)
            self.assertIn(what, in_a_fork(work))

    def test_gate(self):
        state = self.make()
        self.assertTrue(state._clean)
        self.step(state)
        self.assertFalse(state._clean)
        state.commit()
        self.assertTrue(state._clean)
        link._over = "a test"
        try:
            before = [parameter.clone() for parameter in state.model.parameters()]
            self.assertRaises(elastic.Interrupted, self.step, state)
            self.assertTrue(all(map(torch.equal, before, state.model.parameters())))
            self.assertTrue(state._clean)
            self.assertRaises(elastic.Interrupted, state.commit)
            self.assertEqual(state.step, 2)  # it is counted: the step was done
        finally:
            link._over = None

    def test_checkpoint(self):
        state, other = self.make(), self.make()
        data = range(12)
        sampler = elastic.DistributedSampler(data, 1, 0)
        batches = state.batches(DataLoader(data, batch_size=2, sampler=sampler))
        rest = []
        for batch in range(6):
            rest.append(next(batches).tolist())
            if batch < 2:
                self.step(state)
                state.commit()
            if batch == 1:
                stored = _image.copied(state.state_dict())
        other.load_state_dict(stored)
        self.assertEqual(other.step, 2)
        # The sampler is known to the other only now.
        later = DataLoader(data, batch_size=2, sampler=elastic.DistributedSampler(data, 1, 0))
        self.assertEqual([batch.tolist() for batch in other.batches(later)], rest[2:])
        self.assertRaises(ValueError, elastic.State(epoch=0).load_state_dict, stored)

    def test_image_makes_equal(self):
        state, newcomer = self.make(), self.make()
        for _ in range(2):
            self.step(state)
            state.commit()
        state.seen.append(torch.ones(2))
        self.assertNotEqual(state._sum(), newcomer._sum())
        sent, room = [], []
        skeleton = _image.pack(state._image(), sent)
        mine = list(newcomer.model.parameters())
        image = newcomer._room(skeleton, room)
        for target, source in zip(room, sent, strict=True):
            target.copy_(source)
        newcomer._take(image)
        self.assertEqual(state._sum(), newcomer._sum())
        self.assertEqual((newcomer.step, newcomer.seen[0].tolist()), (2, [1, 1]))
        self.assertTrue(all(a is b for a, b in zip(mine, newcomer.model.parameters())))
        self.assertTrue(all(map(torch.equal, state.model.buffers(), newcomer.model.buffers())))
        torch.manual_seed(1)
        self.step(state)
        torch.manual_seed(1)
        self.step(newcomer)
        self.assertEqual(state._sum(), newcomer._sum())
        stranger = elastic.State(model=torch.nn.Linear(3, 3), optimizer=state.optimizer, scheduler=state.scheduler,
                                 epoch=0, seen=[])
        self.assertRaisesRegex(RuntimeError, "not the same model", stranger._room, skeleton, [])

    def test_checksum(self):
        one = torch.randn(5, 3)

        def of(*tensors):
            return _image.checksum(enumerate(tensors))

        self.assertEqual(of(one), of(one.clone()))
        self.assertEqual(of(one.t().contiguous().t()), of(one))
        other = one.clone()
        other.view(torch.int32)[4, 2] ^= 1
        self.assertNotEqual(of(one), of(other))
        self.assertNotEqual(of(one, other), of(other, one))
        self.assertNotEqual(of(torch.zeros(2)), of(torch.zeros(3)))
        for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.int8):
            of(torch.ones(7, dtype=dtype), torch.zeros((), dtype=dtype), torch.zeros(0, dtype=dtype))
            of(torch.ones(9, dtype=dtype)[1:])

    def test_time_of_commit(self):
        """20 buffers: measured 0.1 ms; the limit is what a machine with other load on it keeps too."""
        net = torch.nn.Sequential(*(torch.nn.BatchNorm1d(64) for _ in range(7)))
        state = elastic.State(model=net, optimizer=torch.optim.AdamW(net.parameters()), epoch=0)
        self.assertEqual(len(list(net.buffers())), 21)
        for seed in (None, (42, 0)):
            state._seed = seed
            times = []
            for _ in range(200):
                begin = time.perf_counter()
                state.commit()
                times.append(time.perf_counter() - begin)
            print(f"commit with 21 buffers, seed {seed}: median {1e6 * statistics.median(times):.0f} us")
            self.assertLess(min(times), 0.002)


class Alone(unittest.TestCase):
    def test_alone(self):
        """No launcher: one rank, the same program."""
        def work():
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
            net = torch.nn.Linear(2, 1)
            state = elastic.State(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1))
            loads = []

            def train(state):
                ddp = torch.nn.parallel.DistributedDataParallel(state.model)
                while state.step < 3:
                    ddp(torch.ones(1, 2)).sum().backward()
                    state.optimizer.step()
                    state.commit()
                return state.step

            done = elastic.run(train, state, load=loads.append, seed=1), elastic.run(lambda state: "again", state)
            failed = None
            try:
                elastic.run(lambda state: 1 / 0, state)
            except ZeroDivisionError as error:
                failed = str(error)
            return done, len(loads), failed
        self.assertEqual(in_a_fork(work), ((3, "again"), 1, "division by zero"))


    def test_again_after_an_exception(self):
        """Who handles what has ended `run` can call it again, and has Python's own way to show exceptions then."""
        def work():
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
            state, hook, ended = elastic.State(epoch=0), sys.excepthook, []

            def fail(state):
                torch.distributed.all_reduce(torch.ones(1))
                raise failure("what the program does")

            for failure in (ValueError, KeyboardInterrupt, SystemExit):
                try:
                    elastic.run(fail, state, backend="gloo")
                except failure as error:
                    ended.append(str(error))
            return len(ended), elastic.run(lambda state: "again", state), sys.excepthook is hook
        self.assertEqual(in_a_fork(work), (3, "again", True))

    def test_exceptions_that_name_one_another(self):
        """`raise first from second`, of which the second came while the first was handled; and those in a group."""
        def work():
            kept = {}

            def fail(name, *causes):
                held = kept.setdefault(name, torch.ones(1))  # as a frame holds a wrapper
                raise ValueError(name, weakref.ref(held)) from (causes[0] if causes else None)

            def caught(name, *causes):
                try:
                    fail(name, *causes)
                except ValueError as error:
                    return error

            first, second = caught("first"), caught("second")
            first.__cause__, second.__context__ = second, first
            alone = caught("of a group")
            both = getattr(builtins, "BaseExceptionGroup", None)  # since Python 3.11
            first.__context__ = both("both", [alone]) if both else alone
            kept.clear()
            drop(first, sys.excepthook)
            return [each.args[1]() for each in (first, second, alone)]
        self.assertEqual(in_a_fork(work), [None, None, None])

    def test_unreplicated_and_nothing_to_load(self):
        """Who has trained is not what newcomers are: no checkpoint, no way on. At the beginning there is."""
        def work():
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
            net = torch.nn.Linear(2, 1)
            state = elastic.State(replicated=False, model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1))
            first = elastic.run(lambda state: state.commit() or state.step, state, load=lambda state: None)
            try:
                elastic.run(lambda state: None, state, load=lambda state: None)
            except RuntimeError as error:
                return first, str(error)
        first, error = in_a_fork(work)
        self.assertEqual(first, 1)
        self.assertIn("`load` has found nothing", error)

    def test_after_a_group_that_could_not_be_destroyed(self):
        """The next one has its name all the same."""
        def work():
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
            import torch.distributed as dist
            made = []
            for broken in (True, False):
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
                made.append(dist.get_world_size())
                if broken:
                    with unittest.mock.patch.object(dist, "destroy_process_group", side_effect=RuntimeError("no")):
                        drop(None, sys.excepthook)
            return made
        self.assertEqual(in_a_fork(work), [1, 1])

    def test_unreplicated_needs_a_load(self):
        state = elastic.State(replicated=False, model=torch.nn.Linear(2, 1))
        with self.assertRaisesRegex(ValueError, "replicated=False"):
            elastic.run(lambda state: None, state)

    def test_nobody_to_compare_with(self):
        """Who alone is furthest does not look at every byte of its state."""
        def work():
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
            state = elastic.State(model=torch.nn.Linear(2, 1))
            with unittest.mock.patch.object(elastic.State, "_sum", side_effect=AssertionError):
                return elastic.run(lambda state: "done", state)
        self.assertEqual(in_a_fork(work), "done")


if __name__ == "__main__":
    unittest.main()
