"""The template process of --preload: imports modules once, and is forked into workers that have them behind them.

torchup starts it as `python -u -c BOOT KIND PROGRAM MODULES`; BOOT runs this text from descriptor 4, in a namespace that
no program sees. Descriptor 3 is a SOCK_SEQPACKET pair to the agent (launcher/os/worker/template_process.hpp), one packet a
sentence:

    we say     importing NAME, ready, failed REASON
    the agent  fork       with one end of a pair for each process to make; in front of them, if it says `fork cgroup`, with
                          the folder of the cgroup that they shall join

and on the pair of such a process:

    it says    forked PID (its parent does), parked, or parked ERRNO where it could not join
    the agent  start      with a memfd that holds what to become (launcher/core/plan/fork_request.hpp), then what become
                          descriptors 0, 1, 2 and, the worker's page, 3
    it says    started, or refused CALL ERRNO

All that a program can look at is to be as if Python had been started with it; tests/process/preload_test.py compares.
"""

import sys

WITH_FOLDER = not getattr(sys.flags, "safe_path", False)
if WITH_FOLDER:
    del sys.path[0]  # the working directory, of -c; what we need is Python's own

import atexit  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import io  # noqa: E402
import mmap  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import signal  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

import _socket  # noqa: E402  (without the modules that socket loads, which the program may not)
import _thread  # noqa: E402

KIND, PROGRAM, MODULES = sys.argv[1:]
CONTROL, PAGE, CHANNEL = 3, 3, 4
AGENT = os.getppid()
TRIAL_LIMIT_S, FDS_MAX = 10, 253
PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_MM_MAP = 1, 35, 14
SHOWN = []  # memory that the kernel reads
LIBC = ctypes.CDLL(None, use_errno=True)


def program_folder(kind, program):
    """sys.path[0], as Python's start sets it: with the links of a script followed."""
    if kind == "module":
        return os.getcwd()
    return absolute(program) if importer_of(program) else os.path.dirname(os.path.realpath(program))


def absolute(path):
    return path if path.startswith("/") else os.getcwd() + "/" + path


def importer_of(path):
    """What imports from `path`, which then is a folder or an archive with a __main__; None for a script."""
    for hook in sys.path_hooks:
        try:
            return hook(path)
        except ImportError:
            continue
    return None


class Unfit(Exception):
    """Why no workers can be forked from here."""


def say(descriptor, text):
    os.write(descriptor, text.encode("utf-8", "replace")[:4000])


