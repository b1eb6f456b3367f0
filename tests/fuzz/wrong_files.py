"""Damage to valid files: their bytes, structure, names and file types, all from one random generator."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutations import to_toml

SANDBOX = "box"
"""Name of the folder that contains all damaged files."""

HOSTILE = (
    "", "\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "a\rb", "a\nerror: forged", "[/b]", "[bold]x[/]", "[link=x]",
    "\x9b31m", "\u202egnp", "\ud800", "\0", "../../evil", "/var/tmp/evil/x", "x" * 300, "x" * 100_000,
    "$(echo>$EVIL)", "`echo>$EVIL`", "\necho>$EVIL\n", "';echo>$EVIL;'", '";echo>$EVIL;"', ";echo>$EVIL #",
    "%9999999999j", "n[1-9999999999]", "{{ 7*7 }}", "<script>alert(1)</script>", "9" * 5000, "nan", "1e999", "🐸" * 50,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 1.5, 10**9, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, -1e308, float("nan"),
    float("inf"), [], {}, [[]], [None], {"": ""},
)  # fmt: skip
_BYTES = (
    b"\0",
    b"\xff",
    b"\x1b[31m",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"]",
    b"9" * 5000,
    b"[" * 2000,
    b"-",
    b"\xc2\x9b",
    b"nan",
)


def spoil(rng: random.Random, path: Path) -> str:
    """Damage the file at `path`; return a description."""
    ways: list[Callable[[random.Random, Path], str]] = [
        _bytes,
        _bytes,
        _structure,
        _structure,
        _structure,
        _lines,
        _kind,
    ]
    for _ in range(8):
        said = rng.choice(ways)(rng, path)
        if said:
            return said
    return _bytes(rng, path)


def hostile_text(rng: random.Random, good: str) -> str:
    """Return a valid text with a hostile insertion."""
    at, wrong = rng.randrange(len(good) + 1), rng.choice(HOSTILE)
    return rng.choice((wrong, good[:at] + wrong + good[at:], good[:at], good[:at] + good[at + 1 :]))


def _bytes(rng: random.Random, path: Path) -> str:
    """Flip, insert, remove or duplicate some bytes, or truncate the file."""
    data = bytearray(path.read_bytes())
    said = []
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        kind = rng.choice(("flip", "cut", "insert", "drop", "double", "digit"))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = rng.choice(_BYTES)
        elif kind == "drop":
            del data[at : at + rng.randrange(1, 40)]
        elif kind == "double":
            data[at:at] = data[at : at + rng.randrange(1, 200)]
        elif kind == "digit":
            places = [place for place, byte in enumerate(data[:20_000]) if 48 <= byte < 58]
            if places:
                data[rng.choice(places)] = rng.randrange(48, 58)
        said.append(f"{kind}@{at}")
    path.write_bytes(data)
    return " ".join(said)


def _lines(rng: random.Random, path: Path) -> str:
    """Remove, duplicate, move or replace a line of a text."""
    try:
        lines = path.read_bytes().decode().split("\n")
    except UnicodeDecodeError:
        return ""
    at = rng.randrange(len(lines))
    kind = rng.choice(("gone", "twice", "moved", "hostile", "often"))
    line = lines[at]
    if kind == "gone":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, line)
    elif kind == "moved":
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    elif kind == "hostile":
        lines[at] = hostile_text(rng, line)
    else:
        lines[at:at] = [line] * 200
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    return f"line {at + 1} {kind}"


_SMALL_FOR_MUCH = {
    "parts": b"seed" + b".a" * 50_000 + b" = 1\n",
    "flood": b"".join(b"see%d = 1\n" % n for n in range(50_000)),
    "values": b'{"x": [' + b'{"":0},' * 1_000_000 + b"0]}\n",
}
"""Texts that may cost a TOML or JSON parser minutes or gigabytes."""


def _kind(rng: random.Random, path: Path) -> str:
    """Replace the file by another file type, remove it, or take read or write permissions away."""
    kind = rng.choice(
        (
            *(
                "gone",
                "folder",
                "pipe",
                "device",
                "loop",
                "empty",
                "dangling",
                "deep",
                "bomb",
                "locked",
                "locked",
                "shut",
            ),
            *("parts", "flood", "values"),
        )
    )
    if kind == "locked":
        path.chmod(0)
        return kind
    if kind == "shut":
        around = path.parents[: path.parts[::-1].index(SANDBOX) - 1]
        if not around:
            return ""
        folder = rng.choice(around)
        folder.chmod(mode := rng.choice((0, 0o555)))
        return f"its folder {folder.name} of mode {mode:o}"
    if kind == "empty":
        path.write_bytes(b"")
        return kind
    if kind == "deep":
        path.write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
        return kind
    if kind == "bomb":
        path.write_bytes(
            gzip.compress(bytes(50_000_000), 1)
            if path.suffix == ".gz"
            else b"a: &a [x]\n"
            + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 9)) for n in range(97, 115))
        )
        return kind
    if kind in _SMALL_FOR_MUCH:
        path.write_bytes(_SMALL_FOR_MUCH[kind] + path.read_bytes())
        return kind
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    return kind


def _structure(rng: random.Random, path: Path) -> str:
    """Remove or change one value of a JSON or TOML file, or of a JSON line."""
    name = path.name
    try:
        if name.endswith(".jsonl"):
            return _json_line(rng, path)
        if name.endswith(".toml"):
            table = tomllib.loads(path.read_text())
            said = change(rng, table)
            path.write_bytes(to_toml(_without_null(table)).decode(errors="ignore").encode())
            return said
        if name.endswith(".safetensors"):
            return _header(rng, path)
        if name.endswith(".json"):
            table = json.loads(path.read_text())
            said = change(rng, table)
            path.write_text(json.dumps(table))
            return said
    except (ValueError, TypeError, RecursionError):  # nested too deeply to be written
        pass
    return ""


def _json_line(rng: random.Random, path: Path) -> str:
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    table = json.loads(lines[at])
    said = change(rng, table)
    lines[at] = json.dumps(table)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at + 1}: {said}"


def _header(rng: random.Random, path: Path) -> str:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + size])
    said = change(rng, table)
    head = json.dumps(table).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + size :])
    return said


def change(rng: random.Random, table: Any) -> str:
    """Change one value somewhere in a table, in place; return a description."""
    places = list(_places(table))
    if not places:
        return ""
    holder, key = rng.choice(places)
    kind = rng.choice(("gone", "value", "value", "text", "text", "other", "deep", "new", "number"))
    old = holder[key]
    if kind == "gone":
        del holder[key]
    elif kind == "value":
        holder[key] = rng.choice(_VALUES)
    elif kind == "text":
        holder[key] = hostile_text(rng, old) if isinstance(old, str) else rng.choice(HOSTILE)
    elif kind == "number" and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = rng.choice((old + 1, old - 1, -old, old * 1000, old * 2**40, old / 3, old * 10**9))
    elif kind == "other":
        other, name = rng.choice(places)
        holder[key] = copy.deepcopy(other[name])
    elif kind == "new" and isinstance(holder, dict):
        holder[rng.choice(HOSTILE)] = copy.deepcopy(old)
    else:
        value: Any = old
        for _ in range(rng.choice((3, 200, 960))):
            value = [value] if kind == "deep" else {"x": value}
        holder[key] = value
    return f"{str(key)[:40]!r} {kind}"


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value if item is not None] if isinstance(value, list) else value


def rename(rng: random.Random, path: Path) -> Path | None:
    """Give a file or folder a hostile name; return None if the system refuses it."""
    word = rng.choice([name for name in HOSTILE if name and len(name) < 200])
    new = path.with_name(hostile_name(word) + path.suffix)
    try:
        shutil.move(path, new)
    except (OSError, ValueError):
        return None
    return new


def as_argument(text: str) -> str:
    """Return a text in the form that a shell can pass to a program."""
    return text.replace("\0", "").encode(errors="surrogatepass").decode(errors="surrogateescape")[:20_000]


def hostile_name(word: str) -> str:
    return word.replace("/", "_").replace("\0", "_").replace("\ud800", "\udcff")
