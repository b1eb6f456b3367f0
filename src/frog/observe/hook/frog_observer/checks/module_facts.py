"""What a check asks of modules, losses, data sets and checkpoints without calling them."""

from __future__ import annotations

import contextlib
import sys
import zlib
from typing import Any

from .. import frames  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints

_MOST_NAMES, _MOST_STATISTICS, _MOST_GRAPH_NODES = 20, 400, 6
_OF_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_GENERATORS = ("random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState")


def random_state() -> int:
    """Return a checksum of the random states of the CPU and of the rank's GPU, which does not wait for the GPU."""
    torch: Any = sys.modules["torch"]
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # while a CUDA graph is captured
            states.append(torch.cuda.get_rng_state())
    return zlib.crc32(b"".join(each.numpy().tobytes() for each in states))


def autocasts() -> bool:
    """True inside of an autocast region, for whatever device."""
    torch: Any = sys.modules["torch"]
    try:
        return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    except TypeError:  # torch before 2.4
        return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def multiplies(module: Any) -> bool:
    """True for the layers that autocast computes in half precision."""
    nn: Any = sys.modules["torch.nn"]
    return isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))


def drops(module: Any) -> bool:
    """True for a layer of torch that sets elements to zero at random now."""
    dropout: Any = sys.modules["torch.nn.modules.dropout"]
    return isinstance(module, dropout._DropoutNd) and module.training and module.p > 0


def lowered_buffers(module: Any) -> list[str]:
    """Return the buffers in half precision of a module whose parameters are all in float32 or float64."""
    torch: Any = sys.modules["torch"]
    low = (torch.bfloat16, torch.float16)
    if any(each.dtype in low for each in module.parameters()):
        return []
    return [plain_name(name) for name, each in module.named_buffers() if each.dtype in low][:_MOST_NAMES]


def moments(optimizer: Any, most: int = 400) -> list[int | None]:
    """Return the bits of each parameter's state, of an optimizer without DTensors; None for a parameter without."""
    torch: Any = sys.modules["torch"]
    parameters = [each for group in optimizer.param_groups for each in group["params"]][:most]
    bits: list[int | None] = []
    for parameter in parameters:
        state = (optimizer.state.get(parameter) or {}).values()
        large = [each for each in state if isinstance(each, torch.Tensor) and each.shape == parameter.shape]
        known = [each for each in large if each.numel() > 1 and not hasattr(each, "_local_tensor")]
        bits.append(sum(fingerprints.bits(each) * 3**place for place, each in enumerate(known)) if known else None)
    return bits


def unset_mode(module: Any, were_set: Any) -> list[Any] | None:
    """Return the line of a user's `train()` that acts on its module and that nothing has called; None if there is none.

    were_set: the modules on which torch's own `train()` was called, as an override does with `super()`.
    """
    for each in module.modules():
        override = getattr(type(each).train, "__code__", None)
        if override is None or each in were_set or not frames.is_user_file(override.co_filename):
            continue
        if "__class__" in override.co_freevars and "train" in override.co_names:
            return [override.co_filename, override.co_firstlineno, override.co_name]
    return None


def estimates_norms(module: Any) -> bool:
    """True if a module has `spectral_norm`: it begins with a random estimate and improves it in training forwards."""
    hooks = (hook for each in module.modules() for hook in each._forward_pre_hooks.values())
    return any(type(hook).__name__ == "SpectralNorm" for hook in hooks)


def weights_of_others(module: Any, optimizers: Any) -> dict[str, int]:
    """Return the bits of a module's trained parameters that no optimizer of this rank holds, if one holds others."""
    held = {id(each) for _, optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
    others = [(name, each) for name, each in named if id(each) not in held]
    if len(others) == len(named) or any(hasattr(each, "_local_tensor") or each.is_meta for _, each in others):
        return {}
    return {name: fingerprints.bits(each) for name, each in others}


def own_statistics(module: Any, wrapper: Any) -> dict[str, int]:
    """Return the bits of the running statistics that a module begins an evaluation with, by the buffer's name.

    wrapper: DDP's. If the module is this wrapper and it sends the buffers of rank 0, they are not the rank's own.
    """
    if wrapper is module and wrapper.broadcast_buffers:
        return {}
    bits_by_name: dict[str, int] = {}
    for name, each in module.named_modules():
        statistics = ("running_mean", "running_var") if getattr(each, "track_running_stats", False) else ()
        for kind in statistics:
            buffer = getattr(each, kind, None)
            if buffer is not None and not buffer.is_meta and len(bits_by_name) < _MOST_STATISTICS:
                bits_by_name[plain_name(f"{name}.{kind}" if name else kind)] = fingerprints.bits(buffer)
    return bits_by_name


def are_ids(value: Any) -> bool:
    """True for a tensor of whole numbers, as those of words are."""
    torch: Any = sys.modules["torch"]
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() > 0


def zero_rows(ids: Any, total: Any) -> list[int]:
    """Return the words whose row in a tensor is zero; none if the tensor does not have a row for each word."""
    if not total.is_floating_point() or tuple(total.shape[:-1]) != tuple(ids.shape):
        return []
    return sorted({int(word) for word in ids[(total == 0).all(-1)].tolist()})[:_MOST_NAMES]


def own_generators(dataset: Any) -> list[str]:
    """Return the attributes of a data set that draw random numbers, of which each worker gets an equal copy."""
    names = []
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:200]:
        if f"{type(value).__module__}.{type(value).__name__}" in _GENERATORS:
            names.append(str(name))
    return names[:_MOST_NAMES]


