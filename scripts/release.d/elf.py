#!/usr/bin/env python3
"""Says why an ELF file would not run everywhere: what every file of a release is held against.

usage: elf.py FILE...              ends with 1 if one of them breaks a rule
       elf.py --symbols FILE...    also prints what each asks of glibc
       elf.py --build-id FILE      prints that alone

Rules: a position-independent executable for x86-64 or AArch64; needs nothing but the C library's own files, of glibc 2.28
at most; no folder of libraries of its own; full RELRO; no executable stack; stripped, with a build id; no path of the
machine that built it.
"""

import re
import struct
import sys
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}
LIBRARIES = re.compile(r"(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|librt\.so\.1|ld-linux-x86-64\.so\.2"
                       r"|ld-linux-aarch64\.so\.1)$")
NEWEST = (2, 28)
PLACES = re.compile(rb"(?:^|[\0\s\"'(=:])(/(?:home|root|tmp|build|work|mnt|srv|opt|var/tmp|Users)/[\w./+-]+)")
# What the programs name on purpose: where a user's sockets are, for one.
MEANT = re.compile(rb"/tmp/torchup|/var/tmp/torchup|/opt/(?:conda|amazon)|/root/\.|/tmp/$")

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 4, 0x6474e551, 0x6474e552
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_FLAGS, DT_RUNPATH, DT_BIND_NOW = 1, 5, 10, 15, 30, 29, 24
DT_FLAGS_1, DT_VERNEED, DT_VERNEEDNUM = 0x6ffffffb, 0x6ffffffe, 0x6fffffff


class Elf:
    """The parts of a 64-bit little-endian ELF file that the rules are about. Raises ValueError for what is none."""

    def __init__(self, data):
        self.data = data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit little-endian ELF file")
        self.type, self.machine = struct.unpack_from("<HH", data, 16)
        programs_at, sections_at = struct.unpack_from("<QQ", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        self.programs = [struct.unpack_from("<IIQQQQQQ", data, programs_at + size * i) for i in range(count)]
        size, count = struct.unpack_from("<HH", data, 58)
        self.section_types = [struct.unpack_from("<I", data, sections_at + size * i + 4)[0] for i in range(count)]
        self.dynamic = []
        for kind, _, offset, _, _, length, *_ in self.programs:
            if kind == PT_DYNAMIC:
                entries = struct.iter_unpack("<qQ", data[offset:offset + length - length % 16])
                for tag, value in entries:
                    if tag == 0:
                        break
                    self.dynamic.append((tag, value))

    def at(self, address):
        """The place in the file of what is loaded at that address."""
        for kind, _, offset, start, _, length, *_ in self.programs:
            if kind == PT_LOAD and start <= address < start + length:
                return address - start + offset
        raise ValueError(f"nothing of the file is loaded at {address:#x}")

    def value(self, tag):
        return next((value for name, value in self.dynamic if name == tag), None)

    def text(self, offset):
        begin = self.at(self.value(DT_STRTAB)) + offset
        return self.data[begin:self.data.index(b"\0", begin)].decode()

    def needed(self):
        return [self.text(value) for tag, value in self.dynamic if tag == DT_NEEDED]

    def versions(self):
        """Each version of each library that it asks for: ("libc.so.6", "GLIBC_2.17")."""
        found, count = [], self.value(DT_VERNEEDNUM) or 0
        place = self.at(self.value(DT_VERNEED)) if count else 0
        for _ in range(count):
            _, entries, file, first, following = struct.unpack_from("<HHIII", self.data, place)
            entry = place + first
            for _ in range(entries):
                _, _, _, name, more = struct.unpack_from("<IHHII", self.data, entry)
                found.append((self.text(file), self.text(name)))
                entry += more
            place += following
        return found

    def build_id(self):
        """In hexadecimal; empty without one."""
        for kind, _, offset, _, _, length, *_ in self.programs:
            end = offset + length
            while kind == PT_NOTE and offset + 12 <= end:
                name, content, note = struct.unpack_from("<III", self.data, offset)
                if note == 3 and self.data[offset + 12:offset + 15] == b"GNU":
                    begin = offset + 12 + (name + 3) // 4 * 4
                    return self.data[begin:begin + content].hex()
                offset += 12 + (name + 3) // 4 * 4 + (content + 3) // 4 * 4
        return ""


def number(version):
    return tuple(int(part) for part in version.split("_")[1].split("."))


def faults(data):
    """Each rule that these bytes break, in words."""
    try:
        elf = Elf(data)
    except ValueError as error:
        return [str(error)]
    found = []
    if elf.machine not in MACHINES:
        found.append(f"it is for machine {elf.machine}")
    if elf.type != 3:
        found.append("it is not position-independent")
    found += [f"it needs {name}" for name in elf.needed() if not LIBRARIES.match(name)]
    for library, version in elf.versions():
        if not re.match(r"GLIBC_\d", version):
            found.append(f"it asks for {version} of {library}")
        elif number(version) > NEWEST:
            found.append(f"it asks for {version}")
    found += ["it has a path of libraries" for tag in (DT_RPATH, DT_RUNPATH) if elf.value(tag) is not None]
    kinds = {program[0]: program for program in elf.programs}
    at_once = elf.value(DT_BIND_NOW) is not None or (elf.value(DT_FLAGS) or 0) & 8 or (elf.value(DT_FLAGS_1) or 0) & 1
    if PT_GNU_RELRO not in kinds or not at_once:
        found.append("its tables stay writable: no full RELRO")
    if PT_GNU_STACK not in kinds or kinds[PT_GNU_STACK][1] & 1:
        found.append("its stack is executable")
    if 2 in elf.section_types:
        found.append("it is not stripped")
    if not elf.build_id():
        found.append("it has no build id")
    places = {place for place in PLACES.findall(data) if not MEANT.match(place)}
    return found + [f"it names {place.decode()}" for place in sorted(places)[:3]]


def main(words):
    with_symbols = words[:1] == ["--symbols"]
    files = words[1:] if with_symbols else words
    if not files or files[0] in ("-h", "--help"):
        sys.stdout.write(__doc__)
        return 0 if files else 2
    if words[0] == "--build-id":
        print(Elf(Path(words[1]).read_bytes()).build_id())
        return 0
    failed = False
    for name in files:
        data = Path(name).read_bytes()
        if with_symbols:
            print(name, *sorted({version for _, version in Elf(data).versions()}, key=number))
        for fault in faults(data):
            print(f"{name}: {fault}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
