"""Our sampler against Python's DistributedSampler, list by list. Usage: sampler_test.py SAMPLER_LISTS"""
import itertools
import subprocess
import sys

from torch.utils.data import DistributedSampler

cases = list(itertools.product([1, 2, 5, 7, 23, 24, 100, 1000], [1, 2, 3, 4, 8], [0, 1], [0, 1], [0, 42], [0, 3]))
cases += [(50000, 3, 0, 1, 7, 1), (60000, 4, 1, 1, 2**40, 2)]
text = "".join(" ".join(map(str, case)) + "\n" for case in cases)
ours = subprocess.run([sys.argv[1]], input=text, capture_output=True, text=True, timeout=100, check=True).stdout.split("\n")

line = 0
for size, world_size, drop_last, shuffle, seed, epoch in cases:
    for rank in range(world_size):
        indices = list(map(int, ours[line].split()))
        line += 1
        if drop_last and size < world_size:
            assert indices == [], (size, world_size)  # Python's own assertion fails here
            continue
        sampler = DistributedSampler(range(size), world_size, rank, bool(shuffle), seed, bool(drop_last))
        sampler.set_epoch(epoch)
        assert indices == list(sampler), (size, world_size, drop_last, shuffle, seed, epoch, rank)
assert line == len(ours) - 1
print(f"{line} lists equal")
