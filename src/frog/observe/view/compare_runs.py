"""Compare two runs: bitwise equal, within tolerance, or different, and where they first differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import History, RankHistory, read_history
from frog.core.runs.record import Record, RunFile
from frog.core.schema import leaves, shortened
from frog.observe.view.checkpoint_reader import open_checkpoints
from frog.observe.view.compare_programs import Finding, Outcome, compare_programs
from frog.observe.view.weights import differences

_MOST_NOTES = 40
_ORDER: tuple[Outcome, ...] = ("not compared", "equal", "close", "different")


@dataclass
class Comparison:
    """All results. `titles` has a line for A and one for B."""

    titles: tuple[str, str]
    rtol: float
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    common_steps: int | None = None
    """Number of steps of the shorter run, if one is longer."""
    are_programs: bool = False
    """True if the runs are of programs that are not Frog's, whose results are unknown."""

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all findings."""
        return max((finding.outcome for finding in self.findings), key=_ORDER.index)

    @property
    def verdict(self) -> str:
        """The outcome in words, and its limits."""
        if self.outcome == "different":
            return "different"
        if self.are_programs:
            return "same program, same world, same end; results were not compared"
        words = "bitwise equal" if self.outcome == "equal" else f"within tolerance (rtol {self.rtol:g})"
        if self.common_steps is not None:
            words += f" over the first {self.common_steps} steps"
        weights = {finding.outcome for finding in self.findings if finding.what in ("checkpoints", "final weights")}
        return words + ("; weights were not compared" if weights == {"not compared"} else "")

    @property
    def exit_code(self) -> int:
        return 1 if self.outcome == "different" else 0


@dataclass
class _Side:
    folder: RunFolder
    run: RunFile
    record: Record | None
    history: History


def compare_runs(a: RunFolder, b: RunFolder, rtol: float) -> Comparison:
    """Compare two runs over their common steps and common checkpoints.

    Two numbers are within tolerance if |a - b| <= rtol * max(|a|, |b|); two tensors if the norm of their difference is
    at most rtol times the larger norm.

    Raises:  RunError if one is not a run, or if they have no step and no checkpoint in common.
    """
    sides = (_read(a), _read(b))
    num_steps = [_num_steps(side) for side in sides]
    programs = None if all(num_steps) else compare_programs(a, b)
    if programs is not None:
        titles, findings = programs
        return Comparison(titles, rtol, findings, are_programs=True)
    comparison = Comparison((_title(sides[0]), _title(sides[1])), rtol)
    comparison.notes = _notes(*sides)
    if min(num_steps) != max(num_steps):
        comparison.common_steps = min(num_steps)
    comparison.findings = [
        _sample_order(*sides),
        _losses(*sides, rtol),
        _numbers("gradient norm", _of_main(sides[0], "grad_norm"), _of_main(sides[1], "grad_norm"), rtol),
        *_recorded("learning rate", _of_main(sides[0], "learning_rate"), _of_main(sides[1], "learning_rate"), rtol),
        *_recorded("tokens", _tokens(sides[0]), _tokens(sides[1]), rtol),
        _numbers("held-out loss", _held_out(sides[0]), _held_out(sides[1]), rtol),
        _checkpoints(a, b, rtol, comparison.notes),
    ]
    if all(finding.outcome == "not compared" for finding in comparison.findings):
        raise RunError(f"{a.path} and {b.path} have no step and no checkpoint in common", "compare runs that trained")
    _name_factors(comparison.findings, *sides)
    comparison.findings.append(_final_weights(*sides, comparison.findings))
    return comparison


def _read(folder: RunFolder) -> _Side:
    return _Side(folder, folder.read_run_json(), folder.read_achieved(), read_history(folder))


def _title(side: _Side) -> str:
    steps = _num_steps(side)
    worlds = [size for size, _ in itertools.groupby(segment.world_size for segment in side.history.segments)]
    world = ", then ".join(map(str, worlds)) or "?"
    return f"{side.folder.path}: {side.record.status if side.record else 'no record'}, {steps} steps, world {world}"


def _num_steps(side: _Side) -> int:
    main = side.history.main
    return int(main.steps[-1]) if main and len(main.steps) else 0


def _notes(a: _Side, b: _Side) -> list[str]:
    """Note the settings that differ, and whether one run is longer."""
    left, right = dict(leaves(a.run.config)), dict(leaves(b.run.config))
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key) and key != "name"]
    notes = [_note(key, left.get(key), right.get(key)) for key in keys[:_MOST_NOTES]]
    if len(keys) > _MOST_NOTES:
        notes.append(f"{len(keys) - _MOST_NOTES} more settings differ")
    if (a.run.data and a.run.data.data_sha256) != (b.run.data and b.run.data.data_sha256):
        notes.append("the prepared data differ")
    if _num_steps(a) != _num_steps(b):
        notes.append(f"A has {_num_steps(a)} steps, B has {_num_steps(b)}")
    return notes


def _note(key: str, left: object, right: object) -> str:
    return f"{shortened(key)}: {shortened(str(left), 200)} in A, {shortened(str(right), 200)} in B"


def _sample_order(a: _Side, b: _Side) -> Finding:
    """Compare the samples of each step over all ranks; their distribution over ranks depends on the world."""
    left, right = _ids_by_step(a.history), _ids_by_step(b.history)
    common = sorted(left.keys() & right.keys())
    if not common:
        return Finding("sample order", "not compared", "no common step has the sample ids of all ranks")
    for step in common:
        if left[step] != right[step]:
            only = sorted(set(left[step]) ^ set(right[step]))[:4]
            ids = ", ".join(map(str, only)) or "none, but some are repeated"
            detail = f"diverges at step {step}; samples in only one run: {ids}"
            return Finding("sample order", "different", detail)
    return Finding("sample order", "equal", f"same samples in each of {len(common)} steps")


def _ids_by_step(history: History) -> dict[int, list[int]]:
    """Return sorted sample ids of the steps for which every rank of the world reported them."""
    ids: dict[int, list[int]] = {}
    reports: dict[int, int] = {}
    world: dict[int, int] = {}
    for rank in history.ranks.values():
        for step, segment, own in zip(rank.steps.tolist(), rank.segment.tolist(), rank.sample_ids, strict=True):
            ids.setdefault(step, []).extend(sample for sample in own if sample >= 0 and _reads(rank, segment))
            reports[step] = reports.get(step, 0) + 1
            world[step] = history.segments[segment].world_size
    return {step: sorted(values) for step, values in ids.items() if values and reports[step] == world[step]}


def _reads(rank: RankHistory, segment: int) -> bool:
    """True if this rank is the first of those that take the same samples: coordinate 0 on all axes except dp."""
    start = rank.starts.get(segment)
    return start is None or all(at == 0 for axis, at in start.place.items() if axis != "dp")


def _losses(a: _Side, b: _Side, rtol: float) -> Finding:
    """Compare each rank's loss if both runs had the same world at the same steps, else the mean over ranks."""
    if _worlds(a) != _worlds(b):
        finding = _numbers("loss", _of_main(a, "loss_mean"), _of_main(b, "loss_mean"), rtol)
        finding.detail += " (mean over ranks: the worlds or their meshes differ)"
        return finding
    return _numbers("loss of each rank", _rank_losses(a), _rank_losses(b), rtol)


