"""torchrun as it was up to about torch 2.4, in one thing: the times in its agents' state do not say that they are UTC."""

import datetime

from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import main


class NaiveClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz).replace(tzinfo=None)


dynamic_rendezvous.datetime = NaiveClock
main()
