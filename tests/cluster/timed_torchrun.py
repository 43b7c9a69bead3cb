"""torchrun that writes when its agent first asks for a place. Arguments: the file, then torchrun's own."""

import sys
import time
from pathlib import Path

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.run import main

file = Path(sys.argv.pop(1))
join = DynamicRendezvousHandler.next_rendezvous


def timed_join(handler):
    if not handler.__dict__.setdefault("asked_before", False):
        handler.asked_before = True
        file.write_text(str(time.time()))
    return join(handler)


DynamicRendezvousHandler.next_rendezvous = timed_join
main()
