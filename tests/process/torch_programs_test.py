"""Programs over the real torch whose needs are not those of a plain worker: a debugger on stdin, a helper that tidies up.

usage: torch_programs_test.py TORCHUP
"""

import glob
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    print("torch is not installed for", sys.executable)
    sys.exit(77)

TORCHUP = os.path.abspath(sys.argv.pop(1))

DEBUGGED = """
import torch.distributed as dist
dist.init_process_group("gloo")
secret = 41 + dist.get_rank()
dist.breakpoint(rank=0)
dist.barrier()
print("rank", dist.get_rank(), "went on", flush=True)
dist.destroy_process_group()
"""

TIDIES_UP = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
try:
    if dist.get_rank() == 1:
        raise ValueError("loss is nan")
    dist.all_reduce(torch.ones(4))
finally:
    rank = dist.get_rank()
    dist.destroy_process_group()
    time.sleep(0.05 if rank == 1 else 0)
"""

SHARES = """
import torch, torch.multiprocessing as mp
def child(queue):
    queue.put(torch.ones(1 << 20))
if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert float(queue.get().sum()) == 1 << 20
    process.join()
    tensor = torch.ones(1 << 20).share_memory_()
"""


class TorchPrograms(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self.scratch.name, "TERM": "dumb"}

    def command(self, program, *options):
        path = os.path.join(self.scratch.name, "program.py")
        with open(path, "w") as file:
            file.write(program)
        return [TORCHUP, *options, "--nproc-per-node=2", "--no-python", sys.executable, path]

    def test_breakpoint_with_two_workers_on_a_pipe(self):
        for options in ((), ("--no-capture",)):
            done = subprocess.run(self.command(DEBUGGED, *options), input="up\np secret + 100\nc\n", capture_output=True, text=True,
                                  env=self.environment, timeout=150)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("141", done.stdout)
            self.assertEqual(done.stdout.count("went on"), 2)

    def test_breakpoint_with_two_workers_on_a_terminal(self):
        primary, secondary = pty.openpty()
        job = subprocess.Popen(self.command(DEBUGGED), stdin=secondary, stdout=secondary, stderr=secondary, env=self.environment,
                               start_new_session=True)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait(), os.close(primary)))
        os.close(secondary)
        seen = ""
        end = time.monotonic() + 150

        def read_until(text):
            nonlocal seen
            while text not in seen:
                self.assertTrue(select.select([primary], [], [], max(0, end - time.monotonic()))[0], f"no {text!r} in {seen!r}")
                try:
                    seen += os.read(primary, 65536).decode(errors="replace")
                except OSError:  # all have closed it
                    self.assertIn(text, seen)

        read_until("-> meta_in_tls")  # the line it stands on; then it waits for a word
        os.write(primary, b"up\n")
        read_until("-> dist.breakpoint(rank=0)")
        os.write(primary, b"p secret + 100\n")
        read_until("141")
        os.write(primary, b"c\n")
        read_until("rank 0 went on")
        read_until("rank 1 went on")
        self.assertEqual(job.wait(60), 0)

    def test_the_cause_is_who_raised_though_others_died_of_it_first(self):
        done = subprocess.run(self.command(TIDIES_UP), capture_output=True, text=True, env=self.environment, timeout=150)
        self.assertEqual(done.returncode, 1, done.stderr)
        cause = done.stderr[done.stderr.index("Root Cause"):]
        self.assertIn("rank      : 1 (local_rank: 1)", cause[:cause.index("error_file")])
        self.assertIn("What went wrong: rank 1", done.stderr)

    def test_shared_memory_in_files_is_tidied_up(self):
        before = set(glob.glob("/dev/shm/torch_*"))
        done = subprocess.run(self.command(SHARES), capture_output=True, text=True, env=self.environment, timeout=150)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Their names hold the pid of who made them; other programs of this machine may share too.
        self.assertEqual([name for name in set(glob.glob("/dev/shm/torch_*")) - before if not alive(name)], [])
        self.assertEqual(glob.glob(self.scratch.name + "/torch-shm-dir-*"), [])


def alive(segment):
    return os.path.exists("/proc/" + os.path.basename(segment).split("_")[1])


if __name__ == "__main__":
    unittest.main()
