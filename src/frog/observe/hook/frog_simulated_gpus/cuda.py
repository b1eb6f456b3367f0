"""torch.cuda and torch.accelerator: which GPUs exist, what they can do, and their random states."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .devices import DeviceContext, Gpus, exchange_device, index_of, set_device
from .memory import total_bytes
from .notes import refused, refused_class, without_effect
from .replace import called_by_compiler, called_by_torch, replace, wrap

NAME = "simulated GPU (CPU)"
CAPABILITY = (8, 0)
"""As an A100: bfloat16 and TF32, no fp8, so that programs choose neither fp8 nor kernels of newer GPUs."""
NCCL_VERSION = (2, 27, 5)
CUDA_VERSION = "12.8"


def properties(device: Any = None) -> types.SimpleNamespace:
    """Return a simulated GPU's properties, with the fields of CUDA's."""
    return types.SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=total_bytes(),
        multi_processor_count=os.cpu_count() or 1,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_multiprocessor=167936,
        shared_memory_per_block_optin=166912,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        L2_cache_size=40 * 2**20,
        gcnArchName="",
        uuid=f"simulated-{index_of(device)}",
        pci_bus_id=index_of(device),
        pci_device_id=0,
        pci_domain_id=0,
    )


def _capability(device: Any = None) -> tuple[int, int]:
    index_of(device)
    return CAPABILITY


def _name(device: Any = None) -> str:
    index_of(device)
    return NAME


def _manual_seed(seed: int) -> None:
    """Seed the CPU's generator, which draws all random numbers of a simulated GPU."""
    torch.default_generator.manual_seed(int(seed))


def _random_seed() -> None:
    torch.default_generator.seed()


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    index_of(device)
    return torch.default_generator.get_state()


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    index_of(device)
    torch.default_generator.set_state(new_state)


def _set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    if new_states:
        torch.default_generator.set_state(new_states[Gpus.current % len(new_states)])


@contextlib.contextmanager
def _device_of(tensor: Any) -> Iterator[None]:
    yield


def _set_any_device(device: Any) -> None:
    if not isinstance(device, int) or device >= 0:  # CUDA ignores negative numbers
        set_device(device)


_DEVICES: dict[str, Any] = {
    "is_available": lambda: not called_by_compiler(),
    "is_initialized": lambda: True,
    "init": lambda: None,
    "_lazy_init": lambda: None,
    "_is_in_bad_fork": lambda: False,
    "device_count": lambda: Gpus.count,
    "current_device": lambda: Gpus.current,
    "set_device": _set_any_device,
    "device": DeviceContext,
    "_DeviceGuard": DeviceContext,
    "device_of": _device_of,
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": exchange_device,
    "_get_device": lambda device: torch.device("cuda", index_of(device)),
    "synchronize": lambda device=None: None,
    "get_device_name": _name,
    "get_device_capability": _capability,
    "get_device_properties": properties,
    "get_arch_list": lambda: [f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"],
    "get_gencode_flags": lambda: "",
    "can_device_access_peer": lambda device, peer_device: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
    "get_sync_debug_mode": lambda: 0,
    "ipc_collect": without_effect("torch.cuda.ipc_collect"),
    "set_sync_debug_mode": without_effect("torch.cuda.set_sync_debug_mode"),
    "_sleep": without_effect("torch.cuda._sleep"),
}
"""Functions about devices."""

_RANDOM: dict[str, Any] = {
    "manual_seed": _manual_seed,
    "manual_seed_all": _manual_seed,
    "seed": _random_seed,
    "seed_all": _random_seed,
    "initial_seed": lambda: torch.default_generator.initial_seed(),
    "get_rng_state": _get_rng_state,
    "get_rng_state_all": lambda: [_get_rng_state() for _ in range(Gpus.count)],
    "set_rng_state": _set_rng_state,
    "set_rng_state_all": _set_rng_state_all,
}
"""Functions about random numbers."""

_REFUSED = (
    *(
        "CUDAPluggableAllocator",
        "GreenContext",
        "change_current_allocator",
        "caching_allocator_alloc",
        "caching_allocator_delete",
        "MemPool",
        "use_mem_pool",
    ),
    *("caching_allocator_disabled", "cudart", "current_blas_handle", "current_solver_handle", "_compile_kernel"),
    *("temperature", "power_draw", "clock_rate", "utilization"),
)
"""Functions of torch.cuda without a meaning on a CPU."""


def patch_cuda() -> None:
    """Replace the functions of torch.cuda."""
    for name, new in (*_DEVICES.items(), *_RANDOM.items()):
        replace(torch.cuda, name, new)
    for name, new in _RANDOM.items():
        replace(torch.cuda.random, name, new)
    for name in _REFUSED:
        kind = refused_class if isinstance(getattr(torch.cuda, name, None), type) else refused
        replace(torch.cuda, name, kind(f"torch.cuda.{name}"))
    replace(torch.cuda, "default_generators", tuple([torch.default_generator] * Gpus.count))
    if torch.version.cuda is None:
        replace(torch.version, "cuda", CUDA_VERSION)
    _patch_nvtx_and_nccl()


def _patch_nvtx_and_nccl() -> None:
    nvtx, nccl = torch.cuda.nvtx, torch.cuda.nccl
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        replace(nvtx, name, without_effect(f"torch.cuda.nvtx.{name}", 0))
    replace(nccl, "version", lambda: NCCL_VERSION)
    replace(nccl, "is_available", lambda tensors: False)


def _unless_torch(simulated: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Answer a program and torch's data loader with a simulated GPU, and the rest of torch with the truth."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if called_by_torch(but="torch.utils.data") else simulated(*args, **kwargs)

        return call

    return make


def patch_accelerator() -> None:
    """Replace the functions of torch.accelerator."""
    accelerator = torch.accelerator
    wrap(accelerator, "current_accelerator", _unless_torch(lambda check_available=False: torch.device("cuda")))
    wrap(accelerator, "is_available", _unless_torch(lambda: True))
    for names, new in (
        (("device_count",), lambda: Gpus.count),
        (("current_device_index", "current_device_idx"), lambda: Gpus.current),
        (("set_device_index", "set_device_idx"), _set_any_device),
        (("device_index",), DeviceContext),
        (("synchronize",), lambda device=None: None),
        (("get_device_capability",), _accelerator_capability),
        (("Graph",), refused_class("torch.accelerator.Graph")),
    ):
        for name in names:
            replace(accelerator, name, new)


def _accelerator_capability(device: Any = None) -> dict[str, set[torch.dtype]]:
    names = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
    return {"supported_dtypes": {getattr(torch, name) for name in names}}
