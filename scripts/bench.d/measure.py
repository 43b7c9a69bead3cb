"""What all benchmarks share: describing the machine, interleaved rounds, medians and spread, JSON."""

import argparse
import json
import os
import platform
import random
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--build", type=os.path.abspath, default=os.path.join(ROOT, "build/release"), help="build folder (default build/release)")
    parser.add_argument("--json", help="also write every number to this file")
    return parser


class Goals:
    """What is promised, beside what was measured."""

    def __init__(self):
        self.rows = {}

    def at_most(self, what, value, limit):
        self.rows[what] = {"goal": f"<= {limit}", "measured": value, "holds": value <= limit}

    def at_least(self, what, value, limit):
        self.rows[what] = {"goal": f">= {limit}", "measured": value, "holds": value >= limit}

    def table(self):
        """Prints one line for each; returns them."""
        if not self.rows:
            return self.rows
        width = max(map(len, self.rows))
        print(f"\n{'':<{width}}   {'goal':>8}   measured   holds")
        for what, row in self.rows.items():
            print(f"{what:<{width}}   {row['goal']:>8}   {row['measured']:>8.3g}   {'yes' if row['holds'] else 'NO'}")
        return self.rows


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs, {memory:.0f} GiB, Linux {platform.release()}"


def interleave(contenders, rounds, warm=True):
    """Runs every contender once a round, in an order that chance makes anew; {name: function} to {name: [value per
    round]}. With `warm`, a first round more is not counted."""
    values = {name: [] for name in contenders}
    for turn in range(rounds + warm):
        for name in random.sample(list(contenders), len(contenders)):
            value = contenders[name]()
            if turn >= warm:
                values[name].append(value)
    return values


def report(title, unit, values, ours, digits=1):
    """Prints median, spread and our ratio to each peer; returns the numbers."""
    print(f"\n{title} [{unit}]")
    mine = statistics.median(values[ours])
    rows = {}
    for name, series in values.items():
        median = statistics.median(series)
        ratio = median / mine if mine else float("nan")
        rows[name] = {"median": median, "min": min(series), "max": max(series), "ratio_to_ours": ratio, "values": series}
        note = "" if name == ours else f"   {ratio:.1f} x {ours}"
        print(f"  {name:<22} median {median:>10.{digits}f}   min {min(series):>10.{digits}f}   max {max(series):>10.{digits}f}{note}")
    return {"unit": unit, "rows": rows}


def goals(rows):
    """Prints what was to be reached beside what was measured; rows of (goal, measured, holds), None: not measured here."""
    print(f"\n{'goal':<58} {'measured':<34} holds")
    for goal, measured, holds in rows:
        print(f"{goal:<58} {measured:<34} {'not measured' if holds is None else 'yes' if holds else 'NO'}")
    return [{"goal": goal, "measured": measured, "holds": holds} for goal, measured, holds in rows]


def finish(options, results):
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine(), **results}, file, indent=1)
        print(f"\nwritten to {options.json}")


def program(options, name):
    path = os.path.join(options.build, "bin", name)
    if not os.access(path, os.X_OK):
        sys.exit(f"bench: {path} is not there; build it with scripts/setup")
    return path
