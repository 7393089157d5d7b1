"""The main job on real models: one engine segment, equal to eager, by both entry points."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from example_models import EXAMPLES, Example, minilm, minilm_folder
from torch.utils import _pytree as pytree

import torchkiln
from torchkiln_testing import OpClass, assert_same

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ALL = list(itertools.product(EXAMPLES, DTYPES, [1, 3], ["aot", "jit"]))
"""Every model in every dtype, with one and several examples, by both entry points."""
EVERY_WAY = ("small_conv_net",)
"""Models that run so in the default tests as well."""
USUAL = (("fp32", 3, "aot"), ("fp16", 1, "jit"))
"""How the others run there."""
OTHERWISE = {
    "swin_t": (("fp32", 3, "aot"),),
    "vit_b_16": (("fp16", 1, "jit"),),
    "vit_tiny_patch16_224": (("fp32", 3, "aot"),),
    "efficientnet_b0": (("fp32", 3, "aot"),),
    "bert": (*USUAL, ("bf16", 3, "jit"), ("bf16", 1, "aot")),
}
"""Models that torch takes long to export or to trace, and one that runs in every dtype."""


def row(name: str, *how: Any) -> Any:
    usual = name in EVERY_WAY or how in OTHERWISE.get(name, USUAL)
    return pytest.param(name, *how, marks=() if usual else pytest.mark.slow, id="-".join(map(str, (name, *how))))


SENTENCES = [
    "The kiln must reach cone ten before the glaze matures.",
    "Bring the furnace up to temperature slowly.",
    "A cat sat on the mat.",
    "The dog chased the ball across the yard.",
    "Compilers turn programs into faster programs.",
    "An optimizing compiler may reorder instructions.",
    "The stock market fell sharply on Tuesday.",
    "Shares dropped after the earnings report.",
    "She plays the violin in the city orchestra.",
    "He practises the cello every morning.",
    "Rain is expected in the north this weekend.",
    "The forecast calls for showers on Saturday.",
    "How do I reset my password?",
    "I cannot log in to my account.",
    "The recipe needs two eggs and a cup of flour.",
    "Whisk the butter and sugar until pale.",
    "Paris is the capital of France.",
    "Mount Everest is the highest mountain on Earth.",
    "The train to Berlin leaves at noon.",
    "Our flight was delayed by three hours.",
]


def on_device(example: Example, device: str) -> Example:
    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return Example(example.model.to(device), pytree.tree_map(move, example.args), pytree.tree_map(move, example.kwargs))


def compile_by(entry: str, example: Example, engine: str) -> tuple[Any, list[torchkiln.Report]]:
    reports: list[torchkiln.Report] = []
    if entry == "aot":
        compiled = torchkiln.compile(example.model, example.args, example.kwargs, engine=engine, require_full_compilation=True)
        return compiled, [compiled.report]
    torch._dynamo.reset()
    options = {"engine": engine, "require_full_compilation": True, "on_report": reports.append}
    return torch.compile(example.model, backend="torchkiln", options=options, dynamic=False, fullgraph=True), reports


def check_model(name: str, dtype: str, batch: int, entry: str, engine: str, device: str) -> None:
    torch.manual_seed(batch)
    example = on_device(EXAMPLES[name](DTYPES[dtype], batch), device)
    with torch.no_grad():
        expected = copy.deepcopy(example.model)(*example.args, **example.kwargs)
        compiled, reports = compile_by(entry, example, engine)
        got = compiled(*example.args, **example.kwargs)
    assert_same(expected, got, OpClass.MODEL)
    [report] = reports
    assert [segment.kind for segment in report.segments] == ["engine"]
    assert report.rejections == ()
    assert report.engine == engine


@pytest.mark.parametrize(("name", "dtype", "batch", "entry"), [row(*case) for case in ALL])
def test_equals_eager_on_the_reference_engine(name: str, dtype: str, batch: int, entry: str) -> None:
    check_model(name, dtype, batch, entry, "reference", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype", "batch", "entry"), ALL)
def test_equals_eager_on_tensorrt(name: str, dtype: str, batch: int, entry: str) -> None:
    check_model(name, dtype, batch, entry, "tensorrt", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_equals_eager_on_the_reference_engine_on_a_gpu(name: str) -> None:
    check_model(name, "fp32", 3, "aot", "reference", "cuda")


@pytest.mark.parametrize(
    ("entry", "dtype", "least"), [("aot", "fp32", 0.9999), ("aot", "fp16", 0.999), ("aot", "bf16", 0.99), ("jit", "fp32", 0.9999)]
)
def test_sentence_embeddings_with_real_weights(entry: str, dtype: str, least: float) -> None:
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(tokenizer_file=str(minilm_folder() / "tokenizer.json"))
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    args = (tokens["input_ids"], tokens["attention_mask"])
    with torch.no_grad():
        truth = minilm(torch.float32)(*args)
        model = minilm(DTYPES[dtype])
        expected = model(*args)
        compiled, reports = compile_by(entry, Example(model, args, {}), "reference")
        got = compiled(*args)
    [report] = reports
    assert [segment.kind for segment in report.segments] == ["engine"]
    assert torch.cosine_similarity(expected.float(), got.float()).min() > least
    assert torch.cosine_similarity(truth, got.float()).min() > least
    # Neighbouring sentences of the list are about one subject: the embeddings mean something.
    similarity = got.float() @ got.float().T
    assert similarity[0, 1] > similarity[0, 2]
    assert similarity[6, 7] > similarity[6, 8]
