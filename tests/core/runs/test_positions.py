"""The positions of ranks over time: only changes, in a file of bounded size that keeps all of the run's time."""

from __future__ import annotations

import json
from pathlib import Path

from core.runs.test_observed_files import STATUS

from frog.core.runs.observed import Status
from frog.core.runs.positions import Changes, Position, PositionWriter, positions_path, read_positions
from frog.core.schema import decode

SECOND = 10**9


def status(second: float, called: int = 1, **fields: object) -> Status:
    groups = [{"group": "0", "enqueued": called, "completed": called}]
    said = {**STATUS, "unix_ns": round(second * SECOND), "groups": groups, "cpu_s": second, **fields}
    return decode(json.dumps(said).encode(), Status, "status")


def test_only_ranks_that_changed_are_recorded() -> None:
    changes = Changes()
    first = changes.look({0: status(1), 1: status(1.1)})
    assert first is not None
    assert (first.unix_ns, sorted(first.ranks)) == (round(1.1 * SECOND), [0, 1])
    assert changes.look({0: status(1.5), 1: status(1.5)}) is None
    second = changes.look({0: status(2), 1: status(2, called=2)})
    assert second is not None
    assert (second.unix_ns, second.ranks) == (
        2 * SECOND,
        {1: Position(line=STATUS_LINE, groups=[("0", 2, 2)], cpu_s=2.0, rss_bytes=10)},
    )
    third = changes.look({0: status(3.5), 1: status(2.5, called=2)})
    assert third is not None
    assert sorted(third.ranks) == [0]  # its memory and processor time, which are then old


STATUS_LINE = status(1).line


def test_file_that_grows_is_thinned_and_keeps_the_whole_time(tmp_path: Path) -> None:
    positions_path(tmp_path, 0).parent.mkdir(parents=True)
    writer = PositionWriter(tmp_path, 0, most_bytes=20_000)
    for number in range(2000):
        writer.look({0: status(number, number), 1: status(0)})
    moments = read_positions(tmp_path, 0).events
    assert positions_path(tmp_path, 0).stat().st_size <= 20_000
    assert moments[0].unix_ns < 64 * SECOND
    assert moments[-1].unix_ns > 1900 * SECOND
    assert moments[0].ranks.keys() == {0, 1}
    counts = [moment.ranks[0].groups[0][1] for moment in moments]
    assert counts == sorted(counts)
    assert [moment.unix_ns // SECOND for moment in moments] == counts


def test_last_change_before_a_hang_is_written_also_to_a_thinned_file(tmp_path: Path) -> None:
    positions_path(tmp_path, 0).parent.mkdir(parents=True)
    writer = PositionWriter(tmp_path, 0, most_bytes=20_000)
    for number in range(2000):
        writer.look({0: status(number, number)})
    for looks in range(20):  # the rank hangs after a change, whatever look that was
        last = status(2000 + looks, 2000 + looks)
        for _ in range(64):
            writer.look({0: last})
        assert read_positions(tmp_path, 0).events[-1].ranks[0].groups[0][1] == 2000 + looks
        writer.look({0: last})


def test_folder_that_cannot_be_written_ends_only_the_recording(tmp_path: Path) -> None:
    writer = PositionWriter(tmp_path / "nowhere", 0)
    writer.look({0: status(1)})
    writer.look({0: status(4, called=2)})
    assert read_positions(tmp_path / "nowhere", 0).events == []
