"""torchup.drop_in end to end, with a stand-in for torch: what would start torchrun starts torchup, and nothing else
changes.

usage: drop_in_test.py TORCHUP PACKAGE STAND_IN [unittest options]
       PACKAGE: the folder with the package torchup, beside whose programs it is; STAND_IN: the one with a torch
"""

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
from drop_in import DropIn  # noqa: E402
from waiting import children, state, until  # noqa: E402

TORCHUP, PACKAGE, STAND_IN = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
TWO = "--nproc-per-node=2"
# It calls and goes on.
CALL = """import os, sys
from torch.distributed.run import get_args_parser, main, run
print("before", os.getpid(), flush=True)
{call}
print("after")
"""


class WithStandIn(DropIn):
    torchup, package, torch = TORCHUP, PACKAGE, STAND_IN

    def caller(self, call):
        self.write("call.py", CALL.format(call=call))
        return (sys.executable, "call.py")


class Ways(WithStandIn):
    def test_each_way_starts_workers_as_torchup_alone_does(self):
        plain = self.plain(TWO, "show.py", "a", "--b=c d", "")
        words = [TWO, "show.py", "a", "--b=c d", ""]
        script = self.write("train.sh", '#!/bin/sh\ntorchrun --nproc-per-node=2 show.py "$@"\n', 0o755)
        for way in (["torchrun", *words], ["python3", "-m", "torch.distributed.run", *words], [script, *words[2:]],
                    self.caller(f"main({words})"), self.caller(f"run(get_args_parser().parse_args({words}))"),
                    ["python3", "-m", "torch.distributed.launch", "--use-env", *words]):
            with self.subTest(way=way):
                out, _ = self.run_in(*way)
                self.assertNotIn("torch's own", out)
                self.assert_same(self.seen(), plain)

    def test_the_legacy_launcher_gives_workers_their_rank_as_a_word(self):
        self.run_in("python3", "-m", "torch.distributed.launch", TWO, "show.py", "a")
        self.assertEqual([worker["words"] for worker in self.seen()],
                         [["show.py", f"--local-rank={rank}", "a"] for rank in range(2)])

    def test_the_command_becomes_torchup(self):
        """torch's own, too, of an environment that a script activates."""
        self.write("show.py", "import os\nprint(os.getpid(), flush=True)\nos.read(0, 1)\n")
        self.write("v/bin/torchrun", f"#!{sys.executable}\nfrom torch.distributed.run import main\nmain()\n", 0o755)
        script = self.write("train.sh", "PATH=$PWD/v/bin:$PATH\nexec torchrun show.py\n")
        for way in (["torchrun", "show.py"], ["python3", "-m", "torch.distributed.run", "show.py"], ["sh", script]):
            with self.subTest(way=way), self.start(*way) as job:
                self.addCleanup(job.kill)
                job.stdout.readline()
                self.assertEqual(os.readlink(f"/proc/{job.pid}/exe"), os.path.realpath(TORCHUP))
                job.terminate()
                job.communicate(timeout=100)

    def test_the_rest_of_torchs_module_is_torchs(self):
        found, _ = self.run_in("python3", "-c", "import inspect, torch.distributed.run as r; "
                               "print(r.__file__, r.__spec__.origin, r.env.__name__, 'own run' in inspect.getsource(r))")
        own = f"{STAND_IN}/torch/distributed/run.py"
        self.assertEqual(found.split(), [own, own, "env", "True"])

    def test_a_python_that_reads_no_environment_has_torchs_own(self):
        word = f"import sys; sys.path.insert(0, {STAND_IN!r}); import torch.distributed.run as r; r.main(['show.py'])"
        for option in ("-I", "-E", "-S"):
            self.assertEqual(self.run_in("python3", option, "-c", word)[0], "torch's own run\n")

    def test_pythons_of_any_age_start_as_they_do_without_it(self):
        for name in ("python3", "python2.7", *(f"python3.{minor}" for minor in range(4, 16))):
            if subprocess.run(["sh", "-c", f"{name} -c ''"], stderr=subprocess.DEVNULL).returncode == 0:
                word = "import sys; print([p for p in sys.path + list(sys.path_importer_cache) if 'drop_in/' in str(p)])"
                self.assertEqual(self.run_in(name, "-c", word), ("[]\n", ""))

    def test_the_sitecustomize_of_the_environment_is_loaded_too(self):
        self.write("own/sitecustomize.py", "import sys\nprint('own', [p for p in sys.path if 'drop_in' in p])\n")
        out, _ = self.run_in("python3", "-c", "import sys; print(sys.modules['sitecustomize'].__file__)",
                             PYTHONPATH=f"{self.environment['PYTHONPATH']}:{self.folder}/own")
        self.assertEqual(out.splitlines(), ["own []", "own []", f"{self.folder}/own/sitecustomize.py"])

    def test_the_workers_python_is_the_one_that_called(self):
        other = self.folder / "other-python"
        other.symlink_to(os.path.realpath(sys.executable))
        call = "main(['show.py'])"
        for way in (["torchrun", "show.py"], self.caller(call)):
            self.run_in(*way, python=other)
            self.assertEqual(self.seen(1)[0]["python"], str(other) if way[0] == "torchrun" else sys.executable)
        self.run_in(other, *self.caller(call)[1:])
        self.assertEqual(self.seen(1)[0]["python"], str(other))
        self.run_in("torchrun", "show.py", python=other, PYTHON_EXEC=sys.executable)
        worker = self.seen(1)[0]
        self.assertEqual((worker["python"], worker["environment"]["PYTHON_EXEC"]), (sys.executable, sys.executable))

    def test_in_another_thread_it_is_called_all_the_same(self):
        out, _ = self.run_in(*self.caller("import threading\nt = threading.Thread(target=main, args=(['show.py'],))\n"
                                          "t.start()\nt.join()"))
        self.assertIn("after", out)
        self.seen(1)