def hear(descriptor):
    """The text and the descriptors of the next packet; an empty text: nobody is there any more."""
    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, descriptor)
    try:
        text, ancillary, _, _ = socket.recvmsg(256, _socket.CMSG_SPACE(4 * FDS_MAX), _socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return "", []
    finally:
        socket.detach()
    return text.decode(), [number for _, _, data in ancillary for number, in struct.iter_unpack("=i", data)]


# The imports.

def import_all(modules):
    for name in modules:
        say(CONTROL, "importing " + name)
        try:
            __import__(name)
            if name == "torch" and importlib.util.find_spec("torch._dynamo"):
                __import__("torch._dynamo")  # making the first optimizer does
        except BaseException as error:
            sys.__excepthook__(type(error), error.with_traceback(without_ours(error.__traceback__)), None)
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise Unfit(f"the import of {name} has failed ({words})") from None
        look_for_threads(name)
        look_for_gpu(name)


def look_for_threads(module):
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others or _thread._count() > 0:
        raise Unfit(f"{module} has started a thread ({', '.join(others) or 'no name'}), which no forked process would have")


def look_for_gpu(module):
    cuda = sys.modules.get("torch.cuda")
    opened = bool(cuda) and cuda.is_initialized()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened = opened or os.readlink("/proc/self/fd/" + descriptor).startswith(("/dev/nvidia", "/dev/kfd"))
        except OSError:
            pass  # the one that lists them
    if opened:
        raise Unfit(f"{module} has opened the GPU, which no forked process could use")


def try_child():
    """One child computes: what libraries of threads have left in this process may stop it for ever."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            compute()
            code = 0
        except BaseException:
            sys.__excepthook__(*sys.exc_info())
        finally:
            os._exit(code)
    end = time.monotonic() + TRIAL_LIMIT_S
    done, status = os.waitpid(child, os.WNOHANG)
    while not done:
        time.sleep(0.002)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        done, status = os.waitpid(child, os.WNOHANG)
    if status:
        how = (f"stood still for {TRIAL_LIMIT_S} s" if time.monotonic() > end else
               f"was ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else
               f"ended with {os.WEXITSTATUS(status)}")
        raise Unfit(f"a process forked from it does not compute (it {how})")


def compute():
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.ones((256, 256)) @ numpy.ones((256, 256))
    torch = sys.modules.get("torch")
    if torch and hasattr(torch, "ones"):
        weights = torch.ones(256, 256, requires_grad=True)
        (torch.ones(256, 256) @ weights).sum().backward()


# The processes.

def fork(ends, cgroup):
    """Makes a process for each of `ends`, twice forked, so that it is the agent's child. Returns None here, and in such a
    process, which is parked, its end."""
    gate, held = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        os.close(gate)
        os.close(held)  # whoever reads the gate has a new parent now
        return None
    try:
        os.close(held)
        os.dup2(gate, CONTROL, inheritable=False)  # there nothing else must come to lie before the worker's page does
        os.close(gate)
        for end in ends:
            pid = os.fork()
            if pid == 0:
                for other in set(ends) - {end}:
                    os.close(other)
                park(end, cgroup)
                return end
            say(end, f"forked {pid}")
    except OSError:
        pass  # of processes there are too many: whoever has no pid by now gets none
    os._exit(0)


def park(end, cgroup):
    os.read(CONTROL, 1)  # the gate
    if os.getppid() != AGENT:
        os._exit(1)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != AGENT:  # it has ended before it could take us along
        os._exit(1)
    os.setsid()
    outside = ""
    if cgroup is not None:
        try:
            members = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
            os.write(members, b"0")
            os.close(members)
        except OSError as error:
            outside = f" {error.errno}"
        os.close(cgroup)
    say(end, "parked" + outside)


def serve():
    """Forks as it is told. Returns, in a forked process that shall start, the fields of its request."""
    while True:
        order, descriptors = hear(CONTROL)
        if not order:
            os._exit(0)
        cgroup = descriptors.pop(0) if order == "fork cgroup" else None
        end = fork(descriptors, cgroup)
        if end is not None:
            return start(end)
        for descriptor in descriptors + ([] if cgroup is None else [cgroup]):
            os.close(descriptor)


def start(end):
    """Waits for the order to start and becomes what it says. Returns the kind of program and Python's arguments."""
    order, descriptors = hear(end)
    if order != "start":
        os._exit(0)
    request, *streams = descriptors
    with open(request, "rb") as file:
        fields = file.read().split(b"\0")
    kind, directory, cpus, count = (field.decode("utf-8", "surrogateescape") for field in fields[1:5])
    words = [os.fsdecode(word) for word in fields[5:5 + int(count)]]
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if len(streams) <= PAGE:
        os.close(PAGE)
    os.dup2(end, CHANNEL, inheritable=False)
    os.close(end)
    call = "sched_setaffinity"
    try:
        if cpus:
            os.sched_setaffinity(0, cpus_of(cpus))
        call = "chdir"
        if directory:
            os.chdir(directory)
    except OSError as error:
        say(CHANNEL, f"refused {call} {error.errno}")
        os._exit(1)
    environment = fields[5 + int(count):-1]
    set_environment(environment)
    show(words, environment)
    make_individual()
    say(CHANNEL, "started")
    return kind, words


def cpus_of(text):
    ranges = [part.split("-") for part in text.split(",")]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def set_environment(entries):
    os.environ.clear()
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if name and equals and name not in os.environb:
            os.environb[name] = value


def show(words, environment):
    """Has the kernel show this process's own words and environment: in ps, in /proc/PID/environ. For people and tools
    alone, so a kernel that cannot do it (no CONFIG_CHECKPOINT_RESTORE) is none the worse."""
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    shown = text + b"".join(entry + b"\0" for entry in environment)
    memory = mmap.mmap(-1, len(shown) or 1, flags=mmap.MAP_PRIVATE)
    memory.write(shown)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    SHOWN.append(memory)
    with open("/proc/self/stat", "rb") as file:
        stat = [b"", b"", *file.read().rpartition(b")")[2].split()]
    code, stack, data = [int(field) for field in stat[25:27]], int(stat[27]), [int(field) for field in stat[44:47]]
    LIBC.sbrk.restype = ctypes.c_void_p
    # struct prctl_mm_map: where code, data, heap, stack, arguments and environment lie; no auxv, no new executable.
    fields = [*code, *data, LIBC.sbrk(0), stack, begin, begin + len(text), begin + len(text), begin + len(shown), 0]
    layout = ctypes.create_string_buffer(struct.pack("=12QII", *fields, 0, 0xFFFFFFFF))
    LIBC.prctl(PR_SET_MM, PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout) - 1), 0)


