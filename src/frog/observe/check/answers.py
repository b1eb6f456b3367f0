"""All rules on one program, and their answers in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.units import count, some_of
from frog.observe.check import (
    call_checks,
    checkpoint_checks,
    data_checks,
    epoch_checks,
    metric_checks,
    parameter_checks,
    replica_checks,
    resume_checks,
)
from frog.observe.check.against_one import read_against
from frog.observe.check.comparison import Comparison
from frog.observe.check.rank_records import RankRecord, read_records, read_starts
from frog.observe.check.rule import Answer, Rule, apply_rules
from frog.observe.check.rules_against_one import RULES_AGAINST_ONE, scope

RULES: tuple[Rule, ...] = (
    *replica_checks.RULES,
    *data_checks.RULES,
    *resume_checks.RULES,
    *epoch_checks.RULES,
    *parameter_checks.RULES,
    *call_checks.RULES,
    *metric_checks.RULES,
    *checkpoint_checks.RULES,
)
_ORDER = {"certain": 0, "likely": 1, "possible": 2}
_MOST_RULES = 4
"""Most rules that are named for one reason why they were not checked."""


def answers_of(records: dict[int, RankRecord], earlier: dict[int, RankRecord] | None = None) -> list[Answer]:
    """Apply all rules; the answers come in the order of the rules.

    earlier: the records of the run that saved the checkpoint from which this one has resumed.
    """
    return apply_rules(RULES, Comparison(records, earlier)) if records else []


@dataclass(frozen=True)
class Answers:
    """What all rules say of a run."""

    records: dict[int, RankRecord]
    answers: list[Answer]
    note: str = ""
    """What was compared with a run on one rank."""


def answers_of_start(
    run: Path, attempt: int | None = None, after: Path | None = None
) -> tuple[dict[int, RankRecord], list[Answer]]:
    """Read what a start of a run recorded, and apply the rules that need no run on one rank; see `read_answers`."""
    starts = read_starts(run, attempt)
    records = next(starts, {})
    return records, answers_of(records, next(starts, {}) if after is None else read_records(after))


def read_answers(run: Path, attempt: int | None = None, after: Path | None = None) -> Answers:
    """Read what a run recorded, and apply the rules to it, and those against one rank if it has its runs.

    after: the folder of the run whose checkpoint it resumed from; None: an earlier start of the same run, if any.

    Raises:  RunError if a file is damaged.
    """
    records, answers = answers_of_start(run, attempt, after)
    against = read_against(run)
    if against is None:
        return Answers(records, answers)
    return Answers(records, [*apply_rules(RULES_AGAINST_ONE, against), *answers], scope(against))


def broken_rules(answers: list[Answer]) -> list[Answer]:
    """Return the rules that are broken: certain ones first, then by step."""
    return sorted((answer for answer in answers if answer.broken is not None), key=_rank)


def _rank(answer: Answer) -> tuple[int, int]:
    assert answer.broken is not None
    return _ORDER[answer.broken.sure], answer.broken.step or 0


def page(name: str, records: dict[int, RankRecord], answers: list[Answer], note: str = "") -> str:
    """Return the answers as text: what is broken, what held, what could not be checked and why.

    note: a line before what held.
    """
    if not records:
        return f"{name}: nothing was recorded: no rank imported torch and came to its first step"
    steps = max((len(record.steps) for record in records.values()), default=0)
    sampled = max((sum(step.gradients is not None for step in record.steps) for record in records.values()), default=0)
    wrong, lines = broken_rules(answers), []
    world = max(record.start.world_size for record in records.values())
    ranks = count(world, "rank") if len(records) == world else f"{len(records)} of {world} ranks"
    scope = f"{ranks}, {steps} optimizer steps, {sampled} of them sampled"
    surely = [answer for answer in wrong if answer.is_alarm]
    if surely:
        lines.append(f"{name}: {len(surely)} {'rules are' if len(surely) > 1 else 'rule is'} broken ({scope})")
    elif any(answer.held for answer in answers):
        lines.append(f"{name}: no rule is broken as far as could be seen ({scope})")
    else:
        lines.append(f"{name}: no rule could be checked ({scope})")
    for answer in wrong:
        lines += ["", *_lines_of(answer)]
    lines += ["", note] if note else []
    lines += ["", f"Held: {'; '.join(answer.rule.says for answer in answers if answer.held) or 'nothing'}"]
    missing: dict[str, list[str]] = {}
    for answer in answers:
        if answer.why_not:
            missing.setdefault(answer.why_not, []).append(answer.rule.says)
    if missing:
        lines += ["", "Not checked", *(f"  {some_of(rules, _MOST_RULES)}: {why}" for why, rules in missing.items())]
    stopped = [
        f"  rank {rank} recorded nothing more: {record.stopped}" for rank, record in records.items() if record.stopped
    ]
    return "\n".join([*lines, *(["", "Recording stopped", *stopped] if stopped else [])])


def _lines_of(answer: Answer) -> list[str]:
    broken = answer.broken
    assert broken is not None
    lines = [f"{broken.sure.capitalize()}: {broken.finding}"]
    if broken.line is not None:
        lines.append(f"  line        {broken.line.file}:{broken.line.line}")
    lines += [f"  evidence    {line}" for line in broken.evidence[:4]]
    return [*lines, f"  what to do  {broken.advice}", f"  rule        {answer.rule.name}: {answer.rule.says}"]


def answers_as_json(answers: list[Answer]) -> list[dict[str, Any]]:
    """Return the answers as JSON objects, in the order of the rules."""
    return [_as_json(answer) for answer in answers]


def _as_json(answer: Answer) -> dict[str, Any]:
    rule, broken = answer.rule, answer.broken
    row: dict[str, Any] = {"rule": rule.name, "says": rule.says, "outcome": "held"}
    if answer.why_not:
        row |= {"outcome": "not checked", "why": answer.why_not}
    if broken is not None:
        row |= {
            "outcome": "broken",
            "sure": broken.sure,
            "finding": broken.finding,
            "step": broken.step,
            "ranks": list(broken.ranks),
            "line": f"{broken.line.file}:{broken.line.line}" if broken.line is not None else None,
            "advice": broken.advice,
            "evidence": list(broken.evidence),
        }
    return row
