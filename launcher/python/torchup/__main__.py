"""python -m torchup …: torchup … in the place of this process, with this Python for the workers unless PYTHON_EXEC
names another one."""

import os
import sys

from torchup import program

try:
    path = program("torchup")
except FileNotFoundError as error:
    print(f"torchup: {error}", file=sys.stderr)
    sys.exit(127)
os.execve(path, ["torchup", *sys.argv[1:]], {**os.environ, "TORCHUP_CALLER": sys.executable})
