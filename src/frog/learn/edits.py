"""Solutions as edits of the reference: the entries of an exercise's solutions.toml, and how to compute and write them.

    [[wrong.sum-is-average]]
    replace = '    total /= dist.get_world_size()'
    by = '    total /= 1'

`replace` occurs exactly once in the reference, and `by` replaces it. Each edit of a solution refers to the
reference as it is, so their order does not matter, and no two of them overlap.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import FileName, Typed, convert, parse_toml, read_toml, shortened

TABLE = "solutions.toml"
Kind = Literal["right", "wrong"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*(?:\.[0-9]+)?")
"""Name of a solution, such as sum-is-average.2."""

_HINT = "see docs/learn/exercises.md, or write the entry with frog learn dev add"
_LARGEST_SHARE = 0.6  # of a solution's text that edits may repeat; a larger difference stays a file


class Edit(Typed, frozen=True, forbid_unknown_fields=True):
    """A text of the reference that occurs once there, and the text that replaces it."""

    replace: Annotated[str, msgspec.Meta(min_length=1)]
    by: str
    file: FileName | None = None
    """The file with the text; by default the exercise's first one."""


_Edits = Annotated[tuple[Edit, ...], msgspec.Meta(min_length=1)]


# ---- read and apply --------------------------------------------------------------------------------------------------


def read_edits(table: Path) -> dict[Kind, dict[str, tuple[Edit, ...]]]:
    """Read the solutions of a solutions.toml by kind and name; none if the file does not exist.

    Raises:  UsageError that names the file and the solution.
    """
    try:
        tables = read_toml(table, UsageError, _HINT)
    except FileNotFoundError:
        tables = {}
    return edits_in(tables, str(table))


def edits_in(found: Mapping[str, object], origin: str) -> dict[Kind, dict[str, tuple[Edit, ...]]]:
    """Return the solutions of a parsed solutions.toml; `origin` names it in errors."""
    if unknown := sorted(found.keys() - set(KINDS)):
        raise UsageError(f"{origin}: found the table {unknown[0]}, expected [[wrong.NAME]] or [[right.NAME]]", _HINT)
    solutions: dict[Kind, dict[str, tuple[Edit, ...]]] = {}
    for kind in KINDS:
        named = convert(found.get(kind, {}), dict[str, object], f"{origin}: {kind}", _HINT, UsageError)
        for name in named:
            if NAME.fullmatch(name) is None:
                raise UsageError(f"{origin}: found the solution {name!r}, expected a name like sum-is-average.2", _HINT)
        solutions[kind] = {
            name: convert(edits, _Edits, f"{origin}: {kind}/{name}", _hint_for(name, edits), UsageError)
            for name, edits in named.items()
        }
    return solutions


def _hint_for(name: str, edits: object) -> str:
    """Return the hint for an invalid entry. TOML reads the dot of an unquoted name as a table in a table."""
    tables = edits if isinstance(edits, list) else [edits]
    numbers = [key for table in tables if isinstance(table, dict) for key in table if key.isdecimal()]
    return f'quote a name with a dot: "{name}.{numbers[0]}"' if numbers else _HINT


def apply_edits(files: Mapping[str, bytes], edits: Sequence[Edit]) -> tuple[dict[str, bytes], list[str]]:
    """Return the edited files, and a problem for each edit that does not apply, which is left out.

    files: the reference, the exercise's first file first.
    """
    edited, problems = dict(files), []
    for name in dict.fromkeys(edit.file or next(iter(files)) for edit in edits):
        if name not in files:
            problems.append(f"the reference has no file {name}, expected one of {', '.join(files)}")
            continue
        own = [edit for edit in edits if (edit.file or next(iter(files))) == name]
        edited[name], wrong = _edit_file(files[name], own, name)
        problems += wrong
    return edited, problems


def _edit_file(text: bytes, edits: Sequence[Edit], name: str) -> tuple[bytes, list[str]]:
    places, problems = [], []
    for edit in edits:
        old = edit.replace.encode()
        if edit.replace == edit.by:
            problems.append(f"{_quoted(edit.replace)} is replaced by the same text")
        elif (times := _occurrences(text, old)) != 1:
            problems.append(f"{_quoted(edit.replace)} occurs {times} times in reference/{name}, expected once")
        else:
            places.append((text.find(old), edit))
    pieces, end, before = [], 0, ""
    for start, edit in sorted(places, key=lambda place: place[0]):
        if start < end:
            problems.append(f"{_quoted(edit.replace)} overlaps with {_quoted(before)} in reference/{name}")
            continue
        pieces += [text[end:start], edit.by.encode()]
        end, before = start + len(edit.replace.encode()), edit.replace
    return b"".join([*pieces, text[end:]]), problems


