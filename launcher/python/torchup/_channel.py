"""The worker's end of its channel to the agent.

What is said there, and how: rendezvous/base/worker_channel.hpp. A packet is a verb and lines NAME=value. One thread per
process reads; what follows from a verb is the affair of who registered for it. The agent's words are taken for a
stranger's: what cannot be read ends the channel, verbs and names that are not known are passed over.
"""

import os
import re
import socket
import stat
import sys
import threading
import traceback

from ._address import numbers, take
from ._hook import hook

VARIABLE = "TORCHUP_WORKER_CHANNEL"
PACKET_BYTES_MAX = 16 << 10
TEXT_BYTES_MAX = 8 << 10
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")


class BadPacket(ValueError):
    """Bytes that are no packet, or words that do not fit into one."""


def fitted(text):
    """A text for people as one line's value."""
    line = text.encode("utf-8", "backslashreplace")[:TEXT_BYTES_MAX]
    return line.replace(b"\n", b" ").replace(b"\0", b" ").decode("utf-8", "surrogateescape")


def to_packet(verb, values=None):
    packet = os.fsencode(verb) + b"\n"
    for name, value in (values or {}).items():
        name, value = (text.encode("utf-8", "surrogateescape") for text in (name, str(value)))
        if not _NAME.fullmatch(name) or b"\n" in value or b"\0" in value:
            raise BadPacket(f"{name!r} cannot be told in one line")
        packet += name + b"=" + value + b"\n"
    if len(packet) > PACKET_BYTES_MAX:
        raise BadPacket(f"{len(packet)} bytes are to be told, {PACKET_BYTES_MAX} fit")
    return packet


def parse(packet):
    """(verb, [(name, value), …]) of a packet of either side."""
    if len(packet) > PACKET_BYTES_MAX:
        raise BadPacket(f"a packet of {len(packet)} bytes")
    if not packet.endswith(b"\n"):
        raise BadPacket("a packet with an open end")
    if b"\0" in packet:
        raise BadPacket("a packet with a zero byte")
    verb, *lines = packet[:-1].split(b"\n")
    if not _NAME.fullmatch(verb):
        raise BadPacket("a packet without a verb")
    values = []
    for line in lines:
        name, equals, value = line.partition(b"=")
        if not equals or not _NAME.fullmatch(name):
            raise BadPacket(f"a line of {verb!r} that is not NAME=value")
        values.append((name.decode("ascii"), value.decode("utf-8", "surrogateescape")))
    return verb.decode("ascii"), values


def parse_agent_word(packet):
    """(verb, {name: value}). The first value of a name counts, but for `place`, which must not name one twice."""
    verb, lines = parse(packet)
    values = {}
    for name, value in lines:
        if name in values and verb == "place":
            raise BadPacket(f"`place` that names {name} twice")
        values.setdefault(name, value)
    return verb, values


def parse_address(text):
    """(descriptor, inode, pid) of VERSION:DESCRIPTOR:INODE:PID, or None: another version, or no such text."""
    version, fd, inode, pid = numbers(text) or (None, 0, 0, 0)
    return (fd, inode, pid) if version == 1 and fd < 1 << 31 and inode < 1 << 64 else None


class Channel:
    """Whoever cares for a verb registers with `on`, before `start` or later; for the agent's end with `on_end`."""

    def __init__(self, end):
        self._end = end
        self._handlers = {}
        self._at_end = []
        self._starting = threading.Lock()
        self._reader = None
        self.is_open = True

    def on(self, verb, handler):
        """`handler(values)` is called in the reader's thread: it must be short, and end."""
        self._handlers[verb] = handler

    def on_end(self, handler):
        self._at_end.append(handler)

    def start(self):
        with self._starting:
            if self._reader is None:
                self._reader = self._start_reader()

    def _start_reader(self):
        reader = threading.Thread(target=self._read, name="torchup_channel", daemon=True)
        reader.start()
        return reader

    def say(self, verb, **values):
        """Nothing happens where the channel has ended: who waits for an answer hears of that by `on_end`."""
        try:
            self._end.send(to_packet(verb, values))
        except OSError:
            pass

    def _read(self):
        try:
            while (packet := self._end.recv(PACKET_BYTES_MAX + 1)) and self._hear(packet):
                pass
        except OSError:
            pass
        self.is_open = False
        self._end.close()
        self._ended()

    def _hear(self, packet):
        """Whether the channel goes on."""
        try:
            verb, values = parse_agent_word(packet)
            if handler := self._handlers.get(verb):
                handler(values)
            return True
        except BadPacket as bad:
            print(f"torchup: the channel to the agent has ended: {bad}", file=sys.stderr)
        except Exception:  # a handler's: the channel's other verbs would not be heard any more, so it ends for all
            traceback.print_exc()
        return False

    def _ended(self):
        self.is_open = False
        for handler in self._at_end:
            handler()


class HookChannel(Channel):
    """The hook's, where it is in this process: its helper thread is the only one that reads."""

    def _start_reader(self):
        reader = self._end.load("torchup_loaded").start_groups()
        if reader is None:
            self._ended()
            return self
        reader.listen(self._hear, self._ended)
        return reader

    def say(self, verb, **values):
        try:
            self._end.load("torchup_loaded").groups().say(to_packet(verb, values))
        except OSError:
            pass


_channel = None


def _adopt():
    """The socket that the environment names, if it is still the channel and meant for this process."""
    address = take(VARIABLE, parse_address)
    if address is None:
        return None
    fd, inode, _ = address
    try:
        status = os.fstat(fd)
        if status.st_ino != inode or not stat.S_ISSOCK(status.st_mode):
            return None
        os.set_inheritable(fd, False)
        end = socket.socket(fileno=fd)
    except OSError:
        return None
    if end.family == socket.AF_UNIX and end.type == socket.SOCK_SEQPACKET:
        return end
    end.detach()
    return None


def channel():
    """This process's channel, or None: another launcher, or a process that a worker has started."""
    global _channel
    if _channel is None and (end := _adopt()) is not None:
        _channel = Channel(end)
    if _channel is None and (found := hook()) is not None and found.channel >= 0:
        _channel = HookChannel(found)
    return _channel


def _forget():
    """A forked child is not the worker: it must not speak for it, nor keep its channel open when it has ended."""
    global _channel
    if _channel is not None:
        _channel.is_open = False
        try:
            if not isinstance(_channel, HookChannel):  # which the hook closes itself
                _channel._end.close()
        except OSError:
            pass
    _channel = None


os.register_at_fork(after_in_child=_forget)
