"""What torch's flags say of products in fp32."""

from __future__ import annotations

import torch


def tf32_in_torch() -> tuple[bool, bool]:
    """Whether torch may use TF32 for matrix products, and for convolutions."""
    # torch's older names of these, `allow_tf32`, raise where a user has set the newer ones.
    products: str = torch.backends.cuda.matmul.fp32_precision
    convolutions: str = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return products == "tf32", convolutions == "tf32"
