"""Float32 matrix products on a CPU, by the faster of the two libraries that torch includes.

torch uses MKL by default, which limits itself to AVX2 on processors not made by Intel. oneDNN, which torch includes for
convolutions and reduced precision, uses AVX-512 wherever available: about twice the speed there. The choice depends
only on the processor and the shapes, never on a timing, so that a run repeats bit for bit on the same machine.
docs/development/decisions/0005-model-speed.md has the measurements.

Shapes: M rows of the left, N rows of the right factor, K the width that is summed over; in a linear layer N tokens,
D input width, F output width.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_LEAST_ROWS = 64
"""Below this, MKL is as fast, and oneDNN pays about 0.5 ms per new shape; sampling has a new shape for every token."""


@functools.cache
def _onednn_is_faster() -> bool:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    # torch 2.9 does not report the processor: MKL is always correct.
    processor = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    is_intel = "intel" in str(processor.get("cpu_name", "intel")).lower()
    return bool(processor.get("avx512_f")) and not is_intel and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def uses_onednn(a_MK: Tensor, b_NK: Tensor) -> bool:
    """True if `product` uses oneDNN."""
    return (
        a_MK.dtype == b_NK.dtype == torch.float32
        and a_MK.shape[0] >= _LEAST_ROWS
        and _onednn_is_faster()
        and bool(torch.backends.mkldnn.enabled)
    )


@contextmanager
def without_onednn() -> Iterator[None]:
    """Disable oneDNN within this context, so that every product uses MKL: to compare the two."""
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=False)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)  # type: ignore[no-untyped-call]


def product(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Compute `a_MK @ b_NK.T`. Either may be a transposed view: both libraries read strides.

    Equals:  the same product by MKL, up to the order of float32 sums.
    """
    if uses_onednn(a_MK, b_NK):
        # This call is the only way to compute a float32 product with oneDNN; torch.compile uses it too.
        result: Tensor = torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, None, "none", [], "")
        return result
    return a_MK @ b_NK.t()


def weight_gradient(grad_NF: Tensor, x_ND: Tensor) -> Tensor:
    """Compute `grad.T @ x`, with the wider of the two as the right factor: oneDNN copies a transposed left factor.

    Equals:  `product(grad.T, x.T)`, bit for bit.
    """
    if grad_NF.shape[1] > x_ND.shape[1] >= _LEAST_ROWS:
        return product(x_ND.t(), grad_NF.t()).t().contiguous()
    return product(grad_NF.t(), x_ND.t())
