"""Which memory torch's fake tensors lie in while a model is exported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def views_kept() -> Iterator[None]:
    """Gives views that torch makes by ``prims.as_strided`` the memory of their argument, each time.

    torch keeps the results of operators for fake tensors for as long as the process lives. Its schema does not say that this operator gives
    a view, so that up to torch 2.11 the same call gave memory of its own from the second time on: a reshape of a tensor without elements
    was a view or a copy by what had been exported before. Later versions do not keep its results either.
    """
    kept = FakeTensorMode._cached_dispatch_impl

    def dispatch(self: FakeTensorMode, func: Any, *rest: Any) -> object:
        return (FakeTensorMode._dispatch_impl if func is torch.ops.prims.as_strided.default else kept)(self, func, *rest)

    with mock.patch.object(FakeTensorMode, "_cached_dispatch_impl", dispatch):
        yield
