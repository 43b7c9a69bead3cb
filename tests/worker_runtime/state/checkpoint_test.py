"""Checkpoints: bit-equal resumption after kill -9 anywhere, other world sizes, damage. Usage: checkpoint_test.py RESUME_WORKER CASE FAILING_DISK"""
import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

import torch
import torch.distributed as dist

program, case, failing_disk = sys.argv[1:4]
ranks = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_")
clean = {name: value for name, value in os.environ.items() if not name.startswith(ranks)}


def job(world_size, folder, out, to_the_end=False, limit_rank_0=None, unreadable=None, unreadable_to=(), errors=None, **options):
    """Runs one attempt of a job, where those ranks cannot read files of that name, and rank 0's disk has `errors`; the exit codes and outputs by rank."""
    out.mkdir(exist_ok=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = clean | {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
                           "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test"}
    arguments = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]
    disk = {"LD_PRELOAD": failing_disk, "TORCHUP_TEST_UNREADABLE": unreadable}
    disk_0 = {"LD_PRELOAD": failing_disk} | {f"TORCHUP_TEST_{call}_ERROR": str(error) for call, error in (errors or {}).items()}
    workers = [subprocess.Popen([program, "--folder", folder, "--out", out, *arguments],
                                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (disk if rank in unreadable_to else {}) | (disk_0 if errors and rank == 0 else {}),
                                preexec_fn=limit_rank_0 if rank == 0 else None, restore_signals=limit_rank_0 is None,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(world_size)]
    deadline = time.monotonic() + 150
    try:
        # As a launcher does: when one fails, the others are stopped.
        while any(worker.poll() is None for worker in workers) and (to_the_end or not any(worker.poll() for worker in workers)):
            assert time.monotonic() < deadline, "the job hangs"
            time.sleep(0.01)
        if all(worker.poll() in (None, 0, 75) for worker in workers):
            for worker in workers:
                worker.wait(timeout=30)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
    outputs = [worker.communicate() for worker in workers]
    return [worker.returncode for worker in workers], [stdout for stdout, _ in outputs], [stderr for _, stderr in outputs]


def finish(world_size, folder, out, **options):
    codes, outputs, errors = job(world_size, folder, out, **options)
    assert codes == [0] * world_size, (codes, errors)
    return int(outputs[0].split("step ")[1].split()[0])  # where it began


def same_weights(one, other):
    names = sorted(path.name for path in one.iterdir())
    assert names and names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), f"{name} differs"


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("step-*") if "tmp" not in path.name)


def kills(world_size):
    """Kill -9 of a rank in forward, backward and checkpoint write, then a restart: the same bits as without."""
    finish(world_size, root / "undisturbed", root / "wanted", steps=12, width=256)
    for rank, place in ((0, "forward"), (world_size - 1, "backward"), (0, "write:folder"), (0, "write:model.safetensors"),
                        (0, "write:training.safetensors"), (0, "write:manifest.json")):
        folder, out = root / place.replace(":", "-"), root / ("out-" + place.replace(":", "-"))
        # Writes begin with step 3; let the run have one good checkpoint before the deadly one.
        began = 0
        if place.startswith("write"):
            finish(world_size, folder, out, steps=4, width=256)
            shutil.rmtree(out)
            began = 3
        codes, outputs, errors = job(world_size, folder, out, steps=12, width=256, die=place, die_step=8, die_rank=rank)
        assert codes[rank] == -signal.SIGKILL, (place, codes, errors)
        assert f"step {began}\n" in outputs[rank], outputs
        whole = steps_in(folder)
        assert whole in ([3], [3, 6]), whole  # the write of step 6 may not have been done; that of step 3 was waited for
        resumed = finish(world_size, folder, out, steps=12, width=256)
        assert resumed == whole[-1], (place, resumed, whole)
        same_weights(out, root / "wanted")
        assert steps_in(folder) == [6, 9, 12] and len(list(folder.glob("step-*"))) == 3, list(folder.iterdir())
        print(f"W={world_size} killed in {place}: resumed from step {resumed}, bit-equal at step 12")


