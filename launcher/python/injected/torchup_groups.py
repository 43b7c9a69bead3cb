"""The part of the hook (torchup_worker.py) that concerns torch.distributed: the helper thread.

It is the only reader of the worker's channel (rendezvous/base/worker_channel.hpp), tells by the page how far the
process groups are, and answers `look`: what groups there are and the end of PyTorch's recorder, as JSON in the answer
area (launcher/core/diagnosis/worker_answer.hpp). Stacks are asked of it, and not of the main thread, whose system calls
the signal would end. Other verbs are heard by who listens, which is torchup.elastic.

PyTorch's recorders are read where that costs the program nothing. To read one holds the interpreter's lock; and of an
NCCL collective that runs it asks CUDA, which ends the capture of a CUDA graph in another thread: Python has no call to
have it allowed (cudaThreadExchangeStreamCaptureMode). So what is asked in passing, for stragglers, is answered without
long recorders and slow ones, and without NCCL's unless TORCH_NCCL_ENABLE_TIMING says that somebody measures. Who looks
at a job that hangs is told all.
"""

import json
import os
import re
import sys

import _signal
import _socket
from torchup_worker import ANSWER_BYTES, AT_SIGNAL, PAGE_BYTES, SHEET_BYTES
from torchup_worker import allocate_lock, get_native_id, monotonic, monotonic_ns, read, sleep, start_new_thread

AT_HELPER, AT_COLLECTIVES, AT_COLLECTIVES_CHANGED = 33, 35, 36  # offsets in numbers of eight bytes
PACKET_BYTES_MAX = 16 << 10
LOOK = re.compile(rb"look\n(?:[^\n]*\n)*?number=([0-9]{1,19})\n")
IN_PASSING = b"\npassing=1\n"
RECORDED_MAX = 5000  # entries of a recorder that is read in passing
SLOW_S, REST = 0.2, 1000  # one that took so long is not read again in passing for so many times as long
PERIOD_S = 1
ENTRIES_MAX, GROUPS_MAX = 256, 1024  # as worker_channel.hpp has them
RUNS_MAX, TEXT_MAX = 1024, 256  # stretches of a group's ranks; characters of a name
ENTRY = b'{"collective_seq_id":'  # begins each in the recorder's text, whose names cannot hold it: quotes are escaped
SYNCHRONOUS = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT}


