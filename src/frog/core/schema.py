"""Typed files: data from every file is checked against a schema, and all errors have the same form.

Each kind of file is a subclass of `Typed` with typed fields; `FORMAT` is its version. Reading returns an instance,
never a dict, so the calling code never checks for missing keys. An error names the file, the place in it, the value
found, the expected type, and what to do:

    runs/one/record.json: $.step: found the text "many", expected int
      try: restore the file from a copy, or train again

Fields that the schema does not name are ignored: a newer Frog may have written them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, TypeGuard, TypeVar

import msgspec

from frog.core.errors import FrogError, RunError
from frog.core.files import open_plain, write_atomic

_PIECE_BYTES = 1 << 20
MOST_BYTES = 64 << 20
"""Most bytes of a file that is read at once. Files written by Frog are far smaller."""

_MOST_VALUES = 6_000_000
"""Most values of a JSON text. A value of six bytes takes 240 in memory, and some readers keep two copies."""

_MOST_TOML_BYTES = 1 << 20
"""Most bytes of a TOML text: Python's TOML parser is slow, and reads this much in a second."""

_MOST_DEPTH, _MOST_KEY_PARTS = 100, 32
"""Limits of nested tables, and of parts in a key such as a.b.c, each of which is a table for the parser."""

_MOST_BITS = 1000
"""Most bits of an integer, from a parser that reads any number of them."""

_MOST_SHOWN = 80
"""Most characters of a value that an error quotes."""


class Typed(msgspec.Struct, kw_only=True, frozen=True):
    """A kind of file. Subclasses define its fields, its name and its version."""

    KIND: ClassVar[str] = "file"
    """Its name in errors: "a run's record"."""
    FORMAT: ClassVar[int | None] = None
    """The version in the file's field `format`; None: this kind has no such field."""


Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A non-negative integer of 64 bits; nanoseconds since 1970 need 61."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
"""A finite non-negative number; TOML, unlike JSON, has infinities and NaN."""

Name = Annotated[str, msgspec.Meta(max_length=1000)]
"""A name that errors quote in full."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]

_DIGEST, _FILE_NAME = "^[0-9a-f]{64}$", r"^(?!\.{1,2}$)[^/\\\x00]{1,255}$"
_HOST = r"^(?=.{1,255}$)[a-zA-Z0-9_:%-]{1,63}(\.[a-zA-Z0-9_:%-]{1,63})*\.?$"
Host = Annotated[str, msgspec.Meta(pattern=_HOST)]
"""A host to connect to."""
Digest = Annotated[str, msgspec.Meta(pattern=_DIGEST)]
FileName = Annotated[str, msgspec.Meta(pattern=_FILE_NAME)]
_IN_WORDS = {
    _DIGEST: "a SHA-256 in hex",
    _FILE_NAME: "the name of a file in the same folder",
    _HOST: "the name or address of a host",
}

T = TypeVar("T")

_INSPECTED: set[Any] = set()
_INSPECTION = threading.Lock()


def inspected(kind: type[T]) -> type[T]:
    """Return `kind` once msgspec has inspected it: a process crashes if two threads are the first to decode a type."""
    if kind not in _INSPECTED:
        with _INSPECTION:
            msgspec.json.Decoder(kind)
            _INSPECTED.add(kind)
    return kind


def read_typed(
    path: Path, kind: type[T], hint: str | None = None, error: type[FrogError] = RunError, most_bytes: int = MOST_BYTES
) -> T:
    """Read a JSON file as an instance of `kind`.

    Raises:  FileNotFoundError if it does not exist; `error` if it is not a plain file, is too large or unreadable, or
             has another format or schema.
    """
    return decode(read_bounded(path, error, hint, most_bytes), kind, str(path), hint, error)


def read_bounded(
    path: Path, error: type[FrogError] = RunError, hint: str | None = None, most_bytes: int = MOST_BYTES
) -> bytes:
    """Read the bytes of a plain file up to a limit, without blocking on a pipe or device.

    Raises:  FileNotFoundError if it does not exist; `error` if it is not a plain file, too large or unreadable.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = b""
            if size == 0:
                data = _read_unsized(file, most_bytes)
            elif size <= most_bytes:
                data = file.read()
        if max(size, len(data)) > most_bytes:
            actual = str(size) if size else f"more than {most_bytes}"
            raise error(f"{path}: found {actual} bytes, expected at most {most_bytes}", hint)
        return data
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as problem:  # ValueError: the name contains a NUL
        why = getattr(problem, "strerror", None) or problem
        raise error(f"{shortened(str(path), 500)}: cannot be read: {why}", hint) from None


