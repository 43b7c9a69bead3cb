"""What a worker's Python finds as `sitecustomize`: its folder is first on PYTHONPATH. It takes itself out of all that a
program can look at, begins the hook (torchup_worker.py beside it), and imports the sitecustomize that would have been
found without it. In a Python older than 3.8 it does no more than leave; it is valid in 2.7."""

import os
import sys


def begin():
    variables = [os.environ.pop(name, "") for name in ("TORCHUP_WORKER_PAGE", "TORCHUP_WORKER_CHANNEL")]
    settings = sys.dont_write_bytecode, sys.pycache_prefix
    sys.dont_write_bytecode, sys.pycache_prefix = False, None  # it is kept beside the source, for the other workers
    try:
        import torchup_worker
        torchup_worker.begin(*variables)
        if settings[1]:
            torchup_worker.load("torchup_error").remove_bytecode(__cached__, settings[1])  # noqa: F821
    except Exception as error:
        try:
            os.write(2, ("torchup: no worker hook: %r\n" % error).encode("utf-8", "replace"))
        except OSError:  # nobody is to hear it
            pass
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = settings


def leave(folder):
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(":")
    if first == folder:
        os.environ["PYTHONPATH"] = rest
        rest or os.environ.pop("PYTHONPATH")


if sys.version_info >= (3, 8) and "TORCHUP_WORKER_PAGE" in os.environ:
    begin()
leave(os.path.dirname(__file__))
US = sys.modules.pop(__name__)  # held, for Python 2 takes a module's names away with it
import sitecustomize  # noqa: E402, F401
