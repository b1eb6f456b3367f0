"""Slow links and jitter: the rules' figures, from calls and exchanges with times chosen by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from frog.observe.diagnose import simulated_rules
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.exchange_rules import Exchange, _collectives, _slow_nodes
from frog.observe.diagnose.simulated_rules import jitter, of_simulation

S = 1_000_000_000
KIND, OTHER = ("all_reduce", "dp", 400, 4), ("all_gather", "dp", 400, 4)


def call(start_s: float, end_s: float, wait_s: float) -> Any:
    return SimpleNamespace(start_ns=int(start_s * S), end_ns=int(end_s * S), wait_ns=int(wait_s * S))


def test_collective_takes_from_its_last_rank_or_from_the_end_of_the_one_before() -> None:
    first, second, tp, alone = ("a", "dp", 1), ("b", "dp", 2), ("c", "tp", 1), ("d", "dp", 3)
    own = {
        2: {
            first: (400, call(1.0, 6.0, 5.0)),
            second: (80, call(2.0, 9.0, 3.0)),
            tp: (4, call(1.0, 2.0, 0.5)),
            alone: (4, call(1.0, 2.0, 0.5)),
        },
        5: {first: (400, call(4.0, 5.5, 0.5)), second: (80, call(5.0, 8.0, 2.5)), tp: (4, call(1.0, 2.0, 0.5))},
    }
    found = list(_collectives("dp", [2, 5], frozenset({0, 1}), own))  # type: ignore[arg-type]
    assert found == [
        # Ready at 4; rank 2 waited 2 s of its 5 from then on, rank 5 half a second.
        Exchange(("a", "dp", 400, 2), frozenset({0, 1}), 1, 2.0, 2.5),
        # Ready at 5, but the line was free at 6 only; both waited their whole time.
        Exchange(("b", "dp", 80, 2), frozenset({0, 1}), 2, 3.0, 5.5),
    ]


def exchanges(kind: tuple[str, str, int, int], nodes: set[int], *seconds: float) -> list[Exchange]:
    return [Exchange(kind, frozenset(nodes), step, each, 0.0) for step, each in enumerate(seconds)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], None),
        (exchanges(KIND, {0, 1}, 1.0, 1.0), None),
        (exchanges(KIND, {0, 1}, 1.0) + exchanges(KIND, {2, 3}, 1.5), None),  # not more than half as long again
        (exchanges(KIND, {0, 1}, 1.0) + exchanges(KIND, {2, 3}, 1.6), ([2, 3], 1.6)),
        (exchanges(KIND, {0, 1}, 1.0, 1.0, 9.0) + exchanges(KIND, {2, 3}, 2.0, 2.0, 0.1), ([2, 3], 2.0)),
        # Node 2 is in both slow pairs, and 0 and 1 have a fast one.
        (exchanges(KIND, {0, 1}, 1.0) + exchanges(KIND, {0, 2}, 4.0) + exchanges(KIND, {1, 2}, 3.0), ([2], 4.0)),
        # The kinds differ, so their times are not compared.
        (exchanges(KIND, {0, 1}, 1.0) + exchanges(OTHER, {2, 3}, 5.0), None),
        # Slow nodes that have nothing in common.
        (exchanges(KIND, {0, 1}, 1.0) + exchanges(KIND, {2, 3}, 4.0) + exchanges(KIND, {4, 5}, 4.0), None),
        # Node 2 is slow with 3, and fast with 0.
        (exchanges(KIND, {0, 2}, 1.0) + exchanges(KIND, {2, 3}, 4.0), ([3], 4.0)),
        (exchanges(KIND, {0, 1}, 0.0) + exchanges(KIND, {2, 3}, 4.0), None),  # no ratio
        (exchanges(KIND, {0, 1}, 1e-8) + exchanges(KIND, {2, 3}, 9e-7), None),  # too short to tell
    ],
)
def test_slow_nodes_are_those_that_only_slow_exchanges_have_in_common(
    found: list[Exchange], expected: tuple[list[int], float] | None
) -> None:
    assert _slow_nodes(found) == expected


# ---- jitter ----------------------------------------------------------------------------------------------------------

STEADY = [1.0] * 20
SHAKY = [1.0] * 17 + [1.5] * 3
SHAKIER = [2.0] * 17 + [4.0] * 3


def case_of(monkeypatch: pytest.MonkeyPatch, times: dict[tuple[int, str, int], list[float]]) -> Any:
    monkeypatch.setattr(simulated_rules, "pass_times", lambda case: times)
    return SimpleNamespace()


@pytest.mark.parametrize(
    "times",
    [
        {},
        {(0, "forward", 0): STEADY},
        {(0, "forward", 0): [1.0] * 17 + [1.07] * 3},
        {(0, "forward", 0): [1.0] * 6 + [1.5] * 3},  # nine passes
        {(0, "forward", 0): [0.0] * 20},
        {(0, "forward", 0): STEADY, (0, "forward", 1): [3.0] * 20},  # steady on each rank
    ],
)
def test_steady_times_and_few_passes_are_no_jitter(
    times: dict[tuple[int, str, int], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jitter(case_of(monkeypatch, times)) is None


def test_jitter_names_the_widest_phase_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {(0, "forward", 0): SHAKY, (1, "backward", 0): SHAKIER, (1, "forward", 0): STEADY}
    found = jitter(case_of(monkeypatch, times))
    assert found is not None
    assert (found.fault, found.phase) == ("slow", "backward")
    assert "a tenth of all backward passes takes 100% longer than the median or more" in found.finding
    for line, (place, usual, spread) in zip(
        found.evidence,
        [
            ("backward of stage 1", "2e+03", "2.00"),
            ("forward of stage 0", "1e+03", "1.50"),
            ("forward of stage 1", "1e+03", "1.00"),
        ],
        strict=True,
    ):
        assert line.strip().startswith(f"{place}: {usual} ms in the median")
        assert f"; {spread} times as long or more in a tenth of the passes  [events/]" in line
    many = {(stage, "forward", 0): SHAKY for stage in range(6)}
    widest = jitter(case_of(monkeypatch, many))
    assert widest is not None
    assert len(widest.evidence) == 4


def test_ten_passes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = jitter(case_of(monkeypatch, {(0, "forward", 0): [1.0] * 7 + [1.5] * 3}))
    assert found is not None


@pytest.mark.parametrize(
    ("fault", "advice"),
    [("none", "as it is"), ("kill", "plan for such losses"), ("cut", "no link was cut"), ("slow", "another layout"),
     ("hang", "another layout")],
)  # fmt: skip
def test_advice_of_a_simulation_is_about_the_plan(fault: str, advice: str) -> None:
    found = of_simulation(Diagnosis(fault, "it was", advice="as it is", also=(Diagnosis("kill", "too"),)))
    assert found.finding == "simulated run: it was"
    assert advice in found.advice
    assert found.also[0].finding == "simulated run: too"
    assert "plan for such losses" in found.also[0].advice
