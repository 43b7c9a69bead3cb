#!/usr/bin/env python3
"""worker_main as a person and a launcher see it: who am I, stopping together, last words.

usage: tests/support/run_case.py worker_test.py CASE TOY_WORKER TORCHUPD
"""

import fcntl
import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from ranks import LIMIT, Job, Relay, clean_environment
from torchupd import Torchupd

toy, torchupd = sys.argv[1:3]
CONTRACT = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29999", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # what started us may ignore it, and workers keep what is ignored


def run(*arguments, more={}, **variables):
    return subprocess.run([toy, *arguments], env=clean_environment(**variables), capture_output=True, text=True, errors="replace",
                          timeout=100, **more)


class RanksAndArguments(unittest.TestCase):
    def test_alone(self):
        alone = run("report", "--lr", "0.1")
        self.assertEqual(alone.returncode, 0, alone)
        self.assertIn("rank 0 of 1, local rank 0 of 1, restart 0, device cpu", alone.stdout)
        self.assertIn(f"[{toy}] [report] [--lr] [0.1] and a null", alone.stdout)
        self.assertIn("without a launcher", alone.stderr)
        self.assertIn("rank 0 of 1", alone.stderr)

    def test_launched(self):
        launched = run("report", "--local-rank=1", "--epochs", "2", **CONTRACT)
        self.assertIn("rank 5 of 8, local rank 1 of 2, restart 2", launched.stdout)
        self.assertIn("[report] [--epochs] [2] and", launched.stdout)
        self.assertEqual(launched.stderr, "")

    def test_the_local_rank_may_be_an_argument(self):
        self.assertIn("local rank 0 of 2", run("report", "--local_rank", "0", **CONTRACT | {"LOCAL_RANK": None}).stdout)

    def test_a_part_of_the_contract_is_refused_in_one_line(self):
        part = run("report", RANK="0", MASTER_ADDR="127.0.0.1")
        self.assertEqual(part.returncode, 1, part)
        self.assertIn("WORLD_SIZE", part.stderr)
        self.assertIn("MASTER_PORT", part.stderr)
        self.assertEqual(part.stderr.count("\n"), 1, part.stderr)
        self.assertTrue(part.stderr.startswith("torchup: rank 0: "), part.stderr)

    def test_the_exit_code_is_the_programs(self):
        self.assertEqual(run("exit").returncode, 3)


class Together(unittest.TestCase):
    """Several workers, which meet at a store that outlives them."""

    def setUp(self):
        self.store = Torchupd(torchupd)
        self.addCleanup(self.store.kill)
        self.port = self.store.port

    def start(self, world_size, *arguments, nodes=1, place={}, place_of={}, **more):
        """Workers of one job, as if they were on so many nodes; `place_of` some ranks is another."""
        each = world_size // nodes
        job = Job()
        self.addCleanup(job.__exit__)
        for rank in range(world_size):
            job.start([toy, *arguments], {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank % each, "LOCAL_WORLD_SIZE": each,
                                          "GROUP_RANK": rank // each, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port,
                                          "TORCHELASTIC_USE_AGENT_STORE": "True", **place, **place_of.get(rank, {})}, **more)
        return job

    def relay(self, cut_at=None):
        """From now on workers are led to the store by it."""
        relay = Relay(self.port, cut_at)
        self.addCleanup(relay.close)
        self.port = relay.port
        return relay

    def say_a_line_to(self, worker):
        worker.stdin.write("\n")
        worker.stdin.flush()


class Stop(Together):
    """One rank is asked to stop; all stop after the same step, however far they have drifted apart."""

    WISH = b"/torchup/stop/n1/0/0/asked"
    WAIT_FOR_WISH = b"\x06" + struct.pack("<QQ", 1, len(WISH)) + WISH  # answered when the key comes, and not before

    def stops(self, every, asked_rank, world_size=3):
        job = self.start(world_size, "steps", str(every))
        for worker in job.processes:
            self.assertEqual(worker.stdout.readline(), "begun\n")
        job.processes[asked_rank].send_signal(signal.SIGUSR1)
        results = job.finish()
        self.assertEqual([code for code, _, _ in results], [75] * world_size, results)
        self.assertEqual(len({out for _, out, _ in results}), 1, results)
        self.assertTrue(results[0][1].startswith("stop "), results)

    def test_rank_0_is_asked(self):
        self.stops(1, 0)

    def test_the_last_rank_is_asked(self):
        self.stops(1, 2)

    def test_ranks_that_drift_apart(self):
        self.stops(7, 1)

    def test_alone(self):
        self.stops(1, 0, world_size=1)

    def test_while_nobody_asks_the_ranks_wait_at_the_store_however_often_it_is_lost(self):
        relay = self.relay()
        job = self.start(2, "steps", "1")
        for _ in range(4):
            relay.wait_for(self.WAIT_FOR_WISH, times=2)
            relay.said = b""
            relay.cut()
        relay.wait_for(self.WAIT_FOR_WISH, times=2)
        job.processes[1].send_signal(signal.SIGUSR1)
        results = job.finish()
        self.assertEqual([code for code, _, _ in results], [75, 75], results)


