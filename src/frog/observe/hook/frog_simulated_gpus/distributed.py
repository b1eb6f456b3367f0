"""torch.distributed: gloo in place of NCCL, and meshes of CPUs in place of meshes of GPUs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from .placement import CPU
from .replace import called_by_torch, count_ignored, note_rank, wrap, wrap_everywhere
from .tensors import index_of, is_gpu, real

Function = Callable[..., Any]


class ProcessGroupNCCL:
    """The names that programs read from NCCL's process group, whose options have no effect."""

    class Options:
        """Options of NCCL, of which gloo has none."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            count_ignored("torch.distributed.ProcessGroupNCCL.Options")
            self.config = type("Config", (), {})()
            self.is_high_priority_stream = False


_asked: dict[int, str] = {}
"""By the id of a process group: the backend that the program asked for."""


def gloo_for(backend: Any) -> Any:
    """Return the backend on a CPU for the one that a program names: nccl, "cpu:gloo,cuda:nccl", or None."""
    name = str(backend).lower() if backend is not None else ""
    if "nccl" in name or not name:
        return "gloo"
    parts = [part for part in name.split(",") if not part.startswith("cuda:")]
    return ",".join(parts) if len(parts) < len(name.split(",")) else backend


def _without_options(kwargs: dict[str, Any]) -> None:
    kwargs.pop("device_id", None)
    if isinstance(kwargs.get("pg_options"), ProcessGroupNCCL.Options):
        kwargs["pg_options"] = None


def _remember(group: Any, backend: Any) -> Any:
    if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
        _asked[id(group)] = "gloo" if str(backend).lower() == "gloo" else "nccl"
    return group


def _init_process_group(function: Function) -> Function:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        if is_gpu(kwargs.get("device_id")):
            real(kwargs["device_id"])
        _without_options(kwargs)
        function(gloo_for(backend), *args, **kwargs)
        _remember(dist.group.WORLD, backend)
        note_rank(dist.get_rank())

    return init_process_group


def _new_group(function: Function) -> Function:
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        _without_options(kwargs)
        args = tuple(None if isinstance(arg, ProcessGroupNCCL.Options) else arg for arg in args)
        group = function(ranks, timeout, gloo_for(backend) if backend is not None else None, *args, **kwargs)
        return _remember(group, backend if backend is not None else _asked.get(id(dist.group.WORLD)))

    return new_group


def _new_subgroups(function: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        _without_options(kwargs)
        if kwargs.get("backend") is not None:
            kwargs["backend"] = gloo_for(kwargs["backend"])
        return function(*args, **kwargs)

    return call


def _split_group(function: Function) -> Function:
    """Make the groups one by one, as gloo cannot split a communicator."""

    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        own = None
        for ranks in split_ranks or ():
            group = dist.new_group(ranks, timeout)
            own = group if dist.get_rank() in ranks else own
        return own

    return split_group


def _barrier(function: Function) -> Function:
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        for index in device_ids or ():
            real(index)
        return function(group, async_op)

    return barrier


def _get_backend(function: Function) -> Function:
    """Answer a program with the backend that it asked for, and torch with the real one."""

    def get_backend(group: Any = None) -> Any:
        backend = function(group)
        if called_by_torch() or backend != "gloo":
            return backend
        return _asked.get(id(group if group is not None else dist.group.WORLD), backend)

    return get_backend


def _flat(function: Function) -> Function:
    """Pass tensors without their shapes, which NCCL ignores and gloo compares."""

    names = list(inspect.signature(function).parameters)[:2]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*args[:2], *(kwargs.pop(name) for name in names[len(args) :] if name in kwargs)]
        if len(given) == 2 and all(tensor.is_contiguous() for tensor in given):
            given = [tensor.view(-1) for tensor in given]
        return function(*given, *args[2:], **kwargs)

    return call


class _Done:
    """The handle of a collective that has ended."""

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> Any:
        """Return a future that has finished."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


def _all_gather(function: Function) -> Function:
    """Gather tensors of several sizes by broadcasts, as NCCL does."""

    def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        if len({part.numel() for part in tensor_list}) <= 1:
            return function(tensor_list, tensor, group, async_op)
        tensor_list[dist.get_rank(group)].copy_(tensor)
        for source, gathered in enumerate(tensor_list):
            dist.broadcast(gathered, group=group, group_src=source)
        return _Done() if async_op else None

    return all_gather


def _all_to_all(function: Function) -> Function:
    """Exchange tensors of any sizes in one flat tensor: gloo's own exchange needs equal ones."""

    def all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> Any:
        given = torch.cat([tensor.reshape(-1) for tensor in input_tensor_list])
        sizes = [tensor.numel() for tensor in output_tensor_list]
        received: Any = given.new_empty(sum(sizes))
        dist.all_to_all_single(received, given, sizes, [tensor.numel() for tensor in input_tensor_list], group=group)
        for output, part in zip(output_tensor_list, received.split(sizes), strict=True):
            output.copy_(part.view_as(output))
        return _Done() if async_op else None

    return all_to_all


