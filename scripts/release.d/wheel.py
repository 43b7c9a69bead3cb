#!/usr/bin/env python3
"""Makes a wheel of what `cmake --install` has put into a folder.

usage: wheel.py --stage FOLDER --version VERSION --architecture x86_64|aarch64 [--licences FOLDER] [--sbom FILE] --out FOLDER

FOLDER is a prefix with bin/, share/man/, share/torchup/python/torchup and, if it is there, share/torchup/cpp and
share/cmake/torchup. The same files, version and SOURCE_DATE_EPOCH give the same bytes. Prints the wheel's path.

The programs are the native ones, scripts of the wheel: no Python starts before them. A wheel holds no links, so the other
names of torchup are entry points, which exec it. No file is named torchrun where PATH leads.
"""

import argparse
import base64
import hashlib
import os
import time
import zipfile
from pathlib import Path

PROGRAMS = ("torchup", "torchupd", "torchupctl")
METADATA = """\
Metadata-Version: 2.4
Name: torchup
Version: {version}
Summary: torchrun made native: starts, supervises and heals distributed PyTorch jobs
License-Expression: BSD-3-Clause
{licence_files}Keywords: pytorch,distributed,torchrun,launcher,elastic
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.9
Provides-Extra: cpp
Requires-Dist: cmake>=3.25; extra == "cpp"
Requires-Dist: ninja; extra == "cpp"
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: torchup
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """\
[console_scripts]
torchup-launch = torchup._program:run_by_name
torchup-stack = torchup._program:run_by_name
"""
TAG = "py3-none-manylinux_2_28_{architecture}"


def files_below(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def contents(arguments, tag):
    """Each file of the wheel: its name, bytes, whether it is executable."""
    stage = Path(arguments.stage)
    packages = stage / "share/torchup/python"
    found = {str(path.relative_to(packages)): path for path in files_below(packages / "torchup")}
    for folder in "share/torchup/cpp", "share/cmake/torchup":
        found.update({f"torchup/{path.relative_to(stage)}": path for path in files_below(stage / folder)})
    data = f"torchup-{arguments.version}.data"
    found.update({f"{data}/scripts/{name}": stage / "bin" / name for name in PROGRAMS})
    for path in files_below(stage / "share/man"):
        found[f"{data}/data/{path.relative_to(stage)}"] = path
    info = f"torchup-{arguments.version}.dist-info"
    licences = [("LICENSE", Path(__file__).resolve().parents[2] / "LICENSE")]
    if arguments.licences:
        licences += [(str(path.relative_to(arguments.licences)), path) for path in files_below(arguments.licences)]
    found.update({f"{info}/licenses/{name}": path for name, path in licences})
    if arguments.sbom:
        found[f"{info}/sboms/torchup.spdx.json"] = Path(arguments.sbom)
    result = [(name, path.read_bytes(), os.access(path, os.X_OK)) for name, path in sorted(found.items())]
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    licence_files = "".join(f"License-File: {name}\n" for name, _ in sorted(licences))
    metadata = METADATA.format(version=arguments.version, licence_files=licence_files, readme=readme)
    for name, text in (("METADATA", metadata), ("WHEEL", WHEEL.format(tag=tag)), ("entry_points.txt", ENTRY_POINTS)):
        result.append((f"{info}/{name}", text.encode(), False))
    return info, result


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_wheel(path, info, members):
    # The format knows no year before 1980.
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)
    date = time.gmtime(epoch)[:6]
    record = "".join(record_line(name, data) for name, data, _ in members) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data, is_executable in [*members, (f"{info}/RECORD", record.encode(), False)]:
            member = zipfile.ZipInfo(name, date)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.create_system = 3
            member.external_attr = (0o100755 if is_executable else 0o100644) << 16
            archive.writestr(member, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in "stage", "version", "out":
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--architecture", required=True, choices=("x86_64", "aarch64"))
    parser.add_argument("--licences")
    parser.add_argument("--sbom")
    arguments = parser.parse_args()
    tag = TAG.format(architecture=arguments.architecture)
    path = Path(arguments.out) / f"torchup-{arguments.version}-{tag}.whl"
    write_wheel(path, *contents(arguments, tag))
    print(path)


if __name__ == "__main__":
    main()
