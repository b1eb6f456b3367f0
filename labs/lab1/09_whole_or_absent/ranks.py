"""Run a save, take a snapshot of the folder at each line that changed it, and try to load each snapshot."""

import os
import random
import shutil
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from frog.learn.grader.words import count

STEPS = (9, 10)
"""Steps of the old checkpoint and of the new. As text, 9 is larger."""
AS_TEXT = (11, 12)
"""Two steps that sort equally as text and as numbers."""
SMALL_BYTES = 1000
"""Size limit in bytes; every part of a checkpoint is larger."""


def make_parts(seed: int) -> list[dict[str, bytes]]:
    """Draw parts of the old checkpoint, the new one, the next run's after a kill, and the new step's second save."""
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
        copy(folder, keep)
        for picture in pictures.taken:
            put_back(picture, folder)
            about = {"phase": phase, "files": listing(folder)}
            about |= {"old": phase and holds(folder, old), "new": holds(folder, parts), "loaded": load(learner, folder)}
            about |= compare(folder.with_name("kept0"), folder, keep) if phase else {}
            about["again"] = save_again(learner, folder, STEPS[phase], next_one)
            found["pictures"].append(about)
        put_back(keep, folder)
        found[f"saved {phase}"] = saved
    found |= elsewhere(learner, folder, next_one)
    found |= repeat(learner, folder, repeated, next_one)
    shutil.rmtree(folder)
    folder.mkdir()
    return found | {"no digit more": save_both(learner, folder, (old, new))}


def save_both(learner: ModuleType, folder: Path, both: tuple[dict[str, bytes], dict[str, bytes]]) -> Any:
    """Return what loads after two saves whose steps have the same number of digits, or the error of one."""
    try:
        for step, parts in zip(AS_TEXT, both, strict=True):
            learner.save_checkpoint(folder, step, dict(parts))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return load(learner, folder)


def elsewhere(learner: ModuleType, folder: Path, next_one: dict[str, bytes]) -> dict[str, Any]:
    """Return what loads if the files have other times, if only the first checkpoint exists, and if none does.

    Also return what loads after a save without an earlier kill, and other files next to the folder.
    """
    own = {folder.name, "kept0", "kept1"}
    strays = [path.name for path in folder.parent.iterdir() if path.name not in own and "picture." not in path.name]
    turn_times(folder, folder.with_name("kept0"))
    found = {"other times": load(learner, folder), "strays": sorted(strays)}
    put_back(folder.with_name("kept0"), folder)
    found["first alone"] = load(learner, folder)
    found["no kill"] = save_again(learner, folder, STEPS[1], next_one)
    shutil.rmtree(folder)
    folder.mkdir()
    found["empty again"] = load(learner, folder)
    put_back(folder.with_name("kept1"), folder)
    return found


def repeat(learner: ModuleType, folder: Path, parts: dict[str, bytes], next_one: dict[str, bytes]) -> dict[str, Any]:
    """Save the last step once more; return what loads then, and in each snapshot."""
    pictures, error = Pictures(folder, "repeated"), None
    try:
        pictures.during(learner.save_checkpoint, folder, STEPS[1], dict(parts))
    except Exception as caught:
        error = f"{type(caught).__name__}: {str(caught)[:120]}"
    found: dict[str, Any] = {"repeated": error or load(learner, folder), "repeated pictures": []}
    keep = folder.with_name("kept2")
    copy(folder, keep)
    for picture in pictures.taken:
        put_back(picture, folder)
        about = {"files": listing(folder), "loaded": load(learner, folder)}
        about |= compare(folder.with_name("kept1"), folder, keep)
        about["again"] = save_again(learner, folder, STEPS[1], next_one)
        found["repeated pictures"].append(about)
    return found


