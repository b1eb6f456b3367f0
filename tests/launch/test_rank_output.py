"""The output of ranks: FIFOs, written here by the test in place of processes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frog.core.runs.folder import RunFolder
from frog.launch.rank_output import RankOutput, mark, pipe_path
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
