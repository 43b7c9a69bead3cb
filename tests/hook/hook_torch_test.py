"""What the hook tells of programs on torch: steps, groups, the answer to `look`; and torchup.elastic beside it.

usage: tests/support/run_case.py hook_torch_test.py CASE      ends with 77 where there is no torch
"""

import importlib.util
import json
import time
import unittest

from hook_agent import Case, Path, os, until
from ranks import free_port

PACKAGE = str(Path(__file__).resolve().parents[2] / "launcher/python")
HAS_TORCH = importlib.util.find_spec("torch") is not None
ENTRIES_MAX = 256


@unittest.skipUnless(HAS_TORCH, "takes torch")
class Torch(Case):
    def job(self, text, size=1, come=None, **how):
        """Of `size` workers the first `come`."""
        self.write("program.py", text)
        port = free_port()
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
               **how.pop("env", {})}
        ranks = range(size if come is None else come)
        return [self.start("-u", "program.py", env={**env, "RANK": str(rank)}, **how) for rank in ranks]

    def said(self, worker, word):
        until(lambda: word in worker.output() or worker.has_ended(), word)
        self.assertIn(word, worker.output(), worker.errors())

    def test_steps(self):
        worker, = self.job("""
            import sys, torch
            net = torch.nn.Linear(2, 2)
            others = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.AdamW(net.parameters())
            for step in range(5):
                net(torch.ones(1, 2)).sum().backward()
                for each in others: each.step()
            print([type(each).__name__ for each in sys.meta_path][:1], 'threading' in sys.modules)
            import os
            if os.fork() == 0:
                others[0].step()
                os._exit(0)
            os.wait()
            """)
        self.assertEqual(worker.wait(), 0, worker.errors())
        count, step, ended, took = worker.memory.beats()
        self.assertEqual((count, step), (10, 10))
        self.assertTrue(0 < took < ended < time.monotonic_ns())
        self.assertNotIn("'Finder'", worker.output())

    GROUPS = """
        import os, sys, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        pair = dist.new_group([0, 2], group_desc="a pair")
        tensor = torch.ones(3, 5)
        for _ in range(4): dist.all_reduce(tensor)
        if rank in (0, 2): dist.broadcast(tensor, 0, group=pair)
        dist.barrier()
        """

    def test_groups_and_their_numbers(self):
        """Rank 1 does not come: the others have begun what it has not."""
        begun = (7, 5, 7)  # by each, in all groups
        workers = self.job(self.GROUPS + """
        print("there")
        if rank == 1: time.sleep(600)
        dist.all_reduce(torch.ones(7))
        """, size=3)
        for worker, number in zip(workers, begun):
            self.said(worker, "there")
            until(lambda: worker.memory.collectives >= number, "collectives")
            self.assertEqual(worker.memory.collectives, number)
            self.assertGreater(worker.memory.collectives_at, 0)
            self.assertIn(str(worker.memory.helper), os.listdir(f"/proc/{worker.pid}/task"))
            self.assertNotEqual(worker.memory.helper, worker.pid)
        answers = [json.loads(worker.look(at)) for at, worker in enumerate(workers)]
        until(lambda: all(each["retired"] for each in json.loads(workers[1].look(4))["entries"]), "it waits for nobody")
        numbers = [{each["desc"]: (each["name"], each["ranks"], each["number"]) for each in answer["groups"]}
                   for answer in answers]
        self.assertEqual(numbers[0], {"default_pg": ("0", "0-2", 6), "a pair": ("1", "0,2", 1)})
        self.assertEqual(numbers[1], {"default_pg": ("0", "0-2", 5)})
        self.assertEqual(numbers[2], numbers[0])
        last = answers[0]["entries"][-1]
        self.assertLess(abs(last["created_ns"] - time.time_ns()), 600e9)
        del last["created_ns"]
        self.assertEqual(last,
                         {"group": "0", "number": 6, "p2p": False, "operation": "gloo:all_reduce", "sizes": [[7]],
                          "dtypes": ["Float"], "retired": False})
        self.assertEqual(len(answers[1]["entries"]), 5)
        # Asked of the helper, and so not of a main thread that may be in a file server's hands.
        text = workers[0].stacks(workers[0].memory.helper)
        self.assertRegex(text.splitlines()[0], "^Current thread")
        self.assertIn("torchup_groups.py", text.split("\n\n")[0])
        self.assertIn("all_reduce", text.split("\n\n")[-1])

    def test_what_was_done_right_before_the_end(self):
        """The helper has not looked since."""
        worker, = self.job("""
            import torch, torch.distributed as dist
            dist.init_process_group("gloo")
            for _ in range(7): dist.all_reduce(torch.ones(3))
            """)
        self.assertEqual(worker.wait(), 0, worker.errors())
        self.assertEqual(worker.memory.collectives, 7)

    def test_last_entries_of_many(self):
        """The recorder's ring has gone round."""
        worker, = self.job("""
            import time, torch, torch.distributed as dist
            dist.init_process_group("gloo")
            seldom = dist.new_group([0], group_desc='odd "name" {"collective_seq_id":')
            for at in range(3): dist.all_reduce(torch.ones(1), group=seldom)
            for at in range(2300): dist.all_reduce(torch.ones(1))
            for at in range(300): dist.all_reduce(torch.ones(1), group=seldom)
            for at in range(300): dist.all_reduce(torch.ones(1))
            print("there")
            time.sleep(600)
            """)
        self.said(worker, "there")
        text = worker.look(1)
        self.assertLess(len(text), 262144)
        answer = json.loads(text)
        self.assertEqual([each["number"] for each in answer["entries"]], list(range(2600 - ENTRIES_MAX + 1, 2601)))
        self.assertEqual({each["desc"]: each["number"] for each in answer["groups"]},
                         {"default_pg": 2600, 'odd "name" {"collective_seq_id":': 303})
        again = json.loads(worker.look(2))
        self.assertEqual(again, answer)

    def test_waiting_for_the_others_to_come(self):
        """The helper is there before init_process_group has ended."""
        worker, = self.job("import torch.distributed as dist\ndist.init_process_group('gloo')\n", size=2, come=1)
        until(lambda: worker.memory.helper, "the helper")
        self.assertEqual(json.loads(worker.look(7)), {"groups": [], "entries": []})
        until(lambda: "rendezvous" in worker.stacks(worker.memory.helper), "the place where it waits")

    def test_lock_that_native_code_holds(self):
        worker, = self.job(self.GROUPS.replace("[0, 2]", "[0]") + """
        import ctypes
        def inner():
            sleep = ctypes.PyDLL(None).sleep
            print("there")
            sleep(600)  # holds it
        inner()
        """)
        self.said(worker, "there")
        text = (self.folder / "program.py").read_text()
        line = 1 + text[:text.index("sleep(600)")].count("\n")
        until(lambda: f", line {line} in inner\n" in worker.stacks(worker.memory.helper), "the line")
        worker.end.send(b"look\nnumber=1\n")
        with self.assertRaises(TimeoutError):
            worker.hear(1.5)

    def test_same_output_and_errors(self):
        """No warning, no frame, no thread that anything waits for; also where the group is not destroyed."""
        for text in (self.GROUPS.replace("[0, 2]", "[0]"), self.GROUPS.replace("[0, 2]", "[0]") + "\n        1 / 0\n",
                     "import torch.distributed as dist\ndist.init_process_group('nothing')\n",
                     "import torch.distributed as dist\ndist.init_process_group('gloo', store=1, init_method='x')\n"
                     "dist.init_process_group('gloo')\n",
                     "import torch, os, warnings\nwarnings.simplefilter('error')\nif os.fork() == 0: os._exit(0)\n"
                     "print(os.wait()[1])\n",
                     "import torch.distributed as dist, inspect\nprint(inspect.signature(dist.init_process_group))\n",
                     self.GROUPS.replace("[0, 2]", "[0]") + "\n        dist.destroy_process_group()\n"
                                                            "        dist.init_process_group('gloo')\n"):
            with self.subTest(text):
                hooked, = self.job(text)
                code = hooked.wait()
                alone, = self.job(text, hook=False)
                self.assertEqual(code, alone.wait())
                self.assertEqual(hooked.output(), alone.output())
                self.assertEqual(hooked.errors(), alone.errors())

    def test_ends_at_any_moment(self):
        """The interpreter ends while the helper is asked all the time."""
        for _ in range(4):
            worker, = self.job(self.GROUPS.replace("[0, 2]", "[0]") + """
        for at in range(2000): dist.all_reduce(tensor)
        while not os.path.exists("asked"): time.sleep(0.001)
        """)
            until(lambda: worker.memory.helper or worker.has_ended(), "the helper")
            worker.end.setblocking(False)
            while not worker.has_ended():
                try:
                    worker.end.send(b"look\nnumber=1\n")
                    while worker.end.recv(100):
                        (self.folder / "asked").touch()
                except OSError:
                    time.sleep(0.001)
            (self.folder / "asked").unlink()
            self.assertEqual((worker.wait(), worker.errors()), (0, ""))

    def test_stranger_on_the_channel(self):
        """What is no word is passed over while nobody listens; its end ends nothing else."""
        worker, = self.job(self.GROUPS.replace("[0, 2]", "[0]") + "\n        print('there')\n        time.sleep(600)\n")
        self.said(worker, "there")
        for packet in (b"\xff" * 20000, b"look", b"look\n", b"look\nnumber=x\n",
                       b"look\nnumber=" + b"9" * 30 + b"\n", b"nothing\n", b"lookup\nnumber=1\n"):
            worker.end.send(packet)
        self.assertEqual(len(json.loads(worker.look(3))["groups"]), 2)
        worker.end.close()
        before = worker.memory.collectives
        self.assertIn("<module>", worker.stacks(worker.memory.helper))
        self.assertEqual((worker.memory.collectives, worker.has_ended()), (before, False))

    def test_program_takes_the_signal(self):
        """Then nobody is to send it."""
        worker, = self.job(self.GROUPS.replace("[0, 2]", "[0]") + """
        import signal
        for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1): signal.signal(number, lambda *_: print("taken"))
        print("there")
        time.sleep(600)
        """)
        self.said(worker, "there")
        until(lambda: worker.memory.signal == 0, "the signal is given up")

    def test_program_closes_all_descriptors(self):
        worker, = self.job("""
            import os, time, torch, torch.distributed as dist
            os.closerange(3, 1 << 16)
            dist.init_process_group("gloo")
            for _ in range(3): dist.all_reduce(torch.ones(1))
            files = [open(f"file_{at}", "w") for at in range(40)]
            print("there")
            while not os.path.exists("go_on"): time.sleep(0.01)
            """)
        self.said(worker, "there")
        until(lambda: worker.memory.signal == 0 and worker.memory.collectives == 3, "the helper")
        (self.folder / "go_on").touch()
        self.assertEqual((worker.wait(), worker.errors()), (0, ""))
        self.assertEqual({path.stat().st_size for path in self.folder.glob("file_*")}, {0})

    def test_signals_of_the_program_are_for_its_own_threads(self):
        """One that all of them block stays pending."""
        worker, = self.job(self.GROUPS.replace("[0, 2]", "[0]") + """
        import os, signal, sys
        while not (helper := sys.modules["torchup_worker"].page.numbers[33]): pass
        number = int(open(f"/proc/self/task/{helper}/status").read().split("SigBlk:")[1].split()[0], 16)
        blocked = [bool(number >> each - 1 & 1) for each in (signal.SIGTERM, signal.SIGSEGV, 61)]
        print(*blocked, "there")
        """)
        self.said(worker, "there")
        self.assertEqual(worker.output().split()[-4:], ["True", "False", "False", "there"])

    def test_elastic_beside_it(self):
        """Page and channel are the hook's; the program's own steps count, and its words go by the one reader."""
        worker, = self.job("""
            import torch
            from torchup import elastic
            net = torch.nn.Linear(2, 2)
            state = elastic.State(model=net, optimizer=(opt := torch.optim.SGD(net.parameters(), lr=0.1)))
            def train(state):
                while state.step < 3 or state.step < 1000000 and ROUND[0] == 0:
                    net(torch.ones(1, 2)).sum().backward()
                    opt.step(); opt.step(); opt.zero_grad()
                    if state.step == 2: print("there")
                    state.commit()
            ROUND = [0]
            import threading
            former = elastic.link.park
            def park(step):
                print("parks", threading.active_count())
                former(step)
                ROUND[0] = 1
            elastic.link.park = park
            elastic.run(train, state)
            print("ends", state.step < 1000000)
            """, env={"PYTHONPATH": PACKAGE, "TORCHELASTIC_RESTART_COUNT": "0"}, own_path=PACKAGE)
        self.said(worker, "there")
        self.assertEqual(worker.hear(), b"stay\n")
        answer = json.loads(worker.look(4))
        self.assertEqual([each["desc"] for each in answer["groups"]], ["default_pg"])
        until(lambda: worker.memory.beats()[0] > 3, "steps")
        count, step, *_ = worker.memory.beats()
        self.assertLessEqual(abs(count - step), 1)  # not twice as many, as the optimizer's are
        worker.end.send(b"abort\nreason=a test's\n")
        verb, step, _ = worker.hear().split(b"\n")
        self.assertEqual((verb, step[:5]), (b"parked", b"step="))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
        worker.end.send(b"place\n" + b"".join(f"{name}={value}\n".encode() for name, value in place.items()))
        self.assertEqual(worker.hear(), b"stay\n")
        self.assertEqual(worker.wait(), 0, worker.errors())
        self.assertIn("ends True", worker.output())
        self.assertEqual(worker.errors(), "")

    def test_elastic_hears_bad_packets(self):
        worker, = self.job("""
            import time, torch
            from torchup import elastic
            state = elastic.State(model=torch.nn.Linear(1, 1))
            def train(state):
                print("there")
                while elastic.link.is_open(): time.sleep(0.01)
                print("over")
            elastic.run(train, state)
            """, own_path=PACKAGE)
        self.said(worker, "there")
        worker.end.send(b"no end")
        self.assertEqual(worker.wait(), 0, worker.errors())
        self.assertEqual(worker.errors(), "torchup: the channel to the agent has ended: a packet with an open end\n")


if __name__ == "__main__":
    unittest.main()