class Pictures:
    """Copies of a folder, one for each state in which a kill could leave it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.taken, self._last = folder, name, [], state_of(folder)
        self._ahead: dict[str, int] = {}

    def during(self, function: Any, *args: Any) -> None:
        """Call the function, and check the folder before each executed line."""
        _watching.append(self)
        try:
            function(*args)
            if _watching != [self]:
                raise RuntimeError("the list of what ranks.py watches was changed")
        finally:
            _watching.clear()

    def look(self, file: str) -> bool:
        """Take a snapshot if the folder has changed, unless this file's code runs; return True to trace its lines."""
        if file == work.__code__.co_filename:
            return False
        if (now := state_of(self.folder)) != self._last:
            self._last = now
            if sizes_in(self.folder) != self._ahead:
                self.taken.append(self.next_place())
                copy(self.folder, self.taken[-1])
            self._ahead = {}
        return True

    def next_place(self) -> Path:
        return self.folder.with_name(f"{self.name}.{len(self.taken)}")

    def look_ahead(self, opened: Any, empties: bool) -> None:
        """Take a snapshot as if the file that is about to be opened were already empty."""
        path = Path(os.fsdecode(opened)).resolve() if isinstance(opened, str | bytes | os.PathLike) else self.folder
        if self.folder not in path.parents or not path.parent.is_dir() or (path.exists() and not empties):
            return
        target = self.next_place()
        copy(self.folder, target)
        target.joinpath(path.relative_to(self.folder)).write_bytes(b"")
        self._ahead = sizes_in(target)
        self.taken.append(target)


def sizes_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def state_of(folder: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of everything in a folder."""
    entries = []
    for root, folders, files in os.walk(folder):
        for name in files:
            about = os.lstat(os.path.join(root, name))
            entries.append((os.path.join(root, name), about.st_size, about.st_mtime_ns))
        for path in (os.path.join(root, name) for name in folders):
            is_link = os.path.islink(path)  # a different target makes a different entry
            entries.append((f"{path} -> {os.readlink(path)}" if is_link else path, -1, 0))
    return sorted(entries)


def put_back(picture: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    copy(picture, folder)


def copy(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, symlinks=True)


def turn_times(folder: Path, old: Path) -> None:
    """Make the files from the folder `old` newer than all others here, as copying the folder may do."""
    paths = [folder, *folder.rglob("*")]
    paths.sort(key=lambda path: (old / path.relative_to(folder)).exists())
    for second, path in enumerate(paths):
        wait_for_tick(folder.with_name("kept0.clock"))
        os.utime(path, (second, second), follow_symlinks=False)
    folder.with_name("kept0.clock").unlink()


def wait_for_tick(clock: Path) -> None:
    """Wait until the file system's clock has advanced, so that the next change has a later time."""
    clock.touch()
    began = clock.stat().st_ctime_ns
    while clock.stat().st_ctime_ns == began:
        clock.touch()


def listing(folder: Path) -> str:
    words = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            words.append(f"{path.relative_to(folder)} (a link to {os.path.basename(os.readlink(path))})")
        elif path.is_file():
            words.append(f"{path.relative_to(folder)} ({count(path.stat().st_size, 'byte')})")
        elif not any(path.iterdir()):
            words.append(f"{path.relative_to(folder)} (a folder, empty)")
    return ", ".join(words[:8]) or "nothing"


def holds(folder: Path, parts: dict[str, bytes]) -> bool:
    """True if all bytes of a checkpoint are somewhere on disk."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return all(any(data in file for file in files) for data in parts.values())


def compare(before: Path, now: Path, after: Path) -> dict[str, list[str]]:
    """Return what a killed save did to existing files, and the small files that it truncated."""
    found: dict[str, list[str]] = {"gone": [], "changed": [], "torn": [], "short": []}
    was, present, final = contents(before), contents(now), contents(after)
    for name, data in was.items():
        if name not in present:
            found["gone"].append(name)
        elif present[name] != data:
            found["changed"].append(name)
            found["torn"] += [name] if present[name] != final.get(name) else []
    for name, data in present.items():
        right = final.get(name, b"")
        if len(data) < len(right) < SMALL_BYTES and right.startswith(data):
            found["short"].append(f"{name} ({len(data)} of {count(len(right), 'byte')})")
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files, by path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def load(learner: ModuleType, folder: Path) -> Any:
    """Load; return step and parts, None, or the text of an error."""
    try:
        value = learner.load_latest(folder)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return list(value) if isinstance(value, tuple) else value


def save_again(learner: ModuleType, folder: Path, step: int, parts: dict[str, bytes]) -> Any:
    """Return what loads after the next run has reached and saved the next step, or the error of its save."""
    try:
        value = learner.load_latest(folder)
        step = step if value is None or value[0] < step else step + 1
        learner.save_checkpoint(folder, step, dict(parts))
    except Exception as error:
        return [None, f"{type(error).__name__}: {str(error)[:120]}"]
    return [step, load(learner, folder)]


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
