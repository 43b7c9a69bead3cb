#!/usr/bin/env python3
"""Fused optimizers, clipping, schedules, GradScaler and autocast beside the Python classes of the same torch.

usage: parity.py TOOLKIT_REPLAY

One run of the C++ program replays every request; each comparison is a unittest. Equal means equal bits.
"""

import copy
import math
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch

REQUESTS = []
RESULTS = []


def request(**values):
    """Adds a request; returns what gives its result after the replay."""
    REQUESTS.append(values)
    index = len(REQUESTS) - 1
    return lambda: RESULTS[index]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def same(test, ours, python, message):
    test.assertEqual(ours.dtype, python.dtype, message)
    test.assertTrue(torch.equal(ours, python), f"{message}: differs by {(ours.double() - python.double()).abs().max()}")


# --- optimizers ---------------------------------------------------------------------------------------------------

PYTHON_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def python_optimizer(asked, parameters):
    names = {"momentum", "dampening", "weight_decay", "nesterov", "maximize", "eps", "amsgrad", "lr"}
    options = {name: value for name, value in asked.items() if name in names}
    if "beta1" in asked:
        options["betas"] = (asked["beta1"], asked.get("beta2", 0.999))
    groups = [{"params": parameters}]
    if "second_group_lr" in asked:
        half = len(parameters) // 2
        groups = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": asked["second_group_lr"]}]
    kind = asked["optimizer"]
    if kind.startswith("plain_"):
        # C++ SGD's arithmetic is that of Python without foreach and fused.
        return PYTHON_OPTIMIZERS[kind.removeprefix("plain_")](groups, foreach=False, **options)
    return PYTHON_OPTIMIZERS[kind](groups, fused=True, **options)


def kernel_keeps_bfloat16_momentum():
    """Not that of torch 2.11: its second step mixes the first one's buffer up, in Python as well."""
    parameter = torch.zeros(32, dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=1.0, fused=True)
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return bool(optimizer.state[parameter]["momentum_buffer"].eq(2).all())


def optimizer_cases():
    shapes = [(33, 17), (17,), (5, 3, 2, 2), (1,), (64, 65)]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for asked in (
            dict(optimizer="sgd", lr=0.1),
            dict(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=1e-2),
            dict(optimizer="sgd", lr=0.1, momentum=0.9, nesterov=True, maximize=True),
            dict(optimizer="sgd", lr=0.1, momentum=0.8, dampening=0.3, second_group_lr=0.03),
            dict(optimizer="adam", lr=1e-2, weight_decay=1e-2),
            dict(optimizer="adam", lr=1e-2, amsgrad=True, maximize=True, beta1=0.7, beta2=0.9, eps=1e-6),
            dict(optimizer="adamw", lr=1e-2),
            dict(optimizer="adamw", lr=1e-2, amsgrad=True, weight_decay=0.1, second_group_lr=0.03),
            dict(optimizer="adamw", lr=1e-2, save_after=2),
            dict(optimizer="sgd", lr=1e-2, momentum=0.9, save_after=3),
            dict(optimizer="adamw", lr=1e-2, scaled=True),
            dict(optimizer="sgd", lr=1e-2, momentum=0.9, scaled=True),
            dict(optimizer="adamw", lr=1e-2, late=True),
        ):
            if dtype != torch.bfloat16 or "momentum" not in asked or kernel_keeps_bfloat16_momentum():
                yield dtype, asked, shapes


def optimizer_request(dtype, asked, shapes):
    source = generator(len(REQUESTS))
    parameters = [torch.randn(shape, generator=source).to(dtype) for shape in shapes]
    if len(shapes) > 2:
        parameters[2] = parameters[2].contiguous(memory_format=torch.channels_last)
    steps = [[torch.randn(shape, generator=source).to(dtype) for shape in shapes] for _ in range(6)]
    if asked.get("late"):  # one parameter gets its first gradient in the third step, another never
        for step in steps[:2]:
            step[1] = None
        for step in steps:
            step[3] = None
    asked = dict(asked, case="optimizer", parameters=parameters, gradients=steps)
    if asked.pop("scaled", False):
        found = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
        asked.update(grad_scale=torch.tensor(128.0), found_inf=found)
        for step, inf in zip(steps, found):
            for index, gradient in enumerate(step):
                gradient.mul_(128)
                if inf and index == 0:
                    gradient.view(-1)[0] = math.inf
    return asked


