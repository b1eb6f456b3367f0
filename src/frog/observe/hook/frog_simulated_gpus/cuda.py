"""torch.cuda and torch.accelerator: which GPUs exist, what they can do, their random states and their memory.

`memory_allocated` is what the process holds beyond what it held right after torch was imported, so it grows with the
model, the optimizer's state and the activations, as on a GPU. Its peak is the kernel's high-water mark.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import generators
from .placement import Gpus
from .replace import (
    called_by_compiler,
    called_by_torch,
    count_ignored,
    refused,
    refused_class,
    replace,
    without_effect,
    wrap,
)
from .tensors import DeviceContext, exchange_device, index_of, set_device

NAME = "simulated GPU (CPU)"
CAPABILITY = (8, 0)
"""As an A100: bfloat16 and TF32, no fp8, so that programs choose neither fp8 nor kernels of newer GPUs."""
NCCL_VERSION = (2, 27, 5)
CUDA_VERSION = "12.8"
CUDNN_VERSION = 91002


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
    "cudart": lambda: _Runtime(),
    "check_error": lambda res: _check_error(res),
    "_sleep": without_effect("torch.cuda._sleep"),
}
"""Functions about devices."""

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
    *("caching_allocator_disabled", "current_blas_handle", "current_solver_handle", "_compile_kernel"),
    *("temperature", "power_draw", "clock_rate", "utilization"),
)
"""Functions of torch.cuda without a meaning on a CPU."""


class _Runtime:
    """The functions of CUDA's runtime that programs call, each of which returns 0 for success."""

    class cudaError:
        """Codes of errors."""

        success = 0

    cudaProfilerStart = staticmethod(without_effect("torch.cuda.cudart().cudaProfilerStart", 0))
    cudaProfilerStop = staticmethod(without_effect("torch.cuda.cudart().cudaProfilerStop", 0))
    cudaHostRegister = staticmethod(without_effect("torch.cuda.cudart().cudaHostRegister", 0))
    cudaHostUnregister = staticmethod(without_effect("torch.cuda.cudart().cudaHostUnregister", 0))

    @staticmethod
    def cudaMemGetInfo(device: Any = None) -> tuple[int, int]:
        """Return the free and the total bytes of a GPU."""
        return mem_get_info(device)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return refused(f"torch.cuda.cudart().{name}")


def _check_error(res: int) -> None:
    if res:
        raise RuntimeError(f"CUDA error {res}")


def patch_cuda() -> None:
    """Replace the functions of torch.cuda."""
    for name, new in (*_DEVICES.items(), *generators.FUNCTIONS.items()):
        replace(torch.cuda, name, new)
    for name, new in generators.FUNCTIONS.items():
        replace(torch.cuda.random, name, new)
    for name in _REFUSED:
        kind = refused_class if isinstance(getattr(torch.cuda, name, None), type) else refused
        replace(torch.cuda, name, kind(f"torch.cuda.{name}"))
    replace(torch.cuda, "default_generators", tuple(generators.of_gpus))
    if torch.version.cuda is None:
        replace(torch.version, "cuda", CUDA_VERSION)
    replace(torch.cuda, "_initialized", True)  # torch.utils.checkpoint asks before it keeps the random state
    _patch_nvtx_and_nccl()


def _emit_nvtx(*args: Any, **kwargs: Any) -> contextlib.nullcontext[None]:
    without_effect("torch.autograd.profiler.emit_nvtx")()
    return contextlib.nullcontext()


def _patch_nvtx_and_nccl() -> None:
    nvtx, nccl = torch.cuda.nvtx, torch.cuda.nccl
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        replace(nvtx, name, without_effect(f"torch.cuda.nvtx.{name}", 0))
    for name in ("start", "stop"):
        replace(torch.cuda.profiler, name, without_effect(f"torch.cuda.profiler.{name}"))
    replace(torch.autograd.profiler, "emit_nvtx", _emit_nvtx)
    wrap(torch.backends.cudnn, "version", _unless_torch(lambda: CUDNN_VERSION))
    wrap(torch.backends.cudnn, "is_available", _unless_torch(lambda: True))
    wrap(torch.backends.cuda, "is_built", _unless_torch(lambda: True))
    replace(nccl, "version", lambda: NCCL_VERSION)
    replace(nccl, "is_available", lambda tensors: False)


_ASKS_FOR_GPUS = ("torch.utils.data", "torch.nn.parallel.parallel_apply")
"""Modules of torch that ask for the accelerator on behalf of the program."""


