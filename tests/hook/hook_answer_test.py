"""The parts of the answer to `look` that need no torch: ranks as stretches, the end of the recorder's text, what fits.

usage: tests/support/run_case.py hook_answer_test.py CASE
"""

import json
import os
import sys
import unittest
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest import mock


class Group:
    pass


class Answer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher/python/injected"))
        import torchup_groups
        cls.groups = torchup_groups

    def test_stretches(self):
        for ranks, text in (([], ""), ([5], "5"), ([0, 1], "0-1"), ([0, 2], "0,2"), (range(8), "0-7"), ([0, 2, 4], "0-4:2"),
                            ([*range(8), *range(12, 61, 4)], "0-7,12-60:4"), ([0, 1, 3], "0-1,3"), ([0, 5, 6, 7], "0,5-7"),
                            (range(0, 100000, 8), "0-99992:8")):
            self.assertEqual(self.groups.stretches(list(ranks)), text)

    def test_stretches_of_a_wild_group(self):
        runs = [at for at in range(0, 4000) if at % 3 != 2]
        at_limit, beyond = runs[:2 * 1024], runs[:2 * 1024 + 1]
        self.assertEqual(self.groups.stretches(at_limit).count(","), 1023)
        self.assertEqual(self.groups.stretches(beyond), "")

    def entries(self, count, **more):
        return [{"collective_seq_id": at, "input_dtypes": [], "input_sizes": [], "is_p2p": False, "p2p_seq_id": 0,
                 "process_group": ["0", "default_pg"], "profiling_name": "nccl:x", "retired": True, "time_created_ns": at,
                 **more} for at in range(1, count + 1)]

    def text(self, entries, **rest):
        return json.dumps({"entries": entries, **rest}, separators=(",", ":")).encode()

    def test_end_of_the_recorders_text(self):
        groups = self.groups
        for count in (0, 1, 255, 256, 257, 2000):
            for rest in ({}, {"pg_config": {"a": 1}, "pg_status": {}}):
                found = groups.parsed(groups.end_of(self.text(self.entries(count), **rest), 256))
                self.assertEqual([each["collective_seq_id"] for each in found], list(range(max(1, count - 255), count + 1)))
        for text in (b"", b"{}", b"rubbish", b'{"entries":[]}', b'{"entries":[],"version":"2"}'):
            self.assertEqual(groups.parsed(groups.end_of(text, 256)), [])

    def test_newest_number(self):
        entries = self.entries(5)
        entries[4] |= {"is_p2p": True}
        entries[3] |= {"process_group": ["12", "1"]}
        text = self.text(entries, pg_status={"0": {}})
        self.assertEqual([self.groups.newest_number(text, name) for name in ("0", "12", "1", "")], [3, 4, -1, -1])

    def test_answer_that_is_too_long(self):
        """The oldest entries go."""
        groups = self.groups
        entries = [groups.entry_told(each) for each in self.entries(256, input_sizes=[[1 << 40] * 8] * 20)]
        with self.faked(recorded=lambda names: (entries, lambda name: 1), groups_told=lambda module: [],
                        backends_of=lambda module, in_passing: []):
            text = groups.answer_of(None, 262144)
            self.assertLessEqual(len(text), 262144)
            numbers = [each["number"] for each in json.loads(text)["entries"]]
            self.assertEqual(numbers, list(range(257 - len(numbers), 257)))
            self.assertGreater(len(numbers), 50)
            whole = len(groups.answer_of(None, 1 << 30))
            self.assertEqual(len(groups.answer_of(None, whole)), whole)
            self.assertLess(len(groups.answer_of(None, whole - 2)), whole - 2)

    def faked(self, **functions):
        return mock.patch.multiple(self.groups, **functions)

    def world(self, backends):
        """torch.distributed with one group."""
        group = Group()
        found = SimpleNamespace(pg_map={group: (backends, None)}, pg_names={group: "0"}, pg_group_ranks={group: [0]})
        return SimpleNamespace(_world=found), weakref.ref(group)

    def asked(self, *how, **env):
        """The recorders that are read."""
        names = []
        module, _ = self.world("cpu:gloo,cuda:nccl")
        with self.faked(recorder_text=lambda name: names.append(name) or b""), mock.patch.dict(os.environ, env):
            answer = json.loads(self.groups.answer_of(module, 1 << 20, *how))
        self.assertEqual([group["seq"] for group in answer["groups"]], [-1])
        return names

    def test_recorders_that_are_read_in_passing(self):
        """NCCL's asks CUDA, and a long one takes long."""
        both = ["gloo", "nccl"]
        self.assertEqual(self.asked(), both)
        self.assertEqual(self.asked(TORCH_FR_BUFFER_SIZE="5001"), both)
        self.assertEqual(self.asked(True), ["gloo"])
        self.assertEqual(self.asked(True, TORCH_NCCL_ENABLE_TIMING="0"), ["gloo"])
        self.assertEqual(self.asked(True, TORCH_NCCL_ENABLE_TIMING="1"), both)
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            self.assertEqual(self.asked(True, **{name: "5000"}), ["gloo"])
            self.assertEqual(self.asked(True, **{name: "5001"}), [])
            self.assertEqual(self.asked(True, **{name: "many"}), ["gloo"])
        self.assertEqual(self.asked(True, True), [])
        self.assertEqual(self.asked(False, True), both)

    def test_slow_recorder_is_left_alone(self):
        """In passing, for a thousand times as long as it took."""
        clock, rests = [0.0], []

        def answer(module, room, in_passing, does_rest):
            rests.append(does_rest)
            clock[0] += 0.25
            return b""

        worker = SimpleNamespace(load=lambda name: SimpleNamespace(is_whole=lambda page: False))
        groups = self.groups.Groups(worker)
        with self.faked(monotonic=lambda: clock[0], answer_of=answer):
            for packet, at in ((b"look\nnumber=1\n", 0.0), (b"look\nnumber=2\npassing=1\n", 249.0),
                               (b"look\nnumber=3\npassing=1\n", 499.5)):
                clock[0] = at
                groups._hear(None, packet)
        self.assertEqual(rests, [False, True, False])

    def test_groups_are_not_held(self):
        """While their numbers are sought the program may destroy them, and is to do so itself."""
        module, group = self.world("gloo")
        held = []

        def newest_number(text, name):
            for names in vars(module._world).values():
                names.clear()
            held.append(group())
            return 4

        with self.faked(recorder_text=lambda name: b"", newest_number=newest_number):
            answer = json.loads(self.groups.answer_of(module, 1 << 20))
        self.assertEqual(held, [None])
        self.assertEqual([(each["name"], each["number"]) for each in answer["groups"]], [("0", 4)])


if __name__ == "__main__":
    unittest.main()