class Groups:
    def __init__(self, worker):
        self._worker = worker
        self._seldom = worker.load("torchup_seldom")
        self._starting = allocate_lock()
        self._is_started = False
        self._in_torch = allocate_lock()  # not at the interpreter's end
        self._is_stopped = False
        self._listener = None
        self._speaking = allocate_lock()
        self._resting_until = 0

    # For the program's threads.

    def start(self):
        with self._starting:
            if not self._is_started:
                self._set_timeout()
                start_new_thread(self._run, ())
                self._is_started = True
        return self

    def stop(self):
        """From here on the thread does nothing in torch, where the end of the interpreter would end the process. What
        the groups have done since its last look is told before: who ends has got on."""
        has_it = self._in_torch.acquire(timeout=2)
        try:
            if has_it and self._worker.page is not None and not self._is_stopped:
                self._count(self._worker.page)
        finally:
            self._is_stopped = True
            if has_it:
                self._in_torch.release()

    def listen(self, heard, ended):
        """`heard(packet)` is called in the helper's thread for each packet that is not its own; where it returns False,
        or fails, the channel ends. `ended()` once, when the channel has."""
        self._listener = heard, ended
        if self._worker.channel < 0:
            ended()

    def say(self, packet):
        """OSError where it cannot be said."""
        with self._speaking:
            fd = self._worker.channel
            if fd < 0 or not self._seldom.has_channel(fd):
                raise ConnectionError("the channel has ended")
            with_socket(fd, lambda end: end.send(packet, _socket.MSG_NOSIGNAL))

    # In a forked child, where the thread is not.

    def forget(self):
        self._listener = None

    # In the thread.

    def _set_timeout(self):
        """The channel's own, so that reading blocks in one system call; it is nobody else's."""
        option = _socket.SOL_SOCKET, _socket.SO_RCVTIMEO, PERIOD_S.to_bytes(8, sys.byteorder) + bytes(8)
        try:
            if self._seldom.has_channel(self._worker.channel):
                with_socket(self._worker.channel, lambda end: end.setsockopt(*option))
        except OSError:
            self._seldom.close_channel()

    def _run(self):
        page = self._worker.page
        try:
            self._serve(page)
        except Exception as error:  # a bug, of which the program is to see no more than this
            page.numbers[AT_HELPER] = 0
            self._seldom.warn(f"the worker hook sees no more of groups: {error!r}")
            self._end()

    def _serve(self, page):
        # The program's signals are for its own threads.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals() - SYNCHRONOUS - {page.signal})
        page.numbers[AT_HELPER] = get_native_id()
        due = 0
        while True:
            if monotonic() >= due:
                due = monotonic() + PERIOD_S
                self._look_after(page)
            packet = self._next()
            if packet:
                self._hear(page, packet)

    def _look_after(self, page):
        """What changes by itself."""
        page.numbers[AT_SIGNAL] = page.signal if self._seldom.is_signal_ours(page) else 0
        with self._in_torch:
            if not self._is_stopped:
                self._count(page)

    def _count(self, page):
        total = sum(sequence_of(group) for group in groups_of(distributed()))
        if total != page.numbers[AT_COLLECTIVES]:
            page.numbers[AT_COLLECTIVES] = total
            page.numbers[AT_COLLECTIVES_CHANGED] = monotonic_ns()

    def _next(self):
        """The next packet; None where none has come for a second."""
        fd = self._worker.channel
        if fd < 0:
            sleep(PERIOD_S)
            return None
        try:
            packet = read(fd, PACKET_BYTES_MAX + 1) if self._seldom.has_channel(fd) else b""
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        if not packet:
            self._end()
        return packet

    def _hear(self, page, packet):
        asked = LOOK.match(packet)
        if asked:
            self._answer(page, asked[1], IN_PASSING in packet)
        elif self._listener is not None:
            try:
                goes_on = self._listener[0](packet)
            except Exception:
                goes_on = False
            if not goes_on:
                self._end()

    def _end(self):
        self._seldom.close_channel()
        if self._listener is not None:
            self._listener[1]()

    def _answer(self, page, number, in_passing):
        with self._in_torch:
            if self._is_stopped:
                return
            begun = monotonic()
            answer = answer_of(distributed(), ANSWER_BYTES, in_passing, begun < self._resting_until)
            took = monotonic() - begun
            if took > SLOW_S:
                self._resting_until = begun + REST * took
        if not self._seldom.is_whole(page):
            return
        try:
            os.pwrite(page.fd, answer, PAGE_BYTES + SHEET_BYTES)
            self.say(b"looked\nnumber=%s\nlength=%d\n" % (number, len(answer)))
        except OSError:
            pass


def with_socket(fd, work):
    """Without an object that lives on: its end would close the descriptor, or be a warning at the interpreter's."""
    end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
    try:
        end.setblocking(True)  # the program may have set a timeout for all sockets
        return work(end)
    finally:
        end.detach()


# What torch knows. Nothing of it is promised: where it is not there, it is not told.

def distributed():
    return sys.modules.get("torch.distributed.distributed_c10d")


def groups_of(module):
    try:
        return list(module._world.pg_map)
    except (AttributeError, RuntimeError):
        return []


def sequence_of(group):
    try:
        return group._get_sequence_number_for_group()
    except Exception:  # a backend that does not count
        return 0


def answer_of(module, bytes_max, in_passing=False, rests=False):
    try:
        names = () if in_passing and (rests or recorded_max() > RECORDED_MAX) else backends_of(module, in_passing)
        entries, number_of = recorded(names)
        groups = groups_told(module)
        for group in groups:
            group["number"] = number_of(group["name"])
    except Exception as error:
        entries, groups = [], [{"name": "", "desc": str(error)[:TEXT_MAX]}]
    groups = [dumped(group) for group in groups]
    entries = [dumped(entry) for entry in entries]
    room = bytes_max - len('{"groups":[],"entries":[]}')
    for texts, first in ((groups, False), (entries, True)):  # of groups the first count, of entries the last
        while texts and len(",".join(texts)) > room:
            del texts[0 if first else -1]
        room -= len(",".join(texts))
    return ('{"groups":[%s],"entries":[%s]}' % (",".join(groups), ",".join(entries))).encode("ascii")


def dumped(value):
    return json.dumps(value, separators=(",", ":"))


def groups_told(module):
    """All but their numbers. Who holds a group when the program destroys it would have to end it: none is held for
    longer than this takes."""
    return [told for told in (group_told(module._world, group) for group in groups_of(module)[:GROUPS_MAX]) if told]


