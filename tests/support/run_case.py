"""Runs one case of a script of unittest cases, so that each is a test of its own in CTest, and a skip is shown as a skip.

usage: run_case.py SCRIPT CASE [ARGUMENT...]    CASE as Class.method; the arguments are the script's own
       run_case.py --list SCRIPT                the cases, a line each; the script is read, not run

Ends with 0 when the case passed, 77 when it was skipped (with the reason on stderr), else 1.
"""

import ast
import importlib.util
import sys
import unittest
from pathlib import Path

SKIPPED = 77


def classes_in(script):
    """By name those of the script, and those of files beside it that it takes names from: bases are looked for in them."""
    tree = ast.parse(script.read_text())
    classes = {}
    for node in tree.body:
        beside = script.parent / f"{node.module}.py" if isinstance(node, ast.ImportFrom) else None
        if beside and beside.exists():
            classes.update(classes_in(beside)[1])
    own = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return own, classes | own


def cases(script):
    """Class.method of each case, those that a class has from a mix-in included; a mix-in alone is none."""
    own, classes = classes_in(script)

    def bases(name):
        node = classes.get(name)
        return [name] + [found for base in (node.bases if node else []) for found in bases(ast.unparse(base))]

    for name in own:
        line = bases(name)
        if "unittest.TestCase" not in line:
            continue
        methods = dict.fromkeys(item.name for base in line if base in classes for item in classes[base].body
                                if isinstance(item, ast.FunctionDef) and item.name.startswith("test"))
        yield from (f"{name}.{method}" for method in methods)


def load(script, arguments):
    """The script as a module: its own `unittest.main` is not reached."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # for multiprocessing, which looks functions up by module
    spec.loader.exec_module(module)
    return module


def main():
    if sys.argv[1] == "--list":
        print("\n".join(cases(Path(sys.argv[2]))))
        return 0
    script, case = Path(sys.argv[1]).resolve(), sys.argv[2]
    module = load(script, sys.argv[3:])
    if hasattr(module, "enter_namespace"):  # some need a network of their own; this program is then started again in it
        module.enter_namespace()
    suite = unittest.defaultTestLoader.loadTestsFromName(case, module)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful() or result.testsRun == 0 and not result.skipped:
        return 1
    return SKIPPED if result.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
