"""The package flash_attn, where it is not installed: its common functions, computed by torch; others are refused."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .replace import refused, remark

VERSION = "2.8.3"
"""Version of flash-attn whose interface this has."""


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **rest: Any,
) -> Any:
    """Compute attention of tensors in flash-attn's layout: (B, T, H, C), possibly with fewer heads in k and v."""
    import torch

    _refuse_unusual("flash_attn_func", rest)
    if causal and q.shape[1] != k.shape[1]:
        return refused("flash_attn_func with causal=True and queries and keys of different lengths")()
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        dropout_p=dropout_p,
        is_causal=causal,
        scale=softmax_scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute attention of queries, keys and values in one tensor (B, T, 3, H, C)."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def apply_rotary_emb(x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False, **rest: Any) -> Any:
    """Rotate the first dimensions of each head; cos and sin have the shape (T, half of them)."""
    import torch

    _refuse_unusual("apply_rotary_emb", rest)
    width = cos.shape[-1] * 2
    cos, sin = (table[: x.shape[1], None, :].to(x.dtype) for table in (cos, sin))
    turned, kept = x[..., :width], x[..., width:]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    parts = (first * cos - second * sin, first * sin + second * cos)
    rotated = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    result = torch.cat((rotated, kept), dim=-1)
    return x.copy_(result) if inplace else result


def layer_norm_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    residual: Any = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    **rest: Any,
) -> Any:
    """Add the residual, if any, then normalize; with `prenorm`, return the sum too."""
    import torch

    _refuse_unusual("layer_norm_fn", rest)
    total = x.float() + residual.float() if residual is not None else x.float()
    if is_rms_norm:
        out = torch.nn.functional.rms_norm(total, weight.shape, weight.float(), eps)
        out = out + bias.float() if bias is not None else out
    else:
        out = torch.nn.functional.layer_norm(total, weight.shape, weight.float(), bias, eps)
    out = out.to(x.dtype)
    return (out, total if residual_in_fp32 else total.to(x.dtype)) if prenorm else out


def rms_norm_fn(x: Any, weight: Any, bias: Any = None, **kwargs: Any) -> Any:
    """Normalize by the root mean square."""
    return layer_norm_fn(x, weight, bias, is_rms_norm=True, **kwargs)


_UNUSUAL = ("window_size", "softcap", "alibi_slopes", "return_attn_probs", "seqlen_offsets", "cu_seqlens", "dropout_p",
            "x1", "weight1", "bias1", "rowscale", "return_dropout_mask")  # fmt: skip


def _refuse_unusual(function: str, options: dict[str, Any]) -> None:
    """Refuse options that change the result and are not computed here."""
    for name in _UNUSUAL:
        if options.get(name) not in (None, 0, 0.0, False, (-1, -1)):
            refused(f"{function}({name}=...) of flash_attn")()


_FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "flash_attn": (flash_attn_func, flash_attn_qkvpacked_func),
    "flash_attn.flash_attn_interface": (flash_attn_func, flash_attn_qkvpacked_func),
    "flash_attn.layers": (),
    "flash_attn.layers.rotary": (apply_rotary_emb,),
    "flash_attn.ops": (),
    "flash_attn.ops.triton": (),
    "flash_attn.ops.triton.layer_norm": (layer_norm_fn, rms_norm_fn),
    "flash_attn.bert_padding": (),
}
"""Functions by module."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds flash_attn after all other finders did not."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for the modules of flash_attn that exist here.

        Only for an import: for a library that asks `importlib.util.find_spec` whether the package is installed, and
        would then look for its version, the package does not exist.
        """
        if fullname not in _FUNCTIONS or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with its functions; its other names are refused when they are called."""
        remark("flash_attn is computed by torch")
        module.__dict__.update({function.__name__: function for function in _FUNCTIONS[module.__name__]})
        module.__dict__["__version__"] = VERSION

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__} has no attribute {name}")
            return refused(f"{module.__name__}.{name}")

        module.__dict__["__getattr__"] = missing


def provide_flash_attention() -> None:
    """Let programs import flash_attn."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
