"""Pictures of a program's ranks: what their sentences say of known arrivals, times and lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from frog.core.runs.observed import CodeLine, CollectiveEntry, Collectives, Observed, Status
from frog.observe.view.program_pictures import program_pictures


def observed(
    rank: int, arrivals_ms: Sequence[int], line: int = 7, *, last_line: int = 7, first: int = 1, host: str = "pond"
) -> Observed:
    """Return a rank that entered one collective after the other at these times. first: the number of the first one."""
    entries = [
        CollectiveEntry(
            group="0",
            seq=seq,
            op="all_reduce",
            created_unix_ns=(1000 + at) * 10**6,
            done=True,
            line=CodeLine(file="/home/ada/train.py", line=line, function="step"),
        )
        for seq, at in enumerate(arrivals_ms, start=first)
    ]
    entries[-1] = msgspec.structs.replace(entries[-1], line=CodeLine(file="/home/ada/train.py", line=last_line))
    status = Status(
        rank=rank, local_rank=0, node_rank=0, world_size=3, attempt=0, host=host, pid=1, started_unix_ns=1, unix_ns=1,
        mono_ns=1, state="running", cpu_s=1.0, rss_bytes=1,
    )  # fmt: skip
    collectives = Collectives(rank=rank, pid=1, unix_ns=1, frames=True, entries=entries)
    return Observed(Path(), rank, status=status, collectives=collectives)


def test_straggler_is_named_with_the_time_that_the_others_waited() -> None:
    early = [0, 100, 200, 300, 400, 500]
    late = [0, 150, 250, 350, 450, 500]
    ranks = {0: observed(0, early), 1: observed(1, late), 2: observed(2, [9000, *early[1:]])}
    (waited, lines) = program_pictures({}, ranks, 1)
    assert waited.sentence.startswith("Rank 1 came last to 4 of 5 collectives, and the others waited 200 ms for it")
    assert waited.bars[1] == ("rank 1", 100.0, "200 ms")
    assert waited.bars[2][1] == 0.0, "the first collective is the start of the ranks"
    assert lines.sentence == "Every rank called each line equally often."
    assert lines.bars == [("all_reduce at train.py:7", 100.0, "18")]


def test_no_rank_is_called_a_straggler_that_is_not_usually_last() -> None:
    ranks = {0: observed(0, [0, 0, 3, 0, 3, 0]), 1: observed(1, [0, 2, 0, 2, 0, 2])}
    assert (
        "no rank is usually last" in program_pictures({}, {**ranks, 2: observed(2, [0, 1, 4, 1, 1, 3])}, 1)[0].sentence
    )
    assert [one.title[:11] for one in program_pictures({}, ranks, 2)] == ["Collectives"], (
        "the clocks of nodes may differ"
    )
    apart = {**ranks, 1: observed(1, [0, 2, 0, 2, 0, 2], host="lake")}
    assert [one.title[:11] for one in program_pictures({}, apart, 1)] == ["Collectives"]


def test_one_of_two_ranks_is_last_at_half_of_the_collectives_anyway() -> None:
    first, slow = [0, 100, 200, 300, 400, 500], [0, 140, 240, 340, 440, 540]

    def said(*arrivals: list[int]) -> str:
        ranks = {rank: observed(rank, own) for rank, own in enumerate(arrivals)}
        return program_pictures({}, ranks, 1)[0].sentence

    assert "it is the straggler" in said(first, slow)
    assert "no rank is usually last" in said([0, 100, 200, 340, 440, 500], [0, 140, 240, 300, 400, 540]), "3 of 5"
    assert "no rank is usually last" in said(first, [0, 101, 201, 301, 401, 501]), "a millisecond of 100 is not felt"


def test_ranks_that_differ_in_a_line_or_in_processor_time_are_named() -> None:
    ranks = {0: observed(0, [0, 1, 2]), 1: observed(1, [0, 1, 2]), 2: observed(2, [0, 1, 2], last_line=9)}
    processor, lines = program_pictures({0: 2.0, 1: 3.0, 2: 2.1}, ranks, 1)
    assert processor.sentence.startswith("Rank 1 used 50 % more processor time than rank 0")
    assert processor.bars[0][:2] == ("rank 0", 100 * 2 / 3)
    assert lines.sentence.startswith("Ranks differ. all_reduce at train.py:7: 2 on rank 2, 3 on ranks 0-1;")
    assert "about the same" in program_pictures({0: 2.0, 1: 2.1}, {}, 1)[0].sentence
    assert program_pictures({0: 2.0}, {}, 1) == []


def test_only_collectives_that_all_ranks_recorded_are_counted() -> None:
    """The last ones of a rank, and those that its buffer still holds, differ by one in each run."""
    ranks = {
        0: observed(0, [0, 1, 2, 3]),
        1: observed(1, [0, 1, 2]),
        2: observed(2, [1, 2, 3, 4], first=2),
        3: Observed(Path(), 3),
    }
    [lines] = program_pictures({}, ranks, 2)
    assert lines.sentence == "Every rank called each line equally often."
    assert lines.bars == [("all_reduce at train.py:7", 100.0, "6")]
