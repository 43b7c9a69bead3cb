#!/usr/bin/env python3
"""What scripts/release has made, as it is handed out: it runs where it says that it runs, and is what SHA256SUMS says.

usage: release_test.py FOLDER [unittest options]

Systems are bare ones of mmdebstrap (root), in folders: neither a compiler, nor torch, nor OpenSSL. RELEASES in the environment
names them ("bookworm bullseye"; empty: none).
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

DIST = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[2]
HOST = os.uname().machine
WHEEL_BYTES_MAX, PACKAGE_BYTES_MAX = 5_000_000, 4_000_000
TOKEN = "a token of twenty-five..."

spec = importlib.util.spec_from_file_location("elf", ROOT / "scripts/release.d/elf.py")
elf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(elf)


def the_one(pattern):
    found = sorted(DIST.glob(pattern))
    if not found:
        raise unittest.SkipTest(f"no {pattern} was made")
    return found[0]


def run(*command, code=0, timeout=100, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, **options)
    if done.returncode != code:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def test_sums_are_of_every_file(self):
        lines = (DIST / "SHA256SUMS").read_text().splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        self.assertEqual(sums.keys(), {path.name for path in DIST.iterdir()} - {"SHA256SUMS"})
        for name, digest in sums.items():
            self.assertEqual(hashlib.sha256((DIST / name).read_bytes()).hexdigest(), digest, name)

    def test_sizes(self):
        for path in DIST.glob("*.whl"):
            self.assertLess(path.stat().st_size, WHEEL_BYTES_MAX, path.name)
        for path in DIST.glob("*.deb"):
            self.assertLess(path.stat().st_size, PACKAGE_BYTES_MAX, path.name)

    def programs(self):
        """Name and bytes of each program in each wheel and tarball."""
        for path in DIST.glob("*.whl"):
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    if ".data/scripts/" in name:
                        yield f"{path.name}: {name}", wheel.read(name)
        for path in DIST.glob("torchup-*-linux-*.tar.gz"):
            if "-debug" in path.name:
                continue
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and member.name.split("/")[1:-1] == ["bin"]:
                        yield f"{path.name}: {member.name}", archive.extractfile(member).read()

    def test_programs_run_anywhere(self):
        programs = dict(self.programs())
        self.assertGreaterEqual(len(programs), 6)
        for name, data in programs.items():
            with self.subTest(program=name):
                self.assertEqual(elf.faults(data), [])
                self.assertIn(elf.MACHINES[elf.Elf(data).machine], name)

    def test_debug_files_belong_to_the_programs(self):
        names = set()
        for path in DIST.glob("*-debug.tar.gz"):
            with tarfile.open(path) as archive:
                names |= {member.name.partition(".build-id/")[2] for member in archive if member.isfile()}
        ids = {elf.Elf(data).build_id() for name, data in self.programs() if "tar.gz" in name}
        self.assertEqual(names, {f"{build_id[:2]}/{build_id[2:]}.debug" for build_id in ids})

    def test_all_say_the_same_version(self):
        version = re.fullmatch(r"torchup-(.+)\.spdx\.json", the_one("*.spdx.json").name)[1]
        with tarfile.open(the_one(f"torchup-{version}-linux-{HOST}.tar.gz")) as archive:
            archive.extractall(self.folder)
        for program in "torchup", "torchupd", "torchupctl":
            path = self.folder / f"torchup-{version}-linux-{HOST}/bin" / program
            self.assertEqual(run(path, "--version"), f"{program} {version}\n")
        self.assertEqual({path.name.split("-")[1] for path in DIST.glob("*.whl")}, {version})
        for path in DIST.glob("*.deb"):
            self.assertEqual(path.name.split("_")[1], version.replace(".dev", "~dev"))
        with zipfile.ZipFile(the_one("*.whl")) as wheel:
            config = next(name for name in wheel.namelist() if name.endswith("share/cmake/torchup/torchup-config-version.cmake"))
            self.assertIn(f'"{re.match("[0-9.]+[0-9]", version)[0]}"', wheel.read(config).decode())

    def test_parts_are_listed_with_their_licences(self):
        document = json.loads(the_one("*.spdx.json").read_text())
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        names = {package["name"] for package in document["packages"]}
        self.assertLessEqual({"torchup", "Boost", "CLI11", "fmt", "libsodium", "nlohmann-json", "spdlog", "LLVM libcxx"}, names)
        for package in document["packages"]:
            self.assertTrue(package["versionInfo"] and package["licenseDeclared"], package)
        with zipfile.ZipFile(the_one("*.whl")) as wheel:
            files = wheel.namelist()
        for name in "Boost", "libsodium", "LLVM-libcxx":
            self.assertTrue(any(file.endswith(f"licenses/{name}.txt") for file in files), name)
        self.assertTrue(any(file.endswith("sboms/torchup.spdx.json") for file in files))
        validate = shutil.which("pyspdxtools")
        if validate:
            run(validate, "--infile", the_one("*.spdx.json"))

    def test_packages_please_lintian(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        for path in DIST.glob("*.deb"):
            run("lintian", "--allow-root", "--fail-on", "error,warning", path)

    def test_what_an_image_copies_is_in_the_tarball(self):
        copied = re.search(r"^COPY (.+) /usr/local/bin/$", (ROOT / "scripts/release.d/Containerfile").read_text(), re.M)[1]
        with tarfile.open(the_one(f"*-linux-{HOST}.tar.gz")) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        self.assertLessEqual(set(copied.split()), names)

    def test_the_sources_are_whole(self):
        with tarfile.open(next(path for path in DIST.glob("torchup-*.tar.gz") if "-linux-" not in path.name)) as archive:
            names = archive.getnames()
        root = names[0].partition("/")[0]
        for file in "CMakeLists.txt", "README.md", "scripts/release", "launcher/main.cpp":
            self.assertIn(f"{root}/{file}", names)


@unittest.skipUnless(shutil.which("mmdebstrap") and os.geteuid() == 0, "needs mmdebstrap and root")
class Systems(unittest.TestCase):
    """Older and bare systems: what was made runs a job, and one whose agents prove a token to a daemon."""

    SCRIPT = f"""
