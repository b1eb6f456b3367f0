"""Packages of GPU kernels: an import of one that is not installed fails with a sentence about what to do."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_ADVICE = {
    "triton": "its kernels need a real GPU; choose the program's plain PyTorch code",
    "apex": "its kernels need a real GPU; choose torch.optim and torch.nn instead",
    "transformer_engine": "its kernels need a real GPU; choose the program's torch.nn layers and bfloat16",
    "bitsandbytes": "its kernels need a real GPU; choose torch.optim.AdamW, and weights that are not quantized",
    "xformers": "its kernels need a real GPU; choose torch's scaled_dot_product_attention",
    "flash_attn_interface": "FlashAttention 3 needs a Hopper GPU; choose flash_attn or scaled_dot_product_attention",
    "pynvml": "there is no NVIDIA driver to ask; torch.cuda answers most of its questions",
}
"""By package: why it is missing, and what to choose."""


class _Finder(importlib.abc.MetaPathFinder):
    """Explains after all other finders found nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise the error with advice, for an import only: a question whether the package exists is answered no."""
        if fullname in _ADVICE and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            text = f"No module named {fullname!r} (simulated GPUs: {_ADVICE[fullname]})"
            raise ModuleNotFoundError(text, name=fullname)
        return None


def explain_gpu_packages() -> None:
    """Add the advice to the errors."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
