"""Which failure is the cause, and what is found of it: jobs of plain Python, and what their incidents say.

usage: tests/support/run_case.py cause_test.py CASE TORCHUP
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import ranks  # noqa: E402

TORCHUP = os.path.abspath(sys.argv[1])


class Cause(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def play(self, program, *options, before=(), environment=()):
        """The exit status, the report and the incident of a job of two ranks, of which this is the program."""
        path = self.folder / "program.py"
        path.write_text("import os, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(program))
        job = subprocess.run([*before, TORCHUP, "--nproc-per-node=2", f"--log-dir={self.folder}/logs", *options,
                              "--no-python", sys.executable, str(path)],
                             stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, cwd=self.folder,
                             env={**os.environ, **dict(environment)})
        incident, = (self.folder / "logs").glob("*/attempt_0/incident.json")
        return job.returncode, job.stderr, json.loads(incident.read_text())

    def root(self, incident):
        return incident["failures"][incident["root_cause"]]

    def test_a_consequence_that_is_seen_first(self):
        """An exception on its way out ends connections before it ends its process: the others die first."""
        status, report, incident = self.play("""
            if rank == 1:
                try:
                    raise ValueError("loss is nan")
                finally:
                    while not os.path.exists("pid"):
                        time.sleep(0.01)
                    import select
                    with open("pid") as file:
                        other = os.pidfd_open(int(file.read()))
                    open("seen", "w").close()
                    select.select([other], [], [])
            with open("pid.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename("pid.new", "pid")
            while not os.path.exists("seen"):
                time.sleep(0.01)
            raise RuntimeError("Connection closed by peer [127.0.0.1]:5231")
            """)
        self.assertEqual(status, 1)
        self.assertEqual((self.root(incident)["rank"], self.root(incident)["consequence"]), (1, False))
        self.assertEqual([failure["consequence"] for failure in incident["failures"]], [True, False])
        self.assertIn("ValueError: loss is nan", incident["summary"])
        self.assertIn("ValueError: loss is nan", incident["evidence"]["traceback"])
        cause = report[report.index("Root Cause"):]
        self.assertIn("rank      : 1 (local_rank: 1)", cause[:cause.index("error_file")])

    def test_a_cause_that_does_not_come(self):
        """Half a second, and no more, is waited for it."""
        status, _, incident = self.play("""
            if rank == 1:
                time.sleep(1000)
            raise RuntimeError("Connection closed by peer [127.0.0.1]:5231")
            """)
        self.assertEqual(status, 1)
        self.assertEqual(self.root(incident)["rank"], 0)
        self.assertIn("no rank failed by itself: a network, or a node that is gone", incident["summary"])

    def test_a_cause_of_its_own_is_not_waited_for(self):
        """What a signal ends is its own cause, whatever it has said before."""
        _, _, incident = self.play("""
            if rank == 1:
                time.sleep(1000)
            print("Connection closed by peer", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 9)
            """)
        self.assertEqual([failure["consequence"] for failure in incident["failures"]], [False])

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            _, _, incident = self.play(f"""
                import socket
                if rank == 1:
                    time.sleep(1000)
                try:
                    socket.socket().bind(("127.0.0.1", {port}))
                except OSError as error:
                    raise RuntimeError("cannot serve on port {port}: " + str(error)) from None
                """)
        self.assertIn("its port is taken", incident["summary"])
        self.assertEqual(len(incident["evidence"]["findings"]), 1, incident["evidence"])
        self.assertRegex(incident["evidence"]["findings"][0], rf"^port {port}: pid {os.getpid()} \(.*cause_test")

    def test_a_port_that_is_free_again(self):
        _, report, incident = self.play("""
            if rank == 0:
                sys.exit("bind: Address already in use: 127.0.0.1:1")
            time.sleep(1000)
            """)
        self.assertEqual(incident["evidence"]["findings"], ["port 1: nobody listens on it by now"])
        self.assertIn("  port 1: nobody listens on it by now\n", report)

    def test_a_file_system_that_is_full(self):
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
            self.skipTest("needs a mount namespace")
        small = self.folder / "small"
        small.mkdir()
        mount = f'mount -t tmpfs -o size=1m none {small} && exec "$@"'
        _, _, incident = self.play(f"""
            if rank == 1:
                time.sleep(1000)
            path = "{small}/checkpoint"
            with open(path, "wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 65536):
                        pass
                except OSError as error:
                    raise OSError(error.errno, error.strerror, path) from None
            """, before=["unshare", "--mount", "sh", "-c", mount, "sh"])
        self.assertIn("a file system is full", incident["summary"])
        self.assertEqual(incident["evidence"]["findings"],
                         [f"the file system of {small} is full: 0 of 1 MiB are free"])

    def test_a_limit_of_open_files(self):
        _, _, incident = self.play("""
            if rank == 1:
                time.sleep(1000)
            files = []
            while True:
                files.append(open("/dev/null"))
            """)
        self.assertIn("it had as many files open as it may", incident["summary"])
        self.assertRegex(incident["evidence"]["findings"][0], r"^limit of open files: \d+ \(ulimit -n\)")

    def test_an_exception_that_is_older_than_what_was_told_of(self):
        """Its error file says so; report and exit status name the same."""
        status, report, incident = self.play("""
            import json, signal
            if rank == 1:
                signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
                words = {"message": "loss is nan", "timestamp": int(time.time()) - 5}
                with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
                    json.dump(words, file)
                open("written", "w").close()
                time.sleep(1000)
            while not os.path.exists("written"):
                time.sleep(0.01)
            raise RuntimeError("Connection closed by peer")
            """, "--propagate-exit-code")
        self.assertEqual(status, 7)
        cause = report[report.index("Root Cause"):]
        self.assertIn("rank      : 1 (local_rank: 1)", cause[:cause.index("error_file")])
        self.assertEqual(self.root(incident)["rank"], 1)

    def several_nodes(self, number):
        """Summaries of the incidents of two nodes. Rank 0 fails first, and of another's end; rank 1 by itself."""
        folder = self.folder / str(number)
        folder.mkdir()
        program = folder / "program.py"
        program.write_text(textwrap.dedent(f"""
            import os, time
            if os.environ["RANK"] == "1":
                while not os.path.exists("{folder}/raises"):
                    time.sleep(0.01)
                time.sleep(0.1)
                raise ValueError("loss is nan")
            open("{folder}/raises", "w").close()
            raise RuntimeError("Connection closed by peer")
            """))
        port = ranks.free_port()
        nodes = [subprocess.Popen([TORCHUP, "--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{port}",
                                   "--rdzv-backend=c10d", f"--log-dir={folder}/logs{node}", "--rdzv-id=cause",
                                   "--no-python", sys.executable, str(program)],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for node in range(2)]
        reports = [node.communicate(timeout=60)[1] for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [1, 1])
        for report in reports:
            cause = report[report.index("Root Cause"):]
            self.assertIn("rank      : 1 (local_rank: 0)", cause[:cause.index("error_file")])
        return [json.loads(path.read_text())["summary"] for path in folder.glob("logs*/*/*/incident.json")]

    def test_several_nodes(self):
        """The cause is on another node: this one's report names it, and says that none of its own failed by itself."""
        for number in range(5):
            incidents = self.several_nodes(number)
            if len(incidents) == 2:
                break  # else rank 0 was stopped before it had failed
        self.assertTrue(any(summary.endswith("no rank of this node failed by itself") for summary in incidents),
                        incidents)


if __name__ == "__main__":
    unittest.main()
