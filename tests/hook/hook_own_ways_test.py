"""Programs that have their own way with what the hook has: its signal, its descriptors, its page.

usage: tests/support/run_case.py hook_own_ways_test.py CASE
"""

import json
import resource
import unittest

from hook_agent import Case, Worker, os, pythons, sys, until

NEW = [(version, python) for version, python in pythons() if version >= (3, 8)]
# In front of programs: torch as far as the hook looks at it, so that there is a helper thread.
HELPER = """
import sys, time, types
sys.modules["torch.distributed.distributed_c10d"] = types.SimpleNamespace(
    _world=types.SimpleNamespace(pg_map={}, pg_names={}, pg_group_ranks={}))
worker = sys.modules["torchup_worker"]
worker.load("torchup_loaded").start_groups()
while not worker.page.numbers[33]: time.sleep(0.001)
"""


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


class OwnWays(Case):
    def same(self, text, **how):
        """The workers, one of every Python, of which all that they show is as without the hook."""
        workers = []
        for version, python in NEW:
            with self.subTest(version, text=text):
                hooked = self.run_worker("-c", text, python=python, **how)
                alone = self.run_worker("-c", text, python=python, hook=False, **how)
                self.assertEqual((hooked.output(), hooked.errors(), hooked.wait()),
                                 (alone.output(), alone.errors(), alone.wait()))
                workers.append(hooked)
        return workers

    def test_handler_for_our_signal(self):
        """The agent is told before it is installed, and there is nobody to look after it."""
        for text in ("signal.signal(61, take)", "_signal.signal(61, take)", "signal.signal(signalnum=61, handler=take)",
                     "from _signal import signal as install; install(61, take)",
                     "from signal import signal as install; install(61, take)",
                     "for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1): signal.signal(number, take)"):
            for worker in self.same(f"import _signal, signal\ndef take(*_): pass\n{text}"):
                self.assertEqual(worker.memory.signal, 0)
                self.assertEqual(worker.memory.claimed_by(), worker.pid)

    def test_handlers_for_other_signals(self):
        for worker in self.same("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
                                "signal.signal(60, signal.SIG_IGN)\n"
                                "print(signal.getsignal(61), signal.signal(60, 0))"):
            self.assertEqual(worker.memory.signal, 61)

    def test_faults_of_handlers(self):
        """No frame of ours is in their tracebacks."""
        for text in ("signal.signal(61, 5)", "signal.signal(61)", "signal.signal(99, signal.SIG_DFL)",
                     "_signal.signal(61, 5)", "import threading\nthread = threading.Thread(target=signal.signal, args=(61, signal.SIG_DFL))\n"
                     "thread.name = 'x'; thread.start(); thread.join()",
                     "class Bad:\n    def __eq__(self, other): raise ValueError\nsignal.signal(Bad(), signal.SIG_DFL)"):
            self.same(f"import _signal, signal\n{text}")

    def test_faulthandler_of_the_program(self):
        """It is asked whether it is enabled as if there were no hook."""
        for text in ("print(is_enabled(), enable(), is_enabled(), disable(), is_enabled(), disable())",
                     "print(disable(), is_enabled(), enable(), is_enabled())",
                     "dump_traceback_later(1000); cancel_dump_traceback_later(); print(is_enabled(), disable())",
                     "if os.fork() == 0: print(is_enabled(), disable(), enable(), is_enabled(), disable()); sys.exit()\n"
                     "os.wait(); print(is_enabled())",
                     "print(is_enabled.__name__, disable.__qualname__)"):
            for worker in self.same(f"from faulthandler import *\nimport os, sys\n{text}"):
                self.assertEqual(worker.memory.sheet(), "")

    def test_module_of_signals_stays_one(self):
        self.same("import _signal, inspect, signal, sys\nfrom unittest import mock\n"
                  "print(_signal, inspect.ismodule(_signal), sorted(vars(_signal)), signal.signal.__wrapped__)\n"
                  "with mock.patch('_signal.signal') as faked: signal.signal(61, signal.SIG_IGN)\n"
                  "print(faked.call_count, _signal.signal, signal.getsignal(61))")

    def test_interpreters_of_the_program(self):
        """Another one in the same process sees nothing either, and its exceptions are not the worker's."""
        self.write("inner.py", """
            import os, sys
            facts = [sys.path, sorted(sys.path_importer_cache), sorted(os.environ.items()), "sitecustomize" in sys.modules,
                     sys.excepthook is sys.__excepthook__, "torchup_worker" in sys.modules, len(sys.meta_path)]
            for fact in facts: os.write(1, repr(fact).encode() + b"\\n")
            import threading, signal
            raise ValueError("there")
            """)
        for worker in self.same("""if True:
            try:
                import _xxsubinterpreters as interpreters
            except ImportError:
                import _interpreters as interpreters
            other = interpreters.create()
            try:
                told = interpreters.run_string(other, open("inner.py").read())
                print(getattr(told, "msg", told), flush=True)
            except Exception as error:
                print(error, flush=True)
            interpreters.destroy(other)"""):
            self.assertIn("there", worker.output())
            self.assertEqual((worker.memory.raised_at, worker.memory.signal), (0, 61))

    def test_helper_gives_the_signal_back(self):
        """To look at the function is not to call it."""
        worker = self.run_worker("-c", HELPER + "import _signal; _signal.signal\nprint(worker.page.numbers[32])\n"
                                 "while not worker.page.numbers[32]: time.sleep(0.01)")
        self.assertEqual((worker.output(), worker.wait(), worker.errors()), ("0\n", 0, ""))
        self.assertEqual(worker.memory.signal, 61)

    def test_own_files_in_the_place_of_our_descriptors(self):
        """They are neither read nor closed, by the helper or in children: so few descriptors are free that they get
        those very numbers."""
        close = """
import os, socket, time
os.closerange(3, 64)
ends = [each for _ in range(15) for each in socket.socketpair()]
for end in ends: end.send(b"mine")
"""
        text = """
time.sleep(1.5)
for end in ends: assert end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == bytes(16), end
for end in ends: assert end.recv(9) == b"mine", end
if os.fork() == 0:
    for end in ends: os.fstat(end.fileno())
    print("child", flush=True)
    os._exit(0)
os.wait()
print("parent")
"""
        for program in (HELPER + close + text, close + HELPER + text, close + text):
            worker = self.run_worker("-c", program, before=few_descriptors)
            self.assertEqual((worker.output(), worker.errors(), worker.wait()), ("child\nparent\n", "", 0))

    def test_no_thread_is_to_be_had(self):
        """The program goes on, also where it has closed what the line goes to."""
        text = """
import os, sys
def refuse(*_): raise RuntimeError("can't start new thread")
sys.modules["torchup_worker"].start_new_thread = refuse
print(sys.modules["torchup_worker"].load("torchup_loaded").start_groups())
"""
        worker = self.run_worker("-c", text)
        self.assertEqual((worker.output(), worker.wait()), ("None\n", 0))
        self.assertEqual(worker.errors(), "torchup: the worker hook cannot see groups: "
                                          "RuntimeError(\"can't start new thread\")\n")
        worker = self.run_worker("-c", "import os; os.close(2)" + text)
        self.assertEqual((worker.output(), worker.wait()), ("None\n", 0))

    def test_threads_that_are_none(self):
        """What gevent and eventlet put into the standard library's modules in place of threads, sleeps and locks is for
        the program alone."""
        text = """
import _thread, json, os, socket, time  # now: the import system takes its locks from _thread
def refuse(*_, **__): raise SystemError("the hook has called what is the program's")
sleep = time.sleep
for module, names in ((_thread, "start_new_thread allocate_lock get_ident get_native_id"), (os, "read"),
                      (time, "sleep monotonic monotonic_ns")):
    for name in names.split(): setattr(module, name, refuse)
""" + HELPER.replace("time.sleep(", "sleep(") + """
class Group:
    def _get_sequence_number_for_group(self): return 7
group = Group()
sys.modules["torch.distributed.distributed_c10d"]._world.pg_map[group] = ("gloo",)
while not os.path.exists("asked"): sleep(0.001)
"""
        worker = self.start("-c", text)
        until(lambda: worker.memory.collectives == 7 or worker.has_ended(), "the group's count")
        self.assertEqual(worker.errors(), "")
        self.assertEqual(json.loads(worker.look(3))["entries"], [])
        (self.folder / "asked").touch()
        self.assertEqual((worker.wait(), worker.errors()), (0, ""))

    def test_interrupt_while_we_are_at_it(self):
        """It is the program's."""
        text = """
import signal, sys
def interrupted(*_):
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000): pass
sys.modules["torchup_worker"].load("torchup_seldom").signal_wanted = interrupted
try:
    signal.signal(61, signal.SIG_IGN)
except KeyboardInterrupt:
    print("heard")
sys.modules["torchup_worker"].load("torchup_error").left = interrupted
1 / 0
"""
        for version, python in NEW:
            with self.subTest(version):
                worker = self.run_worker("-c", text, python=python)
                self.assertEqual(worker.output(), "heard\n")
                self.assertIn("ZeroDivisionError: division by zero\n", worker.errors())

    def test_tools_that_go_by_the_file(self):
        """Coverage and debuggers pass over code whose file is none; ours would lie there and be gone later."""
        text = """
import os, sys
def trace(frame, *_):
    if any(word in frame.f_code.co_filename for word in ("torchup", "hook")):
        os.write(1, (frame.f_code.co_filename + "\\n").encode())
sys.settrace(trace)
import threading
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
if os.fork() == 0:
    os._exit(0)
os.wait()
1 / 0
"""
        for version, python in NEW:
            with self.subTest(version):
                worker = self.run_worker("-c", text, python=python)
                seen = set(worker.output().split())
                self.assertEqual({name for name in seen if not name.startswith("<")}, set())
                self.assertLessEqual({f"<torchup>/torchup_{part}.py" for part in ("worker", "loaded", "error")}, seen)

    def test_fork_where_no_descriptor_is_left(self):
        """The child has nothing of ours all the same."""
        text = """
import os, sys
try:
    while True: os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
if os.fork() == 0:
    paths = [f"/proc/self/fd/{fd}" for fd in range(3, 64)]
    links = [os.readlink(path) for path in paths if os.path.lexists(path)]
    print([link for link in links if link != "/dev/null"], flush=True)
    os._exit(0)
os.wait()
"""
        for version, python in NEW:
            with self.subTest(version):
                worker = self.run_worker("-c", text, python=python, before=few_descriptors)
                self.assertEqual((worker.output(), worker.errors()), ("[]\n", ""))
                self.assertEqual(worker.memory.claimed_by(), worker.pid)

    def test_stacks_of_the_one_before(self):
        """A crash that a shell has outlived is not the next program's."""
        text = f"{sys.executable} -c 'import os; os.abort()'; {sys.executable} -c ''; :"
        worker = Worker(["sh", "-c", text], self.folder, self.hook, {})
        self.addCleanup(worker.close)
        worker.wait()
        self.assertNotEqual(worker.memory.claimed_by(), 0)
        self.assertEqual((worker.memory.sheet(), os.lseek(worker.memory.fd, 0, os.SEEK_CUR)), ("", 4096))

    def test_one_that_has_ended_and_is_not_waited_for(self):
        """It has the page no longer."""
        # Its parent has no hook itself, and hands down all that it has.
        text = """
import os, subprocess, sys
first = subprocess.Popen([sys.executable, "-c", "import os; os._exit(0)"], close_fds=False)
os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], close_fds=False)
"""
        worker = Worker([sys.executable, "-I", "-c", text], self.folder, self.hook, {})
        self.addCleanup(worker.close)
        self.assertEqual((worker.wait(), worker.errors()), (0, ""))
        self.assertEqual(worker.memory.claimed_by(), int(worker.output()))


if __name__ == "__main__":
    unittest.main()
