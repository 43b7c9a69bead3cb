"""The examples under torchup and under the real torchrun, as a user starts them.

usage: examples_test.py BIN_DIR SOURCE_DIR [CASE...]
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from small_fashion_mnist import small_fashion_mnist  # noqa: E402

BIN, SOURCE = Path(sys.argv[1]), Path(sys.argv[2])
SHORT = ["--samples", "2560", "--batch-size", "128", "--scheduler", "none"]
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def clean_environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCH", "OMP_"))}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


def run(*command, timeout=500, environment=None):
    """The finished process, with its output as text; both streams are shown when the test fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                          env=environment or clean_environment(), cwd=SOURCE)
    print(f"$ {' '.join(map(str, command))}\n{done.stdout}{done.stderr}[{done.returncode}]")
    return done


def torchup(*words, **options):
    return run(BIN / "torchup", *words, **options)


def torchrun(*words, **options):
    return run(sys.executable, "-m", "torch.distributed.run", *words, **options)


def losses(path):
    return [json.loads(line)["loss"] for line in Path(path).read_text().splitlines()]


def test_accuracy(done):
    return float(re.search(r"test accuracy ([0-9.]+) %", done.stdout).group(1))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def descendants(pid):
    """Every process below `pid`, by parentage."""
    below, todo = [], [pid]
    while todo:
        parent = todo.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text().split()]
            except OSError:
                continue
            below += children
            todo += children
    return below


def wait_until(condition, what, limit=200):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.02)


@case
def cpp_trains_and_resumes(folder):
    """Two epochs in one run and in two runs with a checkpoint between them: the same losses, bit by bit."""
    whole = torchup("--nproc-per-node=2", BIN / "fashion_mnist", *SHORT, "--epochs", 2, "--history", folder / "whole")
    assert whole.returncode == 0 and test_accuracy(whole) > 20
    first = torchup("--nproc-per-node=2", BIN / "fashion_mnist", *SHORT, "--epochs", 1, "--history", folder / "first",
                    "--checkpoint", folder / "checkpoint")
    assert first.returncode == 0
    # Started anew by whoever: a launcher that counts no restart (members changed), a scheduler, a person.
    second = torchup("--nproc-per-node=2", BIN / "fashion_mnist", *SHORT, "--epochs", 2, "--history", folder / "second",
                     "--checkpoint", folder / "checkpoint")
    assert second.returncode == 0
    assert len(losses(folder / "whole")) == 40
    assert losses(folder / "whole") == losses(folder / "first") + losses(folder / "second")
    assert test_accuracy(second) == test_accuracy(whole)
    none = torchup(BIN / "fashion_mnist", *SHORT, "--checkpoint", folder / "empty", "--resume")
    assert none.returncode == 1 and "empty" in none.stderr


@case
def drained_and_gone_on(folder):
    """Everything around DDP at once. A drain in the middle of an epoch saves and ends with 75; the job then goes on bit by bit with
    as many workers, and with another number."""
    program = [BIN / "fashion_mnist", "--samples", 2560, "--batch-size", 128, "--epochs", 2, "--amp", "--sync-bn", "--scheduler",
               "onecycle", "--clip", 1, "--zero"]
    whole = torchup("--nproc-per-node=2", *program, "--history", folder / "whole")
    assert whole.returncode == 0 and len(losses(folder / "whole")) == 40
    first = folder / "first"
    launcher = subprocess.Popen([str(word) for word in (BIN / "torchup", "--nproc-per-node=2", "--drain-signals=TERM", *program,
                                                        "--history", first, "--checkpoint", folder / "checkpoint")],
                                env=clean_environment(), cwd=SOURCE)
    try:
        wait_until(lambda: first.exists() and len(first.read_text().splitlines()) >= 7, "seven steps are done")
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(200) == 75
    finally:
        launcher.kill()
    done = len(losses(first))
    assert 7 <= done < 40
    shutil.copytree(folder / "checkpoint", folder / "copy")
    for workers, checkpoint in ((2, "checkpoint"), (4, "copy")):
        went_on = torchup(f"--nproc-per-node={workers}", *program, "--history", folder / checkpoint / "history", "--checkpoint",
                          folder / checkpoint, "--resume")
        assert went_on.returncode == 0 and test_accuracy(went_on) > 20
        rest = losses(folder / checkpoint / "history")
        assert len(rest) == 40 - done
        assert (losses(first) + rest == losses(folder / "whole")) == (workers == 2)
        if workers == 2:
            assert test_accuracy(went_on) == test_accuracy(whole)


def worker(launcher, rank):
    """A worker of that job, by the environment that it was started with."""
    for pid in descendants(launcher.pid):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in variables:
            return pid
    raise AssertionError(f"no rank {rank}")


