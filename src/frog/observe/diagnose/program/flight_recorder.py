"""Dumps of torch's flight recorder, of any backend and version: pickles as NCCL's watchdog writes them, or JSON.

torch names the files `nccl_trace_rank_3`, `comm_lib_trace_rank_3` or as the user asked; the rank is only in the name.
Version 2.0 to 2.10 differ in the fields that exist: every field but the entries is optional here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_lines import user_line
from frog.observe.diagnose.program.evidence import Call, Evidence, GroupNames

_MOST_ENTRIES, _MOST_FRAMES, _MOST_TENSORS, _MOST_DIMS = 100_000, 200, 64, 16
_MOST_RANK, _MOST_MEMBERS = 2**17, 2**20
"""Most members of a group, and of all groups of a dump."""
_LEAST_ENTRIES, _MOST_WORK = 200, 50_000_000
"""Rules look at each entry's members. With very many members, fewer entries are read; torch keeps 2,000."""
Found = TypeVar("Found")
_OP_TYPES = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}


def op_name(text: str) -> str:
    """Return `all_reduce` for `nccl:all_reduce` or `ALLREDUCE`."""
    name = text.rpartition(":")[2].split(" ")[0]
    return _OP_TYPES.get(name, name.lower() if name.isupper() else name)


class DumpError(Exception):
    """The data begins as a dump, but is not complete."""


