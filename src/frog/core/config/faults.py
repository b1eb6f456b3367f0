"""The fault language: which fault to inject, on which rank, in which step and phase. Read from TOML or from text.

    [[fault]]
    kind = "kill"
    rank = 2
    step = 7
    phase = "reduce"

or as text: `kill rank=2 step=7 phase=reduce`. A fault happens when that rank begins that phase of that step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.config.fault_kinds import KINDS, Kind
from frog.core.config.load import unknown, unknown_keys
from frog.core.errors import ConfigError
from frog.core.runs.vocabulary import PHASES
from frog.core.schema import parse_toml, read_toml

_MOST_TOLD = 100
"""Number of mistakes to list; finding the closest valid word for each takes time."""

_COMMON = ("kind", "rank", "step", "phase", "micro", "times")


@dataclass(frozen=True)
class Fault:
    """A fault that happens once (or `times` times, each in another attempt of the world)."""

    kind: str
    rank: int
    step: int
    phase: str
    micro: int = 0
    """The micro-batch, for phases that run once per micro-batch."""
    times: int = 1
    seconds: float = 0.5
    after_s: float = 0.0
    for_s: float | None = None
    """None means forever."""
    signs: int = 3
    sent_bytes: int | None = None
    """Bytes that the rank sends of its next message before it is killed; None if it need not send any."""

    def __str__(self) -> str:
        """Return the text that `parse_fault` reads."""
        words = [self.kind, f"rank={self.rank}", f"step={self.step}", f"phase={self.phase}"]
        words += [
            f"{name}={getattr(self, name):g}" for name in ("micro", "times") if getattr(self, name) != _default(name)
        ]
        words += [f"{name}={getattr(self, name):g}" for name in self.own]
        return " ".join(words)

    @property
    def own(self) -> list[str]:
        """Names of the kind's own fields that differ from their defaults."""
        return [name for name in KINDS[self.kind].own if getattr(self, name) is not None]


def _default(name: str) -> Any:
    return Fault.__dataclass_fields__[name].default


@dataclass(frozen=True)
class Scene:
    """The world and the run that faults are aimed at."""

    world_size: int
    steps: int
    checkpoint_every: int
    eval_every: int
    grad_accum: int = 1
    network: bool = False
    native: bool = False
    """True if torch, DeepSpeed or a file of the user's implements the strategy."""
    own_backend: bool = False
    """True if the collectives run on Frog's own backend."""

    def problems(self, fault: Fault) -> list[str]:
        """Return the reasons why a fault would never happen there."""
        problems = []
        if fault.rank >= self.world_size:
            problems.append(f"rank={fault.rank}: this world has ranks 0 to {self.world_size - 1}")
        if fault.step > self.steps:
            problems.append(f"step={fault.step}: the run has {self.steps} steps")
        elif fault.phase in ("checkpoint", "evaluate") and not (
            fault.step == self.steps or fault.step in self._regular_steps(fault.phase)
        ):
            first = list(itertools.islice(self.steps_with(fault.phase), 9))
            named = ", ".join(map(str, first[:8])) + (", …" if len(first) > 8 else "")
            problems.append(f"step={fault.step}: phase {fault.phase} runs at steps {named}")
        elif fault.step == 0 and fault.phase != "evaluate":
            problems.append(f"step=0: only phase evaluate runs before step 1, not {fault.phase}")
        num_micro = self.grad_accum if fault.phase in ("forward", "backward") else 1
        if fault.micro >= num_micro:
            comes = f"{num_micro} times" if num_micro > 1 else "once"
            problems.append(
                f"micro={fault.micro}: phase {fault.phase} runs {comes} in a step, and the first is micro=0"
            )
        kind = KINDS[fault.kind]
        if kind.spoils_gradient and fault.phase == "reduce" and self.native:
            problems.append(
                f"{kind.name} phase=reduce: Frog does not hold this strategy's gradient; use phase=backward"
            )
        if missing := kind.missing(self.world_size, self.network, self.own_backend):
            problems.append(f"{kind.name}: {missing}")
        return problems

    def steps_with(self, phase: str) -> Iterator[int]:
        """Yield the steps after which the run evaluates or saves a checkpoint."""
        yield from self._regular_steps(phase)
        yield self.steps

    def _regular_steps(self, phase: str) -> range:
        """Return these steps without the last one, after which the run evaluates and saves a checkpoint."""
        every = self.eval_every if phase == "evaluate" else self.checkpoint_every
        return range(0 if phase == "evaluate" else every, self.steps, every)