class Words(WithStandIn):
    """The command line that a namespace becomes, in a torchup that shows it."""

    def words(self, *changes, parsed=("show.py",), **environment):
        self.write("shown", '#!/bin/sh\nprintf "%s|" "$@" "$PET_NNODES$PET_MODULE"\n', 0o755)
        call = "\n".join([f"args = get_args_parser().parse_args({list(parsed)})", *changes, "run(args)"])
        out, _ = self.run_in("env", f"TORCHUP_DROP_IN={self.folder}/shown", *self.caller(call), **environment)
        return out.splitlines()[1].removesuffix("after").split("|")[:-1]

    def test_defaults_are_not_said(self):
        self.assertEqual(self.words(), ["show.py", ""])

    def test_what_is_no_default_is_said_in_the_longest_spelling(self):
        options = ["--nnodes=2", "--nproc_per_node", "4", "-t", "3", "-m", "--monitor_interval=2"]
        self.assertEqual(self.words(parsed=[*options, "show", "--nnodes=9", "", "a b"]),
                         ["--nnodes=2", "--nproc-per-node=4", "--monitor-interval=2.0", "--tee=3", "--module", "show",
                          "--nnodes=9", "", "a b", ""])

    def test_values_that_no_command_line_gave(self):
        self.assertEqual(self.words("args.nproc_per_node = 2", "args.duplicate_stdout_filters = ['a,b', 'c']",
                                    "args.training_script_args = [1]", "args.of_the_caller = 5", "args.max_restarts = 0"),
                         ["--nproc-per-node=2", "--duplicate-stdout-filters=a,,b,c", "show.py", "1", ""])
        self.assertEqual(self.words("del args.nnodes"), ["show.py", ""])

    def test_defaults_of_variables_are_torchups_too_unless_the_namespace_says_otherwise(self):
        variables = {"PET_NNODES": "3", "PET_MODULE": "1"}
        self.assertEqual(self.words(**variables), ["show.py", "31"])
        self.assertEqual(self.words("args.nnodes = '1:1'", **variables), ["--nnodes=1:1", "show.py", "31"])
        self.assertEqual(self.words("args.nnodes = None", "args.module = False", **variables), ["show.py", ""])


