"""The package flash_attn, where it is not installed, as a program sees it while it is planned.

Its attention is the flash attention of torch. Each of its other functions is one kernel, which reads its arguments and
writes its results; a row of the recorder says so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from frog.plan.program.recording_rank import CannotFake, Recorder, size_of, user_line

VERSION = "2.8.3"
"""Version of flash-attn whose interface this has."""


class _OneKernel(torch.autograd.Function):
    """Results without values, of the shape of the first argument; gradients of the shapes of all arguments."""

    recorder: Recorder

    @staticmethod
    def forward(ctx: Any, name: str, dtypes: Sequence[torch.dtype], *given: Any) -> Any:
        """Return one tensor for each dtype."""
        ctx.name = name
        ctx.save_for_backward(*given)
        with torch.enable_grad():  # by which the recorder knows activations
            results = tuple(torch.empty_like(given[0], dtype=dtype) for dtype in dtypes)
        _OneKernel.record(name, (*given, *results))
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return a gradient for each argument that needs one."""
        needed = ctx.needs_input_grad[2:]
        results = [
            torch.empty_like(given) if needs else None for given, needs in zip(ctx.saved_tensors, needed, strict=True)
        ]
        written = [result for result in results if result is not None]
        _OneKernel.record(f"{ctx.name}_backward", (*gradients, *ctx.saved_tensors, *written))
        return None, None, *results

    @classmethod
    def record(cls, name: str, tensors: Sequence[Any]) -> None:
        recorder = cls.recorder
        num_bytes = sum(map(size_of, tensors))
        recorder.rows.append(["memory", recorder.line(), recorder.which_pass(), num_bytes, name])


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
    _refuse("flash_attn_func", rest)
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    result = attention(query, key, value, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale)
    return result.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute attention of queries, keys and values in one tensor (B, T, 3, H, C)."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def apply_rotary_emb(x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False, **rest: Any) -> Any:
    """Rotate each head of x, (B, T, H, C); cos and sin are (T, C / 2). In place too, the result is a new tensor."""
    _refuse("apply_rotary_emb", rest)
    return _OneKernel.apply("rotary", (x.dtype,), x, cos, sin)  # type: ignore[no-untyped-call]


def layer_norm_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    residual: Any = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Any = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    **rest: Any,
) -> Any:
    """Add the residual, if any, and normalize; with `prenorm`, return the sum too."""
    _refuse("layer_norm_fn", {"dropout_p": dropout_p, "rowscale": rowscale, **rest})
    given = [tensor for tensor in (x, weight, bias, residual) if tensor is not None]
    of_sum = [torch.float32 if residual_in_fp32 else x.dtype] if prenorm else []
    return _OneKernel.apply("layer_norm", [x.dtype, *of_sum], *given)  # type: ignore[no-untyped-call]


def rms_norm_fn(x: Any, weight: Any, bias: Any = None, **kwargs: Any) -> Any:
    """Normalize by the root mean square."""
    return layer_norm_fn(x, weight, bias, is_rms_norm=True, **kwargs)


_UNUSUAL = ("window_size", "seqlen_offsets", "softcap", "alibi_slopes", "return_attn_probs", "cu_seqlens", "x1",
            "weight1", "bias1", "dropout_p", "rowscale", "return_dropout_mask")  # fmt: skip


def _refuse(function: str, options: dict[str, Any]) -> None:
    """Refuse options that change which kernels run.

    Raises:  CannotFake.
    """
    for name in _UNUSUAL:
        if options.get(name) not in (None, 0, 0.0, False, (-1, -1)):
            raise CannotFake(f"{user_line()}: {function}({name}=...) of flash_attn cannot be planned")


_FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "flash_attn": (flash_attn_func, flash_attn_qkvpacked_func),
    "flash_attn.flash_attn_interface": (flash_attn_func, flash_attn_qkvpacked_func),
    "flash_attn.layers": (),
    "flash_attn.layers.rotary": (apply_rotary_emb,),
    "flash_attn.ops": (),
    "flash_attn.ops.triton": (),
    "flash_attn.ops.triton.layer_norm": (layer_norm_fn, rms_norm_fn),
}
"""Functions by module."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds flash_attn after all other finders did not."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for an import only: a library that asks whether the package exists would want its files."""
        if fullname not in _FUNCTIONS or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with its functions; its other names do not exist."""
        vars(module).update({function.__name__: function for function in _FUNCTIONS[module.__name__]})
        vars(module)["__version__"] = VERSION


def stand_in_for_flash_attn(recorder: Recorder) -> None:
    """Let programs import flash_attn."""
    _OneKernel.recorder = recorder
    sys.meta_path.append(_Finder())
