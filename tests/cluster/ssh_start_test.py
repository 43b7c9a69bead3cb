"""What `torchup --hosts` starts on hosts of a real sshd, with which surroundings, what it shows, and what it refuses.

usage: ssh_start_test.py TORCHUP [unittest options]      skipped without root, network namespaces or sshd
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from fan_out import HostCase, until
from ssh_hosts import FRONT

TORCHUP = os.path.abspath(sys.argv.pop(1))


class Start(HostCase):
    torchup = TORCHUP

    def test_each_host_has_its_workers_in_the_order_of_the_list(self):
        hosts = self.hosts()
        place = 'echo "$RANK/$WORLD_SIZE $GROUP_RANK $LOCAL_RANK $(hostname) $MASTER_ADDR"'
        job = self.job(hosts, "--nproc-per-node=2", on=("h3", "h1", "h2"), program=("sh", "-c", place)).run_to_end(0)
        master = hosts.address("h3")
        self.assertEqual(sorted(job.lines()), sorted(
            f"{name}: {2 * node + local}/6 {node} {local} {name} {master}"
            for node, name in enumerate(("h3", "h1", "h2")) for local in range(2)))

    def test_slots_are_workers(self):
        hosts = self.hosts("h1", "h2")
        (hosts.folder / "list").write_text("# two of them\nh1 slots=2\nh2:1\n")
        job = self.job(hosts, f"--hostfile={hosts.folder / 'list'}", on=(), slots=True,
                       program=("sh", "-c", "echo $RANK/$WORLD_SIZE")).run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["h1: 0/3", "h1: 1/3", "h2: 2/3"])

    def test_the_address_that_was_reached_or_named_is_the_master_s(self):
        hosts = self.hosts("h1", "h2")
        for index, name in enumerate(hosts.names, 1):  # the first of its addresses is another
            hosts.ip(name, "address", "flush", "dev", "eth0")
            hosts.ip(name, "address", "add", f"10.78.0.{index}/16", "dev", "eth0")
            hosts.ip(name, "address", "add", f"{hosts.address(name)}/16", "dev", "eth0")
        (hosts.folder / "list").write_text("h1 addr=10.78.0.1\nh2\n")
        for words, on, master in (((), None, hosts.address("h1")), ((f"--hostfile={hosts.folder / 'list'}",), (), "10.78.0.1")):
            job = self.job(hosts, *words, on=on, program=("sh", "-c", "echo $MASTER_ADDR")).run_to_end(0)
            self.assertEqual(sorted(job.lines()), [f"h1: {master}", f"h2: {master}"])

    def test_this_host_s_address_leads_to_the_others(self):
        """Not that at which somebody has logged in here, nor the first one of all."""
        hosts = self.hosts("h1")
        hosts.ip(FRONT, "address", "flush", "dev", "eth0")
        for address in ("10.78.0.9", hosts.address(FRONT)):
            hosts.ip(FRONT, "address", "add", f"{address}/16", "dev", "eth0")
        logged_in = {**hosts.environment, "SSH_CONNECTION": "10.78.0.8 51022 10.78.0.9 22"}
        (hosts.folder / "list").write_text("localhost\nh1\n")
        for words, on in (((), ("localhost", "h1")), ((f"--host-discovery={hosts.folder / 'list'}", "--nnodes=2"), ())):
            job = self.job(hosts, *words, on=on, program=("sh", "-c", "echo $MASTER_ADDR"), env=logged_in).run_to_end(0)
            self.assertEqual(sorted(job.lines()), [f"{name}: {hosts.address(FRONT)}" for name in ("h1", "localhost")])

    def test_one_host_needs_no_label(self):
        hosts = self.hosts("h1")
        job = self.job(hosts, program=("echo", "alone")).run_to_end(0)
        self.assertEqual(job.lines(), ["alone"])

    def test_this_host_is_started_without_ssh(self):
        hosts = self.hosts("h1")
        no_ssh = hosts.folder / "no_ssh"
        no_ssh.write_text("#!/bin/sh\necho $* >>$(dirname $0)/asked\nexec ssh -o BatchMode=yes -T $*\n")
        no_ssh.chmod(0o755)
        program = ("sh", "-c", "echo $RANK $(hostname)")
        job = self.job(hosts, f"--ssh={no_ssh}", on=("localhost", "h1"), program=program).run_to_end(0)
        self.assertEqual(sorted(line.partition(": ")[2] for line in job.lines()), [f"0 {FRONT}", "1 h1"])
        asked = (hosts.folder / "asked").read_text().splitlines()
        self.assertEqual(len(asked), 1, asked)
        self.assertTrue(asked[0].startswith("h1 "), asked)

    def test_a_command_may_have_the_host_anywhere(self):
        hosts = self.hosts("h1", "h2")
        template = "--ssh=ssh -o BatchMode=yes -T root@{host} env VIA=template"
        job = self.job(hosts, template, program=("sh", "-c", "echo $VIA")).run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["h1: template", "h2: template"])

    def test_directory_and_environment_are_as_here(self):
        hosts = self.hosts("h1")
        hard = "it's \"quoted\" $HOME\n`and` two lines\\"
        environment = {**hosts.environment, "HARD": hard, "LANG": "C.UTF-8", "PET_SEEN": "1", "XDG_SEEN": "1",
                       "TORCHUP_TOKEN": "a token of 16 or more"}
        tell = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
        job = self.job(hosts, env=environment, program=("--no-python", sys.executable, "-c", tell)).run_to_end(0)
        directory, seen = json.loads(job.lines()[0])
        self.assertEqual(directory, str(hosts.work))
        self.assertEqual((seen["HARD"], seen["LANG"], seen["HOME"]), (hard, "C.UTF-8", str(hosts.folder / "h1/home")))
        for name in ("PET_SEEN", "XDG_SEEN", "TORCHUP_TOKEN"):
            self.assertNotIn(name, seen)

    def test_what_is_exported_can_be_chosen(self):
        hosts = self.hosts("h1")
        environment = {**hosts.environment, "ONE": "1", "TWO": "2"}
        for words, wanted in (("NONE", "-,-,-"), ("ONE,THREE=3", "1,-,3"), ("ALL,THREE=3", "1,2,3"), ("NONE,TWO", "-,2,-")):
            job = self.job(hosts, f"--export={words}", env=environment,
                           program=("sh", "-c", "echo ${ONE--},${TWO--},${THREE--}")).run_to_end(0)
            self.assertEqual(job.lines(), [wanted], words)

    def test_another_directory(self):
        hosts = self.hosts("h1")
        elsewhere = hosts.folder / "else where"
        elsewhere.mkdir()
        self.assertEqual(self.job(hosts, f"--chdir={elsewhere}", program=("pwd",)).run_to_end(0).lines(), [str(elsewhere)])

    def test_lines_are_whole_and_keep_their_stream(self):
        hosts = self.hosts()
        write = ("import sys\nfor n in range(2000):\n    for stream, mark in ((sys.stdout, 'o'), (sys.stderr, 'e')):\n"
                 "        stream.write(f'{mark}{n}'); stream.flush(); stream.write('x' * (n % 300) + '\\n')\n")
        job = self.job(hosts, program=("--no-python", sys.executable, "-c", write)).run_to_end(0)
        wanted = {mark: [f"{mark}{n}" + "x" * (n % 300) for n in range(2000)] for mark in "oe"}
        for mark, lines in (("o", job.lines()), ("e", job.said().splitlines())):
            for name in hosts.names:
                own = [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: {mark}")]
                self.assertEqual(own, wanted[mark], f"{name}, {mark}")
        self.assertEqual(len(job.lines()), 3 * 2000)

    def test_lines_without_labels(self):
        hosts = self.hosts("h1", "h2")
        job = self.job(hosts, "--no-label", program=("sh", "-c", "echo from $(hostname)")).run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["from h1", "from h2"])

    def test_what_a_login_shell_prints_goes_to_stderr(self):
        hosts = self.hosts("h1", "h2", greetings={"h1": "echo Welcome to h1; echo -n unfinished; echo warned >&2"})
        job = self.job(hosts, program=("echo", "worked")).run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["h1: worked", "h2: worked"])
        for line in ("h1: Welcome to h1", "h1: unfinished", "h1: warned"):
            self.assertIn(line, job.said().splitlines())

    def test_no_login_shell_spoils_it(self):
        shells = {f"h{index}": shell for index, shell in enumerate(filter(shutil.which, ("dash", "bash", "fish", "zsh")), 1)}
        hosts = self.hosts(*shells, shells=shells)
        job = self.job(hosts, program=("sh", "-c", "echo \"$0 {a,b}* 'c' $RANK\"", "~x;y(z)")).run_to_end(0)
        self.assertEqual(sorted(job.lines()), [f"{name}: ~x;y(z) {{a,b}}* 'c' {rank}" for rank, name in enumerate(shells)])

    def test_one_report_one_exit_code_one_event_file(self):
        hosts = self.hosts()
        program = ("sh", "-c", 'echo "wrong thing" >&2; [ $RANK != 1 ] || exit 7; sleep 1000')
        job = self.job(hosts, program=program)
        job.run_to_end(1)
        reports = [line for line in job.said().splitlines() if "What went wrong" in line]
        self.assertEqual(len(reports), 1, job.said())
        self.assertRegex(reports[0], r"^h2: .*rank 1 .*exit code 7$")
        ends = [event for event in job.events("worker_exited") if event["exit_code"] == 7]
        self.assertEqual([event["host"] for event in ends], ["h2"])
        self.assertEqual({event["host"] for event in job.events("worker_started")}, set(hosts.names))
        result = json.loads(job.result_file.read_text())
        self.assertEqual(result["exit_code"], 1)

    def test_nothing_listens_where_the_front_is(self):
        hosts = self.hosts("h1", "h2")
        job = self.job(hosts)
        job.round_on("h1", "h2")
        for table in ("tcp", "tcp6"):
            path = Path(f"/proc/{job.process.pid}/net/{table}")
            states = [line.split()[3] for line in path.read_text().splitlines()[1:]] if path.exists() else []
            self.assertNotIn("0A", states)
        job.release()
        job.run_to_end(0)

    def test_a_slow_reader_holds_the_workers_and_not_the_links(self):
        hosts = self.hosts("h1", "h2")
        ours, theirs = socket.socketpair()
        write = "import os, sys\nfor n in range(100):\n    os.write(1, b'y' * 99999 + b'\\n')\n" \
                "    open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}.{n}', 'w')\n"
        job = self.job(hosts, stdout=theirs, program=("--no-python", sys.executable, "-c", write, hosts.work))
        theirs.close()
        until(lambda: list(hosts.work.glob("0.*")) and list(hosts.work.glob("1.*")), "both write")
        with self.assertRaises(subprocess.TimeoutExpired):
            job.process.wait(20)  # longer than a silent link lives
        self.assertLess(len(list(hosts.work.iterdir())), 150)
        lines = 0
        while data := ours.recv(1 << 20):
            lines += data.count(b"\n")
        job.run_to_end(0)
        self.assertGreaterEqual(lines, 200)


class Refused(HostCase):
    """Nothing runs anywhere, and the host is named."""

    torchup = TORCHUP

    def refused(self, hosts, code, *words, options=(), limit=20, **more):
        trace = hosts.folder / "ran"
        job = self.job(hosts, *options, program=("sh", "-c", f"echo $RANK >>{trace}"), **more)
        job.run_to_end(code, limit=limit)
        self.assertFalse(trace.exists(), "a worker has run")
        for word in words:
            self.assertIn(word, job.said())
        self.assertNotIn("Traceback", job.said())
        return job

    def test_a_host_that_nobody_knows(self):
        hosts = self.hosts("h1", "h2")
        self.refused(hosts, 67, "nowhere", "Could not resolve hostname", on=("h1", "nowhere", "h2"))

    def test_a_host_without_sshd(self):
        hosts = self.hosts("h1", "h2")
        hosts.servers["h2"].terminate()
        hosts.servers["h2"].wait()
        self.refused(hosts, 67, "h2", "Connection refused")

    def test_a_host_that_trusts_nobody(self):
        hosts = self.hosts("h1", "h2")
        (hosts.folder / "known_hosts").write_text("h1 " + (hosts.folder / "known_hosts").read_text().partition(" ")[2])
        self.refused(hosts, 67, "h2", "Host key verification failed")

    def test_a_directory_that_is_missing_there(self):
        folder = Path(self.enterContext(self.folder()))
        hosts = self.hosts("h1", "h2", hidden={"h2": [folder.parent]})
        self.refused(hosts, 2, f"host h2: {folder}: No such file or directory", "--chdir", cwd=folder)

    def folder(self):
        return tempfile.TemporaryDirectory(prefix="inner-", dir=self.enterContext(tempfile.TemporaryDirectory()))

    def test_no_torchup_there(self):
        hosts = self.hosts("h1", "h2", hidden={"h2": [os.path.dirname(TORCHUP)]})
        self.refused(hosts, 67, "h2", f"no torchup at {TORCHUP} there", "--remote-torchup")

    def test_another_path_there(self):
        hosts = self.hosts("h1", "h2", hidden={"h2": [os.path.dirname(TORCHUP)], "h1": [os.path.dirname(TORCHUP)]})
        copy = hosts.folder / "torchup.copy"
        shutil.copy(TORCHUP, copy)
        job = self.job(hosts, f"--remote-torchup={copy}", program=("echo", "worked")).run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["h1: worked", "h2: worked"])

    def test_another_version_there(self):
        version = subprocess.run([TORCHUP, "--version"], capture_output=True, text=True).stdout.split()[1]
        other = "".join("9" if letter.isdigit() else letter for letter in version)
        folder = Path(self.enterContext(self.folder()))
        (folder / "torchup").write_bytes(Path(TORCHUP).read_bytes().replace(version.encode() + b"\0", other.encode() + b"\0"))
        (folder / "torchup").chmod(0o755)
        hosts = self.hosts("h1", "h2", replaced={"h2": {TORCHUP: folder / "torchup"}})
        self.refused(hosts, 68, "h2", version, other)

    def test_a_program_that_is_missing_there(self):
        folder = Path(self.enterContext(self.folder()))
        (folder / "program").write_text("#!/bin/sh\necho worked\n")
        (folder / "program").chmod(0o755)
        hosts = self.hosts("h1", "h2", hidden={"h2": [folder]})
        job = self.job(hosts, program=("--no-python", folder / "program"))
        job.ends_with(1, 2, 126, 127, limit=30)
        self.assertRegex(job.said(), r"h2.*program")
        hosts.nothing_left()

    def test_a_host_that_never_answers(self):
        hosts = self.hosts("h1", "h2")
        slow = hosts.folder / "slow"
        slow.write_text('#!/bin/sh\n[ $1 != h2 ] || exec sleep 1000\nexec ssh -o BatchMode=yes -T "$@"\n')
        slow.chmod(0o755)
        self.refused(hosts, 67, "h2", "30 s", options=[f"--ssh={slow}"], limit=50)

    def test_enough_others_go_on_without_one(self):
        hosts = self.hosts("h1", "h2")
        job = self.job(hosts, "--nnodes=2:3", on=("h1", "nowhere", "h2"), program=("sh", "-c", "echo $RANK/$WORLD_SIZE"))
        job.run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["h1: 0/2", "h2: 1/2"])
        self.assertIn("nowhere", job.said())

    def test_bad_lists(self):
        hosts = self.hosts("h1")
        (hosts.folder / "list").write_text("h1\nh1:2\n")
        (hosts.folder / "words").write_text("h1 slots=2 color=red\n")
        (hosts.folder / "empty").write_text("# nobody\n")
        for words, told in (
                (["--hosts=h1,h2,h1"], "h1"), ([f"--hostfile={hosts.folder}/list"], "list:2"), (["--hosts="], "--hosts"),
                ([f"--hostfile={hosts.folder}/words"], "words:1"), ([f"--hostfile={hosts.folder}/empty"], "empty"),
                (["--hosts=-oProxyCommand=touch"], "-oProxyCommand"), (["--hosts=h1", "--nnodes=2:3"], "--nnodes"),
                (["--hosts=h1", f"--hostfile={hosts.folder}/words"], "--hostfile"),
                (["--hosts=h1", "--standalone"], "--standalone"),
                (["--hosts=h1", "--node-rank=0"], "--node-rank"), (["--hosts=h1", "--master-addr=h1"], "--master-addr"),
                (["--hosts=h1", "--no-capture"], "--no-capture"), (["--hosts=h[1-2000]"], "1024")):
            done = hosts.run(TORCHUP, *words, "true", limit=20)
            self.assertEqual(done.returncode, 2, f"{words}: {done.stderr}")
            self.assertIn(told, done.stderr)
        self.assertEqual(hosts.left(), {})


if __name__ == "__main__":
    unittest.main()
