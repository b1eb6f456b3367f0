"""The weights of backward passes in a gradient, and the rules that use them, on records with known weights."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from check_records import LINE, step, write

from frog.observe.check.answers import RULES
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.gradient_makeup import least_squares, makeup_of
from frog.observe.check.rank_records import read_records

RULE = {rule.name: rule for rule in RULES}
PARAMETERS, RANKS = 6, 2
MEAN = [["MseLossBackward0", 1, None, None]]
HALF = [["DivBackward0", None, None, 2.0], *MEAN]
BUCKET = {"call": "all_reduce", "line": ["/home/one/bucket.py", 4, "sync"], "elements": 96, "op": "SUM"}


class Drawn:
    """Four numbers for each parameter, rank, step and backward pass."""

    def __init__(self) -> None:
        draw = random.Random(1)
        self.numbers = {
            (rank, number, each): [[draw.gauss(0, 1) for _ in range(4)] for _ in range(PARAMETERS)]
            for rank in range(RANKS)
            for number in (1, 2, 3)
            for each in range(4)
        }

    def used(self, number: int, weights: list[float], before: float, rank: int | None) -> list[list[float]]:
        """Return a weighted sum over passes of all ranks or one, and of what the step before used."""
        ranks = range(RANKS) if rank is None else [rank]
        earlier = self.used(number - 1, weights, before, rank) if before and number > 1 else None
        return [
            [
                sum(w * self.numbers[r, number, each][index][place] for each, w in enumerate(weights) for r in ranks)
                + (before * earlier[index][place] if earlier else 0.0)
                for place in range(4)
            ]
            for index in range(PARAMETERS)
        ]


def records(
    folder: Path,
    weights: list[float],
    *,
    before: float = 0.0,
    alone: bool = False,
    graph: list[Any] = MEAN,
    off: float = 0.0,
    parameters: int = PARAMETERS,
    **changes: Any,
) -> Comparison:
    """Write steps of two ranks whose gradients have these weights, and read them.

    alone: each rank uses its own. off: what is added to the first number. parameters: how many are held.
    changes: of each step.
    """
    drawn, same_loss = Drawn(), changes.pop("same_loss", False)
    calls = [BUCKET, *([changes.pop("clip")] if "clip" in changes else [])]
    parameter = {"module": 0, "shape": [4], "dtype": "float32", "trained": True, "ddp": None if alone else [0, 1]}
    every = [{"names": [f"w{index}"], **parameter} for index in range(parameters)]
    held = {"kind": "parameters", "optimizer": 0, "class": "SGD", "made": LINE, "parameters": every}
    for rank in range(RANKS):
        lines = []
        for number in (1, 2, 3):
            used = drawn.used(number, weights, before, rank if alone else None)
            used[0][0] += off
            passes = [
                {
                    "line": ["/home/one/train.py", 8, "main"],
                    "graph": graph,
                    "loss": 1.0 if same_loss else 1.0 + rank + each,
                    "adds": each > 0,
                    "brought": {"0": {str(i): drawn.numbers[rank, number, each][i] for i in range(parameters)}},
                }
                for each in range(len(weights))
            ]
            tables = {
                "gradients": [[7 + number + 100 * rank * alone, 1.0]] * parameters,
                "before": [10 * rank * alone + number] * parameters,
                "weights": [[10 * rank * alone + number + 1, 1.0]] * parameters,
                "changed": [1.0] * parameters,
                "state": [[]] * parameters,
                "parts": {str(index): each for index, each in enumerate(used[:parameters])},
            }
            lines.append(step(number, **tables, backwards=passes, calls=calls, **changes))
        write(folder, rank, [held, *lines, {"kind": "end", "steps": 3}])
    return Comparison(read_records(folder))


def test_least_squares_finds_the_solution_and_what_is_left() -> None:
    rows = [[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [2.0, 2.0]]
    right = [2 * one - 3 * other for one, other in rows]
    solved = least_squares(rows, right)
    assert solved is not None
    assert solved[0] == pytest.approx([2.0, -3.0])
    assert solved[2] == pytest.approx(0.0, abs=1e-12)
    assert least_squares([[one, 2 * one] for one, _ in rows], right) is None


@pytest.mark.parametrize(("weights", "before"), [([0.25, 0.25], 0.0), ([1.0, 0.5], 0.0), ([0.5, 0.5], 1.0)])
def test_weights_of_passes_are_found(tmp_path: Path, weights: list[float], before: float) -> None:
    case = records(tmp_path, weights, before=before)
    (found,) = makeup_of(case, case.sampled(0)[1])
    assert found.ranks == (0, 1)
    assert found.passes == pytest.approx(weights, abs=1e-6)
    assert found.before == pytest.approx(before, abs=1e-6)
    assert found.error < 1e-3


def test_weights_are_those_of_each_rank_if_ranks_do_not_reduce(tmp_path: Path) -> None:
    case = records(tmp_path, [1.0, 0.5], alone=True)
    assert [each.ranks for each in makeup_of(case, case.sampled(0)[1])] == [(0,), (1,)]


@pytest.mark.parametrize(("off", "found"), [(0.0, True), (1e-2, False)])
def test_two_parameters_tell_the_weights_of_four_passes(tmp_path: Path, off: float, found: bool) -> None:
    case = records(tmp_path, [0.25, 0.25, 0.5, 0.5], off=off, parameters=2)
    assert [makeup.is_even for makeup in makeup_of(case, case.sampled(0)[1])] == [False] * found


def test_gradient_that_is_no_such_sum_has_no_weights(tmp_path: Path) -> None:
    case = records(tmp_path, [0.5, 0.5], off=1e-2)
    assert list(makeup_of(case, case.sampled(0)[1])) == []


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("sums", {"weights": [1.0], "graph": MEAN}, "2 times the mean over ranks 0 and 1"),
    ("sums", {"weights": [1.0, 1.0], "graph": HALF}, "2 times the mean over ranks 0 and 1 and 2 micro-batches"),
    ("accumulation", {"weights": [0.5, 0.5], "graph": MEAN}, "adds the gradients of 2 micro-batches"),
    ("accumulation", {"weights": [0.0, 0.5], "graph": HALF}, "1 of 2 micro-batches count nothing"),
    ("accumulation", {"weights": [0.25, 0.5], "graph": HALF}, "unequal weights in the gradients, 0.25, 0.5"),
    ("accumulation", {"weights": [1.0, 1.0], "graph": MEAN, "alone": True}, "adds the gradients of 2 micro-batches"),
    ("cleared", {"weights": [0.5], "graph": MEAN, "before": 1.0}, "plus all of step 1's"),
]


@pytest.mark.parametrize(("rule", "changes", "says"), CASES)
def test_wrong_weights_break_a_rule(tmp_path: Path, rule: str, changes: dict[str, Any], says: str) -> None:
    found = RULE[rule].look(records(tmp_path, **changes))
    assert found is not None
    assert found.sure == "likely"
    assert says in found.finding


RIGHT: list[dict[str, Any]] = [
    {"weights": [0.5], "graph": MEAN},
    {"weights": [0.5, 0.5], "graph": HALF},
    {"weights": [0.25, 0.25], "graph": MEAN},
    {"weights": [0.5], "graph": MEAN, "before": 0.9},  # a momentum of the program's own
    {"weights": [1.0], "graph": [["SumBackward0", None, None, None]]},  # a sum over samples may be added
    {"weights": [1.0], "graph": MEAN, "same_loss": True},  # ranks that split a layer
    {"weights": [0.2], "graph": MEAN, "clip": {"call": "clip", "line": LINE, "norm": 5.0, "limit": 2.0}},
]


@pytest.mark.parametrize("changes", RIGHT)
def test_right_weights_break_no_rule(tmp_path: Path, changes: dict[str, Any]) -> None:
    case = records(tmp_path, **changes)
    for name in ("sums", "accumulation", "cleared"):
        with contextlib.suppress(NotObservable):
            assert RULE[name].look(case) is None


def test_clipping_does_not_hide_a_sum(tmp_path: Path) -> None:
    case = records(tmp_path, [0.4], clip={"call": "clip", "line": LINE, "norm": 5.0, "limit": 2.0})
    found = RULE["sums"].look(case)
    assert found is not None
    assert "2 times" in found.finding