def make_individual():
    """What a forked process must not have in common with its siblings. `random` sees to itself."""
    if hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()
    torch = sys.modules.get("torch")
    if torch and hasattr(torch, "default_generator"):
        torch.default_generator.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy:
        numpy.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes:
        processes.current_process().authkey = os.urandom(32)
    atexit.register(gc.unfreeze)  # else some libraries take what is frozen for leaks at the end


# The program.

def run(kind, words):
    """Runs the program of `words`, Python's own argument list, as Python would."""
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words
    # python -u [-m] PROGRAM ...
    sys.argv[:] = words[2:]
    main = sys.modules["__main__"].__dict__
    if kind == "module":
        name = sys.argv.pop(1)
        sys.argv[0] = "-m"
        return runpy._run_module_as_main(name)
    program = sys.argv[0]
    if program != PROGRAM and WITH_FOLDER and FOLDER in sys.path:
        sys.path[sys.path.index(FOLDER)] = program_folder(kind, program)
    if importer_of(program):
        return runpy._run_module_as_main("__main__", False)
    path = absolute(program)
    try:
        code, loader = load(path)
    except OSError as error:
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    main["__file__"] = path
    if sys.version_info < (3, 15):
        main["__cached__"] = None
    main["__loader__"] = loader
    try:
        exec(code, main)
    finally:
        main.pop("__file__", None)
        main.pop("__cached__", None)


def load(path):
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
        return loader.get_code("__main__"), loader
    with io.open_code(path) as file:
        text = file.read()
    return compile(text, path, "exec", dont_inherit=True), importlib.machinery.SourceFileLoader("__main__", path)


def hide_our_frames():
    """Python tells of an exception by sys.excepthook once it has left all frames: ours are taken off then."""
    hook = sys.excepthook

    def tell(kind, error, trace):
        sys.excepthook = hook
        sys.last_traceback = without_ours(trace and trace.tb_next)  # the first frame is BOOT's
        hook(kind, error.with_traceback(sys.last_traceback), sys.last_traceback)

    sys.excepthook = tell


def without_ours(trace):
    while trace and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


FOLDER = program_folder(KIND, PROGRAM)


def main():
    if WITH_FOLDER:
        sys.path.insert(0, FOLDER)
    sys.argv[:] = [PROGRAM if KIND == "script" else "-m"]
    try:
        import_all(MODULES.split(","))
        try_child()
    except Unfit as reason:
        say(CONTROL, f"failed {reason}")
        os._exit(1)
    gc.collect()
    gc.freeze()
    say(CONTROL, "ready")
    kind, words = serve()
    try:
        run(kind, words)
    except SystemExit:
        raise
    except BaseException:
        hide_our_frames()
        raise


main()