class Ends(WithStandIn):
    def test_what_the_caller_does_afterwards_is_done(self):
        out, _ = self.run_in(*self.caller("main(['show.py'])"))
        self.assertEqual(out.split()[0::2], ["before", "after"])

    def test_exit_codes_pass(self):
        _, err = self.run_in("torchrun", "show.py", code=1, CODE="3")
        self.assertIn("exitcode  : 3", err)
        caught = "try:\n    main(['show.py'])\nexcept SystemExit as end:\n    print('end', end.code)\n    raise"
        out, _ = self.run_in(*self.caller(caught), code=1, CODE="3")
        self.assertEqual(out.splitlines()[1:], ["end 1"])
        for code, words in ((2, ["--nproc-per-node=many"]), (2, [])):
            self.run_in("torchrun", *words, code=code)

    def test_an_option_that_torchup_does_not_know(self):
        options = "get_args_parser().parse_args(['--from-a-newer-torch=1', 'show.py'])"
        for way in (["torchrun", "--nproc-per-nodes=1", "show.py"], self.caller("main(['--nproc-per-nodes=1', 'show.py'])")):
            self.assertIn("(did you mean --nproc-per-node?)", self.run_in(*way, code=2)[1])
        self.assertIn("unrecognized arguments: --from-a-newer-torch=1", self.run_in(*self.caller(f"run({options})"), code=2)[1])

    def test_no_such_command(self):
        self.write("no-mode", "#!/bin/sh\n")
        for code, words in ((127, ["no-such-command"]), (127, ["./nothing"]), (127, ["no-mode/below"]), (126, ["./no-mode"]),
                            (126, ["."]), (2, [])):
            out, err = self.run_in(*words, code=code)
            self.assertEqual((out, err.count("\n")), ("", 1), err)
        self.assertEqual(self.run_in("--help")[0], self.run_in(code=2)[1])

    def test_a_script_without_its_first_line_is_the_shells(self):
        self.write("train.sh", 'torchrun show.py "$@"\n', 0o755)
        self.run_in("./train.sh", "a b")
        self.assertEqual(self.seen(1)[0]["words"], ["show.py", "a b"])

    def test_the_command_may_be_cut_off_by_a_pipe(self):
        out, err = self.run_in("sh", "-c", 'sh -c "kill -PIPE \\$\\$"; echo $?')
        self.assertEqual((out, err), (f"{128 + signal.SIGPIPE}\n", ""))

    def test_a_torchup_that_is_gone(self):
        for way in (["torchrun", "show.py"], self.caller("main(['show.py'])")):
            _, err = self.run_in("env", f"TORCHUP_DROP_IN={self.folder}/gone", *way, code=1)
            self.assertEqual(err, f"torchup.drop_in: {self.folder}/gone: No such file or directory\n")

    def test_without_torchups_programs_it_says_where_it_looked(self):
        for beside, place in (("alone", "alone/bin"), ("lib/python3.9/site-packages", "bin"), ("build/python", "build/bin"),
                              ("p/share/torchup/python", "p/bin")):
            packages = self.folder / beside
            packages.mkdir(parents=True)
            (packages / "torchup").symlink_to(Path(PACKAGE, "torchup").resolve())
            _, err = self.run_in("torchrun", "show.py", code=127, PYTHONPATH=str(packages))
            for folder in (os.path.dirname(sys.executable), self.folder / place):
                self.assertIn(f"{folder}", err)
            self.write(f"{place}/torchup", "#!/bin/sh\necho found\n", 0o755)
            self.assertEqual(self.run_in("torchrun", PYTHONPATH=str(packages))[0], "found\n")


