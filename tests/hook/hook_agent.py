"""An agent as far as the hook shows it, for its tests: a folder with the hook, a page, a channel, and programs that are
started with them as workers are, or without all that."""

import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

INJECTED = Path(__file__).resolve().parents[2] / "launcher/python/injected"
FILES = ("sitecustomize.py", "torchup_worker.py", "torchup_page.py", "torchup_error.py", "torchup_groups.py",
         "torchup_loaded.py")
PAGE, SHEET, ANSWER = 4096, 262144, 262144
MAGIC = 0x31474150505554
SEALS = 1 | 2 | 4
LIMIT_S = 120
FIELDS = dict(signal="Q", helper="Q", raised_at="q", collectives="Q", collectives_at="q", python="Q",
              thread_raised_at="q", ending_at="q")


def until(condition, what, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.005)
    return value


def pythons():
    """(version, program) of each Python of this machine, of every version once: this one, those on PATH, pyenv's."""
    names = [f"python{version}" for version in ("2.7", *(f"3.{minor}" for minor in range(6, 15)))]
    folders = os.environ["PATH"].split(":") + sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("*/bin")))
    found = {sys.version_info[:2]: sys.executable}
    for name in names:
        for folder in folders:
            program = Path(folder, name)
            if os.access(program, os.X_OK) and "shims" not in folder:
                version = tuple(map(int, name[6:].split(".")))
                if version not in found and works(program):
                    found[version] = str(program)
    return sorted(found.items())


def works(program):
    return subprocess.run([program, "-c", ""], capture_output=True).returncode == 0


def make_hook(folder):
    hook = Path(folder, "hook")
    hook.mkdir(mode=0o700)
    for name in FILES:
        shutil.copy(INJECTED / name, hook / name)
    return hook


class Memory:
    """The page, the sheet and the answer area."""

    def __init__(self, size=PAGE + SHEET + ANSWER, seals=SEALS):
        self.fd = os.memfd_create("torchup-worker", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        if seals:
            fcntl.fcntl(self.fd, 1033, seals)
        os.lseek(self.fd, PAGE, os.SEEK_SET)

    def __getattr__(self, name):
        at = 256 + 8 * list(FIELDS).index(name) if name in FIELDS else None
        if at is None:
            raise AttributeError(name)
        return struct.unpack("<" + FIELDS[name], os.pread(self.fd, 8, at))[0]

    def is_open(self, pid):
        return struct.unpack("<QQ", os.pread(self.fd, 16, 0)) == (MAGIC, pid)

    def claimed_by(self):
        magic, pid = struct.unpack("<QQ", os.pread(self.fd, 16, 0))
        return pid if magic == MAGIC else 0

    def text(self):
        return os.pread(self.fd, 256, 320).rstrip(b"\0").decode()

    def beats(self):
        """(beats, step of the last, when, took)."""
        newest = struct.unpack("<Q", os.pread(self.fd, 8, 16))[0]
        number, *beat = struct.unpack("<Qqqq", os.pread(self.fd, 32, 64 + newest % 2 * 64))
        assert number == newest
        return (newest, *beat)

    def wipe(self):
        os.pwrite(self.fd, bytes(SHEET), PAGE)
        os.lseek(self.fd, PAGE, os.SEEK_SET)

    def sheet(self):
        return os.pread(self.fd, SHEET, PAGE).rstrip(b"\0").decode()

    def stacks(self, tid):
        """What is written when the thread is asked."""
        self.wipe()
        syscall_tgkill(tid, self.signal)
        text = until(self.sheet, "stacks")
        while text != (text := (time.sleep(0.03), self.sheet())[1]):
            pass
        return text


def syscall_tgkill(tid, number):
    """To one thread, whose number the kernel takes for its process's too in kill(2)."""
    import ctypes
    with open(f"/proc/{tid}/status") as file:
        group = next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))
    assert ctypes.CDLL(None).syscall(234, group, tid, number) == 0  # tgkill


def is_readable(fd, limit_s):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * limit_s))


class Worker:
    """A program with page and channel in descriptors 3 and 4, leading a session; `hook`: None for one without them."""

    def __init__(self, words, folder, hook, env, *, memory=None, stdin=None, page=None, own_path=None,
                 before=lambda: None):
        self.memory = memory or Memory()
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.out, self.err = (tempfile.TemporaryFile() for _ in range(2))
        status, channel = os.fstat(self.memory.fd), os.fstat(theirs.fileno()).st_ino
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **env}
        if own_path is not None:
            environment["PYTHONPATH"] = own_path
        source = os.open(stdin or os.devnull, os.O_RDONLY)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                high = [os.dup2(each, 60 + at) for at, each in enumerate((self.memory.fd, theirs.fileno()))]
                os.dup2(source, 0)
                os.dup2(self.out.fileno(), 1)
                os.dup2(self.err.fileno(), 2)
                os.closerange(3, 60)
                os.closerange(62, 1 << 16)
                if hook is not None:
                    os.dup2(high[0], 3)
                    os.dup2(high[1], 4)
                    environment["PYTHONPATH"] = ":".join(filter(None, (str(hook), own_path)))
                    own = f"3:{status.st_dev}:{status.st_ino}:{os.getpid()}"
                    environment["TORCHUP_WORKER_PAGE"] = own if page is None else page
                    environment["TORCHUP_WORKER_CHANNEL"] = f"1:4:{channel}:{os.getpid()}"
                os.closerange(60, 62)
                os.chdir(folder)
                before()
                os.execvpe(words[0], [str(word) for word in words], environment)
            except BaseException as error:
                os.write(2, f"not started: {error!r}".encode())
            finally:
                os._exit(127)
        os.close(source)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)
        self.code = None

    def has_ended(self):
        if self.code is None and is_readable(self.pidfd, 0):
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code is not None

    def wait(self, limit_s=LIMIT_S):
        if self.code is None and is_readable(self.pidfd, limit_s):
            self.has_ended()
        if self.code is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            raise AssertionError(f"does not end: {self.output()} {self.errors()}")
        return self.code

    def output(self):
        self.out.seek(0)
        return self.out.read().decode("utf-8", "replace")

    def errors(self):
        self.err.seek(0)
        return self.err.read().decode("utf-8", "replace")

    def hear(self, limit_s=LIMIT_S):
        self.end.settimeout(limit_s)
        return self.end.recv(1 << 16)

    def look(self, number):
        """The answer's text."""
        self.end.send(b"look\nnumber=%d\n" % number)
        verb, told, length = self.hear().decode().splitlines()
        assert (verb, told) == ("looked", f"number={number}"), (verb, told)
        return os.pread(self.memory.fd, int(length.partition("=")[2]), PAGE + SHEET).decode()

    def close(self):
        """Once more it does nothing."""
        if self.out.closed:
            return
        if self.code is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for each in (self.out, self.err, self.end):
            each.close()
        os.close(self.pidfd)
        os.close(self.memory.fd)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name, "job")
        self.folder.mkdir()
        self.hook = make_hook(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def start(self, *words, hook=True, python=sys.executable, env=None, **how):
        """`words`: Python's own."""
        worker = Worker([python, *words], self.folder, self.hook if hook else None, env or {}, **how)
        self.addCleanup(worker.close)
        return worker

    def run_worker(self, *words, **how):
        worker = self.start(*words, **how)
        worker.wait()
        return worker
