"""The toolkit around DDP on a model of 25 million parameters: the fused AdamW beside torch::optim::AdamW, clipping as part of a
step, ZeRO-1 beside the whole optimizer on two ranks, and DataParallel beside DDP where there are two GPUs."""

import json
import os
import statistics
import subprocess
import sys

import measure


def rounds_of(command):
    """{what: [value per round]} from the program's lines; the reason where it left something out."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if result.returncode:
        sys.exit(f"bench: {' '.join(command)} ended with {result.returncode}")
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {line["what"]: line["rounds"] for line in lines if "what" in line}, [line["skipped"] for line in lines if "skipped" in line]


def optimizer(options, results, goals):
    times, _ = rounds_of([measure.program(options, "bench_toolkit"), "optimizer", str(options.rounds)])
    results["optimizer"] = measure.report("AdamW step, 25M parameters", "ms", times, "torchup::FusedAdamW step")
    plain, fused = (statistics.median(times[f"{name} step"]) for name in ("torch::optim::AdamW", "torchup::FusedAdamW"))
    goals.at_least("torch::optim::AdamW's step / FusedAdamW's", plain / fused, 3)


def clip(options, results, goals):
    times, _ = rounds_of([measure.program(options, "bench_toolkit"), "clip", str(options.rounds)])
    results["clip"] = measure.report("clipping by the global norm, batch 1024", "ms", times, "step without clipping")
    step = statistics.median(times["step without clipping"])
    for name in ("below", "above"):
        part = 100 * statistics.median(times[f"clip, norm {name} the limit"]) / step
        goals.at_most(f"clipping, norm {name} the limit, % of a step", part, 2)


def zero(options, results, goals):
    times, _ = rounds_of([measure.program(options, "torchup"), "--nproc-per-node=2", measure.program(options, "bench_toolkit"), "zero",
                          str(options.rounds)])
    size = {name: times.pop(f"state bytes, {name}")[0] for name in ("FusedAdamW", "ZeRO-1")}
    results["zero"] = measure.report("step on two ranks, batch 64 each", "ms", times, "step, DDP and ZeRO-1")
    print(f"  bytes of optimizer state on rank 0: {size['FusedAdamW']:.0f} whole, {size['ZeRO-1']:.0f} with ZeRO-1")
    results["state_bytes"] = size
    goals.at_most("ZeRO-1's part of the optimizer state, W = 2", size["ZeRO-1"] / size["FusedAdamW"], 0.51)
    ratio = statistics.median(times["step, DDP and ZeRO-1"]) / statistics.median(times["step, DDP and FusedAdamW"])
    goals.at_most("ZeRO-1's step / the whole optimizer's, W = 2", ratio, 1.1)


def data_parallel(options, results, goals):
    program = measure.program(options, "bench_toolkit")
    times, skipped = rounds_of([program, "data_parallel", str(options.rounds)])
    for reason in skipped:
        print(f"\n{reason}: left out")
    if not times:
        return
    ddp, _ = rounds_of([measure.program(options, "torchup"), "--nproc-per-node=2", "--gpus", "2", program, "zero", str(options.rounds)])
    times["step, DDP and FusedAdamW"] = ddp["step, DDP and FusedAdamW"]
    results["data_parallel"] = measure.report("DataParallel and DDP, batch 128 in all", "ms", times, "step, DDP and FusedAdamW")


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it runs, not what holds")
    parser.add_argument("--only", choices=["optimizer", "clip", "zero", "data_parallel"], help="this part alone")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 2
    built = subprocess.run(["cmake", "--build", options.build, "--target", "bench_toolkit"], capture_output=True, text=True)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)
    print(measure.machine())
    results, goals = {}, measure.Goals()
    for name, part in {"optimizer": optimizer, "clip": clip, "zero": zero, "data_parallel": data_parallel}.items():
        if options.only in (None, name):
            part(options, results, goals)
    measure.finish(options, {"results": results, "goals": goals.table()})


if __name__ == "__main__":
    main()
