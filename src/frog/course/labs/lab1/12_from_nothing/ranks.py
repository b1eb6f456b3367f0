"""One run that is never killed, and many that are: in their steps, and at each line that changes the folder."""

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

NUM_STEPS, EVERY = 10, 3
V = 7


class Killed(BaseException):
    """What a step raises in place of SIGKILL."""


class Model(nn.Module):
    def __init__(self, init: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(init)
        self.first = nn.Parameter(torch.randn(V, 6, generator=generator))
        self.second = nn.Parameter(torch.randn(6, V, generator=generator))
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.dropout(self.first[inputs]) @ self.second


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
    """Call the learner's train with new objects: losses or error, steps whose batch it took, weights at the end."""
    torch.manual_seed(seed + 17)
    model, taken = Model(seed), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def get_batch(step: int) -> tuple[Tensor, Tensor]:
        if step == kill_at or len(taken) > 3 * NUM_STEPS:
            raise Killed
        taken.append(step)
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
        error = f"{type(caught).__name__}: {str(caught).splitlines()[0][:120] if str(caught) else ''}"
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return {"losses": losses, "error": error, "taken": taken, "weights": weights}


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    seed, folder = case["seed"], Path("run").resolve()
    pictures = Pictures(folder, Path(learner.__file__).name)
    found: dict[str, Any] = {"never": pictures.during(lambda: start(learner, seed, folder, seen=pictures.at))}
    found["again"] = start(learner, seed, folder)
    found["killed"] = []
    numbers = random.Random(seed)
    for first in range(1, NUM_STEPS + 1, EVERY):
        kill_at = numbers.randint(first, min(first + EVERY - 1, NUM_STEPS))
        clear(folder)
        start(learner, seed, folder, kill_at=kill_at)
        found["killed"].append({"at": f"step {kill_at}", "step": kill_at, **start(learner, seed, folder)})
    clear(folder)
    start(learner, seed, folder, num_steps=NUM_STEPS - 2)
    found["longer"] = start(learner, seed, folder)
    found["pictures"] = []
    for picture, step in zip(pictures.taken, pictures.steps, strict=True):
        shutil.rmtree(folder)
        shutil.copytree(picture, folder)
        files = listing(folder)
        about = {"at": f"a save, when the folder held {files}", "before": (step - 1) // EVERY * EVERY}
        found["pictures"].append({**about, **start(learner, seed, folder)})
    return found


class Pictures:
    """Copies of a folder, one for each state in which a kill could leave it."""

    def __init__(self, folder: Path, own: str) -> None:
        clear(folder)
        self.own = own
        self.folder, self.taken, self._last = folder, [], state_of(folder)
        self.step, self.steps = 0, []

    def at(self, step: int) -> None:
        """The run has come to this step."""
        self.step = step

    def during(self, function: Callable[[], Any]) -> Any:
        """Call the function, and look at the folder before each line that may write files."""
        _watching.append(self)
        try:
            return function()
        finally:
            _watching.clear()

    def look(self, file: str) -> bool:
        """Take a picture if the folder has changed; whether the lines of this file may change it."""
        name = file.rpartition("/")[2]
        if name != self.own and name not in ("pathlib.py", "shutil.py", "os.py", "serialization.py", "tempfile.py"):
            return False
        if (now := state_of(self.folder)) != self._last:
            self._last = now
            self.taken.append(self.folder.with_name(f"picture.{len(self.taken)}"))
            self.steps.append(self.step)
            shutil.copytree(self.folder, self.taken[-1])
        return True


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def state_of(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all that is in a folder."""
    entries = []
    for root, folders, files in os.walk(folder):
        for name in files:
            about = os.lstat(os.path.join(root, name))
            entries.append((os.path.join(root, name), about.st_size, about.st_mtime_ns))
        entries += [(os.path.join(root, name), -1, 0) for name in folders]
    return sorted(entries)


def listing(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return ", ".join(f"{path.relative_to(folder)} ({path.stat().st_size:,} bytes)" for path in files[:6]) or "nothing"


_watching: list[Pictures] = []


def trace(frame: FrameType, event: str, arg: Any) -> Any:
    """Called at each function and line that is run."""
    return trace if _watching and _watching[0].look(frame.f_code.co_filename) else None


if work.__code__.co_filename == "<ranks.py>":  # in a rank's process, to which that is forbidden from now on
    sys.settrace(trace)
