"""Recovery inside the process, a few scenarios of each kind. All places and world sizes: recovery_matrix_test.py.

usage: recovery_test.py [--launcher TORCHUP] [unittest options]
"""

import subprocess
import sys
import unittest

from elastic_job import HERE, LIMIT_S, Case, Outcome


class Recovery(Case):
    def recover(self, world_size, *faults, died, **how):
        outcome = self.play(world_size, *faults, **how)
        self.assert_as_undisturbed(outcome, world_size)
        self.assert_kept(outcome, world_size, died)
        return outcome

    def test_killed_in_the_backward_pass(self):
        outcome = self.recover(2, "kill:1:backward:3:0", died=1)
        self.assertEqual(outcome.final[0]["loads"], [0])  # at the very start, when nobody knew better
        self.assertEqual(outcome.final[1]["loads"], [])

    def test_rank_0_killed_in_its_step_of_three(self):
        """The others have taken that step, or not: all go on from where the furthest is."""
        self.recover(3, "kill:0:stepped:5:0", died=1)

    def test_two_of_three_at_once(self):
        self.recover(3, "kill:0:forward:4:0", "kill:2:forward:4:0", died=2)

    def test_two_in_turn(self):
        self.recover(2, "kill:1:after_backward:2:0", "kill:0:before_forward:7:1", died=2)

    def test_before_the_first_commit(self):
        self.recover(2, "kill:1:after_forward:0:0", died=1)

    def test_between_epochs(self):
        """48 samples, 2 ranks, 4 a batch: the first epoch ends with step 6."""
        self.recover(2, "kill:1:committed:6:0", died=1)

    def test_with_data_loader_processes(self):
        """The dead one's children hold its sockets: nobody's collective fails by itself."""
        self.recover(2, "kill:1:backward:3:0", died=1, more=["--workers=1"])

    def test_wrapper_that_is_held(self):
        """As a trainer's attribute, say: its hooks and its group end when the next round's takes its place."""
        self.recover(2, "kill:1:backward:3:0", "kill:1:after_backward:5:1", died=2, more=["--outside"])

    def test_newcomer_dies_in_run(self):
        for place in ("connect", "train"):
            with self.subTest(place):
                step = "0" if place == "connect" else "-"
                self.recover(2, "kill:1:step:3:0", f"kill:1:{place}:{step}:1", died=2)

    def test_all_of_the_job(self):
        """Nobody is left who knows: a checkpoint does."""
        outcome = self.play(2, "kill:0:before_forward:7:0", "kill:1:before_forward:7:0", more=["--checkpoint"])
        self.assertEqual([final["loads"] for final in outcome.final.values()], [[0], [0]])
        for final in outcome.final.values():
            for part in ("parameters", "optimizer", "scheduler", "step"):
                self.assert_same_bits(final[part], self.undisturbed(2).final[0][part], part)

    def test_killed_while_it_loads(self):
        """Who has loaded already goes on with what it has loaded, all of it, and the newcomer takes that."""
        outcome = self.play(2, "kill:0:before_forward:7:0", "kill:1:before_forward:7:0", "late:1:load:0:1",
                            more=["--checkpoint"])
        self.assertEqual({rank: final["loads"] for rank, final in outcome.final.items()}, {0: [0], 1: []})
        for final in outcome.final.values():
            for part in ("parameters", "optimizer", "scheduler", "step", "epoch"):
                self.assert_same_bits(final[part], self.undisturbed(2).final[0][part], part)

    def test_unreplicated(self):
        """Nothing goes from rank to rank: who survives keeps its process, and reads the checkpoint as the newcomer."""
        outcome = self.play(2, "kill:1:before_forward:7:0", more=["--checkpoint", "--unreplicated"])
        self.assert_kept(outcome, 2, died=1)
        self.assertEqual(outcome.final[1]["loads"], [0])
        self.assertIn(outcome.final[0]["loads"], ([0, 6], [0, 7]))  # it may have heard of it before its seventh step
        for final in outcome.final.values():
            for part in ("parameters", "optimizer", "scheduler", "step"):
                self.assert_same_bits(final[part], self.undisturbed(2).final[0][part], part)

    def test_exception_in_train(self):
        """Its process alone is replaced, and says why."""
        outcome = self.recover(2, "raise:1:before_forward:4:0", died=1)
        self.assertIn("ValueError: a fault of the program's own", outcome.log)
        self.assertEqual(outcome.log.count("Traceback (most recent call last)"), 1, outcome.log)

    def test_running_statistics(self):
        """BatchNorm's are rank 0's, which DDP sends with each step. They outlive another rank's end in the
        middle of a step, to the bit. With rank 0 its own are lost, and all go on from the next one's: no step is missing or had twice."""
        wanted = {rank: final["buffers"] for rank, final in self.undisturbed(2).final.items()}
        for rank, final in self.recover(2, "kill:1:backward:5:0", died=1).final.items():
            self.assert_same_bits(final["buffers"], wanted[rank], f"rank {rank}")
        for place in ("backward", "stepped"):
            for rank, final in self.recover(2, f"kill:0:{place}:5:0", died=1).final.items():
                count = "1.num_batches_tracked"
                self.assert_same_bits(final["buffers"][count], wanted[rank][count], f"rank {rank} after {place}")

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
        self.assertEqual([(final["step"], final["finite"]) for final in outcome.final.values()], [(14, True)] * 2)

    def test_budget_is_used_up(self):
        outcome = self.play(2, "raise:1:before_forward:2:0", "raise:1:before_forward:2:1", restarts=1, code=1)
        self.assertEqual(outcome.final, {})

    def test_weights_that_differ_at_the_start(self):
        """All take the lowest rank's; nobody is blamed for it."""
        outcome = self.play(2, more=["--unseeded"])
        self.assert_same_bits(outcome.final[0]["parameters"], outcome.final[1]["parameters"], "parameters")
        self.assertNotIn("another state", outcome.log)

    def play_under_torchrun(self, *words):
        folder = self.folder()
        with open(folder / "log", "w") as log:
            job = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                                    "--max-restarts=1", str(HERE / "elastic_program.py"), f"--out={folder}", *words],
                                   stdout=log, stderr=log)
            try:
                job.wait(LIMIT_S)
            finally:
                job.terminate()  # which it passes on
                job.wait()
        outcome = Outcome(folder, job.returncode, None)
        self.assertEqual(outcome.code, 0, outcome.log[-6000:])
        return outcome

    def test_under_torchrun(self):
        """The same program, the same bits."""
        outcome = self.play_under_torchrun()
        self.assertEqual(len(outcome.births), 2)
        self.assert_as_undisturbed(outcome, 2)

    def test_fault_under_torchrun(self):
        """It restarts all processes, which go on from the checkpoint, to the same bits."""
        outcome = self.play_under_torchrun("--fault=kill:1:before_forward:7:0", "--checkpoint")
        self.assertEqual((outcome.faults, len(outcome.births)), ({"fault.0"}, 4))
        self.assertEqual({round_number for round_number, *_ in outcome.batches}, {0, 1})
        self.assertEqual([final["loads"] for final in outcome.final.values()], [[0], [0]])
        self.assertIn(min(step for round_number, step, *_ in outcome.batches if round_number == 1), (6, 7))
        for final in outcome.final.values():
            for part in ("parameters", "optimizer", "scheduler", "step", "epoch"):
                self.assert_same_bits(final[part], self.undisturbed(2).final[0][part], part)


if __name__ == "__main__":
    unittest.main()
