#!/usr/bin/env python3
"""Says what is compiled into the programs or shipped with them: a list in SPDX 2.3, and each part's licence.

usage: parts.py --zig ZIG --version VERSION --licences FOLDER --sbom FILE

Parts come from Debian's packages that are installed here, whose versions and copyright files are taken, and from zig.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

# Name, Debian's package, licence, where it comes from.
DEBIAN = (
    ("Boost", "libboost1.81-dev", "BSL-1.0", "https://www.boost.org"),
    ("CLI11", "libcli11-dev", "BSD-3-Clause", "https://github.com/CLIUtils/CLI11"),
    ("fmt", "libfmt-dev", "MIT", "https://github.com/fmtlib/fmt"),
    ("gloo", "libgloo-dev", "BSD-3-Clause", "https://github.com/facebookincubator/gloo"),
    ("libsodium", "libsodium-dev", "ISC", "https://github.com/jedisct1/libsodium"),
    ("nlohmann-json", "nlohmann-json3-dev", "MIT", "https://github.com/nlohmann/json"),
    ("spdlog", "libspdlog-dev", "MIT", "https://github.com/gabime/spdlog"),
)
# Of zig's: what of it is in every program.
LLVM = ("libcxx", "libcxxabi", "libunwind")
LLVM_LICENCE = "Apache-2.0 WITH LLVM-exception"


def debian_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=True)
    return done.stdout


def upstream(version):
    """Without Debian's epoch and revision: 1:1.10.0+ds-0.4 is 1.10.0."""
    plain = version.rpartition(":")[2].rpartition("-")[0]
    return plain.partition("+")[0]


def licence_text(path, licence):
    """Of a copyright file of Debian's. Boost's names each author of each of its parts, in two megabytes; the headers that are
    shipped have theirs inside, and of that file its licence is taken."""
    text = Path(path).read_text()
    if len(text) < 100_000:
        return text
    paragraph = re.search(rf"^License: {re.escape(licence)}\n((?: .+\n)+)", text, re.M)[1]
    return "".join("\n" if line == " .\n" else line[1:] for line in paragraph.splitlines(keepends=True))


def identifier(name):
    return "SPDXRef-Package-" + "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)


def package(name, version, licence, origin, purl=None):
    entry = {
        "SPDXID": identifier(name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": origin,
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }
    if purl:
        entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in "zig", "version", "licences", "sbom":
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    licences = Path(arguments.licences)
    shutil.rmtree(licences, ignore_errors=True)
    licences.mkdir(parents=True)
    own = package("torchup", arguments.version, "BSD-3-Clause", "NOASSERTION")
    packages = [own]
    for name, debian, licence, origin in DEBIAN:
        version = debian_version(debian)
        purl = f"pkg:deb/debian/{debian}@{version.replace(':', '%3A').replace('+', '%2B')}"
        packages.append(package(name, upstream(version), licence, origin, purl))
        (licences / f"{name}.txt").write_text(licence_text(f"/usr/share/doc/{debian}/copyright", licence))
    zig = Path(arguments.zig)
    zig_version = subprocess.run([zig, "version"], capture_output=True, text=True, check=True).stdout.strip()
    for name in LLVM:
        packages.append(package(f"LLVM {name}", f"of zig {zig_version}", LLVM_LICENCE, "https://llvm.org"))
        shutil.copy(zig.parent / "lib" / name / "LICENSE.TXT", licences / f"LLVM-{name}.txt")
    for path in licences.iterdir():
        path.chmod(0o644)
    names = "\n".join(f"{entry['name']} {entry['versionInfo']}" for entry in packages)
    digest = hashlib.sha256(names.encode()).hexdigest()
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"torchup-{arguments.version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/torchup-{arguments.version}-{digest[:32]}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: torchup scripts/release"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own["SPDXID"]},
            *({"spdxElementId": own["SPDXID"], "relationshipType": "STATIC_LINK", "relatedSpdxElement": entry["SPDXID"]}
              for entry in packages[1:]),
        ],
    }
    Path(arguments.sbom).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
