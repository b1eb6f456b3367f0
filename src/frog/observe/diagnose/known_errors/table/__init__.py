"""The table of known errors: a TOML file per subject. In each text, the first entry that matches counts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from frog.core.errors import RunError
from frog.core.schema import Typed, convert, read_toml
from frog.observe.diagnose.known_errors.table.known import KnownError, KnownErrors

SUBJECTS = (
    "schedulers", "networks", "memory", "gpus", "collectives", "downloads", "rendezvous", "libraries", "checkpoints",
    "models", "files", "exits",
)  # fmt: skip
"""Names of the files, in the order in which their entries are tried: specific messages before general ones."""
_FOLDER = Path(__file__).parent
_HINT = "correct the entry; CONTRIBUTING.md describes its fields"


class Subject(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A file of the table: a heading of the page of known errors, and the entries under it."""

    title: Annotated[str, msgspec.Meta(min_length=1)]
    error: tuple[KnownError, ...]


@cache
def subjects() -> tuple[Subject, ...]:
    """Return the files of the table, in order. The first call reads them."""
    return tuple(read_subject(_FOLDER / f"{name}.toml") for name in SUBJECTS)


@cache
def known_errors() -> KnownErrors:
    """Return the entries of all subjects, with their index."""
    return KnownErrors(tuple(error for subject in subjects() for error in subject.error))


def read_subject(path: Path) -> Subject:
    """Read a file of the table.

    Raises:  RunError if an entry is wrong; it names the entry.
    """
    table = read_toml(path, hint=_HINT)
    try:
        return convert(table, Subject, str(path), _HINT)
    except RunError:
        _check_entries(table, path)
        raise


def _check_entries(table: dict[str, Any], path: Path) -> None:
    """Convert the entries one by one, so that an error names the entry and not its number."""
    entries = table.get("error")
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        name = entry.get("id", f"number {number + 1}") if isinstance(entry, dict) else f"number {number + 1}"
        convert(entry, KnownError, f"{path}: error {name}", _HINT)
