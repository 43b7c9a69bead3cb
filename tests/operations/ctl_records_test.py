"""torchupctl on what jobs have left, and what it says about itself.

usage: ctl_records_test.py TORCHUPCTL FAKE_NVML_LIBRARY [unittest options]
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from ctl_case import TORCHUPCTL, Ctl
from fake_launcher import Job

FAKE_NVML = os.path.abspath(sys.argv.pop(1))

HOSTILE = "</script><img src=x onerror=alert(1)>"


def story(host, first_rank, incident):
    """The events of one of two nodes, with a failure at its end."""
    def event(second, kind, /, **fields):
        return {"schema": 1, "time": f"2026-11-21T04:00:{second:02}.000000Z", "monotonic_us": second * 1_000_000, "host": host,
                "event": kind, **fields}
    return [event(0, "job_started", run_id="mnist", name="train.py", min_nodes=2, max_nodes=2, local_world_size=1,
                  max_restarts=0),
            event(10, "round_completed", round=0, group_rank=first_rank, first_rank=first_rank, world_size=2, restart_count=0),
            event(10, "worker_started", rank=first_rank, local_rank=0, pid=7),
            event(30, "worker_exited", rank=first_rank, local_rank=0, pid=7, exit_code=1, end="failed", message=HOSTILE),
            event(31, "attempt_ended", reason="x"),
            event(31, "incident_recorded", path=str(incident), summary=f"rank {first_rank}: {HOSTILE}", restarted=False),
            event(32, "job_ended", exit_code=1, reason="x", failures=[{"rank": first_rank}])]


class Records(Ctl):
    def setUp(self):
        super().setUp()
        self.incident = self.folder / "incident.json"
        self.incident.write_text(json.dumps({"last_lines": ["the last of its lines"]}))
        self.files = []
        for rank in (0, 1):
            path = self.folder / f"events{rank}.jsonl"
            path.write_text("".join(json.dumps(each) + "\n" for each in story("one-host", rank, self.incident)))
            self.files.append(path)

    def test_the_ledger_of_files(self):
        ledger = json.loads(self.ctl("ledger", *self.files, "--json", code=0).stdout)
        self.assertEqual(ledger["rank_seconds"], 64)
        self.assertEqual((ledger["waiting"], ledger["useful"]), (20, 40))
        self.assertAlmostEqual(sum(value for name, value in ledger.items() if name not in ("rank_seconds", "basis")), 64)
        self.assertRegex(self.ctl("ledger", *self.files, code=0).stdout,
                         r"^2 ranks x 0:00:32 = 1.1 rank minutes, 62.5 % useful\n")

    def test_the_ledger_of_files_of_many_rounds(self):
        """In each round one rank waits for the other: only who has read both files knows for how long."""
        rounds = 70
        for rank, path in enumerate(self.files):
            def event(second, kind, rank=rank, /, **fields):
                return {"schema": 1, "time": "2026-11-21T04:00:00.000000Z", "monotonic_us": second * 1_000_000,
                        "host": f"node{rank}", "event": kind, **fields}
            events = [event(0, "job_started", run_id="mnist", local_world_size=1)]
            for at in range(rounds):
                begin = 10 * at
                events += [event(begin, "round_completed", round=at, first_rank=rank, restart_count=at),
                           event(begin, "worker_started", local_rank=0),
                           event(begin + 8, "worker_exited", local_rank=0, rank=rank, end="failed", first_step=8 * at + 1,
                                 last_step=8 * at + 8, first_step_us=begin * 1_000_000, last_step_us=(begin + 8) * 1_000_000,
                                 waited_us=2_000_000 * rank),
                           event(begin + 8, "attempt_ended")]
            events.append(event(10 * rounds, "job_ended", failures=[{"rank": 0}]))
            path.write_text("".join(json.dumps(each) + "\n" for each in events))
        ledger = json.loads(self.ctl("ledger", *self.files, "--json", code=0).stdout)
        self.assertEqual((ledger["rank_seconds"], ledger["straggler"], ledger["redone"]), (20 * rounds, 2 * rounds, 0))

    def test_files_of_several_jobs_have_no_ledger(self):
        other = self.folder / "other.jsonl"
        other.write_text(self.files[0].read_text().replace("mnist", "gpt"))
        for words in (("ledger",), ("report", "-o", "-")):
            done = self.ctl(*words, self.files[0], other, code=2)
            self.assertEqual(done.stdout, "")
            self.assertIn(f"{other} is of the job 'gpt', and {self.files[0]} of 'mnist'", done.stderr)
        both = self.folder / "both.jsonl"  # one file of two jobs, one after the other, is of the last one
        both.write_text(other.read_text() + self.files[0].read_text())
        self.ctl("ledger", both, self.files[1], code=0)

    def test_the_ledger_of_a_job(self):
        job = Job()
        job.snapshot["ledger"] = {"rank_seconds": 100.0, "useful": 75.5, "waiting": 24.5, "basis": "steps"}
        self.launcher(job)
        self.assertEqual(json.loads(self.ctl("ledger", "mnist", "--json", code=0).stdout), job.snapshot["ledger"])
        self.assertIn("75.5 % useful", self.ctl("ledger", code=0).stdout)

    def test_a_job_does_not_say_how_many_steps_and_hangs_there_were(self):
        job = Job()
        job.snapshot.update(world_size=0, ledger={"rank_seconds": 100.0, "useful": 70.0, "redone": 20.0, "hang": 10.0,
                                                  "basis": "steps"})
        self.launcher(job)
        text = self.ctl("ledger", code=0).stdout
        self.assertIn("steps since the last checkpoints", text)
        self.assertIn("until it was found", text)
        self.assertNotRegex(text, r"\b0 (rank|step|hang)")

    def test_a_report_is_the_page_with_the_events_inside(self):
        output = self.folder / "report.html"
        self.ctl("report", *self.files, "--output", output, code=0)
        html = output.read_text()
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
        self.assertNotIn("<", data)
        self.assertNotIn(HOSTILE, html)
        told = json.loads(data)
        self.assertEqual(len(told["events"]), 14)
        self.assertEqual(told["snapshot"]["run_id"], "mnist")
        self.assertEqual(told["snapshot"]["ledger"]["rank_seconds"], 64)
        self.assertEqual({node["first_rank"]: node["ranks"] for node in told["snapshot"]["nodes"].values()}, {0: "x", 1: "x"})
        self.assertEqual(told["snapshot"]["incidents"][0]["last_lines"], ["the last of its lines"])
        self.assertEqual(self.ctl("report", *self.files, "-o", "-", code=0).stdout, html)

    def test_a_timeline_has_a_process_for_each_file(self):
        trace = json.loads(self.ctl("timeline", *self.files, "--output", "-", code=0).stdout)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        names = {each["args"]["name"] for each in events if each["ph"] == "M" and each["name"] == "process_name"}
        self.assertEqual(names, {"one-host (1)", "one-host (2)"})
        self.assertTrue(any(each["ph"] == "X" for each in events))

    def test_what_is_no_file_is_written_into_and_stays(self):
        for name in ("fifo", "link", "missing"):
            (self.folder / name).mkdir()
        fifo = self.folder / "fifo" / "trace"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        link, target = (self.folder / "link" / name for name in ("trace", "target"))
        target.write_text("x" * 100_000)
        link.symlink_to("target")
        missing = self.folder / "missing" / "trace"
        missing.symlink_to("target")
        text = self.ctl("timeline", *self.files, "-o", "-", code=0).stdout
        for path in (fifo, link, missing):
            self.ctl("timeline", *self.files, "-o", path, code=0)
        self.assertTrue(fifo.is_fifo())
        self.assertEqual(os.read(reader, 1 << 20).decode(), text)
        for path in (link, missing):
            self.assertTrue(path.is_symlink())
            self.assertEqual(path.read_text(), text)

    def test_a_file_is_made_under_a_name_that_nobody_can_lay(self):
        output, victim = self.folder / "trace", self.folder / "victim"
        victim.write_text("precious")
        (self.folder / "trace.new").symlink_to("victim")
        self.ctl("timeline", *self.files, "-o", output, code=0)
        self.assertEqual(victim.read_text(), "precious")
        self.assertFalse(output.is_symlink())
        self.assertEqual([path.name for path in self.folder.glob("*trace*") if path.name != "trace.new"], ["trace"])

    def test_the_schema_of_events(self):
        self.assertEqual(json.loads(self.ctl("events", "--schema", code=0).stdout)["$schema"],
                         "https://json-schema.org/draft/2020-12/schema")

    def test_files_that_cannot_be_read_or_written(self):
        for words in (("report", "none", "-o", "x"), ("report", self.files[0], "-o", "none/x"), ("report", self.files[0]), ("timeline", self.files[0]),
                      ("ledger", self.files[0], "none")):
            with self.subTest(words):
                self.assertTrue(self.ctl(*words, code=2).stderr.strip())
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["events0.jsonl", "events1.jsonl", "incident.json", "sockets"])


class Itself(Ctl):
    def test_explain(self):
        self.assertIn("too few nodes", self.ctl("explain", "66", code=0).stdout)
        for word in ("-9", "137", "SIGKILL", "KILL"):
            out = self.ctl("explain", word, code=0).stdout
            self.assertIn("SIGKILL", out)
            self.assertIn("dmesg", out)
        parts = json.loads(self.ctl("explain", "1", "--json").stdout)["parts"]
        self.assertEqual([part["as"] for part in parts], ["launcher", "worker"])
        self.ctl("explain", "SIGNOTHING", code=2)

    def test_wrong_words_are_refused_before_anything_is_asked(self):
        job = self.launcher(Job())
        for words in ((), ("pss",), ("status", "--rank", "3"), ("logs", "--rank", "x"), ("ps", "mnist")):
            done = self.ctl(*words, code=2)
            self.assertIn("torchupctl: error: ", done.stderr)
            self.assertEqual(done.stdout, "")
        self.assertEqual(job.requests, [])

    def test_an_answer_that_cannot_be_written_is_none(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([TORCHUPCTL, "ps"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=self.environment, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout", done.stderr)

    def test_help_manual_and_version(self):
        out = self.ctl("--help", code=0).stdout
        verbs = re.findall(r"^  ([a-z]+) ", out[out.index("Looking at jobs"):out.index("JOB:")], re.M)
        self.assertGreaterEqual(len(verbs), 17)
        page = (Path(TORCHUPCTL).parents[1] / "share/man/man1/torchupctl.1").read_text()
        for verb in verbs:
            self.assertIn(f"\\fB{verb}\\fR", page)
            self.assertIn(f"usage: torchupctl {verb}", self.ctl(verb, "--help", code=0).stdout)
        self.assertNotRegex(self.ctl("stacks", "--help", code=0).stdout, "gdb|eu-stack")  # neither is called
        self.assertRegex(self.ctl("--version", code=0).stdout, r"^torchupctl \d+\.\d+\.\d+\n$")
        json.loads(self.ctl("--version", "--json", code=0).stdout)

    def on_path(self):
        return {**self.environment, "PATH": f"{Path(TORCHUPCTL).parent}:{os.environ['PATH']}"}

    def complete(self, line):
        bash = shutil.which("bash")
        if not bash:
            self.skipTest("bash is not installed")
        (self.folder / "script").write_text(self.ctl("--print-completion", "bash", code=0).stdout)
        program = """source ./script; line=$1; read -ra COMP_WORDS <<<"$line"
                     [[ $line == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _torchupctl
                     printf '%s\\n' "${COMPREPLY[@]}" """
        return subprocess.run([bash, "--norc", "-c", program, "bash", line], check=True, capture_output=True, text=True,
                              cwd=self.folder, env=self.on_path()).stdout.splitlines()

    def test_completion(self):
        self.launcher(Job("mnist-17"))
        self.assertIn("status", self.complete("torchupctl sta"))
        self.assertIn("--stream", self.complete("torchupctl logs --s"))
        self.assertNotIn("--stream", self.complete("torchupctl stop --s"))
        self.assertEqual(self.complete("torchupctl logs --stream std"), ["stdout", "stderr"])
        self.assertIn("mnist-17", self.complete("torchupctl status mn"))
        for shell in ("zsh", "fish", "tcsh"):
            self.assertIn("undrain", self.ctl("--print-completion", shell, code=0).stdout)

    def test_a_run_id_is_completed_and_not_executed(self):
        hostile = ["$(touch executed)", "`touch executed`", "*", "caf\u00e9 au lait"]
        for pid, run_id in enumerate(hostile, 11):
            self.launcher(Job(run_id, pid), pid)
        (self.folder / "a file").touch()
        offered = self.complete("torchupctl status ")
        self.assertEqual([word for word in [*hostile, "a file"] if word not in offered], [], offered)
        self.assertFalse((self.folder / "executed").exists())

    def test_completion_by_fish(self):
        fish = shutil.which("fish")
        if not fish:
            self.skipTest("fish is not installed")
        (self.folder / "script").write_text(self.ctl("--print-completion", "fish", code=0).stdout)

        def complete(line):
            done = subprocess.run([fish, "--no-config", "-c", 'source script; complete -C "$argv[1]"', line], check=True,
                                  capture_output=True, text=True, cwd=self.folder,
                                  env={**self.on_path(), "HOME": str(self.folder)})
            self.assertEqual(done.stderr, "")
            return [offer.split("\t")[0] for offer in done.stdout.splitlines()]

        self.assertEqual(complete("torchupctl sta"), ["stacks", "status"])
        self.assertEqual(complete("torchupctl logs --stream "), ["stderr", "stdout"])
        self.assertEqual(complete("torchupctl stop --s"), ["--save"])


class Gpus(Ctl):
    def test_no_driver_is_a_sentence(self):
        if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a driver")
        self.assertIn("driver", self.ctl("gpus", code=0).stdout)
        told = json.loads(self.ctl("gpus", "--json", code=0).stdout)
        self.assertEqual(told["gpus"], [])
        self.assertIn("driver", told["reason"])

    def test_gpus_have_their_holders(self):
        (self.folder / "libnvidia-ml.so.1").symlink_to(FAKE_NVML)
        inside = ("mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && touch /proc/driver/nvidia/version && "
                  f"LD_LIBRARY_PATH={shlex.quote(str(self.folder))} exec {shlex.quote(TORCHUPCTL)} gpus ")
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("a mount of our own takes root")
        run = lambda *words: subprocess.run(["unshare", "--mount", "sh", "-c", inside + shlex.join(words)], capture_output=True,
                                            text=True, timeout=60, check=True,
                                            env={**self.environment, "FAKE_NVML": "ill"}).stdout
        self.assertRegex(run(), r"(?m)^GPU 0: .* \(UUID: GPU-.*\)\n    pid 1  root  ")
        self.assertEqual(json.loads(run("--json"))["gpus"][0]["holders"][0]["pid"], 1)


if __name__ == "__main__":
    unittest.main()
