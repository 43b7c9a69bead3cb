"""Schedules of learning rates."""

import copy
import unittest
import warnings

import torch

from replay import generator, main, python_optimizer, request

def python_schedule(asked, optimizer):
    schedulers = torch.optim.lr_scheduler
    kind = asked["kind"]
    if kind == "step":
        return schedulers.StepLR(optimizer, asked["step_size"], asked["gamma"])
    if kind == "multistep":
        return schedulers.MultiStepLR(optimizer, asked["milestones"], asked["gamma"])
    if kind == "linear":
        return schedulers.LinearLR(optimizer, asked["start_factor"], asked["end_factor"], asked["total_iters"])
    if kind == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, asked["t_max"], asked["eta_min"])
    if kind == "chained":
        return schedulers.ChainedScheduler([python_schedule(child, optimizer) for child in asked["schedulers"]])
    if kind == "sequential":
        children = [python_schedule(child, optimizer) for child in asked["schedulers"]]
        return schedulers.SequentialLR(optimizer, children, asked["milestones"])
    if kind == "onecycle":
        return schedulers.OneCycleLR(
            optimizer, asked["max_lr"] if len(asked["max_lr"]) > 1 else asked["max_lr"][0], total_steps=asked["total_steps"],
            pct_start=asked["pct_start"], anneal_strategy="linear" if asked["linear"] else "cos",
            cycle_momentum=asked["cycle_momentum"], three_phase=asked["three_phase"])
    options = {name: asked[name] for name in ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr")}
    return schedulers.ReduceLROnPlateau(optimizer, **options)


STEP = dict(kind="step", step_size=4, gamma=0.3)
MULTISTEP = dict(kind="multistep", milestones=[3, 9, 9, 20], gamma=0.1)
LINEAR = dict(kind="linear", start_factor=0.1, end_factor=0.9, total_iters=7)
COSINE = dict(kind="cosine", t_max=10, eta_min=1e-3)
ONECYCLE = dict(kind="onecycle", max_lr=[0.5], total_steps=30, pct_start=0.3, linear=False, cycle_momentum=True, three_phase=False)
PLATEAU = dict(kind="plateau", mode="min", factor=0.5, patience=2, threshold=1e-2, threshold_mode="rel", cooldown=1, min_lr=[1e-3, 2e-3])
SCHEDULES = [
    STEP, MULTISTEP, LINEAR, COSINE, dict(COSINE, t_max=1, eta_min=0.0), dict(COSINE, t_max=30),
    ONECYCLE, dict(ONECYCLE, pct_start=1.0), dict(ONECYCLE, three_phase=True, linear=True), dict(ONECYCLE, max_lr=[0.5, 2.0], pct_start=0.25, cycle_momentum=False),
    dict(kind="chained", schedulers=[LINEAR, COSINE]),
    dict(kind="chained", schedulers=[LINEAR, STEP, MULTISTEP]),
    dict(kind="sequential", schedulers=[LINEAR, COSINE], milestones=[8]),
    dict(kind="sequential", schedulers=[LINEAR, STEP, MULTISTEP, LINEAR, COSINE], milestones=[3, 9, 14, 20]),
    dict(kind="sequential", schedulers=[dict(kind="chained", schedulers=[LINEAR, COSINE]), STEP], milestones=[11]),
    dict(kind="sequential", schedulers=[dict(kind="sequential", schedulers=[LINEAR, COSINE], milestones=[4]), STEP], milestones=[11]),
    dict(kind="sequential", schedulers=[LINEAR, ONECYCLE], milestones=[5]),
    dict(kind="chained", schedulers=[dict(kind="sequential", schedulers=[LINEAR, COSINE], milestones=[5]), STEP]),
    PLATEAU, dict(PLATEAU, mode="max", threshold_mode="abs"), dict(PLATEAU, mode="max", cooldown=0), dict(PLATEAU, threshold_mode="abs", patience=0),
]


class Schedules(unittest.TestCase):
    wanted = []

    def test_value_lists(self):
        for asked, result in self.wanted:
            with self.subTest(str(asked["schedule"])):
                optimizer = python_optimizer(asked, [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)])
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    scheduler = python_schedule(asked["schedule"], optimizer)
                    rates, momenta = [], []
                    for step in range(asked["steps"] + 1):
                        for group in optimizer.param_groups:
                            rates.append(group["lr"])
                            momenta.append(group["momentum"] if "momentum" in group else group["betas"][0])
                        if step < asked["steps"]:
                            scheduler.step(*([asked["metrics"][step]] if "metrics" in asked else []))
                ours = result()
                self.assertEqual(ours["lr"].tolist(), rates)
                if asked["reload_at"] < 0:  # momentum is the optimizer's state, which the request does not carry over
                    self.assertEqual(ours["momentum"].tolist(), momenta)
                self.assertGreater(len(set(rates)), 2)


def schedule_requests():
    metrics = torch.rand(30, generator=generator(6)).add(torch.linspace(1, 0.7, 30)).tolist()
    for schedule in SCHEDULES:
        for optimizer in ("sgd", "plain_sgd", "adamw"):
            for reload_at in (-1, 12):
                asked = dict(case="rates", schedule=schedule, optimizer=optimizer, lr=0.1, second_group_lr=0.7, steps=24, reload_at=reload_at)
                if optimizer != "adamw":
                    asked["momentum"] = 0.5
                if schedule["kind"] == "plateau":
                    asked["metrics"] = metrics
                yield asked


for asked in schedule_requests():
    Schedules.wanted.append((asked, request(**copy.deepcopy(asked))))


if __name__ == "__main__":
    main()