def optimizer_reference(asked):
    parameters = [tensor.clone().requires_grad_() for tensor in asked["parameters"]]
    optimizer = python_optimizer(asked, parameters)
    for number, gradients in enumerate(asked["gradients"]):
        for parameter, gradient in zip(parameters, gradients):
            # In the parameter's layout, as autograd makes it: Python's fused kernels look at no strides.
            parameter.grad = None if gradient is None else torch.empty_like(parameter.detach()).copy_(gradient)
        if "grad_scale" in asked:
            optimizer.grad_scale, optimizer.found_inf = asked["grad_scale"], asked["found_inf"][number]
        optimizer.step()
    return parameters, optimizer.state


class Optimizers(unittest.TestCase):
    wanted = []

    def test_equal_bits(self):
        self.assertEqual(len(self.wanted), 39 if kernel_keeps_bfloat16_momentum() else 34)
        for asked, dtype, result in self.wanted:
            name = f"{asked['optimizer']} {dtype} { {k: v for k, v in asked.items() if isinstance(v, (float, bool, int))} }"
            with self.subTest(name):
                parameters, state = optimizer_reference(asked)
                ours = result()
                moved = False
                for index, parameter in enumerate(parameters):
                    same(self, ours[f"parameter{index}"], parameter.detach(), f"{name} parameter {index}")
                    moved = moved or not torch.equal(parameter, asked["parameters"][index])
                    for key, value in state.get(parameter, {}).items():
                        if value is not None:
                            same(self, ours[f"{key}{index}"], value, f"{name} {key} {index}")
                self.assertTrue(moved)

    def test_goes_on_where_plain_adamw_stopped(self):
        ours = self.from_plain()
        for index in range(2):
            difference = (ours[f"parameter{index}"] - ours[f"expected{index}"]).abs().max().item()
            self.assertLess(difference, 1e-6)
            self.assertGreater(ours[f"parameter{index}"].abs().max().item(), 0)


for dtype, asked, shapes in optimizer_cases():
    asked = optimizer_request(dtype, asked, shapes)
    Optimizers.wanted.append((asked, dtype, request(**asked)))
Optimizers.from_plain = staticmethod(
    request(case="adamw_from_plain", parameters=[torch.randn(40, generator=generator(1)), torch.randn(3, 3, generator=generator(2))],
            gradients=[torch.randn(40, generator=generator(3)), torch.randn(3, 3, generator=generator(4))]))


# --- clipping -----------------------------------------------------------------------------------------------------


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


# --- schedules ----------------------------------------------------------------------------------------------------


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
    ONECYCLE, dict(ONECYCLE, three_phase=True, linear=True), dict(ONECYCLE, max_lr=[0.5, 2.0], pct_start=0.25, cycle_momentum=False),
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


# --- mixed precision ----------------------------------------------------------------------------------------------


