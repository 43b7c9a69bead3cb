"""The error file of a worker that has raised, of the shape that torch.distributed.elastic's `record` gives it. Loaded
when something has been raised: a program that ends well has no part in it."""

import os
import sys
import time

TEXT_MAX, STACK_MAX = 16 << 10, 48 << 10  # characters; the agent reads 1 MiB, and an escaped one takes up to 12 bytes


def text_of(kind, value):
    try:
        return f"{kind.__name__}: {value}"[:TEXT_MAX]
    except Exception:
        return kind.__name__


def write(kind, value, trace):
    """As torch.distributed.elastic's `record` does, unless that has done it: False. Whole or not at all."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.lexists(path):
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
