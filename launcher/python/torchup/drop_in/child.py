"""python child.py PARENT PROGRAM NAME [WORD...]: becomes PROGRAM under that NAME, in a process group of its own, and
gets SIGTERM when PARENT ends, whose child it is."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends without a traceback, and has not begun anything

import ctypes  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

PR_SET_PDEATHSIG = 1

parent, program, *words = sys.argv[1:]
os.setpgid(0, 0)
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(parent):  # it ended before
    sys.exit(128 + signal.SIGTERM)
try:
    os.execv(program, words)
except OSError as error:
    sys.exit(f"torchup.drop_in: {program}: {error.strerror}")