def _unless_torch(simulated: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Answer a program and torch's data loader with a simulated GPU, and the rest of torch with the truth."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if called_by_torch(but=_ASKS_FOR_GPUS) else simulated(*args, **kwargs)

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


# ---- memory: that which the process holds, in place of the memory of a GPU -------------------------------------------


class _Baseline:
    resident = 0


def _process_status(field: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith(field))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def peak_bytes() -> int:
    """Return the most memory that was resident, in bytes."""
    num_bytes = _process_status("VmHWM:")
    if num_bytes is not None:
        return num_bytes
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def resident_bytes() -> int:
    """Return the memory that is resident now, or the peak where the system does not tell."""
    num_bytes = _process_status("VmRSS:")
    return num_bytes if num_bytes is not None else peak_bytes()


def total_bytes() -> int:
    """Return each simulated GPU's share of the machine's memory."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return whole // max(1, Gpus.count)


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that this process holds beyond those of the imports."""
    index_of(device)
    return max(0, resident_bytes() - _Baseline.resident)


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes that this process has held beyond those of the imports."""
    index_of(device)
    return max(0, peak_bytes() - _Baseline.resident)


def reset_peak(device: Any = None) -> None:
    """Start a new peak; only Linux can."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        without_effect("torch.cuda.reset_peak_memory_stats")()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and the total bytes of a GPU."""
    total = total_bytes()
    return max(0, total - memory_allocated(device)), total


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Return the statistics that programs read, with the names that CUDA's allocator has."""
    now, peak = memory_allocated(device), max_memory_allocated(device)
    stats: OrderedDict[str, int] = OrderedDict()
    for kind in ("active_bytes", "allocated_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes"):
        unused = kind == "inactive_split_bytes"
        for pool in ("all", "small_pool", "large_pool"):
            stats[f"{kind}.{pool}.current"] = 0 if unused or pool == "small_pool" else now
            stats[f"{kind}.{pool}.peak"] = 0 if unused or pool == "small_pool" else peak
    for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes"):
        for pool in ("all", "small_pool", "large_pool"):
            stats[f"{kind}.{pool}.allocated"] = stats[f"{kind}.{pool}.peak"]
            stats[f"{kind}.{pool}.freed"] = stats[f"{kind}.{pool}.peak"] - stats[f"{kind}.{pool}.current"]
    for kind in ("oversize_allocations", "oversize_segments"):
        for figure in ("current", "peak", "allocated", "freed"):
            stats[f"{kind}.{figure}"] = 0
    stats["max_split_size"] = -1
    for kind in ("active", "allocation", "segment", "inactive_split"):  # counts, which the process does not have
        for pool in ("all", "small_pool", "large_pool"):
            for figure in ("current", "peak", "allocated", "freed"):
                stats[f"{kind}.{pool}.{figure}"] = 0
    for event in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams"):
        stats[event] = 0
    return stats


def nested_stats(device: Any = None) -> dict[str, Any]:
    """Return the statistics as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *outer, last = name.split(".")
        inner = tree
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return tree


def snapshot(device: Any = None, **options: Any) -> dict[str, Any]:
    """Return the allocator's snapshot, without the segments and events that the process does not have."""
    return {
        "segments": [],
        "device_traces": [[] for _ in range(Gpus.count)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle", **options: Any) -> None:
    count_ignored("torch.cuda.memory._dump_snapshot")
    with open(filename, "wb") as file:
        pickle.dump(snapshot(), file)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return two lines about this process's memory."""
    now, peak = memory_allocated(device), max_memory_allocated(device)
    return f"simulated GPU {index_of(device)}: {now:,} bytes allocated, {peak:,} at most (memory of the process)"


def patch_memory() -> None:
    """Replace the memory functions of torch.cuda and torch.accelerator."""
    _Baseline.resident = resident_bytes()
    names: dict[str, Any] = {
        **dict.fromkeys(
            ("memory_allocated", "memory_reserved", "memory_cached", "device_memory_used"), memory_allocated
        ),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), max_memory_allocated),
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), reset_peak
        ),
        **dict.fromkeys(("mem_get_info", "get_memory_info"), mem_get_info),
        "memory_stats": memory_stats,
        "memory_summary": memory_summary,
        "memory_stats_as_nested_dict": nested_stats,
        "host_memory_stats_as_nested_dict": dict,
        "_snapshot": snapshot,
        "_dump_snapshot": _dump_snapshot,
        "host_memory_stats": OrderedDict,
        "memory_usage": lambda device=None: 100 * memory_allocated(device) // total_bytes(),
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "get_allocator_backend": lambda: "native",
        "memory_snapshot": lambda mempool_id=None: [],
        "list_gpu_processes": lambda device=None: "",
    }
    ignored = (
        *(
            "empty_cache",
            "caching_allocator_enable",
            "set_per_process_memory_fraction",
            "reset_accumulated_memory_stats",
        ),
        *("_record_memory_history", "_set_allocator_settings", "empty_host_cache"),
        *("reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats"),
    )
    for module in (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
        for name in [name for name in names if hasattr(module, name)]:
            replace(module, name, names[name])
        for name in [name for name in ignored if hasattr(module, name)]:
            public = torch.accelerator if module.__name__.startswith("torch.accelerator") else torch.cuda
            owner = public if hasattr(public, name) else module
            replace(module, name, without_effect(f"{owner.__name__}.{name}"))
