"""State: what a job knows, and where it stands."""

import pickle

import torch

from . import _numbers
from ._image import checksum, copied, pack
from ._link import link
from ._page import page
from ._parts import ModulePart, ValuePart, part_of
from ._sampler import begin_round, sampler_of


class State:
    """What must survive a fault: modules, optimizers, whatever has state_dict and load_state_dict, and plain values.

    Parts are attributes. With replicated=False (ZeRO, FSDP: ranks hold different things) nothing is sent between
    ranks; every round begins with `load`.
    """

    def __init__(self, *, replicated=True, **parts):
        taken = [name for name in parts if name.startswith("_") or hasattr(type(self), name)]
        if taken:
            raise ValueError(f"State: {taken[0]} cannot be the name of a part")
        hidden = object.__setattr__
        hidden(self, "_parts", {name: part_of(value, self._before_step) for name, value in parts.items()})
        hidden(self, "_replicated", replicated)
        hidden(self, "_step", 0)
        hidden(self, "_clean", True)  # no step has begun since the last commit
        hidden(self, "_fresh", True)  # it has not been agreed upon with others yet
        hidden(self, "_samplers", {})  # by what they are made of, and their order among equal ones
        hidden(self, "_positions", {})  # of samplers that are not known here yet
        hidden(self, "_seed", None)  # (seed, rank) inside of `run`, where it was given
        hidden(self, "_kept", None)
        hidden(self, "_loads", 0)
        hidden(self, "_page", None)

    def __getattr__(self, name):
        try:
            return self.__dict__["_parts"][name].value
        except KeyError:
            raise AttributeError(f"State has no part {name}") from None

    def __setattr__(self, name, value):
        if name.startswith("_") and name in self.__dict__:
            return object.__setattr__(self, name, value)
        part = self._parts.get(name)
        if part is None:
            raise AttributeError(f"State has no part {name}")
        if isinstance(part, ValuePart):
            part.value = value
        elif part.value is not value:
            raise AttributeError(f"State's part {name} is what it was made with: load into it instead")

    def __dir__(self):
        return [*super().__dir__(), *self._parts]

    @property
    def step(self):
        """Commits so far."""
        return self._step

    def state_dict(self):
        """For a checkpoint."""
        return {"step": self._step, "samplers": self._where(),
                "parts": {name: part.state_dict() for name, part in self._parts.items()}}

    def load_state_dict(self, state):
        missing = set(self._parts) ^ set(state["parts"])
        if missing:
            raise ValueError(f"State: {sorted(missing)[0]} is a part here or in the checkpoint, not in both")
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self._step, self._clean = state["step"], True
        self._go_to(state["samplers"])
        self._loads += 1
        if self._kept is not None:  # from here on this is where a round that ends early goes back to
            self._keep()

    def commit(self):
        """One more step is done, on all ranks. Leaves by an exception that belongs to `run` where the round is over."""
        self._step += 1
        self._keep()
        if self._page is not None:
            self._page.beat(self._step)
        link.check()

    def batches(self, loader):
        """The batches of a DataLoader over torchup.elastic.DistributedSampler, from where the job stands."""
        sampler, samples = sampler_of(loader)
        self._know(sampler)
        link.check()
        sampler.begin_pass()
        whole = False
        try:
            # An iterator's own draws must not change the numbers of the step in which it is made.
            seed = None if self._seed is None else _numbers.seed_of(*self._seed, self._step, "loader")
            with _numbers.undisturbed(seed):
                iterator = iter(loader)
            for batch in iterator:
                link.check()
                sampler.delivered(samples)
                yield batch
            whole = True
        finally:
            sampler.end_pass(whole)

    # For `run`.

    def _before_step(self, optimizer):
        """The gate: a step begins only on whole gradients. On a GPU they are that when what was queued has ended and
        the round still goes on; elsewhere a collective that failed has said so, and with several optimizers a step
        that has begun is finished."""
        devices = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
        on_gpu = any(device.type == "cuda" for device in devices)
        if on_gpu and link.is_open():
            torch.cuda.current_stream().synchronize()
        if self._clean or on_gpu:
            link.check()
        self._clean = False

    def _check_parts(self):
        """What cannot be sent is found now: at the first fault it would cost one survivor after the other."""
        if not self._replicated:
            return
        for name, part in self._parts.items():
            tensors = []
            try:
                pickle.dumps(pack(part.image(), tensors))
            except Exception as error:
                raise TypeError(f"torchup: State's part {name} cannot be sent to another rank: {error}") from error
            if any(tensor.layout != torch.strided for tensor in tensors):
                raise TypeError(f"torchup: State's part {name} cannot be sent to another rank: it has a sparse tensor")
        sent = {id(parameter) for part in self._parts.values() if isinstance(part, ModulePart)
                for parameter in part.value.parameters()}
        for name, part in self._parts.items():
            if not {id(parameter) for parameter in part.trained()} <= sent:
                raise TypeError(f"torchup: State's part {name} trains a tensor that is in no module of the State, and so "
                                "would not be sent to another rank: put it into one (torch.nn.ParameterList)")

    def _keep(self):
        """What can be further than the last commit when a step is interrupted."""
        for part in self._parts.values():
            part.copy()
        if self._seed is not None:
            self._seed_step()
        self._kept = (self._where(), None if self._seed is not None else _numbers.states())
        self._clean = True

    def _restore(self):
        for part in self._parts.values():
            part.restore()
        positions, numbers = self._kept
        self._go_to(positions)
        if numbers is not None:
            _numbers.set_states(numbers)

    def _begin(self, seed, rank):
        """A new round, whose state is agreed upon."""
        for part in self._parts.values():
            if isinstance(part, ModulePart):
                part.refresh()
        # Those that the program makes anew in each round are told apart in each: on old and new ranks alike.
        self._positions, self._samplers = self._where(), {}
        begin_round()
        self._seed = None if seed is None else (seed, rank)
        self._page = page()
        if self._page is not None:
            self._page.begin()
        self._fresh = False
        self._keep()

    def _seed_step(self):
        _numbers.seed_all(_numbers.seed_of(*self._seed, self._step))

    def _know(self, sampler):
        """Samplers have no names: equal ones are told by the order of their first use."""
        if any(sampler is known for known in self._samplers.values()):
            return
        made = f"{len(sampler.dataset)} samples, {sampler.shuffle=}, {sampler.seed=}, {sampler.drop_last=}"
        name = f"{made}, {sum(known.startswith(made) for known in self._samplers)}"
        self._samplers[name] = sampler
        if position := self._positions.pop(name, None):
            sampler.go_to(position)
        if self._kept is not None:
            self._kept[0].setdefault(name, sampler.state_dict())

    def _where(self):
        return {**self._positions, **{name: sampler.state_dict() for name, sampler in self._samplers.items()}}

    def _go_to(self, positions):
        self._positions = copied(positions)
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(self._positions.pop(name, None) or sampler.beginning())

    def _sum(self):
        return checksum((f"{name} {key}", tensor) for name, part in sorted(self._parts.items())
                        for key, tensor in part.sums())

    def _image(self):
        return {"step": self._step, "samplers": self._where(),
                "parts": {name: part.image() for name, part in self._parts.items()}}

    def _room(self, skeleton, tensors):
        """The image with tensors to be filled, this rank's own where they fit."""
        if set(skeleton["parts"]) != set(self._parts):
            raise RuntimeError("torchup: the State has other parts on other ranks")
        image = {**skeleton, "parts": {}}
        for name, its in skeleton["parts"].items():  # in the order in which the tensors come
            self._parts[name].check(its, name)
            image["parts"][name] = self._parts[name].room(its, tensors)
        return image

    def _take(self, image):
        for name, part in self._parts.items():
            part.take(image["parts"][name])
        self._step, self._clean = image["step"], True
        self._go_to(image["samplers"])