def _coalescing(function: Function) -> Function:
    """Coalesce without a device, for backends such as gloo that take all operations at the end."""

    def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Any:
        return function(group, None, async_ops)

    return _coalescing_manager


def _tensor_to_object(function: Function) -> Function:
    """Read an object from the CPU, whichever GPU it was received on."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return function(tensor.cpu(), *args, **kwargs)

    return call


def _get_future(function: Function) -> Function:
    """Return a future that has finished where gloo has none."""

    def get_future(self: Any) -> Any:
        try:
            return function(self)
        except RuntimeError:
            self.wait()
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result([])
            return future

    return get_future


def _mesh(function: Function) -> Function:
    """Make a mesh of CPUs where a mesh of GPUs is asked for."""

    def call(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return function(_type_of(device_type), *args, **kwargs)

    return call


def _mesh_method(function: Function) -> Function:
    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if "device_type" in kwargs:
            kwargs["device_type"] = _type_of(kwargs["device_type"])
        return function(owner, *(_type_of(arg) for arg in args), **kwargs)

    return call


def _type_of(device_type: Any) -> Any:
    return "cpu" if isinstance(device_type, str) and device_type.startswith("cuda") else device_type


def _ddp(function: Function) -> Function:
    def __init__(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        indices = [index_of(device) for device in device_ids or ()]
        function(self, module, None, None, *args, **kwargs)
        self.simulated_index = indices[0] if indices else None

    return __init__


def _pre_forward(function: Function) -> Function:
    """Move the inputs of a DDP with `device_ids` to its GPU."""

    def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if self.simulated_index is not None and not torch.compiler.is_compiling():
            device = torch.device("cuda", self.simulated_index)
            inputs, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (inputs, kwargs))
        return function(self, *inputs, **kwargs)

    return _pre_forward


_FLAT = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single")
"""Collectives of one tensor; the last two are the names since torch 2.13."""


def patch_distributed() -> None:
    """Replace what torch.distributed knows about NCCL and GPUs."""
    if not dist.is_available():
        return
    wrap_everywhere(
        dist.distributed_c10d,
        {
            "init_process_group": _init_process_group,
            "new_group": _new_group,
            "new_subgroups": _new_subgroups,
            "new_subgroups_by_enumeration": _new_subgroups,
            "split_group": _split_group,
            "barrier": _barrier,
            "get_backend": _get_backend,
            "all_gather": _all_gather,
            "all_to_all": _all_to_all,
            "_coalescing_manager": _coalescing,
            "_tensor_to_object": _tensor_to_object,
            **{name: _flat for name in _FLAT if hasattr(dist, name)},
            "is_nccl_available": lambda function: lambda: True,
        },
    )
    if not hasattr(dist, "ProcessGroupNCCL"):
        for module in (dist, dist.distributed_c10d):
            setattr(module, "ProcessGroupNCCL", ProcessGroupNCCL)  # noqa: B010
    wrap(dist.Work, "get_future", _get_future)
    wrap_everywhere(dist.device_mesh, {"init_device_mesh": _mesh})
    wrap(dist.device_mesh.DeviceMesh, "__init__", _mesh_method)
    wrap(torch.nn.parallel.DistributedDataParallel, "__init__", _ddp)
    refused_on_cpu = "_passing_sync_batchnorm_handle"
    wrap(torch.nn.parallel.DistributedDataParallel, refused_on_cpu, lambda function: lambda self, module: None)
    wrap(torch.nn.parallel.DistributedDataParallel, "_pre_forward", _pre_forward)


def patch_fsdp(module: ModuleType) -> None:
    """Let FSDP1 use the CPU, which it refuses as a default, and keep parameters that it would move there and free."""

    def device_handle(function: Function) -> Function:
        def call(state: Any, module_: Any, ignored_params: Any, device_id: Any) -> Any:
            if device_id is not None:
                real(device_id)
            return function(state, module_, ignored_params, CPU)

        return call

    def device_from_id(function: Function) -> Function:
        def call(device_id: Any, *args: Any, **kwargs: Any) -> Any:
            return None if device_id is None else CPU

        return call

    if not hasattr(torch.cpu.Stream, "synchronize"):  # parameters that are offloaded wait for it
        torch.cpu.Stream.synchronize = lambda self: None  # type: ignore[attr-defined]
    wrap(module, "_init_device_handle", device_handle)
    wrap(module, "_get_device_from_device_id", device_from_id)
    for name in ("_check_single_device_module", "_check_module_states_for_sync_module_states"):
        wrap(module, name, lambda function: lambda *args: None)
    wrap(module.FlatParamHandle, "to_cpu", lambda function: lambda self: contextlib.nullcontext())


def patch_fsdp2(module: ModuleType) -> None:
    """Let FSDP2 divide gradients itself where NCCL would multiply them inside the collective, which gloo cannot."""

    def divide_factors(function: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(function).bind(*args, **kwargs)
            if bound.arguments.get("factor") is not None:
                bound.arguments["force_sum_reduction_for_comms"] = True
            return function(*bound.args, **bound.kwargs)

        return call

    wrap(module, "_get_gradient_divide_factors", divide_factors)
