"""The same global batch on many ranks and on one: the first tensor that differs by more than rounding explains.

Three runs are compared: on many ranks, on one, and on one whose weights were changed at the start by as much as
rounding may change a result. What the third run changes, in each tensor of each step, a correct program may change too.

Each tensor is known by sums (the observer's module_sums.py). Those of the ranks add up to those of the whole, or to
a multiple of it where ranks hold copies; how many copies there are follows from the numbers of elements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from frog.core.errors import RunError
from frog.core.schema import read_typed
from frog.observe.check.rank_records import Call, Place, RankRecord, Step, Sums, read_records

AGAINST = "against_one.json"
"""In the run folder of many ranks: the folders of its three runs, by name."""
WHOLE = "the model"
"""Name of the outermost module (the observer's module_sums.py)."""
CLIPPED_NORM = "the norm before clipping"
Kind = Literal["start", "output", "gradient", "weight"]

_DEVIATIONS = 10.0
"""How often a tensor may differ by as much as in the third run: Student's t with eight degrees of freedom, one for each
sum, passes it once in 100,000 comparisons."""
_LOST = 0.05
"""Relative change by rounding alone from which on two runs have nothing in common that could be compared."""
_UNIT = 2.0**-53
_LARGEST = 3.0
"""No weight of a sum is larger."""
_CLIPPED = 1e-6
"""Rounding of a norm in float32, relative."""
LEAST_SHARE = 1e-4
"""Gradients with a smaller share of the norm of all tell no factor."""


class _Folders(msgspec.Struct):
    """against_one.json."""

    many: str
    one: str
    rounded: str


@dataclass(frozen=True)
class Compared:
    """A tensor on many ranks and on one."""

    kind: Kind
    name: str
    difference: float
    """Relative to the norm on one rank; infinite if only one of both is finite."""
    allowed: float
    line: Place | None = None
    module: str = ""
    """The class of the module whose output it is."""
    factor: float | None = None
    """The multiple of the tensor on one rank that is nearest to it."""
    rest: float = math.inf
    """The difference from that multiple, of its norm."""
    norm: float = 0.0
    is_sum: bool = False
    """True if the ranks' outputs are parts of a sum that the program adds later."""
    copies_differ: bool = False
    """True if ranks that should hold copies hold other numbers."""

    @property
    def differs(self) -> bool:
        return self.difference > self.allowed


@dataclass
class Against:
    """A run on many ranks next to one on one rank."""

    many: dict[int, RankRecord]
    one: RankRecord
    rounded: RankRecord
    """The run on one rank whose weights were changed."""
    step: int = 0
    """The step with the first difference, from 1; else the last one that was compared."""
    first: Compared | None = None
    others: list[Compared] = field(default_factory=list)
    """All tensors of that kind and step that were compared, also those that agree."""
    counts: Counter[Kind] = field(default_factory=Counter)
    """How many tensors were compared."""
    closest: float = 0.0
    """The largest difference that was found, as a share of what is allowed."""
    noise: float = 0.0
    """The largest relative change by rounding alone that was found so far: later tensors use what it changed."""
    ended: str = ""
    """Why no later step was compared."""
    skipped: set[str] = field(default_factory=set)
    """Tensors whose parts on the ranks do not add up to a whole number of copies."""
    own: set[str] = field(default_factory=set)
    """Parameters that each rank has for itself under the same name, such as experts."""

    @property
    def world_size(self) -> int:
        return len(self.many)


def read_against(folder: Path) -> Against | None:
    """Read the three runs whose folders are named in that of the run on many ranks; None if there are none.

    Raises:  RunError if one of them is gone or has no records.
    """
    path = folder / AGAINST
    if not path.exists():
        return None
    folders = read_typed(path, _Folders)
    one, rounded = (_record_of_one_rank(path) for path in (folders.one, folders.rounded))
    return against_one(read_records(folder), one, rounded)


def _record_of_one_rank(folder: str) -> RankRecord:
    records = read_records(Path(folder))
    if 0 not in records:
        raise RunError(f"{folder}: no records of the run on one rank", "run frog check again")
    return records[0]


def against_one(many: dict[int, RankRecord], one: RankRecord, rounded: RankRecord) -> Against:
    """Compare the steps of two runs in order, up to the first tensor that differs."""
    against = Against(many, one, rounded)
    steps = min(len(record.steps) for record in (*many.values(), one, rounded))
    if not steps:
        against.ended = "no optimizer of torch.optim took a step in all runs"
        return against
    against.own = _experts_of_single_ranks(many)
    for index in range(steps):
        against.step = index + 1
        if not _compare_step(against, index):
            break
    return against


class _Steps(NamedTuple):
    """The same step in the three runs."""

    ranks: dict[int, Step]
    alone: Step
    changed: Step
    """On one rank, with changed weights."""


def _compare_step(against: Against, index: int) -> bool:
    """Compare a step; False if it is the last one that can be compared."""
    ranks = {rank: record.steps[index] for rank, record in against.many.items()}
    steps = _Steps(ranks, against.one.steps[index], against.rounded.steps[index])
    if rows_of(steps.alone) != rows_of(steps.changed):
        against.ended = "two runs on one rank draw different samples: the program's seed is not fixed"
        return False
    kinds: tuple[Kind, ...] = ("output", "gradient", "weight")
    if index == 0:
        pairs = (pair for kind in kinds for pair in _pairs(against, kind, steps))
        changes = [_change(third, whole) for _, _, whole, third in pairs]
        if changes and not any(changes):
            against.ended = "the third run computed the same numbers: its weights could not be changed"
            return False
        kinds = ("start", *kinds)
    return all(_compare_kind(against, kind, steps) for kind in kinds)


def _compare_kind(against: Against, kind: Kind, steps: _Steps) -> bool:
    """Compare the tensors of a kind in a step; False if nothing after them can be compared."""
    compared = []
    pairs = list(_pairs(against, kind, steps))
    changes = [_change(third, whole) for _, _, whole, third in pairs]
    if kind == "weight":  # Adam's step for a gradient near zero depends on rounding: in any tensor, but in few
        against.noise = max(against.noise, *(change for change in changes if change <= _LOST), 0.0)
    for (name, parts, whole, _), change in zip(pairs, changes, strict=True):
        if kind == "start" and change > _LOST:
            against.ended = f"two runs on one rank begin with another {name}: the program sets its seed too late"
            return False
        if kind == "gradient" and change > _LOST and math.sqrt(whole.square or 0.0) < _least_norm(steps.alone):
            against.skipped.add(name)  # rounding is all of it, as of the bias of a key, which no softmax depends on
            continue
        if kind in ("output", "gradient"):  # what one changes, those that use it change too
            against.noise = max(against.noise, change)
            if against.noise > _LOST:
                against.ended = f"in step {against.step}, rounding alone changes {name} by {against.noise:.0%}"
                return False
        each = _compare(kind, name, parts, whole, 0.0 if kind == "start" else against.noise)
        if each is None or change > _LOST:
            against.skipped.add(name)
            continue
        compared.append(each)
        if each.differs and kind == "output":
            break  # all later modules use it
    if kind == "gradient":
        compared += _clipping_norms(steps, against.noise)
    against.counts[kind] += len(compared)  # a kind that was left before its end does not count
    return _all_agree(against, compared)


def _least_norm(step: Step) -> float:
    """Return the norm below which a gradient is too small a share of all gradients to be compared."""
    return LEAST_SHARE * math.sqrt(math.fsum(sums.square or 0.0 for sums in step.gradient_sums if sums is not None))


def _all_agree(against: Against, compared: list[Compared]) -> bool:
    """Note the first tensor that differs, or else how close the closest one was to it."""
    different = [each for each in compared if each.differs]
    if different:
        against.first, against.others = different[0], compared
        return False
    shares = (each.difference / each.allowed for each in compared if each.allowed)
    against.closest = max(against.closest, max(shares, default=0.0))
    return True


def _clipping_norms(steps: _Steps, noise: float) -> list[Compared]:
    """Compare the norms that were larger than the limit: clipping hides a factor between all gradients."""
    ours, third = _clips(steps.alone), _clips(steps.changed)
    theirs = [_clips(step) for step in steps.ranks.values()]
    if len({len(each) for each in (ours, third, *theirs)}) > 1:
        return []
    compared = []
    for number, (call, other) in enumerate(zip(ours, third, strict=True)):
        norms = {each[number].norm for each in theirs}
        (norm,) = norms if len(norms) == 1 else (None,)
        if not call.norm or not other.norm or not norm or call.limit is None or min(call.norm, norm) <= call.limit:
            continue
        change = max(noise, abs(other.norm / call.norm - 1), _CLIPPED)
        facts: dict[str, Any] = {"line": call.line, "factor": norm / call.norm, "rest": 0.0, "norm": call.norm}
        difference, allowed = abs(norm / call.norm - 1), _DEVIATIONS * change
        compared.append(Compared("gradient", CLIPPED_NORM, difference, allowed, **facts))
    return [each for each in compared if each.differs]


def _clips(step: Step) -> list[Call]:
    return [call for call in step.calls if call.call == "clip"]


_Pair = tuple[str, list[Sums], Sums, Sums]


def _pairs(against: Against, kind: Kind, steps: _Steps) -> Iterator[_Pair]:
    """Yield the tensors of a kind in the order of the run on one rank: name, parts on the ranks, whole, third run."""
    if kind == "output":
        yield from _outputs(against, steps)
        return
    ours, third_ones = _named(against.one, steps.alone, kind), _named(against.rounded, steps.changed, kind)
    theirs = [_named(against.many[rank], step, kind) for rank, step in steps.ranks.items()]
    for name, whole in ours.items():
        parts = [each[name] for each in theirs if name in each]
        if parts and name in third_ones and name not in against.own:
            yield name, parts, whole, third_ones[name]


def _outputs(against: Against, steps: _Steps) -> Iterator[_Pair]:
    """Yield the outputs of modules that are not one rank's own."""
    has_stages = any(step.messages for step in steps.ranks.values())
    for name, whole in steps.alone.outputs.items():
        if has_stages and name.startswith(WHOLE):  # each stage of a pipeline has another model
            continue
        parts = [step.outputs[name] for step in steps.ranks.values() if name in step.outputs]
        third = steps.changed.outputs.get(name)
        if parts and third is not None and not any(_is_below(name, parameter) for parameter in against.own):
            yield name, parts, whole, third


def _named(record: RankRecord, step: Step, kind: Kind) -> dict[str, Sums]:
    """Return the sums of an optimizer's weights before or after a step, or of their gradients, by name."""
    table = record.tables.get(step.optimizer)
    sums = {"start": step.before_sums, "gradient": step.gradient_sums, "weight": step.weight_sums}[kind]
    parameters = table.parameters if table is not None else []
    names = [parameter.names[0] if parameter.names else "" for parameter in parameters]
    by_name: dict[str, Sums] = {}
    for index, part in enumerate(sums):
        name = names[index] if index < len(names) and names[index] else f"parameter {index} of the optimizer"
        if part is not None:
            by_name[name] = _together(by_name[name], part) if name in by_name else part
    return by_name


def _together(one: Sums, other: Sums) -> Sums:
    """Return the sums of two parts of a parameter that one rank has."""
    known = one.sums is not None and other.sums is not None and len(one.sums) == len(other.sums)
    return replace(
        one,
        elements=one.elements + other.elements,
        sums=list(map(sum, zip(one.sums or (), other.sums or (), strict=True))) if known else None,
        square=None if one.square is None or other.square is None else one.square + other.square,
    )


def _experts_of_single_ranks(many: dict[int, RankRecord]) -> set[str]:
    """Return the experts that each rank has for itself, under names that other ranks use for theirs.

    They begin with other weights than those of the same name on other ranks, while other parameters begin with equal
    ones.
    """
    bits: dict[str, set[int | None]] = {}
    for record in many.values():
        step = record.steps[0]
        table = record.tables.get(step.optimizer)
        for parameter, before in zip(table.parameters if table else (), step.before, strict=False):
            is_part = bool(parameter.whole) and parameter.whole != parameter.shape
            if parameter.names and not parameter.placements and not is_part:
                bits.setdefault(parameter.names[0], set()).add(before)
    experts = {name for name, values in bits.items() if len(values) > 1 and ".experts." in f".{name}."}
    return experts if len(experts) < len(bits) else set()


def _is_below(module: str, parameter: str) -> bool:
    """True if a module has a parameter, or is inside the module that has it."""
    owner = parameter.rpartition(".")[0]
    return bool(owner) and (module == owner or module.startswith(f"{owner}."))


# ---- one tensor ------------------------------------------------------------------------------------------------------


def _compare(kind: Kind, name: str, parts: list[Sums], whole: Sums, noise: float) -> Compared | None:
    """Compare the parts of a tensor with the whole; None if they are no whole number of copies of it."""
    copies = copies_of(parts, whole)
    if copies is None:
        return None
    facts: dict[str, Any] = {"line": whole.line, "module": whole.name}
    if whole.sums is None or whole.square is None:
        return Compared(kind, name, 0.0 if any(each.sums is None for each in parts) else math.inf, 0.0, **facts)
    norm = math.sqrt(whole.square)
    added = _added(parts, copies, whole)
    if added is None:
        return Compared(kind, name, math.inf, 0.0, **facts)
    ours, theirs = added
    is_sum = False
    fewer = [number for number in range(1, copies) if kind == "output" and copies % number == 0]
    for number in fewer:  # not only copies, but summands that the program adds later?
        summed = _added([replace(each, square=None) for each in parts], number, whole)
        if summed is not None and _distance(*summed, norm) < _distance(ours, theirs, norm):
            ours, theirs = summed
            is_sum = True
    allowed = _DEVIATIONS * max(noise, _rounding(whole))
    own = [each.sums for each in parts if each.sums is not None]
    copies_differ = copies == len(parts) > 1 and any(_distance(own[0], each, norm) > allowed for each in own[1:])
    factor, rest = _multiple(ours, theirs, norm)
    difference = _distance(ours, theirs, norm)
    return Compared(
        kind,
        name,
        difference,
        allowed,
        **facts,
        factor=factor,
        rest=rest,
        norm=norm,
        is_sum=is_sum,
        copies_differ=copies_differ,
    )


def _multiple(ours: list[float], theirs: list[float], norm: float) -> tuple[float | None, float]:
    """Return by which factor one list of sums is nearest to another, and the remaining difference."""
    size = sum(value * value for value in ours)
    factor = sum(one * other for one, other in zip(ours, theirs, strict=True)) / size if size else 0.0
    if not factor:
        return None, math.inf
    return factor, _distance([value * factor for value in ours], theirs, norm * abs(factor))


def copies_of(parts: list[Sums], whole: Sums) -> int | None:
    """Return how many copies of a tensor the ranks hold together; None if it is not a whole number."""
    if not whole.elements:
        return None
    elements = sum(each.elements for each in parts)
    copies = round(elements / whole.elements)
    padding = elements - copies * whole.elements
    is_flat = len(whole.dims) == 1
    if copies < 1 or (abs(padding) > 1e-6 * whole.elements and not (is_flat and abs(padding) < len(parts))):
        return None
    return copies


def _added(parts: list[Sums], copies: int, whole: Sums) -> tuple[list[float], list[float]] | None:
    """Return the sums that do not depend on the division among ranks, on one rank and on many, and the norms.

    None if a part is not finite. Without the norms if the parts are summands.
    """
    numbers = [each.sums for each in parts if each.sums is not None]
    if whole.sums is None or len(numbers) < len(parts):
        return None
    usable = _usable(parts, whole)
    ours = [whole.sums[index] for index in usable]
    theirs = [math.fsum(each[index] for each in numbers) / copies for index in usable]
    squares = [each.square for each in parts if each.square is not None]
    if whole.square is None or len(squares) < len(parts):
        return ours, theirs
    return [*ours, math.sqrt(whole.square)], [*theirs, math.sqrt(math.fsum(squares) / copies)]


def _usable(parts: list[Sums], whole: Sums) -> list[int]:
    """Return the indices of the sums that weight only dimensions of equal size."""
    assert whole.sums is not None
    axes = (len(whole.sums) - 1).bit_length()
    if any(len(each.dims) != len(whole.dims) or len(each.sums or ()) != len(whole.sums) for each in parts):
        return [0]
    first = len(whole.dims) - axes
    equal = [
        whole.dims[dimension] != -1 and all(each.dims[dimension] == whole.dims[dimension] for each in parts)
        for dimension in range(first, len(whole.dims))
    ]
    return [index for index in range(len(whole.sums)) if all(equal[axis] for axis in range(axes) if index >> axis & 1)]


def _distance(ours: list[float], theirs: list[float], norm: float) -> float:
    """Return the root mean square of the differences, relative to a norm."""
    square = math.fsum((one - other) ** 2 for one, other in zip(ours, theirs, strict=True)) / len(ours)
    if not norm:
        return 0.0 if square == 0 else math.inf
    return math.sqrt(square) / norm


def _change(third: Sums, whole: Sums) -> float:
    """Return how much the third run changed a tensor, relative to its norm."""
    added = _added([third], 1, whole)
    if added is None or whole.square is None or copies_of([third], whole) != 1:
        return 0.0
    change = _distance(*added, math.sqrt(whole.square))
    return change if math.isfinite(change) else 0.0


def _rounding(whole: Sums) -> float:
    """Return a bound for the rounding of the sums themselves, relative to the norm (Higham 2002, section 3.1).

    A sum of n products errs by at most n * 2^-53 times the sum of their sizes, at most the norm times the root of n.
    """
    additions = sum(abs(size) for size in whole.dims) + whole.calls
    return additions * _UNIT * _LARGEST * math.sqrt(max(whole.elements, 1.0))


def first_backward(case: Against) -> tuple[str, Sums] | None:
    """Return the first module in the backward pass whose output's gradient is not a multiple of that on one rank.

    A mean over a rank's own samples has larger gradients than one over all: each by the same factor.
    """
    alone, changed = case.one.steps[case.step - 1], case.rounded.steps[case.step - 1]
    ranks = [record.steps[case.step - 1] for record in case.many.values()]
    noise, factor = 0.0, None
    for name, whole in alone.output_gradients.items():
        if any(_is_below(name, each) for each in case.own):
            continue
        parts = [step.output_gradients[name] for step in ranks if name in step.output_gradients]
        third = changed.output_gradients.get(name)
        copies = copies_of(parts, whole) if parts else None
        added = _added(parts, copies, whole) if copies is not None else None
        if third is None or added is None or not whole.square:
            continue
        noise = max(noise, _change(third, whole))
        norm, allowed = math.sqrt(whole.square), _DEVIATIONS * max(noise, _rounding(whole))
        own, rest = _multiple(*added, norm)
        factor = own if factor is None else factor
        if own is None or factor is None:
            continue
        if rest > allowed or abs(own / factor - 1) > 2 * allowed:
            return name, whole
    return None


def rows_of(step: Step) -> list[list[int] | None]:
    """Return the samples of each training forward of a step."""
    return [forward.rows for forward in step.forwards if forward.grad]
