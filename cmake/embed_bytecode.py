"""Writes a C++ file that holds the bytecode of modules: embed_bytecode.py OUTPUT.cpp MODULE.py...

Each is an `extern const std::string_view <module>_bytecode` in namespace torchup, a file of bytecode as this Python reads
it, whatever the time of its source; `bytecode_tag` is what it calls such files by (cpython-311).
"""

import pathlib
import py_compile
import sys
import tempfile


def bytecode(path):
    with tempfile.TemporaryDirectory() as folder:
        made = py_compile.compile(str(path), f"{folder}/made", path.name, doraise=True,
                                  invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        return pathlib.Path(made).read_bytes()


def constant(name, content):
    lines = ["".join(f"\\{byte:03o}" for byte in content[at:at + 28]) for at in range(0, len(content), 28)]
    text = "\n".join(f'    "{line}"' for line in lines)
    return f"extern const std::string_view {name};\nconst std::string_view {name}{{\n{text}, {len(content)}}};\n"


output, *modules = map(pathlib.Path, sys.argv[1:])
constants = [constant("bytecode_tag", sys.implementation.cache_tag.encode())]
constants += [constant(f"{path.stem}_bytecode", bytecode(path)) for path in modules]
output.write_text("#include <string_view>\n\nnamespace torchup {\n" + "".join(constants) + "}  // namespace torchup\n")
