"""--preload end to end: what a forked worker sees is what an executed one sees.

usage: tests/support/run_case.py preload_same_test.py CASE TORCHUP
"""

import ctypes
import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import unittest

from preload_job import Case, Path

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
FACTS = (Path(__file__).parent / "preload_facts.py").read_text()


class SameAsExecuted(Case, unittest.TestCase):
    """Each program runs executed and forked: same output, same exit code, same facts."""

    def both(self, *words, launcher=(), **how):
        executed = self.run_job(*launcher, *words, **how)
        forked = self.run_job("--preload=mark,json", *launcher, *words, **how)
        return executed, forked

    def plain(self, text):
        return re.sub(r"0x[0-9a-f]{6,}|pid:? ?\d+|\d\d:\d\d:\d\d\S*|localhost:\d+|/tmp/\S*error\.json|None_\w{8}", "~", text)

    def same(self, text, *arguments, name="program.py", launcher=(), **how):
        self.write(name, text)
        executed, forked = self.both(name, *arguments, launcher=launcher, **how)
        self.assertEqual(self.plain(executed.stdout), self.plain(forked.stdout))
        # What the launcher says at the end has times, and both streams' lines as they came.
        said = [self.plain(done.stderr).partition("torchup: failed")[0] for done in (executed, forked)]
        self.assertEqual(*said)
        self.assertEqual(executed.returncode, forked.returncode)
        return forked

    def compare_facts(self, *words, **how):
        executed, forked = self.both(*words, **how)
        self.assertEqual(executed.returncode, 0, executed.stderr)
        self.assertEqual(forked.returncode, 0, forked.stderr)
        executed, forked = json.loads(executed.stdout), json.loads(forked.stdout)
        self.assertEqual(executed["pid"], executed["mark"])
        self.assertNotEqual(forked["pid"], forked["mark"], "it was not forked")
        executed, forked = executed["facts"], forked["facts"]
        self.maxDiff = None
        different = {name: (executed[name], forked[name]) for name in executed if executed[name] != forked[name]}
        self.assertEqual(different, {})
        return forked

    def test_facts_of_a_script(self):
        self.write("facts.py", FACTS)
        self.compare_facts("facts.py", "one", "--two=3")
        self.compare_facts("./facts.py")
        self.compare_facts(str(self.folder / "facts.py"), "", "a b", "ü")

    def test_facts_without_the_worker_hook(self):
        """Which takes page and channel before the program sees them."""
        self.write("facts.py", FACTS)
        facts = self.compare_facts("facts.py", launcher=["--no-worker-hook"])
        self.assertEqual((facts["page"], facts["channel"][0]), (True, [1, 4]))

    def test_facts_of_a_script_behind_a_link(self):
        self.write("far/away/facts.py", FACTS)
        (self.folder / "near").mkdir()
        (self.folder / "near/link.py").symlink_to("../far/away/facts.py")
        facts = self.compare_facts("near/link.py")
        self.assertTrue(facts["path"][0].endswith("far/away"))

    def test_facts_of_a_module(self):
        self.write("package/__init__.py", "")
        self.write("package/__main__.py", FACTS)
        self.write("package/facts.py", FACTS)
        self.compare_facts("package.facts", "x", launcher=["--module"])
        self.compare_facts("package", launcher=["--module"])

    def test_facts_of_a_folder_and_an_archive(self):
        self.write("folder/__main__.py", FACTS)
        self.compare_facts("folder", "x")
        subprocess.run([sys.executable, "-m", "zipapp", "folder", "-o", "archive.pyz"], cwd=self.folder, check=True)
        self.compare_facts("archive.pyz", "x")

    def test_facts_under_other_settings(self):
        self.write("facts.py", FACTS)
        self.compare_facts("facts.py", env={"PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "latin-1:replace", "LC_ALL": "C",
                                            "PYTHONWARNINGS": "error::ResourceWarning"})
        self.compare_facts("facts.py", launcher=["--no-capture"])
        self.compare_facts("facts.py", launcher=["--virtual-local-rank"], env={"CUDA_VISIBLE_DEVICES": "3,4"})

    def test_facts_beside_a_variable_that_the_template_uses(self):
        self.write("facts.py", FACTS)
        self.compare_facts("facts.py", env={"TORCHUP_PRELOAD": "json"})

    def test_facts_where_the_ends_of_children_are_ignored(self):
        self.write("facts.py", FACTS)
        self.compare_facts("facts.py", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))

    def test_facts_with_bound_processors(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("takes two processors")
        self.write("facts.py", FACTS)
        if "No accelerator" in self.run_job("--numa-binding=node", "facts.py").stderr:
            self.skipTest("takes a GPU")
        self.compare_facts("facts.py", launcher=["--numa-binding=node"])

    def test_ends(self):
        self.same("raise SystemExit(7)\n")
        self.same("import sys; sys.exit('words')\n")
        self.same("import os; os._exit(5)\n")
        self.same("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
        self.same("import os; os.abort()\n")
        self.same("def f():\n    1 / 0\nf()\n")
        self.same("raise KeyboardInterrupt\n")
        self.same("import signal\nsignal.raise_signal(signal.SIGINT)\n")
        self.same("x = = 1\n")
        self.same("import json.nothing\n")
        self.same("raise ExceptionGroup('many', [ValueError(1), KeyError(2)])\n")

    def test_traceback_chains_and_hooks(self):
        self.same("""
            def deep(n):
                if n: deep(n - 1)
                raise ValueError('first')
            try:
                deep(3)
            except ValueError as error:
                raise KeyError('second') from error
            """)
        self.same("""
            import sys
            def hook(kind, error, trace):
                frames = []
                while trace:
                    frames.append(trace.tb_frame.f_code.co_name)
                    trace = trace.tb_next
                print('hook', kind, error, frames, error.__traceback__.tb_frame.f_code.co_name, flush=True)
                sys.__excepthook__(kind, error, error.__traceback__)
            sys.excepthook = hook
            import atexit
            atexit.register(lambda: print('last', sys.last_type, sys.last_traceback.tb_frame.f_code.co_name,
                                          sys.excepthook is hook, flush=True))
            def inner(): raise RuntimeError('x')
            inner()
            """)

    def test_order_at_exit(self):
        self.same("""
            import atexit, threading, time, sys
            atexit.register(lambda: print('first registered', '__file__' in globals(), flush=True))
            atexit.register(lambda: print('second registered', flush=True))
            written = threading.Event()
            threading.Thread(target=lambda: (written.wait(), time.sleep(0.1), print('thread', flush=True))).start()
            class Late:
                def __del__(self): print('deleted', __name__, flush=True)
            late = Late()
            sys.stdout.write('no line end')
            written.set()  # all further is Python's end, which waits for the thread, however long it takes
            """)

    def test_pickle_inspect_and_getsource(self):
        self.same("""
            import inspect, pickle, sys, traceback
            class Thing:
                def __init__(self): self.x = 3
            def work(a, b=1):
                return a + b
            print(pickle.loads(pickle.dumps(Thing())).x, Thing.__module__, work.__module__)
            print(inspect.getsource(work), inspect.getsource(Thing), inspect.getmodule(work))
            print(work.__code__.co_filename.rpartition('/')[2], __file__.rpartition('/')[2])
            traceback.print_exception(ValueError('x'))
            """)

    def test_multiprocessing(self):
        for method in ("spawn", "fork", "forkserver"):
            self.same(f"""
                import multiprocessing as mp, os
                class Job:
                    def __init__(self, n): self.n = n
                def work(job, queue):
                    queue.put((job.n * 2, __name__, os.environ['RANK']))
                if __name__ == '__main__':
                    context = mp.get_context({method!r})
                    queue = context.Queue()
                    child = context.Process(target=work, args=(Job(21), queue))
                    child.start()
                    print(queue.get(timeout=60))
                    child.join()
                    print(child.exitcode)
                    with context.Pool(2) as pool:
                        print(pool.map(abs, [-1, -2]))
                """)

    def test_streams_on_a_terminal(self):
        self.write("facts.py", FACTS)
        answers = []
        for words in ([], ["--preload=mark,json"]):
            ours, theirs = pty.openpty()
            job = self.start_job(*words, "facts.py", stdout=theirs, stderr=theirs)
            os.close(theirs)
            text = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:
                    break
                if not part:
                    break
                text += part
            self.assertEqual(job.wait(), 0, text)
            os.close(ours)
            answers.append(json.loads(text)["facts"])
        self.maxDiff = None
        self.assertEqual(answers[0], answers[1])

    def test_local_rank_among_the_arguments(self):
        self.write("program.py", "import sys, mark, os; print(sys.argv, mark.PID == os.getpid(), flush=True)\n")
        executed, forked = self.both("program.py", "${local_rank}", "of${local_rank}", launcher=["--nproc-per-node=2"])
        said = sorted(executed.stdout.replace("True", "False").splitlines())
        self.assertEqual(said, sorted(forked.stdout.splitlines()))
        self.assertIn("['program.py', '1', 'of1'] False", said)

    def test_a_program_of_its_own_for_each_local_rank(self):
        for rank in range(2):
            self.write(f"folder{rank}/program.py", "import sys; print(sys.argv, sys.path[0].rpartition('/')[2])\n")
        executed, forked = self.both("folder${local_rank}/program.py", launcher=["--nproc-per-node=2"])
        self.assertEqual(sorted(executed.stdout.splitlines()), sorted(forked.stdout.splitlines()))
        self.assertEqual(executed.returncode, forked.returncode)
        self.assertIn("is another program for each worker; workers are started without it", forked.stderr)

    def test_nothing_lies_beneath_the_program(self):
        self.same("import traceback; traceback.print_stack()\n")
        self.same("import faulthandler; faulthandler.dump_traceback()\n")
        self.same("import sys\ntry: sys._getframe(1)\nexcept ValueError as error: print(error)\n")
        self.same("import warnings; warnings.warn('from above', stacklevel=2)\n")
        self.same("def f(): f()\nf()\n")
        self.same("import inspect; print(len(inspect.stack()))\n", name="package/program.py")

    def test_what_python_says_of_broken_programs_and_hooks(self):
        self.same("x = 1\0\n")
        self.same("# coding: nosuch\n")
        self.same("import sys\ndef hook(*_): raise ValueError('in the hook')\nsys.excepthook = hook\n1 / 0\n")
        self.same("import sys\nsys.excepthook = None\n1 / 0\n")
        self.same("import sys\ndel sys.excepthook\n1 / 0\n")
        self.same("import sys\nsys.stderr.close()\n1 / 0\n")

    def test_standard_input(self):
        text = "import sys; print(sys.stdin.seekable(), sys.stdin.buffer.seekable(), repr(sys.stdin), sys.stdin.read())\n"
        self.assertIn("two lines", self.same(text, stdin=None, input="of\ntwo lines\n").stdout)
        said = []
        for words in ([], ["--preload=mark,json"]):
            with open(self.write("input", "in a file\n")) as file:
                said.append(self.run_job(*words, "program.py", stdin=file).stdout)
        self.assertIn("in a file", said[0])
        self.assertEqual(*said)

    def test_streams_that_a_module_has_taken_apart(self):
        self.write("apart.py", "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), write_through=True)\nsys.stdin.close()\n")
        self.write("program.py", "import apart, sys\nprint('written', sys.__stdin__.closed)\n")
        for words in ([], ["--preload=apart"]):
            done = self.run_job(*words, "program.py")
            self.assertEqual((done.stdout, done.returncode), ("written True\n", 0), done.stderr)
            self.assertNotIn("without it", done.stderr)

    def test_streams_whose_descriptors_a_module_has_closed(self):
        self.write("program.py", "import mark, os, sys\nprint('written', mark.PID != os.getpid(), sys.stdin.read())\nsys.exit('said')\n")
        for closed in ((0,), (1,), (2,), (4,), (0, 1, 2)):
            self.write("closes.py", f"import os\nfor descriptor in {closed}: os.close(descriptor)\n")
            done = self.run_job("--preload=mark,closes", "program.py", stdin=None, input="read")
            self.assertEqual((done.stdout, done.returncode), ("written True read\n", 1), f"{closed} {done.stderr}")
            self.assertIn("\nsaid\n", "\n" + done.stderr)
        self.write("closes.py", "import sys\nsys.stdout.close()\n")
        self.write("program.py", "import mark, os, sys\nprint(mark.PID != os.getpid(), sys.stdout.closed, file=sys.stderr)\n")
        self.assertIn("True True\n", self.run_job("--preload=mark,closes", "program.py").stderr)

    def test_a_working_directory_that_cannot_be_reached_by_its_path(self):
        self.write("away.py", "import os; os.chdir('/')\n")
        self.write("closed/job/here", "")
        program = self.write("program.py", "import mark, os; print(mark.PID != os.getpid(), os.path.exists('here'))\n")
        closed = self.folder / "closed"
        self.addCleanup(closed.chmod, 0o755)

        def enter(folder):
            os.chdir(folder)
            closed.chmod(0)
            for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):  # by which root reaches it
                ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)

        # A module that has gone elsewhere leaves no way back.
        for folder, modules, said in (("closed/job", "mark", "True True"), ("closed", "mark", "True False"),
                                      ("closed/job", "mark,away", "False True")):
            closed.chmod(0o755)
            done = self.run_job(f"--preload={modules}", str(program), preexec_fn=lambda: enter(folder))
            self.assertEqual((done.stdout, done.returncode), (said + "\n", 0), done.stderr)
            self.assertEqual("chdir" in done.stderr, "away" in modules)

    def test_customization_of_the_user(self):
        self.write("sitecustomize.py", """
            import os, sys
            assert 'mark' not in sys.modules and 'proc' not in sys.path[0]
            if os.environ.get('FAILS'): raise ValueError('customization')
            """)
        text = "import sys; print('sitecustomize' in sys.modules, [name for name in sys.path if 'proc' in name])\n"
        self.same(text, env={"FAILS": "1"})
        self.same("import sitecustomize; print(sitecustomize.__file__.rpartition('/')[2])\n")
        (self.folder / "sitecustomize.py").unlink()
        self.same(text)

    def test_what_differs_between_workers(self):
        self.write("program.py", """
            import multiprocessing, random, os, json
            print(json.dumps([random.random(), multiprocessing.current_process().authkey.hex()]))
            """)
        seen = set()
        for _ in range(2):
            done = self.run_job("--preload=random,multiprocessing", "--nproc-per-node=3", "program.py")
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in done.stdout.splitlines():
                seen.update(map(str, json.loads(line)))
        self.assertEqual(len(seen), 2 * 3 * 2)

    def test_one_string_hash_seed_for_the_workers_of_a_node(self):
        """Another one for each job; executed workers have each its own, and the user's holds for both kinds."""
        self.write("program.py", "import json, mark, os; print(json.dumps([hash('a word'), mark.PID != os.getpid()]), flush=True)\n")

        def hashes(*words, **how):
            done = self.run_job(*words, "--nproc-per-node=3", "program.py", **how)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertEqual([forked for _, forked in said], [bool(words)] * 3)
            return {number for number, _ in said}

        first, second, executed = hashes("--preload=mark"), hashes("--preload=mark"), hashes()
        self.assertEqual([len(first), len(second), len(executed)], [1, 1, 3])
        self.assertNotEqual(first, second)
        given = {"env": {"PYTHONHASHSEED": "7"}}
        self.assertEqual(hashes("--preload=mark", **given), hashes(**given))
        self.assertEqual(len(hashes("--preload=mark", **given)), 1)

    def test_what_an_import_has_made_is_one_thing_for_all_workers(self):
        """A file has one offset and a generator of the module's own one state, with which each worker begins; executed
        workers have each their own."""
        self.write("records", "one.two.six.")
        self.write("opens.py", "import mark, random\nfile = open('records', 'rb', buffering=0)\ngenerator = random.Random()\n")
        self.write("program.py", """
            import json, opens, os, random
            rank = int(os.environ['RANK'])
            for before in range(rank):  # one after the other
                while not os.path.exists(f'read.{before}'):
                    pass
            part = opens.file.read(4).decode()
            open(f'read.{rank}', 'w').close()
            print(json.dumps([rank, part, opens.generator.random(), opens.generator.random(), random.random(), random.Random().random()]),
                  flush=True)
            """)
        executed, forked = self.both("program.py", launcher=["--nproc-per-node=3"])
        for rank in range(3):
            (self.folder / f"read.{rank}").unlink()
        again = self.run_job("--preload=opens", "--nproc-per-node=3", "program.py")
        self.assertEqual([executed.returncode, forked.returncode, again.returncode], [0] * 3, executed.stderr + forked.stderr + again.stderr)

        def columns(done):
            return list(zip(*sorted(map(json.loads, done.stdout.splitlines()))))

        # `both` preloads none of what the program opens.
        for each in (executed, forked):
            _, parts, *numbers = columns(each)
            self.assertEqual(parts, ("one.",) * 3)
            self.assertEqual([len(set(column)) for column in numbers], [3] * 4)
        _, parts, *numbers = columns(again)
        self.assertEqual(parts, ("one.", "two.", "six."))
        self.assertEqual([len(set(column)) for column in numbers], [1, 1, 3, 3])

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is not installed")
    def test_generators_of_numpy(self):
        """Those that a program makes differ from worker to worker and from job to job; one that a module has made does not."""
        self.write("makes.py", "import mark, numpy\ngenerator = numpy.random.default_rng()\n")
        self.write("program.py", """
            import json, makes, mark, numpy, os
            numbers = [makes.generator.random(), numpy.random.default_rng().random(), numpy.random.random()]
            print(json.dumps([mark.PID != os.getpid(), *numbers]), flush=True)
            """)
        seen = {}
        for words in (("--preload=makes",), ("--preload=makes",), ()):
            done = self.run_job(*words, "--nproc-per-node=2", "program.py")
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in done.stdout.splitlines():
                forked, *numbers = json.loads(line)
                self.assertEqual(forked, bool(words))
                for place, number in enumerate(numbers):
                    seen.setdefault((bool(words), place), set()).add(number)
        self.assertEqual({place: len(numbers) for place, numbers in seen.items()},
                         {(True, 0): 2, (True, 1): 4, (True, 2): 4, (False, 0): 2, (False, 1): 2, (False, 2): 2})

    @unittest.skipUnless(importlib.util.find_spec("setproctitle"), "setproctitle is not installed")
    def test_setproctitle_has_no_effect_in_forked_workers(self):
        """And does no harm there; what ps shows is the command line of an executed worker."""
        self.write("program.py", """
            import json, mark, os, setproctitle
            before = open('/proc/self/cmdline').read()
            setproctitle.setproctitle('trainer')
            print(json.dumps([mark.PID != os.getpid(), before, open('/proc/self/cmdline').read().rstrip('\\0')]))
            """)
        words, where = ["program.py", "--epochs=10"], os.path.dirname(importlib.util.find_spec("setproctitle").origin)
        how = {"env": {"PYTHONPATH": f"{self.folder}:{os.path.dirname(where)}"}}
        executed, forked = (json.loads(done.stdout) for done in self.both(*words, **how))
        self.assertEqual(executed, [False, forked[1], "trainer"])
        self.assertEqual(forked, [True, forked[1], forked[1].rstrip("\0")])
