"""CUDA and NCCL as a program sees them while it is planned: every tensor is fake, every collective returns at once.

All fake tensors are torch's CPU tensors without memory, and count as the GPU's; the program reads `cuda:0` from them.
Device names in calls are translated. Attention and autocast follow CUDA's choices, the rest torch's for the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from frog.plan.program.known_values_rank import keep_value, value_of
from frog.plan.program.messages_rank import Messages, PostOffice
from frog.plan.program.recording_rank import CannotFake, Recorder, is_frog_or_torch, user_line
from frog.plan.program.stand_in_cuda_rank import GpuFacts
from frog.plan.program.stand_in_fsdp1_rank import stand_in_for_fsdp1

_BUCKET_BYTES = 25 * 2**20, 2**20
"""Sizes of DDP's buckets, and of the first one."""


def gpu() -> torch.device:
    """Return this rank's GPU."""
    return torch.device("cuda", GpuFacts.index)


def is_cuda(value: object) -> bool:
    """True for the name of a CUDA device."""
    return (isinstance(value, str) and value.split(":")[0] == "cuda") or (
        isinstance(value, torch.device) and value.type == "cuda"
    )


def _is_cpu(value: object) -> bool:
    return value == "cpu" or (isinstance(value, torch.device) and value.type == "cpu")


def translated(value: Any) -> Any:
    """Return `cpu` in place of a CUDA device."""
    return torch.device("cpu") if is_cuda(value) else value


_IN_FLOAT32 = {
    "layer_norm",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "cross_entropy_loss",
    "kl_div",
    "smooth_l1_loss",
    "nll_loss_nd",
    "nll_loss",
    "mse_loss",
    "norm",
    "cumsum",
    "cumprod",
    "prod",
    "sum",
    "pow",
    "exp",
    "log",
    "rsqrt",
    "group_norm",
}
"""Operations that CUDA's autocast computes in float32, as far as the CPU's does not."""


class Translate(TorchFunctionMode):
    """Translates devices and answers for values; CUDA's attention and autocast in place of the CPU's."""

    def __init__(self, recorder: Recorder, fake: FakeTensorMode) -> None:
        super().__init__()
        self.recorder, self.fake = recorder, fake
        self._translate_what_is_computed_again()

    def _translate_what_is_computed_again(self) -> None:
        """Let functions that run in a backward pass, as those of checkpoints, be translated: torch calls `backward` and
        `grad` outside of the mode.
        """
        run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        @functools.wraps(run_backward)
        def inside(*args: Any, **kwargs: Any) -> Any:
            if torch._C._len_torch_function_stack():
                return run_backward(*args, **kwargs)
            with self:
                return run_backward(*args, **kwargs)

        torch.autograd._engine_run_backward = inside  # type: ignore[attr-defined]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is torch.device:
            return torch.device("cuda", args[0]) if args and type(args[0]) is int else func(*args, **kwargs)
        if name == "cuda":
            return self._moved(args[0])
        if name == "pin_memory":
            return args[0]
        to_cpu = name == "cpu" or (name == "to" and any(_is_cpu(value) for value in (*args[1:], *kwargs.values())))
        if to_cpu and isinstance(args[0], FakeTensor) and value_of(args[0]) is not None:
            self.recorder.rows.append(["sync", self.recorder.line()])
            with _disable_current_modes():
                return func(value_of(args[0]).clone(), *args[1:], **kwargs)  # real data again
        if name in ("tolist", "numpy", "__array__") and isinstance(args[0], FakeTensor):
            return self._values(args[0], name)
        if name == "data_ptr" and isinstance(args[0], FakeTensor):  # by which programs tell tensors apart
            return args[0].untyped_storage()._cdata + args[0].storage_offset() * args[0].element_size()
        if name == "__format__" and args[0].dim() == 0:
            return format(args[0].item(), args[1])
        if func in _DATA and kwargs.get("device") is None:
            with _disable_current_modes():
                return func(*args, **kwargs)
        if name == "to" and (
            is_cuda(kwargs.get("device")) or any(is_cuda(value) or type(value) is int for value in args)
        ):
            args = (self._moved(args[0]), *args[1:])
        names_cuda = any(map(is_cuda, args)) or is_cuda(kwargs.get("device"))
        if names_cuda:
            args = tuple(map(translated, args))
            kwargs = {key: translated(value) for key, value in kwargs.items()}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if name == "to" and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cpu"), *args[2:])
        if name == "scaled_dot_product_attention":
            return attention(*args, **kwargs)
        if name in _IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tuple(widened(value) for value in args)
        result = func(*args, **kwargs)
        return self._moved(result) if names_cuda and func in _NUMBERS else result  # from numbers: real data until here

    def _moved(self, tensor: Any) -> Any:
        """Return a fake tensor on the GPU for one on the CPU."""
        if isinstance(tensor, FakeTensor) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor
        with _disable_current_modes():
            moved = self.fake.from_tensor(tensor.detach(), static_shapes=True)
        keep_value(moved, tensor)
        self.recorder.add_storage(moved, self.recorder.line())
        return moved

    def _values(self, tensor: Any, name: str) -> Any:
        """Return zeros, or ones for floating-point numbers, of a fake tensor's shape."""
        import numpy

        recorder = self.recorder
        line = recorder.index_of(user_line())
        recorder.rows.append(["sync", line])
        known = value_of(tensor)
        if known is not None:
            with _disable_current_modes():
                return known.tolist() if name == "tolist" else known.numpy()
        recorder.note_answer(f".{name}()", line)
        make = numpy.ones if tensor.dtype.is_floating_point else numpy.zeros
        kind = {torch.bool: "bool", torch.float64: "float64"}.get(tensor.dtype)
        kind = kind or ("float32" if tensor.dtype.is_floating_point else "int64")
        values = make(tuple(tensor.shape), dtype=kind)
        return values.tolist() if name == "tolist" else values


