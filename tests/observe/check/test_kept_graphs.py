"""Graphs that outlive their step: what the observer marks and finds, in this process, and what the rule says of it."""

from __future__ import annotations

import gc
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from check_records import step, table, write
from torch import nn

from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.graph_checks import graphs_kept
from frog.observe.check.rank_records import read_records
from frog.observe.hook.frog_observer.checks.kept_graphs import KeptGraphs

LINE = ["/home/one/train.py", 9, "main"]
FILE = Path(__file__).resolve()


class Trainer:
    """Holds things as programs do."""

    def __init__(self) -> None:
        self.graphs, self.net = KeptGraphs(), nn.Linear(4, 1)
        self.sum: Any = 0.0
        self.losses: list[torch.Tensor] = []

    def loss(self, number: int, hidden: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.randn(2, 4)
        out = self.net(x) if hidden is None else self.net(x) + hidden
        loss: torch.Tensor = out.pow(2).mean()
        self.graphs.mark(out, number, "output", LINE)
        self.graphs.mark(loss, number, "loss", LINE)
        loss.backward(retain_graph=hidden is not None)  # type: ignore[no-untyped-call]
        return out if hidden is not None else loss

    def look(self, number: int) -> Any:
        return self.graphs.look(number, sys._getframe(1), [self.net])


def sums(trainer: Trainer) -> Any:
    total: Any = 0.0
    for number in range(1, 7):
        total += trainer.loss(number)  # holds
        found = trainer.look(number)
    return found


def appends(trainer: Trainer) -> Any:
    stats: dict[str, list[torch.Tensor]] = {"loss": []}
    for number in range(1, 7):
        loss = trainer.loss(number)
        stats["loss"].append(loss)  # holds
        found = trainer.look(number)
    return found


def note(trainer: Trainer, loss: torch.Tensor) -> None:
    trainer.sum = trainer.sum + loss  # holds


def has_an_attribute(trainer: Trainer) -> Any:
    for number in range(1, 7):
        note(trainer, trainer.loss(number))
        found = trainer.look(number)
    return found


def carries_state(trainer: Trainer) -> Any:
    state = torch.zeros(2, 1), 0
    for number in range(1, 7):
        state = trainer.loss(number, state[0]), number  # holds
        found = trainer.look(number)
    return found


def line_that_holds(function: Any) -> int:
    code, text = function.__code__, FILE.read_text().splitlines()
    return next(line for line in range(code.co_firstlineno, len(text)) if "# holds" in text[line - 1])


@pytest.mark.parametrize(
    ("program", "name", "adds"),
    [
        (sums, "total", sums),
        (appends, "stats", appends),
        (has_an_attribute, "sum", note),
        (carries_state, "state", carries_state),
    ],
)
def test_what_holds_the_graphs_is_named_with_the_line_that_adds_to_it(program: Any, name: str, adds: Any) -> None:
    found = program(Trainer())
    holder = found.pop("holder")
    assert found == {"steps": 4, "first": 1, "what": "output", "line": LINE}
    assert (holder["name"], holder["line"]) == (name, [str(FILE), line_that_holds(adds), adds.__name__])


def test_numbers_and_a_look_at_the_last_step_keep_nothing() -> None:
    trainer, total, before = Trainer(), 0.0, None
    for number in range(1, 9):
        loss = trainer.loss(number)
        total += loss.item()
        trainer.losses.append(loss.detach())
        assert trainer.look(number) is None
        before = loss
    assert before is not None


def test_graphs_that_only_refer_to_themselves_are_not_kept() -> None:
    trainer = Trainer()
    gc.disable()
    try:
        for number in range(1, 30):
            ring: list[Any] = [trainer.loss(number)]
            ring.append(ring)
            found = trainer.look(number)
            assert found is None or found["steps"] < 3
    finally:
        gc.enable()


def test_function_that_may_keep_its_mapping_of_variables_is_not_searched() -> None:
    trainer, every = Trainer(), []

    def trains() -> set[str]:
        known = locals()
        kept: deque[torch.Tensor] = deque()
        for number in range(1, 7):
            kept.append(trainer.loss(number))
            every.append(trainer.look(number))
        return set(known)

    assert trains() == {"trainer", "every"}
    assert "holder" not in every[-1]


def frees(trainer: Trainer) -> list[Any]:
    kept = [trainer.loss(number) for number in range(1, 7)]
    found = [trainer.look(6)]
    del kept
    return [*found, trainer.look(6)]


def test_a_search_keeps_nothing_alive() -> None:
    found, after = frees(Trainer())
    assert found["holder"]["name"] == "kept"
    assert after is None


# ---- the rule --------------------------------------------------------------------------------------------------------


def looked(*kept: tuple[int, int] | None, holder: Any = None, retains: bool = False) -> list[dict[str, Any]]:
    """Return steps after which the graphs of so many earlier ones were there, the first of them given too."""
    own = {"what": "loss", "line": LINE, **({"holder": holder} if holder else {})}
    found = [each and {"steps": each[0], "first": each[1], **own} for each in kept]
    backward = {"line": LINE, "retains": retains}
    return [step(number, kept=each, backwards=[backward]) for number, each in enumerate(found, 1)]


GROWS = [None, None, (1, 1), (2, 1), (3, 1), (4, 1)]
HOLDER = {"name": "total", "line": ["/home/one/train.py", 4, "main"]}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (looked(*GROWS[:4]), "fewer than 5 steps of an optimizer were sampled"),
        (looked(*[None] * 6), None),
        (looked(None, None, None, (1, 2), (2, 2), (2, 3), (1, 5)), None),
        (
            looked(*GROWS),
            ("possible", 9, "something holds the loss at train.py:9 (main); after step 5, those of 3 ear"),
        ),
        (looked(*GROWS, (5, 1)), ("likely", 9, "later those of 5")),
        (looked(*GROWS, holder=HOLDER), ("likely", 4, "`total` at train.py:4 (main) holds them")),
        (
            looked(*GROWS, holder={"name": "out", "attribute": True}),
            ("likely", 9, "`self.out` holds them, of the loss"),
        ),
        (
            looked(*GROWS, (4, 2), (4, 3), (4, 4), (4, 5), holder=HOLDER),
            ("possible", 4, "`total`"),
        ),  # a list with a limit
        (looked(*GROWS, None, None, (1, 7), (2, 7), (3, 7), holder=HOLDER), ("likely", 4, "`total`")),  # by epoch
    ],
)
def test_rule(tmp_path: Path, steps: list[dict[str, Any]], expected: Any) -> None:
    write(tmp_path, 0, [table(), *steps])
    case = Comparison(read_records(tmp_path))
    if isinstance(expected, str):
        with pytest.raises(NotObservable, match=expected):
            graphs_kept(case)
        return
    found = graphs_kept(case)
    assert (found is None) == (expected is None)
    if found is not None:
        sure, line, words = expected
        assert (found.sure, found.line and found.line.line, found.ranks, found.step) == (sure, line, (0,), 5)
        assert "since step 1:" in found.finding
        assert words in found.finding


@pytest.mark.parametrize(("retains", "advice"), [(True, "detach the hidden state"), (False, "add numbers")])
def test_advice_is_for_what_the_program_does(tmp_path: Path, retains: bool, advice: str) -> None:
    write(tmp_path, 0, [table(), *looked(*GROWS, retains=retains)])
    found = graphs_kept(Comparison(read_records(tmp_path)))
    assert found is not None
    assert found.advice.startswith(advice)