def _occurrences(text: bytes, part: bytes) -> int:
    """Count also occurrences that overlap each other."""
    count, at = 0, text.find(part)
    while at >= 0:
        count, at = count + 1, text.find(part, at + 1)
    return count


def _quoted(text: str) -> str:
    """Quote the first line of a text that names an edit in an error."""
    lines = text.strip().splitlines() or [text]
    more = f" (the first of {len(lines)} lines)" if len(lines) > 1 else ""
    return f"`{shortened(lines[0].strip())}`{more}"


# ---- compute from a changed file -------------------------------------------------------------------------------------


def find_edits(reference: Mapping[str, bytes], solution: Mapping[str, bytes]) -> tuple[Edit, ...] | None:
    """Return the edits that turn the reference's files into the solution's; None if files say it more clearly.

    Edits consist of whole lines, and of as few as a text that occurs once needs.
    """
    edits: list[Edit] = []
    for name, data in solution.items():
        if data != reference[name]:
            try:
                old, new = reference[name].decode(), data.decode()
            except UnicodeDecodeError:
                return None
            file = None if name == next(iter(reference)) else name
            spans = _changed_lines(old.splitlines(True), new.splitlines(True))
            edits += [_edit_of(before, after, old, file) for before, after in spans]
    changed_bytes = sum(len(data) for name, data in solution.items() if data != reference[name])
    repeated_bytes = sum(len(edit.replace.encode()) + len(edit.by.encode()) for edit in edits)
    if not edits or repeated_bytes > _LARGEST_SHARE * changed_bytes:
        return None
    applied, problems = apply_edits(reference, edits)
    return tuple(edits) if not problems and applied == {**reference, **solution} else None


@dataclass
class _Span:
    """Lines low to high of the reference, and the changes within them."""

    low: int
    high: int
    changes: list[tuple[int, int, int, int]] = field(default_factory=list)
    """As in difflib: lines i1 to i2 of the reference become lines j1 to j2 of the solution."""


def _changed_lines(old: list[str], new: list[str]) -> list[tuple[str, str]]:
    """Return the texts that differ, each widened until it occurs once in the reference, and what replaces them."""
    spans: list[_Span] = []
    for tag, *change in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        i1, i2, j1, j2 = change
        if tag == "equal":
            continue
        if spans and not any(re.search(r"\w", line) for line in old[spans[-1].high : i1]):
            spans[-1].high = i2  # only blank lines or brackets are between the two
            spans[-1].changes.append((i1, i2, j1, j2))
        else:
            spans.append(_Span(i1, i2, [(i1, i2, j1, j2)]))
    merged: list[_Span] = []
    for span in spans:
        low, high = _widened(span.low, span.high, old)
        while merged and low < merged[-1].high:
            last = merged.pop()
            low, high, span.changes = min(low, last.low), max(high, last.high), last.changes + span.changes
        merged.append(_Span(low, high, span.changes))
    return [("".join(old[span.low : span.high]), _replacement(span, old, new)) for span in merged]


def _widened(low: int, high: int, lines: list[str]) -> tuple[int, int]:
    """Return the fewest lines around low to high whose text has a word and occurs once, preferably with those above."""
    whole = "".join(lines).encode()
    for extra in range(len(lines) + 1):
        for above in range(min(extra, low), -1, -1):
            first, last = low - above, high + extra - above
            text = "".join(lines[first:last])
            if last <= len(lines) and re.search(r"\w", text) and _occurrences(whole, text.encode()) == 1:
                return first, last
    return 0, len(lines)


def _replacement(span: _Span, old: list[str], new: list[str]) -> str:
    pieces, at = [], span.low
    for i1, i2, j1, j2 in span.changes:
        pieces += old[at:i1] + new[j1:j2]
        at = i2
    return "".join([*pieces, *old[at : span.high]])


def _edit_of(before: str, after: str, reference: str, file: str | None) -> Edit:
    """Return an edit; one that replaces a line by a line leaves out the line's end if its text still occurs once."""
    if before.count("\n") == after.count("\n") == 1 and before.endswith("\n") and after.endswith("\n"):
        short = before.removesuffix("\n")
        if _occurrences(reference.encode(), short.encode()) == 1:
            return Edit(replace=short, by=after.removesuffix("\n"), file=file)
    return Edit(replace=before, by=after, file=file)


