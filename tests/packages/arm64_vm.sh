#!/usr/bin/env bash
# The programs for AArch64 on a kernel for it: Debian's, in an emulated machine (qemu-system-aarch64), with the programs in its
# initial file system. Two workers, a restart, `kill -9` of the agent, workers in a cgroup of their own.
#
# usage: tests/packages/arm64_vm.sh FOLDER     of scripts/release; half a minute on an idle processor
#
# Ends with 77 where it cannot run, and says why.
set -euo pipefail
dist=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
skip() { echo "SKIP arm64_vm: $*"; exit 77; }
for tool in qemu-system-aarch64 cpio gzip apt-get; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done
tarball=$(compgen -G "$dist/torchup-*-linux-aarch64.tar.gz") || skip "no tarball for aarch64 was made"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
parts=$PWD/build/portable/arm64
if [[ ! -e $parts/complete ]]; then
  rm -rf "$parts"
  scripts/release.d/fetch_debian arm64 "$parts" '^linux-image-[0-9.]+-[0-9]+-arm64-unsigned$' busybox-static libc6
  touch "$parts/complete"
fi
image=$(compgen -G "$parts/boot/vmlinuz-*" | sort -V | tail -n1) || skip "Debian's arm64 kernel was not found"

root=$work/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,lib,etc}
cp "$parts/bin/busybox" "$root/bin/"
ln -s busybox "$root/bin/sh"
cp -L "$parts"/lib/aarch64-linux-gnu/{libc.so.6,libm.so.6,libdl.so.2,librt.so.1,libpthread.so.0,ld-linux-aarch64.so.1} "$root/lib/"
tar -xzf "$tarball" -C "$work"
cp "$work"/torchup-*-linux-aarch64/bin/{torchup,torchupd} "$root/bin/"
cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
fail() { echo "arm64_vm: $*"; poweroff -f; }

torchup --version || fail "--version ended with $?"
torchup --nproc-per-node=2 --no-python sh -c 'echo worker $RANK of $WORLD_SIZE' >/tmp/out || fail "two workers ended with $?"
[ "$(sort /tmp/out)" = "worker 0 of 2
worker 1 of 2" ] || fail "two workers said $(cat /tmp/out)"

torchup --nproc-per-node=2 --max-restarts=1 --no-python sh -c 'echo $TORCHELASTIC_RESTART_COUNT; exit $((1 - TORCHELASTIC_RESTART_COUNT))' \
  >/tmp/out 2>/tmp/err || fail "a restart ended with $?: $(cat /tmp/err)"
grep -q 1 /tmp/out || fail "nobody was started again: $(cat /tmp/out)"

torchup --no-python sh -c 'cat /proc/self/cgroup' >/tmp/out || fail "a worker ended with $?"
grep -q torchup /tmp/out || fail "a worker is in the cgroup $(cat /tmp/out)"

torchup --nproc-per-node=2 --no-python sh -c 'echo $$ >>/tmp/pids; sleep 1000' & agent=$!
for i in $(seq 100); do [ "$(wc -l </tmp/pids 2>/dev/null)" = 2 ] && break; sleep 0.1; done
kill -9 $agent
for i in $(seq 100); do left=$(for pid in $(cat /tmp/pids); do [ -d /proc/$pid ] && echo $pid; done); [ -z "$left" ] && break; sleep 0.1; done
[ -z "$left" ] || fail "after kill -9 there are $left"
echo "arm64_vm: all is well"
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initrd"
timeout 300 qemu-system-aarch64 -M virt -cpu cortex-a72 -smp 2 -m 768 -nographic -no-reboot -kernel "$image" -initrd "$work/initrd" \
  -append "console=ttyAMA0 quiet panic=-1" </dev/null | tee "$work/log"
grep -q 'arm64_vm: all is well' "$work/log"
