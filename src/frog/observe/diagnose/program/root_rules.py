"""Rules about the rank that a broadcast, a reduce, a gather or a scatter names as its source or destination: its root.

torch's records do not have it. The observer reads it from the call in which a rank waits; else the source may tell. If
each rank computes it, two ranks may name different ones: all receive, none sends.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_blocks import called_name, is_readable, parse_file
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, place
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks

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
ADVICE = (
    "all ranks of a group must name the same rank as src or dst: decide on one rank and broadcast the decision from a "
    "fixed one, or compute it from values that are equal on all ranks"
)


def other_root(evidence: Evidence) -> Diagnosis | None:
    """Find a collective in which ranks wait with different roots, or whose root has completed it already."""
    waiting: dict[tuple[Group, int, str], dict[int, Call]] = {}
    for number, rank in evidence.ranks.items():
        if rank.root is not None and (call := _last_with_root(rank)) is not None:
            waiting.setdefault((call.group, call.seq, call.op), {})[number] = call
    return next((found for calls in waiting.values() if (found := _of_one(evidence, calls)) is not None), None)


def _of_one(evidence: Evidence, calls: dict[int, Call]) -> Diagnosis | None:
    """Compare the roots that ranks named for one collective, in which they wait."""
    by_root: dict[int, list[int]] = {}
    for number in calls:
        by_root.setdefault(evidence.ranks[number].root or 0, []).append(number)
    if len(by_root) == 1:
        return _of_completed(evidence, calls, next(iter(by_root)))
    named = [f"{span(ranks)} {'names' if len(ranks) == 1 else 'name'} rank {root}" for root, ranks in by_root.items()]
    usual = max(by_root, key=lambda root: len(by_root[root]))
    odd = next(ranks[0] for root, ranks in by_root.items() if root != usual)
    call = calls[odd]
    waits = f"{span(sorted(calls))} wait in {describe_call(evidence, call)}"
    return Diagnosis(
        "root",
        f"{waits}: {' and '.join(named)} as its root (src or dst)",
        certain=True,
        rank=odd,
        line=place(call.line) or None,
        peer_line=place(calls[by_root[usual][0]].line) or None,
        collective=describe_call(evidence, call),
        advice=ADVICE,
        evidence=report_ranks(evidence, sorted(calls)),
    )


def _of_completed(evidence: Evidence, calls: dict[int, Call], root: int) -> Diagnosis | None:
    """Find a source that has completed the broadcast in which others still wait for it: it probably named another."""
    number, call = next(iter(calls.items()))
    if root in calls or root not in evidence.ranks or not call.op.startswith(("broadcast", "scatter")):
        return None
    there = next(
        (each for each in evidence.ranks[root].calls if (each.group, each.seq) == (call.group, call.seq)), None
    )
    if there is None or not there.done or there.op != call.op or evidence.ranks[root].error is not None:
        return None
    if {evidence.ranks[each].host for each in (*calls, root)} != {evidence.ranks[root].host}:
        return None  # a network may have lost what it sent
    return Diagnosis(
        "root",
        f"rank {number} waits in {describe_call(evidence, call)} for data from rank {root}, its root (src), which has "
        f"completed the same call: rank {root} probably named another root, and sent it nothing",
        certain=False,
        rank=root,
        line=place(there.line) or None,
        peer_line=place(call.line) or None,
        collective=describe_call(evidence, call),
        advice=ADVICE,
        evidence=report_ranks(evidence, sorted([*calls, root])),
    )


def _last_with_root(rank: RankEvidence) -> Call | None:
    """Return the last collective with a root that a rank waits in, or waited in until its error."""
    calls = rank.pending or ([] if rank.error is None else rank.calls[-1:])
    return next((call for call in reversed(calls) if _has_root(call)), None)


def _has_root(call: Call) -> bool:
    return not call.p2p and call.op.lstrip("_").startswith(_OPS) and "reduce_scatter" not in call.op


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
    if line is None or not _has_root(call):
        return None
    calls = [node for node in _calls_at(line) if called_name(node) in _POSITIONS]
    if len(calls) != 1:
        return None
    given = next((keyword.value for keyword in calls[0].keywords if keyword.arg in _NAMES), None)
    position = _POSITIONS[called_name(calls[0])]
    return given if given is not None or len(calls[0].args) <= position else calls[0].args[position]


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
