"""Values of the variables of a job file, as far as the file shows them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frog.cluster.jobfile.shell_script import parse
from frog.cluster.jobfile.shell_words import Assignment, Word

PLACEHOLDER = "\u2370"
"""Marks a placeholder of a template, whose value is unknown."""
_LONGEST, _MOST_WORDS, _MOST_STEPS = 10_000, 1000, 100
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_HOLDS_WORDS = re.compile(r"\b(torchrun|srun|torch\.distributed\.(run|launch)|accelerate|deepspeed)\b|^\s*-")
_LIST = re.compile(r'"?\$\{(\w+)\[[@*]\]\}"?')
_SCALAR = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?([-?=+])([^}]*))?\}|\$([A-Za-z_]\w*)")


@dataclass
class Values:
    """The assignments of a file, and the variables with known values that Slurm sets."""

    assignments: list[Assignment] = field(default_factory=list)
    task_assignments: list[Assignment] = field(default_factory=list)
    """Assignments inside srun's bash -c."""
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Variables that Slurm sets: the value, and its origin."""
    _by_name: dict[str, list[Assignment]] = field(default_factory=dict)
    _indexed: tuple[int, int] = (0, 0)
    _steps: int = 0

    def assigned(self, name: str) -> Assignment | None:
        """Return the last assignment of a variable: in the task's own commands, otherwise in the batch script."""
        return next((item for item in reversed(self._all(name)) if not item.adds), None)

    def _all(self, name: str) -> list[Assignment]:
        size = (len(self.assignments), len(self.task_assignments))
        if size != self._indexed:
            self._by_name, self._indexed = {}, size
            for item in (*self.assignments, *self.task_assignments):
                self._by_name.setdefault(item.name, []).append(item)
        return self._by_name.get(name, [])

    def resolve(self, raw: str, seen: frozenset[str] = frozenset()) -> str | None:
        """Return the text of a word with its known variables replaced; None if one is unknown."""
        text = Word(raw, 0).text if len(raw) <= 2 * _LONGEST else raw
        self._steps = self._steps + 1 if seen else 0
        if len(text) > _LONGEST or self._steps > _MOST_STEPS or re.search(r"\\\$|^'.*\$.*'$", raw, re.DOTALL):
            return None
        try:
            text = _VARIABLE.sub(lambda match: self._expand(match, seen), text)
            text = re.sub(r"\$\(\((.*?)\)\)", lambda match: str(self._arithmetic(match[1], seen)), text)
        except (LookupError, ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            return None
        return None if "$" in text or "`" in text or PLACEHOLDER in text or len(text) > _LONGEST else text

    def _expand(self, match: re.Match[str], seen: frozenset[str]) -> str:
        name, default = match[1] or match[4], match[3] if match[2] in ("-", "=") else None
        if match[2] == "+":
            raise LookupError(name)
        value = self._value(name, seen)
        value = self.resolve(default, seen) if value is None and default is not None and not self._all(name) else value
        if value is None:
            raise LookupError(name)
        return value

    def resolve_int(self, raw: str) -> int | None:
        text = self.resolve(raw)
        return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None

    def _value(self, name: str, seen: frozenset[str]) -> str | None:
        """Return a value; None if uncertain: it depends on itself, on a branch, or on another command's output."""
        assignments = self._all(name)
        if (
            name in seen
            or any(item.adds for item in assignments)
            or (len(assignments) > 1 and any(item.conditional for item in assignments))
        ):
            return None
        if assignments:
            last = assignments[-1]
            own = last.conditional or last.items is not None or name in last.word.expansions() - {"$"}
            return None if own else self.resolve(last.raw, seen | {name})
        known = self.known.get(name)
        return known[0] if known else None

    def calculate(self, text: str) -> int | None:
        """Return the result of `$((text))`; None if one of its variables is unknown."""
        inner = re.sub(r"\$\(\(|\)\)", lambda match: match[0][-1], text)
        try:
            return self._arithmetic(inner, frozenset())
        except (LookupError, ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _arithmetic(self, text: str, seen: frozenset[str]) -> int:
        def value(node: ast.expr, depth: int = 0) -> int:
            if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and depth < 50:
                return _ARITHMETIC[type(node.op)](value(node.left, depth + 1), value(node.right, depth + 1))
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                return node.value
            if isinstance(node, ast.Name) and (known := self._value(node.id, seen)) is not None:
                return int(known)
            raise LookupError(text)

        if len(text) > 200:
            raise LookupError(text)
        plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text.strip()).replace("/", "//")
        return value(ast.parse(plain, mode="eval").body)

    def with_definitions(self, raw: str) -> str:
        """Return a word as written, followed by the definitions of its variables, recursively.

        Long results are truncated.
        """
        text, seen = raw, set[str]()
        while (names := Word(text, 0).expansions() - seen) and len(text) < _LONGEST:
            seen |= names
            text += "".join(f" {item.raw}" for name in sorted(names) for item in self._all(name)[:5])[:_LONGEST]
        return text

    def split(self, words: tuple[Word, ...], depth: int = 0) -> tuple[Word, ...]:
        """Replace `${ARGS[@]}`, `$LAUNCHER` and `$SRUN_ARGS` by their words, recursively."""
        split_words: list[Word] = []
        for word in words:
            inner = self._words_of(word) if depth < 6 and len(split_words) < _MOST_WORDS else None
            split_words += [word] if inner is None else self.split(inner, depth + 1)
        return tuple(split_words)

    def _words_of(self, word: Word) -> tuple[Word, ...] | None:
        """Return the words that a variable holds; None if it stays one word, as in quotes, or is unknown."""
        if match := _LIST.fullmatch(word.raw):
            return self._items(match[1])
        match = _SCALAR.fullmatch(word.raw)
        name = (match[1] or match[2]) if match else ""
        assignments = self._all(name)
        if (
            not assignments
            or any(item.conditional for item in assignments)
            or any(item.items is not None for item in assignments)
        ):
            return None
        text = " ".join(item.word.text.strip() for item in assignments if item is assignments[-1] or item.adds)
        own = name in Word(assignments[-1].raw, 0).expansions()
        if own or len(text) > _LONGEST or not _HOLDS_WORDS.search(self.with_definitions(text)):
            return None
        return tuple(inner for command in parse(text, assignments[-1].line).commands for inner in command.words)

    def _items(self, name: str) -> tuple[Word, ...] | None:
        assignments = self._all(name)
        if (
            not assignments
            or any(item.items is None for item in assignments)
            or (len(assignments) > 1 and assignments[0].conditional)
        ):
            return None
        certain = [item for item in assignments if not item.conditional]
        begins = max((place for place, item in enumerate(certain) if not item.adds), default=0)
        return tuple(word for item in certain[begins:] for word in item.items or ())
