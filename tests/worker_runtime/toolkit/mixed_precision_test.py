"""GradScaler and autocast, and what misuse is told."""

import math
import unittest
import warnings

import torch

from replay import generator, kernel_keeps_bfloat16_momentum, main, python_optimizer, request, same

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
        self.assertEqual(len(ours), 14)
        for name, text in ours.items():
            with self.subTest(name):
                self.assertNotEqual(text, "accepted")
        self.assertIn("already been called", ours["unscale_twice"])
        self.assertIn("already been called", ours["step_twice"])
        self.assertIn("float16", ours["fp16_gradients"])
        self.assertIn("leaves no steps", ours["onecycle_phase_of_no_steps"])
        python = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD([torch.ones(1)], momentum=0.9), 1.0, total_steps=3, pct_start=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            python.step()
            python.step()
            self.assertRaises(ZeroDivisionError, python.step)


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


if __name__ == "__main__":
    main()
