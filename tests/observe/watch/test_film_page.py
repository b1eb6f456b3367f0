"""The page around a film: what changes between two messages, hostile text, its size for the longest runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from observe.watch.hung_program import hung_program
from synthetic_run import Synthetic, make_run

from frog.core.errors import UsageError
from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StartEvent, StepEvent
from frog.core.runs.vocabulary import STEP_PHASES
from frog.observe.watch.film import Film, Words
from frog.observe.watch.film_page import (
    MOST_BYTES,
    film_changes,
    film_message,
    live_page,
    policy_of,
    saved_page,
    write_timeline,
)
from frog.observe.watch.film_reader import film_of
from frog.observe.watch.trained_lanes import MOST_ROWS, Point, TrainedRank, curves, steps_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_changes_have_only_what_is_new() -> None:
    before = {"name": "r", "end": 5, "words": [1, 2], "lanes": [{"rank": 0, "bars": [1, 2]}, {"rank": 1, "bars": []}]}
    after = {
        "name": "r",
        "end": 9,
        "words": [1, 3, 4],
        "lanes": [{"rank": 0, "bars": [1, 2, 3]}, {"rank": 1, "bars": []}],
    }
    assert film_changes(before, after) == {
        "end": 9,
        "words": {"from": 1, "rows": [3, 4]},
        "lanes": {"each": [{"bars": {"from": 2, "rows": [3]}}, {}]},
    }
    assert film_changes(after, after) == {}
    assert film_changes({"lanes": []}, after)["lanes"] == {"from": 0, "rows": after["lanes"]}


def test_saved_page_holds_its_film_and_runs_only_its_own_script(tmp_path: Path) -> None:
    film = film_of(hung_program(tmp_path / "h"))
    page = saved_page(film)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["film"] == json.loads(json.dumps(film_message(film)))
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy_of(page)
    assert "connect-src" not in policy_of(page)
    assert "connect-src" in policy_of(live_page("r"))
    assert "https://" not in page.replace("http://www.w3.org", "")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    error = {"type": HOSTILE, "message": HOSTILE, "rank": 0, "step": 5}
    kind = Synthetic(segments=[(2, 0, 5)], status="failed", error=error, checkpoint_every=None)
    folder = make_run(tmp_path / "<img src=x onerror=alert(1)>", kind)
    hostile = folder.run_json.read_text().replace("config/demo.toml", "</script><script>alert(2)</script>")
    folder.run_json.write_text(hostile)
    page = saved_page(film_of(folder))
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "alert(1)" in page


@pytest.mark.slow
def test_page_of_the_longest_run_has_at_most_five_megabytes(tmp_path: Path) -> None:
    """50,000 steps of 64 ranks, of which only the part that a rank's blocks keep can grow."""
    words, num_ranks, num_steps = Words(), 64, 50_000
    rank = TrainedRank(0, tmp_path / "none", words, MOST_ROWS // num_ranks)
    start = {"step": 0, "rank": 0, "world_size": 64, "local_rank": 0, "node_rank": 0, "host": "h", "pid": 1}
    clock = {"device": "cpu", "threads": 1, "unix_ns": 1_750_000_000 * 10**9, "mono_ns": 0}
    rank.add(StartEvent(**start, **clock, mesh={"dp": 64}, place={"dp": 0}, passed_over=[]), {})
    points: dict[tuple[int, int], Point] = {}
    for step in range(1, num_steps + 1):
        at = step * 10**9
        for number, phase in enumerate(STEP_PHASES):
            begin = at + number * 150_000_000
            rank.add(SpanEvent(step=step, phase=phase, micro=0, start_ns=begin, end_ns=begin + 149_000_000), points)
        call = {"op": "all_reduce", "axis": "dp", "payload_bytes": 4096, "wait_ns": 0}
        rank.add(CollectiveEvent(step=step, seq=step, start_ns=at, end_ns=at + 10**8, **call), points)
        numbers = dict.fromkeys(("loss_mean", "grad_norm_local", "grad_norm", "learning_rate", "mfu", "loss_scale"))
        more = {"tokens": 9, "tokens_per_s": 1e4 + step, "memory_bytes": 10**9, "skipped": False, "sample_ids": []}
        rank.add(StepEvent(step=step, loss=1 / step, end_ns=at + 10**9, **numbers, **more), points)
    start_ns = rank.first_ns
    lane = rank.lane(start_ns, None, 0)
    film = Film("r", "completed", "", "", start_ns, (rank.last_ns - start_ns) // 1000, False, words=words.rows)
    film.lanes = [lane] * num_ranks
    film.series, film.steps = curves(points.values(), start_ns), steps_of(points.values(), start_ns)
    page = saved_page(film)
    assert 1_000_000 < len(page.encode()) <= MOST_BYTES
    assert lane.bars[0] < 2_000_000
    assert lane.bars[-4] > (num_steps - 1) * 1_000_000
    spent = sum(lane.bars[1::4])
    assert spent == pytest.approx(num_steps * 6 * 149_000, rel=1e-3)


def test_timeline_does_not_overwrite_a_file_of_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 3)], checkpoint_every=None))
    assert write_timeline(folder) == folder.path / "timeline.html"
    with pytest.raises(UsageError, match="would be overwritten"):
        write_timeline(folder, folder.run_json)
