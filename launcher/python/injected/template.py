"""The template process of --preload: imports modules once, and is forked into workers that have them behind them.

It is a Python on its way to run the program: this text is what it finds as `sitecustomize`, first on PYTHONPATH, in an
archive in descriptor 4. So nothing is imitated: a forked process goes on from here as if its start had taken no time,
and Python itself runs the program, with no frame of ours beneath it. The template never gets there: it ends in this text.

torchup starts it as `python -u -c GUARD MODULES COMMAND...`, and what runs there becomes COMMAND. GUARD is reached only
by a Python that does not find us here (in a wrapper's -E, -I or -S), which would run the program itself as COMMAND.

Descriptor 3 is a SOCK_SEQPACKET pair to the agent (launcher/os/worker/template_process.hpp), one packet a sentence:

    we say     importing NAME, ready, failed REASON
    the agent  fork       with one end of a pair for each process to make; in front of them, if it says `fork cgroup`, with
                          the folder of the cgroup that they shall join

and on the pair of such a process:

    it says    forked PID (its parent does), parked, or parked ERRNO where it could not join
    the agent  start      with a memfd that holds what to become (rendezvous/base/fork_request.hpp), then what become
                          descriptors 0, 1, 2 and, the worker's page, 3; the pair becomes 4
    it says    started, or refused CALL ERRNO

All that a program can look at is to be as if it had been executed; tests/process/preload_same_test.py compares.
A C++ program says the same and hears the same (worker_runtime/worker/template_service.cpp), but `importing`.
"""

import os
import sys

ARCHIVE = __loader__.archive
sys.path.remove(ARCHIVE)
MODULES = os.environ.pop("TORCHUP_PRELOAD", None)
if MODULES is None:
    os.environ["TORCHUP_PRELOAD"] = sys.argv[1]
    os.execv(sys.argv[2], sys.argv[2:])
HOOK = os.environ.pop("TORCHUP_WORKER_HOOK", "")  # its folder

import atexit  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import io  # noqa: E402
import mmap  # noqa: E402
import signal  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402
import zipimport  # noqa: E402

import _socket  # noqa: E402  (without the modules that socket loads, which the program may not)
import _thread  # noqa: E402

CONTROL, PAGE, CHANNEL = 3, 3, 4
AGENT = os.getppid()
TRIAL_LIMIT_S, FDS_MAX = 10, 253
GPUS = ("/dev/nvidia", "/dev/nvhost-", "/dev/nvmap", "/dev/kfd", "/dev/dxg")  # the last is that of Windows' Linux
PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_MM_MAP, PR_SET_PTRACER = 1, 35, 14, 0x59616D61
LIBC = ctypes.CDLL(None, use_errno=True)


def working_directory():
    """Which one it is: no path need lead there for whom we run as."""
    status = os.stat("/proc/self/cwd")
    return status.st_dev, status.st_ino


AT_FIRST = working_directory()


class Unfit(Exception):
    """Why no workers can be forked from here."""


def say(descriptor, text):
    os.write(descriptor, text.encode("utf-8", "replace")[:4000])


