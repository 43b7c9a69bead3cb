"""Ranks with different numbers of batches beside the join of Python's DDP."""

import contextlib
import unittest

import torch
from torch.distributed.algorithms.join import Join as PythonJoin

from distributed_ranks import OURS, PYTHON, RANKS, compare, randn

JOIN_CASES = [{}, {"divide_by_active": True}, {"throw": True}, {"two_models": True}, {"two_models": True, "divide_by_active": True}]


def join_model():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(randn(index, *parameter.shape))
    return model


def join_request(case, rank):
    inputs = [randn(100 * rank + step, 5, 6) for step in range(13 if rank % 2 else 10)]
    return dict(case="join", inputs=inputs, parameters=[p.detach().clone() for p in join_model().parameters()], **case)


def python_join(asked):
    models = [torch.nn.parallel.DistributedDataParallel(join_model()) for _ in range(2 if "two_models" in asked else 1)]
    parameters = [parameter for ddp in models for parameter in ddp.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
    steps, error = 0, ""
    try:
        with PythonJoin(models, divide_by_initial_world_size="divide_by_active" not in asked, throw_on_early_termination="throw" in asked):
            for data in asked["inputs"]:
                optimizer.zero_grad()
                for number, ddp in enumerate(models):
                    with ddp.no_sync() if steps % 4 == 2 else contextlib.nullcontext():
                        (number + ddp(data)).square().mean().backward()
                optimizer.step()
                steps += 1
    except RuntimeError as raised:
        error = str(raised)
    return {"steps": steps, "error": error, "parameters": [parameter.detach() for parameter in parameters],
            "buffers": [buffer for ddp in models for buffer in ddp.buffers()]}


class Join(unittest.TestCase):
    def test_equals_python(self):
        for ranks in RANKS:
            for number, case in enumerate(JOIN_CASES):
                for rank in range(ranks):
                    with self.subTest(ranks=ranks, rank=rank, case=case):
                        ours, python = OURS[ranks][rank][number], PYTHON[ranks][rank][number]
                        self.assertEqual(ours["steps"].item(), python["steps"])
                        self.assertEqual(ours["error"], python["error"])
                        self.assertEqual(bool(ours["error"]), "throw" in case and ranks > 1)
                        for kind in ("parameter", "buffer"):
                            for index, value in enumerate(python[kind + "s"]):
                                self.assertTrue(torch.equal(ours[f"{kind}{index}"], value), f"{kind} {index}")


def requests(_ranks, rank, _folder):
    return [join_request(case, rank) for case in JOIN_CASES]



if __name__ == "__main__":
    compare(requests, lambda rank: [python_join(join_request(case, rank)) for case in JOIN_CASES])
