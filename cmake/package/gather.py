#!/usr/bin/env python3
"""Gathers what find_package(torchup) compiles in a project of a user's: the worker runtime's sources and all headers that they
reach, of Boost, fmt, nlohmann-json and gloo too.

usage: gather.py --include FOLDER... --out PREFIX

--include: where those four have their headers (/usr/include). PREFIX gets share/torchup/cpp and share/cmake/torchup.

Which sources there are, and which are compiled together, is said by worker_runtime's and rendezvous' CMakeLists.txt alone,
in calls that are read here; headers are found by reading `#include` lines, whatever they depend on. So nothing is listed twice,
and a header too many may come, but none too few: a file that is named and not there ends it with 1.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
# Boost names some of its headers by macros: `#define BOOST_COMPILER_CONFIG "boost/config/compiler/gcc.hpp"`.
BY_MACRO = re.compile(r'^\s*#\s*define\s+\w+\s+[<"](boost/[^>"]+)[>"]', re.M)
# What torch's own headers want of gloo, which its wheel does not bring.
GLOO = ("algorithm allgather allgatherv allreduce alltoall alltoallv barrier broadcast common/error config context gather reduce "
        "rendezvous/store scatter transport/device").split()
OTHERS = ("boost", "fmt", "nlohmann", "gloo")
OTHER_SYSTEMS = "boost/winapi/"  # which a Linux never reads
OF_RENDEZVOUS = ("rendezvous_base", "rank_set", "store_wire", "store_client")
OF_WORKERS = ("worker_rounds", "worker_look", "worker_format")


def calls(text, names):
    """Each call of these CMake commands, in their order: name, arguments."""
    text = re.sub(r"#.*", "", text)
    for name, arguments in re.findall(rf"\b({'|'.join(names)})\(([^()]*)\)", text):
        yield name, arguments.split()


def sources_of(folder, targets):
    """Sources of libraries that a CMakeLists.txt names, from the root."""
    found = []
    text = (ROOT / folder / "CMakeLists.txt").read_text()
    for name, words in calls(text, ("torchup_library", "add_library", "target_sources")):
        if words and words[0] in targets:
            found += [f"{folder}/{word}" for word in words if word.endswith(".cpp")]
    return found


def rooms():
    """Each source of a room: its unity group, and whether it does without torch's precompiled header."""
    group, found = None, {}

    def read(folder):
        nonlocal group
        names = ("set", "add_subdirectory", "worker_runtime_room", "worker_runtime_apart", "worker_runtime_without_torch")
        for name, words in calls((ROOT / folder / "CMakeLists.txt").read_text(), names):
            files = [f"{folder}/{word}" for word in words if word.endswith(".cpp")]
            if name == "set" and words[0] == "unity_group":
                group = words[1]
            elif name == "add_subdirectory" and words[0] != "format":
                read(f"{folder}/{words[0]}")
            elif name == "worker_runtime_room":
                found.update({file: [group, True] for file in files})
            elif name == "worker_runtime_apart":
                for file in files:
                    found[file][0] = "apart"
            elif name == "worker_runtime_without_torch":
                for file in files:
                    found[file][1] = False

    read("worker_runtime")
    return found


class Gathered:
    def __init__(self, includes, out):
        self.includes, self.out = [Path(folder) for folder in includes], out
        self.done, self.missing = set(), []

    def own(self, path):
        self.take(ROOT / path, self.out / path)

    def other(self, name, by):
        for folder in self.includes:
            if (folder / name).is_file():
                # gloo's are for torch's headers, which a user's program includes too; the others for our sources alone.
                place = "third_party/gloo" if name.startswith("gloo/") else "third_party/include"
                return self.take(folder / name, self.out / place / name)
        # Headers of others ask for some that other compilers and systems have; ours ask for what is there.
        if not by.is_relative_to(self.out / "third_party"):
            self.missing.append(f"{name}, which {by.name} includes")

    def take(self, source, target):
        if target in self.done:
            return
        self.done.add(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        text = source.read_text(errors="replace")
        for form, name in INCLUDE.findall(text):
            if name.startswith(OTHER_SYSTEMS):
                continue
            if name.partition("/")[0] in OTHERS:
                self.other(name, target)
            elif name.startswith(("rendezvous/", "worker_runtime/")):
                if (ROOT / name).is_file():
                    self.own(name)
                elif not name.endswith("build_config.hpp"):
                    self.missing.append(f"{name}, which {target.name} includes")
            elif name.startswith("torchup/"):
                self.own(f"worker_runtime/include/{name}")
            elif form == '"' and (source.parent / name).is_file():
                self.take(source.parent / name, target.parent / name)
        for name in BY_MACRO.findall(text):
            self.other(name, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", action="append", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    prefix = Path(arguments.out)
    gathered = Gathered(arguments.include, prefix / "share/torchup/cpp")
    of_rooms = rooms()
    plain = [*sources_of("rendezvous", OF_RENDEZVOUS), *sources_of("worker_runtime", OF_WORKERS),
             *sources_of("worker_runtime/format", OF_WORKERS)]
    if len(of_rooms) < 40 or len(plain) < 15:
        sys.exit("gather: the CMakeLists.txt are written in a way that is not understood here")
    for path in [*of_rooms, *plain]:
        gathered.own(path)
    for header in sorted((ROOT / "worker_runtime/include").rglob("*.hpp")):
        gathered.own(header.relative_to(ROOT))
    gathered.own("worker_runtime/build_config.hpp.in")
    for name in GLOO:
        gathered.other(f"gloo/{name}.h", gathered.out / "worker_runtime/torch.hpp")
    if gathered.missing:
        sys.exit("gather: there is no " + "; no ".join(gathered.missing))

    lines = ["# Which sources find_package(torchup) compiles, and which of them together; made by cmake/package/gather.py."]
    lines += ["set(torchup_plain_sources", *(f"  {path}" for path in plain), ")"]
    torchless = [path for path, (_, with_torch) in of_rooms.items() if not with_torch]
    lines += ["set(torchup_torchless_sources", *(f"  {path}" for path in torchless), ")"]
    groups = {}
    for path, (group, with_torch) in of_rooms.items():
        if with_torch:
            groups.setdefault(group, []).append(path)
    lines.append(f"set(torchup_groups {' '.join(groups)})")
    for group, paths in groups.items():
        lines += [f"set(torchup_sources_{group}", *(f"  {path}" for path in paths), ")"]
    (gathered.out / "sources.cmake").write_text("\n".join(lines) + "\n")
    package = prefix / "share/cmake/torchup"
    package.mkdir(parents=True, exist_ok=True)
    for file in "cmake/package/torchup-config.cmake", "cmake/FindLibTorch.cmake":
        shutil.copyfile(ROOT / file, package / Path(file).name)


if __name__ == "__main__":
    main()
