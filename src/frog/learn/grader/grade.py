"""The interface that a check uses: run worlds, compare numbers, and reject a solution with a reason."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from frog.core.errors import FrogError
from frog.core.schema import parse_toml, read_bounded
from frog.launch.resource_limits import MOST_FILE_BYTES
from frog.launch.torchrun.forkserver import ForkServer
from frog.learn.grader.exercise import Exercise
from frog.learn.grader.outcome import Failure, World
from frog.learn.grader.program import Ended, run_program
from frog.learn.grader.verdict import Measured
from frog.learn.grader.words import distinct_texts
from frog.learn.grader.world import Task, run_world


class Rejected(Exception):
    """Rejects the learner's code, with a misconception and an observation."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.observed)
        self.failure = failure


class Grade:
    """One check of a learner's files."""

    def __init__(
        self,
        exercise: Exercise,
        folder: Path,
        seed: int,
        server: ForkServer | None,
        scratch: Path,
        slowness: float = 1.0,
    ) -> None:
        """slowness: the factor by which to extend the exercises' time limits."""
        self.exercise, self.folder, self.seed = exercise, folder, seed
        self.lines: list[Measured] = []
        self.predictions: dict[str, float] = {}
        self.notes: list[str] = []
        self.worlds: list[int] = []
        self.output = ""
        self._server, self._scratch, self._labs = server, scratch, exercise.folder.parents[1]
        self.slowness = slowness

    # ---- the learner's files -----------------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        """Return one of the learner's files, without a byte order mark. Reject a file that is not UTF-8."""
        try:
            return (self.folder / name).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as problem:
            self.reject("not-readable", f"{name}: byte {problem.start} is not UTF-8.")

    def answers(self, name: str = "answers.toml") -> dict[str, Any]:
        """Return the learner's parsed TOML file. Reject invalid TOML, with the place."""
        try:
            return parse_toml(self.text(name))
        except (ValueError, RecursionError) as problem:  # invalid TOML, a huge number, or nested too deep
            self.reject("not-readable", f"{name} is not valid TOML: {problem}")

    # ---- running the learner's code ----------------------------------------------------------------------------------

    def world(
        self,
        size: int,
        case: Any = None,
        *,
        work: str = "work",
        held: int | None = None,
        env: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
        join: bool = True,
        seconds: float = 2.0,
        may_fail: Collection[str] = (),
    ) -> World:
        """Run the exercise's function `work` with the learner's code, in `size` processes.

        `seconds` limits a rank's CPU time on a machine that is not slow. A world that fails is rejected, except for the
        ids in `may_fail`.
        """
        number = len(self.worlds)
        scratch = self._scratch / f"world{number}"
        scratch.mkdir()
        extra = [env] * size if isinstance(env, Mapping) else list(env) or [{}] * size
        self.worlds.append(size)
        task = Task(
            size=size,
            case={} if case is None else case,
            work=work,
            held=(self.seed + number) % size if held is None else held,
            env=[{**_identity(rank, size), **extra[rank]} for rank in range(size)],
            join=join and size > 0,
            seconds=seconds * self.slowness,
            folder=self.folder,
            files={name: (self.folder / name).read_bytes() for name in self.exercise.file_names},
            functions=self.exercise.manifest.functions,
            ranks=(self.exercise.folder / "ranks.py").read_bytes(),
            labs=self._labs,
        )
        world = run_world(task, self._server, scratch)
        self.output += "".join(world.output)
        if world.failure is not None and world.failure.id not in may_fail:
            raise Rejected(world.failure)
        return world

    def call(
        self, case: Any = None, *, work: str = "work", seconds: float = 2.0, may_fail: Collection[str] = ()
    ) -> World:
        """Run `work` in one process, without a world of torch.distributed."""
        return self.world(1, case, work=work, join=False, seconds=seconds, may_fail=may_fail)

    def program(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        stdin: str = "",
        seconds: float = 2.0,
        wall_s: float = 60.0,
        fork: bool = False,
        writes: Sequence[Path] = (),
    ) -> Ended:
        """Run a program in a scratch folder that holds the learner's files, under the same limits.

        `seconds` limits CPU time and `wall_s` wall-clock time, both on a machine that is not slow. `fork` starts
        `PYTHON SCRIPT ...` from a process that has loaded torch, if possible; PYTHONHASHSEED then has no effect.
        `writes`: places outside the folder that the program may change.
        """
        scratch = Path(tempfile.mkdtemp(dir=self._scratch, prefix="program"))
        for name in self.exercise.file_names:
            (scratch / name).write_bytes((self.folder / name).read_bytes())
        for name, text in (files or {}).items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_text(text)
        limits_s = seconds * self.slowness, wall_s * self.slowness
        ended = run_program(words, scratch, env or {}, stdin, *limits_s, self._server, self._labs, fork, writes)
        self.output += ended.out + ended.err
        if ended.failure is not None:
            raise Rejected(ended.failure)
        return ended

    def written(self, ended: Ended, name: str) -> str | None:
        """Return the text of a file in a program's scratch folder, or None if it does not exist.

        Reject a file that is not plain, too large or not UTF-8: a learner's code can replace it by a link to an endless
        device, or by a pipe on which a reader would wait forever.
        """
        try:
            return read_bounded(ended.folder / name, FrogError, most_bytes=MOST_FILE_BYTES).decode()
        except FileNotFoundError:
            return None
        except (FrogError, UnicodeDecodeError) as problem:
            is_text = isinstance(problem, UnicodeDecodeError)
            why = "it is not UTF-8" if is_text else str(problem).splitlines()[0].rpartition(": ")[2]
            self.reject("unknown", f"{name}, in which the check records results, cannot be read: {why}.")

    def records(self, ended: Ended, name: str, kind: Any = Any) -> list[Any]:
        """Return the JSON values of a file that a program has written, one from each line; no file has no values.

        Reject a file that cannot be read, or in which a line is not JSON of the type `kind`.
        """
        lines = (self.written(ended, name) or "").splitlines()
        try:
            return [msgspec.convert(json.loads(line), kind) for line in lines]
        except (ValueError, RecursionError, msgspec.ValidationError):
            self.reject("unknown", f"{name}, in which the check records results, contains other lines.")

    # ---- the verdict -------------------------------------------------------------------------------------------------

    def reject(self, misconception: str, observed: str, drawing: str | None = None, where: str = "") -> NoReturn:
        """End the check with an observation and the misconception that explains it."""
        raise Rejected(Failure(misconception, observed, 0, where, drawing))

    def compare(
        self, found: Any, expected: Any, what: str, rtol: float = 1e-5, atol: float = 1e-7, id: str = "unknown"
    ) -> None:
        """Reject unless tensors, numbers, or dicts and lists of them agree; name the first difference."""
        difference = difference_of(found, expected, what, rtol, atol)
        if difference is not None:
            self.reject(id, difference)

    def reject_different(self, found: Any, expected: Any, what: str, id: str = "unknown") -> NoReturn:
        """Reject values that are known to differ; name the first difference, however small."""
        exact = difference_of(found, expected, what, 0.0, 0.0)
        self.reject(id, exact or f"{what}: found {_shown(found)}, expected {_shown(expected)}.")

    def measured(self, what: str, value: Any) -> None:
        """Add a measurement to a passed verdict."""
        self.lines.append(Measured(what=what, value=str(value)))

    def predicted(self, id: str, value: float) -> None:
        """Set the measured value for a prediction of the manifest."""
        self.predictions[id] = float(value)

    def note(self, text: str) -> None:
        """Add a remark to a passed verdict."""
        self.notes.append(text)


