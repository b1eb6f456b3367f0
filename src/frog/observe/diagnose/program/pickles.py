"""Read pickles of plain data: dicts, lists, tuples, text, numbers, booleans and None. Nothing else, and no code runs.

Python's own unpickler can refuse to load classes, but a damaged or hostile file of a few bytes still makes it
allocate gigabytes. Torch's flight recorder writes few kinds of values, so this reader knows only their operations.
"""

from __future__ import annotations

import struct
from typing import Any

_MOST_OPERATIONS = 12_000_000
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
            self._dict().update(zip(items[::2], items[1::2], strict=True))
        elif op == _SETITEM:
            value, key = stack.pop(), stack.pop()
            self._dict()[key] = value
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

    def _dict(self) -> dict[Any, Any]:
        if type(self.stack[-1]) is not dict:
            raise PickleError("a key outside a dict")
        found: dict[Any, Any] = self.stack[-1]
        return found

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
