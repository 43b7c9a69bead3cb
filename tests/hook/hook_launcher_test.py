"""The hook in the workers of a real launcher: what becomes of what it tells, and that a program sees nothing of it.

usage: tests/support/run_case.py hook_launcher_test.py CASE TORCHUP
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from waiting import children, until  # noqa: E402

TORCHUP = os.path.abspath(sys.argv[1])
# `python3` is the Python of this test; one that is a shell script in front of it (pyenv's) sets variables of its own.
os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.executable)) + ":" + os.environ["PATH"]
MEMORY = pathlib.Path("/dev/shm")
LIMIT_S = 100
NO_ROOM = ["sh", "-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]  # for files of more than 512 bytes


def hook_of(inner):
    """The hook's folder of the launcher whose inner process that is: other jobs have their own beside it."""
    made, = (path for path in MEMORY.glob("torchelastic_*/hook") if path.parent.name.split("_")[2] == str(inner))
    return made


class Jobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.logs = self.folder / "logs"
        if not os.access(MEMORY, os.W_OK):
            self.skipTest("/dev/shm is no memory here")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def launch(self, *words, env=None, **how):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        environment = {name: value for name, value in environment.items() if value is not None}
        return subprocess.Popen([TORCHUP, f"--log-dir={self.logs}", *words], cwd=self.folder, env=environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)

    def run_job(self, *words, **how):
        with self.launch(*words, **how) as job:
            out, err = job.communicate(timeout=LIMIT_S)
        return job.returncode, out, err

    def run_program(self, text, *options, **how):
        self.write("program.py", text)
        return self.run_job(*options, "program.py", **how)

    def incident(self):
        return json.loads(next(self.logs.glob("*/attempt_0/incident.json")).read_text())


class Failures(Jobs):
    def test_exception_without_record(self):
        code, _, err = self.run_program("""
            def f():
                raise ValueError("loss is nan")
            f()
            """)
        self.assertEqual(code, 1)
        file = next(self.logs.glob("*/attempt_0/0/error.json"))
        self.assertEqual(json.loads(file.read_text())["message"]["message"], "ValueError: loss is nan")
        self.assertIn('File "program.py", line 3, in f', self.incident()["evidence"]["traceback"].replace(f"{self.folder}/", ""))
        self.assertRegex(err, r"error_file: .*/attempt_0/0/error\.json\n *traceback : Traceback \(most recent call last\):")
        self.assertNotIn("no error file defined for parent", err)  # the program has none of its own

    def test_exception_is_handed_over(self):
        """To whoever has started us, as a program's own record would be."""
        above = self.folder / "above.json"
        self.run_program("raise ValueError('bad')", env={"TORCHELASTIC_ERROR_FILE": str(above)})
        told = json.loads(above.read_text())["message"]
        self.assertEqual((told["message"], told["errorCode"]), ("ValueError: bad", 1))

    def test_crash(self):
        code, _, err = self.run_program("""
            import os, signal
            def inner():
                os.kill(os.getpid(), signal.SIGSEGV)
            inner()
            """)
        self.assertEqual(code, 1)
        stack = self.incident()["evidence"]["python_stack"]
        self.assertEqual(stack[0], "Segmentation fault")
        self.assertRegex(stack[1], r"program\.py:4 inner$")
        self.assertRegex(stack[2], r"program\.py:5 <module>$")
        self.assertIn("Python stack, innermost first:\n    | Segmentation fault\n", err)

    def test_death_without_crash(self):
        self.run_program("import os\nos.kill(os.getpid(), 9)")
        self.assertEqual(self.incident()["evidence"]["python_stack"], [])

    def test_hook_that_is_not_wanted(self):
        for how in ({"options": ["--no-worker-hook"]}, {"env": {"PET_NO_WORKER_HOOK": "1"}}, {}):
            code, out, _ = self.run_program("""
                import glob, os, sys
                print("torchup_worker" in sys.modules, len(glob.glob(f"/dev/shm/torchelastic_*_{os.getppid()}_*/hook")))
                raise ValueError
                """, *how.get("options", []), env=how.get("env"))
            self.assertEqual((code, out), (1, "False 0\n" if how else "True 1\n"))
            self.assertEqual(len(list(self.logs.glob("*/attempt_0/0/error.json"))), 0 if how else 1)

    def test_cause_that_lives_on(self):
        """Its exception has left the program, but a thread keeps its process; the other one dies of it first."""
        _, _, err = self.run_program("""
            import os, threading, time
            if os.environ["RANK"] == "1":
                threading.Thread(target=time.sleep, args=(1000,)).start()
                raise ValueError("loss is nan")
            path = os.environ["TORCHELASTIC_ERROR_FILE"].replace("/0/error", "/1/error")
            while not os.path.exists(path):
                time.sleep(0.01)
            raise RuntimeError("Connection closed by peer [127.0.0.1]:5231")
            """, "--nproc-per-node=2")
        incident = self.incident()
        cause = incident["failures"][incident["root_cause"]]
        self.assertEqual((cause["rank"], cause["consequence"]), (1, False))
        self.assertIn(": exit code 1: ValueError: loss is nan", incident["summary"])
        report = err[err.index("Root Cause"):]
        self.assertIn("rank      : 1 (local_rank: 1)", report[:report.index("error_file")])

    def test_cause_that_raised_first(self):
        """Not who ended first: what counts is when the exception left the program."""
        self.run_program("""
            import os, threading, time
            if os.environ["RANK"] == "1":
                threading.Thread(target=time.sleep, args=(1000,)).start()
                raise ValueError("first")
            path = os.environ["TORCHELASTIC_ERROR_FILE"].replace("/0/error", "/1/error")
            while not os.path.exists(path):
                time.sleep(0.01)
            raise KeyError("second")
            """, "--nproc-per-node=2")
        incident = self.incident()
        self.assertEqual(incident["failures"][incident["root_cause"]]["rank"], 1, incident["failures"])


