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


def judge(text, value, limit, at_least):
    holds = value >= limit if at_least else value <= limit
    print(f"  {'holds' if holds else 'DOES NOT HOLD'}: {text} {value:.3g} (goal: {'at least' if at_least else 'at most'} {limit})")
    return {"value": value, "goal": limit, "holds": holds}


def main():
    parser = measure.arguments(__doc__)
    options = parser.parse_args()
    subprocess.run(["cmake", "--build", options.build, "--target", "bench_toolkit"], check=True, stdout=subprocess.DEVNULL)
    program = measure.program(options, "bench_toolkit")
    torchup = measure.program(options, "torchup")
    rounds = str(options.rounds)
    print(measure.machine())
    results, goals = {}, {}

    times, _ = rounds_of([program, "optimizer", rounds])
    results["optimizer"] = measure.report("AdamW step, 25M parameters", "ms", times, "torchup::FusedAdamW step")
    plain, fused = (statistics.median(times[f"{name} step"]) for name in ("torch::optim::AdamW", "torchup::FusedAdamW"))
    goals["fused_adamw_speedup"] = judge("torch::optim::AdamW takes times the fused one's time:", plain / fused, 3, True)

    times, _ = rounds_of([program, "clip", rounds])
    results["clip"] = measure.report("clipping by the global norm, batch 256", "ms", times, "step without clipping")
    step = statistics.median(times["step without clipping"])
    for name in ("below", "above"):
        part = 100 * statistics.median(times[f"clip, norm {name} the limit"]) / step
        goals[f"clip_{name}_percent"] = judge(f"clipping, norm {name} the limit, in % of a step:", part, 2, False)

    times, _ = rounds_of([torchup, "--nproc-per-node=2", program, "zero", rounds])
    size = {name: times.pop(f"state bytes, {name}")[0] for name in ("FusedAdamW", "ZeRO-1")}
    results["zero"] = measure.report("step on two ranks, batch 64 each", "ms", times, "step, DDP and ZeRO-1")
    print(f"\nbytes of optimizer state on rank 0: {size['FusedAdamW']:.0f} whole, {size['ZeRO-1']:.0f} with ZeRO-1")
    results["state_bytes"] = size
    goals["zero_state_share"] = judge("ZeRO-1's share of the optimizer state:", size["ZeRO-1"] / size["FusedAdamW"], 0.51, False)
    ratio = statistics.median(times["step, DDP and ZeRO-1"]) / statistics.median(times["step, DDP and FusedAdamW"])
    goals["zero_step_ratio"] = judge("ZeRO-1's step over the whole optimizer's:", ratio, 1.1, False)

    times, skipped = rounds_of([program, "data_parallel", rounds])
    for reason in skipped:
        print(f"\n{reason}: left out")
    if times:
        ddp, _ = rounds_of([torchup, "--nproc-per-node=2", "--gpus", "2", program, "zero", rounds])
        times.update({name: values for name, values in ddp.items() if name.startswith("step, DDP and Fused")})
        results["data_parallel"] = measure.report("DataParallel and DDP, batch 128 in all", "ms", times, "step, DDP and FusedAdamW")
    measure.finish(options, {"results": results, "goals": goals})


if __name__ == "__main__":
    main()
