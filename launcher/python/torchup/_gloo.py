"""Ends what blocks in gloo's collectives and in store calls, from another thread: by shutdown(2) on their sockets.

gloo has no abort. Its loop thread waits in epoll_wait, whose first argument is the epoll instance that holds all of the
device's sockets; /proc/self/fdinfo lists what is in it. No other socket of this process is touched.
"""

import os
import re
import socket
import stat

_LOOP = "gloo_tcp_loop"
_TARGET = re.compile(r"^tfd:\s*(\d+) .*?\bino:([0-9a-f]+)", re.MULTILINE)
_EPOLL_WAITS = {"x86_64": (232, 281, 441), "aarch64": (22, 441)}.get(os.uname().machine, ())


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # the thread or the descriptor is gone
        return ""


def _epolls():
    """Descriptors of this process that are epoll instances."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]":
                found.add(int(fd))
        except OSError:
            continue
    return found


def _loops():
    """(whether the loop's threads can be told by their name, epoll instances in which they wait at this instant)."""
    named, waited_in = False, set()
    for thread in os.listdir("/proc/self/task") if _EPOLL_WAITS else ():
        if _read(f"/proc/self/task/{thread}/comm").strip() != _LOOP:
            continue
        call = _read(f"/proc/self/task/{thread}/syscall").split()  # `running`: it is found the next time
        named = named or bool(call)
        if len(call) > 1 and call[0].isdigit() and int(call[0]) in _EPOLL_WAITS:
            waited_in.add(int(call[1], 16))
    return named, waited_in


def has_loops():
    """Whether a group of gloo's lives in this process, as far as its threads can be told by name."""
    return any(_read(f"/proc/self/task/{thread}/comm").strip() == _LOOP for thread in os.listdir("/proc/self/task"))


def _targets(epoll):
    """(descriptor, inode) of what an epoll instance holds. Both, for a number alone may have been used again."""
    text = _read(f"/proc/self/fdinfo/{epoll}")
    return [(int(fd), int(inode, 16)) for fd, inode in _TARGET.findall(text)]


def _borrow(fd, inode=None):
    """The socket as an object of its own, so that the number cannot come to mean another one; None if it is none."""
    try:
        copy = os.dup(fd)
    except OSError:
        return None
    status = os.fstat(copy)
    if stat.S_ISSOCK(status.st_mode) and inode in (None, status.st_ino):
        return socket.socket(fileno=copy)
    os.close(copy)
    return None


def _listens(one):
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _holds_listener(epoll):
    for fd, inode in _targets(epoll):
        if one := _borrow(fd, inode):
            with one:
                if _listens(one):
                    return True
    return False


def _shut(one):
    try:
        one.shutdown(socket.SHUT_RDWR)
        return 1
    except OSError:  # not connected any more
        return 0


def _address(address):
    """host, port of a peer, an IPv4 one in IPv6's clothes as IPv4."""
    host, port = address[:2]
    return host.partition("%")[0].removeprefix("::ffff:"), port


class Sockets:
    """Those of the groups and of the store of one round. Made before the group is."""

    def __init__(self, master_address=None, master_port=None):
        self._others = _epolls()  # where the loop's threads have no name: what is older than the group is not gloo's
        self._made = None
        self._store = set()
        if master_address:
            try:
                found = socket.getaddrinfo(master_address, int(master_port), type=socket.SOCK_STREAM)
            except (OSError, ValueError):
                found = []  # the store cannot be reached by that name either
            self._store = {_address(each[4]) for each in found}

    def group_made(self):
        """What appears from here on is the program's."""
        self._made = _epolls() - self._others

    def shut(self):
        """How many sockets were shut. Called again until who was blocked has gone: new ones may be made meanwhile."""
        return self._shut_gloo() + self._shut_store()

    def _shut_gloo(self):
        named, epolls = _loops()
        if not named:
            made = _epolls() - self._others if self._made is None else self._made
            epolls = {epoll for epoll in made if _holds_listener(epoll)}
        count = 0
        for epoll in epolls:
            for fd, inode in _targets(epoll):
                if one := _borrow(fd, inode):
                    with one:
                        count += 0 if _listens(one) else _shut(one)
        return count

    def _shut_store(self):
        count = 0
        for fd in map(int, os.listdir("/proc/self/fd")) if self._store else ():
            if one := _borrow(fd):
                with one:
                    try:
                        is_store = one.family in (socket.AF_INET, socket.AF_INET6) and \
                            _address(one.getpeername()) in self._store
                    except OSError:  # not connected
                        continue
                    count += _shut(one) if is_store else 0
        return count
