"""The functions of torch that a check watches: each does what it did, and its call is recorded with the user's line."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import frames  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints, module_facts
from .step_recorder import StepRecorder
from .user_lines import line_of
from .watched_collectives import watch_collectives
from .watched_states import watch_states

_WRITERS = ("add_", "sub_", "mul_", "div_", "clamp_", "clamp_min_", "clamp_max_", "copy_", "fill_", "zero_")
"""Methods of tensors with which programs change weights by hand."""
_GRADIENT_WRITERS = ("mul_", "div_", "copy_", "clamp_", "__imul__", "__itruediv__")
"""Methods of tensors with which programs scale gradients by hand."""
_INITIALIZATIONS = os.path.join("torch", "nn", "init.py")
_LOADERS = (os.path.join("utils", "data", "dataloader.py"), os.path.join("accelerate", "data_loader.py"))
"""Files of torch and accelerate that iterate over a DataLoader for the program."""


def watch(recorder: StepRecorder) -> None:
    """Add the hooks and watch the functions. Runs once, when the program has imported torch."""
    try:
        _watch(recorder)
    except Exception as error:  # another version of torch
        recorder.stop(f"{type(error).__name__}: {error}")


def _watch(recorder: StepRecorder) -> None:
    torch: Any = sys.modules["torch"]
    recorder.hook_modules()
    optimizer: Any = sys.modules["torch.optim.optimizer"]
    optimizer.register_optimizer_step_pre_hook(recorder.before_step)
    optimizer.register_optimizer_step_post_hook(recorder.after_step)
    watched = _Functions(recorder)
    watched.watch_backward(torch)
    watched.watch_made(torch)
    watched.watch_parameters(torch)
    watched.watch_modules(torch)
    watch_states(recorder, watched.wrap)
    watched.watch_clipping(torch)
    watched.watch_scaling()
    watched.watch_checkpoints()
    watched.watch_schedules()
    watched.watch_loaders()
    if torch.distributed.is_available():
        watched.watch_ddp()
        watch_collectives(recorder, watched.wrap)
    atexit.register(recorder.at_end)


class _Functions:
    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._watches_accelerate = False

    def wrap(self, owners: list[Any], name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function in all places under which programs find it."""
        original = getattr(owners[0], name, None)
        if original is None:
            return
        new = functools.wraps(original)(make(original))
        for owner in owners:
            if getattr(owner, name, None) is original:
                setattr(owner, name, new)

    def watch_backward(self, torch: Any) -> None:
        """Watch `loss.backward()` and `torch.autograd.backward`, which the first calls."""
        recorder = self._recorder

        def make(original: Any) -> Any:
            def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
                if recorder.in_backward or not recorder.is_here():
                    return original(loss, *args, **kwargs)
                first = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
                retains = bool(kwargs.get("retain_graph"))
                first = first if isinstance(first, torch.Tensor) else None
                recorder.on_backward(first, line_of(sys._getframe(1)), retains)
                try:
                    return original(loss, *args, **kwargs)
                finally:
                    recorder.after_backward()

            return backward

        self.wrap([torch.Tensor], "backward", make)
        self.wrap([torch.autograd], "backward", make)

    def watch_made(self, torch: Any) -> None:
        """Watch where optimizers and parameters are made."""
        recorder = self._recorder

        def make_init(original: Any) -> Any:
            def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                if recorder.is_here():
                    recorder.objects.on_made(optimizer, line_of(sys._getframe(1)), is_optimizer=True)

            return __init__

        def make_scheduler(original: Any) -> Any:
            def __init__(scheduler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
                original(scheduler, optimizer, *args, **kwargs)
                if recorder.is_here():
                    recorder.objects.on_schedule(optimizer, line_of(sys._getframe(1)))

            return __init__

        self.wrap([torch.optim.Optimizer], "__init__", make_init)
        self.wrap([torch.optim.lr_scheduler.LRScheduler], "__init__", make_scheduler)
        kind = torch.nn.Parameter
        new = kind.__new__

        @functools.wraps(new)
        def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = new(cls, *args, **kwargs)
            if recorder.is_here():
                recorder.objects.on_made(made, line_of(sys._getframe(1)))
            return made

        kind.__new__ = staticmethod(__new__)

        def make_seed(original: Any) -> Any:
            def manual_seed(seed: Any) -> Any:
                result = original(seed)
                if recorder.is_here() and not recorder.objects.has_stepped:
                    recorder.objects.seed = [int(seed) % 2**53, line_of(sys._getframe(1))]
                return result

            return manual_seed

        self.wrap([torch, torch.random], "manual_seed", make_seed)

        def make_random(original: Any) -> Any:
            def set_rng_state(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                caller = sys._getframe(1)
                if recorder.is_here() and frames.is_user_file(caller.f_code.co_filename):
                    recorder.on_call({"call": "random_set", "line": line_of(caller)})
                return result

            return set_rng_state

        self.wrap([torch, torch.random], "set_rng_state", make_random)

    def watch_parameters(self, torch: Any) -> None:
        """Watch what decides which parameters are trained, until the first step, and what changes them by hand."""
        recorder, kind = self._recorder, torch.nn.Parameter
        set_attribute, requires_grad_ = kind.__setattr__, torch.Tensor.requires_grad_

        def __setattr__(parameter: Any, name: str, value: Any) -> None:
            set_attribute(parameter, name, value)
            if name == "requires_grad" and recorder.is_here():
                recorder.objects.on_selected(parameter, line_of(sys._getframe(1)))

        @functools.wraps(requires_grad_)
        def selects(parameter: Any, *args: Any, **kwargs: Any) -> Any:
            result = requires_grad_(parameter, *args, **kwargs)
            if recorder.is_here():
                recorder.objects.on_selected(parameter, line_of(sys._getframe(1)))
            return result

        def make_writer(original: Any) -> Any:
            @functools.wraps(original)
            def writes(parameter: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(parameter, *args, **kwargs)
                if recorder.is_here() and not recorder.is_in_step:
                    recorder.writers.on_written(parameter, sys._getframe(1))
                return result

            return writes

        kind.__setattr__, kind.requires_grad_ = __setattr__, selects
        recorder.until_learning = [(kind, "__setattr__"), (kind, "requires_grad_")]

        def make_gradient_writer(original: Any) -> Any:
            @functools.wraps(original)
            def writes(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(tensor, *args, **kwargs)
                if recorder.is_here():
                    recorder.writers.on_gradient_written(tensor, sys._getframe(1))
                return result

            return writes

        names = [name for name in _GRADIENT_WRITERS if hasattr(torch.Tensor, name)]
        recorder.writers.of_gradients = [(name, make_gradient_writer(getattr(torch.Tensor, name))) for name in names]
        recorder.writers.of_parameters = [(kind, name, make_writer(getattr(torch.Tensor, name))) for name in _WRITERS]
        recorder.writers.watch_parameters()

    def watch_modules(self, torch: Any) -> None:
        """Watch the modes of modules, their moves after DDP has wrapped them, and what draws their weights."""
        recorder = self._recorder

        def make_train(original: Any) -> Any:
            def train(module: Any, *args: Any, **kwargs: Any) -> Any:
                recorder.objects.modes_set.add(module)
                return original(module, *args, **kwargs)

            return train

        def make_apply(original: Any) -> Any:
            def _apply(module: Any, *args: Any, **kwargs: Any) -> Any:
                before = recorder.objects.kinds_in_ddp(module) if recorder.is_here() else None
                kind = _kind_of(module)
                result = original(module, *args, **kwargs)
                new_kind = _kind_of(module)
                if kind != new_kind and new_kind in (torch.bfloat16, torch.float16):
                    recorder.objects.lowered = line_of(sys._getframe(1))
                if before and recorder.objects.kinds_in_ddp(module) != before:
                    recorder.on_call({"call": "moved", "line": line_of(sys._getframe(1))})
                return result

            return _apply

        def make_draw(original: Any) -> Any:
            def draw(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                is_parameter = isinstance(tensor, torch.nn.Parameter) and recorder.is_here()
                if is_parameter and not recorder.objects.has_stepped and _is_drawn_by_user(sys._getframe(1)):
                    recorder.objects.on_drawn(tensor, line_of(sys._getframe(1)))
                return original(tensor, *args, **kwargs)

            return draw

        self.wrap([torch.nn.Module], "train", make_train)
        self.wrap([torch.nn.Module], "_apply", make_apply)
        for name in ("normal_", "uniform_"):
            self.wrap([torch.Tensor], name, make_draw)

    def watch_clipping(self, torch: Any) -> None:
        """Watch the clipping of gradients by their norm."""
        recorder = self._recorder

        def make(original: Any) -> Any:
            def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
                given: Any = args[0] if args else kwargs.get("parameters")
                if given is not None and not isinstance(given, (list, tuple, torch.Tensor)):
                    given = list(given)  # a generator can be read once
                    args, kwargs = ((given, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": given})
                untouched = recorder.is_here() and recorder.uses_added_gradients()
                norm = original(*args, **kwargs)
                if recorder.is_here():
                    record: dict[str, Any] = {"call": "clip", "line": line_of(sys._getframe(1))}
                    record["untouched"] = untouched
                    kind = args[2] if len(args) > 2 else kwargs.get("norm_type", 2.0)
                    if kind == 2.0 and isinstance(given, (list, tuple)):
                        record.update(recorder.objects.clipped(list(given)))
                    limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
                    with recorder.reading():
                        if recorder.is_sampled and not hasattr(norm, "_local_tensor"):
                            record["norm"] = fingerprints.finite_or_none(float(norm))
                            record["limit"] = float(limit) if limit is not None else None
                        recorder.on_call(record)
                return norm

            return clip_grad_norm_

        self.wrap([torch.nn.utils.clip_grad, torch.nn.utils], "clip_grad_norm_", make)

    def watch_scaling(self) -> None:
        """Watch when a GradScaler divides gradients by its scale, and when it steps an optimizer."""
        recorder = self._recorder
        try:
            scaler = importlib.import_module("torch.amp.grad_scaler").GradScaler
        except (ImportError, AttributeError):  # torch before 2.3
            return
        inside: list[Any] = []

        def make_unscale(original: Any) -> Any:
            def unscale_(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if owner._enabled and not inside and recorder.is_here():
                    recorder.on_call({"call": "unscale", "line": line_of(sys._getframe(1))})
                return original(owner, *args, **kwargs)

            return unscale_

        def make_step(original: Any) -> Any:
            def step(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if owner._enabled and type(owner).unscale_ is scaler.unscale_ and recorder.is_here():
                    with recorder.reading():
                        scale = float(owner.get_scale()) if recorder.is_sampled else None
                        recorder.on_call({"call": "scaled_step", "line": line_of(sys._getframe(1)), "value": scale})
                inside.append(owner)
                try:
                    return original(owner, *args, **kwargs)
                finally:
                    inside.pop()

            return step

        def make_scale(original: Any) -> Any:
            def scale(owner: Any, outputs: Any) -> Any:
                result = original(owner, outputs)
                if owner._enabled and type(owner).unscale_ is scaler.unscale_ and recorder.is_here():
                    recorder.on_scaled(owner, result)
                return result

            return scale

        def make_load(original: Any) -> Any:
            def load_state_dict(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if recorder.is_here():
                    recorder.on_call({"call": "load_scaler", "line": line_of(sys._getframe(1))})
                return original(owner, *args, **kwargs)

            return load_state_dict

        self.wrap([scaler], "unscale_", make_unscale)
        self.wrap([scaler], "step", make_step)
        self.wrap([scaler], "scale", make_scale)
        self.wrap([scaler], "load_state_dict", make_load)

    def watch_checkpoints(self) -> None:
        """Watch reentrant checkpoints in a training forward of which no input needs a gradient."""
        recorder, told = self._recorder, set()
        checkpoints = importlib.import_module("torch.utils.checkpoint")

        def make(original: Any) -> Any:
            def check_backward_validity(inputs: Any) -> Any:
                inputs = list(inputs)
                if (
                    recorder.is_here()
                    and recorder.learns
                    and not any(getattr(each, "requires_grad", False) for each in inputs)
                ):
                    line = line_of(sys._getframe(1))
                    if line is not None and tuple(line) not in told:
                        told.add(tuple(line))
                        recorder.on_call({"call": "checkpoint_without_gradient", "line": line})
                return original(inputs)

            return check_backward_validity

        self.wrap([checkpoints], "check_backward_validity", make)

    def watch_schedules(self) -> None:
        """Watch the steps of schedulers that change a learning rate."""
        recorder = self._recorder
        schedulers = importlib.import_module("torch.optim.lr_scheduler")

        def make(original: Any) -> Any:
            def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
                groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
                before = [group.get("lr") for group in groups]
                result = original(scheduler, *args, **kwargs)
                if recorder.is_here() and before != [group.get("lr") for group in groups]:
                    caller = sys._getframe(1)
                    recorder.on_call(
                        {
                            "call": "schedule",
                            "line": line_of(caller),
                            "direct": frames.is_user_file(caller.f_code.co_filename),
                            "optimizer": recorder.objects.optimizers.number(scheduler.optimizer),
                        }
                    )
                return result

            return step

        for kind in vars(schedulers).values():
            if isinstance(kind, type) and "step" in vars(kind) and hasattr(kind, "state_dict"):
                self.wrap([kind], "step", make)

    def watch_loaders(self) -> None:
        """Watch the batches of DataLoaders."""
        recorder = self._recorder
        data = importlib.import_module("torch.utils.data.dataloader")
        numbers: dict[Any, int] = {}

        def begin(iterator: Any, loader: Any, frame: Any) -> None:
            """Take a new iteration over a DataLoader."""
            line = line_of(frame)
            by_library = not frames.is_user_file(frames.file_past(frame, _LOADERS))
            # a program may make a new DataLoader for each epoch: the line and the data tell that it is the same
            number = numbers.setdefault((str(line), id(loader.dataset)), len(numbers))
            iteration = recorder.iterations[number] = recorder.iterations.get(number, -1) + 1
            iterator._frog_check = [number, iteration, 0]
            own = {"kind": "loader", "loader": number, "iteration": iteration, "line": line}
            left = {} if by_library else {"made": None}
            if loader.num_workers:
                recorder.write({**own, **_described(loader, iterator), **left})
            else:  # its sampler begins with the first batch: Lightning sets the epoch after iter()
                iterator._frog_begun = lambda: recorder.write({**own, **_described(loader, iterator), **left})

        def make_init(original: Any) -> Any:
            def __init__(iterator: Any, loader: Any) -> None:
                original(iterator, loader)
                if recorder.is_here():
                    self.watch_accelerate()
                    with recorder.reading():
                        begin(iterator, loader, sys._getframe(1))

            return __init__

        def make_reset(original: Any) -> Any:
            def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
                original(iterator, loader, first_iter)
                if not first_iter and recorder.is_here():  # workers that persist begin another epoch
                    with recorder.reading():
                        begin(iterator, loader, sys._getframe(1))

            return _reset

        def make_next(original: Any) -> Any:
            def __next__(iterator: Any) -> Any:
                begun = vars(iterator).pop("_frog_begun", None)
                if begun is not None and recorder.is_here():
                    with recorder.reading():
                        begun()
                batch = original(iterator)
                at = getattr(iterator, "_frog_check", None)
                if at is not None and recorder.is_here():
                    with recorder.reading():
                        recorder.on_batch(
                            {
                                "loader": at[0],
                                "iteration": at[1],
                                "batch": at[2],
                                "rows": fingerprints.rows(batch),
                                "sizes": fingerprints.sizes(batch),
                            }
                        )
                        at[2] += 1
                return batch

            return __next__

        def make_loader(original: Any) -> Any:
            def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
                original(loader, *args, **kwargs)
                if recorder.is_here():
                    object.__setattr__(loader, "_frog_made", line_of(sys._getframe(1)))

            return __init__

        self.wrap([data.DataLoader], "__init__", make_loader)
        self.wrap([data._BaseDataLoaderIter], "__init__", make_init)
        self.wrap([data._BaseDataLoaderIter], "__next__", make_next)
        self.wrap([data._MultiProcessingDataLoaderIter], "_reset", make_reset)

    def watch_accelerate(self) -> None:
        """Watch how a program gathers what it evaluates, once accelerate is there."""
        kind = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
        if kind is None or self._watches_accelerate:
            return
        self._watches_accelerate = True
        recorder = self._recorder

        def make(original: Any) -> Any:
            def gathers(*args: Any, **kwargs: Any) -> Any:
                caller = sys._getframe(1)
                if recorder.is_here() and frames.is_user_file(caller.f_code.co_filename):
                    given = fingerprints.tensors_of([args[1:], kwargs])
                    has_samples, name = any(each.dim() for each in given), original.__name__
                    if name == "reduce":
                        op = kwargs.get("reduction", args[2] if len(args) > 2 else "sum")
                        if op == "sum" and len(given) == 1 and given[0].numel() == 1:
                            with recorder.reading():
                                value = fingerprints.finite_or_none(float(given[0]))
                                recorder.on_call({"call": "summed", "line": line_of(caller), "value": value})
                    elif has_samples or name != "gather":
                        recorder.on_call({"call": name, "line": line_of(caller)})
                return original(*args, **kwargs)

            return gathers

        for name in ("gather", "gather_for_metrics", "reduce"):
            self.wrap([kind], name, make)

    def watch_ddp(self) -> None:
        """Watch which modules DDP wraps."""
        recorder = self._recorder
        parallel = importlib.import_module("torch.nn.parallel.distributed")

        def make(original: Any) -> Any:
            def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
                original(wrapper, *args, **kwargs)
                if recorder.is_here():
                    with recorder.reading():
                        line = line_of(sys._getframe(1))
                        recorder.objects.on_ddp(wrapper, line)
                        recorder.on_call({"call": "ddp", "line": line})

            return __init__

        def make_hook(original: Any) -> Any:
            def registers(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
                if recorder.is_here():
                    given = [*args, *kwargs.values()]
                    names = [str(getattr(each, "__qualname__", None) or getattr(each, "name", "")) for each in given]
                    recorder.on_call(
                        {"call": "comm_hook", "op": " ".join(names)[:200], "line": line_of(sys._getframe(1))}
                    )
                return original(wrapper, *args, **kwargs)

            return registers

        self.wrap([parallel.DistributedDataParallel], "__init__", make)
        for name in ("register_comm_hook", "_register_builtin_comm_hook"):
            self.wrap([parallel.DistributedDataParallel], name, make_hook)


def _is_drawn_by_user(frame: Any) -> bool:
    """True if the user's code draws a parameter, by torch's functions for it: a library may draw again what it made."""
    while frame is not None and (
        frame.f_code.co_name == "reset_parameters" or frame.f_code.co_filename.endswith(_INITIALIZATIONS)
    ):
        frame = frame.f_back
    return frame is not None and frames.is_user_file(frame.f_code.co_filename)


def _kind_of(module: Any) -> Any:
    """Return the type of a module's own first parameter."""
    return next((each.dtype for each in module._parameters.values() if each is not None), None)


def _is_split(batches: Any) -> bool:
    """True for accelerate's batch sampler that leaves out the batches of other ranks."""
    return type(batches).__name__ == "BatchSamplerShard" and getattr(batches, "num_processes", 1) > 1


def _fills_up(loader: Any) -> bool:
    """True if accelerate repeats samples, so that all ranks have batches of the same size."""
    batches, count = loader.batch_sampler, getattr(loader.dataset, "__len__", None)
    if not _is_split(batches) or count is None or not getattr(batches, "even_batches", False):
        return False
    together = (getattr(batches, "batch_size", None) or 1) * batches.num_processes
    return not getattr(batches, "drop_last", False) and len(loader.dataset) % together != 0


def _skipped(loader: Any) -> int | None:
    """Return how many batches a loader leaves out at its beginning, as that of accelerate's skip_first_batches.

    None: its sampler may begin anywhere or repeat samples, as one of the user's own, or a loader with a state.
    """
    batches, skipped = loader.batch_sampler, 0
    while type(batches).__name__ in ("BatchSamplerShard", "SkipBatchSampler"):
        skipped += getattr(batches, "skip_batches", 0)
        batches = batches.batch_sampler
    sampler = getattr(batches, "sampler", None)
    if not all(type(each).__module__.startswith("torch.utils.data") for each in (loader, batches)):
        return None
    if not type(sampler).__module__.startswith(("torch.utils.data", "accelerate.")):
        return None
    return None if getattr(sampler, "replacement", False) or _is_a(sampler, "_InfiniteConstantSampler") else skipped


def _is_a(sampler: Any, name: str) -> bool:
    """True if a sampler's class, or one that it extends, has this name."""
    return name in [kind.__name__ for kind in type(sampler).__mro__]


def _splits_again(batches: Any) -> bool:
    """True if accelerate leaves out batches of what a DistributedSampler of several ranks gives to this one."""
    sampler = getattr(getattr(batches, "batch_sampler", None), "sampler", None)
    return _is_split(batches) and _is_a(sampler, "DistributedSampler") and getattr(sampler, "num_replicas", 1) > 1


def _epoch_of_stream(loader: Any) -> int | None:
    """Return the epoch of a stream whose own iteration reads one; None for others."""
    code = getattr(type(loader.dataset).__iter__, "__code__", None) if hasattr(loader.dataset, "__iter__") else None
    names = [name for name in code.co_names if "epoch" in name] if code is not None else []
    epochs = [getattr(loader.dataset, name, None) for name in names]
    return next((each for each in epochs if type(each) is int), None)


def _num_batches(loader: Any) -> int | None:
    """Return how many batches a DataLoader has; None if it does not tell, as that of a stream."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _described(loader: Any, iterator: Any) -> dict[str, Any]:
    """Return how a DataLoader chooses its samples."""
    sampler = loader.sampler
    is_distributed, is_random = (_is_a(sampler, name) for name in ("DistributedSampler", "RandomSampler"))
    count = getattr(loader.dataset, "__len__", None)
    return {
        "sampler": type(sampler).__name__,
        "distributed": is_distributed,
        "epoch": getattr(sampler, "epoch", None) if is_distributed else _epoch_of_stream(loader),
        "persistent": bool(loader.num_workers and loader.persistent_workers),
        "shuffle": bool(getattr(sampler, "shuffle", False)) if is_distributed else is_random,
        "padded": bool(is_distributed and sampler.total_size > len(loader.dataset)),
        "samples": len(loader.dataset) if count is not None else None,
        "batches": _num_batches(loader),
        "workers": loader.num_workers,
        "size": getattr(loader, "batch_size", None),
        "split_again": _splits_again(loader.batch_sampler),
        "fills_up": _fills_up(loader),
        "skipped": _skipped(loader),
        "made": getattr(loader, "_frog_made", None),
        "generators": [] if loader.worker_init_fn is not None else module_facts.own_generators(loader.dataset),
        "seed": iterator._base_seed if loader.num_workers else None,
    }