def parse_faults(texts: Sequence[str], scene: Scene | None = None) -> list[Fault]:
    """Parse faults from texts like `kill rank=2 step=7 phase=reduce`.

    Raises:  ConfigError listing every mistake.
    """
    problems: list[str] = []
    tables = [(f"--fault {text!r}", _words(text, f"--fault {text!r}", problems)) for text in texts]
    return _build_all(tables, scene, problems)


def load_faults(path: Path, scene: Scene | None = None) -> list[Fault]:
    """Read faults from a TOML file with `[[fault]]` tables.

    Raises:  ConfigError listing every mistake.
    """
    try:
        content = read_toml(path, ConfigError, "correct that file, or name one with [[fault]] tables")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "name a file with [[fault]] tables") from None
    problems = [f"{path}: {problem}" for problem in unknown_keys(content, ["fault"])]
    listed = content.get("fault", [])
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed) or not listed:
        problems.append(f"{path}: contains no [[fault]] tables")
        listed = []
    tables = [(f"{path}, fault {number}", table) for number, table in enumerate(listed, 1)]
    return _build_all(tables, scene, problems)


def dump_faults(faults: Sequence[Fault]) -> str:
    """Return the TOML that `load_faults` reads."""
    lines = []
    for fault in faults:
        names = ["kind", "rank", "step", "phase", "micro", "times", *fault.own]
        lines += ["[[fault]]", *(f"{name} = {json.dumps(getattr(fault, name))}" for name in names), ""]
    return "\n".join(lines)


def marks_folder(faults: Path) -> Path:
    """The folder in which ranks leave a mark, `<number>.<time>`, for each fault of a list that has happened."""
    return faults.with_name(f"{faults.name}.met")


def _words(text: str, where: str, problems: list[str]) -> dict[str, Any]:
    kind, *rest = text.split() or [""]
    table: dict[str, Any] = {"kind": kind}
    for word in rest:
        name, equals, value = word.partition("=")
        if not equals:
            problems.append(f"{where}: {word}: must be NAME=VALUE, like step=7")
            continue
        table[name] = value
        with contextlib.suppress(ValueError, RecursionError):  # a bare word is a string
            table[name] = parse_toml(f"value = {value}")["value"]
    return table


def _build_all(
    tables: Sequence[tuple[str, Mapping[str, Any]]], scene: Scene | None, problems: list[str]
) -> list[Fault]:
    faults = []
    for where, table in tables:
        if len(problems) > _MOST_TOLD:
            break
        wrong: list[str] = []
        fault = _build(table, wrong)
        if fault is not None:
            faults.append(fault)
            wrong += scene.problems(fault) if scene is not None else []
        problems += [f"{where}: {problem}" for problem in wrong]
    if problems:
        listing = "\n".join(f"  - {problem}" for problem in problems)
        count = f"{len(problems)} mistakes" if len(problems) > 1 else "a mistake"
        raise ConfigError(f"faults: {count}\n{listing}", "`frog chaos list` shows all kinds; nothing was started")
    return faults


def _build(table: Mapping[str, Any], problems: list[str]) -> Fault | None:
    """Build a fault from a table, noting and skipping what is wrong with it; None if too little remains."""
    name = table.get("kind", "")
    if not isinstance(name, str) or name not in KINDS:
        problems.append("kind: missing" if name == "" else unknown(str(name), list(KINDS), "kind"))
        return None
    kind = KINDS[name]
    valid = [*_COMMON, *kind.own]
    problems += unknown_keys(table, valid)
    values = {key: table[key] for key in table if key in valid and not _wrong(kind, key, table[key], problems)}
    problems += [f"{key}: missing" for key in ("rank", "step") if key not in table]
    if "rank" not in values or "step" not in values:
        return None
    return Fault(**{"phase": kind.default, **values})


def _wrong(kind: Kind, key: str, value: Any, problems: list[str]) -> bool:
    """True if a field has an impossible value; also note the reason."""
    if key == "phase":
        if value not in PHASES:
            problems.append(unknown(str(value), PHASES, "phase"))
        elif value not in kind.phases:
            problems.append(f"phase={value}: {kind.name} can only happen in {', '.join(kind.phases)}")
        return value not in kind.phases
    if key in kind.own and key not in ("signs", "sent_bytes"):
        if type(value) in (int, float) and 0 <= value < float("inf"):
            return False
        problems.append(f"{key}={value}: must be a number of seconds, at least 0")
        return True
    least = 1 if key == "times" else 0
    if key == "kind" or (type(value) is int and value >= least):
        return False
    problems.append(f"{key}={value}: must be a whole number of at least {least}")
    return True
