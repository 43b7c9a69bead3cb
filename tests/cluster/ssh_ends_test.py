"""How a job of `torchup --hosts` ends, and what is left then, when parts of it are killed or cut off at hosts of a real sshd.

usage: ssh_ends_test.py TORCHUP [unittest options]      skipped without root, network namespaces or sshd
"""

import os
import signal
import sys
import time
import unittest

from fan_out import HostCase, until
from ssh_hosts import FRONT

TORCHUP = os.path.abspath(sys.argv.pop(1))
SILENT_S = 20  # from the cut of a link to the end of what was behind it


class Killed(HostCase):
    """Nothing is left anywhere within 5 s."""

    torchup = TORCHUP

    def running(self, *options, names=("h1", "h2", "h3"), **more):
        hosts = self.hosts(*names)
        job = self.job(hosts, *options, **more)
        if not more.get("program"):
            job.round_on(*names)
        return hosts, job

    def test_the_front_is_killed(self):
        hosts, job = self.running()
        job.kill_front()
        hosts.nothing_left()

    def test_the_front_is_killed_and_its_workers_ignore_signals(self):
        stubborn = "import signal, os, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\n" \
                   "print('up', flush=True)\ntime.sleep(1000)\n"
        hosts, job = self.running(program=("--no-python", sys.executable, "-c", stubborn))
        until(lambda: len(job.lines()) == 3, "all workers run")
        job.kill_front()
        hosts.nothing_left()

    def test_the_front_is_killed_while_it_starts(self):
        hosts = self.hosts()
        for wait in (lambda job: job.clients("h2"), lambda job: job.agents("h1"), lambda job: job.agents("h3")):
            job = self.job(hosts)
            until(lambda: wait(job) or job.started(), "it has begun")
            job.kill_front()
            hosts.nothing_left()

    def test_all_its_ssh_are_killed(self):
        hosts, job = self.running()
        clients = job.clients()
        self.assertEqual(len(clients), 3)
        for pid in clients:  # the front ends the others as soon as it has seen one end
            hosts.kill(pid)
        job.ends_with(66, limit=10)
        hosts.nothing_left()

    def test_one_ssh_is_killed(self):
        hosts, job = self.running()
        job.kill_client("h2")
        job.ends_with(66, limit=10)
        self.assertIn("h2", job.said())
        hosts.nothing_left()

    def test_one_ssh_is_killed_and_the_others_go_on(self):
        hosts, job = self.running("--nnodes=2:3")
        job.kill_client("h2")
        job.round_on("h1", "h3", after=1, limit=20)
        until(lambda: not hosts.processes("h2"), "nothing lives on h2", 5)
        job.release()
        job.run_to_end(0)
        self.assertEqual(set(job.restart_counts()), {0})

    def agent_killed(self, name, which):
        hosts, job = self.running("--nnodes=2:3")
        others = [other for other in hosts.names if other != name]
        job.kill_agent(name, which)
        job.round_on(*others, after=1, limit=20)
        until(lambda: not hosts.processes(name), f"nothing lives on {name}", 5)
        job.release()
        job.run_to_end(0)

    def test_the_far_end_of_a_link_is_killed(self):
        self.agent_killed("h2", 0)

    def test_the_outer_process_of_an_agent_is_killed(self):
        self.agent_killed("h2", 1)

    def test_the_inner_process_of_an_agent_is_killed(self):
        self.agent_killed("h3", 2)

    def test_the_first_host_s_agent_is_killed(self):
        self.agent_killed("h1", 0)

    def test_every_process_of_a_host_is_killed(self):
        hosts, job = self.running("--nnodes=2:3")
        for pid in hosts.everything("h1"):
            hosts.kill(pid)
        job.round_on("h2", "h3", after=1, limit=20)
        job.release()
        job.run_to_end(0)

    def test_an_agent_is_killed_and_too_few_are_left(self):
        hosts, job = self.running()
        job.kill_agent("h2")
        job.ends_with(66, limit=10)
        self.assertIn("h2", job.said())
        hosts.nothing_left()

    def test_a_worker_is_killed(self):
        hosts, job = self.running()
        victim, = [entry for entry in job.rounds()[0] if entry["host"] == "h2"]
        os.kill(victim["pid"], signal.SIGKILL)
        job.ends_with(1, limit=10)
        self.assertRegex(job.said(), r"(?s)h2.*SIGKILL|SIGKILL.*h2")
        hosts.nothing_left()

    def test_a_worker_is_killed_and_started_again(self):
        hosts, job = self.running("--max-restarts=1")
        victim, = [entry for entry in job.rounds()[0] if entry["host"] == "h3"]
        os.kill(victim["pid"], signal.SIGKILL)
        job.round_on("h1", "h2", "h3", after=1)
        self.assertEqual(job.restart_counts(), [0, 1])
        job.release()
        job.run_to_end(0)

    def test_a_spare_steps_in(self):
        hosts = self.hosts()
        job = self.job(hosts, "--nnodes=2")
        first = until(lambda: next((entries for entries in job.rounds() if len(entries) == 2), None), "two of three work")
        lost = first[0]["host"]
        spare, = set(hosts.names) - {entry["host"] for entry in first}
        job.kill_client(lost)
        job.round_on(first[1]["host"], spare, after=1, limit=20)
        job.release()
        job.run_to_end(0)