def _worlds(side: _Side) -> list[tuple[int, Any]]:
    """Return the worlds with their first steps; a resume in the same world and mesh adds none."""
    changes: list[tuple[int, Any]] = []
    for number, segment in enumerate(side.history.segments):
        start = side.history.main.starts.get(number) if side.history.main else None
        world = (segment.world_size, start.mesh if start else None)
        if not changes or changes[-1][1] != world:
            changes.append((segment.from_step, world))
    return changes


_Key = tuple[int, int | None]
"""The step and, for numbers per rank, the rank."""


def _rank_losses(side: _Side) -> dict[_Key, float]:
    return {
        (step, rank.rank): value
        for rank in side.history.ranks.values()
        for step, value in zip(rank.steps.tolist(), rank.scalars["loss"].tolist(), strict=True)
    }


def _of_main(side: _Side, name: str) -> dict[_Key, float]:
    main = side.history.main
    if main is None:
        return {}
    return {(step, None): v for step, v in zip(main.steps.tolist(), main.scalars[name].tolist(), strict=True)}


def _tokens(side: _Side) -> dict[_Key, float]:
    """Return the tokens of all ranks: of Frog's own runs so far, of a program's in the step."""
    if side.run.program is None:
        by_step = _of_main(side, "tokens")
    else:
        by_step = {}
        for rank in side.history.ranks.values():
            for step, tokens in zip(rank.steps.tolist(), rank.scalars["tokens"].tolist(), strict=True):
                by_step[step, None] = by_step.get((step, None), 0.0) + tokens
    return by_step if any(value > 0 for value in by_step.values()) else {}


def _recorded(what: str, a: dict[_Key, float], b: dict[_Key, float], rtol: float) -> list[Finding]:
    """Compare numbers that a run may lack without a word about them."""
    finding = _numbers(what, a, b, rtol)
    return [finding] if finding.outcome != "not compared" else []


def _held_out(side: _Side) -> dict[_Key, float]:
    main = side.history.main
    return {(step, None): event.loss for step, event in main.evals.items() if event.loss is not None} if main else {}


