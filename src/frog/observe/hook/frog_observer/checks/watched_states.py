"""What a program saves and loads: the calls of torch that do, each recorded with the user's line."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from . import module_facts
from .step_recorder import StepRecorder
from .user_lines import line_of


def watch_states(recorder: StepRecorder, wrap: Callable[[list[Any], str, Any], None]) -> None:
    """Watch what is saved and loaded."""
    torch: Any = sys.modules["torch"]

    def make_load(what: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def load_state_dict(owner: Any, *args: Any, **kwargs: Any) -> Any:
                rates = _rates_of_groups(owner) if what == "load_optimizer" else []
                before: Any = {}
                if what == "load_model" and recorder.is_here():
                    with recorder.reading():
                        before = recorder.loads.before_load(owner)
                result = original(owner, *args, **kwargs)
                if recorder.is_here():
                    differs: dict[str, Any] = {}
                    if what == "load_model":
                        with recorder.reading():
                            differs = recorder.loads.after_load(owner, before, line_of(sys._getframe(1)))
                    recorder.on_call(
                        {
                            "call": what,
                            **_restored(recorder, owner, rates, what),
                            **differs,
                            "class": type(owner).__name__,
                            "line": line_of(sys._getframe(1)),
                            "missing": list(getattr(result, "missing_keys", ()))[:20],
                            "unexpected": list(getattr(result, "unexpected_keys", ()))[:20],
                        }
                    )
                return result

            return load_state_dict

        return make

    wrap([torch.nn.Module], "load_state_dict", make_load("load_model"))
    wrap([torch.optim.Optimizer], "load_state_dict", make_load("load_optimizer"))
    schedulers = importlib.import_module("torch.optim.lr_scheduler")
    for kind in vars(schedulers).values():
        if isinstance(kind, type) and kind is not torch.optim.Optimizer and "load_state_dict" in vars(kind):
            wrap([kind], "load_state_dict", make_load("load_schedule"))

    def make_state(original: Any) -> Any:
        def state_dict(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.is_here() and recorder.objects.has_stepped:
                with recorder.reading():
                    number, moments = recorder.objects.optimizers.number(owner), module_facts.moments(owner)
                    recorder.on_call({"call": "state_of_optimizer", "optimizer": number, "moments": moments})
            return original(owner, *args, **kwargs)

        return state_dict

    wrap([torch.optim.Optimizer], "state_dict", make_state)

    def make_file(what: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def file_call(*args: Any, **kwargs: Any) -> Any:
                if what == "save" and recorder.is_beside():
                    with contextlib.suppress(Exception):  # what is saved may be of any kind
                        given = [*args, kwargs.get("obj"), kwargs.get("f")]
                        recorder.on_save_beside(given[0], given[1], line_of(sys._getframe(1)))
                result = original(*args, **kwargs)
                if recorder.is_here():
                    held = args[0] if args else kwargs.get("obj")
                    path = args[1] if len(args) > 1 else kwargs.get("f")
                    if what == "load":
                        held = result
                        path = args[0] if args else kwargs.get("f")
                    missing: list[str] = []
                    partly = False
                    if what == "load":
                        with recorder.reading():
                            recorder.loads.on_file(held)
                    if what == "save":
                        with recorder.reading():
                            missing, partly = module_facts.left_out(held, recorder.objects.roots)
                    recorder.on_call(
                        {
                            "call": what,
                            "missing": missing,
                            "partly": partly,
                            "path": os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else None,
                            "keys": [str(key)[:80] for key in held][:40] if isinstance(held, dict) else [],
                            "numbers": _numbers_of(held),
                            "rates": _rates_of(held),
                            "line": line_of(sys._getframe(1)),
                        }
                    )
                return result

            return file_call

        return make

    wrap([torch, torch.serialization], "save", make_file("save"))
    wrap([torch, torch.serialization], "load", make_file("load"))


def watch_safetensors(recorder: StepRecorder, module: Any) -> None:
    """Watch the files that safetensors reads, as soon as a program has imported it."""
    original = module.load_file

    @functools.wraps(original)
    def load_file(*args: Any, **kwargs: Any) -> Any:
        held = original(*args, **kwargs)
        if recorder.is_here():
            with recorder.reading():
                recorder.loads.on_file(held)
        return held

    module.load_file = load_file


def _numbers_of(held: Any) -> dict[str, int]:
    """Return the integers of a checkpoint, such as its epoch and step; those of a dictionary in it as "name.key"."""
    items = _first(held) if isinstance(held, dict) else []
    inner = [(f"{name}.{key}", value) for name, own in items if isinstance(own, dict) for key, value in _first(own)]
    return {str(key)[:80]: value for key, value in [*items, *inner] if type(value) is int and abs(value) < 2**53}


def _first(held: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(itertools.islice(held.items(), 40))


def _restored(recorder: StepRecorder, owner: Any, before: list[float], what: str) -> dict[str, Any]:
    """Return which optimizer's state was loaded, and its learning rates before and after."""
    if what != "load_optimizer":
        return {}
    moments: list[Any] = []
    updates: int | None = None
    with recorder.reading():
        moments = module_facts.moments(owner)
        steps = [_number(each.get("step")) for each in owner.state.values() if isinstance(each, dict)]
        updates = max((step for step in steps if step is not None), default=None)
    rates = {"rates": _rates_of_groups(owner), "rates_before": before, "updates": updates}
    return {"optimizer": recorder.objects.optimizers.number(owner), "moments": moments, **rates}


def _number(step: Any) -> int | None:
    """Return an optimizer's number of steps; None if it is none, as with a step for each row."""
    torch: Any = sys.modules["torch"]
    is_one = step.shape == () if isinstance(step, torch.Tensor) else isinstance(step, (int, float))
    return int(step) if is_one and math.isfinite(step) else None


def _rates_of_groups(optimizer: Any) -> list[float]:
    """Return the learning rates of an optimizer, one for each group."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return [float(rate) for rate in rates if rate is not None]


def _rates_of(held: Any) -> list[float]:
    """Return the learning rates of the optimizers whose states a checkpoint has, and those they began with."""
    states = held.values() if isinstance(held, dict) else ()
    groups = [state["param_groups"] for state in states if isinstance(state, dict) and "param_groups" in state]
    rates = [group.get(key) for each in groups for group in each for key in ("lr", "initial_lr")]
    return [float(rate) for rate in rates if isinstance(rate, (int, float))][:40]
