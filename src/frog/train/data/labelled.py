"""Labelled texts: JSON lines of {"text", "label"} or {"prompt", "completion"}, split into training and held-out parts.

Lines may also have a "category", for results by category, and a "group". Lines of one group, such as variants of one
scene, are always in the same part, so no held-out line has a close variant in the training part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.config.finetune import GUARD
from frog.core.errors import DataError
from frog.core.files import sha256_file
from frog.core.schema import read_bounded, shortened
from frog.core.seeds import derive_seed
from frog.train.data.lines import parse_line

_GUARD_FILE = Path(__file__).parent / "guard" / "guard.jsonl"
_MOST_BYTES = 64 << 20
_SHAPES = {"classification": ("text", "label"), "completion": ("prompt", "completion")}


@dataclass(frozen=True)
class Example:
    """One line: a text with its class, or a prompt with its completion."""

    text: str
    label: str | None
    completion: str | None
    category: str | None
    group: str


@dataclass(frozen=True)
class LabelledSet:
    """The lines of one file, split into two parts by group."""

    path: Path
    data_sha256: str
    train: list[Example]
    heldout: list[Example]
    labels: tuple[str, ...]
    """The classes, sorted by name; empty for prompts and completions."""

    @property
    def name(self) -> str:
        return self.path.stem


def read_labelled(source: str, heldout: float) -> LabelledSet:
    """Read `guard`, the data set included in Frog, or a file.

    The hash of its name decides if a group is held out: the same lines for every seed, even when lines are added.

    Raises:  DataError with file and line for invalid content, or if one part is empty.
    """
    if not 0 < heldout < 1:
        raise DataError(f"--heldout {heldout:g}: must lie between 0 and 1", "0.25 is the default")
    path = _GUARD_FILE if source == GUARD else Path(source)
    examples = _read(path)
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        parts[derive_seed(0, "heldout", example.group) / 2**63 < heldout].append(example)
    if not all(parts):
        groups = len({example.group for example in examples})
        raise DataError(
            f"{path}: --heldout {heldout:g} splits {len(examples)} lines in {groups} groups into {len(parts[0])} for "
            f"training and {len(parts[1])} held out: both parts need some",
            "add lines, or change --heldout",
        )
    labels = tuple(sorted({example.label for example in examples if example.label is not None}))
    unseen = set(labels) - {example.label for example in parts[0]}
    if unseen or len(labels) == 1:
        which = f"class {shortened(', '.join(sorted(unseen)))} is" if unseen else f"class {labels[0]} is the only class"
        raise DataError(f"{path}: {which} {'not ' if unseen else ''}in the training part", "add lines of each class")
    return LabelledSet(path, sha256_file(path), *parts, labels)


def _read(path: Path) -> list[Example]:
    try:
        lines = read_bounded(path, DataError, most_bytes=_MOST_BYTES).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", f"--data {GUARD}, or a .jsonl file of labeled lines") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: broken UTF-8: {error.reason}", "save the file as UTF-8") from None
    examples = [_example(line, f"{path}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    if not examples:
        raise DataError(f"{path}: contains no lines", "check the path given to --data")
    kinds = {example.label is None for example in examples}
    if len(kinds) > 1:
        raise DataError(f"{path}: some lines have a label, others a completion", "use a separate file for each kind")
    return examples


def _example(line: str, place: str) -> Example:
    row = parse_line(line, place)
    if not isinstance(row, dict):
        raise DataError(f"{place}: found a {type(row).__name__}, expected an object", "repair the line")
    names = next((names for names in _SHAPES.values() if row.keys() >= set(names)), None)
    if names is None:
        have = shortened(", ".join(map(str, row))) or "none"
        raise DataError(f"{place}: found the fields {have}", "each line needs text and label, or prompt and completion")
    text, answer = (_word(row, name, place) for name in names)
    if not answer or (not text and "label" in names):
        raise DataError(f"{place}: {names[0] if answer else names[1]} is empty", "repair the line")
    category = None if row.get("category") is None else _word(row, "category", place)
    group = text if row.get("group") is None else _word(row, "group", place)
    if "label" in names:
        return Example(text, answer, None, category, group)
    return Example(text, None, answer, category, group)


def _word(row: dict[str, Any], name: str, place: str) -> str:
    value = row[name]
    if isinstance(value, bool | int) and name == "label":  # {"label": 1} is as common as {"label": "spam"}
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{place}: {name}={shortened(repr(value))}: must be a string", "repair the line")
    return value
