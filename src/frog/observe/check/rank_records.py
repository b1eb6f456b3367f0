"""What each rank recorded for a check (`hook/frog_observer`), as typed data: observed/attempt_A/rank_N/checks.jsonl.

A rank may have been killed while it wrote, so the last line may be damaged; a damaged line before it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

from frog.core.errors import RunError
from frog.core.runs.event_schema import Count, Rank
from frog.core.schema import read_bounded

NAME = "checks.jsonl"
MEAN = 1
"""The reduction of a loss function that averages, as torch numbers it."""
_MOST_BYTES = 128 << 20


class Place(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        name = PurePath(self.file).name or self.file
        return f"{name}:{self.line}" + (f" ({self.function})" if self.function not in ("", "<module>") else "")


class Fingerprint(NamedTuple):
    """What stands for a tensor (the observer's fingerprints.py)."""

    bits: int
    norm: float | None
    """Euclidean norm; None: the tensor has a NaN or an infinity."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    pass


class Start(_Line, frozen=True, kw_only=True, tag="start"):
    """The first line of a file."""

    rank: Rank
    world_size: Count
    every: Count
    torch: str = ""


class Module(_Line, frozen=True, kw_only=True, tag="module"):
    """A module that the program called from outside any other."""

    module: Count
    name: str = msgspec.field(name="class")
    wrapper: str | None = None
    """ddp, fsdp1, fsdp2 or deepspeed, if it is such a wrapper."""
    inside: str | None = None
    """The class of the wrapper whose module it is, if the program went past the wrapper."""
    broadcasts: bool | None = None
    """True if the DDP wrapper that it is, or is inside of, sends the buffers of rank 0; None without one."""
    made: Place | None = None
    """The line that made this wrapper."""
    shards: bool = False
    """True if FSDP2 keeps a part of it, or of a module inside of it, on each rank."""
    modes: bool = True
    """False: it computes the same in training and in evaluation mode."""
    untied: tuple[str, Place | None] | None = None
    """The head that its configuration ties to the embedding, if it is another tensor, and the line that made it."""
    adapters: tuple[Count, Count] = (0, 0)
    """Tensors of adapters, and those of them that need a gradient."""
    reduction: tuple[str, str, Count] | None = None
    """The types in which it reduces gradients and computes them, and over how many ranks, if it says so."""
    lowered: list[str] = []
    """Buffers in half precision, if all parameters are in float32."""
    adapters_selected: Place | None = None
    """The line that chose which parameters need a gradient, and decided it for the adapters."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that an optimizer holds."""

    names: list[str]
    """Its names in the module; several if it is tied; none if no module that was called has it."""
    module: Count | None
    shape: list[Count]
    dtype: str
    trained: bool
    made: Place | None = None
    """The line that created it."""
    ddp: list[Rank] | None = None
    """The ranks on which DDP keeps it equal."""
    owner: str = ""
    """The class of the module that has it."""
    constant: bool = False
    """True if all its elements were equal when it was first seen."""
    drawn: int = 0
    """How often one line drew its elements before the first step, if more than once."""
    drawn_at: Place | None = None
    seed: tuple[int, Place | None] | None = None
    """The seed that was set when it was created, and the line that set it."""
    selected: Place | None = None
    """The line that chose which parameters need a gradient, if it decided it for this one too."""
    group: Count | None = None
    """Its group in the optimizer; None for a part of a flat tensor."""
    frozen_in_ddp: Place | None = None
    """The line that made DDP's wrapper, if the parameter needed no gradient then."""
    placements: list[str] | None = None
    mesh: Any = None
    offset: list[Count] = []
    """The place of its first element in the whole, if an optimizer's flat tensor has only a part of a parameter."""
    whole: list[Count] = []
    """The shape of that whole."""

    @property
    def numel(self) -> int:
        product = 1
        for width in self.shape:
            product *= width
        return product


class Parameters(_Line, frozen=True, kw_only=True, tag="parameters"):
    """What an optimizer holds, from now on."""

    optimizer: Count
    name: str = msgspec.field(name="class")
    made: Place | None = None
    schedule: Place | None = None
    """The line that made the scheduler of its learning rate."""
    lowered: Place | None = None
    """The line that moved a module to half precision last."""
    parameters: list[Parameter]


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an outermost module."""

    module: Count
    training: bool
    grad: bool
    line: Place | None = None
    sync: bool | None = None
    """False: in DDP's `no_sync`. None: no DDP."""
    rows: list[int] | None = None
    random: int | None = None
    """Checksum of the random states of CPU and GPU before it."""
    draws: bool | None = None
    """True if it drew random numbers."""
    noisy: bool = False
    """True if it drew random numbers although all of the module is in evaluation mode."""
    early: bool = False
    """True if it evaluates a spectral norm before the first training forward."""
    unset: Place | None = None
    """The `train()` of a class of the user's that acts on its module, if nothing has called it."""
    others: dict[str, int] = {}
    """Bits of the weights that the optimizers of other ranks hold, by name."""
    buffers: dict[str, int] = {}
    """Bits of the running statistics that the first evaluation after a step begins with, by name."""
    autocast: bool = False
    lowered: bool | None = None
    """True if a layer under autocast returned half precision; None if there was no such layer."""


class Node(NamedTuple):
    """An operation of the graph of a loss."""

    name: str
    reduction: int | None
    """1 for a loss function that averages, 2 for one that adds."""
    weight: float | None
    """How many targets a cross entropy counted."""
    factor: float | None = None
    """The number by which it multiplies or divides."""


class Backward(msgspec.Struct, frozen=True, kw_only=True):
    """A backward pass."""

    line: Place | None = None
    graph: list[Node] = []
    loss: float | None = None
    retains: bool = False
    """True if it was asked to keep the graph."""
    adds: bool = False
    """True if it began with gradients that were not zero."""
    bits: dict[int, list[int | None]] = {}
    """The gradients' bits after it, by optimizer."""
    brought: dict[int, dict[int, list[float]]] = {}
    """Parts of the gradients that it brought, before anything reduced them, by optimizer and place in it."""
    digits: dict[int, str] = {}
    """The type in half precision that holds each sampled element of an optimizer's gradients in float32 after it."""
    scale: float | None = None
    """The factor with which a GradScaler has multiplied the loss; None if it has not."""
    left: dict[int, dict[int, list[float]]] = {}
    """Parts of the gradients that are there after it although it brought none to the tensor that is held: of shards."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a watched function of torch."""

    call: str
    line: Place | None = None
    norm: float | None = None
    limit: float | None = None
    untouched: bool = False
    """Of clipping: the gradients were those that the last of several backward passes left."""
    op: str | None = None
    dtype: str = ""
    elements: int = 0
    ranks: list[Rank] | None = None
    after_backward: bool = False
    """True between a backward pass and the step, outside of modules: what is reduced there is not an activation."""
    bits: int | None = None
    entered: int | None = None
    """The bits with which the rank called it."""
    value: float | None = None
    """The number with which a rank called a reduction of one element; None if it is not known, or not finite. Of a
    GradScaler's step, its scale."""
    named: dict[str, str] = {}
    """Variables of the user's that were keys of a mapping when few elements were reduced, and what they were."""
    orders: list[list[str]] = []
    """The keys of the user's mappings with as many values as elements were reduced."""
    words: list[int] = []
    """Words that a module looked up and whose row in the sum is zero."""
    path: str | None = None
    keys: list[str] = []
    numbers: dict[str, int] = {}
    """Integers of a checkpoint; of a dictionary in it, as "name.key"."""
    updates: int | None = None
    """How many steps an optimizer has taken by the state that was loaded, if it counts them, as Adam does."""
    rates: list[float] = []
    """Learning rates of the optimizers in a checkpoint, or of an optimizer after its state was loaded."""
    rates_before: list[float] = []
    """Its learning rates before that."""
    moments: list[int | None] = []
    """Bits of each parameter's state in an optimizer."""
    covers: list[int] = []
    """The optimizers of which all gradients were clipped."""
    waited: bool | None = None
    """Whether the program waited for an asynchronous collective before the step; None for other calls."""
    live: bool = False
    """True if another thread than the main one saves tensors that an optimizer changes."""
    missing: list[str] = []
    partly: bool = False
    """True if a module has other parameters that are not missing."""
    unexpected: list[str] = []
    direct: bool = True
    """False: a library called it, not the user's program."""
    ignored: list[str] = []
    """Names in a file, if a load into a module that has them changed nothing and the module has nothing of the file."""
    moved: list[tuple[str, str]] = []
    """Names of a module's weights, with the name in the file under which these numbers are."""
    lost: list[str] = []
    """Weights that were loaded and are others at the next step; or that are trained and were loaded elsewhere."""
    part: float = 0.0
    """How many of the matrices that were loaded these are."""
    gone: bool = False
    """True if the module that was loaded no longer exists at the next step."""
    optimizer: int | None = None
    """The optimizer whose learning rate a scheduler changed, or whose state was loaded."""
    module: str = ""
    name: str = msgspec.field(name="class", default="")


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What stands for a tensor in any division among ranks (the observer's module_sums.py)."""

    calls: Count
    dims: list[int]
    """Sizes; -1: it varies. Empty: the number of dimensions does."""
    elements: float
    """Elements of this rank; a sum that is still to be added over n ranks counts as one n-th."""
    sums: list[float] | None
    """By dimension added up or weighted, the last dimension's choice first; None: not finite."""
    square: float | None
    """Sum of the squares; None with sums: the ranks' tensors are summands of one that is not there yet."""
    name: str = msgspec.field(name="class", default="")
    """The class of the module."""
    line: Place | None = None
    """The line that called the module."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What holds graphs of several earlier steps."""

    name: str
    """The variable's or the attribute's."""
    attribute: bool = False
    line: Place | None = None
    """The line that adds to it."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs of autograd that are there two steps or more after their own."""

    steps: Count
    """How many earlier sampled steps have left one."""
    first: Count
    """The earliest of them."""
    what: str = ""
    """What it made: loss or output."""
    line: Place | None = None
    """The line of the earliest one's backward pass, or forward."""
    holder: Holder | None = None


class Step(_Line, frozen=True, kw_only=True, tag="step"):
    """A step of an optimizer, and what happened since the step before."""

    optimizer: Count
    step: Count
    """Its number among this optimizer's, from 1."""
    number: Count
    """Its number among all steps of the process, from 1."""
    line: Place | None = None
    lr: list[float | None] = []
    gradients: list[Fingerprint | None] | None = None
    """None: not sampled."""
    before: list[int | None] = []
    parts: dict[int, list[float]] = {}
    """Four dot products of sampled elements of the gradient of some parameters (the observer's fingerprints.py)."""
    weights: list[Fingerprint | None] = []
    changed: list[float | None] = []
    """Which part of the sampled elements with a gradient the step changed, by parameter."""
    state: list[list[str]] = []
    kept: Kept | None = None
    """None: all graphs of earlier steps are gone, or the step was not sampled."""
    stale: bool = False
    """True if the gradients of the last step were never cleared."""
    forwards: list[Forward] = []
    backwards: list[Backward] = []
    calls: list[Call] = []
    messages: bool = False
    """True if the program has sent or received a message between two ranks so far."""
    exchanges: bool = False
    """True if ranks have given each other parts of their activations so far, as those with experts do."""
    outputs: dict[str, Sums] = {}
    """What each module returned, by its name, in the order in which they ended (only against one rank)."""
    output_gradients: dict[str, Sums] = {}
    """The gradients of what they returned, in the order of the backward pass."""
    gradient_sums: list[Sums | None] = []
    before_sums: list[Sums | None] = []
    weight_sums: list[Sums | None] = []

    def gradient(self, index: int) -> Fingerprint | None:
        """Return the gradient of the optimizer's parameter with this index; None if it has none or is unknown."""
        return self.gradients[index] if self.gradients is not None and index < len(self.gradients) else None

    def gradient_bits(self, index: int) -> int | None:
        """Return what decides whether two ranks use the same gradient: the norm is rounded."""
        gradient = self.gradient(index)
        return gradient.bits if gradient is not None else None

    def weight_bits(self, index: int) -> int | None:
        """Return what decides whether two ranks have the same weights after the step."""
        weight = self.weights[index]
        return weight.bits if weight is not None else None


class Loader(_Line, frozen=True, kw_only=True, tag="loader"):
    """A new iteration over a DataLoader."""

    loader: Count
    iteration: Count
    line: Place | None = None
    sampler: str = ""
    distributed: bool = False
    epoch: int | None = None
    """That of a DistributedSampler, or of a stream whose iteration reads one."""
    persistent: bool = False
    """True if its workers stay from one epoch to the next."""
    shuffle: bool = False
    padded: bool = False
    made: Place | None = None
    """The line that made it, if a library iterates over it."""
    split_again: bool = False
    """True if a library leaves out other ranks' batches of what a DistributedSampler gives to this rank alone."""
    fills_up: bool = False
    """True if accelerate repeats samples, so that all ranks have batches of the same size."""
    skipped: int | None = None
    """Batches that it leaves out at its beginning; None: its sampler may begin anywhere, or repeat samples."""
    samples: int | None = None
    batches: int | None = None
    """How many batches it has in one iteration."""
    workers: int = 0
    seed: int | None = None
    size: int | None = None
    """Samples in a batch."""
    generators: list[str] = []
    """Attributes of the data set that draw random numbers, if no function prepares the workers."""


_MOST_ROWS = 256
"""Samples of a batch that are read at most: see `fingerprints.py` of the observer."""


class Batch(_Line, frozen=True, kw_only=True, tag="batch"):
    """A batch of a DataLoader."""

    step: Count
    """Steps before it."""
    loader: Count
    iteration: Count
    batch: Count
    rows: list[int] | None = None
    sizes: list[int] = []
    """The first dimension of each of its tensors."""

    @property
    def has_all_rows(self) -> bool:
        """True if `rows` are all of its samples: the observer reads no more than the first of a large batch."""
        return 0 < len(self.rows or ()) < _MOST_ROWS


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter that had a gradient before a step and that no optimizer held."""

    module: Count
    name: str
    made: Place | None = None
    stranger: bool = False
    """True if its module was called inside of the model and is not a part of it."""


class End(_Line, frozen=True, kw_only=True, tag="end"):
    """The end of the program."""

    steps: Count
    calls: list[Call] = []
    messages: bool = False
    exchanges: bool = False
    backwards: int = 0
    """Backward passes after the last step."""
    outside: list[Outside] = []


class Stopped(_Line, frozen=True, kw_only=True, tag="stopped"):
    """Why a rank recorded nothing more."""

    why: str


@dataclass
class RankRecord:
    """Everything that one rank recorded."""

    rank: int
    start: Start
    path: str
    """Its file, relative to the run folder."""
    modules: dict[int, Module] = field(default_factory=dict)
    tables: dict[int, Parameters] = field(default_factory=dict)
    """The last one of each optimizer."""
    steps: list[Step] = field(default_factory=list)
    loaders: list[Loader] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    end: End | None = None
    stopped: str = ""

    def steps_of(self, optimizer: int) -> list[Step]:
        """Return an optimizer's steps."""
        return self._steps_by_optimizer.get(optimizer, [])

    def sampled(self, optimizer: int) -> list[Step]:
        """Return an optimizer's steps whose tensors were read."""
        return [step for step in self.steps_of(optimizer) if step.gradients is not None]

    def trains(self, module: Module) -> bool:
        """True if an optimizer holds parameters of an outermost module: others are only read, as a teacher is."""
        return any(each.module == module.module for table in self.tables.values() for each in table.parameters)

    def batches_of(self, loader: Loader) -> list[Batch]:
        """Return the batches of an iteration over a DataLoader."""
        return self._batches_by_iteration.get((loader.loader, loader.iteration), [])

    @cached_property
    def _steps_by_optimizer(self) -> dict[int, list[Step]]:
        by_optimizer: dict[int, list[Step]] = {}
        for step in self.steps:
            by_optimizer.setdefault(step.optimizer, []).append(step)
        return by_optimizer

    @cached_property
    def _batches_by_iteration(self) -> dict[tuple[int, int], list[Batch]]:
        by_iteration: dict[tuple[int, int], list[Batch]] = {}
        for batch in self.batches:
            by_iteration.setdefault((batch.loader, batch.iteration), []).append(batch)
        return by_iteration

    def calls(self, *names: str) -> Iterator[tuple[int, Call]]:
        """Yield the calls of some functions, each with the number of the step it came before."""
        for step in self.steps:
            yield from ((step.number, call) for call in step.calls if call.call in names)
        if self.end is not None:
            yield from ((self.end.steps + 1, call) for call in self.end.calls if call.call in names)


_AnyLine = Start | Module | Parameters | Step | Loader | Batch | End | Stopped
_decoder = msgspec.json.Decoder(_AnyLine)


def line_of_unequal_seeds(records: Iterable[RankRecord], name: str) -> Place | None:
    """Return the line that set another seed on each of some ranks before they created a parameter; None if none did."""
    seeds = [
        each.seed
        for record in records
        for table in record.tables.values()
        for each in table.parameters
        if each.names[:1] == [name] and each.seed is not None
    ]
    return seeds[0][1] if len({number for number, _ in seeds}) > 1 else None


def read_records(run: Path, attempt: int | None = None) -> dict[int, RankRecord]:
    """Read what the ranks of a run recorded in a start; empty if they recorded nothing.

    attempt: the number of the start; None: the last one with records.

    Raises:  RunError if a file is damaged.
    """
    return next(read_starts(run, attempt), {})


def read_starts(run: Path, attempt: int | None = None) -> Iterator[dict[int, RankRecord]]:
    """Yield what the ranks recorded in each start, the last one first.

    attempt: the number of the start to begin with; None: the last one with records.

    Raises:  RunError if a file is damaged.
    """
    starts = sorted((run / "observed").glob("attempt_*"), key=lambda path: (len(path.name), path.name), reverse=True)
    names = [path.name for path in starts]
    if attempt is not None:
        starts = starts[names.index(f"attempt_{attempt}") :] if f"attempt_{attempt}" in names else []
    for start in starts:
        of_files = [_read(path, run) for path in sorted(start.glob(f"rank_*/{NAME}"))]
        records = {record.rank: record for record in of_files if record is not None}
        if records or attempt is not None:
            yield dict(sorted(records.items()))


def _read(path: Path, run: Path) -> RankRecord | None:
    lines = read_bounded(path, most_bytes=_MOST_BYTES).splitlines()
    record: RankRecord | None = None
    for number, text in enumerate(lines, start=1):
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            if number == len(lines):
                break
            raise RunError(f"{path}: line {number}: {error}", "run frog check again") from None
        if isinstance(line, Start):
            record = RankRecord(line.rank, line, str(path.relative_to(run)))
        elif record is not None:
            _add(record, line)
    if record is not None:
        _fill_up(record)
    return record


def _fill_up(record: RankRecord) -> None:
    """Let each sampled step have a place for every parameter that its optimizer holds at the end.

    A layer that is trained later, and added to an optimizer, is not in its first steps.
    """
    for step in record.steps:
        table = record.tables.get(step.optimizer)
        if table is None or step.gradients is None:
            continue
        for values in (step.gradients, step.before, step.weights, step.changed):
            values.extend([None] * (len(table.parameters) - len(values)))


def _add(record: RankRecord, line: _AnyLine) -> None:
    match line:
        case Module():
            record.modules[line.module] = line
        case Parameters():
            record.tables[line.optimizer] = line
        case Step():
            record.steps.append(line)
        case Loader():
            record.loaders.append(line)
        case Batch():
            record.batches.append(line)
        case End():
            record.end = line
        case Stopped():
            record.stopped = line.why
        case Start():
            pass
