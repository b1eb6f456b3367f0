"""`frog explain`: charts from given times, and real worlds, in which the rank with the most work arrives last."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from harness import Harness

from frog.core.errors import UsageError
from frog.learn.explain.chart import Bar, chart, span_text, waits
from frog.learn.explain.explain_commands import read_nodes, run_notes
from frog.learn.explain.story import write_story

MS = 1_000_000
START = 7_000 * MS


def notes_of(*times: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return notes of ranks on one node, from times in ms since the start."""
    who = {"world_size": len(times), "ranks_per_node": len(times), "node_rank": 0, "host": "desk", "began_ns": START}
    who |= {"rendezvous_address": "127.0.0.1:29500", "listener": "rank 0", **more}
    found = []
    for rank, told in enumerate(times):
        at = {name: START + value * MS if name.endswith("_ns") else value for name, value in told.items()}
        found.append({**who, "rank": rank, "local_rank": rank, "pid": 100 + rank, "num_products": 10 * rank, **at})
    return found


def test_chart_bars_share_one_time_scale() -> None:
    drawn = chart(
        [
            Bar("rank 0", [("#", START, START + 250 * MS), (".", START + 250 * MS, START + 1000 * MS)], "waited"),
            Bar("rank 1", [("#", START + 500 * MS, START + 1000 * MS)], ""),
        ]
    )
    first, second, scale = drawn.splitlines()
    assert first == f"rank 0  {'#' * 14}{'.' * 42}  waited"
    assert second == f"rank 1  {' ' * 28}{'#' * 28}"
    assert scale.split() == ["0", "1.0", "s"]


