"""Options of the launcher end to end: each is given, and what it promises is looked for in a real job.

usage: options_test.py TORCHUP FAKE_NVML_LIBRARY [unittest options]
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from ranks import free_port  # noqa: E402
from waiting import until  # noqa: E402

TORCHUP = os.path.abspath(sys.argv.pop(1))
FAKE_NVML = os.path.abspath(sys.argv.pop(1))


class Options(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_job(self, *words, **environment):
        return subprocess.run([TORCHUP, *words], capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **environment})

    def lines(self, *words, **environment):
        done = self.run_job(*words, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(done.stdout.splitlines())

    def with_gpus(self, *words):
        """The same on a machine whose driver shows two GPUs."""
        (self.folder / "libnvidia-ml.so.1").symlink_to(FAKE_NVML)
        inside = ("mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && touch /proc/driver/nvidia/version && "
                  f"LD_LIBRARY_PATH={shlex.quote(str(self.folder))} exec {shlex.join([TORCHUP, *words])}")
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("a mount of our own takes root")
        return subprocess.run(["unshare", "--mount", "sh", "-c", inside], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "FAKE_NVML": "whole"}, cwd=self.folder)

    def test_use_env_is_torchup_launchs_alone(self):
        for word in ("--use-env", "--use_env"):
            refused = self.run_job(word, "train.py")
            self.assertEqual(refused.returncode, 2)
            self.assertIn(f"unrecognized arguments: {word} (leave it out: no program is given --local-rank)", refused.stderr)

    def test_restart_window(self):
        third = "sleep 0.3; test $TORCHELASTIC_RESTART_COUNT -ge 3"
        self.assertEqual(self.run_job("--max-restarts=1", "--restart-window=0.2", "sh", "-c", third).returncode, 0)
        self.assertEqual(self.run_job("--max-restarts=1", "--restart-window=60", "sh", "-c", third).returncode, 1)

    def test_forward_signals(self):
        for options, number in (((), signal.SIGUSR1), (("--forward-signals=ALRM",), signal.SIGALRM)):
            with self.subTest(options=options):
                ready, got = self.folder / f"ready{number}", self.folder / f"got{number}"
                job = subprocess.Popen([TORCHUP, *options, "sh", "-c",
                                        f"trap 'touch {got}; exit 0' {number.name[3:]}; touch {ready}; "
                                        "while :; do sleep 0.02; done"], stderr=subprocess.DEVNULL)
                self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))
                until(ready.exists, "the worker waits for its signal")
                job.send_signal(number)
                self.assertEqual(job.wait(20), 0)
                self.assertTrue(got.exists())

    def test_log_max_bytes(self):
        done = self.run_job("--log-dir=logs", "--redirects=1", "--log-max-bytes=100000", "sh", "-c",
                            "seq -w 1 30000; echo the end")
        self.assertEqual(done.returncode, 0, done.stderr)
        new, = self.folder.glob("logs/*/attempt_0/0/stdout.log")
        old = new.with_name("stdout.log.1")
        self.assertTrue(max(new.stat().st_size, old.stat().st_size) <= 100_000)
        kept = (old.read_text() + new.read_text()).splitlines()
        self.assertEqual(kept[-1], "the end")
        # What is kept is the end of the output without a gap, in whole lines.
        numbers = [int(line) for line in kept[:-1]]
        self.assertEqual(numbers, list(range(numbers[0], 30001)))

    def test_no_capture(self):
        words = ("sh", "-c", "readlink /proc/self/fd/1")
        for options, ours in ((("--no-capture",), True), ((), False)):
            with open(self.folder / "out", "w+") as out:
                self.assertEqual(subprocess.run([TORCHUP, *options, *words], stdout=out, stderr=subprocess.DEVNULL).returncode, 0)
                out.seek(0)
                self.assertEqual(out.read().strip() == str(self.folder / "out"), ours, options)

    def test_gpus(self):
        words = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK")
        done = self.with_gpus("--gpus=1", "--nproc-per-node=gpu", *words)
        self.assertEqual((done.returncode, done.stdout), (0, "1 0\n"), done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        done = self.with_gpus("--gpus=1,0", "--nproc-per-node=gpu", *words)
        self.assertEqual((done.returncode, sorted(done.stdout.splitlines())), (0, ["1,0 0", "1,0 1"]), done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        done = self.with_gpus("--gpus=7", "--nproc-per-node=gpu", *words)
        self.assertEqual(done.returncode, 65)
        self.assertIn("7", done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        self.assertEqual(self.with_gpus("--gpus=first", *words).returncode, 2)

    def test_more_workers_than_gpus_by_name(self):
        words = ("--nproc-per-node=3", "--gpus=0,1", "sh", "-c", "echo $LOCAL_RANK")
        done = self.with_gpus(*words)
        self.assertEqual((done.returncode, done.stdout), (65, ""), done.stderr)
        self.assertIn("--oversubscribe", done.stderr)
        (self.folder / "libnvidia-ml.so.1").unlink()
        done = self.with_gpus("--oversubscribe", *words)
        self.assertEqual((done.returncode, sorted(done.stdout.split())), (0, ["0", "1", "2"]), done.stderr)

    def test_no_gpus_where_they_are_asked_for(self):
        for option in "--nproc-per-node=gpu", "--gpus=0":
            done = self.run_job(option, "sh", "-c", "echo started", CUDA_VISIBLE_DEVICES="")
            self.assertEqual((done.returncode, done.stdout), (65, ""), done.stderr)

    def test_numa_binding_keeps_to_cpus_that_we_may_use(self):
        allowed = os.sched_getaffinity(0)
        done = self.with_gpus("--numa-binding=node", "--nproc-per-node=2", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            cpus = set()
            for part in line.split()[-1].split(","):
                first, _, last = part.partition("-")
                cpus |= set(range(int(first), int(last or first) + 1))
            self.assertTrue(cpus and cpus <= allowed, line)

    def test_a_low_soft_limit_of_descriptors_is_raised_and_workers_keep_theirs(self):
        done = self.run_with_limit(64, 4096, "--nproc-per-node=32", "-t", "3", "--log-dir=logs", "sh", "-c", "ulimit -n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split(":")[-1] for line in done.stdout.splitlines()], ["64"] * 32)

    def test_a_low_hard_limit_of_descriptors_is_named_before_anything_starts(self):
        done = self.run_with_limit(64, 64, "--nproc-per-node=32", "sh", "-c", "echo started")
        self.assertEqual((done.returncode, done.stdout), (65, ""))
        self.assertIn("the hard limit is 64", done.stderr)
        self.assertIn("ulimit -Hn", done.stderr)

    def test_as_many_descriptors_as_are_asked_for_are_enough(self):
        endpoint = f"127.0.0.1:{free_port()}"
        # All that takes one at once: a job of several nodes that is hosted here, logs, both streams teed, events, watchdog.
        words = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=last_call_timeout=1",
                 "--nproc-per-node=16", "-t", "3", "--log-dir=logs", "--events=events", "sh", "-c", "sleep 0.3"]
        with unittest.mock.patch.dict(os.environ, TORCHELASTIC_ENABLE_FILE_TIMER="1"):
            refused = self.run_with_limit(48, 48, *words)
            needed = int(re.search(r"16 workers need (\d+) open files", refused.stderr)[1])
            done = self.run_with_limit(needed, needed, *words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def run_with_limit(self, soft, hard, *words):
        return subprocess.run(["prlimit", f"--nofile={soft}:{hard}", TORCHUP, *words], capture_output=True, text=True,
                              cwd=self.folder, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def test_omp(self):
        show = ("sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertEqual(self.lines("--omp=3", "--nproc-per-node=2", *show), ["3", "3"])
        workers = 1
        cores = len(os.sched_getaffinity(0))
        told = int(self.lines("--omp=auto", f"--nproc-per-node={workers}", *show)[0])
        self.assertTrue(1 <= told <= cores)

    def test_virtual_local_rank(self):
        self.assertEqual(self.lines("--virtual-local-rank", "--nproc-per-node=2", "sh", "-c",
                                    "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="4,6"),
                         ["0 0 4", "1 0 6"])

    def test_timeout(self):
        begin = time.monotonic()
        done = self.run_job("--timeout=0.3", "--shutdown-timeout=1", "sleep", "600")
        self.assertNotEqual(done.returncode, 0)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertRegex(done.stderr, r"--timeout|0\.3")

    def test_propagate_exit_code(self):
        self.assertEqual(self.run_job("sh", "-c", "exit 37").returncode, 1)
        self.assertEqual(self.run_job("--propagate-exit-code", "sh", "-c", "exit 37").returncode, 37)

    def test_config(self):
        (self.folder / "job.conf").write_text("# a job\nnproc_per_node = 3\nrole = 'r'\n")
        words = ("--config=job.conf", "sh", "-c", "echo $WORLD_SIZE $ROLE_NAME")
        self.assertEqual(self.lines(*words), ["3 r"] * 3)
        self.assertEqual(self.lines("--nproc-per-node=1", *words), ["1 r"])
        self.assertEqual(self.lines(*words, PET_ROLE="p"), ["3 p"] * 3)
        (self.folder / "job.conf").write_text("rank-order = hostlst\n")
        done = self.run_job(*words)
        self.assertEqual(done.returncode, 2)
        self.assertIn("job.conf:1: rank-order: invalid choice", done.stderr)

    def test_standalone_jobs_side_by_side(self):
        jobs = [subprocess.Popen([TORCHUP, "--standalone", "--nproc-per-node=2", "sh", "-c", "echo $MASTER_PORT"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(4)]
        ports = [set(job.communicate(timeout=30)[0].split()) for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0] * 4)
        self.assertEqual([len(own) for own in ports], [1] * 4)
        self.assertEqual(len(set.union(*ports)), 4)


    def test_an_answer_that_is_lost_is_no_success(self):
        for words in (("--help",), ("--version",), ("--print-env", "true"), ("--dry-run", "true")):
            with open("/dev/full", "w") as full:
                done = subprocess.run([TORCHUP, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("No space left on device", done.stderr)

    def start_that_waits(self):
        os.mkfifo(self.folder / "config")
        job = subprocess.Popen([TORCHUP, "--config=config", "true"], cwd=self.folder, stderr=subprocess.PIPE)
        self.addCleanup(job.stderr.close)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))

        def reader_is_there():
            try:
                return os.open(self.folder / "config", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return None
        writer = until(reader_is_there, "torchup reads its configuration")
        self.addCleanup(os.close, writer)
        return job

    def test_a_start_that_waits_for_a_file_can_be_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            job = self.start_that_waits()
            job.send_signal(number)
            self.assertEqual(job.wait(20), 128 + number)
            self.assertEqual(job.stderr.read(), b"")
            (self.folder / "config").unlink()

    def test_a_start_that_waits_leaves_nothing_when_it_is_killed(self):
        job = self.start_that_waits()
        job.kill()
        job.wait(20)
        self.assertEqual(job.stderr.read(), b"")  # until nobody holds the other end

    def environment(self):
        """torchup in a folder `v/bin` of its own, beside a python3 that says who it is."""
        own = self.folder / "v/bin"
        own.mkdir(parents=True)
        shutil.copy(TORCHUP, own / "torchup")
        (own / "python3").write_text("#!/bin/sh\necho the one beside torchup\n")
        (own / "python3").chmod(0o755)
        (self.folder / "v/pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        (self.folder / "script.py").write_text("print('another one')\n")
        return own

    def python_of(self, own, **variables):
        done = subprocess.run([own / "torchup", "script.py"], capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env=variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_the_python_of_torchups_own_environment(self):
        own = self.environment()
        path = f"{own}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        for variables in ({}, {"PATH": path}):  # a tool's own environment: uvx, pipx
            self.assertEqual(self.python_of(own, **variables), "another one")
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            self.assertEqual(self.python_of(own, **{name: str(self.folder / "v/bin/..")}), "the one beside torchup")
        (self.folder / "v/lib/python3.99/site-packages/torch").mkdir(parents=True)
        self.assertEqual(self.python_of(own), "the one beside torchup")
        self.assertEqual(self.python_of(own, PYTHON_EXEC=sys.executable), "another one")
        self.assertEqual(self.python_of(own, TORCHUP_CALLER=sys.executable), "another one")
        self.assertEqual(self.python_of(own, TORCHUP_CALLER=sys.executable, PYTHON_EXEC=str(own / "python3")),
                         "the one beside torchup")
        (self.folder / "link").symlink_to(own / "torchup")
        linked = subprocess.run([self.folder / "link", "--dry-run", "script.py"], capture_output=True, text=True,
                                cwd=self.folder, env={}, timeout=60)
        self.assertIn(f"python3 of torchup's environment {self.folder}/v)", linked.stdout)

    def test_the_python_of_an_environment_that_sees_the_packages_of_its_base(self):
        own = self.environment()
        (self.folder / "v/pyvenv.cfg").write_text("Include-System-Site-Packages=TRUE\n")
        self.assertEqual(self.python_of(own), "the one beside torchup")

    def test_a_python_script_whose_lines_end_in_cr_lf(self):
        script = self.folder / "script"
        script.write_bytes(b"#!/usr/bin/env python3\r\nimport os\r\nprint('rank', os.environ['RANK'])\r\n")
        script.chmod(0o755)
        self.assertEqual(self.lines("./script"), ["rank 0"])

    def own_lines(self, *options, **environment):
        """Of a job whose two workers say something and of which one fails."""
        done = self.run_job(*options, "--nproc-per-node=2", "sh", "-c",
                            'echo "out $RANK"; echo "err $RANK" >&2; test $RANK = 0 || exec sleep 60; exit 3',
                            OMP_NUM_THREADS="", **environment)
        self.assertEqual((done.returncode, set(done.stdout.splitlines()) <= {"out 0", "out 1"}), (1, True), done.stderr)
        self.assertIn("ChildFailedError", done.stderr)  # the report is none of our lines, whatever they look like
        self.assertIn("err 0\n", done.stderr)
        return done.stderr.splitlines()

    def test_log_level(self):
        shows = {"error": (), "warning": ("closing signal",), "info": ("closing signal",),
                 "debug": ("closing signal", "rank 0 runs as process")}
        failed = r"torchup: failed \(exitcode: 3\) local_rank: 0"
        for level, expected in shows.items():
            for lines in (self.own_lines(f"--log-level={level}"), self.own_lines("--quiet", PET_LOG_LEVEL=level)):
                own = [line for line in lines if line.startswith("torchup: ")]
                self.assertTrue(any(re.match(failed, line) for line in own), lines)
                for text in ("closing signal", "rank 0 runs as process"):
                    self.assertEqual(any(text in line for line in own), text in expected, (level, lines))

    def test_log_format(self):
        (self.folder / "job.conf").write_text("log-format = json\nlog_level = debug\n")
        for options in (("--log-format=json", "--log_level", "debug"), ("--config=job.conf",)):
            lines = self.own_lines(*options)
            own = [json.loads(line) for line in lines if line.startswith("{")]
            report = "torchup: What went wrong: "
            self.assertFalse([line for line in lines if line.startswith("torchup: ") and not line.startswith(report)], lines)
            for line in own:
                self.assertEqual(line["program"], "torchup")
                self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            levels = {line["message"]: line["level"] for line in own}
            self.assertEqual({level for text, level in levels.items() if text.startswith("failed (exitcode: 3)")}, {"error"})
            self.assertEqual({level for text, level in levels.items() if "runs as process" in text}, {"debug"})

    def test_a_refusal_is_a_line_of_the_log(self):
        done = self.run_job("--log-format=json", "--log-level=error", "./nowhere")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        line = json.loads(done.stderr)
        self.assertEqual((line["program"], line["level"]), ("torchup", "error"))
        self.assertIn("./nowhere", line["message"])

    def test_log_words_that_are_none(self):
        for word in ("--log-level=loud", "--log-format=xml"):
            done = self.run_job(word, "true")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"argument --{word[2:].split('=')[0]}", done.stderr)
            self.assertIn("invalid choice", done.stderr)


if __name__ == "__main__":
    unittest.main()