class LostUnnoticed(Together):
    """What is told over a connection that was lost since it was last used."""

    def told_after_a_loss(self, what, other_waits_for):
        """The processes of a job whose rank 0 goes on when its connection is gone."""
        relay = self.relay()
        job = self.start(2, what, stdin=subprocess.PIPE)
        for worker in job.processes:
            self.assertEqual(worker.stdout.readline(), "begun\n")
        relay.wait_for(other_waits_for)
        relay.cut()
        self.say_a_line_to(job.processes[0])
        return job.processes

    def test_an_outcome(self):
        told, _ = self.told_after_a_loss("outcome", b"torchup/outcome")[1].communicate(timeout=LIMIT)
        self.assertEqual(told.split("\n")[0], "no room")

    def test_rank_0s_parameters(self):
        self.assertEqual([worker.wait(LIMIT) for worker in self.told_after_a_loss("wrapped", b"parameters/0/digest")], [0, 0])

    def test_what_a_rank_offers_at_the_meeting(self):
        relay = self.relay(cut_at=b"offer/1")
        led = {1: {"MASTER_PORT": relay.port}}
        self.port = relay.to
        results = self.start(2, "spawned", place_of=led).finish()
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertGreaterEqual(relay.said.count(b"offer/1"), 2)  # it is told again, until it is heard


class ZeroFirst(Together):
    def outputs(self, *arguments, **more):
        """By rank: its word of each of the two turns, and when it was said."""
        results = self.start(*arguments, **more).finish()
        self.assertEqual([code for code, _, _ in results], [0] * len(results), results)
        return [out.replace("destroyed", "").split() for _, out, _ in results]

    def test_one_of_the_node_comes_before_all_others(self):
        outputs = self.outputs(3, "zero-first")
        for turn in (0, 2):
            times = {word: [int(output[turn + 1]) for output in outputs if output[turn] == word] for word in ("first", "later")}
            self.assertEqual((len(times["first"]), len(times["later"])), (1, 2), outputs)
            self.assertLessEqual(times["first"][0], min(times["later"]), outputs)

    def one_of_each_node(self, place):
        outputs = [output[::2] for output in self.outputs(4, "zero-first", nodes=2, place=place)]
        for node in (outputs[:2], outputs[2:]):
            self.assertEqual(sorted(output[0] for output in node), ["first", "later"], outputs)
        self.assertEqual([output[1] for output in outputs], ["first", "later", "later", "later"], outputs)

    def test_one_of_each_node_then_one_of_the_job(self):
        self.one_of_each_node({})

    def test_where_every_worker_believes_that_its_local_rank_is_0(self):
        self.one_of_each_node({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""})

    def fails(self, how, why, failed):
        begun = time.monotonic()
        results = self.start(2, how).finish()
        self.assertLess(time.monotonic() - begun, 90)
        self.assertEqual([code for code, _, _ in results].count(1), failed, results)
        (told, *_) = [err for code, _, err in results if code == 1 and "first rank of this node failed: " in err]
        self.assertIn(why, told)

    def test_the_first_ones_word_is_said_over_a_connection_that_was_lost_unnoticed(self):
        relay = self.relay()
        job = self.start(2, "zero-first-waits", stdin=subprocess.PIPE)
        relay.wait_for(b"zero_first/1/node 0", times=3)  # both came, and one waits
        relay.cut()
        for worker in job.processes:
            self.say_a_line_to(worker)
        self.assertEqual([worker.wait(LIMIT) for worker in job.processes], [0, 0])

    def test_a_first_one_that_fails_and_goes_on_tells_the_others(self):
        self.fails("zero-first-fails", "an exception left its scope", failed=1)

    def test_a_first_one_that_crashes_tells_the_others(self):
        self.fails("zero-first-crashes", "the disk is full", failed=2)


