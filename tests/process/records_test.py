"""What torchup leaves behind of a job: events, result file, incident record, reports.

usage: records_test.py TORCHUP SLOW_DISK_LIBRARY [name of a test ...]
"""

import glob
import os
import resource
import signal
import subprocess
import time
import unittest

from records_job import TORCHUP, Scratch, run, shell


def kernel_log_answers():
    """Whether we may write to the kernel's log and find our line there."""
    line = f"torchup records test {os.getpid()} {time.monotonic_ns()}"
    try:
        with open(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as log:
            log.seek(0, os.SEEK_END)
            with open("/dev/kmsg", "w") as writer:
                writer.write(line + "\n")
            while record := log.read(8192):
                if line.encode() in record:
                    return True
    except OSError:
        pass
    return False


class Records(Scratch, unittest.TestCase):
    def test_events_tell_the_whole_job(self):
        done = run("--nproc-per-node=2", "--max-restarts=1", f"--events={self.path('events.jsonl')}", "--",
                   *shell('test "$TORCHELASTIC_RESTART_COUNT" = 1 && exit 0; test "$RANK" = 0 && touch up && exec sleep 100; '
                          'until test -e up; do sleep 0.02; done; exit 7'), cwd=self.path(""))
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

    @unittest.skipUnless(kernel_log_answers(), "what is written to the kernel's log cannot be read here")
    def test_the_kernel_log_of_the_attempt_is_evidence(self):
        own = self.path("")
        with open("/dev/kmsg", "w") as log:
            log.write(f"NVRM: Xid 79 before the job in {own}\n")
        run("--max-restarts=1", f"--log-dir={self.path('logs')}", "--",
            *shell(f'echo "NVRM: Xid 31 in attempt $TORCHELASTIC_RESTART_COUNT in {own}" > /dev/kmsg; echo "oops[$$]" > /dev/kmsg; exit 9'))
        records = [self.json_of(path) for path in sorted(glob.glob(self.path("logs/*/attempt_*/incident.json")))]
        for attempt, record in enumerate(records):
            lines = [line for line in record["evidence"]["kernel_lines"] if own in line or "oops" in line]
            self.assertEqual(lines, [f"NVRM: Xid 31 in attempt {attempt} in {own}", f"oops[{record['failures'][0]['pid']}]"])
        self.assertEqual(len(records), 2)

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
                                   hungry], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            record = self.incident()
            self.assertIn("the out-of-memory killer, memory limit 64 MiB", record["summary"])
            self.assertEqual(record["evidence"]["oom_kills"], 1)
        finally:
            deadline = time.monotonic() + 30
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


if __name__ == "__main__":
    unittest.main()