def group_told(world, group):
    name = str(world.pg_names.get(group, ""))
    if not name:
        return None  # it has just gone
    return {"name": name[:TEXT_MAX], "desc": str(getattr(group, "group_desc", ""))[:TEXT_MAX],
            "ranks": stretches(sorted(world.pg_group_ranks.get(group, ()))), "number": -1,
            "seq": sequence_of(group) if counts_alone(world.pg_map.get(group, ("",))[0]) else -1}


def stretches(ranks):
    """`0-7,12-60:4`; nothing where that takes too many."""
    runs, at = [], 0
    while at < len(ranks):
        first = last = at
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        while last + 1 < len(ranks) and ranks[last + 1] - ranks[last] == step:
            last += 1
        if step != 1 and last == first + 1:
            last = first  # two ranks are no pattern
        run = str(ranks[first]) if first == last else f"{ranks[first]}-{ranks[last]}"
        runs.append(run if first == last or step == 1 else f"{run}:{step}")
        at = last + 1
    return ",".join(runs) if len(runs) <= RUNS_MAX else ""


def recorded(names):
    """The last entries of these backends' recorders, oldest first, and a function that finds a group's newest
    number."""
    texts = [recorder_text(name) for name in names]
    entries = [entry for text in texts for entry in parsed(end_of(text, ENTRIES_MAX))]
    entries.sort(key=lambda entry: entry["time_created_ns"])
    return ([entry_told(entry) for entry in entries[-ENTRIES_MAX:]],
            lambda name: max([newest_number(text, name) for text in texts], default=-1))


def recorded_max():
    """How many entries a recorder holds."""
    text = os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or "0"
    return int(text) if text.isdigit() else 0


def backends_of(module, in_passing=False):
    names = {"gloo"}
    for backend in [str(backend) for backend, *_ in module._world.pg_map.values()]:
        names.update(backends_in(backend))
    names = names - {"undefined"} | ({"nccl"} if "undefined" in names else set())
    if in_passing and os.environ.get("TORCH_NCCL_ENABLE_TIMING", "").lower() not in ("1", "true", "yes", "y", "t"):
        names = {name for name in names if not name.startswith("nccl")}
    return sorted(names)


def backends_in(text):
    """Of `cpu:gloo,cuda:nccl`."""
    return {part.rpartition(":")[2] for part in str(text).split(",")}


def counts_alone(text):
    """Each backend of a group counts its own calls, and the group tells the count of one."""
    return backends_in(text) in ({"gloo"}, {"nccl"})


def recorder_text(backend):
    dump = sys.modules["torch._C"]._distributed_c10d._dump_fr_trace_json
    try:
        text = dump(True, False, backend)
    except TypeError:  # before torch 2.10 there is one for all
        text = dump(True, False)
    return text.encode() if isinstance(text, str) else text


def end_of(text, count):
    """The last entries, as they stand."""
    end = text.rfind(b"}", 0, after_entries(text))
    begin = end
    for _ in range(count):
        found = text.rfind(ENTRY, 0, begin)
        if found < 0:
            break
        begin = found
    return text[begin:end + 1] if begin < end else b""


def after_entries(text):
    """Where the list of them ends: they have no objects in them."""
    last = text.rfind(ENTRY)
    found = max(text.find(b'}],"', last), text.find(b"}]}", last)) if last >= 0 else -1
    return found + 1


def parsed(piece):
    return json.loads(b"[" + piece + b"]")


def newest_number(text, name):
    """Of the group's newest collective, -1 where none is recorded; point-to-point calls are counted apart."""
    mark, end = b'"process_group":[' + dumped(name).encode() + b",", len(text)
    for _ in range(ENTRIES_MAX):
        end = text.rfind(mark, 0, end)
        begin = text.rfind(ENTRY, 0, end) if end >= 0 else -1
        if begin < 0:
            return -1
        head = text[begin:end]
        if b'"is_p2p":true' not in head:
            return int(re.match(rb"[0-9]+", head[len(ENTRY):])[0])
    return -1


def entry_told(entry):
    number = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
    told = {"group": entry["process_group"][0], "number": number, "p2p": entry["is_p2p"],
            "operation": entry["profiling_name"], "sizes": entry["input_sizes"], "dtypes": entry["input_dtypes"],
            "created_ns": entry["time_created_ns"], "retired": entry["retired"]}
    if "duration_ms" in entry:
        told["duration_ms"] = entry["duration_ms"]
    return told
