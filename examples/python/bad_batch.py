"""A job that fails: rank 1 meets a bad batch while rank 0 goes on. Shows what a launcher makes of it."""

import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


def read_batch(step):
    if os.environ["RANK"] == "1" and step == 3:
        raise RuntimeError("batch 3: labels above 9")
    time.sleep(0.1)


@record
def main():
    for step in range(100):
        read_batch(step)


if __name__ == "__main__":
    main()
