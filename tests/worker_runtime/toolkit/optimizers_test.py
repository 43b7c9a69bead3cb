"""Fused optimizers."""

import math
import unittest

import torch

from replay import generator, kernel_keeps_bfloat16_momentum, main, python_optimizer, request, same

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
    source = generator(len(Optimizers.wanted))
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


if __name__ == "__main__":
    main()
