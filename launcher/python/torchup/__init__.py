"""What Python has of torchup: torchup itself (python -m torchup) and where its programs are (torchup.program) and CMake finds it (torchup.cmake_prefix_path),
torchup in the place of torchrun for programs that start that (python -m torchup.drop_in), and recovery inside the
process for a program on torch (torchup.elastic).

Pure Python. torchup.elastic takes torch 2.9 and newer; under torchrun, or alone, the same program runs without
recovery.
"""

from torchup._program import cmake_prefix_path, program

try:
    from torchup._version import version as __version__
except ImportError:  # this source folder itself, of which no build has said
    __version__ = "unknown"

__all__ = ["cmake_prefix_path", "program"]
