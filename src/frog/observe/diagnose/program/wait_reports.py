"""Parts of the reports on a collective that some ranks never called: the ranks that wait, and where the others were."""

from __future__ import annotations

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.code_partings import Guard, call_branch, stack_of
from frog.observe.diagnose.program.code_uses import used_under
from frog.observe.diagnose.program.compared_calls import Difference
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, place
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks, they_wait


def who_waits(evidence: Evidence, found: Difference) -> str:
    """Return the subject and the verb of a sentence about the ranks in a collective, and the collective."""
    ranks = sorted(found.calls)
    return f"{they_wait(ranks)} in {describe_call(evidence, found.call)}"


def base_of_wait(evidence: Evidence, found: Difference, rank: int) -> Diagnosis:
    """Return the fields of every diagnosis of a wait; `rank` is the one to look at."""
    order = list(dict.fromkeys([rank, *found.absent, *found.unknown, *found.calls]))
    seen = evidence.ranks.get(rank)
    if rank in found.calls:
        own, other = found.calls[rank].line, next((_line(evidence, each) for each in found.absent), None)
    else:
        own, other = _line(evidence, rank), found.call.line
    return Diagnosis(
        "stuck",
        "",
        rank=rank,
        node_rank=seen.node_rank if seen else None,
        line=place(own) or None,
        peer_line=place(other) or None,
        collective=describe_call(evidence, found.call),
        evidence=report_ranks(evidence, order),
    )


def _line(evidence: Evidence, number: int) -> CodeLine | None:
    rank = evidence.ranks.get(number)
    return rank.line if rank is not None else None


def branch_around(evidence: Evidence, found: Difference) -> Guard | None:
    """Return the test of the rank around a call that the absent ranks did not make."""
    others = [call for each in found.absent for call in evidence.ranks[each].calls]
    first = evidence.ranks[min(found.calls)]
    before = [call for call in first.by_group().get(found.group, []) if call.seq < found.seq]
    branch = call_branch(found.call, found.calls, others, before)
    if branch is None and others and all(call.callers for call in others):
        return used_under(stack_of(found.call), (frame for call in others for frame in call.callers))
    return branch


def user_stack(rank: RankEvidence) -> tuple[CodeLine, ...]:
    """Return the lines of the user's code at which a rank is, innermost first."""
    frames = tuple(frame for frame in rank.stack if is_user_file(frame.file))
    return frames or ((rank.line,) if rank.line is not None else ())


def is_finished(rank: RankEvidence) -> bool:
    """True if a rank reached the end of its program."""
    return rank.state == "ended" or rank.exit_code == 0
