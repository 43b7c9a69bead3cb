"""--preload where it is refused, and where it cannot serve: the job runs without, and one line says why.

usage: tests/support/run_case.py preload_reasons_test.py CASE TORCHUP
"""

import os
import shutil
import sys
import unittest

from preload_job import Case, Path

CORPUS = Path(__file__).parents[1] / "fuzz/corpus/elf_note"


class Refused(Case, unittest.TestCase):
    def test_refusals(self):
        self.write("program.py", "")
        for words in (["--preload=", "program.py"], ["--preload=a b", "program.py"], ["--preload=torch,", "program.py"],
                      ["--preload=torch", "/bin/true"], ["--preload=torch", "--no-python", "/bin/true"],
                      ["--preload=program", "/bin/true"], ["--preload=program", "program.py"],
                      ["--preload=program", "-m", "program"]):
            done = self.run_job(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("--preload", done.stderr)
        self.assertEqual(self.run_job("program.py", env={"PET_PRELOAD": "a b"}).returncode, 2)

    def test_programs_that_are_native(self):
        """By their mark alone, whatever else is in the file: here nothing."""
        for name in sorted(CORPUS.iterdir()):
            program = shutil.copy(name, self.folder)
            os.chmod(program, 0o755)
            done = self.run_job("--preload=program", "--dry-run", program)
            self.assertEqual(done.returncode, 0 if name.name == "marked" else 2, f"{name} {done.stderr}")
        done = self.run_job("--preload=program", "./marked")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--preload: the program was ended by SIGSEGV before it came to worker_main; workers are started without it", done.stderr)


class CannotServe(Case, unittest.TestCase):
    """The job runs; one line says why it runs without."""

    def check(self, module_text, reason, module="bad", launcher=(), **how):
        self.write("bad.py", module_text)
        self.write("program.py", """
            import os
            print('ran', os.environ['RANK'], 'forked' if 'mark' in __import__('sys').modules else 'executed')
            """)
        done = self.run_job(f"--preload=mark,{module}", "--events=events.jsonl", "--nproc-per-node=2", *launcher, "program.py", **how)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()[-2:]), ["ran 0 executed", "ran 1 executed"])
        lines = [line for line in done.stderr.splitlines() if "workers are started without it" in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(f"--preload: {reason}; workers are started without it", lines[0])
        return done

    def test_import_fails(self):
        done = self.check("import json\nraise ValueError('this way')\n", "the import of bad has failed (ValueError: this way)")
        self.assertIn("[preload] ValueError: this way", done.stderr)
        self.assertIn("[preload] Traceback", done.stderr)
        self.assertNotIn("<torchup", done.stderr)
        self.assertEqual([(event["reason"], event["said"]) for event in self.events("preload_given_up")],
                         [("the process for the imports cannot be forked", "the import of bad has failed (ValueError: this way)")])

    def test_no_such_module(self):
        self.check("", "the import of nowhere has failed (ModuleNotFoundError: No module named 'nowhere')", "nowhere")

    def test_import_exits(self):
        self.check("raise SystemExit(3)\n", "the import of bad has failed (SystemExit: 3)")
        self.check("import os; os._exit(3)\n", "the process for the imports ended with exit code 3 while importing bad")

    def test_import_is_killed(self):
        self.check("import os; os.kill(os.getpid(), 11)\n",
                   "the process for the imports was ended by SIGSEGV while importing bad")

    def test_a_thread(self):
        self.check("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='Ticker', daemon=True).start()\n",
                   "bad has started a thread (Ticker), which no forked process would have")

    def test_a_thread_that_has_ended(self):
        self.write("program.py", "import sys; print('mark' in sys.modules)\n")
        self.write("good.py", "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()\n")
        done = self.run_job("--preload=mark,good", "program.py")
        self.assertEqual(done.stdout.splitlines()[-1], "True", done.stderr)

    def test_children_that_cannot_compute(self):
        self.write("numpy.py", """
            import os
            HERE = os.getpid()
            class ones:
                def __init__(self, shape): pass
                def __matmul__(self, other):
                    if os.getpid() != HERE: raise RuntimeError('not here')
            """)
        self.check("", "a process forked from it does not compute (it ended with 1)", "numpy")

    def test_children_that_stand_still(self):
        self.write("numpy.py", """
            import os, time
            class ones:
                def __init__(self, shape): pass
                def __matmul__(self, other): time.sleep(1000)
            """)
        self.check("", "a process forked from it does not compute (it stood still for 10 s)", "numpy")

    def test_gpu(self):
        self.write("torch/__init__.py", "")
        self.write("torch/cuda.py", "def is_initialized(): return True\n")
        self.check("import torch.cuda\n", "bad has opened the GPU, which no forked process could use")

    def test_devices_of_gpus(self):
        """By their names: no machine has them all."""
        for device in ("nvidia0", "nvhost-ctrl-gpu", "nvmap", "kfd", "dxg"):
            self.check(f"import os\nos.readlink = lambda path: '/dev/{device}'\n",
                       "bad has opened the GPU, which no forked process could use")

    def test_no_process_for_the_trial(self):
        self.check("import os\ndef fork(): raise BlockingIOError(11, 'too many')\nos.fork = fork\n",
                   "no process can be forked from it (too many)")

    def test_few_descriptors(self):
        """A worker has all of its own or is executed, and the template lives on."""
        self.write("program.py", """
            import os, sys
            os.fstat(int(os.environ['TORCHUP_WORKER_PAGE'].split(':')[0]))
            os.fstat(int(os.environ['TORCHUP_WORKER_CHANNEL'].split(':')[1]))
            print('forked' if 'mark' in sys.modules else 'executed')
            sys.exit('said')
            """)
        seen = []
        for free in range(2, 9):
            self.write("greedy.py", f"""
                import os, resource
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
                held = []
                try:
                    while True: held.append(os.open('/dev/null', os.O_RDONLY))
                except OSError:
                    for descriptor in held[-{free}:]: os.close(descriptor)
                """)
            done = self.run_job("--no-worker-hook", "--preload=mark,greedy", "program.py")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("\nsaid\n", "\n" + done.stderr, free)
            self.assertNotIn("[preload]", done.stderr, free)
            self.assertNotIn("the process with the imports", done.stderr, free)
            seen.append(done.stdout.strip())
        self.assertEqual(seen, sorted(seen), "first those that are executed")
        self.assertEqual([seen[0], seen[-1]], ["executed", "forked"])

    def test_no_python_there(self):
        broken = self.write("python3", "#!/nowhere/python\n")
        broken.chmod(0o755)
        self.write("program.py", "")
        done = self.run_job("--preload=mark", "program.py", env={"PYTHON_EXEC": str(broken)})
        self.assertEqual(done.returncode, 1)
        self.assertIn("--preload: no process for the imports: ", done.stderr)

    def test_a_python_that_does_not_look_for_the_template(self):
        """Nor does it run the program in its place."""
        wrapper = self.write("wrapper", f"#!/bin/sh\nexec {sys.executable} -I \"$@\"\n")
        wrapper.chmod(0o755)
        self.write("program.py", "import os; open('runs', 'a').write(os.environ.get('RANK', 'none') + ' ')\n")
        done = self.run_job("--preload=mark", "--nproc-per-node=2", "program.py", env={"PYTHON_EXEC": str(wrapper)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--preload: this Python imports nothing of ours at its start", done.stderr)
        self.assertEqual(sorted((self.folder / "runs").read_text().split()), ["0", "1"])

    def test_numa_binding_beside_openmp_places(self):
        self.write("program.py", "import sys; print('mark' in sys.modules)\n")
        done = self.run_job("--preload=mark", "--numa-binding=node", "program.py", env={"OMP_PLACES": "cores"})
        if "No accelerator" in done.stderr:
            self.skipTest("takes a GPU")
        self.assertEqual(done.stdout, "False\n", done.stderr)
        self.assertIn("OMP_PLACES", done.stderr)