class Cut(HostCase):
    torchup = TORCHUP

    def test_a_link_is_cut_for_a_minute(self):
        hosts = self.hosts()
        job = self.job(hosts, "--nnodes=2:3")
        job.round_on("h1", "h2", "h3")
        hosts.link("h1", "down")
        cut = time.monotonic()
        job.round_on("h2", "h3", after=1, limit=SILENT_S + 5)
        until(lambda: not hosts.processes("h1"), "nothing lives on h1", SILENT_S + 1 - (time.monotonic() - cut))
        until(lambda: time.monotonic() > cut + 60, "the minute is over")
        hosts.link("h1", "up")
        self.assertIsNone(job.process.poll(), job.said())
        self.assertEqual(len(job.rounds()), 2)
        job.release()
        job.run_to_end(0)
        self.assertEqual(set(job.restart_counts()), {0})

    def test_a_link_is_cut_and_too_few_are_left(self):
        hosts = self.hosts()
        job = self.job(hosts)
        job.round_on("h1", "h2", "h3")
        hosts.link("h2", "down")
        job.ends_with(66, limit=SILENT_S)
        self.assertIn("h2", job.said())
        hosts.nothing_left(SILENT_S)

    def test_a_link_is_cut_and_the_front_is_killed(self):
        hosts = self.hosts()
        job = self.job(hosts)
        job.round_on("h1", "h2", "h3")
        hosts.link("h2", "down")
        job.kill_front()
        hosts.nothing_left(SILENT_S)

    def test_a_short_cut_is_nothing(self):
        hosts = self.hosts()
        job = self.job(hosts)
        job.round_on("h1", "h2", "h3")
        hosts.link("h2", "down")
        cut = time.monotonic()
        until(lambda: time.monotonic() > cut + 4, "it lasts 4 s")
        hosts.link("h2", "up")
        job.release()
        job.run_to_end(0)
        self.assertEqual(len(job.rounds()), 1)

    def test_the_front_stands_still(self):
        """For longer than links live: its hosts end by themselves, and it learns of that when it goes on."""
        hosts = self.hosts("h1", "h2")
        job = self.job(hosts)
        job.round_on("h1", "h2")
        front = [pid for pid in hosts.processes(FRONT)]
        for pid in front:
            hosts.kill(pid, signal.SIGSTOP)
        until(lambda: not hosts.processes("h1") and not hosts.processes("h2"), "nothing lives on the hosts", SILENT_S + 1)
        for pid in front:
            hosts.kill(pid, signal.SIGCONT)
        job.ends_with(66, 67, limit=10)  # the loss of the hosts, or what their agents say of the loss of the front
        hosts.nothing_left()


