"""From run folders to films: what each rank did at each moment, the curves, the events, the first failure."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from observe.watch.hung_program import NAME, hung_program, status_at
from synthetic_run import MS, SPAN_MS, START_MONO_NS, Synthetic, make_run, mean_loss

from frog.core.runs.event_schema import Beat, OpenCollective, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.observed import Status
from frog.core.runs.positions import Changes, Moment, Position
from frog.core.runs.read import read_rank
from frog.core.schema import decode
from frog.observe.watch.film import BAR, Film, FilmEvent, Lane, Words, first_failure
from frog.observe.watch.film_reader import FilmReader, film_of
from frog.observe.watch.program_lanes import ProgramLane, ProgramLanes, awaited, shown_place

SECOND = 1_000_000


def rows(flat: list[int]) -> list[tuple[int, ...]]:
    return [tuple(flat[at : at + BAR]) for at in range(0, len(flat), BAR)]


def shown(film: Film, rank: int, time_us: int) -> tuple[str, int] | None:
    found = film.lanes[rank].at(time_us)
    return (film.words[found[0]][1], found[1]) if found is not None else None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("film") / "r", Synthetic(segments=[(4, 0, 30)], checkpoint_every=None))


@pytest.fixture(scope="module")
def film(trained: RunFolder) -> Film:
    return film_of(trained)


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Film:
    return film_of(hung_program(tmp_path_factory.mktemp("film") / "h"))


# ---- Frog's trainer --------------------------------------------------------------------------------------------------


def test_film_has_each_phase_of_each_rank_at_its_time(trained: RunFolder, film: Film) -> None:
    assert [lane.rank for lane in film.lanes] == [0, 1, 2, 3]
    for rank in range(4):
        spans = [event for event in read_rank(trained, rank).events if isinstance(event, SpanEvent)]
        bars = rows(film.lanes[rank].bars)
        assert len(bars) == len(spans)
        first = spans[0].start_ns
        for bar, span in zip(bars, spans, strict=True):
            assert (film.words[bar[2]], bar[3]) == ((span.phase, span.phase), span.step)
            assert abs(bar[0] - bars[0][0] - (span.start_ns - first) // 1000) <= 1
            assert abs(bar[1] - (span.end_ns - span.start_ns) // 1000) <= 1
        middle = bars[7][0] + bars[7][1] // 2
        assert shown(film, rank, middle) == (spans[7].phase, spans[7].step)


def test_film_has_the_collectives_with_their_numbers(film: Film) -> None:
    calls = rows(film.lanes[2].calls)
    assert [call[3] for call in calls] == list(range(1, 31))
    assert {film.words[call[2]] for call in calls} == {("collective", "all_reduce of 2.5 MiB over dp")}


def test_curves_have_the_recorded_numbers_at_their_steps(film: Film) -> None:
    loss, rate = film.series
    assert (loss.name, rate.name) == ("loss", "tokens_per_s")
    kind = Synthetic()
    assert loss.step == list(range(1, 31))
    assert loss.values == pytest.approx([mean_loss(step, kind) for step in loss.step], rel=1e-5)
    assert loss.at == sorted(loss.at)
    assert film.steps[::2] == loss.step
    assert film.steps[1::2] == loss.at


def test_mean_of_the_ranks_is_the_loss_of_a_program_that_records_only_its_own(
    trained: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(trained.path, tmp_path / "r")
    folder = RunFolder(tmp_path / "r")
    losses: dict[int, list[float]] = {}
    for rank in folder.event_ranks():
        path = folder.rank_events(rank)
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in events:
            if event["event"] == "step":
                losses.setdefault(event["step"], []).append(event["loss"])
                event["loss_mean"] = None
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    values = film_of(folder).series[0].values
    assert values == pytest.approx([sum(own) / 4 for own in losses.values()], rel=1e-5)


def test_joined_steps_keep_the_time_of_each_phase(trained: RunFolder, film: Film) -> None:
    reader = FilmReader(trained, asks=False, most_rows=320)
    small = reader.read()
    assert any(re.search("stands for up to [248] steps", note) for note in small.notes)
    for lane, whole in zip(small.lanes, film.lanes, strict=True):
        assert len(lane.bars) < len(whole.bars) / 2
        for phase in SPAN_MS:
            total = sum(bar[1] for bar in rows(lane.bars) if small.words[bar[2]][0] == phase)
            expected = sum(bar[1] for bar in rows(whole.bars) if film.words[bar[2]][0] == phase)
            assert total == pytest.approx(expected, abs=60)
        assert rows(lane.bars)[-6:] == [
            (at, took, small.words.index(film.words[word]), step) for at, took, word, step in rows(whole.bars)[-6:]
        ]
        collectives = [small.words[call[2]][1] for call in rows(lane.calls)]
        numbers = [int(text.split()[0]) if text.endswith(("collective", "collectives")) else 1 for text in collectives]
        assert sum(numbers) == 30


def test_reading_while_the_run_writes_gives_the_film_of_the_whole_run(trained: RunFolder, tmp_path: Path) -> None:
    growing = RunFolder(tmp_path / "r")
    growing.events.mkdir(parents=True)
    shutil.copy(trained.run_json, growing.run_json)
    reader = FilmReader(growing, asks=False)
    contents = {rank: trained.rank_events(rank).read_bytes() for rank in range(4)}
    for part in range(1, 8):  # cuts lines anywhere
        for rank, content in contents.items():
            growing.rank_events(rank).write_bytes(content[: len(content) * part // 7])
        read = reader.read()
    shutil.copy(trained.record_json, growing.record_json)
    read, whole = reader.read(), film_of(trained)
    assert (read.as_json() | {"name": ""}) == (whole.as_json() | {"name": ""})


def test_first_step_that_is_not_finite_is_the_first_failure(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 9)], checkpoint_every=None, eval_every=None))
    events = [json.loads(line) for line in folder.rank_events(0).read_text().splitlines()]
    for event in events:
        if event["event"] == "step" and event["step"] >= 6:
            event["loss"] = event["loss_mean"] = None
    folder.rank_events(0).write_text("".join(json.dumps(event) + "\n" for event in events))
    film = film_of(folder)
    ends = [event.end_ns for event in read_rank(folder, 0).events if isinstance(event, StepEvent)]
    assert film.failure == film.steps[11]
    assert film.failure - film.steps[1] == pytest.approx((ends[5] - ends[0]) // 1000, abs=1)
    assert [event.text for event in film.events if event.kind == "failure"] == [
        "the loss of step 6 is not a finite number"
    ]


def test_heartbeat_shows_the_phase_and_the_collective_that_have_not_ended(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 5)], status=None, checkpoint_every=None))
    last_ns = max(e.end_ns for e in read_rank(folder, 0).events if isinstance(e, SpanEvent))
    folder.heartbeats.mkdir()
    for rank in range(2):
        start_ns = last_ns + 30 * MS
        open_call = OpenCollective(seq=6, op="all_reduce", axis="dp", payload_bytes=4096, start_ns=start_ns)
        unix_ns = film_of(folder).start_unix_ns + last_ns - START_MONO_NS + 50 * MS
        beat = Beat(
            rank=rank,
            pid=4_000_000 + rank,
            node_rank=0,
            host="pond",
            attempt=0,
            world_size=2,
            timeout_s=60.0,
            status="running",
            step=6,
            phase="reduce",
            micro=0,
            phase_ns=last_ns + 20 * MS,
            num_collectives=7,
            open=[open_call] if rank == 0 else [],
            beat_ns=last_ns + 50 * MS,
            unix_ns=unix_ns,
        )
        folder.heartbeat(rank).write_bytes(msgspec.json.encode(beat))
    film = film_of(folder)
    bar, call = rows(film.lanes[0].bars)[-1], rows(film.lanes[0].calls)[-1]
    assert (film.words[bar[2]][1], bar[3], film.words[call[2]][1], call[3]) == (
        "reduce",
        6,
        "all_reduce of 4.0 KiB over dp",
        6,
    )
    assert (bar[1], call[1]) == (30_000, 20_000)
    assert rows(film.lanes[1].calls)[-1][3] != 6


# ---- other programs --------------------------------------------------------------------------------------------------


def test_program_has_its_lines_and_for_whom_each_rank_waits(hang: Film) -> None:
    assert hang.status == "failed"
    assert shown(hang, 0, SECOND) == (f"{NAME}:1", 0)
    assert shown(hang, 3, int(2.5 * SECOND)) == (f"{NAME}:2", 0)
    assert shown(hang, 0, 10 * SECOND) == (f"in a collective at {NAME}:3", 2)
    assert hang.lanes[1].use_at(29 * SECOND) == (101, 50)
    calls = [(hang.words[word][1], at, took, number) for at, took, word, number in rows(hang.lanes[0].calls)]
    assert calls == [
        (f"all_reduce of 4 float at {NAME}:5", 1_500_000, 0, 1),
        (f"barrier at {NAME}:3", 3_000_000, 26_000_000, 2),
    ]


def test_hang_is_a_failure_from_its_beginning(hang: Film) -> None:
    assert hang.failure == 3 * SECOND
    assert [(event.at, event.kind, event.text) for event in hang.events] == [
        (100_000, "start", "4 ranks start"),
        (3 * SECOND, "failure", "no rank makes progress from here on"),
        (30 * SECOND, "end", "hang: nothing moves"),
        *[(30_500_000, "end", "was killed by SIGKILL")] * 4,
        (31 * SECOND, "end", "the run ended with exit code 137"),
    ]


def test_diagnosis_of_a_hang_has_both_lines_and_who_waits(hang: Film) -> None:
    found = hang.diagnosis
    assert found is not None
    assert {place.place for place in found.places} == {f"{NAME}:3", f"{NAME}:5"}
    assert [line.text for place in found.places for line in place.lines if line.is_meant] == [
        "    dist.barrier()",
        "    dist.all_reduce(x)",
    ]
    assert [(group.ranks, group.what, group.waits_for) for group in found.waits] == [
        ((0,), "in barrier", (1,)),
        ((1, 2, 3), "in all_reduce of 4 float", (0,)),
    ]
    assert hang.as_json()["waiting"] == {
        0: "waits for ranks 1, 2 and 3",
        **dict.fromkeys((1, 2, 3), "waits for rank 0"),
    }


def test_rank_waits_for_the_members_that_have_not_called_its_collective() -> None:
    def position(*groups: tuple[str, int, int]) -> Position:
        return Position(groups=list(groups))

    positions = {
        0: position(("0", 5, 5), ("1", 3, 2)),
        1: position(("0", 5, 5), ("1", 2, 2)),
        2: position(("0", 6, 5)),
        3: position(("0", 6, 5), ("1", 3, 2)),
    }
    assert awaited(0, positions) == ("1", 3, [1])
    assert awaited(2, positions) == ("0", 6, [0, 1])
    assert awaited(1, positions) is None


def test_bar_names_the_ranks_that_are_waited_for() -> None:
    words = Words()
    lanes = ProgramLanes(words, "/home/me", 100)
    late, early = Position(groups=[("0", 1, 1)]), Position(groups=[("0", 2, 1)])
    lanes.add(Moment(unix_ns=10**9, ranks={0: early, 1: late, 2: late}))
    lanes.add(Moment(unix_ns=2 * 10**9, ranks={1: early}))
    lanes.add(Moment(unix_ns=3 * 10**9, ranks={2: early}))
    texts = [(begin, end, words.rows[word][1], number) for begin, end, word, number in lanes.lanes[0].rows(4 * 10**9)]
    assert texts == [
        (10**9, 2 * 10**9, "in a collective, waits for ranks 1 and 2", 2),
        (2 * 10**9, 3 * 10**9, "in a collective, waits for rank 2", 2),
        (3 * 10**9, 4 * 10**9, "in a collective", 2),
    ]
    kinds = [words.rows[word][0] for _, _, word, _ in lanes.rows(0, 4 * 10**9)]
    assert kinds == ["collective"] * 3  # waits of a second
    assert words.rows[lanes.rows(0, 4 * 10**9)[0][2]][1].endswith("waits for ranks 1 and 2")
    assert lanes.is_waiting
    assert lanes.still_since_ns == 3 * 10**9


def test_long_wait_is_marked() -> None:
    words = Words()
    lanes = ProgramLanes(words, "/home/me", 100)
    late, early = Position(groups=[("0", 1, 1)]), Position(groups=[("0", 2, 1)])
    lanes.add(Moment(unix_ns=10**9, ranks={0: early, 1: late}))
    assert words.rows[lanes.rows(0, 2 * 10**9)[0][2]] == ("collective", "in a collective, waits for rank 1")
    assert words.rows[lanes.rows(0, 3 * 10**9)[0][2]] == ("waits", "in a collective, waits for rank 1")


def test_lane_of_a_long_program_keeps_its_whole_time_in_few_bars() -> None:
    lane = ProgramLane(0, 60)
    for number in range(1000):
        lane.now(number * 10**9, number % 2, number)
    bars = lane.rows(1000 * 10**9)
    assert len(bars) <= 62
    assert (bars[0][0], bars[-1][1]) == (0, 1000 * 10**9)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bars))


def test_ranks_that_stand_still_are_asked_once(tmp_path: Path) -> None:
    folder = hung_program(tmp_path / "h", ended=False)
    reader = FilmReader(folder)
    start_ns = reader.read().start_unix_ns
    reader.read(start_ns + 7 * 10**9)
    assert not reader.ask_if_still()
    film = reader.read(start_ns + 9 * 10**9)
    assert (film.still_s, film.failure) == (6.0, 3 * SECOND)
    assert reader.ask_if_still()
    assert not reader.ask_if_still()
    assert json.loads((folder.path / "observed" / "request.json").read_text())["number"] == 1


def test_observed_run_without_a_launcher_is_watched_from_its_statuses(tmp_path: Path) -> None:
    changes = Changes()
    seen = [status_at(second, 0, line, 1, 1, tmp_path) for second, line in ((1, 4), (1.5, 4), (2, 5), (5, 5))]
    moments = [changes.look({0: decode(json.dumps(said).encode(), Status, "status")}) for said in seen]
    assert [moment is not None for moment in moments] == [True, False, True, True]


@pytest.mark.parametrize(
    ("file", "folder", "text"),
    [("/a/b/c.py", "/a", "b/c.py:3 (f)"), ("/a/b/c.py", "/x", "c.py:3 (f)"), ("c.py", "/a", "c.py:3 (f)")],
)
def test_line_is_shown_relative_to_the_program(file: str, folder: str, text: str) -> None:
    from frog.core.runs.observed import CodeLine

    assert shown_place(CodeLine(file=file, line=3, function="f"), folder) == text


def test_damaged_and_empty_folders_have_a_film(tmp_path: Path) -> None:
    folder = hung_program(tmp_path / "h")
    for path in folder.path.rglob("*.json*"):
        if path.name not in ("run.json", "record.json"):
            path.write_bytes(b"\0\xff{" + path.read_bytes()[:50])
    film = film_of(folder)
    assert film.events == []
    assert all(not lane.bars for lane in film.lanes)
    (tmp_path / "empty" / "events").mkdir(parents=True)
    assert film_of(RunFolder(tmp_path / "empty")).notes == ["No rank wrote anything."]


def test_first_failure_is_the_earliest_one() -> None:
    events = [FilmEvent(5, None, "failure", ""), FilmEvent(3, 1, "failure", ""), FilmEvent(1, 1, "note", "")]
    assert (first_failure(events), first_failure(events[2:])) == (3, None)


def test_moment_between_bars_has_no_bar() -> None:
    lane = Lane(0, bars=[0, 10, 1, 7, 100, 10, 2, 8])
    assert (lane.at(5), lane.at(50), lane.at(105)) == ((1, 7), None, (2, 8))
