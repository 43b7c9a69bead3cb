"""What the hook tells by the page: stacks, crashes, exceptions, the end; and to whom it belongs.

usage: tests/support/run_case.py hook_test.py CASE
"""

import json
import resource
import struct
import time
import unittest

from hook_agent import Case, Worker, os, pythons, signal, sys, until
from worker_memory import PAGE, SHEET, TEXT_AT, TEXT_SIZE, Memory

NEW = [(version, python) for version, python in pythons() if version >= (3, 8)]


class Page(Case):
    def stuck(self, text, **how):
        """A worker that has said on its output that it stands there."""
        self.write("program.py", text)
        worker = self.start("-u", "program.py", **how)
        until(lambda: worker.output() or worker.has_ended(), "the program's word")
        self.assertIsNone(worker.code, worker.errors())
        return worker

    def test_claim(self):
        for version, python in NEW:
            with self.subTest(version):
                worker = self.run_worker("-c", "", python=python)
                self.assertEqual(worker.memory.claimed_by(), worker.pid)
                self.assertEqual(worker.memory.python >> 16, version[0] << 8 | version[1])
                self.assertEqual((worker.memory.signal, worker.memory.raised_at, worker.memory.helper), (61, 0, 0))
                self.assertGreater(worker.memory.ending_at, 0)

    def test_stack_of_a_main_thread(self):
        for version, python in NEW:
            with self.subTest(version):
                worker = self.stuck("""
                    import os, threading
                    runs = threading.Event()
                    def inner():
                        print("here")
                        os.read(os.pipe()[0], 1)
                    def other():
                        runs.set()
                        threading.Event().wait()
                    threading.Thread(target=other, daemon=True).start()
                    runs.wait()
                    inner()
                    """, python=python)
                for _ in range(2):
                    text = worker.stacks()
                    self.assertIn(" in inner\n", text)
                    self.assertIn(" in other\n", text)
                    self.assertRegex(text.splitlines()[-1], 'line [0-9]+ in <module>')
                self.assertIsNone(worker.code)
                self.assertEqual(worker.errors(), "")

    def test_stack_where_native_code_holds_the_lock(self):
        worker = self.stuck("""
            import ctypes, os
            def inner():
                print("here")
                ctypes.PyDLL(None).sleep(600)
                ctypes.PyDLL(None).sleep(600)
            inner()
            """)
        self.assertIn(" in inner\n", worker.stacks())

    def test_signal_that_is_free(self):
        """The next lower one where the program was started with another way to take it; never one of somebody's own."""
        def taken(numbers):
            return lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]

        worker = self.run_worker("-c", "", before=taken((61, 60)))
        self.assertEqual(worker.memory.signal, 59)
        worker = self.run_worker("-c", "", before=taken(range(41, 62)))
        self.assertEqual((worker.memory.signal, worker.memory.claimed_by()), (0, worker.pid))

    def test_crash(self):
        for version, python in NEW:
            with self.subTest(version):
                self.write("program.py", "import os, signal\ndef inner():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
                                         "inner()\n")
                worker = self.run_worker("program.py", python=python)
                self.assertEqual((worker.wait(), worker.errors()), (-signal.SIGSEGV, ""))
                self.assertIn("Segmentation fault", worker.memory.sheet())
                self.assertIn(" in inner\n", worker.memory.sheet())
                self.assertEqual(worker.memory.claimed_by(), worker.pid)  # its head is as it was

    def test_crash_of_a_program_with_its_own_faulthandler(self):
        for words in (["-X", "faulthandler"], ["-X", "dev"], []):
            worker = self.run_worker(*words, "-c", "import faulthandler, os, signal\nfaulthandler.enable()\n"
                                     "os.kill(os.getpid(), signal.SIGSEGV)")
            self.assertIn("Segmentation fault", worker.errors())
            self.assertEqual(worker.memory.sheet(), "")
        worker = self.run_worker("-c", "import faulthandler, os, signal\nfaulthandler.enable()\nif os.fork() == 0:\n"
                                 "    os.kill(os.getpid(), signal.SIGSEGV)\nos.wait()")
        self.assertIn("Segmentation fault", worker.errors())  # a child's is still its own

    def test_exception(self):
        for version, python in NEW:
            with self.subTest(version):
                file = self.folder / f"error_{version[1]}.json"
                self.write("program.py", "def f(text):\n    raise ValueError(text)\n"
                                         "f('a \\\\ \"b\" \\n \\u20ac \\U0001f600 \\udc80')\n")
                before = time.monotonic_ns()
                worker = self.run_worker("program.py", python=python, env={"TORCHELASTIC_ERROR_FILE": str(file)})
                self.assertEqual(worker.wait(), 1)
                self.assertTrue(before < worker.memory.raised_at < worker.memory.ending_at < time.monotonic_ns())
                found = json.loads(file.read_text())["message"]
                self.assertEqual(found["message"], 'ValueError: a \\ "b" \n \u20ac \U0001f600 \udc80')
                self.assertIn("line 2, in f\n", found["extraInfo"]["py_callstack"])
                self.assertTrue(found["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):\n"))
                self.assertLess(abs(int(found["extraInfo"]["timestamp"]) - time.time()), 120)
                self.assertNotIn("torchup", file.read_text())
                self.assertEqual([path.name for path in self.folder.glob("error_*.json.*")], [])

    def test_last_of_several_exceptions(self):
        """A program that prints one and goes on has not ended by it."""
        file = self.folder / "error.json"
        worker = self.run_worker("-c", "import sys, time\nsys.excepthook(ValueError, ValueError('first'), None)\n"
                                 "print(time.monotonic_ns())\nraise KeyError('last')",
                                 env={"TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertEqual(json.loads(file.read_text())["message"]["message"], "KeyError: 'last'")
        self.assertGreater(worker.memory.raised_at, int(worker.output()))

    def test_exception_that_the_programs_hook_hands_on_is_told_once(self):
        file = self.folder / "error.json"
        worker = self.run_worker("-c", "import atexit, sys, time\nsys.excepthook = lambda *it: sys.__excepthook__(*it)\n"
                                 "atexit.register(lambda: print(time.monotonic_ns()))\n1 / 0",
                                 env={"TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertLess(worker.memory.raised_at, int(worker.output()))

    def test_error_file_that_is_there(self):
        file = self.write("error.json", "by somebody else")
        worker = self.run_worker("-c", "1 / 0", env={"TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertEqual(file.read_text(), "by somebody else")
        self.assertGreater(worker.memory.raised_at, 0)

    def test_error_file_that_cannot_be_written(self):
        for path in ("/not/there/file", "", str(self.folder)):
            worker = self.run_worker("-c", "1 / 0", env={"TORCHELASTIC_ERROR_FILE": path})
            self.assertEqual(worker.errors().count("\n"), 3 if sys.version_info < (3, 13) else 4)
            self.assertGreater(worker.memory.raised_at, 0)

    def test_error_file_is_bounded(self):
        """The agent reads 1 MiB."""
        file = self.folder / "error.json"
        self.run_worker("-c", "raise ValueError('\U0001f600' * (1 << 22))", env={"TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertLess(file.stat().st_size, 1 << 20)
        self.assertTrue(json.loads(file.read_text())["message"]["message"].startswith("ValueError: \U0001f600"))

    def test_modules_of_the_program_are_not_taken_for_pythons(self):
        """A folder with a traceback.py or contextlib.py: only the program may import those."""
        for name in ("traceback", "linecache", "contextlib", "json", "importlib", "types", "collections"):
            self.write(f"{name}.py", f"import os\nos.write(1, b'{name} was imported')\n")
        file = self.folder / "error.json"
        self.write("program.py", "1 / 0\n")
        worker = self.run_worker("program.py", env={"TORCHELASTIC_ERROR_FILE": str(file)})
        if sys.version_info < (3, 13):
            self.assertEqual(worker.output(), "")
        self.assertIn("ZeroDivisionError", json.loads(file.read_text())["message"]["message"])

    def test_what_is_no_exception_of_the_main_thread(self):
        file = self.folder / "error.json"
        for text in ("raise SystemExit(3)", "raise KeyboardInterrupt", "import sys\ntry:\n    1 / 0\nexcept Exception:\n"
                     "    sys.excepthook(*sys.exc_info())", "import code\ncode.InteractiveInterpreter().runsource('1 / 0')",
                     "import sys, threading\ndef f():\n    try:\n        1 / 0\n    except Exception:\n"
                     "        sys.excepthook(*sys.exc_info())\n"
                     "thread = threading.Thread(target=f); thread.start(); thread.join()"):
            with self.subTest(text):
                worker = self.run_worker("-c", text, env={"TORCHELASTIC_ERROR_FILE": str(file)})
                self.assertEqual((worker.memory.raised_at, file.exists()), (0, False))
                self.assertGreater(worker.memory.ending_at, 0)

    def test_exception_that_is_still_on_its_way_out(self):
        """Marked before the program's own hook is asked, and before non-daemon threads are waited for."""
        worker = self.stuck("""
            import sys, threading
            stays = threading.Event()
            threading.Thread(target=stays.wait).start()
            print("here")
            1 / 0
            """)
        until(lambda: worker.memory.raised_at, "the mark")
        self.assertEqual(worker.memory.ending_at, 0)

    def test_program_with_its_own_hook_for_exceptions(self):
        file = self.folder / "error.json"
        worker = self.run_worker("-c", "import sys\nsys.excepthook = lambda *_: None\n1 / 0",
                                 env={"TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertGreater(worker.memory.raised_at, 0)
        self.assertEqual(json.loads(file.read_text())["message"]["message"], "ZeroDivisionError: division by zero")

    def test_exception_of_a_thread(self):
        """A note, no failure."""
        file = self.folder / "error.json"
        for version, python in NEW:
            with self.subTest(version):
                worker = self.run_worker("-c", "import threading\ndef f():\n    raise ValueError('\u20ac' * 300)\n"
                                         "thread = threading.Thread(target=f); thread.start(); thread.join()",
                                         env={"TORCHELASTIC_ERROR_FILE": str(file)}, python=python)
                self.assertEqual((worker.wait(), worker.memory.raised_at, file.exists()), (0, 0, False))
                self.assertGreater(worker.memory.thread_raised_at, 0)
                text = os.pread(worker.memory.fd, TEXT_SIZE + 1, TEXT_AT)
                self.assertTrue(text.decode("utf-8", "ignore").startswith("ValueError: \u20ac\u20ac"))
                self.assertEqual(text[255:], b"\0\0")
                ended = self.run_worker("-c", "import sys, threading\nthreading.Thread(target=sys.exit).start()",
                                        python=python)
                self.assertEqual((ended.memory.thread_raised_at, ended.memory.text()), (0, ""))

    def test_shell_in_front(self):
        """The process that claims is of the worker's session."""
        worker = Worker(["sh", "-c", f"{sys.executable} -c 'import os; print(os.getpid())'; :"], self.folder,
                        self.hook, {})
        self.addCleanup(worker.close)
        worker.wait()
        self.assertEqual(worker.memory.claimed_by(), int(worker.output()))
        self.assertNotEqual(worker.memory.claimed_by(), worker.pid)

    def test_one_process_after_the_other(self):
        """What the first has left is not the second's; the agent's word is untouched."""
        text = f"{sys.executable} -c '1 / 0'; {sys.executable} -c 'import os; print(os.getpid())'; :"
        memory = Memory()
        os.pwrite(memory.fd, struct.pack("<Q", 1), 2048)
        worker = Worker(["sh", "-c", text], self.folder, self.hook, {}, memory=memory)
        self.addCleanup(worker.close)
        worker.wait()
        self.assertEqual((memory.claimed_by(), memory.raised_at), (int(worker.output()), 0))
        self.assertEqual(os.pread(memory.fd, 8, 2048), struct.pack("<Q", 1))

    def test_two_processes_at_a_time(self):
        """The first has it as long as it lives."""
        self.write("first.py", "import os\nopen('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'first')\n"
                               "while not os.path.exists('done'): pass\n")
        text = (f"{sys.executable} first.py & while ! [ -e first ]; do :; done; "
                f"{sys.executable} -c '1 / 0'; touch done; wait")
        worker = Worker(["sh", "-c", text], self.folder, self.hook, {})
        self.addCleanup(worker.close)
        worker.wait()
        self.assertEqual(worker.memory.claimed_by(), int((self.folder / "first").read_text()))
        self.assertEqual(worker.memory.raised_at, 0)

    def test_process_of_another_session(self):
        worker = Worker(["sh", "-c", f"setsid -w {sys.executable} -c '1 / 0'; :"], self.folder, self.hook, {})
        self.addCleanup(worker.close)
        worker.wait()
        self.assertEqual((worker.memory.claimed_by(), worker.memory.raised_at), (0, 0))

    def test_few_descriptors(self):
        worker = self.run_worker("-c", "1 / 0", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        self.assertEqual(worker.memory.claimed_by(), worker.pid)
        self.assertGreater(worker.memory.raised_at, 0)

    def test_descriptors_that_the_program_has_closed(self):
        """Stacks, asked for or of a crash, do not go into its own files, which have taken their numbers."""
        worker = self.stuck("""
            import os, signal, time
            os.closerange(3, 1 << 16)
            files = [open(f"file_{at}", "w") for at in range(40)]
            signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
            print("here")
            while True: time.sleep(0.01)  # a handler is called between two steps
            """)
        os.kill(worker.pid, worker.memory.signal)
        os.kill(worker.pid, signal.SIGUSR1)
        self.assertEqual(worker.wait(), -signal.SIGSEGV)
        self.assertEqual((worker.memory.sheet(), worker.errors()), ("", ""))
        self.assertEqual({path.stat().st_size for path in self.folder.glob("file_*")}, {0})

    def test_sheet_that_is_full(self):
        """Where nothing more fits nothing is written, and the program goes on."""
        worker = self.stuck("print('here')\nimport time\ntime.sleep(600)\n")
        os.lseek(worker.memory.fd, PAGE + 2 * SHEET - 10, os.SEEK_SET)
        os.kill(worker.pid, worker.memory.signal)
        os.kill(worker.pid, worker.memory.signal)
        # A write that is under way sets the offset when it ends, whoever has set it meanwhile.
        until(lambda: os.lseek(worker.memory.fd, 0, os.SEEK_CUR) == PAGE + 2 * SHEET, "the end of the sheet")
        self.assertFalse(worker.has_ended())
        self.assertIn("<module>", worker.stacks())


if __name__ == "__main__":
    unittest.main()
