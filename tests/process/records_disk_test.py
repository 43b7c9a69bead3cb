"""Folders of logs and error files on disks that are slow, full, read-only or gone; and that none stays behind.

usage: records_disk_test.py TORCHUP SLOW_DISK_LIBRARY [name of a test ...]
"""

import glob
import os
import shutil
import signal
import subprocess
import unittest

from records_job import SLOW_DISK, TORCHUP, Scratch, run, shell, state


class Records(Scratch, unittest.TestCase):
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
        _, error = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 1)
        self.assertIn(b"exitcode  : 3 (pid: ", error)

    def test_the_incident_before_a_restart_is_written_however_soon_the_job_succeeds(self):
        job = subprocess.Popen([TORCHUP, "--max-restarts=1", f"--log-dir={self.path('logs')}", f"--result-file={self.path('result')}",
                                f"--events={self.path('events.jsonl')}", "--", *shell(
                                    f"test $TORCHELASTIC_RESTART_COUNT = 1 && touch {self.path('up')} || exit 3")],
                               env={**os.environ, "LD_PRELOAD": SLOW_DISK, "SLOW_DISK_NAME": "incident.json",
                                    "SLOW_DISK_FREE": self.path("free")},
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.communicate()))
        self.wait_for(lambda: os.path.exists(self.path("up")))
        # Logs and events alone are waited for some 2 s.
        with self.assertRaises(subprocess.TimeoutExpired):
            job.wait(timeout=3)
        open(self.path("free"), "w").close()
        _, error = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, error)
        self.assertEqual(self.incident()["failures"][0]["exit_code"], 3)
        self.assertEqual(len(self.json_of("result")["incidents"]), 1)
        self.assertEqual([event["event"] for event in self.events()][-2:], ["incident_recorded", "job_ended"])

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
        out, error = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, error)
        self.assertEqual(out, b"[default0]:more\n[default0]:up\n[default0]:more\n")
        self.assertRegex(error, rb"cannot write [^ ]*/attempt_0/0/stdout.log: somebody has deleted it; 8 bytes are lost")
        self.assertEqual(self.json_of("result")["log_bytes_lost"], 8)
        log, = glob.glob(self.path("logs/*/attempt_1/0/stdout.log"))
        with open(log) as file:
            self.assertEqual(file.read(), "up\nmore\n")

    def run_with_mounts(self, command):
        """In a shell whose mounts nobody else sees."""
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        done = subprocess.run(["unshare", "-m", "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if b"unshare" in done.stderr or b"mount:" in done.stderr:
            self.skipTest(done.stderr.decode())
        return done

    def test_a_log_disk_that_becomes_read_only_does_not_end_the_job(self):
        logs = self.path("logs")
        os.mkdir(logs)
        worker = ("if test $TORCHELASTIC_RESTART_COUNT = 0; then mount -o remount,ro " + logs + " || exit 9; exit 3; fi; echo fine")
        command = f"mount -t tmpfs none {logs} && exec {TORCHUP} --max-restarts=1 --log-dir={logs} -- sh -c '{worker}'"
        done = self.run_with_mounts(command)
        self.assertEqual((done.returncode, done.stdout), (0, b"fine\n"), done.stderr)
        self.assertIn(b"no logs and no error files of this attempt: ", done.stderr)
        self.assertIn(b"no incident record: ", done.stderr)
        self.assertIn(b"Read-only file system", done.stderr)

    def test_no_place_for_temporary_files_is_told_and_the_job_goes_on(self):
        binary = os.path.join("/run", f"torchup_test_{os.getpid()}")
        shutil.copy(TORCHUP, binary)
        self.addCleanup(os.unlink, binary)
        for memory in True, False:
            places = ["/tmp", "/var/tmp", *([] if memory else ["/dev/shm"])]
            hidden = " && ".join(f"mount -t tmpfs -o ro none {place}" for place in places if os.path.isdir(place))
            command = f"{hidden} && cd /proc && TMPDIR=/nonexistent exec {binary} sh -c 'echo \"$TORCHELASTIC_ERROR_FILE\"'"
            done = self.run_with_mounts(command)
            self.assertEqual((done.returncode, done.stdout.startswith(b"/dev/shm/torchelastic_")), (0, memory), done)
            self.assertEqual(b"no log directory, so no logs and no error files: " in done.stderr, not memory, done.stderr)

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
        self.wait_for(lambda: state(inner) in (None, "Z"))
        self.assertEqual(run("true", env=environment).returncode, 0)
        self.assertFalse(os.path.exists(memory))
        self.assertEqual(len(os.listdir(self.path("tmp"))), 1)  # that of the second
        self.assertEqual(second.communicate(b"on\n")[0], b"on\n")
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_what_a_worker_puts_beside_its_error_file_is_not_followed(self):
        os.mkdir(self.path("tmp"))
        os.mkdir(self.path("precious"))
        with open(self.path("precious/data"), "w") as file:
            file.write("x" * 1000)
        done = run("--", *shell(f"cd $(dirname $TORCHELASTIC_ERROR_FILE); pwd -P > {self.path('where')}; ln -s {self.path('precious')} link; mkfifo pipe; "
                                "echo '{\"message\": \"its last words\"}' > $TORCHELASTIC_ERROR_FILE; exit 3"),
                   env={**os.environ, "TMPDIR": self.path("tmp")})
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"its last words", done.stderr)
        with open(self.path("where")) as file:
            where = file.read().strip()
        self.assertRegex(where, "^/dev/shm/torchelastic_")
        self.assertFalse(os.path.exists("/".join(where.split("/")[:4])), where)
        kept = [os.path.join(folder, name) for folder, folders, files in os.walk(self.path("tmp")) for name in folders + files]
        self.assertTrue([path for path in kept if path.endswith("/error.json")], kept)
        self.assertFalse([path for path in kept if os.path.basename(path) in ("link", "pipe", "data")], kept)

    def test_a_successful_job_leaves_no_temporary_directory(self):
        os.mkdir(self.path("tmp"))
        done = run("--nproc-per-node=2", "echo", "x", env={**os.environ, "TMPDIR": self.path("tmp")})
        self.assertEqual(done.returncode, 0)
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_a_full_log_disk_is_told_and_the_job_goes_on(self):
        logs = self.path("logs")
        os.mkdir(logs)
        # 64 KiB for the logs of a worker that writes 1 MB
        command = (f"mount -t tmpfs -o size=64k none {logs} && exec {TORCHUP} --log-dir={logs} --tee=1 "
                   f"--result-file={self.path('result')} --events={self.path('events.jsonl')} -- sh -c "
                   "'yes 123456789 | head -n 100000; echo the end'")
        done = self.run_with_mounts(command)
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

    def test_events_to_a_full_disk_do_not_end_the_job(self):
        done = run("--events=/dev/full", f"--result-file={self.path('result')}", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.json_of("result")["log_bytes_lost"], 0)


if __name__ == "__main__":
    unittest.main()
