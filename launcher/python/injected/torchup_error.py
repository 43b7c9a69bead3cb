"""The part of the hook (torchup_worker.py) that tells of what has been raised: in the page, and in the worker's error
file, of the shape that torch.distributed.elastic's `record` gives it. A program that ends well has no part in it."""

import os
import sys
import time

from torchup_worker import get_ident, monotonic_ns

worker = sys.modules["torchup_worker"]
AT_RAISED, AT_THREAD_RAISED, AT_RECORDED = 34, 38, 72  # offsets in numbers of eight bytes
TEXT, TEXT_BYTES = 320, 256  # in bytes
_told = None  # id of the last exception of the main thread
TEXT_MAX, STACK_MAX = 16 << 10, 48 << 10  # characters; the agent reads 1 MiB, and an escaped one takes up to 12 bytes


def left(kind, value, trace, when):
    """An exception has left the program, or one of its threads."""
    if get_ident() != worker.main_thread:
        thread_raised(kind, value)
    elif not issubclass(kind, (SystemExit, KeyboardInterrupt)):
        main_raised(worker.page.numbers, kind, value, trace, when)


def main_raised(numbers, kind, value, trace, when):
    """Of a program that prints one and goes on the last one counts, whose time is told when its text is there."""
    global _told
    _told = id(value)
    if not numbers[AT_RAISED]:
        numbers[AT_RAISED] = when
    if write(kind, value, trace, numbers[AT_RECORDED]):
        numbers[AT_RECORDED] = 1
    numbers[AT_RAISED] = when


def left_at_end(when):
    """A program that has replaced the hook for exceptions has left its own in the interpreter. Ours may have been told
    of it by that."""
    value = sys.last_value
    if getattr(sys, "excepthook", None) is worker.excepthook or id(value) == _told:
        return
    if isinstance(value, BaseException):
        left(type(value), value, getattr(sys, "last_traceback", None), when)


def thread_raised(kind, value):
    if issubclass(kind, SystemExit):
        return
    worker.page.numbers[AT_THREAD_RAISED] = monotonic_ns()
    text = text_of(kind, value)[:TEXT_BYTES].encode("utf-8", "backslashreplace")
    worker.page.memory[TEXT:TEXT + TEXT_BYTES] = text[:TEXT_BYTES - 1].ljust(TEXT_BYTES, b"\0")


def text_of(kind, value):
    try:
        return f"{kind.__name__}: {value}"[:TEXT_MAX]
    except Exception:
        return kind.__name__


def write(kind, value, trace, again):
    """As torch.distributed.elastic's `record` does, unless that has done it: False. Whole or not at all. `again`: what
    is there is of an exception before."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or (os.path.lexists(path) and not again):
        return False
    extra = f'{{"py_callstack": {quoted(stack_of(kind, value, trace))}, "timestamp": "{int(time.time())}"}}'
    text = f'{{"message": {{"message": {quoted(text_of(kind, value))}, "extraInfo": {extra}}}}}'
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="ascii") as file:
        file.write(text)
    os.rename(part, path)
    return True


def quoted(text):
    """As JSON. Its module is not loaded in every program, and in the folder of some another one has its name."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    units = plain.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at:at + 2], "big") for at in range(0, len(units), 2)]
    return '"' + "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes) + '"'


def stack_of(kind, value, trace):
    try:
        module = sys.modules.get("traceback")
        if module is None:
            path, sys.path = sys.path, [os.path.dirname(os.__file__)]
            try:
                import traceback as module
            finally:
                sys.path = path
        text = "".join(module.format_exception(kind, value, trace))
        return text if len(text) <= STACK_MAX else text[:STACK_MAX // 2] + "\n...\n" + text[-STACK_MAX // 2:]
    except Exception:
        return ""


def remove_bytecode(path, prefix):
    """The program's own PYTHONPYCACHEPREFIX is no place for what belongs to this job."""
    try:
        os.unlink(path)
        while len(os.path.dirname(path)) > len(prefix):
            path = os.path.dirname(path)
            os.rmdir(path)
    except OSError:
        pass
