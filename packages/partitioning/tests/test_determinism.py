"""The same program is divided in the same way in every process."""

import hashlib
import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, torch
from torchkiln_core.options import PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning import LevelPartitioner, describe

class Oracle:
    targets = frozenset()
    def reject(self, call):
        refused = {"aten.lgamma.default", "aten.topk.default"}
        return Rejection.of(call, "no-converter", "none") if str(call.target) in refused else None

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
    def forward(self, x, y):
        parts = [torch.lgamma(layer(x) * y[:, :1]) for layer in self.layers]
        best = torch.topk(torch.cat(parts, 1), 3)[0]
        size = x.shape[0] * 2
        return best + torch.full((size // 2, 3), 1.5), parts[1].sin().cos().tanh(), x.new_zeros(size)

rows, args = torch.export.Dim("rows", min=2, max=9), (torch.rand(4, 8), torch.rand(4, 8))
with torch.no_grad():
    exported = torch.export.export(Model(), args, dynamic_shapes=({0: rows}, {0: rows})).run_decompositions({})
specs = exported.graph_signature.input_specs
weights = {spec.arg.name: exported.state_dict[spec.target] for spec in specs if spec.target}
inputs = tuple(ProgramInput(spec.arg.name, InputKind.WEIGHT if spec.target else InputKind.USER, spec.target) for spec in specs)
program = Program(exported.graph_module, inputs, weights, {})
for options in (PartitionOptions(min_block_size=1), PartitionOptions(), PartitionOptions(min_block_size=1, border_cost="on")):
    partition = LevelPartitioner(options).partition(program, Oracle())
    text = [partition.module.code, *map(str, partition.rejections), *(segment.module.code for segment in partition.segments)]
    text += [repr((item.work, item.inputs, item.outputs)) for item in describe(partition)]
    print(len(partition.segments), hashlib.sha256("\\n".join(text).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def outcomes():
    results = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        results.append(done.stdout)
    return results


def test_hashing_does_not_matter(outcomes):
    first, *others = outcomes
    assert len(first.splitlines()) == 3
    assert all(len(line.split()[1]) == 2 * hashlib.sha256().digest_size for line in first.splitlines())
    assert others == [first, first]
