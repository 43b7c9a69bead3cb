"""--preload with the real torch and numpy: what programs do with it goes as in an executed worker.

usage: tests/support/run_case.py preload_torch_test.py CASE TORCHUP
"""

import importlib.util
import json
import os
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from preload_job import Case


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch")
class Torch(Case, unittest.TestCase):
    def run_torch(self, text, *words, preload="mark,torch,numpy"):
        self.write("program.py", text)
        return self.run_program(*words, preload=preload)

    def run_program(self, *words, preload):
        done = self.run_job(*([f"--preload={preload}"] if preload else []), *words, "program.py",
                            env={"PYTHON_EXEC": sys.executable})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("without it", done.stderr)
        self.assertNotIn("leak", done.stderr)
        return done.stdout.splitlines()

    def same_with_torch(self, text, *words, lines):
        self.write("program.py", text)
        with ThreadPoolExecutor() as sides:
            executed, forked = (sides.submit(self.run_program, *words, preload=preload) for preload in ("", "mark,torch,numpy"))
        self.assertEqual(executed.result(), forked.result())
        self.assertEqual(len(executed.result()), lines)

    def test_imports_are_there_and_random_numbers_differ(self):
        text = """
            import json, os, sys
            there = all(name in sys.modules for name in ('torch', 'torch._dynamo', 'numpy', 'mark'))
            import numpy, random, torch, mark
            assert there and mark.PID != os.getpid()
            print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed()]))
            torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
            """
        seen = [number for _ in range(2) for line in self.run_torch(text, "--nproc-per-node=3") for number in json.loads(line)]
        self.assertEqual(len(set(seen)), 2 * 3 * 4)

    def test_seeded_numbers_are_those_of_an_executed_worker(self):
        text = """
            import numpy, torch
            torch.manual_seed(5); numpy.random.seed(5)
            layer = torch.nn.Linear(64, 64)
            print(torch.rand(2).tolist(), numpy.random.rand(2).tolist(), layer(torch.ones(64)).sum().item())
            print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.initial_seed())
            """
        self.same_with_torch(text, lines=2)

    def test_data_loader(self):
        """In one job, for what takes long is the import of torch, which each process that is not forked pays."""
        said = self.run_torch("""
            import os, torch
            from torch.utils.data import DataLoader, Dataset
            class Numbers(Dataset):
                def __len__(self): return 4
                def __getitem__(self, index): return torch.tensor([index, int(os.environ['RANK'])])
            if __name__ == '__main__':
                loaders = {method: iter(DataLoader(Numbers(), batch_size=2, num_workers=workers, multiprocessing_context=method))
                           for method, workers in (('fork', 2), ('spawn', 1), ('forkserver', 1))}
                for method, batches in loaders.items():
                    print(method, [batch.tolist() for batch in batches], flush=True)
            """)
        batches = [[[0, 0], [1, 0]], [[2, 0], [3, 0]]]
        self.assertEqual(said, [f"{method} {batches}" for method in ("fork", "spawn", "forkserver")])

    def test_training_over_gloo(self):
        text = """
            import gc, sys, torch
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel
            dist.init_process_group('gloo')
            torch.manual_seed(3)
            net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
            for step in range(3):
                loss = net(torch.full((4, 8), float(dist.get_rank() + step))).pow(2).mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
            total = sum(parameter.sum().item() for parameter in net.parameters())
            if dist.get_rank() == 0: print(repr(total))
            del net  # as in examples/python/train_ddp.py
            gc.collect()
            dist.destroy_process_group()
            """
        self.same_with_torch(text, "--nproc-per-node=2", lines=1)

    def test_error_files(self):
        self.write("program.py", """
            from torch.distributed.elastic.multiprocessing.errors import record
            @record
            def main():
                raise ValueError('for the file')
            if __name__ == '__main__':
                main()
            """)
        reports = []
        for words in ([], ["--preload=torch"]):
            done = self.run_job(*words, f"--log-dir={self.folder}/logs{len(words)}", "program.py", env={"PYTHON_EXEC": sys.executable})
            self.assertEqual(done.returncode, 1)
            files = [os.path.join(base, name) for base, _, names in os.walk(self.folder / f"logs{len(words)}")
                     for name in names if name == "error.json"]
            self.assertEqual(len(files), 1)
            with open(files[0]) as file:
                message = json.load(file)["message"]
            reports.append([message["message"], message["extraInfo"]["py_callstack"]])
        self.assertEqual(*reports)

    def test_module_that_computes_backwards(self):
        """Its own gradients leave nothing behind that keeps a forked process from computing its own."""
        self.write("model.py", "import torch\nw = torch.ones(3, requires_grad=True)\n(w * w).sum().backward()\n")
        text = "import torch, model\nw = torch.ones(3, requires_grad=True)\n(w * 2).sum().backward()\nprint(w.grad)\n"
        self.assertEqual(self.run_torch(text, preload="mark,model"), ["tensor([2., 2., 2.])"])
