"""The part of the hook (torchup_worker.py) that follows from a module which the program loads: exceptions of threads,
ends of steps, and the beginning of process groups."""

import atexit
import sys

from torchup_worker import AT_FIRST, AT_NEWEST, monotonic_ns

worker = sys.modules["torchup_worker"]
AT_BEATS, BEAT = 8, 8  # in numbers of eight bytes
_groups = None  # torchup_groups.Groups, when it has been needed


# Modules of the program.

def find(ours, name, path, target):
    """The spec that the finders behind ours have for a module that is waited for, marked."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(name, path, target) if find_spec is not None and finder is not ours else None
        if spec is not None:
            return marked(spec)
    return None


def marked(spec):
    """The import system ends every load by setting `_initializing` to false: so it is known, without a loader of ours
    around the module's own and without a frame of ours in its tracebacks."""
    kind = type(spec)

    class Marked(kind):
        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            if name == "_initializing" and not value:
                self.__class__ = kind
                if self.name in sys.modules:
                    loaded(self.name)

    Marked.__module__, Marked.__qualname__, Marked.__name__ = kind.__module__, kind.__qualname__, kind.__name__
    try:
        spec.__class__ = Marked
    except TypeError:  # somebody's own kind, of another layout: that module is left alone
        pass
    return spec


def loaded(name):
    if name not in worker.WANTED:
        return
    worker.WANTED.remove(name)
    if not worker.WANTED and worker.FINDER in sys.meta_path:
        sys.meta_path.remove(worker.FINDER)
    if worker.page is not None:
        try:
            HOOKS[name](sys.modules[name])
        except Exception:  # another version's, which has not what is wrapped
            pass


# What follows.

class Steps:
    def __init__(self, numbers):
        self.numbers = numbers  # the page's; None in a forked child
        self.count = self.last = 0
        self.by_program = False  # it counts its steps itself: an optimizer's are no others

    def begin(self):
        """From here on the program tells of its steps."""
        self.by_program = True

    def optimizer_stepped(self, *_):
        if not self.by_program and self.numbers is not None:
            self.write(self.count + 1)

    def beat(self, step):
        """The program says that this step has ended."""
        first = not self.by_program
        self.begin()
        if self.numbers is not None:
            self.write(step, first)

    def write(self, step, first=False):
        """`first`: of this count."""
        # Two slots, so that one of them is whole at any instant.
        numbers, now = self.numbers, monotonic_ns()
        self.count = count = self.count + 1
        slot = AT_BEATS + (count & 1) * BEAT
        numbers[slot] = 0
        numbers[slot + 1] = step
        numbers[slot + 2] = now
        numbers[slot + 3] = now - self.last if self.last else 0
        numbers[slot + 4] = 0
        if first or count == 1:
            numbers[AT_FIRST], numbers[AT_FIRST + 1] = step, now
        numbers[slot] = numbers[AT_NEWEST] = count
        self.last = now


steps = Steps(worker.page.numbers)


def on_threading(module):
    former = module.excepthook

    def excepthook(args, /):
        if worker.page is not None:
            worker.tell("torchup_error", "thread_raised", args.exc_type, args.exc_value)
        former(args)

    if getattr(module, "__excepthook__", None) is former:
        module.__excepthook__ = excepthook
    module.excepthook = excepthook


def on_optimizer(module):
    module.register_optimizer_step_post_hook(steps.optimizer_stepped)


def on_distributed(module):
    """The first init_process_group starts the helper thread: in a call that it makes at once, so that there is no frame
    of ours in its tracebacks; else around it."""
    name = "set_pytorch_distributed_envs_from_justknobs"
    if not hasattr(module, name):
        name = "init_process_group"
    former = getattr(module, name)

    def before(*positional, **named):
        if getattr(module, name) is before:
            setattr(module, name, former)
        start_groups()
        return former(*positional, **named)

    before.__dict__.update(former.__dict__, __wrapped__=former)
    before.__name__, before.__qualname__, before.__doc__ = former.__name__, former.__qualname__, former.__doc__
    before.__module__ = former.__module__
    setattr(module, name, before)
    atexit.unregister(worker.ending)  # it runs before those that were registered earlier
    atexit.register(worker.ending)


def start_groups():
    """torchup_groups with its thread running; None where there is no page, or no thread to be had."""
    if worker.page is None:
        return None
    try:
        return groups().start()
    except Exception as error:
        worker.tell("torchup_seldom", "warn", f"the worker hook cannot see groups: {error!r}")
        return None


def groups():
    global _groups
    if _groups is None:
        _groups = worker.load("torchup_groups").Groups(worker)
    return _groups


def stop():
    """At the end."""
    if _groups is not None:
        _groups.stop()


def forget():
    """In a forked child."""
    steps.numbers = None
    if _groups is not None:
        _groups.forget()


HOOKS = {"threading": on_threading, "torch.optim.optimizer": on_optimizer,
         "torch.distributed.distributed_c10d": on_distributed}
