"""Simulated GPUs: a program written for CUDA and NCCL runs on the CPU and gloo, unchanged.

`install` runs before the program imports torch, and replaces the functions that need a GPU as soon as torch is
imported. All tensors stay in the memory of the CPU; only their names are translated. This package has only imports of
the standard library and of itself, because the program's Python may not have Frog.
"""

from __future__ import annotations

import os
from types import ModuleType

VARIABLE = "FROG_SIMULATE_GPUS"
"""Environment variable with the number of simulated GPUs of a node, or `slurm`: those that Slurm gives to the job."""

BIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def install() -> None:
    """Simulate the GPUs that the environment asks for. Do nothing if it asks for none."""
    count = num_gpus()
    if count is None:
        return
    offer_nvidia_smi()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed's own operators, unless the user has chosen others
    _simulate(count)


def offer_nvidia_smi() -> None:
    """Put the `nvidia-smi` of simulated GPUs on the PATH of this process and of those that it starts."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if BIN not in entries:
        os.environ["PATH"] = os.pathsep.join((BIN, *entries))


def num_gpus() -> int | None:
    """Return the number of GPUs that this process sees, or None if they are not simulated.

    CUDA_VISIBLE_DEVICES selects among the simulated GPUs of the node, as it does among real ones.
    """
    text = os.environ.get(VARIABLE, "")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text == "slurm":
        return (_num_visible(visible) or None) if visible is not None else None
    if not _is_whole(text) or int(text) == 0:
        return None
    return int(text) if visible is None else _num_visible(visible, int(text))


def _is_whole(text: str) -> bool:
    """True for a number of at most 18 digits: `int` fails above 4,300."""
    return text.isdigit() and len(text) <= 18


def _num_visible(visible: str, count: int | None = None) -> int:
    """Count the entries before the first invalid one, as CUDA does."""
    seen: list[int] = []
    for entry in visible.split(","):
        word = entry.strip()
        if not _is_whole(word) or int(word) in seen or (count is not None and int(word) >= count):
            break
        seen.append(int(word))
    return len(seen)


def _simulate(count: int) -> None:
    """Replace torch's functions for `count` simulated GPUs, now or when the program imports torch."""
    from .flash_attention import provide_flash_attention
    from .gpu_packages import explain_gpu_packages
    from .replace import after_import, print_at_exit

    print_at_exit()
    provide_flash_attention()
    explain_gpu_packages()
    after_import(
        {
            "torch": lambda module: _patch_torch(count),
            "torch.distributed.fsdp._init_utils": _patch_fsdp,
            "torch.distributed.fsdp._fully_shard._fsdp_collectives": _patch_fsdp2,
            "torch.nn.attention.flex_attention": _patch_flex_attention,
            "torch._dynamo.eval_frame": _patch_dynamo,
            "deepspeed.comm.torch": _patch_deepspeed,
        }
    )


def _patch_torch(count: int) -> None:
    from . import (
        cuda,
        data_parallel,
        distributed,
        kernels,
        operators,
        placement,
        profiled_activities,
        streams,
        sync_batch_norm,
        tensors,
    )

    placement.Gpus.count = count
    tensors.patch_tensors()
    streams.patch_streams()
    streams.patch_graphs()
    cuda.patch_memory()
    cuda.patch_cuda()
    cuda.patch_accelerator()
    kernels.patch_amp()
    operators.patch_operators()
    profiled_activities.patch_profiler()
    data_parallel.patch_data_parallel()
    distributed.patch_distributed()
    kernels.patch_attention()
    sync_batch_norm.patch_sync_batch_norm()
    kernels.patch_compile()


def _patch_fsdp(module: ModuleType) -> None:
    from . import distributed

    distributed.patch_fsdp(module)


def _patch_fsdp2(module: ModuleType) -> None:
    from . import distributed

    distributed.patch_fsdp2(module)


def _patch_flex_attention(module: ModuleType) -> None:
    from . import kernels

    kernels.patch_flex_attention(module)


def _patch_deepspeed(module: ModuleType) -> None:
    """Keep DeepSpeed from compiling a collective of its own for the CPU; it has torch's."""
    module.build_shm_op = lambda: None  # type: ignore[attr-defined]


def _patch_dynamo(module: ModuleType) -> None:
    from . import kernels

    kernels.skip_frames(module)
