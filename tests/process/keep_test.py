"""Workers that outlive their round: who is kept, who is replaced, and what becomes of both.

usage: keep_test.py TORCHUP KEEP_WORKER [name of a test ...]
"""

import glob
import json
import os
import re
import signal
import time
import unittest

from launcher_job import Job, state, until

RESTARTS = "--nproc-per-node=3 --max-restarts=5"


class Keep(Job, unittest.TestCase):
    more = ""  # options of every job

    def job(self, worker="", options=RESTARTS):
        # The worker speaks by hand what the hook would speak.
        return self.start(f"--no-worker-hook {options} {self.more}", f"{{notes}} {worker}".rstrip())

    def lines(self, what):
        if not os.path.exists(self.notes):
            return []
        with open(self.notes) as file:
            lines = [line.split() for line in file.read().splitlines()]
        return [tuple(int(word) for word in words) for kind, *words in lines if kind == what]

    def round(self, number, size=3):
        """{local rank: pid} of the processes in the round with this number, once all are there."""
        lines = until(lambda: (len(self.lines("round")) >= (number + 1) * size) and self.lines("round"), f"round {number}")
        self.assertLessEqual(len(lines), (number + 1) * size)
        return {local_rank: pid for local_rank, pid, *_ in lines[number * size:]}

    def done(self, job, status=0, limit_s=20):
        open(self.notes + ".done", "w").close()
        return self.end(job, status, limit_s)

    def kill(self, *pids):
        """All at once: their agent sees none of them gone before the last one is."""
        with open(f"/proc/{pids[0]}/stat") as file:
            agent = int(file.read().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGSTOP)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.kill(agent, signal.SIGCONT)

    def same(self, before, after):
        return sorted(local_rank for local_rank in before if before[local_rank] == after[local_rank])


