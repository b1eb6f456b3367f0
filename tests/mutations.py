"""Damaged files: every key missing, null, of another type, huge or NaN; and bytes that are not such a file at all.

    held_to_its_schema(path, lambda: load_cluster(path.parent))

replaces a good file by each of them, reads it, and restores the good one. A reader may accept the file or raise a
FrogError that names it. Any other result (a traceback, an error without the file's name) fails the test, which lists
all of them.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from frog.core.errors import FrogError

NAN = float("nan")

_OTHERS: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**9, 10**30, 1e308, NAN, float("inf"), "", "x", "../../etc/passwd", "\0",
    "x" * 100_000, [], [None], [[]], {}, {"x": {}},
)  # fmt: skip
"""Replacements for a value."""


def mutations(value: Any, place: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield copies of a JSON value with one error each and its description; lists get their ends changed."""
    for other in _OTHERS:
        if other != value or type(other) is not type(value):
            yield f"{place} = {_short(other)}", other
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{place}.{key} gone", {name: kept for name, kept in value.items() if name != key}
            for what, changed in mutations(item, f"{place}.{key}"):
                yield what, {**value, key: changed}
    if isinstance(value, list) and value:
        yield f"{place}[-1] twice", [*value, value[-1]]
        for index in {0, len(value) - 1}:
            yield f"{place}[{index}] gone", value[:index] + value[index + 1 :]
            for what, changed in mutations(value[index], f"{place}[{index}]"):
                yield what, [*value[:index], changed, *value[index + 1 :]]


def damages(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies of a file's bytes, and a description of each."""
    yield "empty", b""
    yield "cut in half", good[: len(good) // 2]
    yield "not UTF-8", b"\xff\xfe" + good
    yield "zeros", bytes(len(good) or 8)
    yield "one byte too many", good + b"}"
    yield "nested deep", b'{"format": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield "never closed", b"[" * 100_000
    yield "a number of 5000 digits", b'{"format": ' + b"9" * 5000 + b"}"
    yield "half a surrogate", b'{"format": "\\ud800"}'


def held_to_its_schema(
    path: Path,
    read: Callable[[], object],
    *,
    names: str | None = None,
    dump: Callable[[Any], bytes] | None = None,
    error: type[Exception] = FrogError,
) -> None:
    """Read `path` in every damaged form: expect success, or an error that contains `names` (default: the file's name).

    `dump` converts a changed table to the file's bytes (default: JSON, or TOML for a .toml file).
    """
    good = path.read_bytes()
    names = path.name if names is None else names
    toml = path.suffix == ".toml"
    dump = dump or (to_toml if toml else lambda table: json.dumps(table).encode())
    table = tomllib.loads(good.decode()) if toml else json.loads(good)
    tried = _Tried(names, error)
    read()
    try:
        for what, changed in mutations(table):
            if not toml or _fits_toml(changed):
                path.write_bytes(dump(changed))
                tried.call(what, read)
        for what, data in damages(good):
            path.write_bytes(data)
            tried.call(what, read)
        path.unlink()
        path.mkdir()
        tried.call("a folder", read)
        path.rmdir()
        os.mkfifo(path)
        tried.call("a named pipe", read)
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(good)
    tried.check()


def table_held_to_its_schema(table: Any, read: Callable[[Any], object], names: str) -> None:
    """Do the same as `held_to_its_schema` for a table inside a file: `read` takes it, and errors contain `names`."""
    read(table)
    tried = _Tried(names, FrogError)
    for what, changed in mutations(table):
        tried.call(what, partial(read, changed))
    tried.check()


class _Tried:
    """Collects results that are neither success nor a proper Frog error."""

    def __init__(self, names: str, error: type[Exception]) -> None:
        self._names, self._error = names, error
        self._wrong: list[str] = []

    def call(self, what: str, read: Callable[[], object]) -> None:
        try:
            read()
        except self._error as problem:
            text = str(problem)
            if self._names not in text:
                self._wrong.append(f"{what}: does not name {self._names}: {text[-200:]}")
            if len(text) > 2000:
                self._wrong.append(f"{what}: an error of {len(text)} characters: {text[-200:]}")
        except Exception as problem:
            self._wrong.append(f"{what}: {type(problem).__name__}: {str(problem)[:200]}")

    def check(self) -> None:
        assert not self._wrong, f"{len(self._wrong)} wrong answers:\n" + "\n".join(self._wrong[:20])


def to_toml(table: dict[str, Any]) -> bytes:
    """Return a table as TOML with inline sections."""
    return "".join(f"{json.dumps(key)} = {_toml_value(value)}\n" for key, value in table.items()).encode()


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def _fits_toml(table: Any) -> bool:
    return isinstance(table, dict) and not _has_null(table)


def _has_null(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(_has_null, items))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 30 else f"{text[:30]}…"