def _read_unsized(file: IO[bytes], most_bytes: int) -> bytes:
    """Read a file of unknown size (in /proc, or a pipe from the shell, possibly endless), to one byte past the limit.

    It is read in pieces, since a read of N bytes allocates memory for N bytes.
    """
    data = bytearray()
    while len(data) <= most_bytes and (piece := file.read(min(_PIECE_BYTES, most_bytes + 1 - len(data)))):
        data += piece  # None also ends the loop: an empty /proc/kmsg
    return bytes(data)


def read_toml(path: Path, error: type[FrogError] = RunError, hint: str | None = None) -> dict[str, Any]:
    """Read the table of a TOML file, without checking it against a schema.

    Raises:  FileNotFoundError if it does not exist; `error` if it is not a plain file, too large, unreadable or not
             TOML.
    """
    data = read_bounded(path, error, hint, _MOST_TOML_BYTES)
    try:
        return parse_toml(data.decode())
    except ValueError as problem:  # not UTF-8, not TOML, or a number with thousands of digits
        raise error(f"{path}: not valid TOML: {problem}", hint) from None
    except RecursionError:
        raise error(f"{path}: nested too deeply", hint) from None


_TEXT_OR_COMMENT = re.compile(
    r'''"""(?:[^\\]|\\.?)*?(?:"""|\Z)|\'{3}.*?(?:\'{3}|\Z)|"(?:[^"\\\n]|\\.?)*"?|\'[^\'\n]*\'?|#[^\n]*''', re.DOTALL
)
_LONG_KEY = re.compile(rf'(?<![\w"-])(?:[\w"-]++[ \t]*+\.[ \t]*+){{{_MOST_KEY_PARTS}}}')


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:  ValueError if it is not TOML; RecursionError if it is nested too deeply.
    """
    if text.count(".") > _MOST_KEY_PARTS and _LONG_KEY.search(_TEXT_OR_COMMENT.sub('""', text)):
        raise ValueError(f"a key with more than {_MOST_KEY_PARTS} parts")
    table = tomllib.loads(text)
    check_depth(table)
    check_integers(table)
    return table


def has_too_many_values(text: bytes | str) -> bool:
    """True if a JSON text would take too much memory."""
    if len(text) <= _MOST_VALUES:
        return False
    counts = map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
    return sum(counts) > _MOST_VALUES


def check_depth(value: Any) -> None:
    """Raise RecursionError if tables, lists and instances are nested too deeply to be shown, copied or written."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise RecursionError


def check_integers(value: Any) -> None:
    """Raise ValueError for an integer that is too large to be shown or to become a float, in tables and lists.

    Python reads such integers if they are in hex. A reader that needs a number of 64 bits checks that.
    """
    if isinstance(value, int) and abs(value) >= 1 << _MOST_BITS:
        raise ValueError(f"an integer of {value.bit_length()} bits")
    for inner in _inside(value):
        check_integers(inner)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    return (getattr(value, name) for name in value.__struct_fields__) if isinstance(value, msgspec.Struct) else ()