def optimizers():
    """Every optimizer's state comes back, and the file names are those of the module for Python."""
    for optimizer in ("adamw", "rmsprop", "adagrad", "lbfgs", "fused", "own"):
        finish(1, root / optimizer, root / (optimizer + "-wanted"), steps=9, optimizer=optimizer)
        shutil.rmtree(root / optimizer)
        finish(1, root / optimizer, root / "half", steps=5, optimizer=optimizer)
        assert finish(1, root / optimizer, root / (optimizer + "-out"), steps=9, optimizer=optimizer) == 3
        same_weights(root / (optimizer + "-out"), root / (optimizer + "-wanted"))
    codes, _, errors = job(1, root / "adamw", root / "other", steps=12, optimizer="adagrad")
    assert codes == [1] and "of kind AdamW, the program's of Adagrad" in errors[0], errors

    folder = root / "adamw" / "step-000000000009"
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert (len(content), zlib.crc32(content)) == (facts["bytes"], facts["crc32"])
    assert manifest["optimizers"][0]["groups"][0]["options"]["lr"] and manifest["world_size"] == 1 and manifest["step"] == 9
    try:
        from safetensors.torch import load_file
    except ImportError:
        if os.environ.get("CI"):
            raise
        print("not read by the safetensors library, which this Python has not")
        return
    net = torch.nn.ModuleDict({"first": torch.nn.Linear(16, 64), "norm": torch.nn.BatchNorm1d(64), "drop": torch.nn.Dropout(),
                               "second": torch.nn.Linear(64, 64), "last": torch.nn.Linear(64, 4)})
    net.load_state_dict(load_file(folder / "model.safetensors"))
    assert net["norm"].num_batches_tracked == 9
    assert "optimizer-0/first.weight/exp_avg_sq" in load_file(folder / "training.safetensors")


def sharded():
    """Every rank's share of a sharded optimizer is in the checkpoint, also where the program holds it as a plain Optimizer."""
    finish(2, root / "whole", root / "wanted", steps=9, optimizer="zero")
    finish(2, root / "zero", root / "half", steps=5, optimizer="zero")
    assert finish(2, root / "zero", root / "out", steps=9, optimizer="zero") == 3
    same_weights(root / "out", root / "wanted")


def power_sgd():
    """What compression lost on each rank comes back on that rank; with other ranks there is nothing to give back."""
    finish(3, root / "whole", root / "wanted", steps=9, power_sgd=1)
    finish(3, root / "half", root / "out", steps=7, power_sgd=1)
    shutil.copytree(root / "half", root / "fewer")
    assert finish(3, root / "half", root / "out", steps=9, power_sgd=1) == 6
    same_weights(root / "out", root / "wanted")
    assert finish(2, root / "fewer", root / "fewer-out", steps=9, power_sgd=1) == 6


