"""What a user can do about a call that stays in PyTorch."""

from __future__ import annotations

from torchkiln_core import Rejection

_CONVERTER = (
    "change the call where the message says what its decomposition requires, register a converter for it with the entry point "
    "torchkiln.converters, or use another operator"
)
_CALL = "change the call to what the message expects, or register a converter that takes it"
_FIXES = {
    "no-converter": _CONVERTER,
    "dtype": "cast the operands before the call to a dtype that the message names",
    "rank": _CALL,
    "static": "make the argument a constant of the model, or the dimension static in dynamic_shapes",
    "equals": _CALL,
    "requires": _CALL,
    "torch-executed-op": "take the operator out of torch_executed_ops",
    "torch-executed-module": "take the module out of torch_executed_modules",
    "node-override": "take the call out of node_overrides",
    "min-block-size": "nothing if it is fast enough; min_block_size=1 makes small engines, and a converter for its neighbours larger ones",
    "border-cost": 'nothing if it is fast enough; border_cost="off" does not ask, allow_tf32=True makes fp32 products of engines faster, '
    "and a converter for its neighbours a larger engine",
    "effect": "compute without writing in place, drawing random numbers or asserting between the calls that belong together",
    "device": "move the tensors to one device before the model, and make constants there",
    "layout": "convert the tensor with .to_dense()",
    "complex": "split it into real and imaginary part with torch.view_as_real",
    "symint": "take the number from a tensor's shape instead of computing or reading it elsewhere",
    "range": "give the dimension a maximum in dynamic_shapes, or bound the size with torch._check",
    "constant": "nothing: it depends on weights only; compute it once in __init__ to save its time",
    "deterministic": "write where no two indices are equal with an operator that does not scatter, such as slices or torch.where",
    "benchmark": "nothing: it is faster in PyTorch on this GPU; benchmark=False does not measure",
    "body": "nothing if it is fast enough; else write the graph as calls of torch.cond, while_loop, map or scan on plain tensors",
    "build-failed": "keep the call in PyTorch with torch_executed_ops to silence the warning, and report the message",
}


def fix_of(rejection: Rejection) -> str:
    """What to do about a rejection; a rule of a third party's converter gets the general advice."""
    return _FIXES.get(rejection.rule, _CALL)
