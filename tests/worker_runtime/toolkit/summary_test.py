"""A model's summary."""

import unittest


from replay import main, request

class Summary(unittest.TestCase):
    def test_counts_shared_tensors_once(self):
        ours = self.summary()
        self.assertEqual(ours["parameters"].item(), 1 + (12 + 4) + (4 + 4) + (8 + 2))
        self.assertEqual(ours["trainable"].item(), ours["parameters"].item() - 1)
        self.assertEqual(ours["buffers"].item(), 4 + 4 + 1)
        self.assertEqual(ours["bytes"].item(), 4 * (35 + 8) + 8)
        self.assertEqual(len(ours["table"].splitlines()), 6)


Summary.summary = staticmethod(request(case="summary"))


if __name__ == "__main__":
    main()