def left_out(held: Any, modules: Any) -> tuple[list[str], bool]:
    """Return the trained parameters of a module that are missing where others are saved, and whether a layer has both.

    held: what is saved: a mapping, or one of mappings.
    """
    mappings = [held, *held.values()] if isinstance(held, dict) else []
    for saved in mappings:
        names = {plain_name(str(key)) for key in saved} if isinstance(saved, dict) else set()
        for _, module in modules if names else ():
            own = [(plain_name(name), each) for name, each in module.named_parameters(remove_duplicate=False)]
            known = {name for name, _ in own} | {plain_name(name) for name, _ in module.named_buffers()}
            kept = {id(each) for name, each in own if name in names}
            missing = [name for name, each in own if each.requires_grad and id(each) not in kept]
            if kept and missing and names <= known:
                layers = {name.rpartition(".")[0] for name in names}
                return missing[:_MOST_NAMES], any(name.rpartition(".")[0] in layers for name in missing)
    return [], False


def kind_of(module: Any) -> str | None:
    """Return what a wrapper of torch's or DeepSpeed's is: ddp, fsdp1, fsdp2 or deepspeed."""
    names = {kind.__name__ for kind in type(module).__mro__}
    kinds = {
        "DistributedDataParallel": "ddp",
        "FullyShardedDataParallel": "fsdp1",
        "FSDPModule": "fsdp2",
        "DeepSpeedEngine": "deepspeed",
    }
    return next((kind for name, kind in kinds.items() if name in names), None)


def reduction_of(module: Any) -> list[Any] | None:
    """Return the types in which wrappers reduce gradients and compute them, and over how many ranks; None if unsaid."""
    kind = kind_of(module)
    with contextlib.suppress(Exception):  # another version of torch or DeepSpeed
        if kind == "deepspeed":
            computed = next(module.parameters()).dtype
            return _types(module.communication_data_type, computed, module.dp_world_size)
        if kind in ("ddp", "fsdp1"):
            policy = module.mixed_precision
            return _types(policy.reduce_dtype or policy.param_dtype, policy.param_dtype, module.process_group.size())
        for each in module.modules():
            if kind_of(each) == "fsdp2":
                policy, parameter = each._get_fsdp_state()._mp_policy, next(each.parameters())
                computed = policy.param_dtype or parameter.dtype
                return _types(policy.reduce_dtype or computed, computed, parameter.device_mesh.size())
    return None


def _types(reduced: Any, computed: Any, ranks: int) -> list[Any] | None:
    names = [str(each or "").rpartition(".")[2] for each in (reduced, computed)]
    return [*names, int(ranks)] if names[0] else None


def is_wrapper(module: Any) -> bool:
    """True if a module only calls another one, whose name without what wrappers add is the same."""
    return kind_of(module) in ("ddp", "fsdp1", "deepspeed") or any(name in module._modules for name in _OF_WRAPPERS)


def untied_head(module: Any) -> Any:
    """Return the head's weight if a model of transformers ties it to its embedding and it is another tensor."""
    torch: Any = sys.modules["torch"]
    model = inside(module)
    config = getattr(model, "config", None)
    ties = getattr(config, "tie_word_embeddings", False) and getattr(model, "_tied_weights_keys", None)
    if not ties or not hasattr(model, "get_output_embeddings"):
        return None
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (getattr(each, "weight", None) for each in ends)
    if not isinstance(head, torch.nn.Parameter) or not isinstance(embedding, torch.nn.Parameter) or head is embedding:
        return None
    is_whole = not any(hasattr(each, "_local_tensor") or each.is_meta for each in (embedding, head))
    return head if is_whole and head.shape == embedding.shape and head.requires_grad else None


def adapters(module: Any) -> list[int]:
    """Return how many tensors of LoRA's adapters a model has, and how many of them need a gradient."""
    trained = [each.requires_grad for name, each in module.named_parameters() if "lora_" in name]
    return [len(trained), sum(trained)]


def inside(module: Any) -> Any:
    """Return the module that DDP and other wrappers call: a wrapper's own mode means nothing."""
    while kind_of(module) in ("ddp", "fsdp1", "deepspeed") and getattr(module, "module", None) is not None:
        module = module.module
    return module


def plain_name(name: str) -> str:
    """Return the name of a module or parameter without what wrappers add."""
    parts = [part for part in name.split(".") if part not in _OF_WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


def in_training(module: Any) -> bool:
    """True if some part of a module is in training mode, as dropout is that shall draw in an evaluation."""
    return any(each.training for each in module.modules())


def has_modes(module: Any) -> bool:
    """True if a module computes something else in evaluation mode than in training mode."""
    names = {kind.__name__ for kind in type(module).__mro__}
    return "_BatchNorm" in names or ("_DropoutNd" in names and getattr(module, "p", 0) > 0)


def graph_of(loss: Any) -> list[list[Any]]:
    """Return the last operations that made a loss: name, what a loss function reduced over, and its total weight."""
    node = getattr(loss, "grad_fn", None)
    nodes: list[list[Any]] = []
    while node is not None and len(nodes) < _MOST_GRAPH_NODES:
        weight = getattr(node, "_saved_total_weight", None)
        total = fingerprints.finite_or_none(float(weight)) if weight is not None and weight.numel() == 1 else None
        nodes.append([node.name(), getattr(node, "_saved_reduction", None), total, _factor_of(node)])
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        node = parents[0] if len(parents) == 1 else None
    return nodes


def _factor_of(node: Any) -> float | None:
    """Return the number by which an operation multiplies or divides; None for another operation."""
    if not node.name().startswith(("MulBackward", "DivBackward")):
        return None
    known = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    numbers = [each for each in known if each is not None]
    if len(numbers) != 1 or getattr(numbers[0], "numel", lambda: 0)() != 1:
        return None
    return fingerprints.finite_or_none(float(numbers[0]))
