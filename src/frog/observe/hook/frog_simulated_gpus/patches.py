"""All replacements, each right after the import of the module that it changes."""

from __future__ import annotations

from types import ModuleType

from . import notes
from .flash_attention import provide_flash_attention
from .importing import after_import


def simulate(count: int) -> None:
    """Replace torch's functions for `count` simulated GPUs, now or when the program imports torch."""
    notes.print_at_exit()
    provide_flash_attention()
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
    from . import amp, attention, compiling, cuda, devices, distributed, graphs, memory, streams, tensors

    devices.Gpus.count = count
    tensors.patch_tensors()
    streams.patch_streams()
    graphs.patch_graphs()
    memory.patch_memory()
    cuda.patch_cuda()
    cuda.patch_accelerator()
    amp.patch_amp()
    distributed.patch_distributed()
    attention.patch_attention()
    compiling.patch_compile()


def _patch_fsdp(module: ModuleType) -> None:
    from . import distributed

    distributed.patch_fsdp(module)


def _patch_fsdp2(module: ModuleType) -> None:
    from . import distributed

    distributed.patch_fsdp2(module)


def _patch_flex_attention(module: ModuleType) -> None:
    from . import attention

    attention.patch_flex_attention(module)


def _patch_deepspeed(module: ModuleType) -> None:
    """Keep DeepSpeed from compiling a collective of its own for the CPU; it has torch's."""
    module.build_shm_op = lambda: None  # type: ignore[attr-defined]


def _patch_dynamo(module: ModuleType) -> None:
    from . import compiling

    compiling.skip_frames(module)
