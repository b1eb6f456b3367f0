"""Operators that a program registers for CUDA, and the operations that CUDA's autocast computes in float32.

torch sends tensors of simulated GPUs to the kernels of the CPU. A kernel registered for CUDA is therefore registered
for the CPU; if a program registers both, the place of the first tensor chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .placement import HOST, first_place, special
from .replace import wrap

Function = Callable[..., Any]

_kernels: dict[tuple[str, str], dict[str, Function]] = {}
"""By namespace and name of an operator: its kernels by device type."""


def _full_name(library: Any, name: Any) -> tuple[str, str]:
    text = name if isinstance(name, str) else name._schema.name
    return library.ns, text.split("::")[-1]


def _impl(function: Function) -> Function:
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        key = (dispatch_key or getattr(self, "dispatch_key", "")).upper()
        if key not in ("CPU", "CUDA") or options.get("with_keyset") or getattr(self, "ns", "aten") == "aten":
            function(self, op_name, fn, dispatch_key, **options)
            return
        kernels = _kernels.setdefault(_full_name(self, op_name), {})
        kernels[key] = fn
        if len(kernels) == 1:
            function(self, op_name, chosen_kernel(kernels), "CPU", **options)

    return impl


def _kind_of(args: Any, kwargs: Any) -> str:
    """Return the device type whose kernel a call on real devices would choose."""
    return "CPU" if first_place((args, kwargs)) == HOST else "CUDA"


def chosen_kernel(kernels: dict[str, Function]) -> Function:
    """Return a kernel that calls the one for the place of its arguments, or the only one."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        kind = _kind_of(args, kwargs)
        return kernels.get(kind, next(iter(kernels.values())))(*args, **kwargs)

    return kernel


def _register_kernel(function: Function) -> Function:
    """Let a kernel for CUDA of `torch.library.custom_op` serve tensors of simulated GPUs."""

    def register_kernel(self: Any, device_types: Any, fn: Any = None) -> Any:
        asked = [device_types] if isinstance(device_types, str) or device_types is None else list(device_types)
        if asked == [None] and fn is not None:
            return function(self, device_types, fn)

        def register(kernel: Any) -> Any:
            kernels = self.__dict__.setdefault("_simulated_kernels", {})
            for kind in asked:
                kernels[{None: "any", "cuda": "CUDA", "cpu": "CPU"}.get(kind, kind)] = kernel
            if "cpu" not in self._backend_fns and set(kernels) & {"CUDA", "CPU"}:
                function(self, "cpu", _chosen_for(self, kernels))
            others = [kind for kind in asked if kind not in ("cuda", "cpu")]
            for kind in others:
                function(self, kind, kernel)
            return kernel

        return register if fn is None else register(fn)

    return register_kernel


def _chosen_for(operator: Any, kernels: dict[str, Function]) -> Function:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        chosen = kernels.get(_kind_of(args, kwargs)) or kernels.get("any") or operator._backend_fns.get(None)
        return (chosen or next(iter(kernels.values())))(*args, **kwargs)

    return kernel


# ---- autocast --------------------------------------------------------------------------------------------------------

FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh"),
    *("tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm"),
    *("group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss"),
    *("cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss"),
    *("smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss"),
    *("triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist"),
    *("renorm", "logsumexp", "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "linalg_matrix_norm", "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim"),
)
"""Operations that CUDA's autocast computes in float32, and the CPU's in half precision."""

_HALVES = (torch.float16, torch.bfloat16)


def _in_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALVES else value
    return type(value)(map(_in_float32, value)) if type(value) in (list, tuple) else value


def _kernel_in_float32(operator: Any) -> Function:
    """Return a kernel for autocast on the CPU, which leaves what is on the CPU as it is there."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            if first_place((args, kwargs)) != HOST:
                args, kwargs = _in_float32(args), {name: _in_float32(value) for name, value in kwargs.items()}
            return operator(*args, **kwargs)

    return kernel


_library: list[Any] = []


def _patch_autocast() -> None:
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _library.append(library)
    for name in FLOAT32:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is None or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "AutocastCPU"):
            continue
        library.impl(name, _kernel_in_float32(operator), "AutocastCPU")


def _binary_cross_entropy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Refuse what CUDA's autocast refuses, in its words."""
    if torch.is_autocast_enabled() and first_place((args, kwargs)) not in (HOST, None):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
            "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
            "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
            "safe to autocast."
        )
    from .placement import call

    return call(func, args, kwargs)


def patch_operators() -> None:
    """Replace the registration of operators, and complete autocast on the CPU."""
    wrap(torch.library.Library, "impl", _impl)
    wrap(torch._library.custom_ops.CustomOpDef, "register_kernel", _register_kernel)
    special[torch.nn.functional.binary_cross_entropy] = _binary_cross_entropy
    _patch_autocast()
