"""The hook: what a worker's Python tells its agent without a change to the program. Python 3.8 and newer.

It writes into the page that the agent shares with the worker (torchup_page.py): where the program is, by its stacks,
when the agent's signal asks for them and when it crashes; that it has raised; the ends of its steps. What concerns
torch.distributed is torchup_groups.py's, which is loaded when there are groups.

The program must not notice. So nothing is imported here that costs a program time, or that one without it would miss;
what is wrapped calls what it has wrapped; nothing reaches processes that the program starts; and what is said by the
page or the environment is not trusted: where something is not as it should be, there is no hook.
"""

import atexit
import faulthandler
import os
import sys
import time

import _frozen_importlib
import _frozen_importlib_external
import _signal
import _thread
import _weakref
from torchup_page import (AT_ENDING, AT_MAGIC, AT_RAISED, AT_RECORDED, AT_SIGNAL, MAGIC, Sheet, is_file, open_channel,
                          open_page)

SIGNALS = range(61, 40, -1)  # real-time signals; some programs use the highest

page = None  # this process's Page; None in processes that it forks
channel = -1  # the channel's descriptor, which torchup_groups reads
_main_thread = 0
_excepthook = None  # ours
_crash = None  # weakly, what faulthandler holds while the stacks of a crash go to the sheet
_groups = None  # torchup_groups.Groups, when it has been needed
_loaded = {}


# Stacks.

def leave_stacks():
    """Nobody's handler is replaced, and a program that has its own for crashes keeps it."""
    global _crash
    for number in SIGNALS:
        if _signal.getsignal(number) == _signal.SIG_DFL:
            faulthandler.register(number, file=Sheet(page.fd, page.memory), all_threads=True)
            page.signal = page.numbers[AT_SIGNAL] = number
            break
    if not faulthandler.is_enabled():
        sheet = Sheet(page.fd, page.memory)
        faulthandler.enable(file=sheet, all_threads=True)
        _crash = _weakref.ref(sheet)


# Exceptions.

def wrap_excepthook():
    global _excepthook
    former = sys.excepthook

    def excepthook(kind, value, trace, /):
        # One that is being handled is no end of the program: it prints it by this hook, and goes on.
        if page is not None and sys.exc_info()[1] is None:
            if _thread.get_ident() == _main_thread:
                raised(kind, value, trace)
            else:
                thread_raised(kind, value)
        former(kind, value, trace)

    if sys.__excepthook__ is former:
        sys.__excepthook__ = excepthook  # some ask whether there is a hook at all
    sys.excepthook = _excepthook = excepthook


def raised(kind, value, trace):
    try:
        if page.numbers[AT_RAISED] or issubclass(kind, (SystemExit, KeyboardInterrupt)):
            return
        page.numbers[AT_RAISED] = time.monotonic_ns()
        if load("torchup_error").write(kind, value, trace):
            page.numbers[AT_RECORDED] = 1
    except BaseException:  # whatever an exception can be; the program's own is to be seen
        pass


def thread_raised(kind, value):
    try:
        load("torchup_loaded").thread_raised(kind, value)
    except Exception:
        pass


def ending():
    """At the interpreter's end. A program that has replaced the hook for exceptions has left its own here."""
    if page is None or page.numbers[AT_ENDING]:
        return
    page.numbers[AT_ENDING] = time.monotonic_ns()
    value = getattr(sys, "last_value", None)
    if isinstance(value, BaseException) and getattr(sys, "excepthook", None) is not _excepthook:
        raised(type(value), value, getattr(sys, "last_traceback", None))
    if _groups is not None:
        _groups.stop()


# What is loaded when it is needed.

def start_groups():
    """torchup_groups with its thread running; None where there is no page, or no thread to be had."""
    if page is None:
        return None
    try:
        return groups().start()
    except Exception as error:
        os.write(2, f"torchup: the worker hook cannot see groups: {error!r}\n".encode("utf-8", "replace"))
        return None


def groups():
    global _groups
    if _groups is None:
        _groups = load("torchup_groups").Groups(sys.modules[__name__])
    return _groups


def load(name):
    """A text beside this one, whose folder is not where programs look for modules."""
    if name not in _loaded:
        settings = sys.dont_write_bytecode, sys.pycache_prefix
        sys.dont_write_bytecode, sys.pycache_prefix = False, None
        try:
            path = os.path.join(os.path.dirname(__file__), name + ".py")
            spec = _frozen_importlib_external.spec_from_file_location(name, path)
            module = _frozen_importlib.module_from_spec(spec)
            spec.loader.exec_module(module)
            _loaded[name] = module
        finally:
            sys.dont_write_bytecode, sys.pycache_prefix = settings
    return _loaded[name]


# The modules of the program with which there is more to see; torchup_loaded.py has what follows from each.

WANTED = {"threading", "torch.optim.optimizer", "torch.distributed.distributed_c10d"}


def loaded(name):
    if name not in WANTED:
        return
    WANTED.remove(name)
    if not WANTED and FINDER in sys.meta_path:
        sys.meta_path.remove(FINDER)
    if page is not None:
        try:
            load("torchup_loaded").HOOKS[name](sys.modules[name])
        except Exception:  # another version's, which has not what is wrapped
            pass


class Finder:
    """Stands in front of those that find modules, and marks the specs of the wanted ones."""

    def find_spec(self, name, path=None, target=None):
        if name not in WANTED or page is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return marked(spec)
        return None


def marked(spec):
    try:
        return load("torchup_loaded").marked(spec)
    except Exception:  # the folder is gone: so is the agent
        return spec


FINDER = Finder()


# Where it begins and ends.

def begin(page_text, channel_text):
    """For the worker and the processes of its session. Whoever else comes here has no hook, and hears nothing of it."""
    global channel, page, _main_thread
    page = open_page(page_text)
    if page is None:
        return
    channel = open_channel(channel_text)
    _main_thread = _thread.get_ident()
    os.register_at_fork(after_in_child=forget)
    leave_stacks()
    wrap_excepthook()
    atexit.register(ending)
    sys.meta_path.insert(0, FINDER)
    for name in list(WANTED):
        if name in sys.modules:  # in a process that is forked from one with its imports behind it
            loaded(name)
    page.numbers[AT_MAGIC] = MAGIC


def forget():
    """A forked child is not the worker: it neither writes into its page nor speaks for it."""
    global channel, page
    mine, page = page, None
    if mine is None:
        return
    if mine.own < 0 or is_file(mine.own, mine.identity):  # else they must go on to keep the mapping
        if mine.signal:
            faulthandler.unregister(mine.signal)
        if _crash is not None and _crash() is not None:
            faulthandler.disable()
    if _groups is not None:
        _groups.forget()
    if "torchup_loaded" in _loaded:
        _loaded["torchup_loaded"].steps.numbers = None
    mine.close()
    if channel >= 0:
        close_channel()


def close_channel():
    global channel
    fd, channel = channel, -1
    try:
        os.close(fd)
    except OSError:
        pass
