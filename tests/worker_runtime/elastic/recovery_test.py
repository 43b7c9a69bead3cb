"""Recovery inside the process, in C++: a few scenarios of each kind. All places and world sizes: matrix_test.py.

usage: recovery_test.py ELASTIC_WORKER [--launcher TORCHUP] [unittest options]
"""

import subprocess
import sys
import unittest

from elastic_case import WORKER, Case
from elastic_job import LAUNCHER, LIMIT_S, Outcome

PARTS = ("parameters", "optimizer", "scheduler", "lr", "step")


class Recovery(Case):
    def assert_ends_as(self, final, wanted):
        for part in PARTS:
            self.assert_same_bits(final[part], wanted[part], part)

    def test_killed_in_the_backward_pass(self):
        outcome = self.recover(2, "kill:1:backward:3:0", died=1)
        self.assertEqual(outcome.final[0]["loads"], [0])  # at the very start, when nobody knew better
        self.assertEqual(outcome.final[1]["loads"], [])
        self.assertEqual([final["restart_count"] for final in outcome.final.values()], [1, 1])

    def test_rank_0_killed_in_its_step_of_three(self):
        """The others have taken that step, or not: all go on from where the furthest is."""
        self.recover(3, "kill:0:stepped:5:0", died=1)

    def test_before_the_buckets_are_laid_out_anew(self):
        """In the second step, by the order in which the first one's gradients arrived: three ranks' sums depend on it."""
        self.recover(3, "kill:1:before_forward:1:0", "kill:2:backward:1:1", died=2)

    def test_two_of_three_at_once(self):
        self.recover(3, "kill:0:forward:4:0", "kill:2:forward:4:0", died=2)

    def test_two_in_turn(self):
        self.recover(2, "kill:1:after_backward:2:0", "kill:0:before_forward:7:1", died=2)

    def test_before_the_first_commit(self):
        self.recover(2, "kill:1:after_forward:0:0", died=1)

    def test_between_epochs(self):
        """48 samples, 2 ranks, 4 a batch: the first epoch ends with step 6."""
        self.recover(2, "kill:1:committed:6:0", died=1)

    def test_running_statistics(self):
        """Rank 0's are everybody's; it lives."""
        outcome = self.recover(2, "kill:1:backward:3:0", died=1)
        self.assert_same_bits(outcome.final[0]["buffers"], self.undisturbed(2).final[0]["buffers"], "buffers")

    def test_optimizers_and_wrappers(self):
        for more in (["--optimizer", "sgd"], ["--optimizer", "fused", "--views"], ["--static-graph"], ["--find-unused"]):
            with self.subTest(more):
                self.recover(2, "kill:1:backward:3:0", died=1, more=more)

    def test_with_a_group_and_loader_threads_of_the_function(self):
        self.recover(2, "kill:1:backward:3:0", died=1, more=["--child", "--loader-threads"])

    def test_newcomer_dies_before_or_in_run(self):
        for place, step in (("connect", "0"), ("train", "-")):
            with self.subTest(place):
                self.recover(2, "kill:1:step:3:0", f"kill:1:{place}:{step}:1", died=2)

    def test_waiting_at_the_store(self):
        """What blocks there ends too."""
        self.recover(3, "block:0:before_forward:3:0", "kill:1:before_forward:3:0", died=1)

    def test_all_of_the_job(self):
        """Nobody is left who knows: a checkpoint does."""
        outcome = self.play(2, "kill:0:before_forward:7:0", "kill:1:before_forward:7:0", more=["--checkpoint"])
        self.assertEqual([final["loads"] for final in outcome.final.values()], [[0], [0]])
        for final in outcome.final.values():
            self.assert_ends_as(final, self.undisturbed(2).final[0])

    def test_killed_when_all_have_loaded(self):
        """Who survives that goes on with what it has loaded, all of it, and not with what it had before."""
        outcome = self.play(2, "block:0:step:7:0", "kill:1:step:7:0", "kill:1:loaded:0:1", more=["--checkpoint", "--rarely"])
        self.assertEqual({rank: final["loads"] for rank, final in outcome.final.items()}, {0: [0, 7], 1: []})
        for final in outcome.final.values():
            self.assert_ends_as(final, self.undisturbed(2).final[0])

    def test_unreplicated_before_the_first_checkpoint(self):
        """Who has trained is not what a newcomer is, and nothing can be loaded: all begin anew."""
        outcome = self.play(2, "kill:1:before_forward:3:0", more=["--unreplicated"])
        self.assertEqual(len(outcome.births), 4)
        self.assertIn("has trained already", outcome.log)
        for final in outcome.final.values():
            self.assert_ends_as(final, self.undisturbed(2).final[0])

    def test_checkpoints_of_a_job_with_survivors(self):
        """Whoever writes them, and whoever died while they were written: the next ones are whole."""
        outcome = self.recover(2, "kill:0:after_backward:4:0", "kill:1:after_forward:8:1", died=2, more=["--checkpoint"])
        self.assertNotIn("was not written", outcome.log)

    def test_unreplicated(self):
        """Nothing goes from rank to rank: who survives keeps its process, and reads the checkpoint as the newcomer."""
        outcome = self.play(2, "kill:1:before_forward:7:0", more=["--checkpoint", "--unreplicated"])
        self.assert_kept(outcome, 2, died=1)
        self.assertEqual(outcome.final[1]["loads"], [0])
        self.assertIn(outcome.final[0]["loads"], ([0, 6], [0, 7]))  # it may have heard of it before its seventh step
        for final in outcome.final.values():
            self.assert_ends_as(final, self.undisturbed(2).final[0])

    def test_exception_in_train(self):
        """Its process alone is replaced, and says why."""
        outcome = self.recover(2, "raise:1:before_forward:4:0", died=1)
        self.assertEqual(outcome.log.count("ends by an exception"), 1, outcome.log)
        self.assertIn("std::invalid_argument: a fault of the program's own", outcome.log)

    def test_silent_peer(self):
        """Stopped in the middle, it is killed after the grace; who waited for it has parked at once."""
        self.recover(3, "stop:1:backward:3:0", "kill:2:backward:3:0", died=2)

    def test_world_size_2_1_2(self):
        """The rest of the epoch is dealt anew, twice; no restart is counted for the one that came."""
        outcome = self.play(2, "kill:1:backward:3:0", "member:0:before_forward:6:1", worlds=[2, 1, 2], restarts=1)
        self.assertEqual((outcome.agent.kept, outcome.agent.restarts), ([1, 1], 1))
        self.assertEqual(len(outcome.births), 3)
        for epoch in range(2):
            self.assertEqual(outcome.samples(epoch), list(range(48)))
        self.assert_same_bits(outcome.final[0]["parameters"], outcome.final[1]["parameters"], "parameters")
        # 3 steps of two, 3 of one, 2 of two for the 12 samples that are left; then 6.
        self.assertEqual([final["step"] for final in outcome.final.values()], [14] * 2)
        self.assertEqual([final["ranks"] for _, final in sorted(outcome.final.items())], [[0] * 3, [1] * 3])

    def test_replica_that_is_not_equal(self):
        """Nobody sees it while the job trains. In the next round it takes the state that the lowest rank has."""
        outcome = self.recover(3, "differ:1:before_forward:4:0", "kill:2:before_forward:4:0", died=1)
        self.assertIn("rank 1 had another state than rank 0 after the same steps", outcome.log)

    def test_asked_to_stop_after_a_restart(self):
        """All ranks, the new one too, stop after the same step."""
        if not LAUNCHER:
            self.skipTest("the agent of the tests knows no job that is to go on another time")
        outcome = self.play(2, "kill:1:backward:3:0", "ask:0:before_forward:7:1", code=75,
                            more=["--checkpoint", "--epochs", "1000"])
        self.assertEqual(len(outcome.births), 3)
        steps = [step for _, step, *_ in outcome.batches]
        self.assertEqual(steps.count(max(steps)), 2)

    def test_forked_newcomer(self):
        """From a process that has loaded the program before it has an environment, a channel and a place of its own."""
        if not LAUNCHER:
            self.skipTest("the agent of the tests executes its workers")
        self.launcher_options = ["--preload=program"]
        outcome = self.recover(2, "kill:1:backward:3:0", "kill:0:step:5:1", died=2)
        self.assertTrue(all(final["forked"] for final in outcome.final.values()))

    def test_second_run(self):
        """It is one of plain workers: nobody is kept, and all begin with the first one."""
        outcome = self.play(2, "kill:1:again:-:0", more=["--twice"])
        self.assert_ends_as(outcome.final[0], self.undisturbed(2).final[0])
        self.assertEqual(len(outcome.births), 4)

    def test_budget_is_used_up(self):
        outcome = self.play(2, "raise:1:before_forward:2:0", "raise:1:before_forward:2:1", restarts=1, code=1)
        self.assertEqual(outcome.final, {})

    def test_weights_that_differ_at_the_start(self):
        """All take the lowest rank's; nobody is blamed for it."""
        outcome = self.play(2, more=["--unseeded"])
        self.assert_same_bits(outcome.final[0]["parameters"], outcome.final[1]["parameters"], "parameters")
        self.assertNotIn("another state", outcome.log)

    def test_collective_before_run(self):
        """A newcomer would wait there for survivors: it is refused from the first start on."""
        outcome = self.play(2, more=["--collective-before"], restarts=0, code=1)
        self.assertIn("collectives or made groups since init_process_group", outcome.log)

    def test_under_torchrun(self):
        """The same program, the same bits."""
        folder = self.folder()
        job = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                                "--no-python", WORKER, "--out", str(folder)])
        try:
            self.assertEqual(job.wait(LIMIT_S), 0)
        finally:
            job.terminate()  # which it passes on
            job.wait()
        self.assert_as_undisturbed(Outcome(folder, 0, None, self.read_finals), 2)


if __name__ == "__main__":
    unittest.main()