class Signalled(HostCase):
    torchup = TORCHUP

    def signalled(self, number, code, *options):
        hosts = self.hosts("h1", "h2")
        job = self.job(hosts, *options)
        job.round_on("h1", "h2")
        job.signal(number)
        job.ends_with(code, limit=15)
        hosts.nothing_left()

    def test_interrupt(self):
        self.signalled(signal.SIGINT, 130)

    def test_terminate(self):
        self.signalled(signal.SIGTERM, 143)

    def test_hang_up(self):
        self.signalled(signal.SIGHUP, 129)

    def test_a_second_interrupt_kills(self):
        hosts = self.hosts("h1", "h2")
        stubborn = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nsignal.signal(15, signal.SIG_IGN)\n" \
                   "print('up', flush=True)\ntime.sleep(1000)\n"
        job = self.job(hosts, "--shutdown-timeout=100", program=("--no-python", sys.executable, "-c", stubborn))
        until(lambda: len(job.lines()) == 2, "both workers run")
        job.signal(signal.SIGINT)
        until(lambda: job.events("signal_received"), "the first was heard")
        time.sleep(1.5)  # what comes sooner may be a copy of the first
        job.signal(signal.SIGINT)
        job.ends_with(130, limit=10)
        hosts.nothing_left()

    def test_a_forwarded_signal_reaches_every_worker_once(self):
        hosts = self.hosts("h1", "h2")
        trap = "trap 'echo got' USR1; echo up; n=0; while [ $n != 2 ] && [ ! -e $0/end ]; do sleep 0.05; done"
        job = self.job(hosts, program=("sh", "-c", trap, hosts.folder))
        until(lambda: len(job.lines()) == 2, "both workers run")
        job.signal(signal.SIGUSR1)
        until(lambda: len(job.lines()) >= 4, "both have got it", 15)
        (hosts.folder / "end").touch()
        job.run_to_end(0)
        self.assertEqual(sorted(job.lines()), ["h1: got", "h1: up", "h2: got", "h2: up"])


class Discovery(HostCase):
    """Hosts come and go while the job runs."""

    torchup = TORCHUP

    def setUp(self):
        self.them = self.hosts()
        self.list = self.them.folder / "alive"
        self.say("h1", "h2")

    def say(self, *names):
        new = self.them.folder / "alive.new"
        new.write_text("".join(f"{name}\n" for name in names))
        new.rename(self.list)

    def discover(self, *options, source=None):
        return self.job(self.them, f"--host-discovery={source or self.list}", "--discovery-interval=0.2", *options, on=())

    def end(self, job):
        job.release()
        job.run_to_end(0)
        self.assertEqual(set(job.restart_counts()), {0})

    def test_a_host_comes_and_one_goes(self):
        job = self.discover("--nnodes=1:3")
        job.round_on("h1", "h2")
        self.say("h1", "h2", "h3")
        job.round_on("h1", "h2", "h3", after=1)
        self.say("h2", "h3")
        job.round_on("h2", "h3", after=2)
        until(lambda: not self.them.processes("h1"), "nothing lives on h1", 10)
        self.end(job)

    def test_a_command_tells_the_hosts(self):
        script = self.them.folder / "discover"
        script.write_text(f"#!/bin/sh\ncat {self.list}\n")
        script.chmod(0o755)
        job = self.discover(source=script)
        job.round_on("h1", "h2")
        self.say("h1")
        job.round_on("h1", after=1)
        self.end(job)

    def leaves_the_last_list(self, broken, times):
        """A command that does this once it is broken; it is asked so often then."""
        script = self.them.folder / "discover"
        script.write_text(f"#!/bin/sh\ncd $(dirname $0)\n[ -e broken ] || exec cat alive\necho $$ >>asked\n{broken}\n")
        script.chmod(0o755)
        job = self.discover(source=script)
        job.round_on("h1", "h2")
        (self.them.folder / "asked").touch()
        (self.them.folder / "broken").touch()
        until(lambda: len((self.them.folder / "asked").read_text().splitlines()) >= times, "it was asked again")
        self.assertEqual(len(job.rounds()), 1)
        self.assertEqual(job.said().count("--host-discovery"), 1, job.said())
        self.end(job)

    def test_a_failing_command_leaves_the_last_list(self):
        self.leaves_the_last_list("exit 1", 5)

    def test_an_empty_list_leaves_the_last_one(self):
        self.leaves_the_last_list("true", 5)

    def test_a_list_without_an_end_leaves_the_last_one(self):
        self.leaves_the_last_list("exec yes h3", 3)

    def test_a_command_that_never_ends_leaves_the_last_list(self):
        self.leaves_the_last_list("exec sleep 1000", 2)

    def test_a_bad_host_is_tried_again_and_stops_nobody(self):
        self.them.servers["h2"].terminate()
        self.them.servers["h2"].wait()
        job = self.discover("--nnodes=1:2", "--host-cooldown=1..2")
        job.round_on("h1")
        self.them.start_server("h2")
        job.round_on("h1", "h2", after=1)
        self.end(job)

    def test_a_host_that_is_lost_comes_back(self):
        job = self.discover("--nnodes=1:2", "--host-cooldown=1..2")
        job.round_on("h1", "h2")
        job.kill_client("h2")
        job.round_on("h1", after=1)
        job.round_on("h1", "h2", after=2)
        self.end(job)


if __name__ == "__main__":
    unittest.main()
