#!/usr/bin/env python3
"""Process groups: how ranks find each other, what they say when they do not, collectives, a Python rank among ours.

usage: tests/support/run_case.py group_test.py CASE GROUP_WORKER
"""

import multiprocessing
import os
import sys
import tempfile
import time
import unittest

from ranks import Job, Relay, contract, free_port, run

worker = sys.argv[1]


class Case(unittest.TestCase):
    def assert_meet(self, results, world_size, backend="gloo"):
        total = world_size * (world_size - 1) // 2
        for rank, (code, out, err) in enumerate(results):
            self.assertEqual(code, 0, err)
            self.assertIn(f"rank {rank} of {world_size} local", out)
            self.assertIn(f"{backend} sum {total}", out)

    def assert_all_fail(self, results, *texts):
        for code, _, err in results:
            self.assertEqual(code, 1, err)
            for text in texts:
                self.assertIn(text, err)

    def assert_ok(self, results):
        self.assertEqual([(code, out) for code, out, _ in results], [(0, "ok\n")] * len(results), results)


class Meeting(Case):
    """Every way to say who one is."""

    def two_ranks(self, variables):
        port = free_port()
        job = Job()
        for rank in range(2):
            job.start([worker, "meet"], {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables(rank)})
        self.assert_meet(job.finish(), 2)

    def by_address(self, url):
        job = Job()
        for rank in range(2):
            job.start([worker, "meet"], {"TEST_INIT_METHOD": url, "TEST_RANK": rank, "TEST_WORLD_SIZE": 2})
        self.assert_meet(job.finish(), 2)

    def test_by_the_environment(self):
        self.assert_meet(run([worker, "meet"], 3), 3)

    def test_alone_without_any_variable(self):
        self.assert_meet(Job().start([worker, "meet"], {}).finish(), 1)

    def test_a_missing_variable_is_named(self):
        results = Job().start([worker, "meet"], {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}).finish()
        self.assert_all_fail(results, "MASTER_PORT")

    def test_by_tcp(self):
        self.by_address(f"tcp://127.0.0.1:{free_port()}")

    @unittest.skipUnless(os.path.exists("/proc/net/if_inet6"), "no IPv6 on this machine")
    def test_by_tcp_over_ipv6(self):
        self.by_address(f"tcp://[::1]:{free_port()}")

    def test_by_a_file_with_ranks_behind_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Job()
            for rank in range(2):
                job.start([worker, "meet"], {"TEST_INIT_METHOD": f"file://{folder}/store?rank={rank}&world_size=2"})
            self.assert_meet(job.finish(), 2)

    def test_by_the_ranks_of_open_mpi(self):
        self.two_ranks(lambda rank: {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                                     "OMPI_COMM_WORLD_LOCAL_SIZE": 2})

    def test_by_the_ranks_of_pmi(self):
        self.two_ranks(lambda rank: {"PMI_RANK": rank, "PMI_SIZE": 2})

    def test_by_the_ranks_of_slurm(self):
        self.two_ranks(lambda rank: {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": rank, "SLURM_STEP_ID": 0})


class Contradictions(Case):
    """Everybody fails, and at once."""

    def second_says(self, change, *texts):
        port = free_port()
        began = time.monotonic()
        results = (Job().start([worker, "meet"], contract(0, 2, port))
                   .start([worker, "meet"], {**contract(1, 2, port), **change}).finish())
        self.assert_all_fail(results, *texts)
        self.assertLess(time.monotonic() - began, 60)

    def test_two_world_sizes(self):
        self.second_says({"WORLD_SIZE": 3}, "world size 3", "world size 2", "do not agree")

    def test_who_loses_the_store_when_all_is_said_still_says_why(self):
        port = free_port()
        relay = Relay(port, cut_at=b"heard")
        self.addCleanup(relay.close)
        results = (Job().start([worker, "meet"], contract(0, 2, port))
                   .start([worker, "meet"], {**contract(1, 2, relay.port), "WORLD_SIZE": 3}).finish())
        self.assert_all_fail(results, "world size 3", "world size 2", "do not agree")

    def test_rank_0_twice(self):
        self.second_says({"RANK": 0, "LOCAL_RANK": 0}, "two processes say that they are rank 0")

    def test_two_ranks_alike_beside_a_third(self):
        port = free_port()
        job = Job().start([worker, "meet"], contract(0, 3, port))
        for _ in range(2):
            job.start([worker, "meet"], contract(1, 3, port))
        self.assert_all_fail(job.finish(), "two processes say that they are rank 1", "LOCAL_RANK passed as rank?")

    def test_local_rank_passed_as_rank(self):
        place = {**contract(3, 4, free_port()), "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "TEST_RANK": 1}
        self.assert_all_fail(Job().start([worker, "meet"], place).finish(), "rank=1 was passed, but RANK=3", "LOCAL_RANK passed as rank?")

    def test_an_address_with_half_a_number_is_refused(self):
        for url, why in ("tcp://127.0.0.1:1234x?rank=0&world_size=1", "is not tcp://host:port"), ("file:///tmp/x?rank=0x", '"rank=0x" is not a number'):
            self.assert_all_fail(Job().start([worker, "meet"], {"TEST_INIT_METHOD": url}).finish(), why)

    def test_mpi_is_refused(self):
        results = Job().start([worker, "meet"], {**contract(0, 1, free_port()), "TEST_BACKEND": "mpi"}).finish()
        self.assert_all_fail(results, "backend mpi")

    def test_nccl_without_a_gpu_is_refused(self):
        place = {**contract(0, 1, free_port()), "TEST_BACKEND": "nccl", "CUDA_VISIBLE_DEVICES": ""}
        self.assert_all_fail(Job().start([worker, "meet"], place).finish(), "backend nccl", "no GPU")

    def test_a_backend_that_cannot_be_made_is_our_error(self):
        first, second = run([worker, "meet"], 2, GLOO_SOCKET_IFNAME="nosuch7")
        self.assert_all_fail([first], "process group 0: rank", "cannot connect to the others")
        # Rank 0 serves the store, and may have ended before the other has come that far.
        self.assertEqual(second[0], 1, second)
        self.assertRegex(second[2], "cannot connect to the others|look at what rank 0 says")


class Absence(Case):
    def test_a_missing_rank_is_named_after_5_s_and_at_the_timeout(self):
        """The second to come is here 5 s before the first gives up: else it says so once only."""
        port = free_port()
        began = time.monotonic()
        job = Job()
        for rank in range(2):
            job.start([worker, "meet"], contract(rank, 3, port, TEST_TIMEOUT_MS=12_000))
        results = job.finish()
        self.assertLess(time.monotonic() - began, 60)
        self.assert_all_fail(results, "after 12 s")
        for _, _, err in results:
            self.assertEqual(err.count("2 of 3 ranks are here, missing: rank 2"), 2, err)

    def test_rank_0_does_not_come(self):
        results = Job().start([worker, "meet"], contract(1, 2, free_port(), TEST_TIMEOUT_MS=6000)).finish()
        self.assert_all_fail(results, "waits for the store", "cannot reach the store", "rank 0")

    def test_who_ends_late_finds_the_store_gone_and_ends_well(self):
        """Rank 0 serves the store and stays for a while only."""
        for code, out, err in run([worker, "late_farewell"], 2):
            self.assertEqual((code, out), (0, "ok\n"), err)


class Collectives(Case):
    def test_one_rank(self):
        self.assert_ok(run([worker, "collectives"], 1))

    def test_three_ranks(self):
        self.assert_ok(run([worker, "collectives"], 3))

    def test_seeds_by_rank_and_alike(self):
        self.assert_ok(run([worker, "seeds"], 2))


class Abort(Case):
    """gloo's limit lies beyond the test's: it is not what ends these collectives."""

    def test_while_a_collective_waits_in_another_thread(self):
        self.assert_ok(run([worker, "abort_while_waiting"], 3, TEST_TIMEOUT_MS=600_000))

    def test_with_two_ranks(self):
        self.assert_ok(run([worker, "abort_while_waiting"], 2, TEST_TIMEOUT_MS=600_000))

    def test_after_a_death_nobody_waits_for_the_dead(self):
        results = run([worker, "abort_after_a_death"], 2, TEST_TIMEOUT_MS=600_000)
        self.assertEqual([(code, out) for code, out, _ in results], [(0, "ok\n"), (0, "")], results)


def python_rank(rank, world_size, port, queue):
    import torch
    import torch.distributed as dist
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor = torch.full((4,), rank + 1.0)
    dist.all_reduce(tensor)
    word = torch.full((2,), rank)
    dist.broadcast(word, 1)
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(gathered, torch.full((1,), rank))
    sub = dist.new_group([0, 1])
    again = torch.ones(1)
    if rank < 2:
        dist.all_reduce(again, group=sub)
    dist.barrier()
    queue.put(f"sum {tensor[0].item():g} word {word[0].item()} all {gathered[-1].item()} sub {again.item():g}\n")


class BesidePython(Case):
    """A Python rank does collectives with two of ours; DDP with it is refused."""

    def python_is(self, python):
        port = free_port()
        queue = multiprocessing.Queue()
        other = multiprocessing.Process(target=python_rank, args=(python, 3, port, queue))
        other.start()
        self.addCleanup(other.kill)
        ranks = [rank for rank in range(3) if rank != python]
        job = Job()
        for rank in ranks:
            # Python's import of torch takes long beside other work.
            job.start([worker, "beside_python"], contract(rank, 3, port, TEST_TIMEOUT_MS=80_000))
        results = job.finish()
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        said = dict(zip(ranks, (out.splitlines(keepends=True)[0] for _, out, _ in results)))
        said[python] = queue.get(timeout=90)
        other.join(30)
        self.assertEqual(said, {rank: f"sum 6 word 1 all 2 sub {2 if rank < 2 else 1}\n" for rank in range(3)})
        for _, out, _ in results:
            self.assertIn("some ranks of this job are Python", out)

    def test_which_serves_the_store(self):
        self.python_is(0)

    def test_as_the_client_of_a_store_of_ours(self):
        self.python_is(2)


if __name__ == "__main__":
    sys.exit(__doc__)