def difference_of(found: Any, expected: Any, what: str, rtol: float, atol: float) -> str | None:
    """Describe the first place where two values differ, or return None; `what` names them."""
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            return f"{what}: found {_shown(found)}, expected a table of {', '.join(map(str, expected))}."
        if found.keys() != expected.keys():
            return f"{what}: found {_names(found)}, expected {_names(expected)}."
        pairs = [(found[key], expected[key], f"{what}, {key}") for key in expected]
    elif isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return f"{what}: found {_shown(found)}, expected {_shown(expected)}."
        pairs = [(a, b, f"{what}, number {i}") for i, (a, b) in enumerate(zip(found, expected, strict=True), 1)]
    else:
        return _difference(found, expected, what, rtol, atol)
    return next((text for a, b, name in pairs if (text := difference_of(a, b, name, rtol, atol))), None)


def _difference(found: Any, expected: Any, what: str, rtol: float, atol: float) -> str | None:
    if isinstance(expected, torch.Tensor):
        return _of_tensors(found, expected, what, rtol, atol)
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if isinstance(found, torch.Tensor) and found.numel() == 1:
            found, is_number = found.item(), True
        near = is_number and (found == expected or math.isclose(found, expected, rel_tol=rtol, abs_tol=atol))
        both_nan = is_number and math.isnan(found) and math.isnan(expected)
        texts = distinct_texts(found, expected) if isinstance(found, float) else (_shown(found), _shown(expected))
        return None if near or both_nan else f"{what}: found {texts[0]}, expected {texts[1]}."
    same = type(found) is type(expected) and found == expected
    return None if same else f"{what}: found {_shown(found)}, expected {_shown(expected)}."


def _of_tensors(found: Any, expected: torch.Tensor, what: str, rtol: float, atol: float) -> str | None:
    if not isinstance(found, torch.Tensor):
        return f"{what}: found {_shown(found)}, expected a tensor of shape {tuple(expected.shape)}."
    if found.shape != expected.shape:
        return f"{what}: found the shape {tuple(found.shape)}, expected {tuple(expected.shape)}."
    if found.is_floating_point() != expected.is_floating_point():
        return f"{what}: found {found.dtype}, expected {expected.dtype}."
    a, b = found.double(), expected.double()
    if torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
        return None
    gap = (a - b).abs().nan_to_num(math.inf)
    place = int(gap.reshape(-1).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape)) if expected.dim() else ()
    at = f" at {list(index)}" if index else ""
    first, second = distinct_texts(a.reshape(-1)[place].item(), b.reshape(-1)[place].item())
    values = f"{first}, expected {second}{_everywhere(b)}"
    return f"{what}: differs by up to {gap.max():.2g}{at}: found {values}.{_factor(a, b, rtol)}"


def _everywhere(expected: torch.Tensor) -> str:
    return " everywhere" if expected.numel() > 1 and bool((expected == expected.reshape(-1)[0]).all()) else ""


def _factor(found: torch.Tensor, expected: torch.Tensor, rtol: float) -> str:
    """Name the factor if a whole tensor is wrong by the same one."""
    counts = expected != 0
    ratio = found[counts] / expected[counts]
    if ratio.numel() < 2 or not torch.isfinite(ratio).all() or found[~counts].any():
        return ""
    is_one = torch.allclose(ratio, ratio.mean(), rtol=max(rtol, 1e-5))
    return f" It is {ratio.mean():.6g} times the expected value everywhere." if is_one else ""


def _identity(rank: int, size: int) -> dict[str, str]:
    """Return the environment variables that torchrun would give a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def _names(table: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, table)) or "nothing"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = "nothing (None)" if value is None else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