class Page(unittest.TestCase):
    """The page that a worker shares with its agent: heartbeat, waiting, drain; refused when it is not ours."""

    SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

    def start(self, seals, pid_offset=0):
        self.memory = os.memfd_create("page", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, self.memory)
        os.ftruncate(self.memory, 4096)
        fcntl.fcntl(self.memory, fcntl.F_ADD_SEALS, seals)
        facts = os.fstat(self.memory)
        read, write = os.pipe()
        self.child = os.fork()
        if self.child == 0:  # the one place that knows the worker's pid
            os.dup2(write, 1)
            os.set_inheritable(self.memory, True)
            page = f"{self.memory}:{facts.st_dev}:{facts.st_ino}:{os.getpid() + pid_offset}"
            os.execve(toy, [toy, "steps", "1"], clean_environment(TORCHUP_WORKER_PAGE=page))
        os.close(write)
        output = os.fdopen(read)
        self.addCleanup(output.close)
        self.assertEqual(output.readline(), "begun\n")
        return output

    def page(self):
        return os.pread(self.memory, 4096, 0)

    def end(self, output):
        """What the worker said at last."""
        stopped = output.read()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1]), 75)
        return stopped

    def test_heartbeat_and_drain(self):
        output = self.start(self.SEALS)
        during = self.page()
        deadline = time.monotonic() + 60
        while struct.unpack_from("<Q", self.page(), 16)[0] < 20:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        os.pwrite(self.memory, struct.pack("<Q", 1), 2048)  # drain
        stopped = self.end(output)
        after = self.page()
        newest = struct.unpack_from("<Q", after, 16)[0]
        number, step, ended, took, waited = struct.unpack_from("<Qqqqq", after, 64 + newest % 2 * 64)
        self.assertEqual(struct.unpack_from("<Qq", after), (0x31474150505554, self.child))
        self.assertEqual((number, step), (newest, newest))
        self.assertEqual(step, int(stopped.split()[1]))
        self.assertLess(abs(time.monotonic_ns() - ended), 20e9)
        self.assertTrue(0 <= waited < took < 5e9, (waited, took))
        self.assertLess(struct.unpack_from("<Q", during, 16)[0], newest)

    def refused(self, *page):
        output = self.start(*page)
        os.kill(self.child, signal.SIGUSR1)
        self.end(output)
        self.assertEqual(self.page()[:2048], bytes(2048))

    def test_an_unsealed_page_is_refused(self):
        self.refused(0)

    def test_the_page_of_another_process_is_refused(self):
        self.refused(self.SEALS, 1)


class Spawned(unittest.TestCase):
    def test_three_processes_meet(self):
        ended = run("spawned")
        self.assertEqual(ended.returncode, 0, ended)
        said = sorted(line for line in ended.stdout.split("\n") if "sum" in line)
        self.assertEqual(said, [f"rank {rank} of 3: sum 6" for rank in range(3)])

    def test_one_that_fails_ends_all(self):
        begun = time.monotonic()
        ended = run("spawned", "1")
        self.assertEqual(ended.returncode, 7, ended)
        self.assertLess(time.monotonic() - begun, 90)

    def test_their_store_is_for_this_machine_and_children_follow_their_parent(self):
        parent = subprocess.Popen([toy, "spawned", "-1"], env=clean_environment(), text=True, stdout=subprocess.PIPE)
        try:
            for _ in range(3):
                self.assertIn("sum 6", parent.stdout.readline())
            links = [os.readlink(link) for link in pathlib.Path(f"/proc/{parent.pid}/fd").iterdir()]
            sockets = {link[8:-1] for link in links if link.startswith("socket:")}
            listening = [words[1].split(":")[0] for table in ("tcp", "tcp6") for words in map(str.split, open(f"/proc/net/{table}"))
                         if words[3] == "0A" and words[9] in sockets]
            self.assertEqual(listening, ["0100007F"])
        finally:
            workers = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            parent.kill()
            parent.communicate()
        deadline = time.monotonic() + 60
        while any(self.lives(pid) for pid in workers):
            self.assertLess(time.monotonic(), deadline, workers)
            time.sleep(0.01)

    @staticmethod
    def lives(pid):
        try:
            return "(toy_worker) Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False


