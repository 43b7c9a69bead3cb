#!/usr/bin/env python3
"""DistributedDataParallel beyond the bits: errors that name what is wrong and reach every rank, output types, optimizers on
gradient views, uneven inputs against Python's join, a rank that dies.

usage: tests/support/run_case.py ddp_test.py CASE DDP_WORKER
"""

import multiprocessing
import os
import sys
import tempfile
import time
import unittest

from ranks import run

worker = sys.argv[1]


class Case(unittest.TestCase):
    def assert_same(self, results):
        """All ranks end well and say the same; returns what they say."""
        self.assertEqual([code for code, _, _ in results], [0] * len(results), results)
        self.assertEqual(len({out for _, out, _ in results}), 1, results)
        return results[0][1]


class AnotherModel(Case):
    """One rank has another model than the others: every rank says so."""

    def differs_in(self, what, *texts):
        began = time.monotonic()
        said = self.assert_same(run([worker, "shapes", what], 3))
        self.assertLess(time.monotonic() - began, 90)
        for text in texts:
            self.assertIn(text, said)

    def test_width(self):
        self.differs_in("width", "parameter 0 (in.weight) on rank 2", "[9, 4]", "on rank 0 (in.weight)", "[8, 4]")

    def test_count(self):
        self.differs_in("count", "rank 2 has 3 parameters that require a gradient, rank 0 has 4", "out.bias")

    def test_dtype(self):
        self.differs_in("dtype", "parameter 0 (in.weight) on rank 2", "double", "float")

    def test_frozen_parameter(self):
        self.differs_in("frozen", "(frozen) on rank 2", "[5]", "on rank 0 (frozen)", "[4]")

    def test_buffer(self):
        self.differs_in("buffer", "(table) on rank 2", "[5]", "on rank 0 (table)", "[4]")

    def test_one_more(self):
        self.differs_in("more", "rank 2 has 5 parameters and buffers, rank 0 has 4", "table")


class Training(Case):
    def test_unused_parameters_are_named_and_reset_makes_the_next_step_work(self):
        results = run([worker, "unused_error"], 2)
        for rank, (code, out, err) in enumerate(results):
            self.assertEqual(code, 0, err)
            self.assertTrue(out.startswith("Expected to have finished reduction in the prior iteration"), out)
            self.assertIn("b.weight, b.bias", out)
            self.assertIn(f"rank {rank}", out)
            self.assertIn("after reset", out)
        self.assertEqual(len({out.partition("after reset")[2] for _, out, _ in results}), 1, results)

    def test_reset_with_a_reduction_under_way(self):
        self.assert_same(run([worker, "reset_in_flight", "copy"], 2))

    def test_reset_with_a_reduction_under_way_of_gradients_that_are_views(self):
        self.assert_same(run([worker, "reset_in_flight", "view"], 2))

    def test_a_static_graph_whose_first_iteration_fails(self):
        self.assert_same(run([worker, "static_first_fails"], 2))

    def test_tensors_are_found_in_pair_map_vector_optional_and_an_own_type(self):
        self.assert_same(run([worker, "outputs"], 2))

    def test_every_optimizer_works_on_gradient_views(self):
        self.assertEqual(self.assert_same(run([worker, "optimizers"], 2)).count("\n"), 10)

    def test_refusals_name_what_and_where(self):
        self.assertEqual(self.assert_same(run([worker, "refusals"], 2)), "ok\n")

    def test_a_second_backward_of_one_forward_is_told_in_debug_mode(self):
        results = run([worker, "second_backward"], 2, TORCH_DISTRIBUTED_DEBUG="INFO")
        self.assert_same(results)
        for _, _, err in results:
            self.assertIn("4 gradients came after their step was reduced", err)

    def test_when_a_rank_dies_the_others_get_an_exception(self):
        *others, (code, _, _) = run([worker, "die_in_backward"], 3)
        self.assertEqual(code, 9)
        for code, out, err in others:
            self.assertEqual(code, 0, err)
            self.assertGreater(len(out), 10)
            self.assertNotIn("imed out", out)


