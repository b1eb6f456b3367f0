"""One check: the exercise's `check.py` judges the behavior of the learner's code in separate processes."""

from __future__ import annotations

import ast
import sys
import time
import traceback
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from frog.core.env import start_method
from frog.core.files import scratch_folder
from frog.core.schema import Typed
from frog.launch.torchrun.forkserver import start_fork_server
from frog.learn.grader.exercise import Exercise
from frog.learn.grader.general import general
from frog.learn.grader.grade import Grade, Rejected
from frog.learn.grader.outcome import Failure
from frog.learn.grader.verdict import Verdict

_KEPT_OUTPUT = 4000


class Request(Typed, kw_only=True, frozen=True):
    """A request to check an exercise."""

    exercise: str
    """The exercise's folder."""
    files: dict[str, bytes]
    seed: int


def judge(request: Request, slowness: float = 1.0) -> Verdict:
    """Check a learner's files. Never raises: an error in the grader itself becomes a verdict.

    `slowness`: the factor by which to extend the exercises' limits on CPU time.
    """
    start = time.monotonic()
    exercise = Exercise(Path(request.exercise))
    server = None if start_method() == "spawn" else start_fork_server("frog.learn.grader.grader_rank")
    with scratch_folder("frog-check-") as scratch:
        folder = scratch / "files"
        folder.mkdir()
        for name, data in {**exercise.used(), **request.files}.items():
            (folder / name).write_bytes(data)
        grade = Grade(exercise, folder, request.seed, server, scratch, slowness)
        failure = _failure(grade, request.files)
    return _verdict(grade, failure, dict(request.files) == exercise.stub(), time.monotonic() - start)


def _failure(grade: Grade, files: dict[str, bytes]) -> Failure | None:
    """Return the reason for rejecting the learner's files, or None."""
    try:
        _parse(grade, files)
        sys.path.insert(0, str(grade.exercise.folder))
        sys.dont_write_bytecode = True
        _load(grade.exercise.folder / "check.py").check(grade)
    except Rejected as rejected:
        return rejected.failure
    except Exception:
        return Failure("broken", f"The check itself failed: {traceback.format_exc(limit=-4)}", 0)
    return None


def _parse(grade: Grade, files: dict[str, bytes]) -> None:
    """Reject files that are not valid Python before running anything. Python determines the encoding (PEP 263)."""
    for name, data in files.items():
        if name.endswith(".py"):
            try:
                decode_source(data)  # ast.parse accepts other bytes in a comment, an import does not
                ast.parse(data, name)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
                line = getattr(problem, "lineno", None)
                where = f"{name}:{line}" if line else name
                message = str(getattr(problem, "msg", problem)).rstrip(".")
                grade.reject("not-python", f"Python cannot read {where}: {message}.", where=where)


def _load(path: Path) -> Any:
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    return module


def _verdict(grade: Grade, failure: Failure | None, is_stub: bool, seconds: float) -> Verdict:
    about: dict[str, Any] = {
        "exercise": grade.exercise.id,
        "seed": grade.seed,
        "seconds": round(seconds, 3),
        "worlds": tuple(dict.fromkeys(grade.worlds)),
        "output": grade.output[-_KEPT_OUTPUT:],
    }
    if failure is None:
        about |= {"measured": tuple(grade.lines), "predicted": grade.predictions, "notes": tuple(grade.notes)}
        return Verdict(status="passed", **about)
    status: Literal["broken", "unsolved", "rejected"] = "rejected"
    if failure.id == "broken":
        status = "broken"
    elif failure.is_unsolved or is_stub:
        status = "unsolved"
    known = grade.exercise.misconception(failure.id) or general().get(failure.id)
    return Verdict(
        status=status,
        misconception=failure.id,
        observed=failure.observed,
        belief=known.belief if known else None,
        question=known.question if known else None,
        drawing=failure.drawing,
        where=failure.where or None,
        **about,
    )
