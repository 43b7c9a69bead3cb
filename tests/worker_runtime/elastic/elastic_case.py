"""elastic_worker.cpp under the agents of tests/elastic: what that needs, and what it leaves behind.

usage of the scripts: SCRIPT ELASTIC_WORKER [--launcher TORCHUP] [unittest options]
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "elastic"))
WORKER = os.path.abspath(sys.argv.pop(1))

import elastic_job  # noqa: E402; skips where there is no torch

from torchup import _channel  # noqa: E402


def tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {name: (about["dtype"], about["shape"], content[begin + about["data_offsets"][0]:begin + about["data_offsets"][1]])
            for name, about in header.items() if name != "__metadata__"}


def finals(folder):
    found = {}
    for path in folder.glob("final.*.json"):
        final = json.loads(path.read_text())
        for name, tensor in tensors(path.with_suffix(".safetensors")).items():
            part, _, rest = name.partition(".")
            final.setdefault(part, {})[rest] = tensor
        found[int(path.suffixes[0][1:])] = final
    return found


class Case(elastic_job.Case):
    read_finals = staticmethod(finals)
    launcher_options = ()

    @staticmethod
    def work(words):
        channel = int(os.environ[_channel.VARIABLE].split(":")[1])
        os.set_inheritable(channel, True)
        os.execv(WORKER, [WORKER, *words])

    def command(self, words):
        return [*self.launcher_options, WORKER, *words]

    def recover(self, world_size, *faults, died, more=(), **how):
        """As undisturbed, by survivors that are the processes that they were."""
        outcome = self.play(world_size, *faults, more=more, **how)
        self.assert_as_undisturbed(outcome, world_size, more)
        self.assert_kept(outcome, world_size, died)
        for rank, final in outcome.final.items():
            self.assertEqual(final["ranks"], [rank] * 3)
        return outcome