class Kept(Keep):
    def test_one_is_killed_and_the_others_are_kept(self):
        job = self.job()
        first = self.round(0)
        self.kill(first[1])
        second = self.round(1)
        self.assertEqual(self.same(first, second), [0, 2])
        places = {(local_rank, rank, world, restarts) for local_rank, _, rank, world, restarts in self.lines("round")[3:]}
        self.assertEqual(places, {(0, 0, 3, 1), (1, 1, 3, 1), (2, 2, 3, 1)})
        out, err = self.done(job)
        self.assertRegex(err, "torchup: restart 1 of 5 after rank 1 on .* was ended by signal 9: 2 of 3 processes kept\n")
        self.assertIn("restarted after rank 1", err)
        self.assertEqual(out.count("here is rank"), 6)
        self.assertEqual(len(self.lines("parked")), 2)

    def test_two_at_once_cost_one_restart(self):
        job = self.job()
        first = self.round(0)
        self.kill(first[0], first[2])
        second = self.round(1)
        self.assertEqual(self.same(first, second), [1])
        self.assertEqual({restarts for *_, restarts in self.lines("round")[3:]}, {1})
        self.done(job)

    def test_two_in_turn(self):
        job = self.job("commits")
        first = self.round(0)
        self.kill(first[0])
        second = self.round(1)
        self.kill(second[0])
        third = self.round(2)
        self.assertEqual((self.same(first, second), self.same(second, third)), ([1, 2], [1, 2]))
        self.done(job)

    def test_all_at_once_are_all_new(self):
        job = self.job()
        first = self.round(0)
        self.kill(*first.values())
        self.assertEqual(self.same(first, self.round(1)), [])
        self.done(job)

    def test_who_raises_alone_is_replaced(self):
        job = self.job("first:raises=2")
        first = {local_rank: pid for local_rank, pid, *_ in until(lambda: self.lines("round")[2:] and self.lines("round")[:3], "the first round")}
        second = self.round(1)
        self.assertEqual(self.same(first, second), [0, 1])
        self.assertEqual([line[0] for line in self.lines("cause")], [2])
        _, err = self.done(job)
        self.assertRegex(err, "restart 1 of 5 after rank 2 on .* exited with 3: 2 of 3 processes kept")

    def test_who_raises_because_another_is_dead_is_kept(self):
        job = self.job("raises_after=1")
        first = self.round(0)
        self.kill(first[1])
        self.assertEqual(self.same(first, self.round(1)), [0, 2])
        self.assertEqual(self.lines("cause"), [])
        self.done(job)

    def test_nobody_is_kept_a_third_time_without_a_step(self):
        for worker, kept in (("", []), ("commits", [0, 2])):
            self.notes = os.path.join(self.scratch.name, f"notes of {worker}".replace(" ", "_"))
            job = self.job(worker)
            rounds = [self.round(0)]
            for number in (1, 2, 3):
                self.kill(rounds[-1][1])
                rounds.append(self.round(number))
            same = [self.same(*pair) for pair in zip(rounds, rounds[1:])]
            self.assertEqual(same, [[0, 2], [0, 2], kept])
            _, err = self.done(job)
            self.assertEqual("it has ended no step" in err, not kept)

    def test_who_never_parks_is_killed_after_the_grace(self):
        job = self.job("never_parks=0", RESTARTS + " --shutdown-timeout=3")
        first = self.round(0)
        begin = time.monotonic()
        self.kill(first[1])
        self.assertEqual(self.same(first, self.round(1)), [2])
        self.assertGreater(time.monotonic() - begin, 2.9)
        self.done(job)

    def test_who_closes_its_channel_or_spoils_it_is_replaced(self):
        for worker in ("closes=0", "garbage=0", "leaves=0", "plain=0"):
            self.notes = os.path.join(self.scratch.name, worker)
            job = self.job(worker)
            first = self.round(0)
            self.kill(first[1])
            self.assertEqual(self.same(first, self.round(1)), [2], worker)
            _, err = self.done(job)
            self.assertEqual(len(re.findall("the channel of rank 0", err)), 2 if worker == "garbage=0" else 0, err)

    def test_who_closes_its_channel_when_it_has_parked_is_replaced(self):
        """Its end may be seen before it has its place, which costs nothing more, or after, which costs a restart."""
        job = self.job("first:closes_parked=0")
        first = self.round(0)
        self.kill(first[1])

        def together():
            places = {local_rank: (pid, restarts) for local_rank, pid, _, _, restarts in self.lines("round")}
            return places[0][0] != first[0] and len({restarts for _, restarts in places.values()}) == 1 and places

        places = until(together, "a round of all three without the one that closed its channel")
        self.assertEqual(places[2][0], first[2])
        self.assertIn(places[0][1], (1, 2))
        self.done(job)

    def test_a_flood_is_no_fault_and_stops_nobody(self):
        job = self.job("floods=0")
        first = self.round(0)
        self.kill(first[1])
        self.assertEqual(self.same(first, self.round(1)), [0, 2])
        self.done(job)

    def test_words_that_nobody_asked_for_change_nothing(self):
        job = self.job("parks_alone=0")
        first = self.round(0)
        self.kill(first[1])
        self.assertEqual(self.same(first, self.round(1)), [0, 2])
        self.done(job)

    def test_without_restarts_the_first_failure_ends_the_job(self):
        job = self.job(options="--nproc-per-node=3")
        self.kill(self.round(0)[1])
        self.end(job, 1)
        self.assertEqual(self.lines("over"), [])

    def test_the_budget_ends_the_job(self):
        job = self.job("commits", "--nproc-per-node=3 --max-restarts=1")
        self.kill(self.round(0)[1])
        self.kill(self.round(1)[0])
        self.end(job, 1)
        self.assertEqual(len(self.lines("round")), 6)

    def waiting(self, options=""):
        """A job in which rank 2 is parked, and rank 0 is waited for, for as long as it takes."""
        job = self.job("never_parks=0", RESTARTS + " --shutdown-timeout=60 " + options)
        first = self.round(0)
        self.kill(first[1])
        until(lambda: len(self.lines("over")) == 2 and self.lines("parked"), "one has parked")
        return job

    def test_a_signal_ends_who_is_parked(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            self.notes = os.path.join(self.scratch.name, f"notes{int(number)}")
            job = self.waiting()
            begin = time.monotonic()
            job.send_signal(number)
            self.end(job, 128 + number)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(len(self.lines("round")), 3)

    def test_the_time_limit_ends_who_is_parked(self):
        job = self.waiting("--timeout=8")
        _, err = self.end(job, 1)
        self.assertIn("--timeout", err)

    def test_children_of_the_kept_live_on_and_those_of_the_dead_do_not(self):
        self.assert_children_follow("first:child")

    def test_so_do_those_that_have_lost_their_parent_and_left_its_session(self):
        self.assert_children_follow("first:leaves_child")

    def assert_children_follow(self, word):
        job = self.job(word)
        first = self.round(0)
        child = {}
        for local_rank, pid in first.items():
            with open(f"{self.notes}.child{pid}") as file:
                child[local_rank] = int(file.read())
        self.kill(first[1])
        self.assertEqual(self.same(first, self.round(1)), [0, 2])
        self.assertIn(state(child[1]), (None, "Z"))
        self.assertEqual((state(child[0]), state(child[2])), ("S", "S"))
        self.done(job)

    def test_lines_and_files_follow_the_round(self):
        job = self.job(options=f"{RESTARTS} --tee=3 --log-dir={self.scratch.name}/logs")
        self.kill(self.round(0)[1])
        self.round(1)
        out, _ = self.done(job)
        for attempt in (0, 1):
            for local_rank in range(3):
                (path,) = glob.glob(f"{self.scratch.name}/logs/*/attempt_{attempt}/{local_rank}/stdout.log")
                with open(path) as file:
                    self.assertEqual(file.read(), f"here is rank {local_rank}\n", path)
        for local_rank in range(3):
            self.assertEqual(out.count(f"[default{local_rank}]:here is rank {local_rank}\n"), 2)
        (path,) = glob.glob(f"{self.scratch.name}/logs/*/attempt_0/incident.json")
        with open(path) as file:
            self.assertEqual(json.load(file)["consequence"], "2 of 3 processes were kept and the others restarted, 4 restarts left")

    def test_the_record_tells_who_is_kept(self):
        events = f"{self.scratch.name}/events"
        result = f"{self.scratch.name}/result"
        job = self.job(options=f"{RESTARTS} --events={events} --result-file={result}")
        first = self.round(0)
        self.kill(first[1])
        second = self.round(1)
        self.done(job)
        with open(events) as file:
            told = [json.loads(line) for line in file]
        self.assertEqual([event["kept"] for event in told if event["event"] == "round_completed"], [0, 2])
        self.assertEqual({event["local_rank"]: event["pid"] for event in told if event["event"] == "worker_kept"}, {0: first[0], 2: first[2]})
        self.assertEqual([event["pid"] for event in told if event["event"] == "worker_started"], [first[0], first[1], first[2], second[1]])
        with open(result) as file:
            workers = json.load(file)["attempts"][1]["workers"]
        self.assertEqual({worker["local_rank"]: worker["pid"] for worker in workers}, second)


class KeptAndForked(Kept):
    """The same where what is missing is forked."""

    more = "--preload=json"


del Keep

if __name__ == "__main__":
    unittest.main()
