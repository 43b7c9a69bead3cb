"""A state as a skeleton and its tensors: the skeleton is small and is pickled, tensors travel as they are, in place."""

import collections
import copy
import ctypes
import functools
import os
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

CHUNK_BYTES = 16 << 20
_DIRECT_BYTES = 1 << 20  # larger ones go without a copy, smaller ones together
_UNDER_WAY_MAX = 4  # chunks, that may have memory of their own
_DICTIONARIES = (dict, collections.OrderedDict)
_CONSTANTS = (int, float, str, bytes, type(None))


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in a skeleton."""

    index: int
    dtype: torch.dtype
    shape: tuple
    device: str  # its type: each rank has its own of it


def pack(value, tensors):
    """The skeleton of `value`; its tensors are appended. Dictionaries, lists and tuples are looked into."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return Slot(len(tensors) - 1, value.dtype, tuple(value.shape), value.device.type)
    if type(value) in _DICTIONARIES:
        return type(value)((key, pack(each, tensors)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(pack(each, tensors) for each in value)
    return value


def overlaps(tensor):
    """Elements share memory, as after `expand`: nothing can be written to it."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))


def fits(tensor, slot):
    return (isinstance(tensor, torch.Tensor) and tensor.dtype == slot.dtype and tuple(tensor.shape) == slot.shape
            and tensor.device.type == slot.device and not overlaps(tensor))


def unpack(skeleton, have, tensors):
    """`pack` back: with the tensors that are there already, at the same place in `have`, else with new ones, which the
    caller fills. They come in the order of their slots."""
    if isinstance(skeleton, Slot):
        fit = fits(have, skeleton)
        room = have if fit else torch.empty(skeleton.shape, dtype=skeleton.dtype, device=skeleton.device)
        tensors.append(room.detach())
        return room
    if type(skeleton) in _DICTIONARIES:
        have = have if isinstance(have, dict) else {}
        return type(skeleton)((key, unpack(each, have.get(key), tensors)) for key, each in skeleton.items())
    if type(skeleton) in (list, tuple):
        have = list(have) if isinstance(have, (list, tuple)) else []
        have += [None] * (len(skeleton) - len(have))
        return type(skeleton)(unpack(each, old, tensors) for each, old in zip(skeleton, have))
    return skeleton


def copied(value):
    """A copy that shares no memory with `value`, tensors included."""
    if isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in _DICTIONARIES:
        return type(value)((key, copied(each)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return copy.deepcopy(value)


def _nothing():
    """What follows a broadcast that leaves all where it is to be."""


def _bytes(tensor):
    """A contiguous tensor's memory."""
    return tensor.reshape(-1).view(torch.uint8)


def checksum(named):
    """63 bits of [(name, tensor), …]: equal bits have equal sums. One wait for each device, none for each tensor."""
    sums, devices = 0, {}
    for place, (name, tensor) in enumerate(named):
        sums = (sums * 31 + zlib.crc32(f"{place} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())) % (1 << 63)
        if tensor.numel() == 0:
            continue
        flat = _bytes(tensor.detach().contiguous())
        if flat.storage_offset() % 8:
            flat = flat.clone()
        whole = flat.numel() // 8 * 8
        # Of whole words, and of the rest; each chunk weighs by its number, so that what changed places is seen.
        parts = [piece.view(torch.int64).sum() * (2 * number + 1)
                 for number, piece in enumerate(flat[:whole].split(1 << 24)) if piece.numel()]
        parts.append(flat[whole:].sum(dtype=torch.int64))
        devices.setdefault(tensor.device, []).append(torch.stack(parts).sum())
    for found in devices.values():
        for number in torch.stack(found).tolist():
            sums = (sums * 1_000_003 + number) % (1 << 63)
    return sums


def group_device():
    """Where the default group's collectives can work: the CPU, else the GPU of this rank. Programs that place their
    model by `.to(device)` alone leave the current device on the first one."""
    group = dist.group.WORLD
    if any(device.type == "cpu" for device in group._device_types):
        return torch.device("cpu")
    if (bound := getattr(group, "bound_device_id", None)) is not None:
        return bound
    current = torch.cuda.current_device()
    return torch.device("cuda", current or int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


class Wire:
    """Sends bytes and tensors from one rank to all others over the default group."""

    def __init__(self, source):
        self._source = source
        self._sends = dist.get_rank() == source
        self._types = {device.type for device in dist.group.WORLD._device_types}
        self._own = group_device()
        self._under_way = collections.deque()

    def bytes(self, data=None):
        length = torch.tensor([len(data) if self._sends else 0], dtype=torch.int64, device=self._own)
        dist.broadcast(length, self._source)
        content = torch.empty(int(length), dtype=torch.uint8, device=self._own)
        if self._sends:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(content, self._source)
        content = content.cpu()
        return ctypes.string_at(content.data_ptr(), content.numel())

    def tensors(self, all_of_them, keep=True):
        """Fills them on all ranks but the source. With `keep` false this rank takes part and changes nothing."""
        small = {}
        for tensor in all_of_them:
            if tensor.nbytes >= _DIRECT_BYTES:
                self._send_large(tensor, keep)
            elif tensor.numel():
                small.setdefault((tensor.device.type, tensor.dtype), []).append(tensor)
        for alike in small.values():
            begin = size = 0
            for end, tensor in enumerate(alike):
                if size + tensor.nbytes > CHUNK_BYTES:
                    self._send_together(alike[begin:end], keep)
                    begin, size = end, 0
                size += tensor.nbytes
            self._send_together(alike[begin:], keep)
        self._wait_for_all_but(0)

    def _broadcast(self, wire, then):
        """A few at a time: while one is on its way the next one is made ready. `then` follows on all ranks."""
        self._under_way.append((dist.broadcast(wire, self._source, async_op=True), then))
        self._wait_for_all_but(_UNDER_WAY_MAX - 1)

    def _wait_for_all_but(self, count):
        while len(self._under_way) > count:
            work, then = self._under_way.popleft()
            work.wait()
            then()

    def _device(self, tensor):
        return tensor.device if tensor.device.type in self._types else self._own

    def _send_large(self, tensor, keep):
        whole = tensor if tensor.is_contiguous() else tensor.contiguous()
        takes = keep and not self._sends
        for piece in _bytes(whole).split(CHUNK_BYTES):
            wire = piece if self._device(piece) == piece.device and (self._sends or keep) else \
                torch.empty_like(piece, device=self._device(piece))
            if self._sends and wire is not piece:
                wire.copy_(piece)
            self._broadcast(wire, functools.partial(piece.copy_, wire) if takes and wire is not piece else _nothing)
        if takes and whole is not tensor:
            self._wait_for_all_but(0)
            tensor.copy_(whole)

    def _send_together(self, some, keep):
        if not some:
            return
        device = self._device(some[0])
        if self._sends:
            wire = torch.cat([tensor.reshape(-1) for tensor in some]).to(device)
        else:
            wire = torch.empty(sum(tensor.numel() for tensor in some), dtype=some[0].dtype, device=device)

        def take():
            for tensor, piece in zip(some, wire.split([tensor.numel() for tensor in some])):
                tensor.copy_(piece.view(tensor.shape))

        self._broadcast(_bytes(wire), take if keep and not self._sends else _nothing)
