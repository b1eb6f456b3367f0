"""Every reader of a damaged run folder reports the problem without a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import run_files
from mutations import damages, held_to_its_schema, mutations
from synthetic_run import Synthetic, make_run

from frog.cli import main
from frog.core.files import write_json
from frog.core.runs.event_schema import Beat, RankEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.launcher_schema import AnyLauncherEvent
from frog.core.runs.read import read_lines
from frog.core.runs.record import Record, RunFile

COMMANDS = ("runs", "report run", "diagnose run", "compare run run", "logs run", "tensorboard run")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return two ranks that took some steps and failed, with the files of a launcher and heartbeats."""
    monkeypatch.chdir(tmp_path)
    error = {"type": "CommError", "message": "all_reduce failed", "rank": 1, "step": 3}
    kind = Synthetic([(2, 0, 2), (2, 1, 3)], eval_every=2, checkpoint_every=2, status="failed", error=error)
    folder = make_run(tmp_path / "runs" / "run", kind)
    folder.rank_log(0).parent.mkdir(parents=True)
    folder.rank_log(0).write_text("2026-11-21 10:00:00.000 rank 0 | a line\n")
    for rank in (0, 1):
        opened = {"seq": 1, "op": "all_reduce", "axis": "dp", "payload_bytes": 4, "start_ns": 1}
        write_json(folder.heartbeat(rank), run_files.beat(rank=rank, pid=4_000_000 + rank, open=[opened]))
    told = {"type": "CommError", "message": "failed", "hint": None, "facts": {"cause": "timed_out"}, "unix_ns": 7}
    nodes = [{"node": 0, "host": "pond", "address": "127.0.0.1"}]
    link = {"rate_bits_per_s": 1e7, "delay_s": 0.01, "mtu": 1500, "loss": 0.0}
    world = {
        "attempt": 0, "node": 0, "node_rank": 0, "ranks": [0, 1], "world_size": 2, "master_addr": "127.0.0.1",
        "master_port": 1, "pids": [4_000_000, 4_000_001],
    }  # fmt: skip
    rank = {"attempt": 0, "rank": 1, "pid": 4_000_001}
    events: list[dict[str, Any]] = [
        run_files.event("launch", nodes=nodes, network=link),
        {"event": "world", "unix_ns": 1, **world},
        {"event": "hang", "unix_ns": 2, **rank, "kind": "stuck", "waited_s": 9.0, "heartbeat": run_files.beat()},
        {"event": "exit", "unix_ns": 3, **rank, "node": 0, "node_rank": 0, "code": 1, "error": told, "traceback": None},
        {"event": "node", "unix_ns": 4, "node": 0, "host": "pond", "code": -9},
        {"event": "return", "unix_ns": 5, "node": 0, "host": "pond"},
        {"event": "end", "unix_ns": 6, "code": 1, "network": {"mean_late_s": 0.1, "worst_late_s": 0.2}},
    ]
    folder.launcher_events.write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def read_by_all(what: str, capsys: pytest.CaptureFixture[str], wrong: list[str]) -> str:
    """Return the output of all commands; note those that do not end with an exit code."""
    for command in COMMANDS:
        try:
            code = main(command.split())
            if code not in (0, 1, 2):
                wrong.append(f"{what}: frog {command}: exit code {code}")
        except Exception as error:
            wrong.append(f"{what}: frog {command}: {type(error).__name__}: {str(error)[:150]}")
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_undamaged_run_is_readable(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    wrong: list[str] = []
    said = read_by_all("whole", capsys, wrong)
    assert wrong == []
    assert "skipped" not in said


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a table, outer parts first."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*prefix, key)
        yield from paths(item, (*prefix, key))


def put(table: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a path, or without it if the value is `GONE`."""
    if not path or not isinstance(table, dict | list) or (isinstance(table, list) and not table):
        return value if not path else table
    copy = table.copy()
    if len(path) == 1 and value is GONE:
        del copy[path[0]]
    else:
        copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


GONE = object()
VALUES = (GONE, None, True, 0, 10**9, 1e308, "", "../\0x", "x" * 10_000, [], {}, {"x": {}})


def spoilt(tables: list[Any], kind: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield for each wrong value the table with it in every place that the schema accepts."""
    for value in VALUES:
        changed = list(tables)
        for number, table in enumerate(tables):
            for path in paths(table):
                try:
                    candidate = put(changed[number], path, value)
                except (KeyError, IndexError, TypeError):  # its container has been replaced already
                    continue
                if fits(candidate, kind):
                    changed[number] = candidate
        yield "gone" if value is GONE else repr(value)[:30], changed


def fits(table: Any, kind: Any) -> bool:
    try:
        msgspec.json.decode(json.dumps(table).encode(), type=kind)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True


def test_absurd_world_size_is_rejected(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """An impossible size must be rejected, because listing each expected rank would take gigabytes."""
    for path in (run.heartbeat(1), run.rank_events(0), run.launcher_events):
        good = path.read_text()
        changed = re.sub(r'"world_size": ?2\b', '"world_size": 200000000', good)
        assert changed != good
        path.write_text(changed)
        if path.suffix == ".json":
            assert read_heartbeat(path) is None
        else:
            assert read_lines(path, RankEvent if path.stem == "rank_0" else AnyLauncherEvent).num_bad >= 1
        wrong = list[str]()
        assert ("damaged or torn" in read_by_all(path.name, capsys, wrong)) == (path.suffix == ".jsonl")
        assert wrong == []
        path.write_text(good)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("rank_0", RankEvent), ("launcher", AnyLauncherEvent)])
def test_events_with_wrong_values_are_reported(
    run: RunFolder, capsys: pytest.CaptureFixture[str], name: str, kind: Any
) -> None:
    """A line that the schema rejects counts as a torn line; an accepted one breaks no command."""
    path, wrong = run.events / f"{name}.jsonl", list[str]()
    good = path.read_bytes()
    lines = [json.loads(line) for line in good.splitlines()]
    first = {line["event"]: line for line in reversed(lines)}
    for event, line in first.items():
        for what, changed in mutations(line):
            path.write_text(json.dumps(changed) + "\n")
            found = read_lines(path, kind)
            if (found.num_bad, len(found.events)) != ((0, 1) if fits(changed, kind) else (1, 0)):
                wrong.append(f"{event}: {what}: not counted")
    for what, some in spoilt(list(first.values()), kind):
        path.write_text("".join(json.dumps(line) + "\n" for line in [*some, *lines]))
        read_by_all(what, capsys, wrong)
    for what, data in damages(good):
        path.write_bytes(data)
        said = read_by_all(what, capsys, wrong)
        if what in ("cut in half", "zeros", "one byte too many") and f"{path.name}: 1 damaged or torn line" not in said:
            wrong.append(f"{what}: is not reported")
    assert not wrong, f"{len(wrong)} wrong answers:\n" + "\n".join(wrong[:30])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("run.json", RunFile, marks=pytest.mark.slow),
        ("record.json", Record),
        pytest.param("attempt.json", Record, marks=pytest.mark.slow),
        pytest.param("heartbeats/rank_1.json", Beat, marks=pytest.mark.slow),
    ],
)
def test_files_with_wrong_values_are_reported(
    run: RunFolder, capsys: pytest.CaptureFixture[str], name: str, kind: Any
) -> None:
    """A damaged file is named in a uniform error; a good run next to it is still listed."""
    path, wrong = run.path / name, list[str]()
    make_run(run.path.with_name("good"), Synthetic([(1, 0, 1)], eval_every=None, checkpoint_every=None))
    if name == "attempt.json":  # how a later start ended
        path.write_bytes(run.record_json.read_bytes())
    table = json.loads(path.read_text())
    if kind is not Beat:
        held_to_its_schema(path, run.read_run_json if kind is RunFile else run.read_record)
    for what, (changed,) in spoilt([table], kind):
        write_json(path, changed)
        read_by_all(what, capsys, wrong)
    for what, data in [*damages(path.read_bytes()), ("an old format", json.dumps({**table, "format": 1}).encode())]:
        path.write_bytes(data)
        said = read_by_all(what, capsys, wrong)
        if kind is not Beat and (f"error: runs/run/{name}" not in said or "good " not in said):
            wrong.append(f"{what}: is not named")
    assert not wrong, f"{len(wrong)} wrong answers:\n" + "\n".join(wrong[:30])


@pytest.mark.parametrize("value", VALUES)
def test_settings_of_wrong_type_do_not_break_commands(
    run: RunFolder, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    found = json.loads(run.run_json.read_text())
    for section, key in (
        ("train", "steps"),
        ("train", "grad_accum"),
        ("train", "global_batch_size"),
        ("eval", "every"),
        ("checkpoint", "every"),
    ):
        found["config"].setdefault(section, {})[key] = value
        if value is GONE:
            del found["config"][section][key]
    write_json(run.run_json, found)
    wrong: list[str] = []
    read_by_all("settings", capsys, wrong)
    assert wrong == []
