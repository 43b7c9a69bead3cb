"""python -m torchup.drop_in: as the package's own text says."""

import errno
import os
import shutil
import signal
import sys

from torchup import program
from torchup.drop_in import stand_in

USAGE = "usage: python -m torchup.drop_in COMMAND [ARGUMENT...]"


def refuse(code, text):
    print(f"torchup.drop_in: {text}", file=sys.stderr)
    return code


def execute(words, environment):
    """In our place; comes back, with the exit code, only when that fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and COMMAND would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execvpe(words[0], words, environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            script = words[0] if "/" in words[0] else shutil.which(words[0], path=environment["PATH"])
            os.execve("/bin/sh", ["sh", script, *words[1:]], environment)  # without #!: as shells and env do it
    except (FileNotFoundError, NotADirectoryError):
        where = "" if "/" in words[0] else " on PATH"
        return refuse(127, f"no such command{where}: {words[0]}")
    except OSError as error:
        return refuse(126, f"{words[0]}: {error.strerror}")


def main(words):
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    torchrun = os.path.join(stand_in.BIN, "torchrun")
    if not os.access(torchrun, os.X_OK):
        return refuse(126, f"{torchrun} is not there, or has lost its mode: install the package torchup again")
    try:
        environment = stand_in.dropped_in(os.environ, program("torchup"))
    except FileNotFoundError as error:
        return refuse(127, error)
    return execute(words, environment)


sys.exit(main(sys.argv[1:]))