class Unseen(Jobs):
    LOOK = """
        import json, os, subprocess, sys
        fds = sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in range(3, 1000) if os.path.exists(f"/proc/self/fd/{fd}"))
        child = subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()
        print(json.dumps({"path": sys.path, "environ": dict(os.environ), "child": child, "fds": fds,
                          "cached": sorted(sys.path_importer_cache), "finders": [str(each) for each in sys.meta_path[-3:]],
                          "customized": "sitecustomize" in sys.modules}))
        """

    def seen(self, *options, **how):
        self.write("program.py", self.LOOK)
        code, out, err = self.run_job(*options, "program.py", **how)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def variables(self, seen):
        own = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "_", "TORCHUP_WORKER_PAGE",
               "TORCHUP_WORKER_CHANNEL")
        self.assertEqual(sorted(line for line in seen["child"] if not line.startswith("_=")),
                         sorted(f"{name}={value}" for name, value in seen["environ"].items() if name != "_"))
        return {name: value for name, value in seen["environ"].items() if name not in own}

    def test_as_without(self):
        self.write("sitecustomize.py", "")
        for own in (None, str(self.folder), f":{self.folder}:"):
            env = {"PYTHONPATH": own}
            hooked, plain = self.seen(env=env), self.seen("--no-worker-hook", env=env)
            for name in ("path", "cached", "finders", "customized"):
                self.assertEqual(hooked[name], plain[name], (own, name))
            self.assertEqual(self.variables(hooked), self.variables(plain), own)
            ours = [name for name in hooked["environ"] if name.startswith("TORCHUP_") and name not in os.environ]
            self.assertEqual(ours, [])
            # Before 3.13 Python keeps a descriptor of a mapping's file for itself.
            kept = ["/memfd"] if sys.version_info < (3, 13) else []
            self.assertEqual([name for name in hooked["fds"] if "memfd" in name or "socket" in name], kept)

    def test_empty_path_becomes_none(self):
        self.assertNotIn("PYTHONPATH", self.seen(env={"PYTHONPATH": ""})["environ"])

    def test_template(self):
        """What a forked worker sees is what an executed one does."""
        self.write("sitecustomize.py", "")
        env = {"PYTHONPATH": str(self.folder)}
        forked, executed = self.seen("--preload=json", env=env), self.seen(env=env)
        self.assertEqual(forked["path"], executed["path"])
        self.assertEqual(self.variables(forked), self.variables(executed))
        self.assertEqual(forked["customized"], executed["customized"])

    def test_isolated(self):
        """No hook, and no word of it."""
        self.write("program.py", "raise ValueError")
        code, _, err = self.run_job("--no-python", sys.executable, "-I", "program.py")
        self.assertEqual(code, 1)
        self.assertEqual(list(self.logs.glob("*/attempt_0/0/error.json")), [])
        self.assertNotIn("worker hook", err)

    def test_own_sitecustomize_that_raises(self):
        self.write("sitecustomize.py", "raise ValueError('mine')")
        told = []
        for options in ((), ("--no-worker-hook",)):
            code, out, err = self.run_program("print('here')", *options, env={"PYTHONPATH": str(self.folder)})
            self.assertEqual((code, out), (0, "here\n"))
            told.append(err)
        self.assertIn("ValueError: mine", told[1])
        self.assertEqual(*told)

    def test_below_a_shell(self):
        self.write("program.py", "raise ValueError('below')")
        script = self.write("program.sh", f"#!/bin/sh\n{sys.executable} program.py\nexit 3\n")
        script.chmod(0o755)
        code, _, _ = self.run_job("./program.sh")
        self.assertEqual(code, 1)
        self.assertEqual(self.incident()["failures"][0]["exit_code"], 3)
        self.assertIn("ValueError: below", self.incident()["evidence"]["traceback"])


