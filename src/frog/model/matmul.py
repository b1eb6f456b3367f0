"""Float32 matrix products on a CPU, by the faster of the two libraries that torch carries.

torch gives them to MKL, which holds back to AVX2 on processors that Intel did not make. oneDNN, which torch has for
convolutions and reduced precision, uses AVX-512 wherever it is: about twice the speed there. The choice depends on
the processor and the shapes alone, never on a timing, so that a run repeats bit for bit on the same machine.
Measured in docs/development/decisions/0005-model-speed.md.

Shapes: M rows of the left, N rows of the right factor, K the width that is summed over; of a linear layer N tokens,
D input width, F output width.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_LEAST_ROWS = 64
"""Below this MKL is as fast, and oneDNN pays about 0.5 ms for each new shape: sampling meets a new one every token."""


@functools.cache
def _onednn_is_faster() -> bool:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    # torch 2.9 does not say which processor this is: MKL is right everywhere.
    processor = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    is_intel = "intel" in str(processor.get("cpu_name", "intel")).lower()
    return bool(processor.get("avx512_f")) and not is_intel and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def uses_onednn(a_MK: Tensor, b_NK: Tensor) -> bool:
    """Whether `product` takes oneDNN."""
    return (
        a_MK.dtype == b_NK.dtype == torch.float32
        and a_MK.shape[0] >= _LEAST_ROWS
        and _onednn_is_faster()
        and bool(torch.backends.mkldnn.enabled)
    )


@contextmanager
def without_onednn() -> Iterator[None]:
    """Within this context torch leaves oneDNN alone and every product goes to MKL: to compare the two."""
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=False)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)  # type: ignore[no-untyped-call]


def product(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """`a_MK @ b_NK.T`. Either may be a transposed view: both libraries read strides.

    Equals:  the same product by MKL, up to the order of float32 sums.
    """
    if uses_onednn(a_MK, b_NK):
        # The only way to a float32 product by oneDNN; torch.compile makes the same call.
        result: Tensor = torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, None, "none", [], "")
        return result
    return a_MK @ b_NK.t()


def weight_gradient(grad_NF: Tensor, x_ND: Tensor) -> Tensor:
    """`grad.T @ x`, the wider of the two as the right factor: oneDNN copies the left one if it is transposed.

    Equals:  `product(grad.T, x.T)`, bit for bit.
    """
    if grad_NF.shape[1] > x_ND.shape[1] >= _LEAST_ROWS:
        return product(x_ND.t(), grad_NF.t()).t().contiguous()
    return product(grad_NF.t(), x_ND.t())
