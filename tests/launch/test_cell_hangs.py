"""When a cell counts as a hang, from what the observers of its ranks wrote."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from frog.core.files import write_json
from frog.launch.cells.cell_hangs import CellHang, HangWatch

DONE = "has finished the cell"


class Ranks:
    """Files of two ranks, both in this process, on a clock that the test moves."""

    def __init__(self, folder: Path, ranks: set[int] | None = None) -> None:
        self.folder, self.now, self.number = folder, 100.0, 0
        self.watch = HangWatch(folder, ranks or {0, 1}, world_size=2)

    def write(
        self, rank: int, *, completed: int, pending: bool, seq: int = 1, line: int = 2, answers: bool = True
    ) -> None:
        path = self.folder / "observed" / "attempt_0" / f"rank_{rank}"
        path.mkdir(parents=True, exist_ok=True)
        head = {"format": 1, "rank": rank, "pid": os.getpid(), "unix_ns": time.time_ns()}
        here = {"file": "/tmp/frog-world-x/cells/cell_3.py", "line": line, "function": "<module>"}
        group = {"group": "0", "enqueued": completed + pending, "completed": completed}
        write_json(
            path / "status.json",
            {
                **head,
                "local_rank": rank,
                "node_rank": 0,
                "world_size": 2,
                "attempt": 0,
                "host": "here",
                "state": "running",
                "started_unix_ns": 1,
                "mono_ns": 1,
                "cpu_s": 0.0,
                "rss_bytes": 1,
                "groups": [group],
                "line": here,
                "answered": 99 if answers else 0,
            },
        )
        entry = {"group": "0", "seq": seq, "op": "all_reduce", "backend": "gloo", "sizes": [[4]], "dtypes": ["Float"]}
        entries = [{**entry, "done": False, "line": here}] if pending else []
        write_json(
            path / "collectives.json",
            {**head, "frames": True, "groups": {"0": {"ranks": [0, 1]}}, "status": [group], "entries": entries},
        )

    def look(self, finished: dict[int, str], seconds: float) -> CellHang | None:
        """Look twice a second for a while; return the first hang."""
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            hang = self.watch.look(finished, self.now)
            if hang is not None:
                return hang
        return None


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """The ranks are this test's process: its real use of processors and files is not the ranks'."""
    monkeypatch.setattr("frog.launch.watchdog._moved_bytes", lambda pid: 0)
    monkeypatch.setattr("frog.launch.watchdog._main_thread_s", lambda pid: (0.0, 0.0))
    monkeypatch.setattr("frog.launch.watchdog._process_cpu_s", lambda process: 0.0)
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive=False: [])
    return Ranks(tmp_path)


def test_rank_that_waits_for_one_that_has_finished_is_a_hang_within_seconds(ranks: Ranks) -> None:
    ranks.write(0, completed=0, pending=True)
    ranks.write(1, completed=0, pending=False)
    hang = ranks.look({1: DONE}, 5)
    assert hang is not None
    assert hang.waiting == {0}
    assert hang.text.splitlines() == [
        "hang: rank 0 waits for rank 1",
        "  rank 0: waits in all_reduce number 1 of group 0 (Float [4]) at cell 3, line 2",
        f"  rank 1: {DONE}",
    ]


def test_rank_that_is_elsewhere_may_still_come(ranks: Ranks) -> None:
    ranks.write(0, completed=0, pending=True)
    ranks.write(1, completed=0, pending=False)
    assert ranks.look({}, 30) is None


def test_ranks_in_one_collective_have_a_minute(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.write(rank, completed=3, pending=True, seq=4)
    assert ranks.look({}, 30) is None
    assert ranks.look({}, 60) is not None


def test_ranks_in_different_collectives_hang(ranks: Ranks) -> None:
    ranks.write(0, completed=3, pending=True, seq=4, line=2)
    ranks.write(1, completed=3, pending=True, seq=5, line=7)
    hang = ranks.look({}, 5)
    assert hang is not None
    assert "hang: ranks 0, 1 wait for each other" in hang.text
    assert "rank 1: waits in all_reduce number 5 of group 0 (Float [4]) at cell 3, line 7" in hang.text


def test_rank_outside_the_cell_is_awaited_in_vain(tmp_path: Path, ranks: Ranks) -> None:
    alone = Ranks(tmp_path, {1})
    alone.write(1, completed=0, pending=True)
    hang = alone.look({}, 5)
    assert hang is not None
    assert "rank 0: is not in this cell" in hang.text


def test_old_status_is_not_a_hang(ranks: Ranks) -> None:
    """On a busy machine a rank may write nothing for seconds: what it did last is not where it is."""
    ranks.write(0, completed=3, pending=True, seq=4)
    ranks.write(1, completed=3, pending=True, seq=5, answers=False)
    assert ranks.look({}, 10) is None
    ranks.write(1, completed=3, pending=False)  # it answers: it waits no longer
    assert ranks.look({}, 10) is None
