"""Arguments of a program that depend on the number of ranks: `--batch-size {32/world}`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from frog.core.errors import UsageError

_TEMPLATE = re.compile(r"\{([\sworld\d+*/()-]+)\}")
_UNDIVIDED = ("implementation=frog", "name=ddp", "tp=1", "pp=1", "cp=1", "ep=1", "schedule=1f1b", "compression=off")
_BATCH_SIZE = re.compile(r"--?(?:[\w-]*batch[-_]?size[\w-]*|micro[-_]?batch|batch|bs|bsz|b)", re.IGNORECASE)


def arguments_for(program: Sequence[str], world_size: int) -> list[str]:
    """Return a command with each `{...}` in it computed for a number of ranks.

    Raises:  UsageError for a quotient that is not a whole number.
    """
    return [_TEMPLATE.sub(lambda match: str(_value(match[1], match[0], world_size)), word) for word in program]


def arguments_alone(program: Sequence[str]) -> list[str]:
    """Return a command for one rank. Frog's own trainer, whose global batch is the same on any number of ranks, then
    divides nothing.
    """
    own = arguments_for(program, 1)
    if own[:1] != ["train"] and own[:2] != ["-m", "frog.train"]:
        return own
    return [*own, *(word for setting in _UNDIVIDED for word in ("--set", f"strategy.{setting}"))]


def require_batch_size(program: Sequence[str], world_size: int) -> None:
    """Raise UsageError if an argument looks like a batch size and no argument says what depends on the ranks."""
    if any(_TEMPLATE.search(word) for word in program):
        return
    for word, following in zip(program, [*program[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        value = value if has_value else following
        if _BATCH_SIZE.fullmatch(name) and value.isdigit():
            separator = "=" if has_value else " "
            raise UsageError(
                f"{name} {value}: does each rank take {value} samples, or do all ranks together? On one rank the batch "
                "must be as large as on all",
                f"each: {name}{separator}'{{{int(value) * world_size}/world}}'; all together: "
                f"{name}{separator}'{{{value}}}'",
            )


def _value(expression: str, text: str, world_size: int) -> int:
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        return _of(tree, world_size)
    except _NotWhole as error:
        raise UsageError(f"{text}: {error} is not a whole number with world={world_size}", "another number") from None
    except (SyntaxError, ValueError, ZeroDivisionError):
        raise UsageError(
            f"{text} cannot be computed", "numbers, world, + - * / // and parentheses: {32/world}"
        ) from None


class _NotWhole(Exception):
    """A quotient that is not a whole number."""


def _of(node: ast.expr, world_size: int) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id="world"):
            return world_size
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _of(left, world_size), _of(right, world_size)
            match op:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.FloorDiv():
                    return one // other
                case ast.Div():
                    if one % other:
                        raise _NotWhole(f"{one}/{other}")
                    return one // other
    raise ValueError
