"""A failed program's other ranks write what they know before torchrun ends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.runs.test_observed_files import STATUS

from frog.core.files import write_json
from frog.launch.torchrun import agent


def write_status(run: Path, rank: int, **changes: Any) -> None:
    path = run / f"observed/attempt_0/rank_{rank}/status.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**STATUS, "rank": rank, "state": "running", "answered": 0, **changes})


def request(run: Path) -> int:
    path = run / "observed/request.json"
    return int(json.loads(path.read_text())["number"]) if path.exists() else 0


def looks(then: Callable[[], None] | None = None, ranks: tuple[set[int], ...] = ()) -> Any:
    """Return a `running` that counts its calls; at the third, something happens. Its last set of ranks stays."""
    seen: list[set[int]] = []

    def running() -> set[int]:
        seen.append(ranks[min(len(seen), len(ranks) - 1)])
        if len(seen) == 3 and then is not None:
            then()
        return seen[-1]

    running.seen = seen  # type: ignore[attr-defined]
    return running


def test_ranks_are_asked_and_awaited_until_they_have_answered(tmp_path: Path) -> None:
    write_status(tmp_path, 0)
    running = looks(lambda: write_status(tmp_path, 0, answered=request(tmp_path)), ({0},))
    agent.ask_others(tmp_path, 0, running)
    assert (request(tmp_path), len(running.seen)) == (1, 4)


def test_rank_that_writes_its_own_error_is_awaited_until_it_has_ended(tmp_path: Path) -> None:
    write_status(tmp_path, 0, state="failed", answered=1)
    running = looks(None, ({0}, {0}, {0}, set()))
    agent.ask_others(tmp_path, 0, running)
    assert len(running.seen) == 4


def test_silent_rank_is_awaited_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status(tmp_path, 0)
    monkeypatch.setattr(agent, "_WAIT_S", 0.2)
    agent.ask_others(tmp_path, 0, looks(None, ({0},)))
    assert request(tmp_path) == 1


@pytest.mark.parametrize(("observed", "running"), [([], {0, 1}), ([1], set()), ([1], {0})])
def test_no_rank_is_asked_if_none_that_runs_is_observed(tmp_path: Path, observed: list[int], running: set[int]) -> None:
    for rank in observed:
        write_status(tmp_path, rank)
    agent.ask_others(tmp_path, 0, looks(None, (running,)))
    assert request(tmp_path) == 0
