"""python -m torchup …: torchup … in the place of this process, with this Python for the workers unless PYTHON_EXEC
names another one. python -m torchup --cmake-prefix-path prints what CMAKE_PREFIX_PATH needs for find_package(torchup)."""

import os
import sys

from torchup import cmake_prefix_path, program
from torchup._program import become

if sys.argv[1:] == ["--cmake-prefix-path"]:
    print(cmake_prefix_path)
    sys.exit()
try:
    path = program("torchup")
except FileNotFoundError as error:
    print(f"torchup: {error}", file=sys.stderr)
    sys.exit(127)
become(path, ["torchup", *sys.argv[1:]], {**os.environ, "TORCHUP_CALLER": sys.executable})