class Hooks(Case):
    def test_an_exception_out_of_a_hook_costs_one_step(self):
        self.assert_same(run([worker, "failing_hook"], 2))

    def test_a_result_of_any_shape_and_memory_order(self):
        self.assert_same(run([worker, "hook_results"], 2))

    def test_bfloat16_on_the_wire(self):
        self.assert_same(run([worker, "wire_hook"], 3))

    def test_power_sgd_over_several_buckets(self):
        """Python's own hook cannot be asked here: with several buckets it reduces them in the order of completion, which hangs."""
        self.assertEqual(self.assert_same(run([worker, "power_sgd"], 3)).count("step "), 6)


WORLD_SIZE = 3


def python_rank(rank, store, by_active, view, graph, queue):
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(rank)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("in", nn.Linear(4, 8))
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            return self.out(torch.tanh(getattr(self, "in")(x)))

    net = Net()
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001, gradient_as_bucket_view=view, find_unused_parameters=graph == "unused",
                                              static_graph=graph == "static")
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)

    def fingerprint(tensors):
        return sum(tensor.detach().double().abs().sum().item() for tensor in tensors)

    steps = []
    with ddp.join(divide_by_initial_world_size=not by_active):
        for step in range(3 + rank):
            optimizer.zero_grad()
            ddp(torch.full((2, 4), step + 1.0)).square().mean().backward()
            steps.append(fingerprint(p.grad for p in net.parameters()))
            optimizer.step()
    queue.put((rank, [fingerprint(net.parameters()), *steps]))
    dist.destroy_process_group()


class UnevenInputs(Case):
    """Against Python's join."""

    def as_python(self, by_active, view, graph):
        import torch._dynamo  # noqa: F401; once: each rank's first optimizer would
        with tempfile.TemporaryDirectory() as folder:
            queue = multiprocessing.Queue()
            others = [multiprocessing.Process(target=python_rank, args=(rank, os.path.join(folder, "store"), by_active, view, graph, queue))
                      for rank in range(WORLD_SIZE)]
            for other in others:
                other.start()
                self.addCleanup(other.kill)
            theirs = dict(queue.get(timeout=240) for _ in others)
            for other in others:
                other.join(30)
        results = run([worker, "join", "active" if by_active else "initial", "view" if view else "copy", graph, "3"], WORLD_SIZE)
        self.assertEqual([code for code, _, _ in results], [0] * WORLD_SIZE, results)
        ours = {rank: [float(line.split()[1]) for line in out.splitlines()] for rank, (_, out, _) in enumerate(results)}
        self.assertEqual(ours, theirs)

    def test_by_initial_ranks(self):
        self.as_python(False, False, "used")

    def test_by_initial_ranks_with_unused_parameters(self):
        self.as_python(False, True, "unused")

    def test_by_initial_ranks_in_a_static_graph(self):
        self.as_python(False, True, "static")

    def test_by_active_ranks(self):
        self.as_python(True, False, "used")

    def test_by_active_ranks_with_unused_parameters(self):
        self.as_python(True, True, "unused")

    def test_by_active_ranks_in_a_static_graph(self):
        self.as_python(True, True, "static")

    def test_a_static_graph_with_a_rank_that_has_no_inputs_at_all(self):
        without_first, plain = (run([worker, "join", "initial", "copy", graph, "0"], WORLD_SIZE) for graph in ("static", "used"))
        self.assertEqual([code for code, _, _ in without_first], [0] * WORLD_SIZE, without_first)
        self.assertEqual([out for _, out, _ in without_first], [out for _, out, _ in plain])

    def test_throw_on_early_termination(self):
        (_, first, _), (_, second, _) = run([worker, "join_throws"], 2)
        self.assertTrue(first.startswith("Rank 0 exhausted all inputs."), first)
        self.assertTrue(second.startswith("Detected at least one rank"), second)


if __name__ == "__main__":
    sys.exit(__doc__)