_NUMBERS = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.from_numpy}
_DATA = {torch.randint, torch.randperm, torch.arange, torch.from_numpy}
"""Functions whose result stays real if no device is named: indices of samples, and data."""


def widened(value: Any) -> Any:
    """Return a tensor of 16 bits in float32."""
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_half else value


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return what CUDA's fused attention returns: flash attention in 16 bits without a mask, else the efficient one."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value))
    ops = torch.ops.aten
    if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16) and query.dim() == 4:
        flash = ops._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if enable_gqa and key.shape[1] != query.shape[1]:
        copies = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(copies, 1) for tensor in (key, value))
    if query.dim() != 4:
        return ops._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[
            0
        ]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:2], query.shape[2], key.shape[2])
    needs_grad = any(tensor.requires_grad for tensor in (query, key, value))
    efficient = ops._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale)[0]


# ---- torch: modules, optimizers, autocast, compile, checkpoints ------------------------------------------------------


def stand_in_for_torch(recorder: Recorder, notes: dict[str, int]) -> None:
    """Replace what would compile, need a CUDA device, write a checkpoint, or move real memory."""
    _autocast_of_cuda()
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
    moved = torch.nn.Module.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(gpu() if type(value) is int else value for value in args)
        return moved(self, *args, **kwargs)

    torch.nn.Module.to = to  # type: ignore[method-assign]

    def without_compiler(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        notes["torch.compile"] = notes.get("torch.compile", 0) + 1
        recorder.pads_products = True
        return model if model is not None else lambda function: function

    torch.compile = without_compiler
    torch.nn.Module.compile = without_compiler  # type: ignore[method-assign, assignment]

    def save(*args: Any, **kwargs: Any) -> None:
        notes["torch.save"] = notes.get("torch.save", 0) + 1

    torch.save = save
    _not_fake()
    torch.nn.functional.scaled_dot_product_attention = attention  # also where torch's own functions call it
    _resizing(recorder)
    _loaders()
    torch.set_default_device = lambda device: None
    _foreach_optimizers()
    own = FakeTensor.device

    def device(self: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] == "torch" or caller.startswith("frog.plan.program") or self.fake_device.type == "meta":
            return own.fget(self)  # type: ignore[attr-defined]
        return gpu()

    def on_cuda(self: Any) -> bool:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        return caller.split(".")[0] != "torch"

    FakeTensor.is_cuda = property(on_cuda)  # type: ignore[assignment]
    FakeTensor.device = property(device, own.fset)  # type: ignore[assignment, attr-defined]


def _not_fake() -> None:
    """Tell a program that asks whether a tensor is fake that it is not: libraries take fake ones for an export."""

    class NotFake:
        """No tensor is one."""

    def find(name: str) -> Any:
        if name != "FakeTensor":
            raise AttributeError(name)
        return FakeTensor if is_frog_or_torch(sys._getframe(1).f_code.co_filename) else NotFake

    del torch._subclasses.FakeTensor
    torch._subclasses.__getattr__ = find  # type: ignore[method-assign]


def _resizing(recorder: Recorder) -> None:
    original = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        if self.nbytes() != size and self.device.type == "meta":  # the storage of a fake tensor
            recorder.resize(self, size)
        return original(self, size)

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]


