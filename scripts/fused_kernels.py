"""Compare separate and fused kernels: the number of operators, and their time.

    python scripts/fused_kernels.py

A kernel is one pass over memory. `gate` has four operators: each reads tensors from memory and writes one back.
torch.compile fuses them into one kernel, which reads each input once and writes the result once. AdamW's update is
another example: several operators per parameter, or one fused kernel.
The same applies to a GPU, where each kernel launch costs additional time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

# torch reads both when it loads: waiting threads sleep instead of spinning; the profiler prints no messages.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def gate(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """SiLU of x, times y, plus z: sigmoid, mul, mul, add."""
    return torch.sigmoid(x) * x * y + z


def adamw(tensors: int, **how: Any) -> torch.optim.AdamW:
    """Create an optimizer for `tensors` small parameters with gradients, like those of a model with many layers."""
    parameters = [torch.ones(64, 64, requires_grad=True) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    return torch.optim.AdamW(parameters, **how)


def operators_of(call: Callable[[], object]) -> int:
    """Count the operators of one call; a graph from torch.compile counts as one."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()
    ran = ("aten::", "## Call CompiledFxGraph")
    return sum(event.count for event in recorded.key_averages() if event.key.startswith(ran))


def show(what: str, call: Callable[[], object], repeats: int = 20) -> None:
    call()  # warm up; torch.compile compiles now
    operators, times = operators_of(call), []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    print(f"{what:<42} {operators:>5} operators  {1000 * statistics.median(times):>8.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096, help="rows of 1024 numbers in each input of gate")
    args = parser.parse_args()
    if args.rows < 1:
        parser.error("--rows must be at least 1")

    torch.set_num_threads(1)
    x, y, z = (torch.randn(args.rows, 1024) for _ in range(3))
    show("gate, one kernel for each operator", lambda: gate(x, y, z))
    if shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"):
        fused = torch.compile(gate)
        torch.testing.assert_close(fused(x, y, z), gate(x, y, z))
        show("gate, fused by torch.compile", lambda: fused(x, y, z))
    else:
        print("gate, fused: torch.compile needs a C++ compiler, which is not installed")
    with torch.no_grad():
        show("AdamW for 40 parameters, not fused", adamw(40, foreach=False).step)
        show("AdamW for 40 parameters, fused", adamw(40, fused=True).step)


if __name__ == "__main__":
    main()