set -e
cd /tmp
export HOME=/tmp
test ! -e /usr/lib/*/libcrypto.so.3 || echo 'libcrypto.so.3 is there'
torchup --version
torchup --nproc-per-node=2 --no-python sh -c 'echo rank $RANK of $WORLD_SIZE'
printf '%s' '{TOKEN}' >token; printf '%s' 'another of twenty-five..' >wrong; chmod 600 token wrong
torchupd --port 0 --token-file token >ready 2>log & daemon=$!
trap 'kill $daemon 2>/dev/null || :' EXIT
for i in $(seq 100); do test -s ready && break; sleep 0.1; done
port=$(sed 's/.*://' ready)
at="--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$port --rdzv-conf=join_timeout=20"
torchup $at --rdzv-id=good --token-file token --no-python sh -c 'echo trusted'
code=0; torchup $at --rdzv-id=bad --token-file wrong --no-python true 2>err || code=$?
test $code = 68 || {{ echo "a wrong token ended with $code"; cat err; exit 1; }}
"""

    def system(self, release):
        folder = Path(tempfile.mkdtemp(prefix="torchup-system-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        run("mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", release, folder, timeout=600)
        # A /proc of its own; of /dev the few nodes that mmdebstrap has made. Nothing of this machine's is below that folder.
        run("mount", "-t", "proc", "proc", folder / "proc")
        self.addCleanup(run, "umount", "--lazy", folder / "proc")
        return folder

    def try_in(self, folder):
        told = run("chroot", folder, "sh", "-c", self.SCRIPT, timeout=100)
        for line in "rank 0 of 2", "rank 1 of 2", "trusted":
            self.assertIn(line, told.splitlines())

    def test_package_and_tarball(self):
        for release in os.environ.get("RELEASES", "bookworm bullseye").split():
            with self.subTest(release=release):
                folder = self.system(release)
                before = self.files(folder)
                deb = the_one(f"torchup_*_{'amd64' if HOST == 'x86_64' else 'arm64'}.deb")
                shutil.copy(deb, folder / "tmp/torchup.deb")
                run("chroot", folder, "dpkg", "--install", "/tmp/torchup.deb")
                self.try_in(folder)
                run("chroot", folder, "dpkg", "--purge", "torchup")
                shutil.rmtree(folder / "tmp")
                (folder / "tmp").mkdir()
                left = self.files(folder) - before
                self.assertEqual({name for name in left if not name.startswith(("var/lib/dpkg/", "var/log/"))}, set())
                with tarfile.open(the_one(f"*-linux-{HOST}.tar.gz")) as archive:
                    archive.extractall(folder / "opt")
                unpacked, = (folder / "opt").iterdir()
                for program in (unpacked / "bin").iterdir():
                    (folder / "usr/local/bin" / program.name).symlink_to(f"/opt/{unpacked.name}/bin/{program.name}")
                self.try_in(folder)

    @staticmethod
    def files(folder):
        found = set()
        for place, folders, names in os.walk(folder):
            if Path(place) == folder:
                folders[:] = [name for name in folders if name not in ("proc", "dev", "sys")]
            found |= {os.path.relpath(os.path.join(place, name), folder) for name in [*folders, *names]}
        return found


if __name__ == "__main__":
    unittest.main()