def _loaders() -> None:
    """Load data in this process, into memory that is not pinned."""
    import torch.utils.data as data

    original = data.DataLoader.__init__

    @functools.wraps(original)
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        alone = dict.fromkeys(("prefetch_factor", "multiprocessing_context"))
        kwargs |= {"num_workers": 0, "pin_memory": False, "persistent_workers": False} | alone
        original(self, *args[:5], **kwargs)

    data.DataLoader.__init__ = start  # type: ignore[method-assign]


def _autocast_of_cuda() -> None:
    original = torch.autocast.__init__

    @functools.wraps(original)
    def start(self: Any, device_type: str = "cuda", dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if is_cuda(device_type):
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = start  # type: ignore[method-assign]


def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Apply a conversion to a module, with new parameters in place of fake ones that change."""
    if recurse:
        for child in self.children():
            child._apply(fn)
    for key, param in self._parameters.items():
        if param is None:
            continue
        new = getattr(param, "_frog_converted", None)
        if new is None:
            with torch.no_grad():
                value = fn(param)
            if value is param or (value.dtype == param.dtype and value.device == param.device):
                continue
            new = torch.nn.Parameter(value, param.requires_grad)
            param._frog_converted = new  # for a parameter that several modules share
        self._parameters[key] = new
    for key, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[key] = fn(buffer)
    return self


def _foreach_optimizers() -> None:
    """Let optimizers and gradient clipping choose the multi-tensor kernels that they choose on CUDA."""
    import torch.nn.utils.clip_grad as clipping
    import torch.optim.optimizer as optimizers
    from torch.utils import _foreach_utils

    def supported() -> list[str]:
        return ["cuda", "cpu"]

    for module in (clipping, optimizers, _foreach_utils):
        if hasattr(module, "_get_foreach_kernels_supported_devices"):
            setattr(module, "_get_foreach_kernels_supported_devices", supported)  # noqa: B010
    for module in (optimizers, _foreach_utils):
        kinds = getattr(module, "_foreach_supported_types", None)
        if isinstance(kinds, list) and FakeTensor not in kinds:
            kinds.append(FakeTensor)


# ---- torch.distributed -----------------------------------------------------------------------------------------------


def stand_in_for_distributed(
    recorder: Recorder, office: PostOffice, world_size: int, catch_up: Callable[[], None]
) -> None:
    """Replace the process group, meshes, messages, DDP, and what of FSDP and DTensor needs real tensors.

    Raises:  CannotFake if this version of torch has no fake process group.
    """
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError:
        raise CannotFake(f"torch {torch.__version__} has no fake process group (torch.testing._internal)") from None
    start = dist.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            start("fake", store=FakeStore(), rank=office.rank, world_size=world_size)

    new_group = dist.new_group

    def group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return new_group(ranks, use_local_synchronization=True)

    _replace(start, init_process_group)
    _replace(new_group, group)
    _replace(dist.barrier, lambda *args, **kwargs: None)
    _replace(dist.get_backend, lambda group=None: "nccl")
    objects = dist.all_gather_object

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    _replace(objects, all_gather_object)
    _replace(dist.broadcast_object_list, lambda *args, **kwargs: None)
    for name, function in Messages(recorder, office, catch_up).functions().items():
        _replace(getattr(dist, name), function)
    _meshes()
    _fsdp(recorder)
    stand_in_for_fsdp1()
    torch.nn.parallel.DistributedDataParallel = Replicated  # type: ignore[misc]
    torch.nn.parallel.distributed.DistributedDataParallel = Replicated  # type: ignore[misc]


def _replace(old: Any, new: Any) -> None:
    """Replace a function in every module of torch.distributed that has its name."""
    name = old.__name__
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.distributed") and getattr(module, name, None) is old:
            setattr(module, name, new)


def _meshes() -> None:
    import torch.distributed.device_mesh as meshes
    import torch.distributed.tensor

    init, mesh_init = meshes.init_device_mesh, meshes.DeviceMesh.__init__

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if not dist.is_initialized():
            dist.init_process_group()
        with _disable_current_modes(), torch.device("cpu"):
            return init("cpu", *args, **kwargs)

    def make(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            mesh_init(self, "cpu", *args, **kwargs)

    _replace(init, init_device_mesh)
    meshes.DeviceMesh.__init__ = make  # type: ignore[method-assign]
    for name in ("__getitem__", "_flatten", "get_group", "get_local_rank", "size"):
        if hasattr(meshes.DeviceMesh, name):
            setattr(meshes.DeviceMesh, name, _without_modes(getattr(meshes.DeviceMesh, name)))


def _without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


def _fsdp(recorder: Recorder) -> None:
    """Run `fully_shard`, which searches the mesh's ranks, without modes; note where a layer's weights are awaited."""
    import torch.distributed.fsdp as fsdp
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    shard, wait = fsdp.fully_shard, FSDPParamGroup.wait_for_unshard

    @functools.wraps(shard)  # with its attribute `state`, by which FSDP finds a module's state
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mesh") is None and not args:
            kwargs["mesh"] = sys.modules["torch.distributed.device_mesh"].init_device_mesh(
                "cuda", (dist.get_world_size(),)
            )
        with _disable_current_modes():
            return shard(module, *args, **kwargs)

    def wait_for_unshard(self: Any) -> Any:
        recorder.rows.append(["wait", f"unshard {id(self)}"])
        return wait(self)

    _replace(shard, fully_shard)
    FSDPParamGroup.wait_for_unshard = wait_for_unshard  # type: ignore[method-assign]
    original = getattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", None)
    if original is not None:
        ShardingPropagator._propagate_tensor_meta_non_cached = _without_modes(original)  # type: ignore[method-assign]


_OriginalDDP = torch.nn.parallel.DistributedDataParallel


class Replicated(_OriginalDDP):
    """DDP with hooks in Python: each bucket is all-reduced when its gradients are complete, in reverse order."""

    recorder: Recorder

    def __init__(self, module: Any, *args: Any, bucket_cap_mb: float | None = None, **kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module = module
        self.require_backward_grad_sync = True
        self.gradient_as_bucket_view = bool(kwargs.get("gradient_as_bucket_view"))
        self._waits = False
        params = [param for param in module.parameters() if param.requires_grad]
        most = _BUCKET_BYTES[0] if bucket_cap_mb is None else int(bucket_cap_mb * 2**20)
        self._buckets: list[list[Any]] = []
        self._sizes: list[int] = []
        for param in reversed(params):
            size = param.numel() * param.element_size()
            limit = min(_BUCKET_BYTES[1], most) if len(self._buckets) == 1 else most
            if not self._buckets or self._sizes[-1] >= limit:
                self._buckets.append([])
                self._sizes.append(0)
            self._buckets[-1].append(param)
            self._sizes[-1] += size
        self._flat = [torch.empty(sum(p.numel() for p in bucket), dtype=bucket[0].dtype) for bucket in self._buckets]
        self.recorder.classify(self._flat, "gradients")
        self._missing = [len(bucket) for bucket in self._buckets]
        for index, bucket in enumerate(self._buckets):
            for param in bucket:
                param.register_post_accumulate_grad_hook(functools.partial(self._ready, index))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate without a reduction."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def _ready(self, index: int, param: Any) -> None:
        if not self.require_backward_grad_sync:
            return
        self._missing[index] -= 1
        if not self._waits:
            self._waits = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if self._missing[index] == 0:
            if not self.gradient_as_bucket_view:
                torch._foreach_copy_(self._parts(index), [param.grad for param in self._buckets[index]])
            dist.all_reduce(self._flat[index], async_op=True)

    def _parts(self, index: int) -> list[Any]:
        bucket = self._buckets[index]
        parts = torch.split(self._flat[index], [param.numel() for param in bucket])
        return [part.view(param.shape) for part, param in zip(parts, bucket, strict=True)]

    def _finish(self) -> None:
        self.recorder.rows.append(["wait", "reduce"])
        if not self.gradient_as_bucket_view:
            for index, bucket in enumerate(self._buckets):
                torch._foreach_copy_([param.grad for param in bucket], self._parts(index))
        self._missing = [len(bucket) for bucket in self._buckets]
        self._waits = False
