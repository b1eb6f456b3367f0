"""FSDP1 (`FullyShardedDataParallel`) with fake tensors: torch's own code, with torch.cuda's streams and events.

Its parameters are fake tensors on the CPU, so it is told that it computes there, and that it does so on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from frog.plan.program.recording_rank import CannotFake

flat_parameters: list[Any] = []
"""Each holds the parameters of one wrapped module, sharded."""


def num_flat() -> int:
    """Return the number of parameters in all flat parameters, on all ranks."""
    return sum(flat._unpadded_unsharded_size.numel() for flat in flat_parameters)


def is_flat(param: Any) -> bool:
    """True for a flat parameter, and for the part of an original one that a rank holds."""
    return getattr(param, "_is_flat_param", False) or getattr(param, "_fsdp_flattened", False)


def stand_in_for_fsdp1() -> None:
    """Replace what FSDP1 asks about devices, and how it compares storages.

    Raises:  CannotFake if this version of torch has no FSDP1 that Frog knows.
    """
    try:
        from torch.distributed.fsdp import _flat_param, _init_utils, fully_sharded_data_parallel
        from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle
    except ImportError as missing:
        raise CannotFake(f"torch {torch.__version__}: {missing}") from None
    cpu = torch.device("cpu")

    def init_device_handle(state: Any, *args: Any) -> Any:
        state._device_handle = torch.cuda
        return state

    _FSDPDeviceHandle.from_device = lambda device: torch.cuda  # type: ignore[method-assign, assignment, return-value]
    shard = _flat_param.FlatParamHandle.shard

    def shard_and_note(self: Any) -> None:
        shard(self)  # type: ignore[no-untyped-call]
        flat_parameters.append(self.flat_param)

    _flat_param.FlatParamHandle.shard = shard_and_note  # type: ignore[method-assign]
    answers = {
        "_init_device_handle": init_device_handle,
        "_get_device_from_device_id": lambda device_id, *args: None if device_id is None else cpu,
        "_get_compute_device": lambda *args: cpu,
        "_warn_cpu_init": lambda: None,
        "_check_module_states_for_sync_module_states": lambda *args: None,
        "_same_storage": lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata,
        "_data_ptr_allocated": lambda tensor: tensor.untyped_storage().size() > 0,
    }
    for module in (_flat_param, _init_utils, fully_sharded_data_parallel):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, answer)
