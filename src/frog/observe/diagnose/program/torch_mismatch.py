"""The mismatch that torch reports with TORCH_DISTRIBUTED_DEBUG=DETAIL: one rank's call, compared with another's.

torch compares the calls before they run, so what it says is proved; records of collectives also have the exchange of
these descriptions, whose numbers mean nothing to the user.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_partings import rank_branch
from frog.observe.diagnose.program.evidence import Evidence, SeenError, at_place, place
from frog.observe.diagnose.program.flight_recorder import op_name
from frog.observe.diagnose.program.rank_reports import report_ranks

WORDS = "Detected mismatch between collectives on ranks"
_CALL = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d{1,18}), )?OpType=(?P<op>\w{1,60})"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,200})\])?(?:, TensorDtypes=(?P<dtype>\w{1,40}))?"
)


@dataclass(frozen=True)
class _Fingerprint:
    """What a rank called, as torch describes it."""

    op: str
    shape: str
    dtype: str
    seq: str

    def __str__(self) -> str:
        size = f" of {self.shape.replace(', ', 'x')}" if self.shape else ""
        return f"{self.op}{size}" + (f" {self.dtype.lower()}" if self.dtype else "")


def compared_by_torch(evidence: Evidence) -> Diagnosis | None:
    """Report the calls that torch found to differ."""
    errors = {number: rank.error for number, rank in evidence.ranks.items() if rank.error is not None}
    seen = [error for error in (*errors.values(), *evidence.loose_errors) if WORDS in error.message]
    calls = _calls(seen)
    if len(set(calls.values())) < 2:
        return None
    counts = Counter(calls.values())
    usual = max(counts, key=lambda call: (counts[call], call == calls[min(calls)]))
    odd = next(number for number, call in sorted(calls.items()) if call != usual)
    other = next(number for number, call in sorted(calls.items()) if call == usual)
    lines = {number: error.line if error is not None else None for number, error in errors.items()}
    branch = rank_branch(lines.get(odd)) or rank_branch(lines.get(other))
    kind = _kind(calls[odd], calls[other])
    why = f": only some ranks pass {branch}" if branch else ""
    return Diagnosis(
        "branch" if branch else kind,
        f"torch compared the calls of the ranks: rank {odd} called {calls[odd]}{at_place(lines.get(odd))}, "
        f"rank {other} called {calls[other]}{at_place(lines.get(other))}{why}",
        rank=odd,
        node_rank=evidence.ranks[odd].node_rank if odd in evidence.ranks else None,
        line=place(lines.get(odd)) or None,
        peer_line=place(lines.get(other)) or None,
        collective=str(calls[odd]),
        evidence=report_ranks(evidence, sorted(errors), waits=False),
        advice="let all ranks make the same calls in the same order, with the same sizes and types, even a rank that "
        "has nothing to contribute",
    )


def _calls(errors: list[SeenError]) -> dict[int, _Fingerprint]:
    """Return the call of each rank that torch describes; of one number if the errors have several."""
    calls: dict[int, _Fingerprint] = {}
    for error in errors:
        for match in _CALL.finditer(error.message):
            call = _Fingerprint(op_name(match["op"]), match["shape"] or "", match["dtype"] or "", match["seq"] or "")
            calls.setdefault(int(match["rank"]), call)
    first = min((int(call.seq) for call in calls.values() if call.seq), default=None)
    if first is None or len({call.seq for call in calls.values()}) == 1:
        return calls
    of_first = {number: call for number, call in calls.items() if call.seq == str(first)}
    return of_first if len(set(of_first.values())) > 1 else calls


def _kind(odd: _Fingerprint, other: _Fingerprint) -> str:
    if odd.op != other.op or odd.seq != other.seq:
        return "order"
    return "shape" if odd.shape != other.shape else "dtype"
