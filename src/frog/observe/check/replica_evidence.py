"""Replicas that a run has, how they differ between ranks, and what of that is shown as evidence."""

from __future__ import annotations

from collections.abc import Callable

from frog.core.units import some_of
from frog.observe.check.comparison import MOST_NAMES, Comparison, Moment, NotObservable, Replica
from frog.observe.check.rank_records import Fingerprint, Place, Step, line_of_unequal_seeds


def replicas_of(case: Comparison) -> list[Replica]:
    """Return the parameters that are known to be equal on several ranks.

    Raises:  NotObservable if there are none, or no step of them was sampled on all ranks.
    """
    case.require_steps()
    case.require_ranks()
    if not case.replicas:
        why = "the weights are sharded" if case.is_sharded else "no parameter is known to be equal on several ranks"
        raise NotObservable(why)
    if next(case.all_sampled(), None) is None:
        raise NotObservable("the ranks have no sampled step in common")
    return case.replicas


def differs(moment: Moment, replica: Replica, bits_of: Callable[[Step, int], int | None]) -> bool:
    """True if the ranks of a replica took the step and hold different bits."""
    if not set(replica.ranks) <= set(moment.of):
        return False
    return len({bits_of(moment.of[rank], replica.index) for rank in replica.ranks}) > 1


def names_of(case: Comparison, replicas: list[Replica]) -> str:
    """Return the names of the first parameters, and how many more there are."""
    return some_of([case.name(replica.optimizer, replica.index) for replica in replicas], MOST_NAMES)


def values_of(case: Comparison, moment: Moment, replicas: list[Replica], what: str) -> tuple[str, ...]:
    """Return a line of evidence for each rank, for the first parameters."""
    lines = []
    for replica in replicas[:2]:
        for rank in replica.ranks[:4]:
            step = moment.of[rank]
            shown = step.gradient(replica.index) if what == "gradients" else step.weights[replica.index]
            name, source = case.name(replica.optimizer, replica.index), case.records[rank].path
            lines.append(f"rank {rank}   step {moment.step}: {what} of {name}: {_norm(shown)}  [{source}]")
    return tuple(lines)


def _norm(shown: Fingerprint | None) -> str:
    if shown is None:
        return "none"
    return "not finite" if shown.norm is None else f"norm {shown.norm:.9g}"


def line_of_call(moment: Moment, ranks: list[int], name: str) -> Place | None:
    """Return the line of the first call of a watched function on some ranks before a step; None without one."""
    calls = (call for rank in ranks for call in moment.of[rank].calls if call.call == name)
    return next((call.line for call in calls), None)


def made_at(case: Comparison, replica: Replica) -> Place | None:
    """Return the line that made a parameter, or that gave the ranks different seeds for it."""
    parameter = case.parameter(replica.optimizer, replica.index)
    if parameter is None:
        return None
    records = [case.records[rank] for rank in replica.ranks]
    return line_of_unequal_seeds(records, parameter.names[0] if parameter.names else "") or parameter.made
