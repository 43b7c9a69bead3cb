"""Recovery inside the process, in C++: kill -9 at every place of a step, 2 to 4 ranks; the undisturbed run's bits each time.

usage: matrix_test.py ELASTIC_WORKER [--launcher TORCHUP] [unittest options]
"""

import itertools
import unittest

from elastic_case import Case

PLACES = ("before_forward", "forward", "after_forward", "backward_begins", "backward", "after_backward", "step",
          "stepped", "committed")


class Matrix(Case):
    def recover(self, world_size, *faults, died, **how):
        with self.subTest(world_size=world_size, faults=faults):
            super().recover(world_size, *faults, died=died, **how)

    def test_one(self):
        """Adam and SGD with momentum by turns; the steps before and after the buckets are laid out anew among them."""
        optimizers = itertools.cycle(("adam", "sgd"))
        for world_size in (2, 3, 4):
            steps = itertools.cycle(range(48 // 4 // world_size * 2 - 1))
            for place, rank in itertools.product(PLACES, (0, world_size - 1)):
                step = next(steps) + (place == "committed")
                self.recover(world_size, f"kill:{rank}:{place}:{step}:0", died=1, more=["--optimizer", next(optimizers)])

    def test_two_at_once(self):
        for place, (one, other) in itertools.product(PLACES, ((0, 3), (1, 2))):
            self.recover(4, f"kill:{one}:{place}:3:0", f"kill:{other}:{place}:3:0", died=2)

    def test_two_in_turn(self):
        for world_size, (one, other) in itertools.product((2, 3, 4), zip(PLACES, reversed(PLACES))):
            self.recover(world_size, f"kill:1:{one}:1:0", f"kill:0:{other}:3:1", died=2)

    def test_exceptions(self):
        for world_size, place in itertools.product((2, 3), PLACES):
            self.recover(world_size, f"raise:{world_size - 1}:{place}:2:0", died=1)


if __name__ == "__main__":
    unittest.main()
