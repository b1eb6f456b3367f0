"""A world that changed during the run: every view shows its size over the steps, and lost and joined ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import START_UNIX_NS, Synthetic, make_run

from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.observe.diagnose.run_diagnosis import diagnose
from frog.observe.view.charts import charts, marks
from frog.observe.view.compare_runs import compare_runs
from frog.observe.view.report import render_report
from frog.observe.view.timeline import phase_fractions, windows

MEMBERS: list[list[int] | None] = [[0, 1, 2, 3], [0, 1, 3], [1, 3], [1, 3, 4]]
SEGMENTS = [(4, 0, 10), (3, 9, 20), (2, 19, 40), (3, 40, 60)]
"""A step in progress at a loss may be in the events of both worlds."""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "run", Synthetic(segments=SEGMENTS, members=MEMBERS))


def chart(folder: RunFolder, name: str) -> dict[str, Any]:
    return {one["name"]: one for one in charts(read_history(folder))}[name]


def test_world_size_is_charted_over_steps(run: RunFolder) -> None:
    world = chart(run, "world")
    assert world["steps"] == [0, 9, 19, 40, 60]
    assert [(line["role"], line["values"], line.get("text")) for line in world["lines"]] == [
        ("world", [4, 3, 2, 3, 3], None),
        ("lost", [None, 3, 2, None, None], "2, 0"),
        ("joined", [None, None, None, 3, None], "4"),
    ]
    assert marks(read_history(run)) == [
        {"step": 9, "label": "2 lost"},
        {"step": 19, "label": "0 lost"},
        {"step": 40, "label": "4 joined"},
    ]


def test_report_lists_lost_and_joined_ranks(run: RunFolder) -> None:
    page = " ".join(render_report(run).split())
    assert "Ranks that were lost or joined" in page
    row = '<td class="num">19</td><td>0</td><td><span class="none">–</span></td><td class="num">2</td><td class="num">0.25 s</td>'  # noqa: RUF001, E501
    assert row in page


def test_report_shows_which_rank_was_replaced(run: RunFolder) -> None:
    """A process was started to replace rank 2 and ended before it joined; then another joined as rank 4."""
    own = 4_000_000
    launch = {"pid": 1, "nodes": [], "ranks_per_node": 4, "program": [], "restarts": 0, "network": None}
    where = {"attempt": 0, "node": 0, "node_rank": 0}
    address = {"world_size": 4, "master_addr": "x", "master_port": 1}
    events = [
        {"event": "launch", **launch},
        {"event": "world", **where, **address, "ranks": [0, 1, 2, 3], "pids": [own, own + 1, own + 2, own + 3]},
        {"event": "replace", **where, "rank": 2, "lost": own + 2, "pid": own + 99, "number": 1},
        {"event": "replace", **where, "rank": 2, "lost": own + 99, "pid": own + 4, "number": 2},
    ]
    lines = (json.dumps({**event, "unix_ns": START_UNIX_NS + number}) for number, event in enumerate(events))
    run.launcher_events.write_text("".join(f"{line}\n" for line in lines))
    changes = [segment.change for segment in read_history(run).segments if segment.change]
    assert [change.replaced for change in changes] == [{}, {}, {4: 2}]
    assert "<td>4 for 2</td>" in render_report(run)
    evidence = "\n".join(diagnose(run).evidence)
    assert "joined to replace rank 2 after step 40" in evidence
    assert f"process {own + 99} was started to replace rank 2, but has not joined" in evidence


def test_steps_of_lost_world_count_once(run: RunFolder) -> None:
    history = read_history(run)
    assert chart(run, "loss")["steps"] == list(range(1, 61))
    for number, step in ((0, 10), (1, 20)):
        for rank in history.ranks.values():
            assert not ((rank.segment == number) & (rank.steps == step)).any()
            assert not ((rank.collectives.segment == number) & (rank.collectives.step == step)).any()
    assert [fractions.num_steps for fractions in phase_fractions(history)] == [60, 60, 39, 9]
    assert all(len(window.lanes) == 3 for window in windows(history)), "the last world's ranks"


def test_comparison_shows_sequence_of_world_sizes(run: RunFolder, tmp_path: Path) -> None:
    calm = make_run(tmp_path / "calm", Synthetic(segments=[(4, 0, 60)]))
    found = compare_runs(calm, run, 1e-5)
    assert [one.outcome for one in found.findings if one.what == "sample order"] == ["equal"]
    assert "world 4, then 3, then 2, then 3" in "\n".join(map(str, found.titles))


def test_resume_after_shrink_starts_new_world(tmp_path: Path) -> None:
    segments = [(4, 0, 30), (3, 29, 50), (4, 40, 60)]
    run = make_run(tmp_path / "run", Synthetic(segments=segments, members=[*MEMBERS[:2], None]))
    world = chart(run, "world")
    assert (world["steps"], world["lines"][0]["values"]) == ([0, 29, 40, 60], [4, 3, 4, 4])
    assert marks(read_history(run))[1] == {"step": 40, "label": "resumed, world 4"}
