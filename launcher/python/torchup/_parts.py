"""The parts of a State. Each knows what of it is copied at every commit, and what it is made of.

`copy` and `restore`: what can be further than the last commit when a step is interrupted. `image` and `take`: all of
it, for a rank that knows less; `check`: whether that can take it; `room`: where its tensors come to lie there. `sums`:
the tensors in which replicas must be equal. `trained`: those that the part wants trained.
"""

import contextlib

import torch

from ._image import copied, fits, overlaps, unpack


def _fits(room, tensor):
    return (room is not None and room.shape == tensor.shape and room.dtype == tensor.dtype
            and room.device == tensor.device and not overlaps(room))


def filled_like(rooms, tensors):
    """Copies of the tensors, in the rooms that fit and in new ones elsewhere. None stays None."""
    def room_for(room, each):
        return room if _fits(room, each) else torch.empty_like(each)

    found = [None if each is None else room_for(room, each) for room, each in zip(rooms, tensors)]
    if present := [each for each in tensors if each is not None]:
        torch._foreach_copy_([each for each in found if each is not None], present)
    return found


class Part:
    """What parts have in common."""

    def __init__(self, value):
        self.value = value
        self._kept = None

    def check(self, skeleton, name):
        pass

    def room(self, skeleton, tensors):
        return unpack(skeleton, self.image(), tensors)

    def sums(self):
        return ()

    def trained(self):
        return ()

    def state_dict(self):
        return self.value.state_dict()

    def load_state_dict(self, state):
        self.value.load_state_dict(state)


class ModulePart(Part):
    """Parameters stand where they are: only a whole optimizer step changes them. Buffers and extra state are copied."""

    def __init__(self, module):
        super().__init__(module)
        self.refresh()

    def refresh(self):
        """Modules, buffers and extra states may have come and gone since."""
        self._modules = dict(self.value.named_modules())
        self._size = self._size_now()
        self._buffers = [(own, name, f"{path}.{name}") for path, own in self._modules.items() for name in own._buffers]
        default = torch.nn.Module.get_extra_state
        self._extra = [own for own in self._modules.values() if type(own).get_extra_state is not default]

    def _size_now(self):
        return [(len(own._buffers), len(own._modules)) for own in self._modules.values()]

    def _refresh_if_changed(self):
        """A forward pass may have registered a buffer, or made a submodule."""
        if self._size != self._size_now():
            self.refresh()

    def _now(self):
        return [own._buffers.get(name) for own, name, _ in self._buffers]

    def copy(self):
        self._refresh_if_changed()
        now = self._now()
        old = self._kept[1] if self._kept and len(self._kept[1]) == len(now) else [None] * len(now)
        self._kept = [self._buffers, filled_like(old, now),
                      [(own, copied(own.get_extra_state())) for own in self._extra]]

    def restore(self):
        """A forward pass may have made a buffer, or given it another shape: a mask, a cache."""
        for parameter in self.value.parameters():
            parameter.grad = None
        self._refresh_if_changed()
        buffers, tensors, extras = self._kept
        known = {(own, name) for own, name, _ in buffers}
        for own, name, _ in self._buffers:
            if (own, name) not in known:
                delattr(own, name)
        now = [own._buffers.get(name) for own, name, _ in buffers]
        for (own, name, _), each in zip(buffers, filled_like(now, tensors)):
            own._buffers[name] = each
        for own, extra in extras:
            own.set_extra_state(copied(extra))
        self.refresh()

    def image(self):
        self._refresh_if_changed()
        return {"parameters": dict(self.value.named_parameters()),
                "buffers": {path: own._buffers.get(name) for own, name, path in self._buffers},
                "passing": [path for own, name, path in self._buffers if name in own._non_persistent_buffers_set],
                "extra": [own.get_extra_state() for own in self._extra]}

    def check(self, skeleton, name):
        self._refresh_if_changed()
        mine, theirs = dict(self.value.named_parameters()), skeleton["parameters"]
        unlike = [key for key in {**mine, **theirs}
                  if key not in mine or key not in theirs or not fits(mine[key], theirs[key])]
        if unlike:
            raise RuntimeError(f"torchup: {name} is not the same model on all ranks: {unlike[0]} differs")
        homeless = [path for path in skeleton["buffers"] if path.rpartition(".")[0] not in self._modules]
        if homeless or len(skeleton["extra"]) != len(self._extra):
            raise RuntimeError(f"torchup: {name} has not the same modules on all ranks"
                               + (f": {homeless[0]} is missing on some" if homeless else ""))

    def take(self, image):
        """The tensors are filled already: parameters in place, buffers too where they were alike."""
        for path, tensor in image["buffers"].items():
            module, _, name = path.rpartition(".")
            own = self._modules[module]
            if name in own._buffers:
                own._buffers[name] = tensor
            else:
                own.register_buffer(name, tensor, persistent=path not in image["passing"])
        for own, extra in zip(self._extra, image["extra"]):
            own.set_extra_state(extra)

    def sums(self):
        return self.value.named_parameters()


