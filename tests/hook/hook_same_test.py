"""What a program with the hook shows is what it shows without: output, errors, exit code and what it can look at, in
every Python of this machine.

usage: tests/support/run_case.py hook_same_test.py CASE
"""

import re
import subprocess
import unittest

from hook_agent import Case, Path, os, pythons, sys
from worker_memory import ANSWER, PAGE, SHEET, Memory

PYTHONS = pythons()
NEW = [(version, python) for version, python in PYTHONS if version >= (3, 8)]
FACTS = """
from __future__ import print_function
import os, sys
OURS = {"torchup_worker", "mmap", "faulthandler", "fcntl", "atexit", "_signal", "_weakref",
        "encodings.ascii"}  # the last by an extension's import under -X dev
print("path", sys.path)
print("cache", sorted(sys.path_importer_cache))
print("flags", sys.flags, sys.argv, getattr(sys, "orig_argv", None), sys.dont_write_bytecode)
print("prefix", sys.prefix, getattr(sys, "pycache_prefix", None), sys.executable)
print("modules", sorted(set(sys.modules) - OURS))
print("environment", sorted(os.environ.items()))
print("excepthook", sys.excepthook is sys.__excepthook__)
print("finders", [type(each).__name__ for each in sys.meta_path if type(each).__module__ != "torchup_worker"])
custom = getattr(sys.modules.get("sitecustomize"), "__file__", "")
print("custom", os.path.splitext(custom)[0], getattr(sys, "own", None))
import signal, warnings, threading
print("signals", [signal.getsignal(number) for number in range(1, 65) if number not in (32, 33)])
print("warnings", warnings.filters)
print("threads", threading.active_count())
if hasattr(threading, "__excepthook__"):
    print("threads' hook", threading.excepthook is threading.__excepthook__)
sys.stdout.flush()
"""


def plain(text):
    """Without addresses; and how many hold an exception is told where sys.stderr is closed."""
    return re.sub(r"0x[0-9a-f]{6,}|(?<=refcount : )[0-9]+", "~", text)


