"""`frog logs`: merge the logs of ranks and nodes into one stream, in order of time."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import LIMIT_S
from run_files import event

from frog.cli import main
from frog.core.errors import UsageError
from frog.core.runs.folder import RunFolder
from frog.observe.view.merged_logs import Choice, Logs, Source, Tail, follow, format_entry, parse_since
from frog.train.log import RankLog

DAY = "2026-11-21"


def write(path: Path, *lines: str, end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n".join(lines) + end)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return a run of two nodes with one rank each, of which rank 1 failed."""
    folder = RunFolder(tmp_path / "runs" / "pond")
    write(folder.run_json, "{}")
    write(folder.record_json, json.dumps({"status": "failed"}))
    write(folder.rank_log(0), f"{DAY} 10:00:00.100 rank 0 | begins", f"{DAY} 10:00:02.500 rank 0 | waits")
    write(
        folder.rank_log(1),
        f"{DAY} 10:00:00.200 rank 1 | begins too",
        f"{DAY} 10:00:01.000 rank 1 | Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "    raise RuntimeError",
        "RuntimeError",
        f"{DAY} 10:00:03.000 rank 1 | ends",
    )
    write(folder.node_log(1), f"{DAY} 10:00:00.900 rank 1 started", f"{DAY} 10:00:02.900 rank 1 failed")
    write(folder.rank_events(1), json.dumps(event("start", rank=1, world_size=2, node_rank=1)))
    return folder


def shown(folder: RunFolder, choice: Choice | None = None) -> list[str]:
    """Return the shown lines, without the date."""
    logs = Logs(folder, choice or Choice())
    entries = logs.read(close=True)
    return [format_entry(entry, 0, colour=False).replace(DAY + " ", "") for entry in entries]


def test_logs_are_merged_in_order_of_time(folder: RunFolder) -> None:
    text = shown(folder)
    assert [entry.splitlines()[0] for entry in text] == [
        "10:00:00.100 [rank 0] begins",
        "10:00:00.200 [rank 1] begins too",
        "10:00:00.900 [node 1] rank 1 started",
        "10:00:01.000 [rank 1] Traceback (most recent call last):",
        "10:00:02.500 [rank 0] waits",
        "10:00:02.900 [node 1] rank 1 failed",
        "10:00:03.000 [rank 1] ends",
    ]
    assert [line.split("[rank 1]")[1] for line in text[3].splitlines()[1:]] == [
        '   File "train.py", line 1, in <module>', "     raise RuntimeError", " RuntimeError",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "sources"),
    [
        (Choice(ranks=[0]), {"[rank 0]"}),
        (Choice(ranks=[0, 1]), {"[rank 0]", "[rank 1]"}),
        (Choice(nodes=[1]), {"[rank 1]", "[node 1]"}),
        (Choice(ranks=[0], nodes=[1]), {"[rank 0]", "[rank 1]", "[node 1]"}),
        (Choice(pattern=re.compile("raise Run|waits")), {"[rank 0]", "[rank 1]"}),
    ],
)
def test_log_selection_by_rank_node_pattern_and_time(folder: RunFolder, choice: Choice, sources: set[str]) -> None:
    text = shown(folder, choice)
    assert {found for entry in text for found in re.findall(r"\[\w+ \d+\]", entry)} == sources


def test_grep_shows_complete_entry(folder: RunFolder) -> None:
    (entry,) = shown(folder, Choice(pattern=re.compile("raise Run")))
    assert len(entry.splitlines()) == 4


def test_agent_traceback_is_one_entry(folder: RunFolder) -> None:
    lines = ["Traceback (most recent call last):", '  File "x.py"', "    x()", "KeyError: 3"]
    write(
        folder.node_log(0), *(f"{DAY} 10:00:00.15{n} {line}" for n, line in enumerate(lines)), f"{DAY} 10:00:00.158 on"
    )
    text = shown(folder)
    assert [entry.splitlines()[0] for entry in text][1:4] == [
        "10:00:00.150 [node 0] Traceback (most recent call last):",
        "10:00:00.158 [node 0] on",
        "10:00:00.200 [rank 1] begins too",
    ]
    assert text[1].splitlines()[-1].endswith("[node 0] KeyError: 3")