class MixedPrecision(unittest.TestCase):
    wanted, wanted_on_gpu = [], []

    def test_steps(self):
        for asked, result in self.wanted:
            with self.subTest(f"{asked['optimizer']} clip {asked.get('max_norm')}"):
                python, ours = self.python_steps(asked), result()
                self.assertGreater(len(set(python["scale"])), 2)
                for name in ("scale", "loss", "norm"):
                    if name in python:
                        self.assertEqual(str(ours[name].tolist()), str(python[name]))  # as text: NaN equals NaN
                for index, parameter in enumerate(python["parameters"]):
                    same(self, ours[f"parameter{index}"], parameter, f"parameter {index}")
                state = {key.removeprefix("state."): value.item() for key, value in ours.items() if key.startswith("state.")}
                self.assertEqual(state, python["state"])

    @unittest.skipUnless(torch.cuda.is_available(), "torch finds no GPU on this machine")
    def test_steps_on_a_gpu(self):
        for asked, result in self.wanted_on_gpu:
            with self.subTest(f"{asked['optimizer']} clip {asked.get('max_norm')}"):
                python, ours = self.python_steps(asked), result()
                self.assertEqual(ours["scale"].tolist(), python["scale"])
                for name, value in {"loss": python["loss"], **dict(enumerate(python["parameters"]))}.items():
                    mine = ours[name if name == "loss" else f"parameter{name}"]
                    torch.testing.assert_close(mine.double(), torch.as_tensor(value).double(), rtol=1e-2, atol=1e-3, equal_nan=True)

    @staticmethod
    def python_steps(asked):
        device = asked["device"]
        parameters = [tensor.clone().to(device).requires_grad_() for tensor in asked["parameters"]]
        optimizer = python_optimizer(asked, parameters)
        scaler = torch.amp.GradScaler(device, init_scale=asked["init_scale"], growth_interval=2)
        scales, losses, norms = [], [], []
        for inputs, targets in zip(asked["inputs"], asked["targets"]):
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            with torch.autocast(device):
                hidden = torch.nn.functional.linear(inputs, *parameters)
                with torch.autocast(device, enabled=False):
                    outside = torch.nn.functional.linear(inputs, *parameters)
                loss = torch.nn.functional.mse_loss(hidden.float() + outside, targets)
            scaler.scale(loss).backward()
            if "max_norm" in asked:
                scaler.unscale_(optimizer)
                norms.append(torch.nn.utils.clip_grad_norm_(parameters, asked["max_norm"]).item())
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
        return {"scale": scales, "loss": losses, "parameters": [parameter.detach().cpu() for parameter in parameters],
                "state": scaler.state_dict()} | ({"norm": norms} if norms else {})

    def test_misuse_is_refused(self):
        ours = self.misuse()
        momentum = ours.pop("bfloat16_momentum")
        if kernel_keeps_bfloat16_momentum():
            self.assertEqual(momentum, "accepted")
        else:
            self.assertIn("loses the momentum of BFloat16", momentum)
        self.assertEqual(len(ours), 13)
        for name, text in ours.items():
            with self.subTest(name):
                self.assertNotEqual(text, "accepted")
        self.assertIn("already been called", ours["unscale_twice"])
        self.assertIn("already been called", ours["step_twice"])
        self.assertIn("float16", ours["fp16_gradients"])


def mixed_requests(device):
    source = generator(7)
    inputs = [torch.randn(8, 16, generator=source) for _ in range(9)]
    targets = [torch.randn(8, 4, generator=source) for _ in inputs]
    inputs[3][0, 0] = math.inf
    inputs[4] = inputs[4] * 1e30
    for optimizer in (dict(optimizer="sgd", lr=0.01, momentum=0.9), dict(optimizer="adamw", lr=0.01), dict(optimizer="plain_sgd", lr=0.01)):
        for clip in ({}, {"max_norm": 0.7}):
            yield dict(case="amp", device=device, init_scale=65536.0, inputs=inputs, targets=targets, reload_at=5,
                       parameters=[torch.randn(4, 16, generator=source), torch.randn(4, generator=source)], **optimizer, **clip)


for asked in mixed_requests("cpu"):
    MixedPrecision.wanted.append((asked, request(**asked)))
if torch.cuda.is_available():
    for asked in mixed_requests("cuda"):
        MixedPrecision.wanted_on_gpu.append((asked, request(**asked)))
MixedPrecision.misuse = staticmethod(request(case="misuse"))


class Summary(unittest.TestCase):
    def test_counts_shared_tensors_once(self):
        ours = self.summary()
        self.assertEqual(ours["parameters"].item(), 1 + (12 + 4) + (4 + 4) + (8 + 2))
        self.assertEqual(ours["trainable"].item(), ours["parameters"].item() - 1)
        self.assertEqual(ours["buffers"].item(), 4 + 4 + 1)
        self.assertEqual(ours["bytes"].item(), 4 * (35 + 8) + 8)
        self.assertEqual(len(ours["table"].splitlines()), 6)


Summary.summary = staticmethod(request(case="summary"))


def replay(program):
    with tempfile.TemporaryDirectory() as folder:
        requests, results = os.path.join(folder, "requests.pt"), os.path.join(folder, "results.pt")
        torch.save(REQUESTS, requests)
        subprocess.run([program, requests, results], check=True, timeout=60)
        return torch.load(results, weights_only=False)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    RESULTS = replay(sys.argv.pop(1))
    unittest.main()