def _numbers(what: str, a: dict[_Key, float], b: dict[_Key, float], rtol: float) -> Finding:
    """Compare numbers step by step, and report the first and the largest difference."""
    # Sorted by step, then rank: the order in which a person looks for the first difference.
    common = sorted(a.keys() & b.keys(), key=lambda key: (key[0], key[1] or 0))
    if not common:
        return Finding(what, "not compared", "no step in common")
    if all(math.isnan(a[key]) and math.isnan(b[key]) for key in common):
        return Finding(what, "not compared", "neither run has a number")
    num_steps = len({step for step, _ in common})
    differing = [(key, _relative(a[key], b[key])) for key in common if not _same(a[key], b[key])]
    if not differing:
        return Finding(what, "equal", f"bit for bit over {num_steps} steps")
    beyond = [(key, relative) for key, relative in differing if relative > rtol]
    first, relative = (beyond or differing)[0]
    worst, largest = max(differing, key=lambda item: item[1])
    parts = "diverges" if beyond else "first differs"
    detail = f"{parts} at {_place(first)}: {a[first]:.9g} and {b[first]:.9g}, relative {relative:.1e}"
    factor = _exact_factor(a[first], b[first]) if beyond and first == common[0] else None
    if beyond and differing[0][0] != first:
        detail += f"; bits differ from {_place(differing[0][0])}"
    if worst != first:
        detail += f"; largest difference at {_place(worst)}, {largest:.1e}"
    return Finding(what, "different" if beyond else "close", detail, factor)


_EXACT, _MOST_FACTOR = 2e-5, 4096
"""Relative difference from a whole number, and the largest number."""


def _exact_factor(a: float, b: float) -> int | None:
    """Return n if one number is n times the other, up to rounding; negative if the first one is the larger."""
    if not (a and b and math.isfinite(a) and math.isfinite(b)):
        return None
    larger = max(abs(b / a), abs(a / b))
    whole = round(larger)
    if not 2 <= whole <= _MOST_FACTOR or abs(larger / whole - 1) > _EXACT or a * b < 0:
        return None
    return whole if abs(b) > abs(a) else -whole


def _name_factors(findings: list[Finding], a: _Side, b: _Side) -> None:
    """Say what an exact factor between the runs is: the number of ranks, of accumulation steps, or unknown."""
    for finding in findings:
        if finding.factor is not None:
            larger, number = ("B", finding.factor) if finding.factor > 0 else ("A", -finding.factor)
            meaning = _meaning(number, a, b)
            finding.detail += f"; that of {larger} is exactly {number:.1f} times the other"
            finding.detail += f", as many as {meaning}: one run sums what the other averages" if meaning else ""


def _meaning(number: int, *sides: _Side) -> str:
    """Return what has this number in either run, or between them."""
    worlds = [side.history.segments[0].world_size if side.history.segments else 0 for side in sides]
    steps = [int(dict(leaves(side.run.config)).get("train.grad_accum") or 0) for side in sides]
    names = [("ranks", worlds), ("gradient accumulation steps", steps)]
    return " or ".join(name for name, values in names if number in values or _quotient(values) == number)


def _quotient(values: list[int]) -> float:
    return max(values) / min(values) if min(values) else 0.0


def _place(key: _Key) -> str:
    step, rank = key
    return f"step {step}" if rank is None else f"step {step}, rank {rank}"


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _relative(a: float, b: float) -> float:
    """Return |a - b| / max(|a|, |b|); infinite if only one of the two is finite."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _checkpoints(a: RunFolder, b: RunFolder, rtol: float, notes: list[str]) -> Finding:
    (left, left_broken), (right, right_broken) = open_checkpoints(a), open_checkpoints(b)
    notes += [f"skipped: {problem}" for problem in left_broken + right_broken]
    by_step = {checkpoint.step: checkpoint for checkpoint in right}
    pairs = [(mine, by_step[mine.step]) for mine in left if mine.step in by_step]
    if not pairs:
        return Finding("checkpoints", "not compared", "the runs have no valid checkpoint from the same step")
    outcome: Outcome = "equal"
    first: str | None = None
    worst = 0.0
    for mine, other in pairs:
        for name, relative, detail in differences(mine, other):
            now: Outcome = "close" if relative <= rtol else "different"
            if first is None or (outcome == "close" and now == "different"):
                first = f"first at step {mine.step}, {name}: {detail}"
            outcome, worst = max(outcome, now, key=_ORDER.index), max(worst, relative)
    steps = ", ".join(str(mine.step) for mine, _ in pairs)
    if first is None:
        return Finding("checkpoints", "equal", f"bit for bit, after step{'s'[: len(pairs) > 1]} {steps}")
    return Finding("checkpoints", outcome, f"{first}; largest difference of all {worst:.1e}")


def _final_weights(a: _Side, b: _Side, others: Sequence[Finding]) -> Finding:
    """Compare the hashes in the records. A hash has no tolerance: a mismatch alone never counts as different."""
    what = "final weights"
    left, right = a.record, b.record
    if left is None or right is None or left.weights_sha256 is None or right.weights_sha256 is None:
        return Finding(what, "not compared", "one of the runs has no hash of its final weights")
    if left.step != right.step:
        return Finding(what, "not compared", f"the hashes are from step {left.step} and step {right.step}")
    if left.weights_sha256 == right.weights_sha256:
        return Finding(what, "equal", f"same hash, {left.weights_sha256[:12]}…")
    known = any(finding.outcome == "different" for finding in others)
    detail = f"hashes {left.weights_sha256[:12]}… and {right.weights_sha256[:12]}…: some bits differ"
    return Finding(what, "different" if known else "close", detail)
