"""The hook: what a worker's Python tells its agent without a change to the program. Python 3.8 and newer.

It writes into the page that the agent shares with the worker (rendezvous/base/worker_page.hpp): where the program is,
by its stacks, when the agent's signal asks for them and when it crashes; that it has raised; the ends of its steps.
Here is what every program runs at its start, and pays for, above all for its being compiled where there is no bytecode:
for the Python of torchup's build there is from the first worker on. The rest lies in texts beside this one that are
loaded when something has been raised (torchup_error.py), with modules in which there is more to see
(torchup_loaded.py), for process groups (torchup_groups.py), and for what few programs do (torchup_seldom.py).

The program must not notice. So nothing is imported here that costs a program time, or that one without it would miss;
what is wrapped calls what it has wrapped; nothing reaches processes that the program starts; and what is said by the
page or the environment is not trusted: where something is not as it should be, there is no hook.
"""

import atexit
import faulthandler
import fcntl
import mmap
import os
import sys

import _frozen_importlib_external
import _imp
import _signal
import _weakref
# As they are now: some programs (gevent, eventlet) put others into these modules, by which a thread is none.
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread  # noqa: F401
from os import read  # noqa: F401
from time import monotonic, monotonic_ns, sleep  # noqa: F401

# For tools that go by the file (coverage, debuggers, profilers) our code is none of the program's.
OWN_FILE = "<torchup>/%s.py"
_imp._fix_co_filename(sys._getframe().f_code, OWN_FILE % __name__)

PAGE_BYTES, SHEET_BYTES, ANSWER_BYTES = 4096, 262144, 262144
MAGIC = 0x31474150505554
# Offsets in numbers of eight bytes.
AT_MAGIC, AT_PID, AT_NEWEST, AT_FIRST, AT_SIGNAL, AT_PYTHON, AT_ENDING = 0, 1, 2, 4, 32, 37, 39
SEALS = 1 | 2 | 4  # SEAL, SHRINK, GROW: a page that is not sealed could be cut under us
GET_SEALS = 1034
HIGH = 1000
SIGNALS = range(61, 40, -1)  # real-time signals; some programs use the highest

page = None  # this process's Page; None in processes that it forks
channel = -1  # the channel's descriptor, which torchup_groups reads
channel_identity = None
main_thread = 0
excepthook = None  # ours
crash = None  # weakly, what faulthandler holds while the stacks of a crash go to the sheet
parts = {}  # that have been loaded


# Page and channel. What the environment says of them is not trusted.

class Page:
    signal = 0  # that has a handler of ours
    own = -1  # the descriptor that the mapping keeps for itself


def open_page(text):
    """The page, or None: no such text, a process that is not of the worker, a descriptor that is another file, a living
    process that has it."""
    try:
        fd, device, inode, pid = map(int, text.split(":"))
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino, status.st_size) != (device, inode, PAGE_BYTES + SHEET_BYTES + ANSWER_BYTES):
            return None
        if pid not in (os.getpid(), os.getsid(0)) or fcntl.fcntl(fd, GET_SEALS) & SEALS != SEALS:  # a shell in between
            return None
    except (OSError, OverflowError, ValueError):
        return None
    found = Page()
    found.fd = fd = moved_up(fd)
    found.identity = device, inode
    if sys.version_info >= (3, 13):
        found.memory = mmap.mmap(fd, PAGE_BYTES, trackfd=False)
    else:
        found.own = os.dup(fd)
        os.close(found.own)
        found.memory = mmap.mmap(fd, PAGE_BYTES)
    found.numbers = memoryview(found.memory).cast("q")
    return found if not found.numbers[AT_MAGIC] or load("torchup_seldom").take_over(found) else None


def open_channel(text):
    """The channel and its identity."""
    try:
        version, fd, inode, _ = map(int, text.split(":"))
        status = os.fstat(fd)
        if version == 1 and status.st_ino == inode and status.st_mode & 0o170000 == 0o140000:
            return moved_up(fd), (status.st_dev, inode)
    except (OSError, OverflowError, ValueError):
        pass
    return -1, None


def moved_up(fd):
    """Where descriptors that the program opens do not come to lie, though it may have closed this one."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError:  # so many it may not have
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return high


def is_file(fd, identity):
    """Whether it is still ours: the program may have closed it, and have put another in its place."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


# Stacks.

def sheet():
    """A file for faulthandler, which tells by its life whether faulthandler still has it. It keeps the mapping, whose
    end closes a descriptor, until the files of the program are closed, which may have that number by then."""
    file = open(page.fd, "wb", 0, closefd=False)
    file.memory = page.memory
    return file


def leave_stacks():
    """Nobody's handler is replaced, and a program that has its own for crashes keeps it."""
    global crash
    for number in SIGNALS:
        if _signal.getsignal(number) == _signal.SIG_DFL:
            faulthandler.register(number, file=sheet(), all_threads=True)
            page.signal = page.numbers[AT_SIGNAL] = number
            _signal.__class__ = Signals
            break
    if not faulthandler.is_enabled():
        file = sheet()
        faulthandler.enable(file=file, all_threads=True)
        crash = _weakref.ref(file)
        for name in ("is_enabled", "disable"):
            setattr(faulthandler, name, without_ours(getattr(faulthandler, name)))


