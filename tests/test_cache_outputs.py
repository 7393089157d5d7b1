"""A language model that returns its cache of keys and values: torch's export names the constants in it twice."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.integrations.executorch import register_dynamic_cache_export_support

import torchkiln
from torchkiln_testing import OpClass, assert_same


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="older releases of torch cannot trace the exported model again")
def test_a_llama_returns_its_cache() -> None:
    if DynamicCache not in pytree.SUPPORTED_NODES:
        register_dynamic_cache_export_support()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(0, 64, (2, 6))
    compiled = torchkiln.compile(
        model, (), {"input_ids": ids}, dynamic_shapes={"input_ids": {0: Dim("batch", min=1, max=4)}}, engine="reference"
    )
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    with torch.no_grad():
        for rows in (1, 2, 4):
            given = torch.randint(0, 64, (rows, 6))
            got, expected = compiled(input_ids=given), model(input_ids=given)
            assert isinstance(got.past_key_values, DynamicCache)
            assert len(pytree.tree_leaves(got)) == 1 + 2 * config.num_hidden_layers
            assert_same(expected, got, OpClass.MODEL)
