"""Scales and shifts per channel after a convolution, such as batch normalization in inference, as its kernel and bias."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch

from torchkiln_converters.writing.shapes import reshape
from torchkiln_converters.writing.values import add, cast, mul, unary
from torchkiln_core import ConstantValues, Network, Step, Value
from torchkiln_core.layers import Cast, Convolution, Elementwise, ElementwiseOp, UnaryOp


def fold_channel_scales(net: Network) -> None:
    """Rewrites ``convolution(x, kernel, bias) * scale + shift`` as one convolution, wherever nothing else reads what lies between.

    Kernel and bias are written as layers over the weights, which the builder computes once; the record keeps the weights by reference.
    A fold is left out where the scaled kernel would lose precision in its dtype, or overflow.
    """
    known = ConstantValues(net)
    users = _users(net)
    folds = {fold.last: fold for step in net.steps if (fold := _match(step, users, known)) is not None}
    if not folds:
        return
    steps, net.steps = net.steps, []
    replaced: dict[Value, Value] = {}
    for step in steps:
        net.steps.append(step)
        fold = folds.get(step.outputs[0])
        if fold is not None:
            with net.scope(fold.convolution.name.rpartition("/")[0], fold.convolution.where):
                replaced[step.outputs[0]] = _write(net, fold)
    net.replace(replaced)


@dataclass(frozen=True, eq=False, slots=True)
class _Fold:
    """``last`` is what the chain computes; ``scale`` and ``shift`` are ``[1, K, 1, *]``."""

    convolution: Step
    last: Value
    scale: Value
    shift: Value | None
    negative_shift: bool


def _match(step: Step, users: dict[Value, list[Step | None]], known: ConstantValues) -> _Fold | None:
    """The chain that follows a convolution: at most a cast up, a product, at most a sum or difference, a cast back."""
    if not isinstance(step.layer, Convolution):
        return None
    result = step.outputs[0]
    chain, cursor = result, _only_user(result, users)
    if cursor is not None and isinstance(cursor.layer, Cast) and cursor.layer.dtype is torch.float32:
        chain, cursor = _next(cursor, users)
    if cursor is None or cursor.layer != Elementwise(ElementwiseOp.PROD):
        return None
    scale = _per_channel(cursor, chain, known)
    if scale is None:
        return None
    chain, cursor = _next(cursor, users)
    shift, negative = None, False
    if cursor is not None and (shift := _shift(cursor, chain, known)) is not None:
        negative = cursor.layer == Elementwise(ElementwiseOp.SUB)
        chain, cursor = _next(cursor, users)
    if chain.dtype is not result.dtype:
        if cursor is None or cursor.layer != Cast(result.dtype):
            return None
        chain = cursor.outputs[0]
    return _Fold(step, chain, scale, shift, negative) if _keeps_precision(step, scale, shift, known) else None


def _next(step: Step, users: dict[Value, list[Step | None]]) -> tuple[Value, Step | None]:
    """What a step of the chain computes, and the step that alone reads it."""
    return step.outputs[0], _only_user(step.outputs[0], users)


def _shift(step: Step, chain: Value, known: ConstantValues) -> Value | None:
    """What a step adds to the chain or takes from it."""
    takes = step.layer == Elementwise(ElementwiseOp.SUB) and step.inputs[0] is chain
    return _per_channel(step, chain, known) if takes or step.layer == Elementwise(ElementwiseOp.SUM) else None


def _users(net: Network) -> dict[Value, list[Step | None]]:
    """The steps that read each value; ``None`` stands for the caller of the engine."""
    users: dict[Value, list[Step | None]] = defaultdict(list)
    for step in net.steps:
        for value in step.inputs:
            if value is not None:
                users[value].append(step)
    for _, value in net.outputs:
        users[value].append(None)
    return users


def _only_user(value: Value, users: dict[Value, list[Step | None]]) -> Step | None:
    found = users[value]
    return found[0] if len(found) == 1 else None


def _per_channel(step: Step, chain: Value, known: ConstantValues) -> Value | None:
    """The operand beside the chain, if it is a constant ``[1, K, 1, *]``. The chain itself may be constant too."""
    shape = (1, chain.shape[1], *(1,) * (chain.rank - 2))
    others = (value for value in step.inputs if value is not None and value is not chain)
    return next((value for value in others if value.shape == shape and known.knows(value)), None)


def _keeps_precision(step: Step, scale: Value, shift: Value | None, known: ConstantValues) -> bool:
    """Whether the scaled kernel, rounded to its dtype, errs by no more than an ``eps`` of each channel's size, and nothing overflows.

    A number that its dtype holds as a normal one is rounded by half an ``eps`` of itself at most, a smaller one by half an ``eps`` of
    the smallest normal number: half an ``eps`` of the channel's size as well, where its mean square is a normal number's.
    """
    kernel, factor = known.tensor(step.inputs[1]), known.tensor(scale)
    bias = known.tensor(step.inputs[2]) if len(step.inputs) > 2 else None
    if kernel is None or factor is None or (len(step.inputs) > 2 and step.inputs[2] is not None and bias is None):
        return False
    size = torch.linalg.vector_norm(kernel.flatten(1), dim=1, dtype=torch.float64) * factor.double().reshape(-1).abs()
    limits = torch.finfo(kernel.dtype)
    exact = (size == 0) | ((size >= limits.tiny * math.sqrt(kernel[0].numel())) & (size <= limits.max))
    offset = torch.zeros_like(factor, dtype=torch.float32).reshape(-1) if bias is None else bias.float() * factor.float().reshape(-1)
    if shift is not None and (moved := known.tensor(shift)) is not None:
        offset = offset + moved.float().reshape(-1)
    return bool(exact.all() & offset.to(kernel.dtype).isfinite().all())


def _write(net: Network, fold: _Fold) -> Value:
    step = fold.convolution
    source, kernel, *rest = step.inputs
    if source is None or kernel is None:
        raise TypeError(f"{step.name}: expected an input and a kernel")
    bias = rest[0] if rest else None
    scale = cast(net, fold.scale, torch.float32)
    channels = step.outputs[0].shape[1]
    wide = mul(net, cast(net, kernel, torch.float32), reshape(net, scale, (channels, *(1,) * (kernel.rank - 1))))
    offset = None if bias is None else mul(net, cast(net, bias, torch.float32), reshape(net, scale, (channels,)))
    if fold.shift is not None:
        shift = reshape(net, cast(net, fold.shift, torch.float32), (channels,))
        shift = unary(net, UnaryOp.NEG, shift) if fold.negative_shift else shift
        offset = shift if offset is None else add(net, offset, shift)
    operands = [source, cast(net, wide, kernel.dtype)] + ([] if offset is None else [cast(net, offset, kernel.dtype)])
    return net.add(step.layer, *operands)