def without_ours(former):
    """What it answers in a program that has enabled nothing: some enable theirs only then."""
    def answer():
        is_ours = crash() is not None
        return former() and not is_ours

    answer.__name__ = answer.__qualname__ = former.__name__
    return answer


class Signals(type(sys)):
    """Of the module _signal. A program that is about to have a handler of its own for our signal is not to get the
    agent's: that is told before. It is not its call that is wrapped, for then its tracebacks had our frame."""

    @property
    def signal(self):
        caller = sys._getframe(1)
        if page is not None and (caller.f_globals.get("__name__") != "signal" or caller.f_code.co_name == "signal"):
            tell("torchup_seldom", "signal_wanted", caller)
        return vars(self)["signal"]

    signal = signal.setter(lambda self, value: vars(self).update(signal=value))


# Exceptions, and the end.

def wrap_excepthook():
    global excepthook
    former = sys.excepthook

    def excepthook(kind, value, trace, /):
        # One that is being handled is no end of the program: it prints it by this hook, and goes on.
        if page is not None and sys.exc_info()[1] is None:
            tell("torchup_error", "left", kind, value, trace, monotonic_ns())
        former(kind, value, trace)

    if sys.__excepthook__ is former:
        sys.__excepthook__ = excepthook  # some ask whether there is a hook at all
    sys.excepthook = excepthook


def ending():
    """Of the interpreter."""
    if page is not None and not page.numbers[AT_ENDING]:
        page.numbers[AT_ENDING] = monotonic_ns()
        if hasattr(sys, "last_value"):
            tell("torchup_error", "left_at_end", page.numbers[AT_ENDING])
        if "torchup_loaded" in parts:
            parts["torchup_loaded"].stop()


# What is loaded when it is needed.

def load(name):
    """A text beside this one, whose folder is not where programs look for modules."""
    if name not in parts:
        settings = sys.dont_write_bytecode, sys.pycache_prefix
        sys.dont_write_bytecode, sys.pycache_prefix = False, None
        try:
            part = type(sys)(name)
            part.__file__ = os.path.join(os.path.dirname(__file__), name + ".py")
            code = _frozen_importlib_external.SourceFileLoader(name, part.__file__).get_code(name)
            _imp._fix_co_filename(code, OWN_FILE % name)
            exec(code, vars(part))
            parts[name] = part
        finally:
            sys.dont_write_bytecode, sys.pycache_prefix = settings
    return parts[name]


def tell(name, function, *values):
    try:
        return getattr(load(name), function)(*values)
    except KeyboardInterrupt:  # the user's word to the program, which has nothing to hear it once it is ending
        if name != "torchup_error":
            raise
    except BaseException:  # whatever an exception can be; the program's own is to be seen. Or the folder is gone
        pass
    return None


# The modules of the program with which there is more to see; torchup_loaded.py has what follows from each.

WANTED = {"threading", "torch.optim.optimizer", "torch.distributed.distributed_c10d"}


class Finder:
    """Stands in front of those that find modules."""

    def find_spec(self, name, path=None, target=None):
        if name not in WANTED or page is None:
            return None
        try:
            part = load("torchup_loaded")
        except Exception:  # the folder is gone: so is the agent
            return None
        return part.find(self, name, path, target)


FINDER = Finder()


# Where it begins and ends.

def begin(page_text, channel_text):
    """For the worker and the processes of its session. Whoever else comes here has no hook, and hears nothing of it."""
    global channel, channel_identity, page, main_thread
    page = open_page(page_text)
    if page is None:
        return
    page.numbers[AT_PID], page.numbers[AT_PYTHON] = os.getpid(), sys.hexversion
    channel, channel_identity = open_channel(channel_text)
    main_thread = get_ident()
    os.register_at_fork(after_in_child=after_fork)
    leave_stacks()
    wrap_excepthook()
    atexit.register(ending)
    sys.meta_path.insert(0, FINDER)
    for name in WANTED.intersection(sys.modules):  # in a process that is forked from one with its imports behind it
        load("torchup_loaded").loaded(name)
    page.numbers[AT_MAGIC] = MAGIC


def after_fork():
    """A child is not the worker: it neither writes into its page nor speaks for it. Nothing is loaded here: programs
    fork often, and where they have no descriptor left."""
    global channel, page
    mine, page, fd, channel = page, None, channel, -1
    if mine is None:
        return
    has_mapping = mine.own < 0 or is_file(mine.own, mine.identity)  # else its end would close one of the program's
    if has_mapping:
        if mine.signal:
            faulthandler.unregister(mine.signal)
        if crash is not None and crash() is not None:
            faulthandler.disable()
    if "torchup_loaded" in parts:
        parts["torchup_loaded"].forget()
    mine.numbers.release()
    if has_mapping:
        mine.memory.close()
    for each in (mine.fd, mine.identity), (fd, channel_identity):
        if is_file(*each):
            os.close(each[0])
