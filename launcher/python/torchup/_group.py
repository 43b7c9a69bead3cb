"""The default process group of one round: made, waited for at the end, taken down whatever has become of it."""

import builtins
import datetime
import gc
import hashlib
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ._gloo import Sockets, has_loops
from ._link import link

# A peer that dies while gloo connects its sockets to it must not cost the default timeout, half an hour, nor the time
# that survivors have for parking (--shutdown-timeout, 30 s).
_CONNECT = datetime.timedelta(seconds=10)
_FAREWELL = datetime.timedelta(seconds=30)
_DIAL = datetime.timedelta(seconds=5)
_EVER = datetime.timedelta(days=24)
_ExceptionGroup = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11


class Group:
    """`number`: which one of this process's place. It keeps keys of the store apart."""

    def __init__(self, backend, timeout, number):
        self._excepthook = sys.excepthook  # which each group wraps once more
        self._number = number
        self._alone = "RANK" not in os.environ
        self.rank = 0 if self._alone else int(os.environ["RANK"])
        self.size = 1 if self._alone else int(os.environ["WORLD_SIZE"])
        timeout = timeout or distributed_c10d._get_default_timeout(dist.Backend(backend or "undefined"))
        if link.is_open():
            self._set_nccl_up()
        sockets = Sockets(os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
        link.begin(sockets)
        link.check()
        self._store = self._dial(timeout)
        self._meet("here", timeout)
        link.check()
        connect = timeout if backend == "nccl" else min(timeout, _CONNECT)
        dist.init_process_group(backend, store=dist.PrefixStore(f"default_pg/{number}", self._store), rank=self.rank,
                                world_size=self.size, timeout=connect)
        sockets.group_made()
        set_timeout = getattr(dist, "set_timeout", distributed_c10d._set_pg_timeout)  # the older name
        if connect != timeout:
            set_timeout(timeout, dist.group.WORLD)
        link.check()

    @staticmethod
    def _set_nccl_up():
        """NCCL's own watchdog must not end a process that is to go on."""
        if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1") == "1":
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
        os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")

    def _dial(self, timeout):
        """The store. Where an agent could say meanwhile that the round is over, in short tries: a socket that does not
        exist yet cannot be shut."""
        if self._alone:
            return dist.HashStore()
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return self._dial_once(timeout)
        store = self._dial_in_tries(timeout) if link.is_open() else self._dial_once(timeout)
        return dist.PrefixStore(f"torchup/{self._call_the_roll(store, timeout)}", store)

    def _dial_in_tries(self, timeout):
        end = time.monotonic() + timeout.total_seconds()
        while True:
            try:
                store = self._dial_once(min(timeout, _DIAL))
                store.set_timeout(timeout)
                return store
            except dist.DistError:
                link.check()
                if time.monotonic() > end:
                    raise

    def _call_the_roll(self, store, timeout):
        """A word that only the ranks of this attempt have. torchrun's store outlives its workers: what the dead have
        left there, addresses and all, looks as what is waited for, and restarts are not counted alike on all nodes.

        Each rank leaves a word that nobody had before. Rank 0 reads them out until each has answered to its own."""
        own, end = os.urandom(8).hex(), time.monotonic() + timeout.total_seconds()
        store.set(f"torchup/word/{self.rank}", own)
        answered = None
        while True:
            if self.rank == 0:
                words = [store.get(f"torchup/word/{rank}").decode() for rank in range(self.size)]
                store.set("torchup/roll", " ".join(words))
            else:
                words = store.get("torchup/roll").decode().split()
            if own in words:
                place = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
                count = store.add(f"torchup/{place}/answered", int(answered != place))
                answered = place
                if self.rank == 0 and count == self.size:
                    store.set(f"torchup/{place}/whole", "1")
                if store.check([f"torchup/{place}/whole"]):
                    return place
            link.check()
            if time.monotonic() > end:
                raise dist.DistStoreError(f"not all {self.size} ranks have come within {timeout}")
            time.sleep(max(0.002, self.size * 0.0005))  # many ranks ask one store

    @staticmethod
    def _dial_once(timeout):
        return next(dist.rendezvous("env://", timeout=timeout))[0]

    def _meet(self, what, timeout):
        """Returns when all ranks have come here. One key and one wait for each."""
        store = dist.PrefixStore(f"torchup/{self._number}/{what}", self._store)
        if store.add("count", 1) == self.size:
            store.set("all", "1")
        else:
            store.wait(["all"], timeout)

    def wait_for_all(self):
        """All ranks have come to the end of their work, however long that takes the slowest."""
        self._meet("done", _EVER)
        if not self._alone and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            # Rank 0 serves the store: it stays until the others have read that all are done.
            store = dist.PrefixStore(f"torchup/{self._number}/left", self._store)
            if store.add("count", 1) == self.size:
                store.set("all", "1")
            elif self.rank == 0:
                store.wait(["all"], _FAREWELL)

    def close(self):
        """After all have ended it."""
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = self._excepthook


def _forget_groups():
    """What destroy_process_group does last, and leaves where a backend could not be shut down: names are taken else."""
    distributed_c10d._update_default_pg(None)
    world = distributed_c10d._world
    for table in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg",
                  "pg_coalesce_state"):
        getattr(world, table, {}).clear()
    distributed_c10d._unregister_all_process_groups()


class Leftover:
    """The group of a call that an exception has ended. It stays while the program handles that: its end would be an
    error of the other ranks', with this process as the cause that is still to come. The next call takes it down."""

    def __init__(self, excepthook):
        self._sockets = link.sockets()
        self._group = dist.group.WORLD if dist.is_initialized() else None
        self._excepthook = excepthook

    def drop(self):
        if self._group is None or dist.group.WORLD is not self._group:
            return  # the program has destroyed it itself
        if self._sockets is not None:
            self._sockets.shut()
        self._group = None
        drop(None, self._excepthook)


def chained(error):
    """An exception and those that it names. They may name one another."""
    found, seen = [error] if error is not None else [], set()
    for each in found:
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = each.exceptions if isinstance(each, _ExceptionGroup) else ()
        found += [other for other in (each.__cause__, each.__context__, *inner) if other is not None]


def drop(error, excepthook):
    """Takes down what an interrupted call has left behind: its frames, which hold wrappers and thereby hooks of a group
    that is gone, then the group. `error` is what left the call."""
    for each in chained(error):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
    if dist.is_initialized():
        try:
            dist.destroy_process_group()
        except Exception as failure:  # a group in whatever state; it is not used again
            print(f"torchup: a group that is over could not be destroyed cleanly: {failure}", file=sys.stderr)
            _forget_groups()
    distributed_c10d._world.group_count = 0  # names of groups are counted, alike on old and new ranks
    sys.excepthook = excepthook
    if torch.cuda.is_initialized() or has_loops():  # something in a cycle still holds it
        gc.collect()