def decode(
    data: bytes | str, kind: type[T], origin: str, hint: str | None = None, error: type[FrogError] = RunError
) -> T:
    """Decode JSON as an instance of `kind`; `origin` names its source in errors (a file, and a line number).

    Raises:  `error` if it is not JSON, or has another format or schema.
    """
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if has_too_many_values(text):
        raise error(f"{origin}: found more than {_MOST_VALUES} values, expected fewer", hint)
    try:
        if _has_format(kind):
            _check_format(msgspec.json.decode(text, type=inspected(_Versioned)).format, kind, origin, error)
        value = msgspec.json.decode(text, type=inspected(kind))
        if text.count(b"[") + text.count(b"{") > _MOST_DEPTH:
            check_depth(value)
        return value
    except msgspec.ValidationError as problem:
        value = None
        try:
            value = json.loads(text)
        except json.JSONDecodeError as broken:  # msgspec stops at the first value of a wrong type
            raise error(f"{origin}: not valid JSON: {broken}", hint) from None
        except (ValueError, RecursionError):
            pass
        raise error(_refusal(origin, problem, value), hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise error(f"{origin}: not valid JSON: {problem}", hint) from None
    except RecursionError:
        raise error(f"{origin}: nested too deeply", hint) from None


def convert(value: Any, kind: type[T], origin: str, hint: str | None = None, error: type[FrogError] = RunError) -> T:
    """Convert a table from another parser (TOML, YAML) to an instance of `kind`.

    Raises:  `error` if it has another format or schema.
    """
    try:
        if _has_format(kind):
            _check_format(msgspec.convert(value, inspected(_Versioned)).format, kind, origin, error)
        check_depth(value)
        return msgspec.convert(value, inspected(kind))
    except msgspec.ValidationError as problem:
        raise error(_refusal(origin, problem, value), hint) from None
    except UnicodeEncodeError as problem:
        half = problem.object[problem.start]
        raise error(f"{origin}: found half a surrogate pair, {half!a}, expected text", hint) from None
    except RecursionError:
        raise error(f"{origin}: nested too deeply", hint) from None


def write_typed(path: Path, value: Typed, *, private: bool = False) -> None:
    """Write an instance atomically as indented JSON, with its format first."""
    table = {"format": value.FORMAT} if value.FORMAT is not None else {}
    table |= msgspec.to_builtins(value)
    write_atomic(path, json.dumps(table, indent=2, ensure_ascii=False) + "\n", private=private)


class _Versioned(msgspec.Struct):
    format: int


def _has_format(kind: Any) -> TypeGuard[type[Typed]]:
    return isinstance(kind, type) and issubclass(kind, Typed) and kind.FORMAT is not None


def _check_format(found: int, kind: type[Typed], origin: str, error: type[FrogError]) -> None:
    if found == kind.FORMAT:
        return
    newer = found > (kind.FORMAT or 0)
    what = f"{origin}: $.format: found {found}, expected {kind.FORMAT}: {kind.KIND} of "
    raise error(
        what + ("a newer Frog" if newer else "an older Frog"),
        "read it with the Frog that wrote it" if not newer else "update Frog",
    )


def _refusal(origin: str, problem: msgspec.ValidationError, value: Any) -> str:
    """Rewrite msgspec's sentence, `Expected `int`, got `str` - at `$.a[0].b``, in Frog's form, with the value found."""
    said, _, place = str(problem).partition(" - at `")
    place = place.rstrip("`")
    what = said.replace("`", "")
    where = f"{origin}: {place}: " if place else f"{origin}: "
    match = re.fullmatch(r"Expected (.+?)(?:, got (.+))?", what, re.DOTALL)
    if match is None:
        return where + shortened(what[:1].lower() + what[1:])
    expected, found = match.groups()
    if regex := re.fullmatch(r"str matching regex '(.*)'", expected, re.DOTALL):
        expected = next((words for pattern, words in _IN_WORDS.items() if repr(pattern)[1:-1] == regex[1]), expected)
    with contextlib.suppress(LookupError, TypeError, ValueError):
        found = _shown(_at(value, place or "$"))
    return f"{where}found {found}, expected {expected}" if found else f"{where}expected {expected}"


def _at(value: Any, place: str) -> Any:
    """Return the value at a place such as `$.a[0].b`. Raises LookupError if the place is ambiguous."""
    for name, number in re.findall(r"\.([^.\[]+)|\[([^\]]*)\]", place):
        value = value[name] if name else value[int(number)]
    return value


def _shown(value: Any) -> str:
    name = {str: "the text ", dict: "an object", list: "a list", type(None): "null"}.get(type(value), "")
    if isinstance(value, dict | list) or value is None:
        return name
    return name + shortened(json.dumps(value))


def shortened(text: str, most: int = _MOST_SHOWN) -> str:
    """Shorten a text for an error message: values in files can be long."""
    return text if len(text) <= most else text[:most] + "…"


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested table that is not itself a table, with its dotted key."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
