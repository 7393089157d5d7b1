"""fp32 products are fp32 products, unless TF32 is allowed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

from torchkiln_core import BuildOptions, Network, PlanError
from torchkiln_core.layers import Convolution, MatrixMultiply
from torchkiln_runtime import Library, TensorRTBuilder, TensorRTLoader, find_library, gpu_support

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
BOUND = 1e-5


@pytest.fixture(scope="module", autouse=True)
def library() -> Library:
    library = find_library()
    reason = gpu_support(library, CUDA)
    if library is None or reason is not None:
        pytest.skip(f"engine: {reason}")
    return library


def products() -> tuple[Network, list[torch.Tensor], list[torch.Tensor]]:
    """A matrix product and a convolution, inputs, and results in float64."""
    generator = torch.Generator().manual_seed(11)
    rows, image, matrix, kernel = (
        torch.randn(shape, generator=generator) for shape in ((128, 256), (2, 16, 16, 16), (256, 64), (32, 16, 3, 3))
    )
    net = Network()
    a, x = net.input("a", torch.float32, (128, 256)), net.input("x", torch.float32, (2, 16, 16, 16))
    net.output("product", net.add(MatrixMultiply(), a, net.constant(matrix)))
    net.output("convolved", net.add(Convolution((1, 1), (1, 1), (1, 1), (1, 1)), x, net.constant(kernel)))
    true = [rows.double() @ matrix.double(), torch.nn.functional.conv2d(image.double(), kernel.double(), padding=1)]
    return net, [rows.to(CUDA), image.to(CUDA)], true


def errors(options: BuildOptions, runs: int = 3) -> list[float]:
    """Largest relative error of each product over several runs: one by one, and in the library's CUDA graphs."""
    net, inputs, true = products()
    engine = TensorRTLoader(CUDA).load(TensorRTBuilder(options).build(net))
    largest = [0.0, 0.0]
    for _ in range(runs):
        for index, (got, expected) in enumerate(zip(engine(*inputs), true, strict=True)):
            error = (got.cpu().double() - expected).abs().max() / expected.abs().max()
            largest[index] = max(largest[index], float(error))
    return largest


def test_fp32_products_are_exact_to_fp32():
    assert max(errors(BuildOptions())) < BOUND
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ


def test_tf32_is_used_where_it_is_allowed():
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from test_precision import errors, BuildOptions
print(*errors(BuildOptions(allow_tf32=True)))
"""
    environment = {name: value for name, value in os.environ.items() if name != "NVIDIA_TF32_OVERRIDE"}
    done = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert min(map(float, done.stdout.split())) > BOUND


def test_a_plan_of_the_other_precision_is_refused(library):
    if library.name != "tensorrt_rtx":
        pytest.skip("tensorrt: it takes plans of both precisions")
    net, _, _ = products()
    builder = TensorRTBuilder(BuildOptions())
    plan = builder.build(net)
    with pytest.raises(PlanError, match="TF32 on, but this process already uses it with TF32 off"):
        TensorRTLoader(CUDA).load(dataclasses.replace(plan, allow_tf32=True))