class Same(Case):
    maxDiff = None

    def same(self, *words, python, code=None, **how):
        """The worker with the hook, of which all is as without."""
        others = how.pop("alone", {})
        alone = self.run_worker(*words, python=python, hook=False, **{**how, **others})
        hooked = self.run_worker(*words, python=python, **how)
        self.assertEqual(plain(hooked.output()), plain(alone.output()))
        self.assertEqual(plain(hooked.errors()), plain(alone.errors()))
        self.assertEqual(hooked.wait(), alone.wait())
        if code is not None:
            self.assertEqual(hooked.wait(), code, hooked.errors())
        return hooked

    def each(self, *words, pythons=NEW, is_hooked=True, **how):
        for version, python in pythons:
            with self.subTest(version):
                worker = self.same(*words, python=python, **how)
                wanted = worker.pid if is_hooked and version >= (3, 8) else 0
                self.assertEqual(worker.memory.claimed_by(), wanted)

    def test_there_are_old_and_new(self):
        """Else the others show little."""
        self.assertGreaterEqual(len(NEW), 1)

    def alone_facts(self):
        """In a Python older than 3.8 the agent's two variables stay, which nobody there reads."""
        return FACTS.replace("sorted(os.environ.items())",
                             "sorted(each for each in os.environ.items() if 'TORCHUP_WORKER' not in each[0])")

    def test_facts(self):
        self.write("facts.py", self.alone_facts())
        self.each("facts.py", "one", "--two", pythons=PYTHONS, code=0)

    def test_no_variable_is_left(self):
        self.write("facts.py", FACTS)
        self.each("facts.py", code=0)

    def test_facts_of_other_kinds_of_programs(self):
        self.write("facts.py", self.alone_facts())
        self.write("package/__init__.py", "")
        self.write("package/__main__.py", self.alone_facts())
        subprocess.run([sys.executable, "-m", "zipapp", "package", "-o", "archive.pyz"], cwd=self.folder, check=True)
        for words in (["-m", "package"], ["-m", "facts"], ["package"], ["-c", self.alone_facts(), "x"],
                      ["archive.pyz", "x"]):
            with self.subTest(words[:2]):
                self.each(*words, pythons=PYTHONS, code=0)
        self.each(pythons=PYTHONS, stdin=self.folder / "facts.py", code=0)
        self.each("-", "x", pythons=PYTHONS, stdin=self.folder / "facts.py", code=0)

    def test_facts_under_options(self):
        self.write("facts.py", self.alone_facts())
        for words in (["-W", "error"], ["-X", "dev"], ["-B"], ["-O"], ["-OO"], ["-s"], ["-u"], ["-bb"], ["-X", "utf8"],
                      ["-X", "tracemalloc"], ["-q"]):
            with self.subTest(words):
                self.each(*words, "facts.py", code=0)

    def test_facts_where_the_hook_is_not_run(self):
        """What a path in PYTHONPATH and its folder are then, no program asks."""
        text = self.alone_facts().replace('print("environment"', 'os.environ.pop("PYTHONPATH", 0)\nprint("environment"')
        self.write("facts.py", text.replace('print("path", sys.path)\n', "").replace(
            'print("cache", sorted(sys.path_importer_cache))\n', ""))
        for option in ("-I", "-E", "-S"):
            with self.subTest(option):
                self.each(option, "facts.py", is_hooked=False, code=0)

    def test_facts_under_variables(self):
        self.write("facts.py", FACTS)
        for env in ({"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONSAFEPATH": "1"}, {"PYTHONWARNINGS": "error"},
                    {"PYTHONDEVMODE": "1"}, {"PYTHONFAULTHANDLER": "1"}, {"PYTHONNOUSERSITE": "1"}, {"LC_ALL": "C"},
                    {"PYTHONOPTIMIZE": "2"}, {"PYTHONHASHSEED": "0"}, {"PYTHONUNBUFFERED": "1"}):
            with self.subTest(env):
                self.each("facts.py", env=env, code=0)

    def test_facts_beside_a_path_of_its_own(self):
        self.write("facts.py", FACTS)
        self.write("own/module.py", "")
        for path in ("own", str(self.folder / "own"), "own:other", "/not/there", "."):
            with self.subTest(path):
                self.each("facts.py", own_path=path, code=0)

    def test_bytecode_is_kept_for_the_others(self):
        """Even where the program has it not, and nowhere but beside the hook."""
        for env in ({}, {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONPYCACHEPREFIX": str(self.folder / "prefix")}):
            for version, python in NEW:
                with self.subTest((version, env)):
                    self.run_worker("-c", "", python=python, env=env)
                    tag = f"cpython-{version[0]}{version[1]}.pyc"
                    found = self.hook / "__pycache__" / f"torchup_worker.{tag}"
                    self.assertTrue(found.exists())
                    found.unlink()
        left = [path for path in self.folder.rglob("*") if "hook" in path.parts[len(self.folder.parts):] or
                "sitecustomize" in path.name]
        self.assertEqual(left, [])

    def test_sitecustomize_of_its_own(self):
        self.write("facts.py", self.alone_facts())
        self.write("own/sitecustomize.py", "import sys\nsys.own = __name__, 'torchup_worker' in dir()\n")
        self.each("facts.py", own_path="own", pythons=PYTHONS, code=0)

    def test_sitecustomize_that_raises(self):
        self.write("facts.py", self.alone_facts())
        for text in ("1 / 0\n", "import not_there\n", "x = = 1\n", "raise ImportError('words')\n",
                     "raise UnicodeError('\\udc80')\n" if sys.version_info > (3,) else ""):
            with self.subTest(text):
                self.write("own/sitecustomize.py", text)
                self.each("facts.py", own_path="own", pythons=PYTHONS)

    def test_sitecustomize_with_a_hook_for_exceptions(self):
        self.write("own/sitecustomize.py", """
            import sys
            def hook(kind, value, trace):
                sys.stderr.write("own %s %s\\n" % (kind.__name__, trace.tb_lineno))
            sys.excepthook = hook
            """)
        self.each("-c", "1 / 0", own_path="own", pythons=PYTHONS, code=1)

    def test_site_is_run_by_the_program(self):
        """Late, or once more."""
        text = self.alone_facts().replace('print("cache", sorted(sys.path_importer_cache))\n', "")
        self.write("twice.py", text.replace("import os, sys\n", "import os, sys, site\nsite.main()\n"))
        self.each("twice.py", pythons=PYTHONS, code=0)
        self.each("-S", "twice.py", code=0)

    def test_virtual_environment(self):
        self.write("facts.py", FACTS)
        for version, python in NEW:
            with self.subTest(version):
                venv = self.folder / "venv"
                subprocess.run([python, "-m", "venv", "--without-pip", "--clear", venv], check=True)
                self.same("facts.py", python=str(venv / "bin/python"), code=0)

    def test_ends(self):
        for text in ("raise SystemExit(7)", "import sys; sys.exit('words')", "import os; os._exit(5)",
                     "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "import os; os.abort()",
                     "def f():\n    1 / 0\nf()", "raise KeyboardInterrupt", "x = = 1", "import json.nothing",
                     "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "raise Exception('\\udc80')",
                     "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
                     "class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad",
                     "import sys; sys.stderr.close(); 1 / 0", "import sys; sys.stderr = None; 1 / 0",
                     "def f(): f()\nf()", "raise BaseException(1)", "import sys; del sys.excepthook; 1 / 0"):
            with self.subTest(text):
                self.each("-c", text, pythons=PYTHONS)
                self.write("program.py", text + "\n")
                self.each("program.py", pythons=PYTHONS)
        self.each("-m", "not_there", pythons=PYTHONS)
        self.each("not_there.py", pythons=PYTHONS)

    def test_tracebacks_have_no_frame_of_ours(self):
        self.write("faulty/threading.py", "import json\nraise ValueError('in an own threading')\n")
        self.each("-c", "import threading", own_path="faulty", code=1)
        self.write("faulty/threading.py", "import not_there\n")
        self.each("-c", "import threading", own_path="faulty", code=1)
        self.each("-c", "import threading, traceback\n"
                        "thread = threading.Thread(target=lambda: 1 / 0); thread.name = 'x'\n"
                        "thread.start(); thread.join()")

    def test_hooks_of_the_program(self):
        self.each("-c", """if True:
            import sys, threading, code
            print(sys.excepthook is sys.__excepthook__)
            def hook(kind, value, trace):
                names = []
                while trace:
                    names.append(trace.tb_frame.f_code.co_name)
                    trace = trace.tb_next
                print(kind, value, names, flush=True)
                former(kind, value, value.__traceback__)
            former, sys.excepthook = sys.excepthook, hook
            code.InteractiveInterpreter().runsource('1 / 0')
            def thread_hook(args): print(args.exc_type, args.thread is thread, flush=True)
            threading.excepthook = thread_hook
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start(); thread.join()
            import atexit
            atexit.register(lambda: print(sys.last_type, flush=True))
            raise ValueError('x')""", code=1)

    def test_find_spec_and_reload(self):
        self.each("-c", """if True:
            import importlib, importlib.util
            spec = importlib.util.find_spec('threading')
            print(spec, type(spec.loader))
            import threading
            print(threading.__spec__, threading.__loader__, type(threading.__spec__) is type(importlib.__spec__),
                  threading.__spec__._initializing)
            print(importlib.reload(threading) is threading)
            """, code=0)

    def test_children(self):
        """They see no variable, no path, no descriptor, and are no workers."""
        self.write("child.py", "import os, sys\nprint([each for each in os.environ if 'TORCHUP' in each], sys.path, "
                               "[type(each).__name__ for each in sys.meta_path], 'torchup_worker' in sys.modules,\n"
                               "[fd for fd in range(3, 2000) if os.path.exists('/proc/self/fd/%d' % fd)], "
                               "os.environ.get('PYTHONPATH'), flush=True)\n")
        self.write("parent.py", """
            import os, subprocess, sys
            for close in (True, False):
                subprocess.run([sys.executable, "child.py"], close_fds=close)
            os.system(sys.executable + " child.py")
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "child.py"])
            os.execv(sys.executable, [sys.executable, "child.py"])
            """)
        self.each("parent.py", code=0)

    def test_forked_children(self):
        self.write("parent.py", """
            import faulthandler, os, signal, sys, warnings
            warnings.simplefilter("error")
            pid = os.fork()
            if pid == 0:
                os.write(1, b"%r\\n" % [fd for fd in range(900, 2000) if os.path.exists('/proc/self/fd/%d' % fd)]
                         if sys.version_info > (3, 4) else b"")
                1 / 0
            print(os.waitpid(pid, 0)[1], flush=True)
            pid = os.fork()
            if pid == 0:
                os.kill(os.getpid(), signal.SIGSEGV)
            print(os.waitpid(pid, 0)[1], flush=True)
            pid = os.fork()
            if pid == 0:
                faulthandler.enable()
                os.kill(os.getpid(), signal.SIGUSR1)
            print(os.waitpid(pid, 0)[1], flush=True)
            """)
        for version, python in NEW:
            with self.subTest(version):
                worker = self.same("parent.py", python=python, code=0)
                self.assertEqual((worker.memory.raised_at, worker.memory.sheet()), (0, ""))

    def test_multiprocessing(self):
        self.write("parent.py", """
            import multiprocessing, os, sys
            def work(x):
                found = [fd for fd in range(900, 2000) if os.path.exists('/proc/self/fd/%d' % fd)]
                return x * x, [each for each in os.environ if 'TORCHUP' in each], found
            if __name__ == "__main__":
                for kind in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(kind).Pool(2) as pool:
                        print(kind, pool.map(work, range(4)), flush=True)
            """)
        self.each("parent.py", code=0)

    def test_program_that_closes_all_descriptors(self):
        """Its own files have their numbers then, and nothing of ours goes there or closes them."""
        self.write("program.py", """
            import atexit, faulthandler, os, signal, sys, threading
            os.closerange(3, 1 << 16)
            sys.files = files = [open(f"file_{at}", "w") for at in range(8)]
            if os.fork() == 0:
                sys.exit(0)
            os.wait()
            for file in files:
                file.write("all of it")
            threading.Thread(target=lambda: 1 / 0).start()
            sys.stdout.write("done\\n")
            """)
        for version, python in NEW:
            with self.subTest(version):
                hooked = self.run_worker("program.py", python=python)
                self.assertEqual((hooked.output(), hooked.wait()), ("done\n", 0), hooked.errors())
                for at in range(8):
                    self.assertEqual((self.folder / f"file_{at}").read_text(), "all of it")

    def test_handlers_of_its_own_on_all_signals(self):
        self.each("-c", """if True:
            import signal, os
            got = []
            for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
                print(signal.signal(number, lambda number, frame: got.append(number)))
            for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
                os.kill(os.getpid(), number)
            print(got)
            """, code=0)

    def test_not_our_page(self):
        """Nothing is done, and nothing said."""
        self.write("facts.py", FACTS)
        size = PAGE + SHEET + ANSWER
        python = sys.executable
        for memory, page in ((Memory(seals=0), None), (Memory(seals=2), None), (Memory(size=4096), None),
                             (Memory(), "rubbish"), (Memory(size=size + 1), None), (Memory(), "3:1:2:3:4"),
                             (Memory(), "99999999999:1:2:3"),
                             (Memory(), "3:1:1:1"), (Memory(), ""), (Memory(), "\u0663:1:2:3"), (Memory(), "-3:1:2:3")):
            with self.subTest(page):
                alone = self.run_worker("facts.py", python=python, hook=False)
                hooked = self.run_worker("facts.py", python=python, memory=memory, page=page)
                self.assertEqual(hooked.errors(), alone.errors())
                # The environment is clean; nothing else differs but what the shape of the start leaves.
                self.assertEqual(hooked.output(), alone.output())
                self.assertEqual(memory.claimed_by(), 0)

    def test_fault_of_the_hook(self):
        """One line, and the program runs."""
        (self.hook / "torchup_worker.py").write_text("1 / 0\n")
        for version, python in NEW:
            with self.subTest(version):
                worker = self.run_worker("-c", "print('runs')", python=python)
                self.assertEqual((worker.output(), worker.wait()), ("runs\n", 0))
                self.assertEqual(worker.errors(), "torchup: no worker hook: ZeroDivisionError('division by zero')\n")
                worker = self.run_worker("-c", "import sys\nprint([each for each in sys.path if 'hook' in each])",
                                         python=python, before=lambda: os.close(2))
                self.assertEqual((worker.output(), worker.wait()), ("[]\n", 0))

    def test_folder_that_cannot_be_written(self):
        os.chmod(self.hook, 0o500)
        self.each("-c", "print('runs')", code=0)

    def test_syntax(self):
        lines = Path(self.hook, "sitecustomize.py").read_text().splitlines()
        self.assertLessEqual(len(lines), 40)


if __name__ == "__main__":
    unittest.main()
