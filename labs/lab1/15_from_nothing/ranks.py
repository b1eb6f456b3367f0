"""Run one training that is never killed, and many that are: in a step, or at a line that changes the folder."""

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from frog.learn.grader.words import count

NUM_STEPS, EVERY = 11, 3
"""Number of steps: two more than the last multiple of EVERY."""
SHORTER = 8
"""Number of steps of a run that is then extended; not a multiple of EVERY either."""
V = 7
NOT_WATCHED = (os.path.dirname(os.__file__), os.path.dirname(torch.__path__[0]), "<frozen ", "<ranks.py>")
"""Prefixes of the file names of code whose lines are not watched, except for those of WRITERS."""
WRITERS = ("pathlib.py", "shutil.py", "os.py", "serialization.py", "tempfile.py")


class Killed(BaseException):
    """Raised by a step instead of SIGKILL."""


class Model(nn.Module):
    """Two matrices with dropout between them; a buffer tracks the mean of the rows and is subtracted from them."""

    def __init__(self, init: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(init)
        self.first = nn.Parameter(torch.randn(V, 6, generator=generator))
        self.second = nn.Parameter(torch.randn(6, V, generator=generator))
        self.register_buffer("mean", torch.zeros(6))
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.first[inputs]
        if self.training:
            self.mean = 0.8 * self.mean + 0.2 * x.detach().mean((0, 1))
        return self.dropout(x - self.mean) @ self.second


def batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 1000 * step)
    inputs, labels = torch.randint(V, (2, 3, 5), generator=generator)
    return inputs, labels


def start(
    learner: ModuleType,
    seed: int,
    folder: Path,
    *,
    num_steps: int = NUM_STEPS,
    kill_at: int | None = None,
    seen: Callable[[int], None] = int,
) -> dict[str, Any]:
    """Call the learner's train with new objects; return losses or error, the requested steps, and the final weights.

    Also record model, optimizer and random state when the batch of a step is requested.
    """
    torch.manual_seed(seed + 17)
    model, taken, read = Model(seed).eval(), [], []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def get_batch(step: int) -> tuple[Tensor, Tensor]:
        if step == kill_at or len(taken) > 3 * NUM_STEPS:
            raise Killed
        taken.append(step)
        read.append(picture(model, optimizer) if seen is not int or len(taken) == 1 else {})
        seen(step)
        return batch(seed, step)

    losses, error = None, ""
    try:
        losses = learner.train(folder, model, optimizer, get_batch, num_steps, EVERY)
    except Killed:
        pass
    except NotImplementedError:
        raise
    except Exception as caught:
        if not any(folder.iterdir()):
            raise
        error = ": ".join([type(caught).__name__, *str(caught).splitlines()[:1]])[:150]
    return {"losses": losses, "error": error, "taken": taken, "read": read, "weights": dict(model.state_dict())}


