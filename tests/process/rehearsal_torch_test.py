"""A rehearsal of a real job: two ranks that train over gloo, keep what they have learnt, and are killed.

usage: rehearsal_torch_test.py TORCHUP
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap

try:
    import torch  # noqa: F401
except ImportError:
    print("torch is not installed for", sys.executable)
    sys.exit(77)

TORCHUP = os.path.abspath(sys.argv[1])
PROGRAM = textwrap.dedent("""\
    import os, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = os.path.join(sys.argv[1], "saved.pt")
    step = 0
    if os.path.exists(saved):
        state = torch.load(saved)
        step = state["step"]
        model.load_state_dict(state["model"])
    while step < 60:
        time.sleep(0.05)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": model.state_dict()}, saved + ".new")
            os.rename(saved + ".new", saved)
    dist.destroy_process_group()
""")
SCRIPT = "at step 20 kill rank=1; at step 20 slow rank=0 by=50% for=500ms; expect restarts=1 recovery<=90s ranks=2 exit=0"

with tempfile.TemporaryDirectory() as folder:
    program = os.path.join(folder, "train.py")
    with open(program, "w") as file:
        file.write(PROGRAM)
    events = os.path.join(folder, "events")
    done = subprocess.run([TORCHUP, "--nproc-per-node=2", "--max-restarts=1", f"--rehearse={SCRIPT}", f"--events={events}", program, folder],
                          env={**os.environ, "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          timeout=240)
    assert done.returncode == 0, done.stderr
    with open(events) as file:
        (ended,) = [event for event in map(json.loads, file) if event["event"] == "rehearsal_ended"]
    assert ended["passed"], ended
    killed = ended["faults"][0]
    # The hook counts the optimizers' steps, so it is known when all ranks get on, though nobody knows the program's numbers.
    assert killed["text"] == "kill rank=1" and killed["going_on_after_s"] > 0, ended
