"""What the films of made-up runs show, number by number and word by word: films.json has them.

Other tests name single bars and events. Here none may change unnoticed. After a change that is meant:
FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/observe/watch/test_kept_films.py, and read the difference.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from core.runs.test_observed_files import write
from observe.view.test_kept_views import RUNS, shortened
from observe.watch.hung_program import SECOND, START_NS, hung_program, status_at
from rich.console import Console
from synthetic_run import MS, START_MONO_NS, START_UNIX_NS, Synthetic, make_run

from frog.core.runs.event_schema import Beat, OpenCollective
from frog.core.runs.folder import RunFolder
from frog.observe.diagnose.waits import WaitingGroup
from frog.observe.view.waits_picture import draw_waits, waits_text
from frog.observe.watch.film import Film
from frog.observe.watch.film_page import film_changes, film_message
from frog.observe.watch.film_reader import FilmReader
from frog.observe.watch.film_text import frame

KEPT = Path(__file__).with_name("films.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


def compare(name: str, found: Any, kept: dict[str, Any]) -> None:
    found = json.loads(json.dumps(found))
    if REWRITE:
        kept[name] = found
    assert found == kept[name], "if the change is meant, rewrite films.json: see above"


def content(film: Film) -> dict[str, Any]:
    """Return a film in a few lines: long lists as a part of them, and sums that any other number changes."""
    found: dict[str, Any] = json.loads(json.dumps(film_message(film)))

    def short(values: list[Any]) -> Any:
        numbers = [0 if value is None else value for value in values]
        return shortened(" ".join(map(str, numbers))) if len(numbers) > 12 else values

    for row in (*found["lanes"], *found["series"]):
        row.update({name: short(value) for name, value in row.items() if isinstance(value, list)})
    found["steps"] = short(found["steps"])
    found["diagnosis"] = [line.strip() for line in found["diagnosis"].splitlines() if line.strip()]
    return found


def screen(film: Film, folder: Path) -> list[str]:
    """Return what `frog watch --text` shows."""
    console = Console(width=2000, record=True, file=io.StringIO())
    console.print(frame(film))
    return [line.rstrip() for line in console.export_text().replace(str(folder), "FOLDER").splitlines()]


def read(reader: FilmReader, now_ns: int | None = None) -> Film:
    film = reader.read(now_ns)
    reader.renew_diagnosis(film)
    return film


def check(name: str, film: Film, folder: Path, kept: dict[str, Any]) -> None:
    found = json.loads(json.dumps(content(film)).replace(str(folder), "FOLDER"))
    compare(name, {"film": found, "screen": screen(film, folder)}, kept)


# ---- Frog's trainer --------------------------------------------------------------------------------------------------

TRAINED = {
    **{name: RUNS[name] for name in ("resumed", "killed", "changing", "half")},
    "failed": Synthetic(
        segments=[(2, 0, 9)], status="failed", error={"type": "ValueError", "message": "no", "rank": 1, "step": 9}
    ),
    "short": Synthetic(segments=[(1, 0, 1)], checkpoint_every=None),
}


@pytest.mark.parametrize("name", TRAINED)
def test_no_bar_of_a_trained_run_changes_unnoticed(name: str, kept: dict[str, Any], tmp_path: Path) -> None:
    folder = make_run(tmp_path / name, TRAINED[name])
    check(name, read(FilmReader(folder, asks=False)), tmp_path, kept)


def test_no_joined_step_changes_unnoticed(kept: dict[str, Any], tmp_path: Path) -> None:
    """A run that is too long for its page, and is read while it is written."""
    whole = make_run(tmp_path / "whole", replace(RUNS["resumed"], num_micro=1))
    folder = RunFolder(tmp_path / "long")
    folder.events.mkdir(parents=True)
    folder.run_json.write_bytes(whole.run_json.read_bytes())
    reader = FilmReader(folder, asks=False, most_rows=400)
    films: list[Film] = []
    for part in (1, 3, 4):
        for rank in range(4):
            data = whole.rank_events(rank).read_bytes()
            folder.rank_events(rank).write_bytes(data[: len(data) * part // 4])
        films.append(read(reader))
    check("long", films[-1], tmp_path, kept)
    changes = film_changes(content(films[1]), content(films[2]))
    compare("changes of a long run", sorted(changes), kept)


def launcher(*events: tuple[float, str, dict[str, Any]]) -> str:
    """Return lines of events/launcher.jsonl. The time of each is in seconds."""
    lines = [{"event": kind, "unix_ns": START_UNIX_NS + round(at * SECOND), **facts} for at, kind, facts in events]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def beat(rank: int, step: int, **facts: Any) -> Beat:
    """Return a heartbeat of the second 1 of a run."""
    own: dict[str, Any] = {
        "pid": 4_000_000 + rank,
        "node_rank": 0,
        "host": "pond",
        "attempt": 0,
        "world_size": 3,
        "timeout_s": 60.0,
        "status": "running",
        "phase": "forward",
        "micro": 0,
        "phase_ns": START_MONO_NS + 900 * MS,
        "num_collectives": 7,
        "open": [],
        "beat_ns": START_MONO_NS + 1000 * MS,
        "unix_ns": START_UNIX_NS + 1000 * MS,
    }
    return Beat(rank=rank, step=step, **{**own, **facts})


def test_no_event_of_a_launcher_changes_unnoticed(kept: dict[str, Any], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(3, 0, 5)], status=None, checkpoint_every=None))
    call = OpenCollective(seq=6, op="all_gather", axis="dp", payload_bytes=0, start_ns=START_MONO_NS + 950 * MS)
    folder.heartbeats.mkdir()
    for own in (beat(0, 6, open=[call]), beat(1, 6, phase=None), beat(2, 5, status="failed", node_rank=1, host="lake")):
        folder.heartbeat(own.rank).write_bytes(msgspec.json.encode(own))
    nodes = [{"node": node, "host": f"node{node}", "address": ""} for node in (0, 1)]
    link = {"rate_bits_per_s": 2.5e7, "delay_s": 0.005, "mtu": 1500}
    launch = {"pid": 4_194_303, "nodes": nodes, "ranks_per_node": 2, "program": ["train"], "restarts": 1}
    world = {"node": 0, "node_rank": 0, "world_size": 3, "master_addr": "h", "master_port": 1, "pids": [1, 2]}
    lost: dict[str, Any] = {"attempt": 0, "node": 0, "node_rank": 0, "error": None, "traceback": None, "left": []}
    error: dict[str, Any] = {"type": "ValueError", "message": "no", "hint": None, "facts": {}, "unix_ns": 1}
    hang = {"attempt": 0, "rank": 1, "pid": 2, "waited_s": 3.5, "heartbeat": msgspec.to_builtins(beat(1, 5))}
    stall = {"attempt": 1, "kind": "left", "still_s": 4.0, "roles": {}, "text": "rank 0 waits\n  for rank 1"}
    folder.launcher_events.write_text(
        "damaged\n"
        + launcher(
            (-0.5, "launch", {**launch, "network": link}),
            (-0.4, "world", {**world, "attempt": 0, "ranks": [0, 1]}),
            (-0.3, "world", {**world, "attempt": 0, "node": 1, "node_rank": 1, "ranks": [2]}),
            (1.5, "exit", {**lost, "rank": 2, "pid": 3, "code": 1, "error": error}),
            (5.0, "hang", {**hang, "kind": "silent"}),
            (5.5, "hang", {**hang, "kind": "stuck", "rank": 0}),
            (5.6, "exit", {**lost, "rank": 1, "pid": 2, "code": -9}),
            (5.7, "node", {"node": 1, "host": "node1", "code": -15}),
            (5.8, "node", {"node": 0, "host": "node0", "code": 0}),
            (6.0, "return", {"node": 1, "host": "node1"}),
            (6.1, "world", {**world, "attempt": 1, "ranks": [0, 1, 2]}),
            (6.2, "replace", {**{k: lost[k] for k in ("attempt", "node", "node_rank")}, "rank": 1, "lost": 2, "pid": 9,
                              "number": 1}),
            (11.0, "stall", {**stall, "ends": False, "stopped": False}),
            (12.0, "stall", {**stall, "ends": True, "stopped": False}),
            (13.0, "end", {"code": 3, "network": {"mean_late_s": 0.00123, "worst_late_s": 0.2}}),
        )
    )  # fmt: skip
    check("launcher", read(FilmReader(folder, asks=False)), tmp_path, kept)


# ---- other programs --------------------------------------------------------------------------------------------------


def test_no_bar_of_a_program_changes_unnoticed(kept: dict[str, Any], tmp_path: Path) -> None:
    folder = hung_program(tmp_path / "h")
    check("hang", read(FilmReader(folder, asks=False)), tmp_path, kept)
    folder = hung_program(tmp_path / "small", num_ranks=2)
    folder.record_json.unlink()
    folder.launcher_events.unlink()
    (folder.path / "observed" / "attempt_0" / "positions.jsonl").unlink()
    ends: tuple[dict[str, Any], ...] = ({"state": "failed"}, {"state": "ended", "line": None})
    for rank, facts in enumerate(ends):
        write(folder.path, "status.json", {**status_at(9, rank, 3, 2, 1, tmp_path), **facts}, rank=rank)
    error = {"format": 1, "rank": 0, "pid": 7, "unix_ns": START_NS + 8 * SECOND, "type": "KeyError", "message": "'x'",
             "thread": "MainThread", "traceback": "", "line": None}  # fmt: skip
    write(folder.path, "error.json", error, rank=0)
    check("last positions", read(FilmReader(folder, asks=False)), tmp_path, kept)


@pytest.mark.parametrize("second", [7.9, 8.1, 13.1])
def test_no_moment_of_a_hang_that_lasts_changes_unnoticed(
    second: float, kept: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks are asked once they stand still for five seconds; each diagnosis has their newest answers."""
    now_ns = START_NS + round(second * SECOND)
    folder = hung_program(tmp_path / "h", ended=False)
    reader = FilmReader(folder)
    films = [read(reader, START_NS + 2 * SECOND), reader.read(now_ns)]
    asked = [
        reader.ask_if_still(),
        reader.ask_if_still(),
        reader.renew_diagnosis(films[1]),
        reader.renew_diagnosis(films[1]),
    ]
    check(f"{second} s", films[1], tmp_path, kept)
    compare(f"asked at {second} s", asked, kept)


