"""What is looked at before the start, by real jobs: limits, disks, GPUs, health checks, and what becomes of unfit nodes.

usage: preflight_test.py TORCHUP FAKE_NVML_LIBRARY TORCHUPD [unittest options]
"""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

TORCHUP, FAKE_NVML, TORCHUPD = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))

from torchupd import Torchupd  # noqa: E402
from waiting import state, until  # noqa: E402

LOST = "GPU 1 is lost (Xid 79)"
PR_SET_CHILD_SUBREAPER = 36


def living(text):
    """Processes whose command line has this text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and state(pid) not in (None, "Z", "X") and int(pid) != os.getpid():
            found.append((int(pid), line))
    return found


class Preflight(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.events_file = self.folder / "events"

    def environment(self, **more):
        return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), **more}

    def start(self, *words, name="", before="", program=TORCHUP, **environment):
        """A torchup, with its events in a file; `before`: what a shell does first, in mounts of our own."""
        command = [str(program), "--events", str(self.events_file) + name, *words]
        if before:
            if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
                self.skipTest("mounts of our own take root")
            command = ["unshare", "--mount", "sh", "-c", f"{before} && exec {shlex.join(command)}"]
        job = subprocess.Popen(command, env=self.environment(**environment), cwd=self.folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stdout.close(), job.stderr.close()))
        return job

    def run_job(self, *words, status=0, **more):
        job = self.start(*words, **more)
        out, err = job.communicate(timeout=100)
        self.assertEqual(job.returncode, status, err)
        return out, err

    def events(self, kind, name=""):
        path = Path(str(self.events_file) + name)
        if not path.exists():
            return []
        return [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] == kind]

    def until_found(self, check):
        """A worker that ends when this check has found something: quick checks keep no job waiting, at its end neither."""
        return "sh", "-c", f"until grep -qs '\"check\":\"{check}\"' {self.events_file}; do sleep 0.02; done"

    def found(self, check, name=""):
        return [event["text"] for event in self.events("preflight", name) if event["check"] == check]

    def gpus(self, scene):
        """What makes a machine of this one whose driver plays `scene` from a file, and the file."""
        library = self.folder / "libnvidia-ml.so.1"
        if not library.exists():
            library.symlink_to(FAKE_NVML)
        file = self.folder / "scene"
        file.write_text(scene)
        log = self.folder / "kmsg"
        log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:1b:02): 79, pid=1, GPU has fallen off the bus.\n")
        before = ("mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && touch /proc/driver/nvidia/version && "
                  f"mount --bind {log} /dev/kmsg")
        return {"before": before, "LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML_FILE": str(file)}, file


class OneNode(Preflight):
    def test_small_dev_shm(self):
        _, err = self.run_job(*self.until_found("shm"), before="mount -t tmpfs -o size=64m none /dev/shm")
        self.assertRegex(self.found("shm")[0], r"^/dev/shm has 6[34]\.\d MiB free, and 1 worker wants 1.0 GiB: ")
        self.assertIn(f"preflight: {self.found('shm')[0]}", err)

    def test_off_looks_at_nothing(self):
        self.run_job("--preflight=off", "true", before="mount -t tmpfs -o size=64m none /dev/shm")
        self.assertEqual(self.events("preflight"), [])

    def test_full_log_folder(self):
        self.run_job("--log-dir", str(self.folder / "logs" / "deep"), *self.until_found("disk"),
                     before=f"mkdir {self.folder}/logs && mount -t tmpfs -o size=8m none {self.folder}/logs")
        self.assertEqual([text.split(":")[0] for text in self.found("disk")], [f"log folder {self.folder}/logs/deep"])
        self.assertIn("8.0 MiB are free, less than 1.0 GiB", self.found("disk")[0])

    def test_disk_that_takes_no_file(self):
        out, err = self.run_job(
            "--preflight=full", "--log-dir", str(self.folder / "logs"), "true",
            before=f"mkdir {self.folder}/logs && mount -t tmpfs -o size=4k none {self.folder}/logs && "
                   f"head -c 4096 /dev/zero > {self.folder}/logs/all", status=0)
        self.assertTrue(any("no file can be written there: No space left on device" in text for text in self.found("disk")),
                        (self.found("disk"), err))

    def test_few_open_files(self):
        # What is left after the launcher's own need, which it refuses to go below.
        job = self.start("--nproc-per-node=40", "--no-capture", *self.until_found("nofile"), before="ulimit -n 220")
        out, err = job.communicate(timeout=60)
        if job.returncode == 65:
            self.assertIn("open files", err)
        else:
            self.assertTrue(self.found("nofile")[0].startswith("open files are limited to 220, and 40 workers want 224: "), err)

    def test_full_warns_and_the_job_runs(self):
        out, _ = self.run_job("--preflight=full", "echo", "ran", before="mount -t tmpfs -o size=64m none /dev/shm")
        self.assertEqual(out, "ran\n")
        self.assertEqual(len(self.found("shm")), 1)

    def test_ill_gpu(self):
        machine, _ = self.gpus("ill")
        out, err = self.run_job("--nproc-per-node=gpu", "--log-dir=/dev/null", *self.until_found("gpu"), **machine)
        told = self.found("gpu")
        self.assertEqual([text.split(":")[0] for text in told],
                         ["GPU 0 has a row to be remapped at its next reset",
                          "GPU 0 had 3 memory errors that ECC did not correct", "GPU 0 is slowed down for its heat",
                          f"GPU 0 has 20.0 GiB of 80.0 GiB free; held by pid 1 ({Path('/proc/1/comm').read_text().strip()}) with 60.0 GiB"])

    def test_gpu_that_the_job_does_not_use(self):
        machine, _ = self.gpus("ill")
        self.run_job("--gpus=1", "sleep", "0.2", **machine)
        self.assertEqual(self.found("gpu"), [])

    def test_lost_gpu_ends_a_job_of_one_node(self):
        machine, _ = self.gpus("lost")
        for option in ("--nproc-per-node=gpu", "--nproc-per-node=auto", "--numa-binding=node"):
            out, err = self.run_job(option, "echo", "ran", status=65, **machine)
            self.assertEqual(out, "")
            self.assertIn(f"this node is unfit: {LOST}", err)
            self.assertEqual(self.events("node_unfit")[-1]["reason"], LOST)

    def test_full_asks_for_gpus_that_no_option_names(self):
        machine, _ = self.gpus("lost")
        self.run_job("echo", "ran", **machine)
        self.assertEqual(self.events("node_unfit"), [])
        self.run_job("--preflight=full", "echo", "ran", status=65, **machine)
        self.assertEqual([event["reason"] for event in self.events("node_unfit")], [LOST])

    def test_gpu_that_is_lost_by_a_failure(self):
        machine, scene = self.gpus("whole")
        worker = f"test -e died && echo again || {{ touch died; echo lost > {scene}; exit 3; }}"
        out, err = self.run_job("--nproc-per-node=1", "--gpus=0,1", "--max-restarts=3", "sh", "-c", worker, status=65, **machine)
        self.assertNotIn("again", out)
        self.assertIn(f"this node is unfit: {LOST}", err)


    def test_alone_and_only_to_be_looked_at(self):
        out, _ = self.run_job("--preflight-only", before="mount -t tmpfs -o size=64m none /dev/shm")
        head, row, *lines = out.splitlines()
        self.assertEqual((head.split()[:2], row.split()[1]), (["node", "shm"], "warning"))
        self.assertRegex(lines[0], r": warning: /dev/shm has 6[34]\.\d MiB free")
        machine, _ = self.gpus("lost")
        out, _ = self.run_job("--preflight-only", "--json", status=65, **machine)
        told = json.loads(out)
        self.assertEqual([check["text"] for check in told["nodes"][0]["checks"] if check["level"] == "unfit"], [LOST])


    def test_lost_gpu_that_is_named(self):
        machine, _ = self.gpus("lost")
        for option in ("--gpus=0,1", "--gpus=GPU-00000000-aaaa"):
            out, err = self.run_job(option, "--nproc-per-node=1", "echo", "ran", status=65, **machine)
            self.assertEqual(out, "")
            self.assertIn(f"this node is unfit: {LOST}", err)
        _, err = self.run_job("--gpus=first", "echo", "ran", status=2, **machine)
        self.assertIn("no GPU 'first' here", err)

    def test_each_finding_is_said_once(self):
        machine, _ = self.gpus("lost")
        _, err = self.run_job("--nproc-per-node=gpu", "echo", "ran", status=65, **machine)
        self.assertEqual(err.count("start the machine again"), 1, err)
        self.assertEqual(err.count(LOST), 2, err)  # what was found, and why the job ends
        out, err = self.run_job("--preflight-only", status=65, **machine)
        self.assertEqual((out.count(LOST), out.count("node ")), (1, 1), out)
        self.assertNotIn(LOST, err)

    def test_versions_that_are_not_there_are_not_good(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for tool in ("sh", "true"):
            (empty / tool).symlink_to(shutil.which(tool))
        out, _ = self.run_job("--preflight-only", PATH=str(empty), PYTHON_EXEC="")
        self.assertNotIn("versions", out.splitlines()[0])
        python = self.folder / "python"
        for folder in ("bin", "lib/python3/dist-packages/torch-2.15.0.dist-info"):
            (python / folder).mkdir(parents=True)
        (python / "bin/python3").symlink_to("/bin/true")
        out, _ = self.run_job("--preflight-only", "--json", PYTHON_EXEC=str(python / "bin/python3"))
        self.assertEqual(json.loads(out)["nodes"][0]["versions"].get("torch"), "2.15.0")


class Health(Preflight):
    def check(self, command, *words, **more):
        return self.run_job("--health-check", command, *words, "echo", "ran", **more)

    def test_good(self):
        out, err = self.check("echo all is well; test ! -t 0 && test -z \"$(cat)\"")
        self.assertEqual((out, self.events("preflight")), ("ran\n", []))

    def test_bad(self):
        out, err = self.check("echo first; echo 'no mount of /data' >&2; exit 3", status=65)
        self.assertEqual(out, "")
        reason = "--health-check ended with 3: no mount of /data"
        self.assertIn(f"this node is unfit: {reason}", err)
        self.assertEqual(self.found("health"), [reason])
        self.assertEqual(self.events("job_ended")[0]["exit_code"], 65)

    def test_code_of_its_own_timeout(self):
        _, err = self.check("timeout 0.1 sleep 5", status=65)
        self.assertIn("--health-check ended with 124", err)

    def test_dies_by_a_signal(self):
        _, err = self.check("kill -9 $$", status=65)
        self.assertIn("--health-check ended with 137", err)

    def test_not_there(self):
        _, err = self.check("no_such_command_here", status=65)
        self.assertIn("--health-check ended with 127: ", err)

    def test_rubbish(self):
        command = "head -c 3000000 /dev/urandom; printf '\\n\\033[31mred\\000end\\n  \\n'; exit 1"
        _, err = self.check(command, status=65)
        self.assertIn("--health-check ended with 1: \\x1b[31mred", err)
        self.assertNotIn("\033", err)

    def test_one_line_without_end(self):
        _, err = self.check("yes | tr -d '\\n' | head -c 5000000; exit 1", status=65)
        self.assertLess(len(err), 2000)
        self.assertIn("--health-check ended with 1: yyyy", err)

    def test_output_without_end(self):
        mark = f"4248.{os.getpid()}"
        out, err = self.check(f"(yes {mark} &) ; yes {mark} | head -c 30000000; echo; echo last; exit 5", status=65)
        self.assertRegex(err, r"--health-check ended with 5: \S")  # its last word, or what the other had said by then
        self.assertEqual(living(f"yes {mark}"), [])

    def test_command_longer_than_the_kernel_takes(self):
        file = self.folder / "torchup.toml"
        file.write_text(f"health-check = \"true {'x' * 140_000}\"\n")
        _, err = self.run_job("--config", str(file), "echo", "ran", status=2)
        self.assertIn("--health-check: the command has 136.7 KiB, and 64.0 KiB at most", err)

    def test_variables(self):
        self.check(f'echo "$TORCHUP_RUN_ID|$TORCHUP_LAST_FAILURE|$(ps -o pgid= -p $$)|$$" >> {self.folder}/said', "--rdzv-id=run7",
                   "--standalone")
        run_id, failure, group, pid = (self.folder / "said").read_text().strip().split("|")
        self.assertEqual(failure, "")
        self.assertEqual(int(group), int(pid))
        self.assertNotEqual(run_id, "")

    def test_before_each_join_and_knows_the_failure(self):
        said = self.folder / "said"
        out, _ = self.run_job("--health-check", f'echo "[$TORCHUP_LAST_FAILURE]" >> {said}', "--max-restarts=1", "sh", "-c",
                              "test -e died || { touch died; exit 3; }")
        first, second = said.read_text().splitlines()
        self.assertEqual(first, "[]")
        self.assertRegex(second, r"\[rank 0 on .* exited with 3; restart 1 of 1\]")

    def test_unfit_after_a_failure(self):
        _, err = self.run_job("--health-check", "test ! -e died", "--max-restarts=3", "sh", "-c", "touch died; exit 3", status=65)
        self.assertIn("this node is unfit: --health-check ended with 1", err)

    def test_forks_leave_nothing(self):
        mark = f"4242.{os.getpid()}"
        for code, status in ((0, 0), (1, 65)):
            job = self.start("--health-check", f"setsid sleep {mark} & nohup sleep {mark} & (sleep {mark} &) ; exit {code}", "sh", "-c",
                             f"pgrep -fx 'sleep {mark}' > {self.folder}/left; true")
            _, err = job.communicate(timeout=60)
            self.assertEqual(job.returncode, status, err)
            self.assertEqual([line for _, line in living(f"sleep {mark}")], [])
            if status == 0:  # nor while the workers run
                self.assertEqual((self.folder / "left").read_text(), "")

    def hanging(self, name):
        mark = f"4243.{os.getpid()}{name}"
        job = self.start("--health-check", f"trap '' TERM INT; setsid sleep {mark} & touch {self.folder}/hangs; sleep {mark}",
                         "echo", "ran")
        until((self.folder / "hangs").exists, "the health check")
        return job, mark

    def test_hanging_one_is_ended_by_signals(self):
        for name, number, status in (("1", signal.SIGINT, 130), ("2", signal.SIGTERM, 143)):
            job, mark = self.hanging(name)
            job.send_signal(number)
            out, err = job.communicate(timeout=40)
            self.assertEqual((job.returncode, out), (status, ""), err)
            self.assertEqual(living(f"sleep {mark}"), [])
            (self.folder / "hangs").unlink()

    def test_killed_launcher_takes_it_along(self):
        job, mark = self.hanging("3")
        job.kill()
        job.wait()
        until(lambda: not living(f"sleep {mark}"), "nothing of it lives")

    def test_timeout_of_the_job(self):
        job = self.start("--timeout=1", "--health-check", "sleep 4244", "echo", "ran")
        out, err = job.communicate(timeout=40)
        self.assertEqual((job.returncode, out), (1, ""), err)


class Meeting(Preflight):
    def setUp(self):
        super().setUp()
        self.daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1")
        self.addCleanup(self.daemon.end)

    def node(self, name, *words, nnodes="2", **more):
        return self.start(f"--nnodes={nnodes}", "--rdzv-backend=c10d", "--rdzv-id=preflight", f"--rdzv-endpoint={self.daemon.endpoint}",
                          *words, name=name, **more)

    def ends(self, job, status):
        out, err = job.communicate(timeout=100)
        self.assertEqual(job.returncode, status, err)
        return out, err


class TwoNodes(Meeting):
    def test_both_end_with_65_where_both_are_needed(self):
        sick = self.node("a", "--health-check", "echo no mount; exit 3", "echo", "ran")
        well = self.node("b", "echo", "ran")
        for job in (sick, well):
            out, err = self.ends(job, 65)
            self.assertEqual(out, "")
            self.assertIn("too few nodes are fit: 1 of 2 nodes: ", err)
            self.assertIn(": unfit: --health-check ended with 3: no mount", err)
        self.assertEqual([event["reason"] for event in self.events("node_unfit", "a")], ["--health-check ended with 3: no mount"])
        self.assertEqual(self.events("node_unfit", "b"), [])

    def test_the_other_goes_on_and_the_unfit_one_comes_when_it_is_fit(self):
        fit = self.folder / "fit"
        worker = ["sh", "-c", f'echo "$RANK of $WORLD_SIZE restarts $TORCHELASTIC_RESTART_COUNT"; echo "$WORLD_SIZE" >> {self.folder}/ran; '
                              f"while ! test -e {self.folder}/end; do sleep 0.05; done"]
        conf = ["--rdzv-conf=last_call_timeout=1"]
        well = self.node("b", *conf, *worker, nnodes="1:2")
        until((self.folder / "ran").exists, "the first round")
        sick = self.node("a", *conf, "--health-check", f"echo not yet; test -e {fit}", *worker, nnodes="1:2")
        until(lambda: self.events("node_unfit", "a"), "it is unfit")
        fit.touch()
        until(lambda: (self.folder / "ran").read_text().split().count("2") == 2, "both take part")  # within 30 s
        self.assertEqual(sorted((self.folder / "ran").read_text().split()), ["1", "2", "2"])  # nobody has stopped for it before
        (self.folder / "end").touch()
        out, _ = self.ends(well, 0)
        self.assertEqual([line.partition("restarts")[2] for line in out.splitlines()], [" 0", " 0"])
        _, err = self.ends(sick, 0)
        self.assertIn("is fit again", err)


    def test_nodes_that_meet_only_to_be_looked_at(self):
        jobs = [self.node(name, "--preflight-only", *words) for name, *words in (("a", "--json"), ("b", "--health-check", "exit 3"))]
        out, err = self.ends(jobs[0], 65)
        told = json.loads(out)
        self.assertEqual((told["exit_code"], len(told["nodes"])), (65, 2))
        fit, sick = sorted(told["nodes"], key=lambda node: not node["fit"])
        self.assertEqual([(check["check"], check["level"]) for check in fit["checks"] if check["level"] == "unfit"], [])
        self.assertEqual([check["text"] for check in sick["checks"] if check["level"] == "unfit"], ["--health-check ended with 3"])
        for node in told["nodes"]:
            self.assertLess({"shm", "nofile", "pids", "disk", "pairs"}, {check["check"] for check in node["checks"]})
        table, _ = self.ends(jobs[1], 65)
        head, *rows = table.splitlines()
        self.assertEqual(head.split()[:3], ["node", "shm", "nofile"])
        self.assertIn("unfit", " ".join(rows[:2]))
        self.assertIn(": unfit: --health-check ended with 3", table)

    def test_fit_nodes_end_with_0(self):
        jobs = [self.node(name, "--preflight-only") for name in "ab"]
        for job in jobs:
            out, err = self.ends(job, 0)
            self.assertEqual(out.splitlines()[0].split()[0], "node")

    def test_table_is_printed_once_and_to_nobody_who_has_gone(self):
        jobs = [self.node(name, "--preflight-only") for name in "ab"]
        outs = [self.ends(job, 0) for job in jobs]
        for out, err in outs:
            self.assertEqual(out.count("node "), 1, out)
        self.assertEqual(outs[0][0], outs[1][0])  # the same table
        broken = self.node("c", "--preflight-only", "--rdzv-id=other")
        broken.stdout.close()
        other = self.node("d", "--preflight-only", "--rdzv-id=other")
        self.assertEqual((broken.wait(100), other.wait(100)), (1, 1))

    def test_versions_that_differ_are_told_at_level_quick(self):
        pythons = []
        for name, version in (("a", "2.15.0"), ("b", "2.9.1")):
            python = self.folder / name / "bin" / "python3"
            python.parent.mkdir(parents=True)
            python.symlink_to("/bin/true")
            (self.folder / name / "lib/python3.11/site-packages" / f"torch-{version}.dist-info").mkdir(parents=True)
            pythons.append(python)
        script = self.folder / "program.py"
        script.touch()
        jobs = [self.node(name, str(script), PYTHON_EXEC=str(python)) for name, python in zip("ab", pythons)]
        errors = [self.ends(job, 0)[1] for job in jobs]
        for err in errors:
            self.assertIn("the nodes differ: ", err)
            self.assertRegex(err, "torch: 2.15.0 on .*; 2.9.1 on |torch: 2.9.1 on .*; 2.15.0 on ")

    def test_one_leaves_while_the_others_compare(self):
        stay = [self.node(name, "--preflight-only", nnodes="2:3") for name in "ab"]
        leaver = self.node("c", "--preflight-only", "--health-check", f"touch {self.folder}/looks; cat {self.folder}/pipe", nnodes="2:3")
        os.mkfifo(self.folder / "pipe")
        until((self.folder / "looks").exists, "its health check")
        leaver.send_signal(signal.SIGTERM)
        leaver.communicate(timeout=100)
        for job in stay:
            out, err = self.ends(job, 0)
            self.assertEqual(out.count("node "), 1, err)

    def test_too_few_come(self):
        out, err = self.ends(self.node("a", "--preflight-only", "--rdzv-conf=join_timeout=1"), 66)
        self.assertEqual(out.splitlines()[0].split()[0], "node")

    def test_full_tries_the_ways_before_workers_start(self):
        jobs = [self.node(name, "--preflight=full", "sh", "-c", 'echo "$RANK of $WORLD_SIZE"') for name in "ab"]
        self.assertEqual(sorted(self.ends(job, 0)[0] for job in jobs), ["0 of 2\n", "1 of 2\n"])
        for name in "ab":
            self.assertEqual([event["text"] for event in self.events("warning", name) if "ways" in event["text"]], [])


class Nccl(Meeting):
    """With a torchup of our own, beside which lies what we play all_reduce with."""

    def setUp(self):
        super().setUp()
        self.own = self.folder / "own"
        self.own.mkdir()
        shutil.copy(TORCHUP, self.own / "torchup")
        self.machine, _ = self.gpus("whole")

    def all_reduce(self, name, text):
        file = self.own / "all_reduce"
        file.write_text(f"#!/bin/sh\necho \"$WORLD_SIZE gpus=$CUDA_VISIBLE_DEVICES $*\" >> {self.folder}/asked\n{text}\n")
        file.chmod(0o755)

    def table(self, status, level="--preflight-only", *words):
        jobs = [self.node(name, level, "--json", *words, program=self.own / "torchup", **self.machine) for name in "ab"]
        return [json.loads(self.ends(job, status)[0]) for job in jobs]

    def told(self, tables):
        self.assertEqual(tables[0], tables[1])
        return [[(check["level"], check["text"]) for check in node["checks"] if check["check"] == "nccl"] for node in tables[0]["nodes"]]

    ALONE = 'test -z "$WORLD_SIZE" && echo 4 1 1 1 && exit'

    def test_no_all_reduce(self):
        self.assertEqual(self.told(self.table(0)), [[], []])

    def test_without_nccl_it_is_skipped(self):
        self.all_reduce("a", "echo 'NCCL is not there' >&2; exit 1")
        why = "pairs over NCCL are not tried: all_reduce: NCCL is not there"
        self.assertEqual(self.told(self.table(0)), [[("skipped", why)]] * 2)

    def test_pairs_that_work(self):
        self.all_reduce("a", f"{self.ALONE}; test $RANK = 1 || echo 67108864 1 12.5 12.5")
        self.assertEqual(self.told(self.table(0)), [[("ok", "")]] * 2)
        self.assertIn("2 gpus= --backend nccl --min-bytes 67108864 --max-bytes 67108864", (self.folder / "asked").read_text())

    def test_on_the_gpus_of_the_job(self):
        self.all_reduce("a", f"{self.ALONE}; test $RANK = 1 || echo 67108864 1 12.5 12.5")
        self.assertEqual(self.told(self.table(0, "--preflight-only", "--gpus=1")), [[("ok", "")]] * 2)
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual(sorted(line.split(" --")[0] for line in asked), [" gpus=1"] * 2 + ["2 gpus=1"] * 2)

    def test_job_goes_on_without_it(self):
        self.all_reduce("a", "echo 'NCCL is not there' >&2; exit 1")
        jobs = [self.node(name, "--preflight=full", "echo", "ran", program=self.own / "torchup", **self.machine) for name in "ab"]
        for job, name in zip(jobs, "ab"):
            out, err = self.ends(job, 0)
            self.assertEqual(out, "ran\n")
            self.assertEqual(self.found("nccl", name), ["pairs over NCCL are not tried: all_reduce: NCCL is not there"])
        self.assertEqual(len((self.folder / "asked").read_text().splitlines()), 2)  # each node has tried it alone

    def test_pairs_that_fail(self):
        self.all_reduce("a", f"{self.ALONE}; echo 'NCCL error: unhandled system error'; exit 1")
        for level, text in sum(self.told(self.table(65)), []):
            self.assertEqual(level, "unfit")
            self.assertIn("1 of 1 pairs bad: no connection with", text)
            self.assertIn("NCCL error: unhandled system error", text)


class Refused(Preflight):
    def refused(self, *words, **environment):
        job = subprocess.run([TORCHUP, *words, "true"], env=self.environment(**environment), capture_output=True, text=True, timeout=60)
        self.assertEqual(job.returncode, 2, job.stderr)
        return job.stderr

    def test_wrong_values(self):
        self.assertIn("argument --preflight: invalid choice: 'fast' (choose from 'off', 'quick', 'full')", self.refused("--preflight=fast"))
        self.assertIn("PET_PREFLIGHT: invalid choice: 'fast'", self.refused(PET_PREFLIGHT="fast"))
        for blank in ("", "  "):
            self.assertIn("--health-check: no command is given", self.refused(f"--health-check={blank}"))

    def test_dry_run_shows_them(self):
        plan = subprocess.run([TORCHUP, "--dry-run", "--preflight=full", "--health-check=nvidia-smi -L", "true"], capture_output=True, text=True,
                              check=True).stdout
        self.assertIn("preflight         full\n", plan)
        self.assertIn("health check      sh -c 'nvidia-smi -L'\n", plan)
        plan = subprocess.run([TORCHUP, "--dry-run", "true"], capture_output=True, text=True, check=True).stdout
        self.assertIn("preflight         quick\n", plan)

    def test_variables(self):
        out, err = self.run_job("echo", "ran", status=65, PET_HEALTH_CHECK="exit 4")
        self.assertIn("--health-check ended with 4", err)
        self.run_job("--health-check", "exit 0", "echo", "ran", PET_HEALTH_CHECK="exit 4")


if __name__ == "__main__":
    unittest.main()
