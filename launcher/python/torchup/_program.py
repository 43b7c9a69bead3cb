"""Where torchup's native programs are, for this Python, and where CMake finds torchup."""

import os
import signal
import sys
import sysconfig


def places():
    """The folders in which installers put programs beside a package, those of this Python first."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    schemes = [name for name in ("posix_prefix", "posix_local") if name in sysconfig.get_scheme_names()]
    found = [sysconfig.get_path("scripts")]
    found += [sysconfig.get_path("scripts", scheme, base) for scheme in schemes]
    found.append(sysconfig.get_path("scripts", "posix_user"))
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found.append(os.path.join(root, "bin"))  # pip install --target
    if root.endswith(("/site-packages", "/share/torchup/python")):  # pip install --prefix; cmake --install
        found.append(os.path.normpath(os.path.join(root, "../../../bin")))
    elif root.endswith("/python"):  # a build folder
        found.append(os.path.normpath(os.path.join(root, "../bin")))
    return list(dict.fromkeys(found))


def program(name):
    """The path of one of torchup's programs ("torchup", "torchupd").

    Looked for in the folder of this Python's programs, the base's, the user's, and beside this package. Raises
    FileNotFoundError, which names these places, where none of them has it.
    """
    folders = places()
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise FileNotFoundError(f"{name} is not installed with the package torchup: it is in none of {', '.join(folders)}")


def become(path, words, environment):
    """That program in the place of this process."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and workers would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execve(path, words, environment)


def run_by_name():
    """The program of this process's name, torchup-launch or torchup-stack, in its place.

    They are torchup under other names, which are links where links can be: a wheel holds none.
    """
    name = os.path.basename(sys.argv[0])
    try:
        path = program("torchup")
    except FileNotFoundError as error:
        sys.exit(f"{name}: {error}")
    become(path, [name, *sys.argv[1:]], os.environ)


cmake_prefix_path = os.path.dirname(os.path.abspath(__file__))
"""For CMAKE_PREFIX_PATH, so that find_package(torchup) finds what is installed with this package."""
