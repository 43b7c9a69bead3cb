"""What this process hears from its agent about rounds, and what it does at once: end what blocks.

The reader's thread sets the flag first; then a thread of its own shuts sockets until the program has left the round.
Both are there from the beginning: at a fault it may be that no thread can be started.
Nothing else is interrupted: who computes finds the flag at its next collective, commit, batch or optimizer's step.
"""

import os
import sys
import threading

import torch
import torch.distributed as dist

from ._channel import channel, fitted
from ._gloo import Sockets


class Interrupted(BaseException):
    """The round is over. Passes through the program's `except Exception` up to torchup.elastic.run."""


class Link:
    """One for the process; without a channel no round ever ends by it."""

    def __init__(self):
        self._changed = threading.Condition()
        self._channel = None
        self._over = None  # the reason, once the round is over
        self._is_cause = False
        self._place = None
        self._parked_at = None  # the step, while a place is waited for
        self._sockets = None  # of the round that the program is in
        self._in_round = False

    def open(self):
        """Whether there is an agent that speaks with us."""
        if self._channel is None and (found := channel()) is not None:
            self._channel = found
            found.on("abort", self._on_abort)
            found.on("cause", self._on_cause)
            found.on("place", self._on_place)
            found.on_end(self._on_end)
            threading.Thread(target=self._end_what_blocks, name="torchup_abort", daemon=True).start()
            found.start()
        return self.is_open()

    def is_open(self):
        return self._channel is not None and self._channel.is_open

    # What the program's thread does.

    def stay(self):
        if self.is_open():
            self._channel.say("stay")

    def leave(self):
        if self.is_open():
            self._channel.say("leave")
        with self._changed:
            self._over = None  # whatever was said meanwhile concerns nobody any more

    def begin(self, sockets):
        with self._changed:
            self._in_round, self._sockets = True, sockets
            self._changed.notify_all()

    def end(self):
        """The program has left the round: nothing of it can block any more."""
        with self._changed:
            self._in_round, self._sockets = False, None
            self._changed.notify_all()

    def sockets(self):
        """Of the round that the program is in."""
        return self._sockets

    def is_over(self):
        return self._over is not None

    def check(self):
        if self._over is not None:
            raise Interrupted(self._over)

    def blame(self, error):
        """An exception left `train`. Whether it is a consequence: the round is over, to be parked for. The agent
        answers as long as it lives, and its end is this process's: there is no other limit, after which survivors
        would drop their state because an agent is slow."""
        with self._changed:
            self._is_cause = False
            if self._over is None and self.is_open():
                self._channel.say("raised", text=fitted(f"{type(error).__name__}: {error}"))
                self._changed.wait_for(lambda: self._over is not None or self._is_cause or not self.is_open())
            return self._over is not None

    def park(self, step):
        """Waits for the next round and puts its variables in the environment."""
        with self._changed:
            self._parked_at = step
            try:
                self._channel.say("parked", step=step)
                self._changed.wait_for(lambda: self._place is not None or not self.is_open())
            finally:  # Ctrl-C: what it says from here on is not true any more
                self._parked_at = None
            if self._place is None:
                raise ConnectionError("torchup: the channel has ended while this worker waited for its place")
            place, self._place = self._place, None
        os.environ.update(place)

    # What the reader's thread does.

    def _on_abort(self, values):
        with self._changed:
            self._over = values.get("reason") or "the round is over"
            if self._parked_at is not None and self._place is None:
                self._channel.say("parked", step=self._parked_at)  # as before: it was asked again
            self._changed.notify_all()

    def _on_cause(self, values):
        with self._changed:
            self._is_cause = True
            self._changed.notify_all()

    def _on_place(self, values):
        with self._changed:
            self._place, self._over = values, None
            self._changed.notify_all()

    def _on_end(self):
        with self._changed:
            self._changed.notify_all()

    # What the other thread does.

    def _end_what_blocks(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._in_round and self._over is not None)
                sockets = self._sockets
            self._shut(sockets)

    def _shut(self, sockets):
        wait_s = 0.002
        aborted = set()
        told = None
        while True:
            with self._changed:
                if self._sockets is not sockets:
                    return
            try:
                sockets.shut()
                _abort_nccl(aborted)
            except Exception as error:  # no descriptor is free, say: it may go the next time
                if told != str(error):
                    told = str(error)
                    print("torchup: what blocks this process in a round that is over cannot be ended yet: " + told,
                          file=sys.stderr)
            with self._changed:
                self._changed.wait_for(lambda: self._sockets is not sockets, wait_s)
            wait_s = min(2 * wait_s, 0.1)


def _abort_nccl(aborted):
    """Groups of NCCL have an abort of their own, once each."""
    if not torch.cuda.is_initialized():
        return
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            backend = group._get_backend(torch.device("cuda"))
        except RuntimeError:
            continue
        if backend.name() == "nccl" and id(backend) not in aborted:
            aborted.add(id(backend))
            backend.abort()


link = Link()


def _forget():
    link.__init__()


os.register_at_fork(after_in_child=_forget)


def sockets_of_round():
    return Sockets(os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
