"""Simulated runs: jitter, which only a simulation shows without other noise, and advice for what did not happen."""

from __future__ import annotations

from dataclasses import replace
from statistics import median, quantiles

from frog.observe.diagnose.case import Case
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.slow_rules import pass_times

_FEWEST_PASSES = 10
_LEAST_SPREAD = 1.08
"""Ratio of the slowest tenth of a phase's passes to their median."""

_ADVICE = {
    "kill": "no process was lost, and a simulated run cannot be resumed: plan for such losses. `frog plan` prints how "
    "many to expect and how often to save (node_mtbf and storage of the cluster file)",
    "cut": "no link was cut, and a simulated run cannot be resumed: plan for such losses. `frog plan` prints how many "
    "to expect and how often to save (node_mtbf and storage of the cluster file)",
    "slow": "",
}
_CHANGE_LAYOUT = (
    "every step takes as long as its slowest rank or link: simulate another layout, with less communication between "
    "nodes or fewer ranks that wait for each other (`frog plan search` lists the fastest), or a cluster without this "
    "disturbance"
)


def jitter(case: Case) -> Diagnosis | None:
    """Find computing times that vary at random, in a simulated run: ranks then wait for the slowest of each pass."""
    ratios: dict[tuple[int, str], list[float]] = {}
    seconds: dict[tuple[int, str], list[float]] = {}
    for (stage, phase, _), times in pass_times(case).items():
        usual_s = median(times)
        ratios.setdefault((stage, phase), []).extend(time / usual_s for time in times if usual_s > 0)
        seconds.setdefault((stage, phase), []).extend(times)
    spreads = {
        place: quantiles(of_place, n=10)[-1] for place, of_place in ratios.items() if len(of_place) >= _FEWEST_PASSES
    }
    if max(spreads.values(), default=0.0) < _LEAST_SPREAD:
        return None
    widest = sorted(spreads, key=lambda place: -spreads[place])
    lines = [
        f"{'':12}  {phase} of stage {stage}: {1e3 * median(seconds[stage, phase]):.3g} ms in the median without "
        f"waiting; {spreads[stage, phase]:.2f} times as long or more in a tenth of the passes  [events/]"
        for stage, phase in widest[:4]
    ]
    (_, phase), spread = widest[0], spreads[widest[0]]
    return Diagnosis(
        "slow",
        f"computing times vary (jitter): a tenth of all {phase} passes takes {spread - 1:.0%} longer than the median "
        "or more, on all ranks, which wait for each other",
        phase=phase,
        evidence=tuple(lines),
    )


def of_simulation(diagnosis: Diagnosis) -> Diagnosis:
    """Mark a diagnosis as one of a simulated run, whose advice concerns a plan: nothing can be repaired or resumed."""
    advice = diagnosis.advice if diagnosis.fault == "none" else _ADVICE.get(diagnosis.fault) or _CHANGE_LAYOUT
    return replace(
        diagnosis,
        finding=f"simulated run: {diagnosis.finding}",
        advice=advice,
        also=tuple(map(of_simulation, diagnosis.also)),
    )