def failed_write():
    """A disk that takes no more: every rank ends with the reason, and the checkpoint before is still good."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
    finish(2, root / "c", root / "out", steps=4)
    shutil.rmtree(root / "out")
    for options in ({"steps": 12}, {"steps": 12, "requeue_step": 6}):
        began = time.monotonic()
        codes, outputs, errors = job(2, root / "c", root / "out", to_the_end=True, limit_rank_0=limit, **options)
        assert codes == [1, 1] and all("step 3\n" in output for output in outputs), (codes, outputs, errors)
        assert all("File too large" in error for error in errors) and time.monotonic() - began < 90, errors
        assert steps_in(root / "c") == [3] and len(list((root / "c").glob("step-*"))) == 1, list((root / "c").iterdir())
    # What is wrong with the last thing to be done is said too, and not what was tried after it.
    codes, _, errors = job(2, root / "d", root / "out", to_the_end=True, errors={"RENAME": errno.EDQUOT}, steps=4)
    assert codes == [1, 1] and all(os.strerror(errno.EDQUOT) in error for error in errors), (codes, errors)
    assert list((root / "d").glob("step-*")) == [], list((root / "d").iterdir())
    # A step that is there already is replaced, whatever rename says of it: each file system has a word of its own.
    for error in (errno.EPERM, errno.EACCES):
        folder = root / str(error)
        finish(2, folder, root / "out", steps=7)
        damaged = folder / "step-000000000006" / "training.safetensors"
        damaged.write_bytes(b"x" * damaged.stat().st_size)
        assert finish(2, folder, root / "out", steps=7, errors={"RENAME": error}) == 3
        assert steps_in(folder) == [3, 6] and finish(2, folder, root / "out", steps=8) == 6, list(folder.iterdir())


def caps():
    """A cap of the buckets that the program has changed wins over the layout in the checkpoint, and rank 0 says so."""
    finish(2, root / "c", root / "out", steps=4)
    before = json.loads((root / "c" / "step-000000000003" / "manifest.json").read_text())["bucket_layout"]
    codes, _, errors = job(2, root / "c", root / "out", steps=7, cap=1)
    assert codes == [0, 0] and "bucket_cap_mb" in errors[0] and "bucket_cap_mb" not in errors[1], (codes, errors)
    after = json.loads((root / "c" / "step-000000000006" / "manifest.json").read_text())["bucket_layout"]
    assert len(before["buckets"]) > len(after["buckets"]), (before, after)
    codes, _, errors = job(2, root / "c", root / "out", steps=9, cap=1)
    assert codes == [0, 0] and "bucket_cap_mb" not in errors[0], errors
    assert json.loads((root / "c" / "step-000000000009" / "manifest.json").read_text())["bucket_layout"] == after


def power_sgd_caps():
    """What PowerSGD kept for other buckets than those of now is let go."""
    finish(2, root / "c", root / "out", steps=4, power_sgd=1)
    codes, _, errors = job(2, root / "c", root / "out", steps=7, power_sgd=1, cap=1)
    assert codes == [0, 0] and "bucket_cap_mb" in errors[0], (codes, errors)


def unusable_folder():
    """A folder that one rank cannot have ends all, with the reason, at once."""
    (root / "1").write_text("a file")
    began = time.monotonic()
    codes, _, errors = job(2, root / "RANK", root / "out", to_the_end=True, steps=3)
    assert codes == [1, 1] and all("rank 1: the checkpoint folder" in error for error in errors), (codes, errors)
    assert time.monotonic() - began < 90, errors


def damage():
    """The newest valid checkpoint wins, whoever has it; what is damaged is passed over; none is an error when one is wanted."""
    finish(2, root / "RANK", root / "wanted", steps=12)
    assert steps_in(root / "0") == [6, 9, 12] and steps_in(root / "1") == []  # each rank has a disk of its own, rank 0 writes
    for kind in ("flip", "cut", "lost", "manifest"):
        for rank in "01":
            shutil.rmtree(root / (kind + rank), ignore_errors=True)
        shutil.copytree(root / "0", root / (kind + "1"))  # now it is rank 1 who has them
        newest = root / (kind + "1") / "step-000000000012"
        target = newest / ("manifest.json" if kind == "manifest" else "training.safetensors")
        content = bytearray(target.read_bytes())
        content[len(content) // 2] ^= 1
        target.write_bytes(content[:-1] if kind == "cut" else content)
        if kind == "lost":
            target.unlink()
        codes, outputs, errors = job(2, root / (kind + "RANK"), root / "out", steps=12)
        assert codes == [0, 0] and all("step 9\n" in output for output in outputs), (kind, codes, outputs, errors)
        assert "passe" in errors[1] and "damaged" in errors[1], (kind, errors)
        same_weights(root / "out", root / "wanted")
    # A folder that all ranks share: one of them reads what is damaged, and says so.
    shutil.copytree(root / "0", root / "shared")
    newest = root / "shared" / "step-000000000012" / "training.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    codes, outputs, errors = job(3, root / "shared", root / "three", steps=12)
    assert codes == [0, 0, 0] and all("step 9\n" in output for output in outputs), (codes, outputs, errors)
    assert "".join(errors).count("passes over the checkpoint of step 12") == 1, errors
    for path in (root / "flip1").glob("*/model.safetensors"):
        path.write_bytes(b"x" * path.stat().st_size)
    shutil.rmtree(root / "flip0")
    codes, _, errors = job(2, root / "flipRANK", root / "out", steps=12, must_resume=1)
    assert 1 in codes and "no checkpoint to resume from" in "".join(errors), (codes, errors)
    assert "begins at" not in errors[0]
    codes, _, errors = job(1, root / "fresh", root / "out", steps=3, must_resume=1)
    assert codes == [1] and "no checkpoint to resume from" in errors[0], errors
    codes, _, errors = job(1, root / "0", root / "out", steps=12, width=32)
    assert codes == [1] and "first.weight" in errors[0], errors  # another module


def disk_errors():
    """A disk that fails says nothing of what is on it: another rank may read the step; if none can, it is passed over and stays."""
    finish(2, root / "c", root / "out", steps=12)
    newest = root / "c" / "step-000000000012"
    inode = newest.stat().st_ino
    codes, outputs, errors = job(2, root / "c", root / "out", steps=13, unreadable="12/training", unreadable_to=[0])
    assert codes == [0, 0] and all("step 12\n" in output for output in outputs), (codes, outputs, errors)
    options = {"save_every": 2, "keep_last": 2, "steps": 11}
    codes, outputs, errors = job(2, root / "c", root / "out", unreadable="12/training", unreadable_to=[0, 1], **options)
    assert codes == [0, 0] and all("step 9\n" in output for output in outputs), (codes, outputs, errors)
    assert all("Input/output error" in error for error in errors), errors
    assert steps_in(root / "c") == [9, 10, 12] and newest.stat().st_ino == inode, steps_in(root / "c")
    assert finish(2, root / "c", root / "out", steps=13) == 12


def locks():
    """Where the file system has no locks that is said once, and the job goes on; where a lock fails all ranks end with the reason."""
    for error in (errno.ENOSYS, errno.ENOLCK):
        folder = root / str(error)
        codes, _, said = job(2, folder, root / "out", errors={"FLOCK": error}, steps=9)
        assert codes == [0, 0] and steps_in(folder) == [3, 6, 9], (codes, said)
        assert said[0].count(f"{folder} has no locks ({os.strerror(error)})") == 1 and "locks" not in said[1], said
    codes, _, said = job(2, root / "c", root / "out", to_the_end=True, errors={"FLOCK": errno.EIO}, steps=9)
    reason = f"lock {root / 'c' / 'writer.lock'}: {os.strerror(errno.EIO)}"
    assert codes == [1, 1] and all(reason in text for text in said) and steps_in(root / "c") == [], (codes, said)


def world_sizes():
    """On with more and fewer ranks; nothing is lost of the epoch, and ranks stay alike."""
    folder = root / "elastic"
    assert finish(2, folder, root / "a", steps=4) == 0
    assert finish(3, folder, root / "b", steps=8) == 3
    position = json.loads((folder / "step-000000000006" / "manifest.json").read_text())
    assert position["world_size"] == 3 and position["sampler"]["consumed"] == 3 * 2 * 4 + 3 * 3 * 4, position
    assert finish(1, folder, root / "c", steps=10) == 6
    manifest = json.loads((folder / "step-000000000009" / "manifest.json").read_text())
    assert manifest["sampler"] == {"epoch": 0, "consumed": 70, "seed": 11}, manifest["sampler"]  # the last 10 went to one rank


def requeue():
    """save_and_requeue: every rank exits with 75 when the checkpoint is on disk."""
    codes, _, errors = job(2, root / "c", root / "out", steps=12, requeue_step=5)
    assert codes == [75, 75], (codes, errors)
    assert steps_in(root / "c") == [3, 5]
    assert finish(2, root / "c", root / "out", steps=12) == 5
    finish(2, root / "d", root / "wanted", steps=12)
    same_weights(root / "out", root / "wanted")


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    if case.startswith("kills"):
        kills(int(case[5:]))
    else:
        globals()[case]()
print("ok")
