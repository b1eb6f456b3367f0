"""Memory figures: the resident memory of this process, in place of the memory of a GPU.

`memory_allocated` is what the process holds beyond what it held right after torch was imported, so it grows with the
model, the optimizer's state and the activations, as on a GPU. Its peak is the kernel's high-water mark.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import OrderedDict
from typing import Any

import torch

from .devices import Gpus, index_of
from .notes import refused, without_effect
from .replace import replace


class _Baseline:
    resident = 0


def _status(field: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith(field))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def peak_bytes() -> int:
    """Return the most memory that was resident, in bytes."""
    found = _status("VmHWM:")
    if found is not None:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def resident_bytes() -> int:
    """Return the memory that is resident now, or the peak where the system does not tell."""
    found = _status("VmRSS:")
    return found if found is not None else peak_bytes()


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
    found: OrderedDict[str, int] = OrderedDict()
    for kind in ("active_bytes", "allocated_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes"):
        unused = kind == "inactive_split_bytes"
        for pool in ("all", "small_pool", "large_pool"):
            found[f"{kind}.{pool}.current"] = 0 if unused or pool == "small_pool" else now
            found[f"{kind}.{pool}.peak"] = 0 if unused or pool == "small_pool" else peak
    for event in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams"):
        found[event] = 0
    return found


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
        **dict.fromkeys(("memory_stats_as_nested_dict", "host_memory_stats_as_nested_dict"), lambda device=None: {}),
        "host_memory_stats": OrderedDict,
        "memory_usage": lambda device=None: 100 * memory_allocated(device) // total_bytes(),
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "get_allocator_backend": lambda: "native",
        "memory_snapshot": refused("torch.cuda.memory_snapshot"),
        "list_gpu_processes": lambda device=None: "",
    }
    ignored = (
        *(
            "empty_cache",
            "caching_allocator_enable",
            "set_per_process_memory_fraction",
            "reset_accumulated_memory_stats",
        ),
        *("_record_memory_history", "_dump_snapshot", "_set_allocator_settings", "empty_host_cache"),
        *("reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats"),
    )
    for module in (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
        for name in [name for name in names if hasattr(module, name)]:
            replace(module, name, names[name])
        for name in [name for name in ignored if hasattr(module, name)]:
            replace(module, name, without_effect(f"torch.cuda.{name}"))
