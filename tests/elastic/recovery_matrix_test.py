"""Recovery inside the process: kill -9 at every place of a step, 2 to 4 ranks; the undisturbed run's bits each time.

usage: recovery_matrix_test.py [--launcher TORCHUP] [unittest options]
"""

import itertools
import unittest

from elastic_job import Case

PLACES = ("before_forward", "forward", "after_forward", "backward_begins", "backward", "after_backward", "step",
          "stepped", "committed")


class Matrix(Case):
    def recover(self, world_size, *faults, died, **how):
        with self.subTest(world_size=world_size, faults=faults):
            outcome = self.play(world_size, *faults, **how)
            self.assert_as_undisturbed(outcome, world_size)
            self.assert_kept(outcome, world_size, died)

    def test_one(self):
        for world_size in (2, 3, 4):
            steps = itertools.cycle(range(1, 48 // 4 // world_size * 2 - 1))
            for place, rank in itertools.product(PLACES, (0, world_size - 1)):
                self.recover(world_size, f"kill:{rank}:{place}:{next(steps)}:0", died=1)

    def test_two_at_once(self):
        for place, (one, other) in itertools.product(PLACES, ((0, 3), (1, 2))):
            self.recover(4, f"kill:{one}:{place}:3:0", f"kill:{other}:{place}:3:0", died=2)

    def test_two_in_turn(self):
        for world_size, (one, other) in itertools.product((2, 3, 4), zip(PLACES, reversed(PLACES))):
            self.recover(world_size, f"kill:1:{one}:1:0", f"kill:0:{other}:3:1", died=2)

    def test_with_data_loader_processes(self):
        for world_size, place in itertools.product((2, 3), ("before_forward", "backward", "stepped")):
            self.recover(world_size, f"kill:0:{place}:3:0", died=1, more=["--workers=2"])


if __name__ == "__main__":
    unittest.main()
