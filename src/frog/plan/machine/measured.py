"""What the phases of a run's steps took, next to what a measured machine predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from frog.core.config import RunConfig
from frog.core.runs.history import History, Ints, RankHistory
from frog.core.runs.launcher_schema import LaunchEvent
from frog.core.runs.vocabulary import PHASES as SPANS
from frog.core.runs.vocabulary import STEP_PHASES
from frog.plan.links import SlowNetwork, payload_rate
from frog.plan.machine.costs import Machine
from frog.plan.machine.step import OPTIMIZE, PASSES, PHASES, REDUCE, PhaseTime, predict_step, step_time

OTHER = "data, events"
_PHASE_OF = {"forward": PASSES, "backward": PASSES, "reduce": REDUCE, "optimize": OPTIMIZE, "zero": OPTIMIZE}
_NUM_STEPS = 50
"""Number of final steps for the median."""


@dataclass(frozen=True)
class Row:
    """A phase, or the step: predicted and measured seconds. A phase that no formula covers has no prediction."""

    name: str
    predicted_s: float | None
    measured_s: float

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1 if self.predicted_s and self.measured_s else None


def compare_phases(config: RunConfig, world_size: int, machine: Machine, history: History) -> list[Row]:
    """Return the rows of a run's last world: its phases, the rest of the step, the step.

    If the run had a slow network, the prediction has it too.

    Raises:  ConfigError if the machine's costs do not cover the run.
    """
    predicted = predict_step(config, world_size, machine, network_of(history))
    measured = measured_phases(history)
    if not measured:
        return []
    rows = [Row(name, predicted[name].total_s if name in predicted else None, s) for name, s in measured.items()]
    return [*rows, Row("step", step_time(predicted), sum(measured.values()))]


def network_of(history: History) -> SlowNetwork | None:
    """Return the simulated network of a run's last launch; None without one."""
    launches = [event.network for event in history.run.launcher if isinstance(event, LaunchEvent)]
    link, segment = launches[-1] if launches else None, history.last_segment
    if link is None or segment is None:
        return None
    starts = [own.starts[segment] for _, own in sorted(history.ranks.items()) if segment in own.starts]
    nodes = tuple(start.node_rank for start in starts)
    return SlowNetwork(nodes, link.delay_s, payload_rate(link.rate_bits_per_s, link.mtu))


def measured_phases(history: History) -> dict[str, float]:
    """Return the median seconds of each phase and of the rest of a step, the mean of the ranks of the last world.

    The first step of a world warms up, and is left out if there are others. Forward and backward count from the start
    of the first to the end of the last, so they include the waits of a pipeline.
    """
    last = history.last_segment
    if last is None:
        return {}
    ranks = [times for own in history.ranks.values() if (times := _medians(own, last))]
    names = (*PHASES, OTHER)
    return {name: float(np.mean([times[name] for times in ranks])) for name in names} if ranks else {}


def _medians(own: RankHistory, segment: int) -> dict[str, float]:
    steps = own.steps[own.segment == segment]
    steps = (steps[1:] if len(steps) > 1 else steps)[-_NUM_STEPS:]
    spans = own.spans
    recent = np.isin(spans.step, steps) & (spans.phase < len(STEP_PHASES))
    columns = [column[recent] for column in (spans.step, spans.phase, spans.start_ns, spans.end_ns)]
    phase_times = [_step_phases(*(column[columns[0] == step] for column in columns[1:])) for step in steps.tolist()]
    phase_times = [times for times in phase_times if times]
    if not phase_times:
        return {}
    return {name: float(np.median([times[name] for times in phase_times])) for name in phase_times[0]}


def _step_phases(phases: Ints, starts: Ints, ends: Ints) -> dict[str, float]:
    if not len(phases):
        return {}
    names = np.array([_PHASE_OF.get(SPANS[phase], OTHER) for phase in phases])
    times = {name: float((ends - starts)[names == name].sum()) / 1e9 for name in (REDUCE, OPTIMIZE)}
    passes = names == PASSES
    times[PASSES] = float(ends[passes].max() - starts[passes].min()) / 1e9 if passes.any() else 0.0
    whole_s = float(ends.max() - starts.min()) / 1e9
    return {**times, OTHER: whole_s - sum(times.values())}


def comparison_lines(rows: list[Row]) -> Iterator[str]:
    """Yield a table of predicted and measured milliseconds."""
    yield f"{'step time by phase, ms':<28}{'predicted':>12}{'measured':>12}{'error':>10}"
    for row in rows:
        predicted = "-" if row.predicted_s is None else f"{row.predicted_s * 1e3:.1f}"
        error = "" if row.error is None else f"{row.error:+.0%}"
        yield f"  {row.name:<26}{predicted:>12}{row.measured_s * 1e3:>12.1f}{error:>10}".rstrip()


def prediction_lines(phases: dict[str, PhaseTime]) -> Iterator[str]:
    """Yield a table of predicted milliseconds."""
    yield f"{'step time by phase, ms':<28}{'computing':>12}{'communicating':>15}{'total':>10}"
    whole = PhaseTime(
        sum(phase.computing_s for phase in phases.values()), sum(phase.communicating_s for phase in phases.values())
    )
    for name, phase in {**phases, "step": whole}.items():
        times_ms = [phase.computing_s * 1e3, phase.communicating_s * 1e3, phase.total_s * 1e3]
        yield f"  {name:<26}{times_ms[0]:>12.1f}{times_ms[1]:>15.1f}{times_ms[2]:>10.1f}"
