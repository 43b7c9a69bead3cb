"""What torchup leaves behind of a job: events, result file, incident record, reports; and that output never ends it.

usage: records_test.py TORCHUP SLOW_DISK_LIBRARY [name of a test ...]
"""

import fcntl
import glob
import json
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

TORCHUP = os.path.abspath(sys.argv.pop(1))
SLOW_DISK = os.path.abspath(sys.argv.pop(1))


def run(*arguments, timeout=30, **options):
    """torchup with these arguments; its CompletedProcess with stdout and stderr as bytes."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([TORCHUP, *arguments], timeout=timeout, **options)


def shell(text):
    """A worker that is a shell script; `$` is for the shell, not for torchup's substitution."""
    return ["sh", "-c", text.replace("$$", "$$$$")]


def state(pid):
    """The kernel's letter for what the process does; X: it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Records(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def json_of(self, name):
        with open(self.path(name)) as file:
            return json.load(file)

    def wait_for(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def events(self):
        with open(self.path("events.jsonl")) as file:
            return [json.loads(line) for line in file]

    def incident(self):
        paths = sorted(glob.glob(self.path("logs/*/attempt_*/incident.json")))
        with open(paths[-1]) as file:
            return json.load(file)

    def test_events_tell_the_whole_job(self):
        done = run("--nproc-per-node=2", "--max-restarts=1", f"--events={self.path('events.jsonl')}", "--",
                   *shell('test "$TORCHELASTIC_RESTART_COUNT" = 1 || test "$RANK" = 0 || exit 7; sleep 0.3'))
        self.assertEqual(done.returncode, 0, done.stderr)
        events = self.events()
        self.assertTrue(all(event["schema"] == 1 for event in events))
        times = [event["monotonic_us"] for event in events]
        self.assertEqual(times, sorted(times))
        names = [event["event"] for event in events]
        self.assertEqual(names[0], "job_started")
        self.assertEqual(names[-1], "job_ended")
        self.assertEqual(names.count("attempt_started"), 2)
        self.assertEqual(names.count("worker_started"), 4)
        ends = {(event["rank"], event["exit_code"], event["end"]) for event in events if event["event"] == "worker_exited"}
        self.assertIn((1, 7, "failed"), ends)
        self.assertIn((0, -15, "terminated"), ends)
        self.assertIn((1, 0, "succeeded"), ends)
        self.assertEqual(names.count("incident_recorded"), 1)

    def test_events_are_appended(self):
        for _ in range(2):
            run(f"--events={self.path('events.jsonl')}", "true")
        self.assertEqual([event["event"] for event in self.events()].count("job_ended"), 2)

    def test_events_to_a_full_disk_do_not_end_the_job(self):
        done = run("--events=/dev/full", f"--result-file={self.path('result')}", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.json_of("result")["log_bytes_lost"], 0)

    def test_result_file(self):
        done = run("--nproc-per-node=2", f"--log-dir={self.path('logs')}", "--redirects=1",
                   f"--result-file={self.path('result')}", "--", *shell('exit $RANK'))
        self.assertEqual(done.returncode, 1)
        result = self.json_of("result")
        self.assertEqual(result["exit_code"], 1)
        workers = result["attempts"][0]["workers"]
        self.assertEqual(workers[1]["exit_code"], 1)
        self.assertEqual(workers[1]["end"], "failed")
        self.assertTrue(os.path.exists(workers[0]["stdout_log"]))
        self.assertEqual(len(result["incidents"]), 1)
        self.assertEqual(os.listdir(self.scratch.name).count("result"), 1)
        self.assertEqual([name for name in os.listdir(self.scratch.name) if "tmp" in name], [])

    def test_result_of_a_job_that_was_interrupted(self):
        job = subprocess.Popen([TORCHUP, f"--result-file={self.path('result')}", *shell("echo up; sleep 100")],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(20), 143)
        job.stdout.close()
        self.assertEqual(self.json_of("result")["exit_code"], 143)

    def test_incident_of_a_python_worker(self):
        script = self.path("train.py")
        with open(script, "w") as file:
            file.write("import os, time\nprint('step 8', flush=True)\n"
                       f"up = '{self.scratch.name}/up.'\nopen(up + os.environ['RANK'], 'w').close()\n"
                       "if os.environ['RANK'] == '1':\n"
                       "    while not (os.path.exists(up + '0') and os.path.exists(up + '2')): time.sleep(0.01)\n"
                       "    raise ValueError('bad batch')\ntime.sleep(100)\n")
        done = run("--nproc-per-node=3", f"--log-dir={self.path('logs')}", "--tee=3", script)
        self.assertEqual(done.returncode, 1)
        record = self.incident()
        cause = record["failures"][record["root_cause"]]
        self.assertEqual((cause["rank"], cause["exit_code"]), (1, 1))
        self.assertTrue(record["evidence"]["traceback"].endswith("ValueError: bad batch\n"))
        self.assertIn("step 8", record["evidence"]["last_lines"])
        self.assertEqual(sorted(other["rank"] for other in record["others"]), [0, 2])
        self.assertTrue(os.path.exists(record["stderr_log"]))
        text = done.stderr.decode()
        self.assertIn("exit code 1: ValueError: bad batch", text)
        self.assertIn("all of it: ", text)

    def test_incident_history_over_restarts(self):
        run("--max-restarts=2", f"--log-dir={self.path('logs')}", "--", *shell("exit 9"))
        self.assertEqual(len(glob.glob(self.path("logs/*/attempt_*/incident.json"))), 3)
        attempts = self.incident()["attempts"]
        self.assertEqual([attempt["name"] for attempt in attempts], ["attempt_0", "attempt_1", "attempt_2"])
        self.assertTrue(all(attempt["end_reason"] == "rank 0 failed with exit code 9" for attempt in attempts))

    def test_a_kill_from_outside_is_not_called_out_of_memory(self):
        done = run(f"--log-dir={self.path('logs')}", "--", *shell("kill -9 $$"))
        self.assertEqual(done.returncode, 1)
        record = self.incident()
        self.assertEqual(record["failures"][0]["signal"], "SIGKILL")
        # Whatever can be read here: never as if it were known.
        self.assertNotRegex(record["summary"], "SIGKILL: the out-of-memory killer")
        known = record["evidence"]["oom_kills"]
        self.assertIn("possibly out of memory" if known is None else "sent by somebody", record["summary"])

    @unittest.skipIf(os.environ.get("TORCHUP_SANITIZE"), "a sanitizer's memory is not the program's")
    def test_the_out_of_memory_killer_is_named(self):
        own = None
        with open("/proc/self/cgroup") as file:
            for line in file:
                number, controllers, path = line.strip().split(":", 2)
                if controllers == "memory":
                    own = "/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes"
        if own is None or not os.access(own[0], os.W_OK):
            self.skipTest("no memory cgroup of version 1 to write in")
        group = os.path.join(own[0], f"torchup_test_{os.getpid()}")
        try:
            os.mkdir(group)
        except OSError as error:
            self.skipTest(f"cannot make a memory cgroup: {error}")
        try:
            with open(os.path.join(group, own[1]), "w") as file:
                file.write(str(64 << 20))
            enter = f"echo $$ > {group}/cgroup.procs; exec \"$0\" \"$@\""
            hungry = "x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1\n"
            done = subprocess.run(["sh", "-c", enter, TORCHUP, f"--log-dir={self.path('logs')}", "--no-python", "python3", "-c",
                                   hungry], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
            self.assertEqual(done.returncode, 1, done.stderr)
            record = self.incident()
            self.assertIn("the out-of-memory killer, memory limit 64 MiB", record["summary"])
            self.assertEqual(record["evidence"]["oom_kills"], 1)
        finally:
            deadline = time.monotonic() + 5
            while True:
                try:
                    os.rmdir(group)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)

    def test_error_files_that_are_no_error_files(self):
        os.mkdir(self.path("target"))
        laid = {
            "garbage": ('printf "not json" > $TORCHELASTIC_ERROR_FILE', "it is not JSON"),
            "huge": ("head -c 3000000 /dev/zero > $TORCHELASTIC_ERROR_FILE", "longer than"),
            "link": (f"ln -s /etc/hostname $TORCHELASTIC_ERROR_FILE", "refused|link|Too many levels"),
            "fifo": ("mkfifo $TORCHELASTIC_ERROR_FILE", "not a regular file"),
            "deep": ("head -c 500000 /dev/zero | tr '\\000' '[' > $TORCHELASTIC_ERROR_FILE", "nested deeper than 64"),
            "deep message": ("(printf '{\"message\": '; head -c 300000 /dev/zero | tr '\\000' '['; head -c 300000 /dev/zero |"
                             " tr '\\000' ']'; printf '}') > $TORCHELASTIC_ERROR_FILE", "nested deeper than 64"),
        }
        if os.geteuid() == 0:
            laid["foreign"] = ("echo {} > $TORCHELASTIC_ERROR_FILE; chown 65534 $TORCHELASTIC_ERROR_FILE", "not a regular file of ours")
        for name, (command, reason) in laid.items():
            with self.subTest(name):
                done = run("--nproc-per-node=1", "--", *shell(command + "; exit 3"))
                self.assertEqual(done.returncode, 1)
                text = done.stderr.decode()
                self.assertRegex(text, "Failed to parse reply file: .*" + f"({reason})")
                self.assertIn("exitcode  : 3 (pid: ", text)  # the report is there all the same

    def error_file_command(self, message, stamp):
        return f"printf '{{\"message\": \"{message}\", \"timestamp\": {stamp}}}' > $TORCHELASTIC_ERROR_FILE"

    def test_an_error_file_that_a_file_server_gave_to_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give files away")
        # What root_squash makes of it: the folder that we made, and what the worker wrote there, are nobody's.
        done = run("--", *shell(self.error_file_command("said by nobody", 10) +
                                "; chown 65534 $TORCHELASTIC_ERROR_FILE $(dirname $TORCHELASTIC_ERROR_FILE); exit 3"))
        self.assertIn("said by nobody", done.stderr.decode())
        self.assertNotIn("Failed to parse", done.stderr.decode())

    def test_a_timestamp_of_another_unit_is_the_same_time(self):
        for factor in (1_000, 1_000_000, 1_000_000_000):
            with self.subTest(factor=factor):
                # Rank 1 fails first, with such a stamp; rank 0 fails of it two seconds later, with the right one.
                now = int(time.time()) - 10
                done = run("--nproc-per-node=2", "--", *shell(
                    f"trap 'exit 8' TERM; if test $RANK = 1; then {self.error_file_command('the cause', now * factor)}; exit 7; fi; "
                    f"{self.error_file_command('collateral', now + 2)}; while :; do sleep 0.05; done"))
                cause = done.stderr.decode().split("Root Cause (first observed failure):")[1]
                self.assertIn("the cause", cause.split("====")[0])

    def test_a_timestamp_after_the_death_is_not_believed(self):
        done = run("--nproc-per-node=1", "--", *shell(self.error_file_command("late", int(time.time()) + 100_000) + "; exit 7"))
        told = done.stderr.decode().split("time      : ")[1].split("\n")[0]
        self.assertLess(abs(time.mktime(time.strptime(told, "%Y-%m-%d_%H:%M:%S")) - time.time()), 3600)

    def test_control_bytes_of_a_report_do_not_reach_the_terminal(self):
        bell = "\\u001b]0;title\\u0007\\u001b[2J\\r"
        done = run("--nproc-per-node=1", "--", "python3", "-c", "import json, os, sys\n"
                   "print('\x1b[31mcolour\x1b[0m')\n"
                   f"json.dump({{'message': '{bell}', 'timestamp': 10}}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
                   "sys.exit(3)")
        self.assertEqual(done.stdout, b"\x1b[31mcolour\x1b[0m\n")  # a worker's output is its own
        self.assertIn(b"\\x1b]0;title\\x07\\x1b[2J\\x0d", done.stderr)
        self.assertEqual([byte for byte in done.stderr if byte < 32 and byte not in b"\n\t"], [])

    def test_a_disk_that_does_not_answer_does_not_stop_the_loop(self):
        pid = self.path("pid")
        job = subprocess.Popen(
            [TORCHUP, "--nproc-per-node=2", f"--log-dir={self.path('logs')}", "--", *shell(
                f"trap '' TERM; if test $RANK = 1; then echo $$ > {pid}.new; mv {pid}.new {pid}; exit 3; fi; "
                f"until test -e {pid}; do sleep 0.01; done; while kill -0 $(cat {pid}) 2>/dev/null; do sleep 0.01; done; "
                "echo rank 1 is gone; exit 0")],
            env={**os.environ, "LD_PRELOAD": SLOW_DISK, "SLOW_DISK_NAME": "error.json", "SLOW_DISK_FREE": self.path("free")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Somebody waits for that disk; and yet the other worker's words pass.
        self.assertEqual(job.stdout.readline(), b"rank 1 is gone\n")
        open(self.path("free"), "w").close()
        _, error = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 1)
        self.assertIn(b"exitcode  : 3 (pid: ", error)

    def test_quiet_leaves_output_and_report_only(self):
        done = run("--quiet", "--nproc-per-node=2", "--", *shell("echo out; test $RANK = 0 && exit 5; sleep 100"))
        self.assertEqual(done.returncode, 1)
        text = done.stderr.decode()
        self.assertNotIn("closing signal", text)
        self.assertNotIn("OMP_NUM_THREADS", text)
        self.assertIn("exitcode  : 5", text)

    def test_losses_are_told_to_the_quiet_too(self):
        done = run("--quiet", "--", *shell("echo lost"), stdout=os.open("/dev/full", os.O_WRONLY))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, b"torchup: stdout: No space left on device; 5 bytes are not shown so far, the job goes on\n")

    def test_a_reader_of_events_that_stalls_neither_stops_the_job_nor_its_restart(self):
        os.mkfifo(self.path("events"))
        reader = os.open(self.path("events"), os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # What each worker says at its end is more than a pipe holds, and all of it more than what is kept for a slow reader.
        done = run("--nproc-per-node=2", "--max-restarts=3", f"--log-dir={self.path('logs')}", "--tee=1",
                   f"--result-file={self.path('result')}", f"--events={self.path('events')}", "--",
                   *shell("yes | head -n 50000; test $TORCHELASTIC_RESTART_COUNT = 3 && exit 0; "
                          "printf '{\"message\": \"%0500000d\"}' 0 > $TORCHELASTIC_ERROR_FILE; exit 1"))
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        # Of the attempts that failed, one of the two may have been stopped in its midst.
        self.assertGreaterEqual(done.stdout.count(b":y\n"), 5 * 50_000)
        self.assertGreater(self.json_of("result")["log_bytes_lost"], 0)
        self.assertIn(b"bytes of logs and events are lost in all", done.stderr)

    def test_a_log_directory_that_is_deleted_is_told_and_the_job_goes_on(self):
        go = self.path("go")
        job = subprocess.Popen([TORCHUP, "--max-restarts=1", f"--log-dir={self.path('logs')}", "--tee=1",
                                f"--result-file={self.path('result')}", "--", *shell(
                                    f"echo up; until test -e {go}; do sleep 0.01; done; echo more; "
                                    "test $TORCHELASTIC_RESTART_COUNT = 1")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(job.stdout.readline(), b"[default0]:up\n")
        shutil.rmtree(self.path("logs"))
        open(go, "w").close()
        out, error = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 0, error)
        self.assertEqual(out, b"[default0]:more\n[default0]:up\n[default0]:more\n")
        self.assertRegex(error, rb"cannot write [^ ]*/attempt_0/0/stdout.log: somebody has deleted it; 8 bytes are lost")
        self.assertEqual(self.json_of("result")["log_bytes_lost"], 8)
        log, = glob.glob(self.path("logs/*/attempt_1/0/stdout.log"))
        with open(log) as file:
            self.assertEqual(file.read(), "up\nmore\n")

    def test_a_log_disk_that_becomes_read_only_does_not_end_the_job(self):
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        logs = self.path("logs")
        os.mkdir(logs)
        worker = ("if test $TORCHELASTIC_RESTART_COUNT = 0; then mount -o remount,ro " + logs + " || exit 9; exit 3; fi; echo fine")
        command = f"mount -t tmpfs none {logs} && exec {TORCHUP} --max-restarts=1 --log-dir={logs} -- sh -c '{worker}'"
        done = subprocess.run(["unshare", "-m", "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        if b"unshare" in done.stderr or b"mount:" in done.stderr:
            self.skipTest(done.stderr.decode())
        self.assertEqual((done.returncode, done.stdout), (0, b"fine\n"), done.stderr)
        self.assertIn(b"no logs and no error files of this attempt: ", done.stderr)
        self.assertIn(b"no incident record: ", done.stderr)
        self.assertIn(b"Read-only file system", done.stderr)

    def test_no_place_for_temporary_files_is_told_and_the_job_goes_on(self):
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        hidden = " && ".join(f"mount -t tmpfs -o ro none {place}" for place in ("/tmp", "/var/tmp") if os.path.isdir(place))
        binary = os.path.join("/run", f"torchup_test_{os.getpid()}")
        shutil.copy(TORCHUP, binary)
        self.addCleanup(os.unlink, binary)
        command = f"{hidden} && cd /proc && TMPDIR=/nonexistent exec {binary} echo x"
        done = subprocess.run(["unshare", "-m", "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        if b"unshare" in done.stderr or b"mount:" in done.stderr:
            self.skipTest(done.stderr.decode())
        self.assertEqual((done.returncode, done.stdout), (0, b"x\n"), done.stderr)
        self.assertIn(b"no log directory, so no logs and no error files: ", done.stderr)

    def test_memory_of_a_job_whose_launcher_was_killed_is_cleared_by_the_next(self):
        os.mkdir(self.path("tmp"))
        environment = {**os.environ, "TMPDIR": self.path("tmp")}
        job = subprocess.Popen([TORCHUP, *shell("echo $PPID; sleep 100")], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
        inner = int(job.stdout.readline())
        link, = os.listdir(self.path("tmp"))
        memory = os.path.realpath(self.path("tmp/" + link))
        self.assertTrue(os.path.isdir(memory))
        if not memory.startswith("/dev/shm/"):
            job.kill()
            job.communicate()
            self.skipTest("/dev/shm is no memory here")
        second = subprocess.Popen([TORCHUP, *shell("echo up; read line; echo $line")], env=environment, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        second.stdout.readline()
        self.assertTrue(os.path.isdir(memory))  # its launcher lives
        os.kill(job.pid, signal.SIGSTOP)
        os.kill(inner, signal.SIGKILL)
        job.kill()
        job.communicate()
        self.wait_for(lambda: state(inner) in "ZX")
        self.assertEqual(run("true", env=environment).returncode, 0)
        self.assertFalse(os.path.exists(memory))
        self.assertEqual(len(os.listdir(self.path("tmp"))), 1)  # that of the second
        self.assertEqual(second.communicate(b"on\n")[0], b"on\n")
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_a_pager_gets_the_end_of_the_output(self):
        ends = os.pipe()
        job = subprocess.Popen([TORCHUP, f"--result-file={self.path('result')}", "--", *shell("seq 30000; exit 3")],
                               stdout=ends[1], stderr=ends[1])
        os.close(ends[1])
        pager = os.fdopen(ends[0], "rb")
        self.addCleanup(pager.close)
        self.wait_for(lambda: os.path.exists(self.path("result")))  # all is over but the reading
        job.send_signal(signal.SIGCONT)  # as `fg` after Ctrl-Z does, to everybody in the pipeline: it ends nothing
        with self.assertRaises(subprocess.TimeoutExpired):
            job.wait(3)
        text = pager.read()
        self.assertEqual(job.wait(20), 1)
        self.assertIn(b"\n30000\n", text)
        self.assertIn(b"exitcode  : 3 (pid: ", text)
        self.assertEqual(self.json_of("result")["console_bytes_lost"], 0)

    def test_what_a_worker_puts_beside_its_error_file_is_not_followed(self):
        os.mkdir(self.path("tmp"))
        os.mkdir(self.path("precious"))
        with open(self.path("precious/data"), "w") as file:
            file.write("x" * 1000)
        before = set(glob.glob("/dev/shm/torchelastic_*"))
        done = run("--", *shell(f"cd $(dirname $TORCHELASTIC_ERROR_FILE); ln -s {self.path('precious')} link; mkfifo pipe; "
                                "echo '{\"message\": \"its last words\"}' > $TORCHELASTIC_ERROR_FILE; exit 3"),
                   env={**os.environ, "TMPDIR": self.path("tmp")})
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"its last words", done.stderr)
        self.assertEqual(set(glob.glob("/dev/shm/torchelastic_*")) - before, set())
        kept = [os.path.join(folder, name) for folder, folders, files in os.walk(self.path("tmp")) for name in folders + files]
        self.assertTrue([path for path in kept if path.endswith("/error.json")], kept)
        self.assertFalse([path for path in kept if os.path.basename(path) in ("link", "pipe", "data")], kept)

    def test_what_the_end_of_a_job_waits_for_is_told(self):
        done = run("--shutdown-timeout=1", "--", *shell("setsid sleep 100 > /dev/null 2>&1 & exit 0"))
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, rb"torchup: waiting for what the workers have left behind: process \d+ \(sleeping")

    def test_nonsense_in_the_watchdogs_pipe_is_a_few_lines(self):
        done = run(f"--events={self.path('events.jsonl')}", "--",
                   *shell("yes | head -n 100000 > $TORCHELASTIC_TIMER_FILE; exit 0"),
                   env={**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": self.path("timers")})
        self.assertEqual(done.returncode, 0)
        told = [line for line in done.stderr.splitlines() if b"watchdog" in line]
        self.assertTrue(2 <= len(told) <= 20, told)
        self.assertIn(b" more like this in the last ", told[-1])
        self.assertLess(len(self.events()), 50)

    def test_an_end_that_waits_for_a_pager_can_be_interrupted(self):
        ends = os.pipe()
        self.addCleanup(os.close, ends[0])
        job = subprocess.Popen([TORCHUP, f"--result-file={self.path('result')}", "--", *shell("seq 30000")], stdout=ends[1],
                               stderr=subprocess.DEVNULL)
        os.close(ends[1])
        self.wait_for(lambda: os.path.exists(self.path("result")))
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(20), 0)
        self.assertGreater(self.json_of("result")["console_bytes_lost"], 0)

    def test_a_job_that_is_ended_by_a_signal_waits_for_no_pager(self):
        ends = os.pipe()
        self.addCleanup(os.close, ends[0])
        up = self.path("up")
        job = subprocess.Popen([TORCHUP, "--", *shell(f"seq 30000; touch {up}; sleep 100")], stdout=ends[1],
                               stderr=subprocess.DEVNULL)
        os.close(ends[1])
        self.wait_for(lambda: os.path.exists(up))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(30), 143)

    def test_a_worker_hears_of_the_terminal_s_new_size(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        job = subprocess.Popen([TORCHUP, "--", *shell("trap 'stty size <&1; exit 0' WINCH; echo up; while :; do sleep 0.05; done")],
                               stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL)
        os.close(slave)
        self.assertIn(b"up", os.read(master, 100))
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        job.send_signal(signal.SIGWINCH)  # it does not belong to this terminal's foreground
        self.assertEqual(job.wait(20), 0)
        self.assertIn(b"33 77", os.read(master, 100))

    def test_a_successful_job_leaves_no_temporary_directory(self):
        os.mkdir(self.path("tmp"))
        done = run("--nproc-per-node=2", "echo", "x", env={**os.environ, "TMPDIR": self.path("tmp")})
        self.assertEqual(done.returncode, 0)
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_a_full_log_disk_is_told_and_the_job_goes_on(self):
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        logs = self.path("logs")
        os.mkdir(logs)
        # 64 KiB for the logs of a worker that writes 1 MB
        command = (f"mount -t tmpfs -o size=64k none {logs} && exec {TORCHUP} --log-dir={logs} --tee=1 "
                   f"--result-file={self.path('result')} --events={self.path('events.jsonl')} -- sh -c "
                   "'yes 123456789 | head -n 100000; echo the end'")
        done = subprocess.run(["unshare", "-m", "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        if b"unshare" in done.stderr or b"mount:" in done.stderr:
            self.skipTest(done.stderr.decode())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(b"\n"), 100_001)
        self.assertTrue(done.stdout.endswith(b"]:the end\n"))
        told = [event for event in self.events() if event["event"] == "log_write_failed"]
        self.assertGreaterEqual(len(told), 1)
        self.assertLessEqual(len(told), 3)
        self.assertEqual(told[0]["reason"], "No space left on device")
        lost = self.json_of("result")["log_bytes_lost"]
        self.assertGreater(lost, 900_000)
        self.assertEqual(done.stderr.count(b"No space left on device"), 1)
        self.assertIn(f"{lost} bytes of logs and events are lost in all".encode(), done.stderr)

    def test_a_core_file_is_found(self):
        with open("/proc/sys/kernel/core_pattern") as file:
            if file.read().strip() != "core":
                self.skipTest("cores do not go into the working directory here")
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        if limits[1] != resource.RLIM_INFINITY:
            self.skipTest("no core files here")
        run(f"--log-dir={self.path('logs')}", "--", *shell("ulimit -c unlimited; kill -SEGV $$"), cwd=self.scratch.name)
        if not glob.glob(self.path("core*")):
            self.skipTest("this kernel writes no core files")
        self.assertTrue(self.incident()["evidence"]["core_file"].startswith(self.path("core")))

    def test_a_reader_that_leaves_does_not_end_the_job(self):
        done = subprocess.run(["bash", "-c", f"{TORCHUP} --result-file={self.path('result')} --tee=1 --log-dir={self.path('logs')} "
                               f"-- sh -c 'yes | head -n 200000; exit 0' | head -n 1; exit ${{PIPESTATUS[0]}}"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.json_of("result")["console_bytes_lost"], 100_000)
        log, = glob.glob(self.path("logs/*/attempt_0/0/stdout.log"))
        self.assertEqual(os.path.getsize(log), 400_000)

    def test_closed_standard_streams(self):
        for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
            with self.subTest(closed):
                done = subprocess.run(["sh", "-c", f"exec {TORCHUP} --nproc-per-node=2 --result-file={self.path('result')} "
                                       f"sh -c 'echo out; echo err >&2' {closed}"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_hundred_megabytes_without_line_end(self):
        size = 100_000_000
        with open(self.path("out"), "wb") as out:
            job = subprocess.Popen([TORCHUP, "--nproc-per-node=2", "--tee=1", f"--log-dir={self.path('logs')}", "--",
                                    *shell(f"test $RANK = 1 || head -c {size} /dev/zero")],
                                   stdout=out, stderr=subprocess.PIPE)
            _, status, usage = os.wait4(job.pid, 0)
            job.returncode = os.waitstatus_to_exitcode(status)
            error = job.stderr.read()
            job.stderr.close()
        self.assertEqual(job.returncode, 0, error)
        self.assertEqual(os.path.getsize(self.path("out")), size + len("[default0]:\n"))
        if not os.environ.get("TORCHUP_SANITIZE"):
            self.assertLess(usage.ru_maxrss, 40_000)  # KiB, of the outer process and what it waited for

    def test_every_line_arrives_after_a_kill(self):
        lines = 50_000
        done = run("--nproc-per-node=2", "--tee=1", f"--log-dir={self.path('logs')}", "--",
                   *shell(f"test $RANK = 1 && exec sleep 100; seq {lines}; kill -9 $$"), timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.decode().splitlines(), [f"[default0]:{line}" for line in range(1, lines + 1)])


if __name__ == "__main__":
    unittest.main()
