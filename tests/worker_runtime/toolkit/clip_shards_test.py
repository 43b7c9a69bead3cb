"""Clipping of shards beside clipping of the whole."""

import unittest

import torch

from distributed_ranks import OURS, RANKS, compare, randn

def clip_requests(rank):
    gradients = [randn(10 * rank + index, 20 + index) for index in range(3)] if rank != 1 else []
    return [dict(case="clip_shards", gradients=gradients, max_norm=0.7, norm_type=kind) for kind in (2.0, 1.0, torch.inf)]


class ClippingOfShards(unittest.TestCase):
    def test_norm_of_the_whole(self):
        for ranks in RANKS:
            for number, kind in enumerate((2.0, 1.0, torch.inf)):
                with self.subTest(ranks=ranks, kind=kind):
                    whole = [gradient for rank in range(ranks) for gradient in clip_requests(rank)[number]["gradients"]]
                    parameters = [torch.zeros_like(gradient) for gradient in whole]
                    for parameter, gradient in zip(parameters, whole):
                        parameter.grad = gradient.clone()
                    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.7, kind)
                    mine = []
                    for rank in range(ranks):
                        result = OURS[ranks][rank][number]
                        self.assertLess(abs(result["norm"].item() / norm.item() - 1), 1e-6)
                        mine += [result[f"gradient{index}"] for index in range(len(clip_requests(rank)[number]["gradients"]))]
                    for ours, parameter in zip(mine, parameters, strict=True):
                        self.assertTrue(torch.allclose(ours, parameter.grad, rtol=2e-6, atol=0))


if __name__ == "__main__":
    compare(lambda _ranks, rank, _folder: clip_requests(rank))