class LastWords(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "error.json")

    def go_wrong(self, how, returncode, message, **more):
        """Lets a worker go wrong; what it said, and what its error file holds."""
        before = int(time.time())
        ended = run(how, more=more, TORCHELASTIC_ERROR_FILE=str(self.path), **CONTRACT)
        self.assertEqual(ended.returncode, returncode, ended)
        self.assertNotIn("destroyed", ended.stdout, "it ran destructors")
        self.assertIn(message.split(": ")[-1].split("\n")[0], ended.stderr)
        self.assertEqual(os.listdir(self.path.parent), ["error.json"])
        content = json.loads(self.path.read_text())["message"]
        self.assertIn(message, content["message"])
        extra = content["extraInfo"]
        self.assertTrue(before <= int(extra["timestamp"]) <= time.time(), extra)
        self.assertEqual((extra["rank"], extra["local_rank"], extra["restart_count"]), (5, 1, 2), extra)
        self.assertEqual((extra["host"], extra["step"]), (socket.gethostname(), 41), extra)
        return ended.stderr, content

    def names(self, how, returncode, message, function="fail_here", on_stderr=True):
        stderr, content = self.go_wrong(how, returncode, message)
        self.assertEqual(function in stderr, on_stderr, stderr)
        self.assertEqual(content["message"].startswith("c10::Error: "), how == "throw-torch", content)
        stack = content["extraInfo"]["py_callstack"]
        self.assertIn(function, stack)
        if how not in ("overflow", "thread", "two-threads"):
            self.assertIn("worker_main", stack)

    def test_an_exception(self):
        self.names("throw", 1, "std::out_of_range: no sample 7")

    def test_an_error_of_ours_without_its_stack_on_the_screen(self):
        self.names("throw-error", 1, 'Error: said "no"\nin two lines', on_stderr=False)

    def test_an_exception_that_is_none(self):
        self.names("throw-int", 1, "int")

    def test_an_exception_of_libtorch(self):
        self.names("throw-torch", 1, "mat1 and mat2 shapes cannot be multiplied")

    def test_an_exception_in_another_thread(self):
        self.names("thread", 1, "std::out_of_range: no sample 7")

    def test_a_bad_access(self):
        self.names("segv", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access to address 0x0")

    def test_two_threads_with_a_bad_access_at_once(self):
        self.names("two-threads", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access to address 0x0")

    def test_an_abort(self):
        self.names("abort", -signal.SIGABRT, "Signal 6 (SIGABRT)")

    def test_a_signal_to_quit(self):
        self.names("quit", -signal.SIGQUIT, "Signal 3 (SIGQUIT)")

    def test_a_stack_overflow(self):
        self.names("overflow", -signal.SIGSEGV, "Signal 11 (SIGSEGV): bad access", function="overflow")

    def test_an_action_that_hangs(self):
        """What was written before anything that could hang: addresses without names."""
        _, content = self.go_wrong("action-hangs", 1, "std::out_of_range: no sample 7")
        self.assertGreater(len(content["extraInfo"]["py_callstack"].split("0x")), 3, content)

    def test_a_disk_that_has_room_for_the_plain_report_only_keeps_that(self):
        self.go_wrong("throw", 1, "std::out_of_range: no sample 7")
        room = self.path.stat().st_size - 50
        self.path.unlink()

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk is an error of write, not a signal
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        _, content = self.go_wrong("throw", 1, "std::out_of_range: no sample 7", preexec_fn=small_files, restore_signals=False)
        self.assertGreater(len(content["extraInfo"]["py_callstack"].split("0x")), 3, content)

    def test_a_message_of_any_length_leaves_a_file_that_can_be_read(self):
        _, content = self.go_wrong("long-message", 1, 'Error: """')
        self.assertIn("worker_main", content["extraInfo"]["py_callstack"])

    def test_a_message_that_is_no_utf8_leaves_a_file_that_can_be_read(self):
        _, content = self.go_wrong("no-utf8", 1, "Error: caf")
        self.assertIn("Error: caf\ufffd \ufffd", content["message"])
        self.assertIn("worker_main", content["extraInfo"]["py_callstack"])

    def test_torchrun_reads_the_file(self):
        from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
        _, content = self.go_wrong("throw", 1, "std::out_of_range: no sample 7")
        failure = ProcessFailure(local_rank=1, pid=1, exitcode=1, error_file=str(self.path))
        self.assertEqual(failure.timestamp, int(content["extraInfo"]["timestamp"]))
        self.assertIn("no sample 7", failure.message["message"])


if __name__ == "__main__":
    sys.exit(__doc__)
