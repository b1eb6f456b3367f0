"""The rank that a broadcast, a reduce, a gather or a scatter names as its source or destination, as the source tells.

torch's records do not have it. If each rank computes it, two ranks may name different ones: all receive, none sends.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.program.code_blocks import called_name, is_readable, parse_file
from frog.observe.diagnose.program.evidence import Call

_POSITIONS = {
    "broadcast": 1,
    "broadcast_object_list": 1,
    "reduce": 1,
    "gather": 2,
    "gather_object": 2,
    "scatter": 2,
    "scatter_object_list": 2,
}
"""Functions, and the position of the root among their arguments."""
_NAMES = ("src", "dst", "group_src", "group_dst")
_MOST_TEXT = 100
_OPS = ("broadcast", "reduce", "gather", "scatter")


def differing_roots(calls: Mapping[int, Call]) -> str:
    """Return why ranks in one collective may name different roots; empty if they name the same, or nothing tells.

    calls: the same collective, as each rank called it.
    """
    try:
        return _compared({number: _root_of(call) for number, call in calls.items()})
    except RecursionError:  # a sum of thousands of terms
        return ""


def _compared(roots: Mapping[int, ast.expr | None]) -> str:
    """Return why roots may differ, by the rank that names each; empty if they are the same, or one is unknown."""
    known = [root for root in roots.values() if root is not None]
    if len(known) < len(roots) or len(known) < 2:
        return ""
    constants = {number: ast.unparse(root) for number, root in roots.items() if isinstance(root, ast.Constant)}
    if len(constants) == len(roots):
        by_root: dict[str, list[int]] = {}
        for number, text in constants.items():
            by_root.setdefault(text, []).append(number)
        named = [f"rank {text} on {span(ranks)}" for text, ranks in by_root.items()]
        return f"the root (src or dst) is {' and '.join(named)}" if len(named) > 1 else ""
    text = " or ".join(dict.fromkeys(f"`{ast.unparse(root)[:_MOST_TEXT]}`" for root in known))
    return (
        f"each rank computes its root (src or dst) as {text}, so they probably name different ranks: then all wait to "
        "receive, and none sends"
    )


def _root_of(call: Call) -> ast.expr | None:
    """Return the root that a line of the program names for a call; None if it names none."""
    line = call.line
    if line is None or not call.op.lstrip("_").startswith(_OPS) or "reduce_scatter" in call.op:
        return None
    found = [node for node in _calls_at(line) if called_name(node) in _POSITIONS]
    if len(found) != 1:
        return None
    given = next((keyword.value for keyword in found[0].keywords if keyword.arg in _NAMES), None)
    position = _POSITIONS[called_name(found[0])]
    return given if given is not None or len(found[0].args) <= position else found[0].args[position]


def _calls_at(line: CodeLine) -> list[ast.Call]:
    """Return the calls of the innermost statement at a line."""
    parsed = parse_file(line.file) if is_readable(line) else None
    if parsed is None:
        return []
    return [
        node
        for node in ast.walk(parsed[0])
        if isinstance(node, ast.Call) and node.lineno <= line.line <= (node.end_lineno or node.lineno)
    ]
