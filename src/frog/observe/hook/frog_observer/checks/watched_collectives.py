"""The collectives that a program itself calls: what it reduces, by which name, and whether it waits for it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from .. import frames  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints, user_lines
from .step_recorder import StepRecorder
from .user_lines import line_of

_COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")
_REDUCTIONS, _MOST_METRICS = ("all_reduce", "reduce"), 64
"""Reductions of at most so many elements may be of metrics."""
_MOST_FUNCTIONS = 3
"""Functions of the user's, from the call outwards, whose variables may tell what a metric is."""
_EXCHANGES = ("all_to_all", "all_to_all_single")
_MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def watch_collectives(recorder: StepRecorder, wrap: Callable[[list[Any], str, Any], None]) -> None:
    """Watch the collectives that the program itself calls."""
    distributed = importlib.import_module("torch.distributed")
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    for name in _COLLECTIVES:
        wrap([c10d, distributed], name, functools.partial(_collective, recorder, name))
    for name in ("wait", "get_future", "synchronize", "is_completed"):
        if hasattr(c10d, "Work"):
            wrap([c10d.Work], name, functools.partial(_waits, recorder))
    for name in _MESSAGES:
        wrap([c10d, distributed], name, functools.partial(_noted, recorder, "has_messages"))
    for name in _EXCHANGES:
        wrap([c10d, distributed], name, functools.partial(_noted, recorder, "has_exchanges"))


def _noted(recorder: StepRecorder, what: str, original: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        if recorder.is_here():
            setattr(recorder, what, True)
        return original(*args, **kwargs)

    return noted


def _collective(recorder: StepRecorder, name: str, original: Any) -> Any:
    def collective(*args: Any, **kwargs: Any) -> Any:
        if not recorder.is_here():
            return original(*args, **kwargs)
        given = (kwargs.get(name) for name in ("tensor", "output_tensor", "output"))
        tensor: Any = args[0] if args else next((each for each in given if each is not None), None)
        entered, what = None, {}
        if recorder.is_sampled and name in _REDUCTIONS and tensor.numel() <= _MOST_METRICS:
            with recorder.reading():
                what = _metric(recorder, tensor, sys._getframe(1))
        if name == "all_reduce" and recorder.is_sampled and not tensor.is_meta:
            with recorder.reading():
                entered = fingerprints.bits(tensor)
        result = original(*args, **kwargs)
        with recorder.reading():
            record = {
                "call": name,
                "line": line_of(sys._getframe(1)),
                "op": _reduction(args, kwargs),
                "dtype": str(tensor.dtype).rpartition(".")[2],
                "elements": tensor.numel(),
                "ranks": _ranks_of(args, kwargs),
                "after_backward": recorder.is_after_backward,
                **what,
            }
            if recorder.is_sampled and _is_complete(result) and not tensor.is_meta:
                record["bits"], record["entered"] = fingerprints.bits(tensor), entered
                record["words"] = recorder.words_without_vector(tensor) if name == "all_reduce" else []
                if record["words"]:
                    record["line"] = _line_of_layer(sys._getframe(1)) or record["line"]
            if hasattr(result, "wait") and frames.is_user_file(sys._getframe(1).f_code.co_filename):
                record["waited"] = False
                recorder.pending.append((result, record))
            recorder.on_call(record)
        return result

    return collective


def _metric(recorder: StepRecorder, tensor: Any, frame: Any) -> dict[str, Any]:
    """Return what a small tensor outside of modules is to the program: its value, and the names that go with it.

    named: variables that are keys of a mapping, as in a loop over it. orders: the keys of mappings with as many values.
    """
    if recorder.in_backward or recorder.is_in_module or tensor.is_meta:
        return {}
    local, facts = fingerprints.local_of(tensor), {}
    if local.numel() == 1 and local.is_floating_point() and frames.is_user_file(frame.f_code.co_filename):
        facts["value"] = fingerprints.finite_or_none(float(local))
    known = [(name, value) for _, name, value in user_lines.variables_of(frame, most_functions=_MOST_FUNCTIONS)]
    of_self = [vars(value).values() for name, value in known if name == "self" and hasattr(value, "__dict__")]
    every = [*(value for _, value in known), *(each for values in of_self for each in values)]
    mappings = [each for each in every if isinstance(each, dict) and 1 < len(each) <= _MOST_METRICS]
    named = {name: str(value)[:80] for name, value in reversed(known) if _is_key(value, mappings)}
    orders = [[str(key)[:80] for key in each] for each in mappings if len(each) == local.numel()]
    return {**facts, **({"named": named} if named else {}), **({"orders": orders[:4]} if orders else {})}


def _is_key(value: Any, mappings: list[Any]) -> bool:
    return type(value) in (str, int) and any(value in each for each in mappings)


def _waits(recorder: StepRecorder, original: Any) -> Any:
    def waits(work: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.pending and recorder.is_here():
            recorder.on_waited(work)
        return original(work, *args, **kwargs)

    return waits


def _line_of_layer(frame: Any) -> list[Any] | None:
    """Return the line of the user's module that is computing, past the functions that all layers share."""
    module: Any = sys.modules["torch.nn"].Module
    while frame is not None:
        if frame.f_code.co_name == "forward" and isinstance(frame.f_locals.get("self"), module):
            return line_of(frame)
        frame = frame.f_back
    return None


def _reduction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the name of the reduction that was asked for; None if the call names none."""
    kinds = ("RedOpType", "ReduceOp")
    given = [each for each in (*args, *kwargs.values()) if type(each).__name__ in kinds]
    return str(given[0]).rpartition(".")[2].rstrip(">").split(":")[0] if given else None


def _ranks_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    """Return the ranks of the group that a call names, by position or by name; None for all."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    groups = (each for each in (*args, *kwargs.values()) if isinstance(each, c10d.ProcessGroup))
    group = next(groups, None)
    return None if group is None or group is c10d.GroupMember.WORLD else c10d.get_process_group_ranks(group)


def _is_complete(result: Any) -> bool:
    """True if a collective has ended: an asynchronous one returns its work, and a coalesced one has not begun."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    coalesced = getattr(getattr(c10d, "_world", None), "pg_coalesce_state", None)
    return result is None and not coalesced