# ---- who waits for whom ----------------------------------------------------------------------------------------------


def group(
    ranks: tuple[int, ...], *waits_for: int, what: str = "in all_reduce of 4 float", place: str = "my.py:3"
) -> Any:
    return WaitingGroup(ranks, what, place, tuple(waits_for))


PICTURES: dict[str, Callable[[], list[WaitingGroup]]] = {
    "one": lambda: [group((0,), 1), group((1, 2, 3), what="computes", place="")],
    "mutual": lambda: [group((0,), 1), group((1, 2), 0, place="")],
    "mutual, and one more": lambda: [group((0,), 1, 2), group((1, 2), 0), group((3,))],
    "ring": lambda: [group((0,), 1), group((1,), 2), group((2,), 0)],
    "two wait": lambda: [group((0, 1), 2), group((3,), 2), group((2,), what="failed with ValueError <b>"), group((4,))],
    "too many": lambda: [*(group((n,), what="is there") for n in range(5)), *(group((n,), 9) for n in range(5, 9)),
                         group((9,), what="x" * 44), group((10,), what="y" * 45)],
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_no_coordinate_of_a_picture_changes_unnoticed(name: str, kept: dict[str, Any]) -> None:
    groups = PICTURES[name]()
    parts = re.split("(?<=>)(?=<)", draw_waits(groups))
    compare(f"picture: {name}", {"text": waits_text(groups).splitlines(), "svg": parts}, kept)