@case
def cpp_recovers(folder):
    """A worker that is killed is replaced alone, and the job ends with the weights that it would have had: there is no
    checkpoint. Under torchrun and alone the same program runs."""
    program = [BIN / "fashion_mnist", "--elastic", *SHORT, "--epochs", 3, "--seed", 5]
    launched = {"torchup": torchup, "torchrun": lambda *words: torchrun("--no-python", *words)}
    for name, launcher in launched.items():
        assert launcher("--nproc-per-node=2", *program, "--save-weights", folder / name).returncode == 0
    history = folder / "history"
    disturbed = subprocess.Popen([str(word) for word in (BIN / "torchup", "--nproc-per-node=2", "--max-restarts=1", *program,
                                                         "--history", history, "--save-weights", folder / "disturbed")],
                                 env=clean_environment(), cwd=SOURCE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: history.exists() and len(history.read_text().splitlines()) >= 7, "seven steps are done")
        os.kill(worker(disturbed, 1), signal.SIGKILL)
        said = disturbed.communicate(timeout=200)[1]
    finally:
        disturbed.kill()
    assert disturbed.returncode == 0 and "1 of 2 processes kept" in said, said
    weights = (folder / "torchup").read_bytes()
    assert len(weights) > 10_000
    assert (folder / "disturbed").read_bytes() == weights
    assert (folder / "torchrun").read_bytes() == weights
    few = [*program, "--steps", 2, "--save-weights"]
    assert run(*few, folder / "alone").returncode == 0
    assert torchup(*few, folder / "one").returncode == 0
    assert (folder / "alone").read_bytes() == (folder / "one").read_bytes() != weights


@case
def cpp_under_torchrun(folder):
    """The same program under either launcher trains the same way."""
    for name, launcher, words in [("torchup", torchup, []), ("torchrun", torchrun, ["--no-python"])]:
        done = launcher("--nproc-per-node=2", *words, BIN / "fashion_mnist", *SHORT, "--steps", 5, "--history", folder / name)
        assert done.returncode == 0
    assert len(losses(folder / "torchup")) == 5
    assert losses(folder / "torchup") == losses(folder / "torchrun")


@case
def python_under_both(folder):
    script = SOURCE / "examples/python/train_ddp.py"
    for name, launcher in [("torchup", torchup), ("torchrun", torchrun)]:
        done = launcher("--nproc-per-node=2", script, *SHORT, "--steps", 5, "--history", folder / name,
                        environment=clean_environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"))
        assert done.returncode == 0 and test_accuracy(done) > 5
    assert len(losses(folder / "torchup")) == 5
    assert losses(folder / "torchup") == losses(folder / "torchrun")


@case
def alone_and_half_launched(folder):
    alone = run(BIN / "fashion_mnist", *SHORT, "--steps", 2, "--local-rank", 0, "--local_rank=0")
    assert alone.returncode == 0 and "alone" in alone.stderr and test_accuracy(alone) > 0
    half = run(BIN / "fashion_mnist", *SHORT, environment=clean_environment(RANK="0", WORLD_SIZE="2"))
    assert half.returncode == 1 and "MASTER_ADDR" in half.stderr
    wrong = torchup("--nproc-per-node=2", BIN / "fashion_mnist", "--epoch", 1)
    complaints = [line for line in wrong.stderr.splitlines() if line.startswith("fashion_mnist:")]
    assert wrong.returncode == 1 and complaints, "whoever ends first has said why"
    missing = torchup(BIN / "fashion_mnist", "--data", folder / "nowhere")
    assert missing.returncode == 1 and "dataset-fashion-mnist" in missing.stderr


@case
def control_c_leaves_nothing(folder):
    """Ctrl-C while a step is under way: status 130, and none of the processes that were there."""
    history = folder / "history"
    launcher = subprocess.Popen([BIN / "torchup", "--nproc-per-node=2", BIN / "fashion_mnist", *SHORT, "--epochs", "1000",
                                 "--history", history], env=clean_environment(), cwd=SOURCE)
    try:
        wait_until(lambda: history.exists() and len(losses(history)) >= 3, "three steps are done")
        below = descendants(launcher.pid)
        assert len(below) >= 3, f"the agent and two workers were expected below {launcher.pid}: {below}"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(200) == 130
        assert [pid for pid in below if alive(pid)] == []
    finally:
        launcher.kill()


@case
def failures_are_named(folder):
    failed = torchup("--nproc-per-node=2", "--", "false")
    assert failed.returncode == 1
    assert re.search(r"rank +: 0|rank 0", failed.stderr) and "false" in failed.stderr
    missing = torchup("nosuch")
    assert missing.returncode == 2 and len(missing.stderr.splitlines()) == 1 and "nosuch" in missing.stderr


@case
def two_nodes(folder):
    """One worker on each of two nodes trains what two workers on one node train."""
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True).returncode != 0:
        print("skipped: no network and mount namespaces can be made here (they need root, and not in a chroot)")
        sys.exit(77)
    options = [*SHORT, "--steps", 5]
    one = torchup("--nproc-per-node=2", BIN / "fashion_mnist", *options, "--history", folder / "one")
    two = run(SOURCE / "scripts/two_nodes", "--launcher", BIN / "torchup", BIN / "fashion_mnist", *options,
              "--history", folder / "two")
    assert one.returncode == 0 and two.returncode == 0
    assert len(losses(folder / "two")) == 5
    assert losses(folder / "two") == losses(folder / "one")


@case
def shell_wrapper(folder):
    script = SOURCE / "examples/shell/train.sh"
    environment = clean_environment(TORCHUP=str(BIN / "torchup"), PROGRAM=str(BIN / "fashion_mnist"))
    good = run(script, *SHORT, "--steps", 2, environment=environment)
    assert good.returncode == 0 and "trained" in good.stdout
    bad = run(script, "--lr", "fast", environment=environment)
    assert bad.returncode == 1 and "failed twice" in bad.stderr


def main():
    data = tempfile.TemporaryDirectory()
    SHORT.extend(["--data", small_fashion_mnist(Path(data.name) / "fashion-mnist")])
    for name in sys.argv[3:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(f"== {name}", flush=True)
            CASES[name](Path(folder))


main()
