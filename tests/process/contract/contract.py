#!/usr/bin/env python3
"""torchup and torchrun, the same cases side by side.

  contract.py --torchup BIN                     torchup against what torchrun did when the cases were recorded
  contract.py --torchup BIN --torchrun BIN      both now, every row compared (BIN `auto`: beside the workers' Python)
  contract.py --torchrun BIN --record           store what torchrun does as the expectation
  contract.py ... --only TEXT ...               cases whose names contain one of the texts
  contract.py ... --table                       print the table of results, with the reasons of the differences

The cases stand in *_cases.py. A row passes when torchup does what torchrun does, or exactly what the row lists as a
difference, with its reason; a listed difference that is none any more fails too. Exit status: 0 all pass, 1 not.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import sys
import time

import cases
from run import Run

EXPECTED = pathlib.Path(__file__).resolve().parent / "expected.json"


class Tool:
    """One of the two launchers: how it is started, and which of the recorded expectations is its own."""

    def __init__(self, name, program, legacy):
        self.name, self.program, self.legacy = name, program, legacy


def compare(case, expected, seen):
    """What is wrong, in words; empty when the row is as it should be."""
    want = {**expected, **case.differs}
    wrong = []
    for look in sorted(set(want) | set(seen)):
        if want.get(look) != seen.get(look):
            wrong.append(f"{look}:\n      expected {json.dumps(want.get(look))}\n      torchup  {json.dumps(seen.get(look))}")
    for look, value in case.differs.items():
        if look not in expected and look != "timed_out":
            wrong.append(f"{look}: listed as a difference, but nothing that this case looks at")
        elif expected.get(look) == value and case.steady:
            wrong.append(f"{look}: listed as a difference, but torchrun does the same")
    if bool(case.differs) != bool(case.reason):
        wrong.append("a difference needs a reason, and a reason a difference")
    return wrong


def in_lines(stored):
    """JSON with one line for each thing looked at, so that a change shows as one."""
    rows = []
    for name, looks in stored.items():
        inner = ",\n".join(f"  {json.dumps(look)}: {json.dumps(value, ensure_ascii=False)}" for look, value in looks.items())
        rows.append(f" {json.dumps(name)}: {{\n{inner}}}")
    return "{\n" + ",\n".join(rows) + "}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchup", help="our launcher; torchup-launch is expected beside it")
    parser.add_argument("--torchrun", help="torchrun; python is expected beside it; `auto`: the one of the workers' Python, else exit 77")
    parser.add_argument("--record", action="store_true", help="store what torchrun does")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names contain one of these")
    parser.add_argument("--group", action="append", default=[], help="cases of this group")
    parser.add_argument("--slow", action="store_true", help="also the cases that take half a minute")
    parser.add_argument("--quick", action="store_true", help="only the cases marked as the quick selection")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs, and say where they are")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--show", action="store_true", help="print what was seen")
    options = parser.parse_args()
    if not (options.torchup or options.torchrun):
        parser.error("--torchup or --torchrun is needed")

    if options.torchrun == "auto":
        options.torchrun = os.path.join(os.path.dirname(cases.PYTHON), "torchrun")
        if not os.path.exists(options.torchrun):
            print("no torchrun beside", cases.PYTHON)
            return 77
    names = collections.Counter(case.name for case in cases.CASES)
    assert max(names.values()) == 1, [name for name, count in names.items() if count > 1]
    chosen = [case for case in cases.CASES
              if (not options.only or any(text in case.name for text in options.only))
              and (not options.group or case.group in options.group)
              and (options.slow or not case.slow) and (not options.quick or case.quick)]
    if not options.torchrun:
        chosen = [case for case in chosen if not case.needs_torch or cases.HAS_TORCH]

    tools = []
    if options.torchrun:
        bin_dir = pathlib.Path(options.torchrun).absolute().parent
        tools.append(Tool("torchrun", [str(bin_dir / "torchrun")], [str(bin_dir / "python"), "-m", "torch.distributed.launch"]))
    if options.torchup:
        program = pathlib.Path(options.torchup).absolute()
        tools.append(Tool("torchup", [str(program)], [str(program.parent / "torchup-launch")]))

    stored = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    seen = {tool.name: {} for tool in tools}
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        def one(case, tool):
            run = Run(case, tool, options.keep)
            begin = time.monotonic()
            result = json.loads(json.dumps(run.run()))
            return case, tool, result, time.monotonic() - begin, run.dir
        for future in concurrent.futures.as_completed([pool.submit(one, case, tool) for case in chosen for tool in tools]):
            case, tool, result, took, folder = future.result()
            seen[tool.name][case.name] = result
            if options.keep or options.show:
                print(f"-- {tool.name}: {case.name} ({took:.2f} s) {folder if options.keep else ''}")
            if options.show:
                print(json.dumps(result, indent=1))
            sys.stdout.flush()

    if options.record:
        stored.update(seen["torchrun"])
        stored = {case.name: stored[case.name] for case in cases.CASES if case.name in stored}
        EXPECTED.write_text(in_lines(stored))
        print(f"recorded {len(seen['torchrun'])} cases in {time.monotonic() - started:.0f} s")
        late = [name for name, result in seen["torchrun"].items() if result.get("timed_out")]
        if late:
            print("TIMED OUT:", late)
        return 1 if late else 0

    failed = same = different = 0
    for case in chosen:
        reference = seen.get("torchrun", stored).get(case.name)
        if reference is None:
            print(f"FAIL {case.name}: torchrun's side was never recorded")
            failed += 1
            continue
        if "torchrun" in seen and not options.record and stored.get(case.name) not in (None, reference):
            print(f"note {case.name}: torchrun does not do what was recorded:\n      recorded {json.dumps(stored[case.name])}\n      now      {json.dumps(reference)}")
        if "torchup" not in seen:
            continue
        wrong = compare(case, reference, seen["torchup"][case.name])
        if wrong:
            failed += 1
            print(f"FAIL {case.group}: {case.name}\n    " + "\n    ".join(wrong))
        elif case.differs:
            different += 1
        else:
            same += 1
        if options.table and not wrong:
            print(f"{'differs' if case.differs else 'equal  '} {case.group}: {case.name}" + (f" - {case.reason}" if case.reason else ""))
    if "torchup" in seen:
        print(f"{same} equal, {different} different on purpose, {failed} wrong, of {len(chosen)} cases in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