def test_wait_table_shows_how_much_later_each_rank_arrived() -> None:
    head, *rows = waits([START + 30 * MS, START, START + 50 * MS]).splitlines()
    assert head.split("  ") == ["waited for", "rank 0", "rank 1", "rank 2"]
    assert [re.split(r"\s{2,}", row.strip()) for row in rows] == [
        ["rank 0", "-", "-", "20 ms"],
        ["rank 1", "30 ms", "-", "50 ms"],
        ["rank 2", "-", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("ns", "text"), [(10_000, "0.0 ms"), (2_340_000, "2.3 ms"), (152 * MS, "152 ms"), (1500 * MS, "1.5 s")]
)
def test_spans_are_formatted_by_magnitude(ns: int, text: str) -> None:
    assert span_text(ns) == text


def test_barrier_story_names_the_last_rank_and_the_waiting_time() -> None:
    notes = notes_of(
        {"came_ns": 100, "left_ns": 402}, {"came_ns": 400, "left_ns": 401}, {"came_ns": 250, "left_ns": 405}
    )
    told = write_story("barrier", notes)
    assert "matrices (real work): 0, 10, 20 times" in told
    assert "rank 1 arrived last, 300 ms after the first. No rank left before that; all left within 4.0 ms." in told
    assert "together, the ranks waited 458 ms, 38 % of their total time." in told
    notes[0]["left_ns"] = START + 399 * MS
    assert "A rank left before that, which must not happen" in write_story("barrier", notes)


def all_reduce_notes(**changes: Any) -> list[dict[str, Any]]:
    each = {"payload_bytes": 1200, "bytes_sent": 1650, "got": [6.0, 6.0], "left_ns": 410, **changes}
    return notes_of(*({**each, "came_ns": came, "gave": 1.0 + n} for n, came in enumerate((100, 200, 400))))


def test_all_reduce_story_reports_sums_bytes_and_mistakes() -> None:
    told = write_story("all-reduce", all_reduce_notes())
    assert "blocked until rank 2, the last, arrived" in told
    assert "After the last rank arrived, the all-reduce took 10 ms." in told
    assert "2 (n - 1) / n x 1200 = 1600 bytes" in told
    assert "1650, 1650, 1650 bytes" in told
    assert "at most 50 bytes (3.12 %)" in told
    assert told.endswith("1 + 2 + 3 = 6: every element has this value on every rank.")
    assert "bytes sent are unknown" in write_story("all-reduce", all_reduce_notes(bytes_sent=None))
    assert "but rank 0 has [6.0, 7.0]: the sum is wrong." in write_story("all-reduce", all_reduce_notes(got=[6.0, 7.0]))


def test_rendezvous_story_describes_the_order_of_arrivals() -> None:
    notes = notes_of(
        {"knocked_ns": 100, "reached_ns": 300, "complete_ns": 305, "joined_ns": 320, "arrival": 3},
        {"knocked_ns": 0, "reached_ns": 140, "complete_ns": 304, "joined_ns": 320, "arrival": 1},
        {"knocked_ns": 299, "reached_ns": 300, "complete_ns": 303, "joined_ns": 320, "arrival": 2},
    )
    told = write_story("rendezvous", notes)
    assert "rank 1 arrived 100 ms before rank 0 opened the store" in told
    assert "a counter in the store: rank 1, 2, 0." in told
    assert "The last to arrive was rank 2" in told
    assert "Here it arrived as number 2." in told
    assert "2 = 0 x 3 + 2" in told
    assert max(map(len, told.splitlines())) <= 100, "fits a projector"
    agent = [{**note, "listener": "the agent of node 0"} for note in notes]
    assert "before rank 0 opened" not in write_story("rendezvous", agent)


@pytest.mark.parametrize(
    ("nproc", "nodes", "told"), [(1, None, "a world of 1"), (17, None, "a world of 17"), (None, "1:2x2", "1:2x2")]
)
def test_worlds_too_small_or_too_large_to_explain_are_refused(nproc: int | None, nodes: str | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_nodes(nproc, nodes)


def test_real_barrier_releases_all_ranks_after_the_last_arrival() -> None:
    code, notes = run_notes("barrier", read_nodes(3, None))
    assert code == 0
    came = [note["came_ns"] for note in notes]
    assert min(note["left_ns"] for note in notes) >= max(came)
    assert [note["num_products"] for note in notes] == [0, 300, 600]


def test_real_all_reduce_sends_as_many_bytes_as_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FROG_BACKEND", raising=False)  # Frog's own backend uses shared memory here
    code, notes = run_notes("all-reduce", read_nodes(3, None))
    assert code == 0
    assert [note["got"] for note in notes] == [[6.0, 6.0]] * 3
    assert min(note["left_ns"] for note in notes) >= max(note["came_ns"] for note in notes)
    if sys.platform != "linux":
        pytest.skip("the kernel's count of sent bytes is Linux's")
    ring = 2 * 2 * notes[0]["payload_bytes"] // 3
    assert [note["bytes_sent"] for note in notes if not ring <= note["bytes_sent"] < 1.01 * ring] == []


@pytest.mark.slow
def test_explain_rendezvous_on_two_real_nodes(harness: Harness) -> None:
    out = harness.run("frog", "explain", "rendezvous", "--nodes", "2x1").stdout
    assert re.search(r"^rank 0 on node0 [ #o.=]+ opens store, waited", out, re.MULTILINE)
    assert re.search(r"^rank 1 on node1 [ #?.=]+ number [12], waited", out, re.MULTILINE)
    assert "1 = 1 x 1 + 0" in out
    assert re.search(r"counter in the store: rank (0, 1|1, 0)\.$", out, re.MULTILINE)


@pytest.mark.slow
def test_explain_barrier_prints_chart_and_text(harness: Harness) -> None:
    out = harness.run("frog", "explain", "barrier", "--nproc", "2").stdout
    assert re.search(r"^rank 0 [ #.]+ waited [\d.]+ m?s$", out, re.MULTILINE)
    assert re.search(r"^rank 1 [ #.]+ waited [\d.]+ m?s$", out, re.MULTILINE)
    assert re.search(r"rank \d arrived last, .* No rank left before that", out)
    done = harness.run("frog", "explain", "barrier", "--nproc", "1", code=2)
    assert "Traceback" not in done.stderr
