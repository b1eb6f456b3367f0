"""The `nvidia-smi` of simulated GPUs: what programs ask it for, without torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from . import num_gpus

NAME = "simulated GPU (CPU)"
DRIVER_VERSION = "570.00"
CUDA_VERSION = "12.8"
MIB = 2**20


def total_bytes(count: int) -> int:
    """Return each simulated GPU's share of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // max(1, count)


def free_bytes(count: int) -> int:
    """Return each simulated GPU's share of the memory that is free now."""
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return total_bytes(count)
    return int(line.split()[1]) * 1024 // max(1, count)


def fields(index: int, count: int) -> dict[str, tuple[str, str]]:
    """Return what `--query-gpu` knows about a GPU: by name, a value and its unit."""
    total, free = total_bytes(count) // MIB, free_bytes(count) // MIB
    return {
        "index": (str(index), ""),
        "count": (str(count), ""),
        "name": (NAME, ""),
        "gpu_name": (NAME, ""),
        "uuid": (f"GPU-simulated-{index}", ""),
        "gpu_uuid": (f"GPU-simulated-{index}", ""),
        "driver_version": (DRIVER_VERSION, ""),
        "compute_cap": ("8.0", ""),
        "memory.total": (str(total), "MiB"),
        "memory.free": (str(free), "MiB"),
        "memory.used": (str(max(0, total - free)), "MiB"),
        "utilization.gpu": ("0", "%"),
        "utilization.memory": ("0", "%"),
    }


def query(names: list[str], formats: list[str], chosen: list[int], count: int) -> list[str]:
    """Return the lines of `--query-gpu`; a field that is not simulated reads [N/A], as with an older driver."""
    units = "nounits" not in formats
    lines = []
    for index in chosen:
        known = fields(index, count)
        values = []
        for name in names:
            value, unit = known.get(name, ("[N/A]", ""))
            values.append(f"{value} {unit}" if unit and units else value)
        lines.append(", ".join(values))
    if "noheader" in formats:
        return lines
    heads = []
    for name in names:
        unit = fields(0, count).get(name, ("", ""))[1]
        heads.append(f"{name} [{unit}]" if unit and units else name)
    return [", ".join(heads), *lines]


def table(chosen: list[int], count: int) -> list[str]:
    """Return what `nvidia-smi` prints without options, in short."""
    used, total = (fields(0, count)[name][0] for name in ("memory.used", "memory.total"))
    head = f"NVIDIA-SMI {DRIVER_VERSION} (simulated)   Driver Version: {DRIVER_VERSION}   CUDA Version: {CUDA_VERSION}"
    return [head, *(f"|   {index}  {NAME}   |  {used}MiB / {total}MiB  |   0%  |" for index in chosen)]


def main(words: list[str], show: Callable[[str], None] = print) -> int:
    """Print what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="Lists simulated GPUs.", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("--query-gpu")
    parser.add_argument("--format", default="csv")
    args, unknown = parser.parse_known_args(words)
    count = num_gpus() or 0
    if count == 0:
        show("No devices were found")
        return 6
    if unknown:
        show(f"nvidia-smi is simulated, and does not know {unknown[0]}: it knows -L, -i, --query-gpu and --format")
        return 2
    chosen = [int(word) for word in args.id.split(",") if word.isdigit()] if args.id else list(range(count))
    if any(index >= count for index in chosen):
        show(f"No devices were found: there are {count} simulated GPUs, numbered from 0")
        return 6
    if args.list_gpus:
        lines = [f"GPU {index}: {NAME} (UUID: GPU-simulated-{index})" for index in chosen]
    elif args.query_gpu:
        lines = query([name.strip() for name in args.query_gpu.split(",")], args.format.split(","), chosen, count)
    else:
        lines = table(chosen, count)
    for line in lines:
        show(line)
    return 0
