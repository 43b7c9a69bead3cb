"""What a program can look at: printed as JSON, for preload_same_test.py."""

import ctypes, gc, json, os, resource, signal, sys, stat
main = sys.modules["__main__"]
facts = {}

def kind(fd):
    mode = os.fstat(fd).st_mode
    return [stat.S_IFMT(mode), os.get_inheritable(fd), os.get_blocking(fd)]

names = list(vars(main))[:11]
facts["names of __main__"] = [name for name in names if name.startswith("__")]
for name in ("__name__", "__doc__", "__package__", "__file__", "__cached__", "__annotations__"):
    facts["main " + name] = repr(vars(main).get(name, "none"))
facts["spec"] = repr(vars(main).get("__spec__")).replace("0x", "").rstrip("0123456789abcdef")[:60]
loader = vars(main).get("__loader__")
facts["loader"] = [type(loader).__name__, getattr(loader, "name", None), getattr(loader, "path", None)]
facts["builtins"] = type(__builtins__).__name__
facts["argv"] = [sys.argv, getattr(sys, "orig_argv", None), sys.executable, sys._base_executable]
facts["flags"] = [repr(sys.flags), sys.warnoptions, repr(sys._xoptions)]
facts["path"] = sys.path
facts["hooks"] = [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, len(sys.meta_path),
                  len(sys.path_hooks), sys.unraisablehook is sys.__unraisablehook__, sys.breakpointhook is sys.__breakpointhook__]
varying = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHUP_WORKER_PAGE",
           "TORCHUP_WORKER_CHANNEL")
facts["environ"] = [[name, "" if name in varying else value] for name, value in os.environ.items()]
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
facts["getenv"] = [str(libc.getenv(name.encode())) for name in ("RANK", "WORLD_SIZE", "GONE", "PATH")]
entries, at = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), 0
facts["C environ"] = []
while entries[at]:
    facts["C environ"].append(entries[at].split(b"=")[0].decode())
    at += 1
facts["cwd"] = os.getcwd()
facts["umask"] = os.umask(0o22)
facts["limits"] = [resource.getrlimit(number) for number in range(16)]
facts["cpus"] = sorted(os.sched_getaffinity(0))
facts["scheduling"] = [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/oom_score_adj").read()]
facts["identity"] = [os.getuid(), os.getgid(), os.getgroups(), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()]
facts["parent"] = open(f"/proc/{os.getppid()}/comm").read()
for option in (2, 3, 7, 27, 30, 37, 39):
    value = ctypes.c_int(-1)
    result = libc.prctl(option, ctypes.byref(value), 0, 0, 0)
    facts[f"prctl {option}"] = [result, value.value]
facts["comm"] = open("/proc/self/comm").read()
facts["command line"] = open("/proc/self/cmdline").read().split("\0")
facts["kernel's environ"] = [entry.split("=")[0] for entry in open("/proc/self/environ").read().split("\0")]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
facts["signals"] = [status[name] for name in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")]
facts["handlers"] = [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
facts["mask"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
facts["privileges"] = [status[name] for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd")]
facts["threads"] = status["Threads"]
facts["descriptors"] = {}
for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
    try:
        facts["descriptors"][fd] = kind(fd)
    except OSError:
        pass
for name in ("stdin", "stdout", "stderr"):
    stream = getattr(sys, name)
    facts[name] = [repr(stream), stream.encoding, stream.errors, stream.line_buffering, stream.write_through,
                   stream.isatty(), stream.seekable(), stream.buffer.seekable(), type(stream.buffer).__name__, stream.mode, repr(stream.newlines),
                   repr(getattr(stream.buffer, "raw", stream.buffer)), stream is getattr(sys, f"__{name}__"),
                   kind(stream.fileno())]
import threading
facts["main thread"] = [threading.main_thread().native_id == threading.get_native_id() == os.getpid(),
                        threading.current_thread() is threading.main_thread(), threading.main_thread().ident ==
                        threading.get_ident(), len(threading.enumerate())]
import multiprocessing
process = multiprocessing.current_process()
facts["process"] = [process.name, process._parent_pid, process.daemon, len(process.authkey), multiprocessing.parent_process(),
                    multiprocessing.get_start_method()]
import asyncio, locale, random, time, warnings
facts["limits of Python"] = [sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), gc.isenabled()]
facts["words"] = [locale.getlocale(), sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getpreferredencoding(False)]
facts["time"] = [time.tzname, time.daylight]
facts["warnings"] = len(warnings.filters)
# Where there is the worker hook it has taken both.
facts["page"] = int(os.environ.get("TORCHUP_WORKER_PAGE", "0").split(":")[-1]) == os.getpid()
channel = [int(field) for field in os.environ.get("TORCHUP_WORKER_CHANNEL", "0").split(":")]
facts["channel"] = channel[:2], len(channel) > 1 and channel[2:] == [os.fstat(4).st_ino, os.getpid()] and os.get_inheritable(4)
import mark
print(json.dumps({"pid": os.getpid(), "mark": mark.PID, "facts": facts}))