# ---- write -----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|^[ \t]*(?P<header>\[\[?[^\n#]*)|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*''',
    re.DOTALL | re.MULTILINE,
)
"""Texts, comments, and lines that begin a table, in the order in which TOML reads them."""


@dataclass
class _Part:
    """The text of one edit in a solutions.toml, with the comment lines directly above it."""

    kind: str
    name: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


def with_entry(text: str, kind: Kind, name: str, edits: Sequence[Edit]) -> str:
    """Return the text of a solutions.toml with this solution added or replaced (or removed, if it has no edits).

    All other text stays as it is, except for blank lines between solutions. Comments in a replaced solution move above
    it. A new solution goes before the first with a greater name.
    """
    head, parts = _split(text)
    old = [part for part in parts if part.key == (kind, name)]
    others = [part for part in parts if part.key != (kind, name)]
    if old and edits_in(parse_toml("".join(part.text for part in old)), TABLE)[kind][name] == tuple(edits):
        return text
    comments = "".join(f"{line}\n" for part in old for line in _comments(part.text)) if edits else ""
    after = parts.index(old[0]) if old else next((i for i, part in enumerate(parts) if part.key > (kind, name)), None)
    after = len(others) if after is None else after
    entries = [*(part.text for part in others[:after]), comments + entry_text(kind, name, edits)]
    entries += [part.text for part in others[after:]]
    pieces = [piece.strip("\n") for piece in (head, *entries)]
    return "\n\n".join(piece for piece in pieces if piece) + "\n" if any(pieces) else ""


def _split(text: str) -> tuple[str, list[_Part]]:
    """Split a valid solutions.toml into the text before the first table, and its tables."""
    starts: list[int] = []
    parts: list[_Part] = []
    for token in _TOKEN.finditer(text):
        if (header := token["header"]) is not None:
            try:
                ((kind, solutions),) = tomllib.loads(header).items()
                ((name, _),) = solutions.items()
            except ValueError:
                raise UsageError(f"{TABLE}: found the line {shortened(header)}, expected [[wrong.NAME]]") from None
            starts.append(_with_comments_above(text, token.start()))
            parts.append(_Part(kind, name, ""))
    for part, start, end in zip(parts, starts, [*starts[1:], len(text)], strict=False):
        part.text = text[start:end]
    return text[: starts[0]] if starts else text, parts


def _with_comments_above(text: str, start: int) -> int:
    """Return where the comment lines directly above a line begin."""
    lines = text[:start].splitlines(keepends=True)
    while lines and lines[-1].startswith("#"):
        start -= len(lines.pop())
    return start


def _comments(text: str) -> list[str]:
    return [token[0] for token in _TOKEN.finditer(text) if token[0].startswith("#")]


def entry_text(kind: Kind, name: str, edits: Sequence[Edit]) -> str:
    """Return the TOML of a solution."""
    key = name if "." not in name else f'"{name}"'
    entries = []
    for edit in edits:
        lines = [f"[[{kind}.{key}]]"]
        if edit.file is not None:
            lines.append(f"file = {toml_text(edit.file)}")
        entries.append("\n".join([*lines, f"replace = {toml_text(edit.replace)}", f"by = {toml_text(edit.by)}\n"]))
    return "\n".join(entries)


def toml_text(text: str) -> str:
    """Return a text as TOML: a literal if one can express it, so that code reads as in its file."""
    is_plain = all(char.isprintable() or char in "\n\t" for char in text)
    if is_plain and "'''" not in text and not text.endswith("'") and "\n" in text:
        return f"'''\n{text}'''"
    if is_plain and "\n" not in text:
        if "'" not in text:
            return f"'{text}'"
        if '"' not in text and "\\" not in text:
            return f'"{text}"'
        if "'''" not in text and not text.endswith("'"):
            return f"'''{text}'''"
    escaped = text.replace("\\", "\\\\")
    escaped = escaped.replace('"""', r"\"\"\"") if "\n" in text else escaped.replace('"', r"\"")
    escaped = "".join(char if char.isprintable() or char in "\n\t" else _escaped(char) for char in escaped)
    return f'"""\n{escaped}"""' if "\n" in text else f'"{escaped}"'


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