class Life(Jobs):
    def test_forked_workers(self):
        """The first attempt's and the parked ones of the next."""
        code, _, err = self.run_program("""
            import os, sys
            assert "json" in sys.modules
            raise ValueError(os.environ["TORCHELASTIC_RESTART_COUNT"])
            """, "--preload=json", "--max-restarts=2", "--nproc-per-node=2")
        self.assertEqual(code, 1, err)
        for attempt in range(3):
            found = [json.loads(file.read_text())["message"]["message"]
                     for file in self.logs.glob(f"*/attempt_{attempt}/*/error.json")]
            self.assertIn(f"ValueError: {attempt}", found, err)

    def test_folder(self):
        with self.launch("--nproc-per-node=2", "--max-restarts=1", self.write("program.py", """
                import os, time
                open("running" + os.environ["TORCHELASTIC_RESTART_COUNT"], "w").close()
                while not os.path.exists("go_on" + os.environ["TORCHELASTIC_RESTART_COUNT"]): time.sleep(0.01)
                raise ValueError
                """)) as job:
            for attempt in ("0", "1"):
                until((self.folder / f"running{attempt}").exists, "a worker")
                inner, = children(job.pid)
                made = hook_of(inner)
                for folder in (made, made.parent):
                    self.assertEqual((folder.stat().st_mode & 0o777, folder.stat().st_uid), (0o700, os.geteuid()))
                until(lambda: list(made.glob("__pycache__/torchup_worker.*.pyc")), "bytecode")
                (self.folder / f"go_on{attempt}").touch()
            job.communicate(timeout=LIMIT_S)
        self.assertFalse(made.parent.exists())

    def test_bytecode_for_the_first_worker(self):
        """It is there before, is that of these sources, and is taken as it is: else the worker had put its own there. These
        tests are run by the Python that the build has asked for it."""
        _, out, err = self.run_job("--no-python", "sh", "-c", 'ls "${PYTHONPATH%%:*}/__pycache__"')
        tag = sys.implementation.cache_tag
        self.assertIn(f"torchup_worker.{tag}.pyc", out, err)
        code, out, err = self.run_program("""
            import glob, marshal, os, sys
            folder = os.path.dirname(sys.modules["torchup_worker"].__file__)
            for path in sorted(glob.glob(folder + "/__pycache__/*")):
                name = os.path.basename(path).partition(".")[0]
                made, source = (open(each, "rb").read() for each in (path, f"{folder}/{name}.py"))
                print(name, made[4], marshal.loads(made[16:]) == compile(source, path, "exec"))
            """)
        self.assertEqual((code, out), (0, "sitecustomize 1 True\ntorchup_worker 1 True\n"), err)
        code, out, err = self.run_program("import sys; print(sys.modules['torchup_worker'].page is None)",
                                          env={"PYTHONOPTIMIZE": "1"})  # of which there is none
        self.assertEqual((code, out), (0, "False\n"), err)

    def test_launcher_that_is_killed(self):
        """The next one, whosever it is, clears its folder away."""
        with self.launch(self.write("program.py", "open('running', 'w').close()\nimport time\ntime.sleep(1000)")) as job:
            until((self.folder / "running").exists, "the worker")
            inner, = children(job.pid)
            made = hook_of(inner)
            os.kill(job.pid, signal.SIGSTOP)
            os.kill(inner, signal.SIGKILL)
            os.kill(job.pid, signal.SIGKILL)
            job.communicate(timeout=LIMIT_S)
        self.run_program("pass")
        until(lambda: not made.parent.exists(), "it is cleared away")

    def test_no_room(self):
        """It runs without a hook, and nothing is left of what was tried."""
        self.write("program.py", "import os, sys\nprint('torchup_worker' in sys.modules, os.getppid())")
        for options, words in (((), r"\A\Z"),
                               (("--hang-timeout=60",), r"\Atorchup: Python workers have no hook .*: .*File too large\n\Z")):
            done = subprocess.run([*NO_ROOM, TORCHUP, *options, "--no-capture", "--log-dir=/dev/null", "program.py"],
                                  cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
            has_hook, inner = done.stdout.split()
            self.assertEqual((done.returncode, has_hook), (0, "False"))
            self.assertRegex(done.stderr, words)
            self.assertEqual([path for path in MEMORY.glob("torchelastic_*") if path.name.split("_")[2] == inner], [])

    def test_request_to_save(self):
        """It reaches a Python worker's handler: who has the hook does not hear it over the page."""
        with self.launch("--drain-signals=USR1", self.write("program.py", """
                import os, signal, sys, time
                signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
                assert "torchup_worker" in sys.modules
                open("running", "w").close()
                while True: time.sleep(1)
                """)) as job:
            until((self.folder / "running").exists, "the worker")
            job.send_signal(signal.SIGUSR1)
            job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 75)

    def test_dry_run(self):
        self.write("program.py", "")
        self.assertNotIn("worker hook", self.run_job("--dry-run", "program.py")[1])
        plan = self.run_job("--dry-run", "--no-worker-hook", "program.py")[1]
        self.assertTrue(re.search("^worker hook  +none$", plan, re.MULTILINE), plan)


if __name__ == "__main__":
    unittest.main()
