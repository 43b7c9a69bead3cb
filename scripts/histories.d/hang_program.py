"""The program of one history of hang_histories: written to a folder, plain PyTorch over gloo, with its fault in it."""

import inspect
import json

import hang_ways

MARK = "# here"

PROGRAM = '''
PLAN = {plan}


class Job:
    skips = False

    def __init__(self):
        self.__dict__.update(PLAN)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.values = torch.ones(1024)
        self.stamp("is_there")
        if self.shape == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
            self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)

    def stamp(self, what):
        with open(f"{{self.folder}}/stamps{{self.rank}}", "a") as file:
            file.write(f"{{what}} {{time.monotonic_ns()}} {{os.getpid()}}\\n")


def sums(job):
    dist.all_reduce(job.values)


def several(job):
    if not job.skips:
        dist.all_reduce(job.values)
    job.skips = False
    dist.broadcast(job.values, src=job.world - 1)
    dist.all_gather([torch.empty_like(job.values) for _ in range(job.world)], job.values)


def ddp(job):
    job.optimizer.zero_grad()
    job.model(torch.ones(8, 64)).square().mean().backward()
    job.optimizer.step()


def train(job):
    for step in range(job.steps):
        if step == job.at and (job.everybody or job.rank in job.ranks):
            job.stamp("begins")
            {function}(job)
            job.stamp("goes_on")
        {shape}(job)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    job = Job()
    {body}


main()
'''

TIDY = '''try:
        train(job)
    finally:
        dist.destroy_process_group()'''


def write_program(plan, folder, more, before=""):
    """`more`: what else `job` has. `before`: lines that run before the program's own. Returns (path, line of the fault)."""
    way = inspect.getsource(getattr(hang_ways, plan.kind.way))
    way = way.replace(f"def {plan.kind.way}(", f"def {plan.function}(", 1)
    facts = {"folder": str(folder), "ranks": plan.ranks, "shape": plan.shape, "at": plan.at, "steps": plan.steps,
             "everybody": plan.kind.everybody, "seconds": plan.seconds, **more}
    text = f'"""Written by scripts/hang_histories: {plan.about}."""\n' + before
    text += "import os\nimport time\n\nimport torch\nimport torch.distributed as dist\n\n\n" + way
    text += "\n" + PROGRAM.format(plan=json.dumps(facts).replace("true", "True").replace("false", "False"), function=plan.function,
                                  shape=plan.shape, body=TIDY if plan.tidy else "train(job)")
    path = folder / "program.py"
    path.write_text(text)
    return path, 1 + next(number for number, line in enumerate(text.splitlines()) if line.endswith(MARK))
