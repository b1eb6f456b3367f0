"""The output of ranks: FIFOs, written here by the test in place of processes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frog.core.runs.folder import RunFolder
from frog.launch import rank_output
from frog.launch.rank_output import RankOutput, _Log, mark, pipe_path
from frog.observe.view.merged_logs import Choice, Logs


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def output(folder: RunFolder, tmp_path: Path) -> Iterator[RankOutput]:
    output = RankOutput(folder)
    output.open_pipes(tmp_path, 2)
    yield output
    output.close()


def write(tmp_path: Path, local_rank: int, data: bytes) -> None:
    pipe_path(tmp_path, local_rank).write_bytes(data)


def test_lines_have_their_rank_on_the_screen_and_in_the_log(
    output: RankOutput, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 0, b"\xff binary\nno end")
    write(tmp_path, 1, b"[rank1]: hello\n")
    output.settle()
    assert sorted(capsys.readouterr().out.splitlines()) == ["rank 0 | no end", "rank 0 | � binary", "rank 1 | hello"]
    assert [text for _, text in output.kept[0, 1]] == ["hello"]
    entries = Logs(folder, Choice()).read(close=True)
    assert sorted((str(entry.source), entry.lines) for entry in entries) == [
        ("rank 0", ["no end"]),
        ("rank 0", ["� binary"]),
        ("rank 1", ["hello"]),
    ]
    assert all(entry.time_s for entry in entries)


def test_mark_assigns_the_following_lines_to_a_rank(
    output: RankOutput, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 0, b"first\nnot ended" + mark(5, 1) + b"second\n\0frog rank x\n")
    output.settle()
    assert [text for _, text in output.kept[0, 0]] == ["first", "not ended"]
    assert [text for _, text in output.kept[1, 5]] == ["second", "\0frog rank x"]
    assert "rank 5 | second" in capsys.readouterr().out
    assert folder.rank_log(5).exists()


def test_traceback_is_one_entry_of_the_log(output: RankOutput, folder: RunFolder, tmp_path: Path) -> None:
    text = 'before\nTraceback (most recent call last):\n  File "a.py", line 1\n    x()\nValueError: no\nafter\n'
    write(tmp_path, 0, text.encode())
    output.settle()
    found = [entry.lines for entry in Logs(folder, Choice()).read(close=True)]
    assert found == [["before"], text.splitlines()[1:5], ["after"]]


def test_output_is_read_although_screen_and_disk_refuse_it(
    output: RankOutput, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    if os.path.exists("/dev/full"):
        folder.rank_log(0).parent.mkdir(parents=True)
        folder.rank_log(0).symlink_to("/dev/full")
    write(tmp_path, 0, b"".join(b"%d\n" % number for number in range(30_000)))  # more than a FIFO holds
    output.settle()
    assert output.kept[0, 0][-1][1] == "29999"


def test_host_is_shown_with_several_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = RankOutput(None)
    output.open_pipes(tmp_path, 1, host="node1")
    write(tmp_path, 0, mark(3, 0) + b"x" * 5_000 + b"\n")
    output.settle()
    output.close()
    assert capsys.readouterr().out == f"node1 rank 3 | {'x' * 2000} ...\n"


# ---- one log, with a clock of its own --------------------------------------------------------------------------------


def test_indented_lines_belong_to_the_line_above_them_for_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(rank_output.time, "monotonic", lambda: now)
    monkeypatch.setattr(rank_output, "time_text", lambda: f"at {now:g}")
    log = _Log(tmp_path / "new" / "log", 3)
    log.close()  # nothing was written
    for now, texts in (  # noqa: B007
        (100.0, ["  not indented below anything"]),
        (100.99, ["  below"]),
        (101.99, ["  too late", "\tbelow", "own"]),
    ):
        log.write(texts)
    log.close()
    assert (tmp_path / "new" / "log").read_text().splitlines() == [
        "at 100 rank 3 |   not indented below anything",
        "  below",
        "at 101.99 rank 3 |   too late",
        "\tbelow",
        "at 101.99 rank 3 | own",
    ]


def test_exception_below_a_traceback_belongs_to_it_and_an_empty_line_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_output, "time_text", lambda: "now")
    head, frame = "Traceback (most recent call last):", '  File "a.py", line 1'
    for number, (texts, own) in enumerate(
        (
            ([head, frame, "ValueError: no", "after"], {0, 3}),
            ([f"epoch 1: {head}", frame, frame, "ValueError: no"], {0}),
            ([head, frame, "", "after"], {0, 2, 3}),
            (["first", frame, "ValueError: no"], {0, 2}),
        )
    ):
        log = _Log(tmp_path / str(number), 0)
        log.write(texts)
        log.close()
        lines = (tmp_path / str(number)).read_text().splitlines()
        assert {index for index, line in enumerate(lines) if line.startswith("now rank 0 | ")} == own, texts


def test_mark_after_a_whole_line_adds_no_empty_one(output: RankOutput, tmp_path: Path) -> None:
    write(tmp_path, 0, b"whole\n" + mark(5, 1) + mark(6, 2) + b"of six\n")
    output.settle()
    assert {place: [text for _, text in lines] for place, lines in output.kept.items()} == {
        (0, 0): ["whole"], (2, 6): ["of six"],
    }  # fmt: skip


def test_pipes_of_later_nodes_are_read_by_the_same_thread(output: RankOutput, tmp_path: Path) -> None:
    thread = output._thread
    (tmp_path / "more").mkdir()
    output.open_pipes(tmp_path / "more", 1)
    assert output._thread is thread
    write(tmp_path / "more", 0, b"later\n")
    write(tmp_path, 1, b"earlier\n")
    output.settle()
    assert {place: len(lines) for place, lines in output.kept.items()} == {(0, 0): 1, (0, 1): 1}