def test_rank_log_round_trips(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    before_s = time.time()
    with RankLog(folder.rank_log(2), 2, show=False) as log:
        log.note("the mesh:\nrank  dp")
        log.note("step 1 | loss 2.0")
    tail = Tail(Source("rank", 2), folder.rank_log(2))
    first, second = [*tail.read(), *tail.close()]
    assert (first.lines, second.lines) == (["the mesh:", "rank  dp"], ["step 1 | loss 2.0"])
    assert before_s - 0.001 <= first.time_s <= second.time_s <= time.time()
    line = folder.rank_log(2).read_text().splitlines()[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} rank 2 \| the mesh:", line)


def test_older_logs_without_dates_are_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write(folder.rank_log(0), "23:59:58 rank 0 | late", "00:00:03 rank 0 | past midnight")
    made = dt.datetime(2026, 3, 1, 23, 59, 57).timestamp()
    os.utime(folder.rank_log(0).parent, (made, made))
    tail = Tail(Source("rank", 0), folder.rank_log(0))
    late, past = [*tail.read(), *tail.close()]
    assert dt.datetime.fromtimestamp(late.time_s) == dt.datetime(2026, 3, 1, 23, 59, 58)
    assert dt.datetime.fromtimestamp(past.time_s) == dt.datetime(2026, 3, 2, 0, 0, 3)


def test_logs_without_times_keep_their_order(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write(folder.rank_log(0), "rank 0 | one", "rank 0 | two", "  and more")
    assert [line.strip() for line in "\n".join(shown(folder)).splitlines()] == [
        "[rank 0] one", "[rank 0] two", "[rank 0]   and more",
    ]  # fmt: skip


def test_clock_set_back_does_not_reorder_a_log(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write(folder.rank_log(0), f"{DAY} 10:00:05.000 rank 0 | first", f"{DAY} 10:00:01.000 rank 0 | second")
    assert [entry.split("] ")[1] for entry in shown(folder)] == ["first", "second"]


def test_invalid_bytes_and_incomplete_line_are_shown(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rank_log(0).parent.mkdir(parents=True)
    folder.rank_log(0).write_bytes(f"{DAY} 10:00:05.000 rank 0 | \xff\xfe".encode("latin-1") + b"\nhalf")
    (entry,) = shown(folder)
    assert entry.splitlines()[1].endswith("half")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", -90.0),
        ("1.5m", -90.0),
        ("2h", -7200.0),
        ("10:30", 1800.0),
        ("10:00:05", 5.0),
        (f"{DAY} 10:00", 0.0),
        (f"{DAY}T10:00:00+01:00", -3600.0),
    ],
)
def test_since_is_parsed(text: str, expected: float) -> None:
    now_s = dt.datetime.fromisoformat(f"{DAY}T10:00:00+00:00").timestamp()
    assert parse_since(text, now_s) - now_s == pytest.approx(expected)


def test_invalid_since_is_rejected() -> None:
    with pytest.raises(UsageError, match="--since soon"):
        parse_since("soon", 0.0)


def run(folder: RunFolder, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["logs", str(folder.path), *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_logs_command_prints_selected_lines(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(folder, "--tail", "2", capsys=capsys)
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{DAY} 10:00:02.900 [node 1] rank 1 failed", f"{DAY} 10:00:03.000 [rank 1] ends"]
    assert run(folder, "--rank", "0", "--since", f"{DAY} 10:00:01", capsys=capsys)[1].count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rank", "7"], "logs exist for ranks 0, 1"),
        (["--node", "3"], "logs exist for nodes 1"),
        (["--grep", "("], "not a regular expression"),
        (["--since", "soon"], "--since soon"),
    ],
)
def test_logs_command_rejects_invalid_arguments(
    folder: RunFolder, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(folder, *words, capsys=capsys)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_missing_run_or_logs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(tmp_path / "nowhere")]) == 2
    write(tmp_path / "run" / "run.json", "{}")
    assert main(["logs", str(tmp_path / "run")]) == 2
    assert "contains no logs" in capsys.readouterr().err


def test_follow_shows_new_lines_and_new_ranks_until_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write(folder.run_json, "{}")
    write(folder.launcher_events, json.dumps(event("launch", unix_ns=time.time_ns(), pid=os.getpid())))
    acts = iter(
        [
            lambda: write(folder.rank_log(0), f"{DAY} 10:00:01.000 rank 0 | one", f"{DAY} 10:00:02.000 rank 0 | two"),
            lambda: write(folder.rank_log(1), f"{DAY} 10:00:03.000 rank 1 | a new one", f"{DAY} 10:00:0", end=""),
            lambda: [
                write(folder.rank_log(1), "4.000 rank 1 | in two pieces"),
                write(folder.launcher_events, json.dumps({"event": "end", "unix_ns": 2, "code": 0, "network": None})),
            ],
        ]
    )
    batches = list(follow(folder, Logs(folder, Choice()), wait=lambda seconds: next(acts)()))
    assert [entry.lines[0] for batch in batches for entry in batch] == ["one", "two", "a new one", "in two pieces"]
    assert len(batches) == 4


def test_follow_of_ended_run_ends(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(folder, "-f", "--tail", "1", capsys=capsys)
    assert code == 0
    assert out.splitlines() == [f"{DAY} 10:00:03.000 [rank 1] ends"]


def test_closed_output_pipe_ends_quietly(folder: RunFolder) -> None:
    """The reader closes the pipe, as in `frog logs RUN | head -1`."""
    write(folder.rank_log(0), *(f"{DAY} 10:00:04.000 rank 0 | {'x' * 200}" for _ in range(2000)))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "frog.cli", "logs", str(folder.path)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=LIMIT_S)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_invalid_dates_are_ignored(folder: RunFolder) -> None:
    write(folder.rank_log(0), "2026-02-31 10:00:00.000 rank 0 | a line", "99:99:99 rank 0 | another")
    assert "a line" in "\n".join(line for entry in Logs(folder, Choice()).read(close=True) for line in entry.lines)


def test_long_line_is_truncated(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder.logs / "rank_0" / "train.log").open("a") as log:
        log.write("x" * 600_000 + "\nthe next\n")
    assert main(["logs", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert len(out) < 20_000
    assert "xxx…\n" in out
    assert "the next" in out


def test_long_log_shows_only_last_part_by_default(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder.rank_log(1), *(f"see{number}" for number in range(5_000)))
    assert main(["logs", str(folder.path), "--rank", "1"]) == 0
    shown, told = capsys.readouterr()
    assert 40_000 < len(shown) < 50_000
    assert shown.endswith("see4999\n")
    assert told.startswith(f"{5_006 - shown.count(chr(10)):,} lines before these: use --all ")
    assert main(["logs", str(folder.path), "--rank", "1", "--all"]) == 0
    assert capsys.readouterr().out.count("\n") == 5_006


def test_terminal_escapes_in_logs_are_escaped(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder.rank_log(0), "2026-11-21 10:00:00.000 rank 0 | \x1b[2J\x1b]0;t\x07 \x9b1m \u202e \r over")
    assert main(["logs", str(folder.path)]) == 0
    assert r"\x1b[2J\x1b]0;t\x07 \u009b1m \u202e \x0d over" in capsys.readouterr().out


def test_long_log_is_read_in_blocks(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = shown(folder)
    monkeypatch.setattr("frog.observe.view.merged_logs._BLOCK_BYTES", 80)
    assert shown(folder) == expected
    write(folder.rank_log(0), f"{DAY} 10:00:09.000 rank 0 | " + "x" * 1000, f"{DAY} 10:00:10.000 rank 0 | after")
    long, after = shown(folder)[-2:]
    assert len(long) < 200
    assert after == "10:00:10.000 [rank 0] after"