class Signals(WithStandIn):
    def setUp(self):
        super().setUp()
        self.write("show.py", "import os, signal, sys, time\nprint('worker', os.getpid(), flush=True)\n"
                   "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nwhile True:\n    time.sleep(60)\n")
        self.write("call.py", CALL.format(call="try:\n    main(['show.py'])\nfinally:\n    print('cleaned', flush=True)"))

    def called(self, **options):
        """A caller whose worker runs, and the worker's pid."""
        job = subprocess.Popen([sys.executable, "-m", "torchup.drop_in", "python3", "call.py"], cwd=self.folder, text=True,
                               env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        self.assertIn("before", job.stdout.readline())
        return job, int(job.stdout.readline().split()[1])

    def test_they_are_passed_on_and_the_caller_cleans_up(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number=number):
                job, worker = self.called()
                job.send_signal(number)
                out, err = job.communicate(timeout=100)
                self.assertEqual((job.returncode, out.splitlines()[-1]), (128 + number, "cleaned"), err)
                self.assertNotIn("call.py", err)  # no traceback of the caller
                self.assertIsNone(state(worker))

    def test_one_that_all_of_a_process_group_gets_is_one_for_the_job(self):
        job, worker = self.called(start_new_session=True)
        for child in children(job.pid):
            self.assertEqual(os.getpgid(child), child)  # two that come at once may be one, or not
        os.killpg(job.pid, signal.SIGINT)  # as Ctrl-C does
        out, err = job.communicate(timeout=100)
        self.assertEqual((job.returncode, out.splitlines()[-1]), (128 + signal.SIGINT, "cleaned"), err)
        self.assertIn("again to force", err)
        self.assertNotIn("killed", err)

    def test_a_child_whose_caller_is_gone_starts_nothing(self):
        child = [sys.executable, f"{PACKAGE}/torchup/drop_in/child.py", "1", "/bin/echo", "echo", "started"]
        done = subprocess.run(child, capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (128 + signal.SIGTERM, "", ""))

    def test_an_interrupt_before_there_is_a_torchup_has_no_traceback(self):
        def interrupt():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            os.kill(os.getpid(), signal.SIGINT)

        # It arrives when the first module after the disposition is loaded.
        self.write("ctypes.py", "import signal\nsignal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\n")
        child = [sys.executable, f"{PACKAGE}/torchup/drop_in/child.py", str(os.getpid()), "/bin/echo", "echo", "started"]
        done = subprocess.run(child, capture_output=True, text=True, timeout=100, preexec_fn=interrupt,
                              env={**self.environment, "PYTHONPATH": str(self.folder)})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (-signal.SIGINT, "", ""))

    def test_workers_do_not_outlive_a_caller_that_is_killed(self):
        job, worker = self.called()
        job.kill()
        until(lambda: state(worker) is None, "the worker has ended")

    def test_a_terminal_stops_and_resumes_the_job(self):
        job, worker = self.called(start_new_session=True)
        for number, wanted in ((signal.SIGTSTP, "T"), (signal.SIGCONT, "SR")):
            os.killpg(job.pid, number)
            for pid in (job.pid, worker):
                until(lambda pid=pid, wanted=wanted: state(pid) in wanted, f"{pid} has state {wanted}")
        job.terminate()
        job.communicate(timeout=100)
        self.assertEqual(job.returncode, 128 + signal.SIGTERM)

    def test_a_hangup_that_the_caller_does_not_hear_is_not_passed_on(self):
        job, worker = self.called(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        job.send_signal(signal.SIGHUP)
        job.terminate()
        job.communicate(timeout=100)
        self.assertEqual(job.returncode, 128 + signal.SIGTERM)
        self.assertEqual((children(job.pid), state(worker)), ([], None))


if __name__ == "__main__":
    unittest.main()
