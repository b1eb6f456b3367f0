"""Lines of the user's code: the innermost one of a call, and those that change parameters and gradients by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from .. import frames  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints

_MOST_WRITERS, _MOST_FRAMES = 8, 200
OPTIMIZED = 1
"""The flag of a function's code, whose variables are not those of a mapping."""


class HandWriters:
    """Watches methods of tensors that change parameters in sampled steps, and gradients before their optimizer steps.

    on_call: takes the record of a line when it changes something first in a step.
    """

    def __init__(self, on_call: Callable[[dict[str, Any]], None]) -> None:
        self._on_call = on_call
        self.of_parameters: list[tuple[Any, str, Any]] = []
        """Methods that change a parameter, with the class that gets them for sampled steps."""
        self.of_gradients: list[tuple[str, Any]] = []
        """Methods of torch.Tensor that change a gradient, watched between a backward pass and the step."""
        self._unwatched: dict[str, Any] = {}
        """What torch.Tensor itself has under their names while they are watched."""
        self._gradient_storages: set[Any] = set()
        self._written: set[Any] = set()
        """Lines of the user's that have changed a parameter or a gradient since the last step."""

    def watch_parameters(self) -> None:
        """Watch what changes parameters."""
        for owner, name, method in self.of_parameters:
            setattr(owner, name, method)

    def ignore(self) -> None:
        """Watch neither parameters nor gradients any more."""
        self.ignore_gradients()
        remove([(owner, name) for owner, name, _ in self.of_parameters])

    def forget(self) -> None:
        """Take lines again that were taken in the step that ends."""
        self._written.clear()

    def watch_gradients(self, gradients: list[Any]) -> None:
        """Watch what changes these gradients."""
        self._gradient_storages = {fingerprints.storage_of(each) for each in gradients if each is not None} - {None}
        kind = sys.modules["torch"].Tensor
        for name, method in self.of_gradients:
            self._unwatched[name] = vars(kind).get(name)
            setattr(kind, name, method)

    def ignore_gradients(self) -> None:
        """Watch no gradients any more."""
        kind = sys.modules["torch"].Tensor
        for name, own in self._unwatched.items():
            if own is not None:
                setattr(kind, name, own)
            elif name in vars(kind):
                delattr(kind, name)
        self._unwatched.clear()

    def on_gradient_written(self, tensor: Any, frame: Any) -> None:
        """Take a line of the user's that changes a gradient between a backward pass and the step."""
        if not self._unwatched or not frames.is_user_file(frame.f_code.co_filename):
            return
        line = line_of(frame)
        key = ("gradient", *(line or ()))
        if (
            key in self._written
            or len(self._written) >= _MOST_WRITERS
            or fingerprints.storage_of(tensor) not in self._gradient_storages
        ):
            return
        self._written.add(key)
        self._on_call({"call": "gradient_written", "line": line})

    def on_written(self, parameter: Any, frame: Any) -> None:
        """Take a line of the user's that changes a parameter outside of an optimizer's step."""
        if not frames.is_user_file(frame.f_code.co_filename):
            return
        line = line_of(frame)
        if line is not None and tuple(line) not in self._written and len(self._written) < _MOST_WRITERS:
            self._written.add(tuple(line))
            self._on_call({"call": "written", "line": line, "elements": parameter.numel()})


def remove(methods: list[tuple[Any, str]]) -> None:
    """Remove methods from classes that have them only to be watched: the classes inherit what they do."""
    while methods:
        owner, name = methods.pop()
        if name in vars(owner):
            delattr(owner, name)


def is_called_by_user(frame: Any) -> bool:
    """True if the user's code called a module, past torch's own functions that call it."""
    return frames.is_user_file(frames.file_past(frame, (os.path.join("nn", "modules", "module.py"),)))


def variables_of(frame: Any, most_functions: int = _MOST_FRAMES) -> Iterator[tuple[CodeType, str, Any]]:
    """Yield the variables of the user's functions that are running, innermost first, with the function's code."""
    for _ in range(_MOST_FRAMES):
        if frame is None or not most_functions:
            return
        code = frame.f_code
        is_function = bool(code.co_flags & OPTIMIZED)
        # a function that calls `locals` may keep the mapping that a look at its variables would change
        is_user = frames.is_user_file(code.co_filename)
        most_functions -= is_user
        if is_user and not (is_function and "locals" in code.co_names):
            known = frame.f_locals
            items = [(str(name), value) for name, value in list(known.items())]
            if is_function and type(known) is dict:
                known.clear()  # a copy: before 3.13, Python keeps it, and what is in it, as long as the function runs
            yield from [(code, name, value) for name, value in items if not name.startswith("__")]
        frame = frame.f_back


def line_of(frame: Any) -> list[Any] | None:
    """Return file, line and function of the innermost frame in the user's code."""
    while frame is not None:
        if frames.is_user_file(frame.f_code.co_filename):
            place = frames.place_of(frame)
            return [place["file"], place["line"], place["function"]]
        frame = frame.f_back
    return None
