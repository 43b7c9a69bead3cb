"""Files of weights between Python and us, both ways. Usage: weights_test.py WEIGHTS_COPY

What we write as safetensors is read by the safetensors library where it is installed, and by its format's rules everywhere."""
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy
import torch

try:
    import safetensors.torch as library
except ImportError:
    library = None
    if os.environ.get("CI"):
        raise

dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "U16": torch.uint16,
          "C64": torch.complex64}


def read_by_rules(path):
    content = open(path, "rb").read()
    length = struct.unpack("<Q", content[:8])[0]
    assert length % 8 == 0
    header = json.loads(content[8:8 + length])
    assert header.pop("__metadata__") == {"written_by": "weights_copy"}
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end_here = entry["data_offsets"]
        assert begin == end
        end = end_here
        data = torch.tensor(numpy.frombuffer(content[8 + length + begin:8 + length + end], numpy.uint8))
        tensors[name] = data.view(dtypes[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + length + end == len(content)
    return tensors


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def same(ours, wanted):
    assert not isinstance(ours, str), ours
    assert sorted(ours) == sorted(wanted), (sorted(ours), sorted(wanted))
    for name, tensor in wanted.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert torch.equal(bits(ours[name]), bits(tensor)), name


def copy(source, *prefix):
    target = os.path.join(folder, "out.safetensors")
    if os.path.exists(target):
        os.remove(target)
    ended = subprocess.run([sys.argv[1], source, target, *prefix], capture_output=True, text=True, timeout=60)
    if ended.returncode != 0:
        return ended.stderr
    if library:
        same(library.load_file(target), read_by_rules(target))
    return read_by_rules(target)


def refused(source, why, *prefix):
    answer = copy(source, *prefix)
    assert isinstance(answer, str) and why in answer and os.path.basename(source) in answer and "HAS CHANGED" not in answer, answer


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.bn = torch.nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.tensor([True, False]))


with tempfile.TemporaryDirectory() as folder:
    pth = os.path.join(folder, "model.pth")
    net = Net()
    net.bn.running_mean += 0.5
    state = net.state_dict()
    for protocol in (2, 3, 4, 5):
        torch.save(state, pth, pickle_protocol=protocol)
        same(copy(pth), state)
    same(copy(pth, ""), state)

    wide = {str(dtype): (torch.arange(6).reshape(2, 3) % 2).to(dtype) for dtype in dtypes.values()}
    wide |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "transposed": torch.randn(3, 4).t(),
             "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), "slice": torch.arange(10)[3:7],
             "expanded": torch.tensor([1.0, 2.0]).expand(3, 2), "parameter": torch.nn.Parameter(torch.randn(2))}
    shared = torch.randn(4)
    wide |= {"shared": shared, "shared_tail": shared[2:]}
    torch.save(wide, pth)
    same(copy(pth), wide)

    # Views whose storage holds other numbers than they do.
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    views = {"conjugated": numbers.conj(), "plain": numbers, "transposed": numbers.clone().reshape(2, 1).mH,
             "negated": torch._neg_view(torch.arange(3.0)), "both": torch._neg_view(numbers.clone().conj())}
    assert views["conjugated"].is_conj() and views["transposed"].is_conj() and views["negated"].is_neg() and views["both"].is_neg()
    torch.save(views, pth)
    same(copy(pth), {name: view.resolve_conj().resolve_neg() for name, view in views.items()})
    net.fc.weight.data = torch._neg_view(net.fc.weight.data)
    assert net.state_dict()["fc.weight"].is_neg()
    torch.save(net.state_dict(), pth)
    same(copy(pth, ""), {name: tensor.resolve_neg() for name, tensor in net.state_dict().items()})
    net.fc.weight.data = state["fc.weight"]
    # Numbers that have another sign go where there is none; what has none is no view of itself, and is refused before anything changes.
    torch.save(state | {"mask": torch._neg_view(torch.tensor([0.0, 2.0]))}, pth)
    same(copy(pth, ""), state | {"mask": torch.tensor([False, True])})
    for view in (torch._neg_view(torch.tensor([True, False])), torch._neg_view(torch.zeros(2, dtype=torch.uint16)),
                 torch._neg_view(torch.zeros(2, dtype=torch.float8_e5m2))):
        torch.save({name: tensor + 1 for name, tensor in state.items()} | {"mask": view}, pth)
        refused(pth, f"tensor mask is marked as negated, and {str(view.dtype)[6:]} has no other sign", "")
        refused(pth, "tensor mask is marked as negated")

    training = {"model": {"module." + name: tensor for name, tensor in state.items()}, "epoch": 3, "big": 2**40, "lr": 0.1,
                "negative": -5, "names": ["a", None, True, (1, 2, 3, 4)], "optimizer": torch.optim.SGD(net.parameters(), 0.1).state_dict()}
    torch.save(training, pth)
    same(copy(pth), {"model.module." + name: tensor for name, tensor in state.items()})
    same(copy(pth, "model."), state)

    many = {f"layer{index}.weight": torch.full((3,), float(index)) for index in range(400)}  # long memo indices
    torch.save(many, pth)
    same(copy(pth), many)

    # What does not fit the module is named, and what would run code is refused without being run.
    torch.save(state, pth)
    del state["fc.bias"]
    state["fc.weight"], state["extra"] = torch.zeros(2, 4), torch.zeros(1)
    torch.save(state, pth)
    for what in ("missing: fc.bias", "fc.weight has shape [2, 4] in the file and [2, 3]", "not in the module: extra"):
        refused(pth, what, "")

    marker = os.path.join(folder, "ran")
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)
    torch.save({"weight": torch.zeros(1), "evil": Evil()}, pth)
    refused(pth, "posix.system")
    assert not os.path.exists(marker)
    torch.save(net, pth)
    refused(pth, "cannot be read")
    torch.save({"a": torch.zeros(2)}, pth, _use_new_zipfile_serialization=False)
    refused(pth, "before 1.6")
    torch.jit.script(torch.nn.Linear(2, 2)).save(pth)
    refused(pth, "TorchScript")
    refused(os.path.join(folder, "none.pth"), "No such file")

    # Damage: cut short, a storage that is too small, offsets beyond it.
    torch.save({"a": torch.arange(100.0)}, pth)
    whole = open(pth, "rb").read()
    open(pth, "wb").write(whole[:len(whole) // 2])
    refused(pth, "cannot be read")

    def archive(pickled, storage=b"\0" * 16):
        with zipfile.ZipFile(pth, "w") as out:
            for name, data in (("data.pkl", pickled), ("byteorder", b"little"), ("data/0", storage), ("version", b"3\n")):
                out.writestr("x/" + name, data)

    def tensor(count=4, offset=0, size=(4,), stride=(1,)):
        def integer(value):
            return b"\x8a" + bytes([8]) + struct.pack("<q", value)
        def numbers(values):
            return b"(" + b"".join(map(integer, values)) + b"t"
        return (b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" + b"0"
                + b"X\x03\0\0\0cpu" + integer(count) + b"tQ" + integer(offset) + numbers(size) + numbers(stride)
                + b"\x89ccollections\nOrderedDict\n)RtRs.")

    archive(tensor())
    same(copy(pth), {"a": torch.zeros(4)})
    # A record that swells when it is unpacked is not unpacked, whichever it is, and one that nobody needs is not even read.
    plain = {"data.pkl": tensor(), "byteorder": b"little", "data/0": b"\0" * 16, "version": b"3\n", ".data/serialization_id": b"1"}
    for swollen in plain:
        with zipfile.ZipFile(pth, "w", compresslevel=1) as out:
            for name, data in plain.items():
                how = zipfile.ZIP_DEFLATED if name == swollen else zipfile.ZIP_STORED
                out.writestr("x/" + name, bytes(768 << 20) if name == swollen else data, how)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        if swollen in ("version", ".data/serialization_id"):
            same(copy(pth), {"a": torch.zeros(4)})
        else:
            refused(pth, {"data.pkl": "compressed", "byteorder": "its byteorder has more than", "data/0": "of another size"}[swollen])
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < before + (256 << 10), "kilobytes"
    for bad in (tensor(count=5), tensor(count=-1), tensor(count=2**62)):
        archive(bad)
        refused(pth, "storage")
    for bad in (tensor(offset=1), tensor(offset=-1), tensor(size=(5,)), tensor(size=(2,), stride=(4,)), tensor(size=(2,), stride=(-1,)),
                tensor(size=(2**62, 2**62), stride=(1, 1)), tensor(size=(2, 2), stride=(2**62, 2**62)), tensor(size=(4,), stride=())):
        archive(bad)
        refused(pth, "beyond its storage")
    for bad in (b"", b".", b"\x80\x02s.", b"\x80\x02(", b"\x80\x02h\x07.", b"\x80\x02X\xff\xff\xff\x7fab.", b"\x80\x02R.",
                b"\x80\x02}R.", b"\x80\x02i.", b"\x80\x02t.", b"\x80\x02}}e.", b"\x80\x02}q\x00(X\x01\0\0\0ah\x00u."):
        archive(bad)
        refused(pth, "cannot be read")
print("ok" + ("" if library else "; the safetensors library is not installed: read by the format's rules only"))
