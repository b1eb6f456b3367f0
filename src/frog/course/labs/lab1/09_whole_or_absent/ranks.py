"""A save, with a picture of the folder at each line that changed it; what can be made of each picture."""

import os
import random
import shutil
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

STEPS = (9, 10)
"""Of the old checkpoint and the new. As text, 9 is the larger."""


def make_parts(seed: int) -> list[dict[str, bytes]]:
    """Of the old checkpoint, the new, the one that a next run saves in what a kill left, the new one's step again."""
    numbers = random.Random(seed)
    usual = ("model", "optimizer", "loader")
    each = (usual, usual, ("model", "optimizer", "scaler"), ("model", "average"))
    return [{name: numbers.randbytes(numbers.randint(9000, 12000)) for name in names} for names in each]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    old, new, next_one, repeated = make_parts(case["seed"])
    folder = Path("checkpoints").resolve()
    folder.mkdir()
    found: dict[str, Any] = {"empty": load(learner, folder), "pictures": []}
    for phase, (step, parts) in enumerate(zip(STEPS, (old, new), strict=True)):
        pictures = Pictures(folder, f"picture.{phase}")
        pictures.during(learner.save_checkpoint, folder, step, dict(parts))
        saved = load(learner, folder)
        keep = folder.with_name(f"kept{phase}")
        shutil.copytree(folder, keep)
        for picture in pictures.taken:
            put_back(picture, folder)
            about = {"phase": phase, "files": listing(folder)}
            about |= {"old": phase and holds(folder, old), "new": holds(folder, parts), "loaded": load(learner, folder)}
            about["changed"] = phase and changed(folder.with_name("kept0"), folder)
            about["again"] = save_again(learner, folder, STEPS[phase], next_one)
            found["pictures"].append(about)
        put_back(keep, folder)
        found[f"saved {phase}"] = saved
    return found | repeat(learner, folder, repeated, next_one)


def repeat(learner: ModuleType, folder: Path, parts: dict[str, bytes], next_one: dict[str, bytes]) -> dict[str, Any]:
    """The last step is saved once more: what can be loaded then, and in each picture."""
    pictures, error = Pictures(folder, "repeated"), None
    try:
        pictures.during(learner.save_checkpoint, folder, STEPS[1], dict(parts))
    except Exception as caught:
        error = f"{type(caught).__name__}: {str(caught)[:120]}"
    found: dict[str, Any] = {"repeated": error or load(learner, folder), "repeated pictures": []}
    for picture in pictures.taken:
        put_back(picture, folder)
        about = {"files": listing(folder), "loaded": load(learner, folder)}
        about["again"] = save_again(learner, folder, STEPS[1], next_one)
        found["repeated pictures"].append(about)
    return found


class Pictures:
    """Copies of a folder, one for each state in which a kill could leave it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.taken, self._last = folder, name, [], state_of(folder)

    def during(self, function: Any, *args: Any) -> None:
        """Call the function, and look at the folder before each line that is run."""
        _watching.append(self)
        try:
            function(*args)
        finally:
            _watching.clear()

    def look(self, file: str) -> bool:
        """Take a picture if the folder has changed, unless this file's code runs; whether its lines are of interest."""
        if file == work.__code__.co_filename:
            return False
        if (now := state_of(self.folder)) != self._last:
            self._last = now
            self.taken.append(self.folder.with_name(f"{self.name}.{len(self.taken)}"))
            shutil.copytree(self.folder, self.taken[-1])
        return True


def state_of(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all that is in a folder."""
    entries = []
    for root, folders, files in os.walk(folder):
        for name in files:
            about = os.lstat(os.path.join(root, name))
            entries.append((os.path.join(root, name), about.st_size, about.st_mtime_ns))
        entries += [(os.path.join(root, name), -1, 0) for name in folders]
    return sorted(entries)


def put_back(picture: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(picture, folder)


def listing(folder: Path) -> str:
    words = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            words.append(f"{path.relative_to(folder)} ({path.stat().st_size:,} bytes)")
        elif not any(path.iterdir()):
            words.append(f"{path.relative_to(folder)} (a folder, empty)")
    return ", ".join(words[:8]) or "nothing"


def holds(folder: Path, parts: dict[str, bytes]) -> bool:
    """Whether all bytes of a checkpoint are somewhere on disk."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return all(any(data in file for file in files) for data in parts.values())


def changed(before: Path, now: Path) -> bool:
    """Whether a file of before is still there under its name, with other content."""
    pairs = [(path, now / path.relative_to(before)) for path in before.rglob("*") if path.is_file()]
    return any(new.is_file() and new.read_bytes() != old.read_bytes() for old, new in pairs)


def load(learner: ModuleType, folder: Path) -> Any:
    """Step and parts, None, or the text of an error."""
    try:
        value = learner.load_latest(folder)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return list(value) if isinstance(value, tuple) else value


def save_again(learner: ModuleType, folder: Path, step: int, parts: dict[str, bytes]) -> Any:
    """What can be loaded after the next run has come to the next step, and saved; or the error of its save."""
    try:
        value = learner.load_latest(folder)
        step = step if value is None or value[0] < step else step + 1
        learner.save_checkpoint(folder, step, dict(parts))
    except Exception as error:
        return [None, f"{type(error).__name__}: {str(error)[:120]}"]
    return [step, load(learner, folder)]


_watching: list[Pictures] = []


def trace(frame: FrameType, event: str, arg: Any) -> Any:
    """Called at each function and line that is run."""
    return trace if _watching and _watching[0].look(frame.f_code.co_filename) else None


if work.__code__.co_filename == "<ranks.py>":  # in a rank's process, to which that is forbidden from now on
    sys.settrace(trace)
