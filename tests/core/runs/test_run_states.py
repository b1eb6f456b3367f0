"""Whether a run is active, which runs and names there are, what a manifest may say, and lines that cannot be read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from run_files import beat, event, record_json, run_json, segment

from frog.core.errors import CheckpointError, Damage, RunError
from frog.core.files import write_json
from frog.core.runs import run as runs
from frog.core.runs.event_schema import Beat, CollectiveEvent, EndEvent, RankEvent
from frog.core.runs.folder import (
    RunFolder,
    find_evidence,
    find_folder,
    find_run,
    free_name,
    is_only_observed,
    only_observed,
)
from frog.core.runs.manifest import Manifest, damage_of, read_manifest, verify_files, write_manifest
from frog.core.runs.read import read_lines, read_rank, step_collectives

S = 10**9
NOW = 1_800_000_000 * S


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    monkeypatch.setattr(runs, "is_alive", lambda pid: pid < 100)
    monkeypatch.setattr(runs, "host_name", lambda: "pond")


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (4.999, True), (5, False), (60, False)])
def test_heartbeat_is_fresh_for_5_seconds(now: None, age_s: float, fresh: bool) -> None:
    said = convert(beat(unix_ns=NOW - int(age_s * S)), Beat)
    assert runs.is_fresh(said) == fresh
    assert runs.is_fresh(said, NOW - 100 * S)
    assert not runs.is_fresh(said, NOW + 100 * S)


@pytest.mark.parametrize(
    ("changes", "living"),
    [
        ({}, True),
        ({"pid": 500}, False),
        ({"pid": 500, "host": "lake"}, True),  # of another machine nothing is known
        ({"status": "completed"}, False),
        ({"unix_ns": NOW - 6 * S}, False),
    ],
)
def test_rank_lives_if_it_runs_and_says_so(now: None, tmp_path: Path, changes: dict[str, Any], living: bool) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.heartbeat(3), beat(**{"rank": 3, "pid": 5, "unix_ns": NOW - S, **changes}))
    assert runs.has_living_rank(folder) == living
    assert runs.is_active(folder) == living


@pytest.mark.parametrize(
    ("events", "beats", "active"),
    [
        ([], [], False),
        ([("launch", 5, 1)], [], True),
        ([("launch", 500, 1)], [], False),  # its launcher has ended
        ([("launch", 5, 119)], [200], True),
        ([("launch", 5, 121)], [200], False),  # all were silent for two minutes: the pid is another process's
        ([("launch", 5, 900)], [100], True),
        ([("launch", 500, 3)], [2], True),  # a rank that is younger than the launch
        ([("launch", 500, 1)], [2], False),
        ([("launch", 5, 1), ("end", 0, 1)], [], False),
        ([("launch", 5, 9), ("end", 0, 4)], [3], True),
        ([("launch", 5, 9), ("end", 0, 2)], [3], False),
    ],
)
def test_run_is_active_while_its_launcher_or_a_rank_is(
    now: None, tmp_path: Path, events: list[tuple[str, int, int]], beats: list[int], active: bool
) -> None:
    folder = RunFolder(tmp_path)
    folder.events.mkdir()
    lines = [
        event("launch", pid=pid, unix_ns=NOW - ago * S)
        if kind == "launch"
        else {"event": "end", "unix_ns": NOW - ago * S, "code": 0, "network": None}
        for kind, pid, ago in events
    ]
    folder.launcher_events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(folder.launcher_events, ns=(0, 0))
    for rank, ago in enumerate(beats):
        write_json(folder.heartbeat(rank), beat(rank=rank, pid=5, unix_ns=NOW - ago * S))
    assert runs.is_active(folder) == active


@pytest.mark.parametrize(("ago_s", "active"), [(119, True), (121, False)])
def test_launcher_of_a_program_without_heartbeats_touches_its_events(
    now: None, tmp_path: Path, ago_s: int, active: bool
) -> None:
    folder = RunFolder(tmp_path)
    folder.events.mkdir()
    folder.launcher_events.write_text(json.dumps(event("launch", pid=5, unix_ns=NOW - 9999 * S)) + "\n")
    os.utime(folder.launcher_events, ns=(0, NOW - ago_s * S))
    assert runs.is_active(folder) == active


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_free_name_is_the_first_that_no_run_has(tmp_path: Path) -> None:
    assert free_name("a", tmp_path / "none") == "a"
    for name, free in (("a", "a-2"), ("a-2", "a-3"), ("a-4", "a-3")):
        (tmp_path / name).mkdir()
        assert free_name("a", tmp_path) == free


def observed_at(folder: Path, mtime: int) -> None:
    attempt = folder / "observed" / "attempt_0"
    attempt.mkdir(parents=True)
    os.utime(attempt, (mtime, mtime))


def test_latest_run_may_be_one_that_only_observers_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="no runs under runs/\n  try: `make demo` creates one"):
        find_evidence("latest")
    write_json(Path("runs/own/run.json"), run_json())
    os.utime("runs/own/run.json", (50, 50))
    observed_at(Path("runs/other"), 40)
    assert find_evidence("latest").path == find_run("latest").path == Path("runs/own")
    observed_at(Path("runs/third"), 60)
    assert find_evidence("latest").path == find_evidence("third").path == Path("runs/third")
    for text in ("latest", "third"):
        with pytest.raises(RunError, match="runs/third: only an observer wrote here"):
            find_run(text)
    assert only_observed(Path("runs")) == [Path("runs/other"), Path("runs/third")]
    assert [is_only_observed(Path("runs") / name) for name in ("own", "third", "none")] == [False, True, False]


@pytest.mark.parametrize("part", ["events", "heartbeats", "logs"])
def test_run_that_failed_early_is_found_by_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="early: no run folder here or under runs/"):
        find_folder("early")
    (tmp_path / "runs" / "early" / part).mkdir(parents=True)
    assert find_folder("early").path == Path("runs/early")


@pytest.mark.parametrize(
    ("record", "attempt", "segments", "status"),
    [
        (None, None, 1, None),
        ({"status": "completed"}, None, 1, "completed"),  # written before there was a number of starts
        ({"status": "completed", "starts": 1}, None, 1, "completed"),
        ({"status": "completed", "starts": 2}, None, 1, "completed"),
        ({"status": "completed", "starts": 1}, None, 2, None),  # it began again since
        ({"status": "completed", "starts": 1}, {"status": "failed"}, 2, "failed"),
    ],
)
def test_record_is_that_of_the_last_start(
    tmp_path: Path, record: Any, attempt: Any, segments: int, status: str | None
) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.run_json, run_json(segments=[segment()] * segments))
    if record:
        write_json(folder.record_json, record_json(**record))
    if attempt:
        write_json(folder.attempt_json, record_json(**attempt))
    found = folder.read_record()
    assert (found and found.status) == status


def test_paths_of_a_run_have_their_names(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.checkpoint(7) == tmp_path / "checkpoints" / "step_00000007"
    assert folder.staged_checkpoint(7, "a1").name == ".step_00000007.a1"
    assert folder.node_log(1) == tmp_path / "logs" / "node_1" / "agent.log"
    assert folder.trace(0).name == "rank_0.trace.json"
    folder.profile.mkdir()
    (folder.profile / "rank_0.trace.json.gz").touch()
    assert folder.trace(0).name == "rank_0.trace.json.gz"
    assert (folder.event_ranks(), folder.heartbeat_ranks()) == ([], [])
    folder.events.mkdir()
    for name in ("rank_10.jsonl", "rank_9.jsonl", "rank_x.jsonl", "rank_1.json", "launcher.jsonl"):
        (folder.events / name).touch()
    assert folder.event_ranks() == [9, 10]
    assert folder.resume_command == f"frog train --resume {tmp_path}"
    write_json(folder.run_json, run_json(finetune={}))
    assert folder.resume_command == f"frog finetune --resume {tmp_path}"


# ---- lines -----------------------------------------------------------------------------------------------------------

LINE = json.dumps({"event": "end", "step": 1, "status": "completed"})


@pytest.mark.parametrize(
    ("text", "num_events", "problems"),
    [
        ("", 0, []),
        (f"{LINE}\n", 1, []),
        (f"{LINE}\n\n  \n{LINE}", 2, []),
        (f"{LINE}\n{{", 1, ["1 damaged or torn line skipped (or from another version of Frog)"]),
        (f"x\n{LINE}\ny\n", 1, ["2 damaged or torn lines skipped (or from another version of Frog)"]),
    ],
)
def test_damaged_lines_are_counted(tmp_path: Path, text: str, num_events: int, problems: list[str]) -> None:
    path = tmp_path / "events"
    path.write_text(text)
    lines = read_lines(path, RankEvent)
    assert (len(lines.events), lines.problems) == (num_events, [f"{path}: {problem}" for problem in problems])
    assert read_lines(tmp_path / "absent", RankEvent).events == []


def test_collectives_of_a_step_are_those_between_its_phases(tmp_path: Path) -> None:
    spans = [("data", 10, 20, 1), ("reduce", 20, 40, 1), ("evaluate", 50, 90, 1), ("forward", 5, 99, 2)]
    lines = [event("span", phase=phase, start_ns=a, end_ns=b, step=step) for phase, a, b, step in spans]
    lines += [event("collective", seq=time, start_ns=time, end_ns=99) for time in (9, 10, 40, 41, 60)]
    lines += [event("collective", seq=99, start_ns=30, end_ns=99, step=2)]
    folder = RunFolder(tmp_path)
    folder.events.mkdir()
    folder.rank_events(0).write_text("\n".join(map(json.dumps, lines)))
    events = read_rank(folder, 0)
    assert [each.seq for each in step_collectives(events, 1)] == [10, 40]
    assert [each.seq for each in step_collectives(events, 2)] == [99]
    assert step_collectives(events, 3) == []
    assert (len(events.of(CollectiveEvent)), events.last(EndEvent), events.rank) == (6, None, 0)


# ---- manifests -------------------------------------------------------------------------------------------------------


def piece(offset: list[int], shape: list[int], file: str = "rank_1.safetensors") -> dict[str, Any]:
    return {"file": file, "key": "k", "offset": offset, "shape": shape}


def manifest(*pieces: dict[str, Any], shape: tuple[int, ...] = (4, 2), size: int = 8) -> Manifest:
    tensors = {"w": {"shape": list(shape), "dtype": "float32", "pieces": list(pieces)}}
    files = {"rank_1.safetensors": {"bytes": size, "sha256": "0" * 64}}
    table = {"step": 3, "world_size": 2, "state": {}, "tensors": tensors, "files": files}
    return convert(table, Manifest)


WHOLE = piece([0, 0], [4, 2])


@pytest.mark.parametrize(
    ("checked", "problem"),
    [
        (manifest(WHOLE), None),
        (manifest(piece([0, 0], [2, 2]), piece([2, 0], [2, 2])), None),
        (manifest(piece([0, 0], [4, 2], "other")), "$.tensors[w]: a piece is in other, which $.files does not list"),
        (manifest(WHOLE, size=7), "a piece of shape [4, 2] is larger than its file, rank_1.safetensors"),
        (manifest(piece([1, 0], [4, 2])), "a piece of shape [4, 2] at [1, 0] exceeds [4, 2]"),
        (manifest(piece([0, 1], [4, 2])), "a piece of shape [4, 2] at [0, 1] exceeds [4, 2]"),
        (manifest(piece([0], [4, 2])), "a piece of shape [4, 2] at [0] exceeds [4, 2]"),
        (manifest(piece([0, 0], [4])), "a piece of shape [4] at [0, 0] exceeds [4, 2]"),
        (manifest(piece([0], [4])), "a piece of shape [4] at [0] exceeds [4, 2]"),
        (manifest(WHOLE, piece([0, 0], [1, 1])), "$.tensors[w]: its pieces have 9 elements, more than [4, 2]"),
    ],
)
def test_manifest_that_contradicts_itself_is_refused(checked: Manifest, problem: str | None) -> None:
    found = checked.problem()
    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")
    assert checked.payload_bytes == checked.files["rank_1.safetensors"].bytes


def test_manifest_is_read_back_only_under_its_own_step_and_hash(tmp_path: Path) -> None:
    folder = tmp_path / "step_00000003"
    write_manifest(folder, manifest(WHOLE))
    assert read_manifest(folder) == manifest(WHOLE)
    other = folder.rename(tmp_path / "step_00000004")
    with pytest.raises(CheckpointError, match=r"\$\.step: found 3, but the folder is step_00000004"):
        read_manifest(other)
    free = other.rename(tmp_path / "kept")
    assert read_manifest(free).step == 3
    path = free / "manifest.json"
    path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 3'))
    with pytest.raises(CheckpointError, match="its content does not match its hash") as caught:
        read_manifest(free)
    assert damage_of(caught.value, 3).cause == "corrupt"
    path.unlink()
    with pytest.raises(CheckpointError, match="kept: incomplete: no manifest"):
        read_manifest(free)


@pytest.mark.parametrize(
    ("content", "cause", "words"),
    [
        (None, "absent", "missing, or not a regular file"),
        (b"1234567", "torn", "7 bytes, the manifest has 8"),
        (b"12345678", "corrupt", "its SHA-256 is ef797c8118f0…, the manifest has 000000000000…"),
    ],
)
def test_damage_names_the_file_and_its_rank(tmp_path: Path, content: bytes | None, cause: str, words: str) -> None:
    path = tmp_path / "rank_1.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        verify_files(tmp_path, manifest(WHOLE))
    assert damage_of(caught.value, 9) == Damage(cause=cause, what=f"{path}: {words}", step=9, rank=1)  # type: ignore[arg-type]
    assert caught.value.facts.cause == cause


def test_damage_of_another_error_is_torn() -> None:
    assert damage_of(OSError("gone"), 4) == Damage(cause="torn", what="gone", step=4)
    assert damage_of(CheckpointError("odd"), 4) == Damage(cause="torn", what="odd", step=4)
