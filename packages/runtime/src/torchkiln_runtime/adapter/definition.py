"""The network definition that a record is replayed onto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchkiln_core import BuildError, on_host
from torchkiln_runtime.library import Library


class Definition:
    """A TensorRT network definition under construction.

    Args:
        library: TensorRT.
        network: The ``INetworkDefinition``.
    """

    def __init__(self, library: Library, network: Any) -> None:
        self.library = library
        self.trt = library.module
        self.network = network
        self._host: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def dtype(self, dtype: torch.dtype) -> Any:
        """TensorRT's dtype.

        Raises:
            BuildError: TensorRT has none such.
        """
        result = self.library.dtype(dtype)
        if result is None:
            raise BuildError(f"{self.library.name} has no dtype {dtype}", fix="convert the tensor to another dtype before the engine")
        return result

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """``tensor`` in another of TensorRT's dtypes."""
        return tensor if tensor.dtype == dtype else self.network.add_cast(tensor, dtype).get_output(0)

    def weights(self, tensor: torch.Tensor) -> Any:
        """``trt.Weights`` that hold ``tensor``: by reference when it is contiguous and on the host, else from a copy there."""
        self.dtype(tensor.dtype)
        if id(tensor) not in self._host:
            # TensorRT reads the copy while it builds; the original keeps its id from another tensor.
            self._host[id(tensor)] = tensor, on_host(tensor)
        return self.library.weights(self._host[id(tensor)][1])

    def constant(self, tensor: torch.Tensor) -> Any:
        """An ``ITensor`` that holds ``tensor``."""
        layer = self.network.add_constant(self.dims(tuple(tensor.shape)), self.weights(tensor))
        return None if layer is None else layer.get_output(0)

    def dims(self, sizes: Sequence[int]) -> Any:
        """``trt.Dims``."""
        return self.trt.Dims(list(sizes))

    def elementwise(self, op: str, left: Any, right: Any) -> Any:
        """``left op right``, with ``op`` a ``trt.ElementWiseOperation``."""
        return self.network.add_elementwise(left, right, getattr(self.trt.ElementWiseOperation, op)).get_output(0)

    def reshape(self, tensor: Any, sizes: Sequence[int]) -> Any:
        """``tensor`` reshaped; one size may be -1, 0 means 0."""
        layer = self.network.add_shuffle(tensor)
        layer.zero_is_placeholder = False
        layer.reshape_dims = self.dims(sizes)
        return layer.get_output(0)


def mask(axes: Sequence[int]) -> int:
    """Axes as the bit mask that TensorRT takes."""
    return sum(1 << axis for axis in set(axes))
