#!/usr/bin/env python3
"""Says whether two folders hold the same files, byte for byte, and of each that differs the first member that does.

usage: compare.py FOLDER OTHER     ends with 1 if something differs
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def archive_members(data):
    """Of an ar archive, as Debian's packages are: each member's name and bytes."""
    place = 8
    while place + 60 <= len(data):
        name, size = data[place:place + 16].decode().strip(), int(data[place + 48:place + 58])
        yield name, data[place + 60:place + 60 + size]
        place += 60 + size + size % 2


def tar_members(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            about = (member.name, member.mode, member.mtime, member.linkname, member.uid, member.gid)
            yield member.name, repr(about).encode() + (archive.extractfile(member).read() if member.isfile() else b"")


def zip_members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            about = (member.filename, member.date_time, member.external_attr)
            yield member.filename, repr(about).encode() + archive.read(member)


def members(name, data):
    if name.endswith(".whl"):
        return zip_members(data)
    if name.endswith(".deb"):
        return archive_members(data)
    if name.endswith((".tar", ".tar.gz", ".tar.xz")):
        return tar_members(data)
    return iter(())


def first_difference(name, one, other):
    """The way to the innermost member that differs: "a.deb: data.tar.xz: ./usr/bin/torchup"."""
    left, right = list(members(name, one)), list(members(name, other))
    for (left_name, left_data), (right_name, right_data) in zip(left, right):
        if left_name != right_name:
            return f"{name}: {left_name} in the place of {right_name}"
        if left_data != right_data:
            return f"{name}: {first_difference(left_name, left_data, right_data)}"
    if len(left) != len(right):
        return f"{name}: {len(left)} members and {len(right)}"
    return name


def main(words):
    if len(words) != 2:
        sys.stdout.write(__doc__)
        return 2
    files = [{str(path.relative_to(folder)): path for path in Path(folder).rglob("*") if path.is_file()} for folder in words]
    different = False
    for name in sorted(files[0].keys() | files[1].keys()):
        if name not in files[0] or name not in files[1]:
            print(f"differs: {name} is in one of them alone")
            different = True
            continue
        one, other = (folder[name].read_bytes() for folder in files)
        if one != other:
            print(f"differs: {first_difference(name, one, other)}")
            different = True
    return int(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
