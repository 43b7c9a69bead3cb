"""The ways in which a rank of hang_histories' jobs hangs, dies, or only takes its time.

Each is a function whose text is copied into the program of a run, under another name: it imports what it needs. `job` is
there with `rank`, `world`, `ranks` (whose fault it is), `folder`, `values` (a tensor of 1,024 floats), `disk` (a small one),
and `seconds` and `server` (a port) of a pause. The line that a verdict has to name ends with the comment `# here`.
"""

# ---- A rank that stands still.


def fifo(job):
    import os
    path = f"{job.folder}/shard{job.rank}.tar"
    os.mkfifo(path)
    with open(path) as shard:  # here
        shard.read()


def pipe(job):
    import os
    reader, _writer = os.pipe()
    os.read(reader, 1)  # here


def file_lock(job):
    import fcntl
    first, second = (open(f"{job.folder}/lock{job.rank}", "w") for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    fcntl.flock(second, fcntl.LOCK_EX)  # here


def silent_server(job):
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    connection = socket.create_connection(server.getsockname())
    connection.recv(1)  # here


def interpreter_lock(job):
    import ctypes
    ctypes.PyDLL(None).sleep(1000)  # here


def c_code(job):
    import ctypes
    ctypes.CDLL(None).sleep(1000)  # here


def child(job):
    import subprocess
    subprocess.run(["sleep", "1000"])  # here


def sleep(job):
    import time
    time.sleep(1000)  # here


def thread_lock(job):
    import threading
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # here


def dead_producer(job):
    import queue
    import threading
    batches = queue.Queue()

    def produce():
        raise ValueError("no such file")

    threading.Thread(target=produce).start()
    batches.get()  # here


def event_loop(job):
    import asyncio

    async def wait_for_nobody():
        await asyncio.Event().wait()

    asyncio.run(wait_for_nobody())  # here


def loader(job):
    import time
    import torch.utils.data

    class Shards(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            time.sleep(1000)

    for _ in torch.utils.data.DataLoader(Shards(), num_workers=1):  # here
        pass


def uninterruptible(job):
    """In state D, as before a dead file server: whose child of vfork neither executes nor ends."""
    import ctypes
    library = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(65536)
    vm, vfork, sigchld = 0x100, 0x4000, 17
    top = ctypes.c_void_p((ctypes.addressof(stack) + 65536) & ~15)
    library.clone(ctypes.cast(library.pause, ctypes.c_void_p), top, vm | vfork | sigchld, None)  # here


def finally_sleeps(job):
    import time
    try:
        raise ValueError("loss is nan")
    finally:
        time.sleep(1000)  # here


def stopped(job):
    import os
    import signal
    os.kill(os.getpid(), signal.SIGSTOP)  # here


def receives(job):
    """Another rank waits for it in recv."""
    import time
    import torch.distributed as dist
    if job.rank in job.ranks:
        time.sleep(1000)  # here
    elif job.rank == (job.ranks[0] + 1) % job.world:
        dist.recv(job.values, src=job.ranks[0])


# ---- A rank that does not stand still and does not come.


def endless_loop(job):
    count = 0
    while True: count += 1  # here


def endless_match(job):
    """Holds the interpreter lock, too."""
    import re
    re.match(r"(a+)+$", "a" * 200 + "b")  # here


def polls(job):
    import os
    import time
    while not os.path.exists(f"{job.folder}/never"):
        time.sleep(0.01)  # here


# ---- A rank in another collective.


def extra(job):
    import torch.distributed as dist
    dist.broadcast(job.values, src=0)  # here


def other(job):
    import torch
    import torch.distributed as dist
    dist.all_gather([torch.empty_like(job.values) for _ in range(job.world)], job.values)  # here
    job.skips = True


def skipped(job):
    job.skips = True  # here


def sizes(job):
    import torch
    job.values = torch.ones(512)  # here


def dtype(job):
    import torch
    job.values = torch.ones(1024, dtype=torch.float64)  # here


def finally_collects(job):
    import torch.distributed as dist
    try:
        raise ValueError("loss is nan")
    finally:
        dist.barrier()  # here


def circle(job):
    """Each member waits for the next one in a group of both."""
    import torch.distributed as dist
    pairs = [(member, job.ranks[(at + 1) % len(job.ranks)]) for at, member in enumerate(job.ranks)]
    groups = [dist.new_group(sorted(pair)) for pair in pairs]
    if job.rank in job.ranks:
        dist.all_reduce(job.values, group=groups[job.ranks.index(job.rank)])  # here


# ---- A rank that has raised and does not end.


def thread_stays(job):
    import threading
    import time
    threading.Thread(target=time.sleep, args=(1000,)).start()
    raise ValueError("loss is nan")  # here


def exit_handler(job):
    import atexit
    import time
    atexit.register(time.sleep, 1000)
    raise ValueError("loss is nan")  # here


# ---- A rank that dies.


def exception(job):
    raise ValueError("loss is nan")  # here


def slow_exception(job):
    """Its connections are closed, and others notice, before it ends."""
    import time
    import torch.distributed as dist
    try:
        raise ValueError("loss is nan")  # here
    finally:
        dist.destroy_process_group()
        time.sleep(0.2)


def slow_end(job):
    import atexit
    import time
    atexit.register(time.sleep, 1.5)
    raise ValueError("loss is nan")  # here


def chained(job):
    try:
        open(f"{job.folder}/no/such/file")
    except OSError as error:
        raise RuntimeError("cannot read the labels") from error  # here


def exit_code(job):
    import sys
    sys.exit(41)  # here


def exit_at_once(job):
    import os
    os._exit(42)  # here


def fault(job):
    import ctypes
    ctypes.string_at(0)  # here


def abort(job):
    import os
    os.abort()  # here


def bus_error(job):
    import mmap
    import os
    with open(f"{job.folder}/mapped{job.rank}", "w+b") as file:
        file.truncate(4096)
        view = mmap.mmap(file.fileno(), 4096)
        os.truncate(file.name, 0)
        view[0] = 1  # here


def killed(job):
    """From outside, as by the kernel that has no memory left."""
    import os
    import subprocess
    import time
    subprocess.Popen(["sh", "-c", f"kill -9 {os.getpid()}"])
    time.sleep(1000)  # here


def loader_killed(job):
    import os
    import torch.utils.data

    class Shards(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            os.kill(os.getpid(), 9)

    for _ in torch.utils.data.DataLoader(Shards(), num_workers=1):  # here
        pass


def disk_full(job):
    path = f"{job.disk}/checkpoint"
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 65536):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None  # here


def port_taken(job):
    import socket
    with socket.create_server(("127.0.0.1", 0)) as taken:
        socket.create_server(taken.getsockname())  # here


def open_files(job):
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    files = []
    while True:
        files.append(open("/dev/null"))  # here


# ---- A rank that takes its time, and goes on.


def evaluates(job):
    import time
    import torch
    end = time.monotonic() + job.seconds
    while time.monotonic() < end:
        torch.mm(torch.ones(128, 128), torch.ones(128, 128))  # here


def saves(job):
    import os
    import time
    import torch
    end = time.monotonic() + job.seconds
    while time.monotonic() < end:
        with open(f"{job.folder}/checkpoint{job.rank}", "wb") as file:
            torch.save({"weights": torch.ones(1 << 21)}, file)  # here
            os.fsync(file.fileno())


def compiles(job):
    """In a child, as torch.compile does."""
    import subprocess
    import sys
    program = f"import time\nend = time.monotonic() + {job.seconds}\nwhile time.monotonic() < end: compile('x = [1, 2]\\n' * 999, '', 'exec')"
    subprocess.run([sys.executable, "-c", program])  # here


def downloads(job):
    """From a server elsewhere, which sends a chunk every 20 ms."""
    import socket
    connection = socket.create_connection(("127.0.0.1", job.server))
    with open(f"{job.folder}/downloaded{job.rank}", "wb") as file:
        while data := connection.recv(65536):  # here
            file.write(data)


def loads(job):
    """The workers of its loader compute."""
    import time
    import torch.utils.data

    class Shards(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            end = time.monotonic() + job.seconds
            while time.monotonic() < end:
                torch.mm(torch.ones(128, 128), torch.ones(128, 128))
            return 0

    for _ in torch.utils.data.DataLoader(Shards(), num_workers=2):  # here
        pass
