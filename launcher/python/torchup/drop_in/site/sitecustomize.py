"""What each Python below `python -m torchup.drop_in` finds as `sitecustomize`: its folder is first on PYTHONPATH. It
lets torchup stand in for the one module torch.distributed.run, takes itself out of what this Python looks at (not out
of the variable: that is for the Pythons it starts), and imports the sitecustomize that would have been found without
it. In a Python older than 3.9 it does no more than leave; it is valid in 2.7."""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


class Finder:
    """Of one module, whose loader it replaces by the stand-in's."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed.run":
            return None
        for finder in sys.meta_path:
            found = finder is not self and hasattr(finder, "find_spec") and finder.find_spec(name, path, target)
            if found:
                found.loader = self.stand_in().Loader(found.loader)
                return found
        return None

    def stand_in(self):
        from importlib.util import module_from_spec, spec_from_file_location
        spec = spec_from_file_location("torchup_stand_in", os.path.join(os.path.dirname(FOLDER), "stand_in.py"))
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


if sys.version_info >= (3, 9) and "TORCHUP_DROP_IN" in os.environ:
    sys.meta_path.insert(0, Finder())
sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
sys.path_importer_cache.pop(FOLDER, None)
US = sys.modules.pop(__name__)  # held, for Python 2 takes a module's names away with it
import sitecustomize  # noqa: E402, F401