def picture(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return copies of everything that the next step reads."""
    averages = {
        f"{name} {key}": torch.as_tensor(value).clone()
        for name, weight in model.named_parameters()
        for key, value in optimizer.state.get(weight, {}).items()
    }
    return {
        "weights": {name: weight.detach().clone() for name, weight in model.named_parameters()},
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "averages": averages,
        "random numbers": {"state": torch.get_rng_state()},
    }


def fresh(seed: int) -> dict[str, dict[str, Tensor]]:
    """Return what the first step of a start reads if nothing has been loaded."""
    torch.manual_seed(seed + 17)
    model = Model(seed)
    return picture(model, torch.optim.AdamW(model.parameters(), lr=0.05))


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    seed, folder = case["seed"], Path("run").resolve()
    pictures = Pictures(folder)
    found: dict[str, Any] = {"never": pictures.during(lambda: start(learner, seed, folder, seen=pictures.at))}
    found["saved"], found["fresh"] = pictures.saved, fresh(seed)
    found["again"] = start(learner, seed, folder)
    found["killed"] = []
    numbers = random.Random(seed)
    for first in range(1, NUM_STEPS + 1, EVERY):
        last = min(first + EVERY - 1, NUM_STEPS)
        kill_at = last if first == 1 + EVERY else numbers.randint(first, last)
        clear(folder)
        start(learner, seed, folder, kill_at=kill_at)
        found["killed"].append({"at": f"step {kill_at}", "step": kill_at, **start(learner, seed, folder)})
    clear(folder)
    start(learner, seed, folder, num_steps=SHORTER)
    found["longer"] = start(learner, seed, folder)
    found["pictures"] = []
    for copy, step in zip(pictures.taken, pictures.steps, strict=True):
        shutil.rmtree(folder)
        shutil.copytree(copy, folder, symlinks=True)
        files = listing(folder)
        about = {"at": f"a save, when the folder held {files}", "before": (step - 1) // EVERY * EVERY}
        found["pictures"].append({**about, **start(learner, seed, folder)})
    return found


class Pictures:
    """Copies of a folder, one for each state in which a kill could leave it."""

    def __init__(self, folder: Path) -> None:
        clear(folder)
        self._ahead: dict[str, int] = {}
        self.folder, self.taken, self._last = folder, [], state_of(folder)
        self.step, self.steps = 0, []
        self.saved, self._before = [], self._last
        """Return the steps after which the folder had changed when the next step began."""

    def at(self, step: int) -> None:
        """Record that the run has reached this step."""
        self.step = step
        if (now := state_of(self.folder)) != self._before:
            self._before = now
            self.saved.append(step - 1)

    def during(self, function: Callable[[], Any]) -> Any:
        """Call the function, and check the folder before each line that may write files."""
        _watching.append(self)
        try:
            value = function()
            if _watching != [self]:
                raise RuntimeError("the list of what ranks.py watches was changed")
            return value
        finally:
            _watching.clear()

    def look(self, file: str) -> bool:
        """Take a snapshot if the folder has changed; return True if the lines of this file may change it."""
        if file.startswith(NOT_WATCHED) and file.rpartition("/")[2] not in WRITERS:
            return False
        if not self.is_like_others() and (now := state_of(self.folder)) != self._last:
            self._last = now
            if sizes_in(self.folder) != self._ahead:
                self.taken.append(self.next_place())
                self.steps.append(self.step)
                shutil.copytree(self.folder, self.taken[-1], symlinks=True)
            self._ahead = {}
        return True

    def is_like_others(self) -> bool:
        """Return True for saves that are like earlier ones."""
        return 2 * EVERY < self.step < NUM_STEPS

    def next_place(self) -> Path:
        return self.folder.with_name(f"picture.{len(self.taken)}")

    def look_ahead(self, opened: Any, empties: bool) -> None:
        """Take a snapshot as if the file that is about to be opened were already empty."""
        path = Path(os.fsdecode(opened)).resolve() if isinstance(opened, str | bytes | os.PathLike) else self.folder
        if (
            self.is_like_others()
            or self.folder not in path.parents
            or not path.parent.is_dir()
            or (path.exists() and not empties)
        ):
            return
        target = self.next_place()
        shutil.copytree(self.folder, target, symlinks=True)
        target.joinpath(path.relative_to(self.folder)).write_bytes(b"")
        self._ahead = sizes_in(target)
        self.taken.append(target)
        self.steps.append(self.step)


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def sizes_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def state_of(folder: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of everything in a folder."""
    entries = []
    for root, folders, files in os.walk(folder):
        for name in files:
            about = os.lstat(os.path.join(root, name))
            entries.append((os.path.join(root, name), about.st_size, about.st_mtime_ns))
        entries += [(os.path.join(root, name), -1, 0) for name in folders]
    return sorted(entries)


def listing(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return (
        ", ".join(f"{path.relative_to(folder)} ({count(path.stat().st_size, 'byte')})" for path in files[:6])
        or "nothing"
    )


_watching: list[Pictures] = []


def trace(frame: FrameType, event: str, arg: Any) -> Any:
    """Called at each executed function and line."""
    return trace if _watching and _watching[0].look(frame.f_code.co_filename) else None


def hear(event: str, args: tuple[Any, ...]) -> None:
    """Called at each event of the interpreter: opening a file can empty it, and one line of code can do both."""
    if event == "open" and _watching and isinstance(args[2], int) and args[2] & (os.O_TRUNC | os.O_CREAT):
        watching = _watching.pop()
        try:
            watching.look_ahead(args[0], bool(args[2] & os.O_TRUNC))
        finally:
            _watching.append(watching)


if work.__code__.co_filename == "<ranks.py>":  # in a rank's process, which may not do this from now on
    sys.settrace(trace)
    sys.addaudithook(hear)
