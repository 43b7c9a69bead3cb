"""Clipping of gradients."""

import math
import unittest

import torch

from replay import generator, main, request

class Clipping(unittest.TestCase):
    wanted = []

    def test_norm(self):
        for asked, result in self.wanted:
            with self.subTest(f"norm {asked.get('norm_type')} max {asked.get('max_norm')} limit {asked.get('limit')}"):
                parameters = [torch.zeros_like(g) if g is not None else torch.zeros(2) for g in asked["gradients"]]
                for parameter, gradient in zip(parameters, asked["gradients"]):
                    parameter.grad = None if gradient is None else gradient.clone()
                ours = result()
                torch.set_num_threads(int(asked.get("threads", 1)))
                self.addCleanup(torch.set_num_threads, 1)
                if "limit" in asked:
                    torch.nn.utils.clip_grad_value_(parameters, asked["limit"])
                else:
                    norm = torch.nn.utils.clip_grad_norm_(parameters, asked["max_norm"], asked["norm_type"])
                    self.assertTrue(torch.equal(torch.tensor(ours["norm"].item()), torch.tensor(norm.item())) or norm.isnan())
                for index, parameter in enumerate(parameters):
                    if parameter.grad is None:
                        self.assertNotIn(f"gradient{index}", ours)
                    else:
                        self.assertTrue(torch.equal(ours[f"gradient{index}"], parameter.grad) or parameter.grad.isnan().any())

    def test_refuses_a_norm_that_is_not_finite(self):
        ours = self.strict()
        self.assertIn("not finite", ours["error"])
        self.assertTrue(ours["gradient0"].isinf().any())


def gradients_for_clipping(scale=1.0):
    source = generator(5)
    mixed = [torch.randn(shape, generator=source) * scale for shape in [(31, 7), (9,), (100,)]]
    return mixed + [None, (torch.randn(12, generator=source) * scale).bfloat16(), torch.randn(4, generator=source).double() * scale]


for kind in (2.0, 1.0, 3.0, math.inf):
    for limit in (0.5, 0.7, 1e6):
        asked = dict(case="clip", gradients=gradients_for_clipping(), max_norm=limit, norm_type=kind)
        Clipping.wanted.append((asked, request(**asked)))
# So large that more than one thread takes part: each takes whole tensors, or ATen cuts them, by kind.
large = [torch.randn(size, generator=generator(6)) for size in (100_000, 17, 40_001, 60_000)]
large_kinds = [
    large,
    [gradient.bfloat16() for gradient in large],
    [gradient.double() for gradient in large],
    [large[0].view(250, 400).t(), large[1], large[3].view(2, 30, 1000).permute(2, 0, 1)],
    [large[0].view(250, 400)[:, ::2], large[2]],
]
for gradients in large_kinds:
    for kind in (2.0, 1.0, math.inf):
        asked = dict(case="clip", gradients=gradients, max_norm=1.0, norm_type=kind, threads=2.0)
        Clipping.wanted.append((asked, request(**asked)))
asked = dict(case="clip", gradients=gradients_for_clipping(math.inf), max_norm=1.0, norm_type=2.0)
Clipping.wanted.append((asked, request(**asked)))
Clipping.strict = staticmethod(request(**asked, strict=True))
asked = dict(case="clip", gradients=gradients_for_clipping(), limit=0.3)
Clipping.wanted.append((asked, request(**asked)))


if __name__ == "__main__":
    main()
