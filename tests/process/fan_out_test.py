"""`torchup --hosts` with a stand-in for ssh that starts the command on this machine: one line, one job, nothing left.

usage: fan_out_test.py TORCHUP [unittest options]
"""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from waiting import children, until  # noqa: E402

TORCHUP = os.path.abspath(sys.argv.pop(1))
PR_SET_CHILD_SUBREAPER = 36
# Of each host: what it is started with. The first word is the host's name.
WAY = """#!/bin/sh
host=$1; shift
unset SSH_CONNECTION
[ ! -e {folder}/greeting.$host ] || . {folder}/greeting.$host
exec "$@"
"""


class FanOut(unittest.TestCase):
    def setUp(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.way = self.folder / "way"
        self.way.write_text(WAY.format(folder=self.folder))
        self.way.chmod(0o755)
        self.environment = {**os.environ, "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}

    def start(self, *words, env=None, inside=(), **more):
        job = subprocess.Popen([*inside, TORCHUP, f"--ssh={self.way}", "--shutdown-timeout=2", *map(str, words)],
                               env=env or self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True, **more)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), job.stdout.close(), job.stderr.close()))
        return job

    def end(self, job, code, limit=30):
        out, err = job.communicate(timeout=limit)
        self.assertEqual(job.returncode, code, err)
        until(lambda: not children(os.getpid()), "no process is left")
        return out.splitlines(), err

    def run_job(self, code, *words, **more):
        return self.end(self.start(*words, **more), code)

    def mark(self, name):
        return self.folder / name

    # What is started.

    def test_one_worker_on_each_host_in_the_order_of_the_list(self):
        out, _ = self.run_job(0, "--hosts=b,a,c", "sh", "-c", "echo $RANK/$WORLD_SIZE $GROUP_RANK; echo e >&2")
        self.assertEqual(sorted(out), ["a: 1/3 1", "b: 0/3 0", "c: 2/3 2"])

    def test_slots_are_workers_unless_their_number_is_given(self):
        out, _ = self.run_job(0, "--hosts=a:2,b:1", "sh", "-c", "echo $RANK")
        self.assertEqual(sorted(out), ["a: 0", "a: 1", "b: 2"])
        out, _ = self.run_job(0, "--hosts=a:2,b:1", "--nproc-per-node=1", "sh", "-c", "echo $RANK")
        self.assertEqual(sorted(out), ["a: 0", "b: 1"])

    def test_one_host_and_this_one(self):
        self.assertEqual(self.run_job(0, "--hosts=a", "echo", "alone")[0], ["alone"])
        self.way.unlink()
        self.assertEqual(self.run_job(0, "--hosts=localhost", "echo", "here")[0], ["here"])

    def test_no_host_is_told_to_others_by_its_loopback(self):
        """Whoever has reached it there."""
        own = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
        if not own:
            self.skipTest("this machine has no address but its loopback")
        reached = "127.0.0.1 51022 127.0.0.1 22"
        self.mark("greeting.a").write_text(f"export SSH_CONNECTION='{reached}'\n")
        for hosts in ("localhost,b", "a,b"):
            out, _ = self.run_job(0, f"--hosts={hosts}", "sh", "-c", "echo $MASTER_ADDR",
                                  env={**self.environment, "SSH_CONNECTION": reached})
            told = {line.split()[1] for line in out}
            self.assertTrue(len(told) == 1 and told <= set(own), f"{out}, where {own} are ours")

    def test_this_machine_is_told_to_others_by_the_address_that_leads_to_them(self):
        """In a network of its own, with two addresses: of these one is not the first that it finds."""
        addresses = ("10.79.1.1", "10.79.1.2")
        up = " && ".join(["ip link set lo up", *(f"ip address add {address}/32 dev lo" for address in addresses)])
        inside = ["unshare", "--net", "sh", "-c", f'{up} && exec "$@"', "sh"]
        try:
            made = subprocess.run([*inside, "true"], capture_output=True, text=True)
        except FileNotFoundError as error:
            self.skipTest(str(error))
        if made.returncode:
            self.skipTest(f"no network of its own: {made.stderr.strip()}")
        for address in addresses:
            out, _ = self.run_job(0, f"--hosts=localhost,{address}", "sh", "-c", "echo $MASTER_ADDR", inside=inside)
            self.assertEqual({line.split()[1] for line in out}, {address})

    def test_hosts_by_variable_and_from_a_file(self):
        self.mark("list").write_text("# two\na\nb\n")
        variables = {**self.environment, "PET_HOSTFILE": str(self.mark("list")), "PET_MAX_RESTARTS": "2"}
        out, _ = self.run_job(0, "sh", "-c", "echo $TORCHELASTIC_MAX_RESTARTS ${PET_HOSTFILE-none}", env=variables)
        self.assertEqual(sorted(out), ["a: 2 none", "b: 2 none"])

    def test_directory_environment_and_words_arrive_as_they_are(self):
        hard = "it's \"quoted\" $HOME\n`and` two lines\\"
        where = self.folder / "work here"
        where.mkdir()
        tell = "import json, os, sys; print(json.dumps([os.getcwd(), os.environ['HARD'], sys.argv[1:]]))"
        out, _ = self.run_job(0, "--hosts=a", "--no-python", sys.executable, "-c", tell, hard, "", "--x",
                              env={**self.environment, "HARD": hard}, cwd=where)
        self.assertEqual(json.loads(out[0]), [str(where), hard, [hard, "", "--x"]])

    def test_what_a_login_shell_prints_stands_before(self):
        self.mark("greeting.a").write_text("echo Welcome; printf unfinished\n")
        out, err = self.run_job(0, "--hosts=a,b", "echo", "worked")
        self.assertEqual(sorted(out), ["a: worked", "b: worked"])
        self.assertIn("a: Welcome\n", err)
        self.assertIn("a: unfinished\n", err)

    def test_a_host_may_take_its_time_to_be_reached(self):
        self.mark("greeting.a").write_text("sleep 11\n")  # other peers have 10 s for their first word
        out, _ = self.run_job(0, "--hosts=a,b", "--rdzv-conf=join_timeout=15", "echo", "worked")
        self.assertEqual(sorted(out), ["a: worked", "b: worked"])

    def test_a_node_may_be_looked_at_for_long(self):
        job = self.start("--hosts=a,b", "--rdzv-conf=join_timeout=10", "--health-check=sleep 33", "echo", "worked")
        out, _ = self.end(job, 0, limit=70)  # other peers have 30 s from their welcome to their join
        self.assertEqual(sorted(out), ["a: worked", "b: worked"])

    # How it ends.

    def test_one_report_one_code_one_record(self):
        events, result = self.mark("events"), self.mark("result")
        job = self.start("--hosts=a,b", f"--events={events}", f"--result-file={result}", "sh", "-c",
                         "[ $RANK = 0 ] || exit 7; sleep 1000")
        _, err = self.end(job, 1)
        self.assertEqual(err.count("ChildFailedError"), 1, err)
        seen = [json.loads(line) for line in events.read_text().splitlines()]
        self.assertEqual({event["host"] for event in seen if event["event"] == "job_ended"}, {"a", "b"})
        written = json.loads(result.read_text())
        self.assertEqual((written["exit_code"], [host["host"] for host in written["hosts"]]), (1, ["a", "b"]))

    def test_restarts_are_counted_for_all(self):
        out, _ = self.run_job(0, "--hosts=a,b", "--max-restarts=1", "sh", "-c",
                              "[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 3; echo $TORCHELASTIC_RESTART_COUNT")
        self.assertEqual(sorted(line for line in out if line.endswith("1")), ["a: 1", "b: 1"])

    def started(self, job, *hosts):
        """All workers run; they wait."""
        until(lambda: all(self.mark(f"up.{rank}").exists() for rank in range(len(hosts))), "all workers run")

    def waiting_job(self, *words, more=""):
        job = self.start(*words, "sh", "-c", f"{more} touch {self.folder}/up.$RANK; sleep 1000 & wait")
        return job

    def test_signals_end_the_job_as_on_one_machine(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            job = self.waiting_job("--hosts=a,b")
            self.started(job, "a", "b")
            job.send_signal(number)
            self.end(job, code)
            for rank in range(2):
                self.mark(f"up.{rank}").unlink()

    def test_nothing_is_left_of_a_front_that_is_killed(self):
        job = self.waiting_job("--hosts=a,b")
        self.started(job, "a", "b")
        job.kill()
        job.wait()
        until(lambda: not children(os.getpid()), "no process is left")

    def descendants(self, pid):
        found = []
        for child in children(pid):
            found += [child, *self.descendants(child)]
        return found

    def named(self, job, words):
        def command(pid):
            try:
                return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            except OSError:
                return []

        wanted = [word.encode() for word in words]
        return [pid for pid in self.descendants(job.pid) if command(pid)[-len(words):] == wanted]

    def test_a_lost_host_ends_the_job_where_all_are_needed(self):
        job = self.waiting_job("--hosts=a,b")
        self.started(job, "a", "b")
        links = self.named(job, ["--link"])
        os.kill(links[0], signal.SIGKILL)
        _, err = self.end(job, 66)
        self.assertRegex(err, "host [ab]: .*SIGKILL")

    def test_the_others_go_on_where_they_are_enough(self):
        job = self.waiting_job("--hosts=a,b", "--nnodes=1:2", more="[ $WORLD_SIZE = 2 ] || exit 0;")
        self.started(job, "a", "b")
        os.kill(self.named(job, ["--link"])[0], signal.SIGKILL)
        _, err = self.end(job, 0)
        self.assertIn("the other 1 go on", err)

    def test_an_agent_whose_link_breaks_gives_its_workers_no_grace(self):
        """The others may have begun without them."""
        self.mark("greeting.b").write_text("export WHERE=b\ncat | \"$@\"; exit\n")
        trap = f"trap 'sleep 1; touch {self.folder}/asked.$WHERE; exit' TERM;"  # within the grace, which is 2 s
        job = self.waiting_job("--hosts=a,b", "--nnodes=1:2", more=f"[ $WORLD_SIZE = 2 ] || exit 0; {trap}")
        self.started(job, "a", "b")
        relay, = self.named(job, ["cat"])
        os.kill(relay, signal.SIGKILL)
        self.end(job, 0)
        self.assertTrue(self.mark("asked.").exists(), "the other's worker is asked to end")
        self.assertFalse(self.mark("asked.b").exists())

    def test_workers_that_save_after_the_verdict_have_their_time(self):
        save = f"trap 'touch {self.folder}/cut' TERM; sleep 8 & wait; wait; touch {self.folder}/saved; exit 75"
        job = self.start("--hosts=a,b", "--shutdown-timeout=20", "sh", "-c", f"[ $RANK = 1 ] || exit 75; {save}")
        self.end(job, 75)
        self.assertTrue(self.mark("saved").exists())
        self.assertFalse(self.mark("cut").exists(), "a worker that saves has got SIGTERM")

    def test_a_saved_state_is_told_once_on_each_host(self):
        for rank in range(2):
            _, err = self.run_job(75, "--hosts=a,b", "sh", "-c", f"[ $RANK = {rank} ] || exec sleep 1000; exit 75")
            told = [line[0] for line in err.splitlines() if f"rank {rank} has saved its state" in line]
            self.assertEqual(sorted(told), ["a", "b"], err)
        _, err = self.run_job(75, "--hosts=a", "sh", "-c", "exit 75")
        self.assertEqual(err.count("has saved its state"), 1, err)

    def test_people_are_told_of_an_agent_that_does_not_end(self):
        """Though none has: nobody is there to say that the job is over but the front."""
        job = self.waiting_job("--hosts=a,b", "--shutdown-timeout=0", more=f"[ ! -e {self.folder}/over ] || exit 0;")
        self.started(job, "a", "b")
        ours = self.named(job, ["--link"])  # of each host the link's far end, then the agent's outer and inner process
        below = {child for pid in ours for child in children(pid)}
        outer = [child for pid in ours if pid not in below for child in children(pid)]
        self.assertEqual(len(outer), 2)
        for pid in outer:
            os.kill(pid, signal.SIGSTOP)
        sleeps = until(lambda: (found := self.named(job, ["sleep", "1000"]))[1:] and found, "both workers wait")
        for pid in sleeps:
            os.kill(pid, signal.SIGKILL)
        self.hear(job, "waiting for agents that have been told to end: a, b")
        for pid in outer:
            os.kill(pid, signal.SIGCONT)
        self.end(job, 0)

    def hear(self, job, text):
        """On its standard error."""
        said = b""
        os.set_blocking(job.stderr.fileno(), False)

        def heard():
            nonlocal said
            try:
                said += os.read(job.stderr.fileno(), 1 << 16)
            except BlockingIOError:
                pass
            return text.encode() in said

        until(heard, f"it says: {text}", 30)

    # What is refused.

    def refused(self, code, *words, **more):
        trace = self.mark("ran")
        _, err = self.run_job(code, *words, "sh", "-c", f"echo >>{trace}", **more)
        self.assertFalse(trace.exists(), "a worker has run")
        self.assertNotIn("Traceback", err)
        return err

    def test_a_host_that_cannot_be_reached(self):
        self.mark("greeting.b").write_text("echo no route to host >&2; exit 255\n")
        err = self.refused(67, "--hosts=a,b")
        self.assertIn("b: no route to host\n", err)
        self.assertIn("host b: ", err)
        self.assertIn("ended with 255", err)

    def test_no_torchup_there(self):
        self.assertIn("no torchup at /no/torchup there", self.refused(67, "--hosts=a", "--remote-torchup=/no/torchup"))

    def test_a_directory_that_is_not_there(self):
        said = self.refused(2, "--hosts=a", "--chdir=/not/here")
        self.assertIn("host a: /not/here: No such file or directory; --chdir", said)

    def test_a_host_that_sends_more_than_it_may(self):
        """While nobody reads what the front shows: it would keep all of it."""
        version = subprocess.run([TORCHUP, "--version"], capture_output=True, text=True).stdout.split()[1].encode()
        body = b"".join(struct.pack("<I", len(word)) + word for word in (version, b"a")) + struct.pack("<I", 0)
        hello = struct.pack("<IB", len(body) + 1, 65) + body
        self.mark("hello").write_bytes(b"torchup-link 1\n" + struct.pack("<BI", 0, len(hello)) + hello)
        self.mark("output").write_bytes(64 * (struct.pack("<BI", 1, 1 << 16) + b"y" * ((1 << 16) - 1) + b"\n"))
        self.mark("greeting.a").write_text(f"cd {self.folder}; touch begun; cat hello output; exec sleep 1000\n")
        job = self.start("--hosts=a", "true")
        until(self.mark("begun").exists, "its command runs")
        until(lambda: not children(self.inner(job)), "its command was ended", 30)
        _, err = self.end(job, 66)
        self.assertIn("host a: the link is broken: more comes than was asked for", err)

    def inner(self, job):
        return until(lambda: children(job.pid), "the front has begun")[0]

    def test_a_program_that_is_not_there(self):
        _, err = self.run_job(2, "--hosts=a,b", "--no-python", "/no/program")
        self.assertIn("/no/program", err)

    def test_another_program_there(self):
        self.assertIn("host a: ", self.refused(67, "--hosts=a", "--remote-torchup=/bin/true"))

    def test_bad_lists_and_what_does_not_go_with_them(self):
        self.mark("list").write_text("a\na:2\n")
        for words, told in ((["--hosts=a,b,a"], "a"), ([f"--hostfile={self.mark('list')}"], "list:2"),
                            (["--hosts=a", "--nnodes=2:3"], "--nnodes"), (["--hosts=a", "--standalone"], "--standalone"),
                            (["--hosts=a", "--max-restarts=-1"], "max_restarts"),
                            (["--hosts=a[1-2000]"], "1024")):
            self.assertIn(told, self.refused(2, *words), words)

    # Hosts that come and go.

    def test_another_host_may_take_the_place_of_the_last(self):
        hosts = self.mark("hosts")
        hosts.write_text("a\n")
        job = self.waiting_job(f"--host-discovery={hosts}", "--discovery-interval=0.1",
                               more=f"[ ! -e {self.folder}/over ] || exit 0;")
        self.started(job, "a")
        self.mark("over").touch()
        hosts.write_text("b\n")
        _, err = self.end(job, 0)
        self.assertIn("host a is not listed any more", err)

    def test_nothing_is_left_of_the_command_of_a_host_that_is_wanted_no_more(self):
        self.mark("greeting.b").write_text("sleep 999\n")
        hosts = self.mark("hosts")
        hosts.write_text("a\nb\n")
        job = self.waiting_job(f"--host-discovery={hosts}", "--discovery-interval=0.1")
        until(lambda: self.named(job, ["sleep", "999"]), "its command has started another", 30)
        hosts.write_text("a\n")
        until(lambda: not self.named(job, ["sleep", "999"]), "both have ended", 30)
        job.send_signal(signal.SIGTERM)
        self.end(job, 143)

    def test_discovered_hosts_come_and_go(self):
        self.come_and_go()

    def test_a_host_that_goes_is_no_signal_to_save(self):
        self.come_and_go("--drain-signals=TERM")

    def test_a_host_that_goes_is_no_signal_that_ends_the_job(self):
        self.come_and_go("--signals-to-handle=SIGTERM,SIGINT")

    def test_another_host_takes_the_place_of_the_only_node(self):
        self.come_and_go("--nnodes=1", size=1)

    def come_and_go(self, *options, size=2):
        hosts = self.mark("hosts")
        hosts.write_text("a\n")
        program = f"[ ! -e {self.folder}/over ] || exit 0; touch {self.folder}/$WORLD_SIZE.$RANK; sleep 1000 & wait"
        result = self.mark("result")
        job = self.start(f"--host-discovery={hosts}", "--discovery-interval=0.1", f"--result-file={result}", *options, "sh",
                         "-c", program)

        def seen(size):
            until(lambda: len(list(self.folder.glob(f"{size}.*"))) == size, f"a round of {size}; {job.poll()}", 30)

        seen(1)
        hosts.write_text("a\nb\n")
        seen(size)
        self.mark("over").touch()
        hosts.write_text("b\n")
        _, err = self.end(job, 0)
        self.assertIn("host a is not listed any more", err)
        self.assertNotIn("Traceback", err)
        told = json.loads(result.read_text())
        self.assertEqual((told["host"], told["exit_code"]), ("b", 0))
        self.assertEqual(len(told["hosts"]), 2, told)


if __name__ == "__main__":
    unittest.main()
