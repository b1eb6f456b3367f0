"""Files that went wrong: every key gone, null, of another type, huge, NaN; and bytes that are no such file at all.

    held_to_its_schema(path, lambda: load_cluster(path.parent))

writes each of them where a good file lies, reads it, and puts the good one back. A reader may take what it is given or
raise a FrogError that names the file. Anything else (a traceback, an error that says no file) fails the test, all of it
listed at once.
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
"""What a value may be replaced by."""


def mutations(value: Any, place: str = "$") -> Iterator[tuple[str, Any]]:
    """Copies of a JSON value with one thing wrong, and what that is; of a list its first and last items are changed."""
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
    """Bytes that are no longer the file they were, and why."""
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
    """Read `path` in every wrong form: success, or an error whose text has `names` (unless told, the file's name).

    `dump` writes a changed table as the file's bytes; unless told, JSON, or TOML for a file that ends so.
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
    """As `held_to_its_schema`, of a table that is part of a file: `read` takes it, and errors have `names`."""
    read(table)
    tried = _Tried(names, FrogError)
    for what, changed in mutations(table):
        tried.call(what, partial(read, changed))
    tried.check()


class _Tried:
    """What was tried, and which answers were neither success nor an error as Frog's are."""

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
    """A table as TOML, sections written inline."""
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
