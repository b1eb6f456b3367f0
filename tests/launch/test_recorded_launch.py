"""What the launcher writes for a program that is not Frog's, its agents' commands, and how it reads their reports."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.core.errors import HangError, LaunchError
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import FORMAT
from frog.launch import launch_record
from frog.launch.launch_record import Journal, RecordedProgram
from frog.launch.node_agents import Agent, Options, agent_command
from frog.launch.nodes import Nodes
from frog.launch.program import RankProgram

PROGRAM = RankProgram(("my.py", "--x"), ("my.py", "--x"), "script", "my")


# ---- the journal -----------------------------------------------------------------------------------------------------


def events(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.launcher_events.read_text().splitlines()]


def test_events_wait_for_a_run_folder_and_a_chosen_one_receives_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.record("end", 7, code=1, network=None)
    assert journal.look_for_folder() is None
    journal.folder = own = RunFolder(tmp_path / "own")
    journal.record("end", code=2, network=None)
    assert [event["code"] for event in events(own)] == [1, 2]
    assert events(own)[0] == {"event": "end", "unix_ns": 7, "code": 1, "network": None}
    assert abs(events(own)[1]["unix_ns"] - time.time_ns()) < 60 * 10**9
    chosen = RunFolder(tmp_path / "chosen")
    (tmp_path / "run_folder").write_text(str(chosen.path))
    journal.record("end", code=3, network=None)
    assert ([event["code"] for event in events(chosen)], len(events(own))) == ([1, 2, 3], 2)
    assert (journal.is_chosen, journal.folder) == (True, chosen)


@pytest.mark.parametrize("fields", [{"code": 1}, {"code": 1, "network": None, "more": 2}, {}])
def test_event_has_the_fields_of_its_schema(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="end: fields"):
        Journal(tmp_path).record("end", **fields)


# ---- the run folder of a program -------------------------------------------------------------------------------------


def test_run_folder_has_a_new_name_and_says_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["frog", "run"])
    runs = Path("runs")
    names = [RecordedProgram.create(PROGRAM, runs, {"NCCL_DEBUG": "INFO", "OTHER": "1"}).folder for _ in range(3)]
    assert [folder and folder.path for folder in names] == [runs / "my", runs / "my-2", runs / "my-3"]
    assert capsys.readouterr().err.splitlines() == [f"run folder: {runs / name}" for name in ("my", "my-2", "my-3")]
    content = json.loads((runs / "my-2" / "run.json").read_text())
    assert (content["format"], content["name"], content["argv"]) == (FORMAT, "my-2", ["frog", "run"])
    assert (content["num_parameters"], content["segments"], content["data"], content["config"]) == (0, [], None, {})
    program = content["program"]
    assert (program["command"], program["kind"], program["cwd"]) == (["my.py", "--x"], "script", str(tmp_path))
    assert {"frog", "python", "torch", "numpy"} <= content["versions"].keys()


def test_folder_that_cannot_be_written_does_not_prevent_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").touch()
    recorded = RecordedProgram.create(PROGRAM, tmp_path / "runs", {})
    assert recorded.folder is None
    assert capsys.readouterr().err == f"no run folder: {tmp_path / 'runs'}: File exists\n"
    recorded.sign()
    recorded.write_record(None, [], False)


def test_launcher_shows_that_it_is_alive_every_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(launch_record.time, "monotonic", lambda: now)
    recorded = RecordedProgram(PROGRAM, RunFolder(tmp_path))
    recorded.folder.events.mkdir()  # type: ignore[union-attr]
    path = RunFolder(tmp_path).launcher_events
    path.touch()
    signed = []
    for now in (1005.0, 1010.0, 1010.5, 1015.0, 1020.5, 1021.0):  # noqa: B007
        os.utime(path, (1, 1))
        recorded.sign()
        signed.append(path.stat().st_mtime > 1)
    assert signed == [False, False, True, False, False, True]


def failure(**changes: Any) -> dict[str, Any]:
    known = {"attempt": 0, "rank": 3, "pid": 7, "code": 1, "time_s": 5, "unix_ns": 5, "error": None, "traceback": None}
    return {**known, **changes}


@pytest.mark.parametrize(
    ("error", "failures", "interrupted", "status", "recorded_error"),
    [
        (None, [], False, "completed", None),
        (LaunchError("stopped"), [], True, "interrupted", None),
        (LaunchError("no store"), [], False, "failed", ("LaunchError", "no store", 0)),
        (
            LaunchError("world"),
            [failure(error={"type": "ValueError", "message": "bad"}, traceback="long")],
            False,
            "failed",
            ("ValueError", "bad", 3),
        ),
        (LaunchError("world"), [failure(code=-9, traceback="its last")], False, "failed", ("SIGKILL", "its last", 3)),
        (LaunchError("world"), [failure(code=4)], False, "failed", ("exit code 4", "", 3)),
        (
            LaunchError("world"),
            [failure(error={"type": "ValueError", "message": ""}, traceback="long")],
            False,
            "failed",
            ("ValueError", "", 3),
        ),
        (HangError("all wait"), [failure(code=-9)], False, "failed", ("HangError", "all wait", 0)),
        (LaunchError("x" * 5000), [], False, "failed", ("LaunchError", "x" * 4000, 0)),
        (LaunchError("w"), [failure(traceback="y" * 5000)], False, "failed", ("exit code 1", "y" * 4000, 3)),
    ],
)
def test_record_has_the_error_of_the_first_rank_or_of_the_launcher(
    error: LaunchError | None,
    failures: list[dict[str, Any]],
    interrupted: bool,
    status: str,
    recorded_error: tuple[str, str, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(launch_record.time, "monotonic", lambda: now)
    recorded = RecordedProgram(PROGRAM, RunFolder(tmp_path))
    now = 1012.3456
    recorded.write_record(error, failures, interrupted)
    content = json.loads(RunFolder(tmp_path).record_json.read_text())
    found = content["error"] and tuple(content["error"][name] for name in ("type", "message", "rank"))
    assert (content["status"], found) == (status, recorded_error)
    assert (content["step"], content["wall_s"], content["format"]) == (0, 12.346, FORMAT)
    assert content["error"] is None or content["error"]["step"] == 0


# ---- agents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "size", "meets"),
    [(Nodes(1, 1, 4), "1", False), (Nodes(3, 3, 2), "3", True), (Nodes(1, 3, 2), "1:3", True)],
)
def test_agent_is_torchruns_with_the_world_and_its_rendezvous(nodes: Nodes, size: str, meets: bool) -> None:
    command = agent_command(nodes, "127.0.0.2", "127.0.0.1:5", Path("/s/launch/node_0_1/reports.jsonl"), ["my.py"], 2)
    conf = "is_host=0,join_timeout=120,last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=5"
    assert command == [
        sys.executable, "-P", "-u", "-m", "frog.launch.torchrun.agent", "/s/launch/node_0_1/reports.jsonl",
        "--nnodes", size, "--nproc-per-node", str(nodes.ranks), "--local-addr", "127.0.0.2",
        "--max-restarts", "2", "--monitor-interval", "0.1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:5", "--rdzv-id", "launch",
        *(("--rdzv-conf", conf) if meets else ()),
        "--log-dir", "/s/launch/node_0_1", "my.py",
    ]  # fmt: skip


def test_default_options_of_a_world() -> None:
    options = Options()
    assert (options.deadline_s, options.idle_s, options.stuck_s, options.repair_s) == (60, 300, 300, 5)
    assert (options.restarts, options.replace, options.observe, options.hooks) == (0, 0, True, ("frog_observer",))
    assert (options.threads, options.runs, options.simulate_gpus, options.network) == (None, None, None, None)


def test_agents_reports_are_read_once_and_say_which_ranks_run(tmp_path: Path) -> None:
    agent = Agent(2, "node2", SimpleNamespace(pid=1), tmp_path / "reports.jsonl")  # type: ignore[arg-type]
    assert (list(agent.news()), agent.is_up()) == ([], False)
    world = {"event": "world", "ranks": [4, 5], "pids": [40, 50]}
    lines = [json.dumps(event) + "\n" for event in (world, {"event": "exit", "rank": 4})]
    agent.reports.write_text(lines[0] + lines[1][:9])  # the second is not complete
    assert list(agent.news()) == [{**world, "node": 2}]
    assert (agent.pids, agent.watched) == ({4: 40, 5: 50}, {4: 40, 5: 50})
    agent.reports.write_text("".join(lines))
    assert list(agent.news()) == [{"event": "exit", "rank": 4, "node": 2}]
    assert (agent.pids, agent.watched) == ({4: 40, 5: 50}, {5: 50})
    with agent.reports.open("a") as file:
        file.write(json.dumps({"event": "replace", "rank": 4, "pid": 44}) + "\n")
    assert len(list(agent.news())) == 1
    assert (agent.pids, agent.watched, list(agent.news())) == ({4: 44, 5: 50}, {4: 44, 5: 50}, [])
    (tmp_path / "reports.up").touch()
    assert agent.is_up()


def test_agent_is_idle_since_its_ranks_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, alive = 100.0, True
    monkeypatch.setattr("frog.launch.node_agents.time.monotonic", lambda: now)
    monkeypatch.setattr("frog.launch.node_agents.is_alive", lambda pid: alive and pid == 50)
    agent = Agent(2, "node2", SimpleNamespace(pid=1), tmp_path, pids={4: 40, 5: 50})  # type: ignore[arg-type]
    assert agent.idle_s(90.0) == 0.0
    now, alive = 107.0, False
    assert (agent.idle_s(90.0), agent.idle_s(105.0), agent.has_ranks()) == (7.0, 2.0, False)


# ---- a disk without room ---------------------------------------------------------------------------------------------


def test_line_that_was_written_in_part_is_removed_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [10, 10**6, 10**6]

    class Small:
        """A file on a disk that takes only so many bytes of a write."""

        def __init__(self, path: Path, mode: str, buffering: int) -> None:
            self._file = open(path, mode, buffering=buffering)  # noqa: SIM115

        def __enter__(self) -> Small:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            return self._file.write(data[: room.pop(0)])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    folder = RunFolder(tmp_path / "run")
    journal = Journal(tmp_path, folder)
    monkeypatch.setattr(launch_record, "open", Small, raising=False)
    journal.record("end", code=1, network=None)
    assert folder.launcher_events.read_text() == ""
    journal.record("end", code=2, network=None)
    assert [event["code"] for event in events(folder)] == [1, 2]
    journal.look_for_folder()  # nothing is written twice
    assert (len(events(folder)), room) == (2, [10**6])
    with folder.launcher_events.open("a") as file:
        file.write("{")  # a launcher was killed
    journal.record("end", code=3, network=None)
    *_, torn, last = folder.launcher_events.read_text().splitlines()
    assert (torn, json.loads(last)["code"]) == ("{", 3)
