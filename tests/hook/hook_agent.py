"""An agent as far as the hook shows it, for its tests: a folder with the hook, a page, a channel, and programs that are
started with them as workers are, or without all that."""

import ctypes
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from waiting import until  # noqa: E402
from worker_memory import Memory  # noqa: E402

INJECTED = Path(__file__).resolve().parents[2] / "launcher/python/injected"
FILES = ("sitecustomize.py", "torchup_worker.py", "torchup_seldom.py", "torchup_error.py", "torchup_groups.py",
         "torchup_loaded.py")
TGKILL = {"x86_64": 234, "aarch64": 131}
LIMIT_S = 120


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


def stacks(memory, thread):
    """What is written when the thread is asked, once it is whole: the main thread's frames come last, from `<module>`."""
    memory.wipe()
    thread_kill(thread, memory.signal)
    return until(lambda: memory.sheet().endswith(" in <module>\n") and memory.sheet(), "stacks")


def thread_kill(thread, number):
    """To one thread, whose number the kernel takes for its process's too in kill(2)."""
    with open(f"/proc/{thread}/status") as file:
        group = next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))
    assert ctypes.CDLL(None).syscall(TGKILL[platform.machine()], group, thread, number) == 0


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
        channel = os.fstat(theirs.fileno()).st_ino
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
                    environment["TORCHUP_WORKER_PAGE"] = self.memory.address(3, os.getpid()) if page is None else page
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

    def stacks(self, tid=None):
        """Of all threads, which one of them writes; default: the main one."""
        return stacks(self.memory, tid or self.pid)

    def look(self, number):
        """The answer's text."""
        self.end.send(b"look\nnumber=%d\n" % number)
        verb, told, length = self.hear().decode().splitlines()
        assert (verb, told) == ("looked", f"number={number}"), (verb, told)
        return self.memory.answer(int(length.partition("=")[2]))

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
        self.memory.close()


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