def decode_dump(data: bytes) -> dict[str, Any] | None:
    """Return a dump's fields; None if the data is not one.

    Raises:  DumpError if it is a damaged dump: a rank that is killed while it writes leaves a part.
    """
    is_torchs = b"profiling_name" in data or b"pg_config" in data
    if not is_torchs and b"entries" not in data[:4096] + data[-4096:]:
        return None
    try:
        value = load_plain(data) if data[:1] == b"\x80" else msgspec.json.decode(data)
    except (PickleError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if is_torchs:
            raise DumpError from error
        return None
    return value if isinstance(value, dict) and isinstance(value.get("entries"), list) else None


def add_dump(evidence: Evidence, dump: dict[str, Any], path: str, number: int | None) -> bool:
    """Add a rank's collectives; return False if the file's name does not tell its rank."""
    if number is None:
        evidence.problems.append(f"{path}: a flight-recorder dump, but its name has no rank: rename it to …_rank_N")
        return False
    members = _members(dump.get("pg_config"))
    rank, names = evidence.of(number), GroupNames(members)
    entries = _Entries(names, path)
    most = min(_MOST_ENTRIES, max(_LEAST_ENTRIES, _MOST_WORK // max([1, *map(len, members.values())])))
    calls = [entries.call(entry) for entry in dump["entries"][-most:] if isinstance(entry, dict)]
    rank.calls = [call for call in calls if call is not None]
    rank.has_calls = True
    rank.add_source(path)
    _add_counts(evidence, number, dump.get("pg_status"), names)
    return True


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group; torch writes them as the text "[0, 1]"."""
    members: dict[str, tuple[int, ...]] = {}
    left = _MOST_MEMBERS
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        numbers = re.findall(r"\d{1,7}", ranks) if isinstance(ranks, str) else ranks
        if isinstance(numbers, list) and 0 < len(numbers) < min(_MOST_RANK, left):
            left -= len(numbers)
            ranks = tuple(number for each in numbers if (number := _number(each)) is not None and number >= 0)
            members[str(name)] = ranks
    return members


def _add_counts(evidence: Evidence, number: int, status: Any, names: GroupNames) -> None:
    rank = evidence.of(number)
    for name, counts in status.items() if isinstance(status, dict) else ():
        if isinstance(counts, dict):
            group = names.find(str(name))
            rank.enqueued[group] = max(0, _number(counts.get("last_enqueued_collective")) or 0)
            rank.completed[group] = max(0, _number(counts.get("last_completed_collective")) or 0)


class _Entries:
    """Reads the entries of one dump, each value once.

    In a pickle many entries can share the same frames and sizes, so that a small file describes any number of them.
    """

    def __init__(self, names: GroupNames, path: str) -> None:
        self._names, self._path = names, path
        self._known: dict[tuple[Any, int], Any] = {}

    def _once(self, read: Callable[[Any], Found], value: Any) -> Found:
        """Return what `read` makes of a value; the dump keeps the values, so that no two have the same id."""
        key = (read.__name__, id(value))
        if key not in self._known:
            self._known[key] = read(value)
        result: Found = self._known[key]
        return result

    def call(self, entry: dict[str, Any]) -> Call | None:
        return self._once(self._call, entry)

    def _call(self, entry: dict[str, Any]) -> Call | None:
        group, title = entry.get("process_group"), entry.get("profiling_name")
        p2p = entry.get("is_p2p") is True
        # Before version 2.2, one number counted collectives and messages.
        seq = _number(entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id")))
        if not isinstance(title, str) or seq is None:
            return None
        name = _text(group[0]) if isinstance(group, (list, tuple)) and group else _text(entry.get("pg_id"))
        state = entry.get("state")
        return Call(
            self._names.find(name),
            seq,
            op_name(title) + (title[title.index(" ") :] if p2p and " " in title else ""),
            state == "completed" or entry.get("retired") is True,
            self._once(self._sizes, entry.get("input_sizes")),
            self._once(_dtypes, entry.get("input_dtypes")),
            p2p=p2p or op_name(title) in ("send", "recv"),
            started=None if title.startswith("gloo") else state in ("started", "completed"),
            created_ns=_number(entry.get("time_created_ns")) or None,
            line=self._once(self._line, entry.get("frames")),
            source=self._path,
        )

    def _line(self, frames: Any) -> CodeLine | None:
        lines = (self._once(_frame, frame) for frame in _list(frames)[:_MOST_FRAMES])
        return user_line(frame for frame in lines if frame is not None)

    def _sizes(self, value: Any) -> tuple[tuple[int, ...], ...]:
        tensors = [size for size in _list(value)[:_MOST_TENSORS] if isinstance(size, (list, tuple))]
        return tuple(self._once(_size, size) for size in tensors)


def _size(widths: Any) -> tuple[int, ...]:
    return tuple(_number(width) or 0 for width in widths[:_MOST_DIMS])


def _dtypes(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)[:_MOST_TENSORS]))


def _frame(value: Any) -> CodeLine | None:
    if not isinstance(value, dict) or not isinstance(value.get("filename"), str):
        return None
    return CodeLine(
        file=value["filename"][:4096], line=_number(value.get("line")) or 0, function=_text(value.get("name"))[:200]
    )


def _text(value: Any) -> str:
    """Return a text or a number as text; empty for anything else, which may be nested without end."""
    return value if isinstance(value, str) else str(value) if type(value) is int else ""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _number(value: Any) -> int | None:
    """Return an integer of 64 bits, also from text, as torch's JSON has them."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


# ---- pickles of plain data: dicts, lists, tuples, text, numbers, booleans and None; no code runs ---------------------

_MOST_OPERATIONS = 12_000_000
_MOST_KEY = 2**32
_MARK = object()

_CONSTANTS: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False}
_FIXED = {ord("J"): "<i", ord("K"): "<B", ord("M"): "<H", ord("G"): ">d"}
_TEXT = {0x8C: 1, ord("X"): 4, 0x8D: 8}
_BYTES = {ord("C"): 1, ord("B"): 4, 0x8E: 8}
_LONG = {0x8A: 1, 0x8B: 4}
_EMPTY: dict[int, type[Any]] = {ord("}"): dict, ord("]"): list, ord(")"): tuple}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUT = {ord("q"): 1, ord("r"): 4}
_GET = {ord("h"): 1, ord("j"): 4}
_MEMOIZE, _PROTO, _FRAME, _STOP, _OPEN = 0x94, 0x80, 0x95, ord("."), ord("(")
_APPEND, _APPENDS, _SETITEM, _SETITEMS, _TUPLE = ord("a"), ord("e"), ord("s"), ord("u"), ord("t")


class PickleError(Exception):
    """Not a pickle of plain data."""


def load_plain(data: bytes) -> Any:
    """Return the value of a pickle of plain data.

    Python's own unpickler can refuse to load classes, but a damaged or hostile file of a few bytes still makes it
    allocate gigabytes. Torch's flight recorder writes few kinds of values, so this reader knows only their operations.

    Raises:  PickleError if it contains anything else or is damaged.
    """
    try:
        return _Reader(data).read()
    except (IndexError, TypeError, ValueError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise PickleError(f"damaged: {type(error).__name__}") from None


class _Reader:
    """The stack machine of a pickle."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> Any:
        data, stack, memo = self.data, self.stack, self.memo
        for _ in range(_MOST_OPERATIONS):
            op = data[self.at]
            self.at += 1
            if op in _GET:
                stack.append(memo[self._number(_GET[op])])
            elif op in _FIXED:
                stack.append(self._fixed(_FIXED[op]))
            elif op in _TEXT:
                stack.append(self._taken(self._number(_TEXT[op])).decode("utf-8", "surrogatepass"))
            elif op in _PUT:
                memo[self._number(_PUT[op])] = stack[-1]
            elif op == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif op == _OPEN:
                stack.append(_MARK)
            elif op in _EMPTY:
                stack.append(_EMPTY[op]())
            elif op in _CONSTANTS:
                stack.append(_CONSTANTS[op])
            elif op == _STOP:
                return stack[-1]
            else:
                self._rare(op)
        raise PickleError(f"more than {_MOST_OPERATIONS} values")

    def _rare(self, op: int) -> None:
        stack = self.stack
        if op == _SETITEMS:
            items = self._to_mark()
            self._dict().update(zip(map(self._key, items[::2]), items[1::2], strict=True))
        elif op == _SETITEM:
            value, key = stack.pop(), stack.pop()
            self._dict()[self._key(key)] = value
        elif op in (_APPENDS, _APPEND):
            items = self._to_mark() if op == _APPENDS else [stack.pop()]
            if type(stack[-1]) is not list:
                raise PickleError("an item outside a list")
            stack[-1].extend(items)
        elif op in _TUPLES:
            number = _TUPLES[op]
            stack[-number:] = [tuple(stack[-number:])]
        elif op == _TUPLE:
            stack.append(tuple(self._to_mark()))
        elif op in _LONG:
            stack.append(self._long(self._number(_LONG[op])))
        elif op in _BYTES:
            stack.append(self._taken(self._number(_BYTES[op])))
        elif op == _PROTO:
            self.at += 1
        elif op == _FRAME:
            self.at += 8
        else:
            raise PickleError(f"holds more than plain data (operation {op:#x})")

    @staticmethod
    def _key(value: Any) -> str | int:
        """Return a key: torch's are text. The hash of nested tuples overflows the stack, or takes exponential time."""
        if type(value) is str or (type(value) is int and 0 <= value < _MOST_KEY):
            return value
        raise PickleError("a key that is neither text nor a small number")

    def _dict(self) -> dict[Any, Any]:
        if type(self.stack[-1]) is not dict:
            raise PickleError("a key outside a dict")
        mapping: dict[Any, Any] = self.stack[-1]
        return mapping

    def _to_mark(self) -> list[Any]:
        for number in range(len(self.stack) - 1, -1, -1):
            if self.stack[number] is _MARK:
                items = self.stack[number + 1 :]
                del self.stack[number:]
                return items
        raise PickleError("items without a beginning")

    def _taken(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) != size:
            raise PickleError("cut off")
        self.at += size
        return taken

    def _number(self, width: int) -> int:
        return int.from_bytes(self._taken(width), "little")

    def _fixed(self, form: str) -> Any:
        return struct.unpack(form, self._taken(struct.calcsize(form)))[0]

    def _long(self, size: int) -> int:
        if size > 16:
            raise PickleError("a number of more than 128 bits")
        return int.from_bytes(self._taken(size), "little", signed=True)