class OptimizerPart(Part):
    """Its tensors stand where they are; learning rates and the like are copied."""

    def __init__(self, optimizer, before_step):
        super().__init__(optimizer)
        optimizer.register_step_pre_hook(lambda *_: before_step(optimizer))

    def _parameters(self):
        return [parameter for group in self.value.param_groups for parameter in group["params"]]

    def _groups(self):
        return [{key: each for key, each in group.items() if key != "params"} for group in self.value.param_groups]

    def copy(self):
        self._kept = [copied(group) for group in self._groups()]

    def restore(self):
        for parameter in self._parameters():
            parameter.grad = None
        for name in ("grad_scale", "found_inf"):  # a GradScaler's word to a step that has not been taken
            if hasattr(self.value, name):
                delattr(self.value, name)
        self._set_groups(copied(self._kept))

    def _set_groups(self, groups):
        for group, kept in zip(self.value.param_groups, groups):
            for key, each in kept.items():
                old = group.get(key)
                if isinstance(old, torch.Tensor) and isinstance(each, torch.Tensor) and old.shape == each.shape:
                    old.copy_(each)  # a compiled or captured step knows the tensor
                else:
                    group[key] = each

    def image(self):
        state = self.value.state
        return {"groups": self._groups(),
                "state": {place: dict(state[parameter]) for place, parameter in enumerate(self._parameters())
                          if parameter in state}}

    def check(self, skeleton, name):
        if len(skeleton["groups"]) != len(self.value.param_groups):
            raise RuntimeError(f"torchup: {name} has not the same parameter groups on all ranks")

    def take(self, image):
        self._set_groups(image["groups"])
        for place, parameter in enumerate(self._parameters()):
            if place in image["state"]:
                self.value.state[parameter] = image["state"][place]
            else:
                self.value.state.pop(parameter, None)

    def sums(self):
        for place, parameter in enumerate(self._parameters()):
            for key, each in sorted(self.value.state.get(parameter, {}).items()):
                if isinstance(each, torch.Tensor):
                    yield f"{place}.{key}", each

    def room(self, skeleton, tensors):
        """Beside the parameters, on whatever GPU they are."""
        have, parameters = self.image(), self._parameters()
        room = {"groups": unpack(skeleton["groups"], have["groups"], tensors), "state": {}}
        for place, its in skeleton["state"].items():
            device = parameters[place].device
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                room["state"][place] = unpack(its, have["state"].get(place), tensors)
        return room

    def trained(self):
        return self._parameters()


class SmallPart(Part):
    """Whatever else has state_dict and load_state_dict: copied whole."""

    def copy(self):
        self._kept = copied(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copied(self._kept))
        if isinstance(self.value, torch.amp.GradScaler):  # how far each optimizer was in the step that is given up
            self.value._per_optimizer_states.clear()

    def image(self):
        return self.value.state_dict()

    def take(self, image):
        self.value.load_state_dict(copied(image))


class ValuePart(Part):
    """A plain value, that the program replaces when it likes."""

    def copy(self):
        self._kept = copied(self.value)

    def restore(self):
        self.value = copied(self._kept)

    def image(self):
        return copied(self.value)

    def take(self, image):
        self.value = image

    def trained(self):
        return [self.value] if isinstance(self.value, torch.Tensor) and self.value.requires_grad else []

    state_dict = image

    def load_state_dict(self, state):
        self.value = copied(state)


def part_of(value, before_step):
    if isinstance(value, torch.nn.Module):
        return ModulePart(value)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerPart(value, before_step)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return SmallPart(value)
    return ValuePart(value)