def hear(descriptor):
    """The text and the descriptors of the next packet, and whether none is missing for want of a free number; an empty
    text: nobody is there any more."""
    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, descriptor)
    socket.setblocking(True)  # a module may have set a timeout for all sockets
    try:
        text, ancillary, flags, _ = socket.recvmsg(256, _socket.CMSG_SPACE(4 * FDS_MAX), _socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return "", [], True
    finally:
        socket.detach()
    descriptors = [number for _, _, data in ancillary for number, in struct.iter_unpack("=i", data)]
    return text.decode(), descriptors, not flags & _socket.MSG_CTRUNC


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
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
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
            opened = opened or os.readlink("/proc/self/fd/" + descriptor).startswith(GPUS)
        except OSError:
            pass  # the one that lists them
    if opened:
        raise Unfit(f"{module} has opened the GPU, which no forked process could use")


def try_child():
    """One child computes: what libraries of threads have left in this process may stop it for ever."""
    try:
        ours, its = _socket.socketpair()
        child = os.fork()
    except OSError as error:
        raise Unfit(f"no process can be forked from it ({error.strerror})") from None
    if child == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        code = 1
        try:
            compute()
            its.send(b"x")
            code = 0
        except BaseException:
            sys.__excepthook__(*sys.exc_info())
        finally:
            os._exit(code)
    its.close()
    ours.settimeout(TRIAL_LIMIT_S)
    try:
        computes, how = ours.recv(1), ""
    except OSError:
        computes, how = b"", f"stood still for {TRIAL_LIMIT_S} s"
        os.kill(child, signal.SIGKILL)
    ours.close()
    status = end_of(child)
    if not computes:
        how = how or (f"was ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else
                      f"ended with {os.WEXITSTATUS(status)}")
        raise Unfit(f"a process forked from it does not compute (it {how})")


def end_of(child):
    """Its wait status. 0 where the ends of children are ignored (SIGCHLD, by whoever started us or by a module): nobody
    is told of it then, but this returns no earlier."""
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:
        return 0


def compute():
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.ones((256, 256)) @ numpy.ones((256, 256))
    torch = sys.modules.get("torch")
    if torch and hasattr(torch, "ones"):
        weights = torch.ones(256, 256, requires_grad=True)
        (torch.ones(256, 256) @ weights).sum().backward()


# The processes.

def keep_places():
    """A place that a module has made free must not be taken by what the agent sends."""
    for descriptor in range(CHANNEL + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open("/dev/null", os.O_RDWR)


def fork(ends, cgroup):
    """Makes a process for each of `ends`, twice forked, so that it is the agent's child. Returns None here, and in such a
    process, which is parked, its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # a module has closed it, or taken it apart
    gate, first = [], None
    try:
        gate = os.pipe()
        first = os.fork()
    except OSError:
        pass  # too many processes or descriptors: nobody is made, and the agent hears it by the pairs' end
    if first != 0:
        if first:
            end_of(first)
        for descriptor in gate:
            os.close(descriptor)  # whoever reads the gate has a new parent now
        return None
    try:
        read_end, write_end = gate
        os.close(write_end)
        os.dup2(read_end, CONTROL, inheritable=False)  # there nothing must come to lie before the worker's page does
        os.close(read_end)
        for end in ends:
            pid = os.fork()
            if pid == 0:
                for other in set(ends) - {end}:
                    os.close(other)
                park(end, cgroup)
                return end
            say(end, f"forked {pid}")
    except OSError:
        pass  # whoever has no pid by now gets none
    os._exit(0)


def park(end, cgroup):
    os.read(CONTROL, 1)  # the gate
    if os.getppid() != AGENT:
        os._exit(1)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != AGENT:  # it has ended before it could take us along
        os._exit(1)
    LIBC.prctl(PR_SET_PTRACER, AGENT, 0, 0, 0)  # as a worker that is executed: child_process.cpp
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
    """Forks as it is told. Returns in a forked process, which has become what it was told."""
    while True:
        order, descriptors, _ = hear(CONTROL)
        if not order:
            os._exit(0)
        cgroup = descriptors.pop(0) if order == "fork cgroup" and descriptors else None
        end = fork(descriptors, cgroup)
        if end is not None:
            return start(end)
        for descriptor in descriptors + ([] if cgroup is None else [cgroup]):
            os.close(descriptor)


def start(end):
    """Waits for the order to start, and becomes what it says."""
    order, descriptors, whole = hear(end)
    if order != "start" or not whole:
        os._exit(0)
    request, *streams = descriptors
    with open(request, "rb") as file:
        fields = file.read().split(b"\0")
    kind, directory, cpus, count = (field.decode("utf-8", "surrogateescape") for field in fields[1:5])
    words = [os.fsdecode(word) for word in fields[5:5 + int(count)]]
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    renew_streams()
    if len(streams) <= PAGE:
        os.close(PAGE)
    os.dup2(end, CHANNEL)  # the worker's channel
    os.close(end)
    call = "sched_setaffinity"
    try:
        if cpus:
            os.sched_setaffinity(0, cpus_of(cpus))
        call = "chdir"
        if directory and working_directory() != AT_FIRST:
            os.chdir(directory)
    except OSError as error:
        say(CHANNEL, f"refused {call} {error.errno}")
        os._exit(1)
    environment = fields[5 + int(count):-1]
    set_environment(environment)
    set_arguments(kind, words)
    show(words, environment)
    make_individual()
    say(CHANNEL, "started")
    begin_hook()


def cpus_of(text):
    ranges = [part.split("-") for part in text.split(",")]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def set_environment(entries):
    os.environ.clear()
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if name and equals and name not in os.environb:
            os.environb[name] = value


def load_hook():
    """What its sitecustomize does in a worker that is executed, as far as it is the same for all."""
    if sys.version_info < (3, 8) or not os.path.isdir(HOOK):
        return
    sys.path.insert(0, HOOK)
    settings = sys.dont_write_bytecode, sys.pycache_prefix
    sys.dont_write_bytecode, sys.pycache_prefix = False, None
    try:
        import torchup_worker  # noqa: F401
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = settings
        sys.path.remove(HOOK)
        sys.path_importer_cache.pop(HOOK, None)


def begin_hook():
    """The rest, in the worker. The agent's words come by the hook's channel from here on."""
    worker = sys.modules.get("torchup_worker")
    if worker is None:
        return
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(":")
    if first == HOOK:
        os.environ["PYTHONPATH"] = rest
        if not rest:
            del os.environ["PYTHONPATH"]
    try:
        worker.begin(*(os.environ.pop(name, "") for name in ("TORCHUP_WORKER_PAGE", "TORCHUP_WORKER_CHANNEL")))
    except Exception as error:
        os.write(2, f"torchup: no worker hook: {error!r}\n".encode("utf-8", "replace"))


def set_arguments(kind, words):
    """`words`: python -u [-m] PROGRAM ..."""
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words
    sys.argv[:] = ["-m", *words[4:]] if kind == "module" else words[2:]


def renew_streams():
    """They have learnt from the template's own descriptors what can be done with them."""
    for name in ("stdin", "stdout", "stderr"):
        try:
            renew(getattr(sys, f"__{name}__"), f"<{name}>")
        except (AttributeError, ValueError):
            pass  # a module has closed it, or taken it apart


def renew(stream, name):
    layer = io.FileIO(stream.fileno(), "rb" if stream.readable() else "wb", closefd=False)
    layer.name = name
    if isinstance(stream.buffer, io.BufferedReader):
        layer = io.BufferedReader(layer)
    settings = {each: getattr(stream, each) for each in ("encoding", "errors", "line_buffering", "write_through")}
    stream.__init__(layer, newline="\n", **settings)


def show(words, environment):
    """Has the kernel show this process's own words and environment: in ps, in /proc/PID/environ. For people and tools
    alone, so a kernel that cannot do it (no CONFIG_CHECKPOINT_RESTORE) is none the worse."""
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    shown = text + b"".join(entry + b"\0" for entry in environment)
    memory = mmap.mmap(-1, len(shown) or 1, flags=mmap.MAP_PRIVATE)
    memory.write(shown)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # for ever: the kernel reads it
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


# Where it begins.

def without_ours(trace):
    while trace and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


def program_folder():
    """What Python is going to put in front of sys.path."""
    program = sys.argv[0]
    if program == "-m":
        return os.getcwd()
    for hook in sys.path_hooks:
        try:
            hook(program)
        except ImportError:
            continue
        return os.path.abspath(program)  # a folder or an archive, with a __main__
    return os.path.dirname(os.path.realpath(program))


def restore_environment():
    rest = os.environ.pop("PYTHONPATH").partition(":")[2]
    if rest:
        os.environ["PYTHONPATH"] = rest
    for descriptor in (CONTROL, CHANNEL):
        os.set_inheritable(descriptor, False)
    sys.path_importer_cache.pop(ARCHIVE, None)
    zipimport._zip_directory_cache.pop(ARCHIVE, None)


def customize():
    """Does what would have been done here without us. Returns the error if it fails, as it does where there is nothing."""
    del sys.modules[US.__name__]
    try:
        __import__(US.__name__)
    except BaseException as error:
        return error
    return None


def be_template():
    """Returns in a forked process, which shall run the program."""
    command = [sys.executable, "-u", "-c", "<torchup --preload>", *sys.argv, MODULES]
    show(command, [name + b"=" + value for name, value in os.environb.items()])
    folder = None if getattr(sys.flags, "safe_path", False) else program_folder()
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        load_hook()
        import_all(MODULES.split(","))
        keep_places()
        try_child()
    except Unfit as reason:
        say(CONTROL, f"failed {reason}")
        os._exit(1)
    if folder in sys.path:
        sys.path.remove(folder)
    gc.collect()
    gc.freeze()
    say(CONTROL, "ready")
    serve()


US = sys.modules[__name__]
try:
    restore_environment()
    MISSED = customize()
    be_template()
except BaseException:
    sys.__excepthook__(*sys.exc_info())
    os._exit(1)  # never as far as the program
if MISSED:
    sys.modules[US.__name__] = US  # from where it is taken again
    raise MISSED
