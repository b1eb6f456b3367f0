"""A trial's end, and a campaign's course, without worlds."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.cli import main
from frog.core.config import load_run_config
from frog.core.config.faults import Fault
from frog.core.errors import LaunchError, RunError
from frog.core.runs.folder import RunFolder
from frog.measure.chaos import sandbox, trial
from frog.measure.chaos.campaign import Campaign
from frog.measure.chaos.trial import Setting, Verdict
from frog.observe.diagnose.diagnosis import Diagnosis

SETTING = Setting(("train", "tiny.toml"), ("--nproc", "2"), 5.0, 10.0)
KILL, SLOW = Fault("kill", 1, 3, "reduce"), Fault("slow", 1, 3, "data", seconds=3.0)
SAID = "\nerror: rank 1 was killed by SIGKILL"


def test_times_follow_from_the_deadline_and_the_timeout() -> None:
    assert (SETTING.leave_s, SETTING.end_s) == (35.0, 260.0)


@pytest.mark.parametrize(
    ("fault", "restarts", "code", "took_s", "expected", "diagnosed"),
    [
        (KILL, 0, 137, 35.0, [], True),
        (KILL, 0, 137, 36.0, ["36 s until all ranks exited; at most 35 s"], True),
        (KILL, 0, 0, 2.0, ["exit code 0"], True),
        (KILL, 1, 0, 2.0, [], False),
        (KILL, 1, 137, 2.0, ["exit code 137"], False),
        (SLOW, 0, 0, 99.0, [], False),  # it ends nothing
        (SLOW, 0, 1, 99.0, ["exit code 1"], False),
    ],
)
def test_world_must_end_with_an_error_in_time_unless_it_restarts(
    fault: Fault,
    restarts: int,
    code: int,
    took_s: float,
    expected: list[str],
    diagnosed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Diagnosis("kill", "it was")
    monkeypatch.setattr(trial, "diagnose", lambda folder: found)
    monkeypatch.setattr(trial, "word_problems", lambda fault, output: [] if output == SAID else ["no words"])
    verdict = Verdict(fault, restarts, code=code, output=SAID)
    launch: Any = SimpleNamespace(end_s=1000.0 + took_s)
    trial._check_end(verdict, SETTING, RunFolder(tmp_path), launch, 1000.0)
    assert verdict.problems == expected
    assert verdict.left_s == (took_s if fault is KILL else None)
    assert (verdict.diagnosis is found) == diagnosed


def test_world_that_restarts_has_ended_when_the_next_begins(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.events.mkdir()
    same = {"event": "world", "node": 0, "node_rank": 0, "ranks": [0, 1], "world_size": 2, "pids": [1, 2]}
    same |= {"mono_ns": 1, "master_addr": "127.0.0.1", "master_port": 1}
    worlds = [{**same, "attempt": attempt, "unix_ns": (900 + 110 * attempt) * 10**9} for attempt in (0, 1, 2)]
    (folder.events / "launcher.jsonl").write_text("".join(json.dumps(world) + "\n" for world in worlds))
    assert len(trial.read_launcher(folder).events) == 3
    verdict = Verdict(KILL, 1, code=0)
    trial._check_end(verdict, SETTING, folder, SimpleNamespace(end_s=9000.0), 1000.0)  # type: ignore[arg-type]
    assert (verdict.left_s, verdict.problems) == (10.0, [])


@pytest.mark.parametrize(
    ("kind", "restarts", "code", "met", "again", "problems"),
    [
        ("kill", 0, 137, True, 0, ["it ended wrongly", "wrong step"]),
        ("kill", 0, 137, True, 3, ["it ended wrongly", "resumed: exit code 3", "wrong step"]),
        ("kill", 1, 137, True, None, ["it ended wrongly", "wrong step"]),  # the launcher restarted it
        ("kill", 0, 0, True, None, ["it ended wrongly", "wrong step"]),
        ("kill", 0, 137, False, 0, ["the fault never occurred"]),
        ("slow", 0, 0, True, None, ["it ended wrongly"]),  # nothing is resumed
    ],
)
def test_trial_resumes_a_world_that_failed_and_collects_all_problems(
    kind: str,
    restarts: int,
    code: int,
    met: bool,
    again: int | None,
    problems: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[tuple[list[str], int, list[str]]] = []

    class Launched:
        def __init__(self, setting: Setting, words: list[str], restarts: int, scratch: Path, env: dict[str, str]):
            launched.append((words, restarts, list(env)))
            self.code, self.output, self.problems = (code, again)[len(launched) - 1], f"said {len(launched)};", []

        def run(self, folder: RunFolder) -> None:
            assert folder.path.exists() == (len(launched) == 2)
            folder.checkpoints.mkdir(parents=True, exist_ok=True)

    found = Diagnosis("kill", "it was")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/x/old").mkdir(parents=True)
    monkeypatch.setattr(trial, "Launch", Launched)
    monkeypatch.setattr(trial, "met_faults", lambda path: {0: 1000.0} if met else {})
    monkeypatch.setattr(trial, "_check_end", lambda verdict, *_: verdict.problems.append("it ended wrongly"))
    monkeypatch.setattr(trial, "recovery_problems", lambda oracle, folder: [])
    monkeypatch.setattr(trial, "resume_problems", lambda fault, folder: ["wrong step"])
    monkeypatch.setattr(trial, "resumed_from", lambda folder: 2)
    monkeypatch.setattr(trial, "diagnose", lambda folder: found)
    monkeypatch.setattr(trial, "diagnosis_problems", lambda *_: [])
    verdict = Verdict(SLOW if kind == "slow" else KILL, restarts)
    trial.run_trial(SETTING, verdict, "x", None)  # type: ignore[arg-type]
    words = ["train", "tiny.toml", "--set", "name=x"]
    expected = [(words, restarts, ["FROG_OBSERVER"]), *([] if again is None else [([*words, "--continue"], 0, [])])]
    assert launched == expected
    assert verdict.problems == problems
    assert (verdict.code, verdict.output) == (code, "said 1;said 2;" if again is not None else "said 1;")
    assert (verdict.recovered, verdict.diagnosis) == (True, found if met else None)
    assert verdict.from_step == (2 if met and kind == "kill" else None)
    how = ("resumed", "restarted")[restarts]
    assert verdict.continuation == ("" if verdict.from_step is None else f"{how} at step 2")
    assert 0 < verdict.seconds < 60


def test_trial_that_has_not_run_claims_nothing() -> None:
    verdict = Verdict(KILL, 0)
    assert (verdict.seconds, verdict.code, verdict.left_s, verdict.diagnosis, verdict.from_step) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert (verdict.recovered, verdict.problems, verdict.output, verdict.extras) == (False, [], "", [])


def test_diagnosis_is_shown_with_the_fields_that_it_has() -> None:
    assert Verdict(KILL, 0).seen == ""
    found = Diagnosis("kill", "", rank=0, step=0, phase="data")
    assert Verdict(KILL, 0, diagnosis=found).seen == "kill rank=0 step=0 phase=data"
    assert Verdict(KILL, 0, diagnosis=Diagnosis("none", "", step=3)).seen == "none step=3"


# ---- a campaign ------------------------------------------------------------------------------------------------------


class Played(Campaign):
    """A campaign whose trials leave a run folder, and end as their number says."""

    def plan(self, *args: Any) -> Sequence[Verdict]:
        return [Verdict(KILL, 0, seconds=seconds) for seconds in (3.0, 5.0, 100.0)][: self.count]

    def meet(self, verdict: Verdict, name: str, oracle: Any) -> None:
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        (folder / "run.json").touch()
        verdict.output = "what it said"
        verdict.left_s = verdict.seconds / 2
        if name.endswith("002"):
            verdict.problems.append("weights differ")
        elif name.endswith("003"):
            raise RunError("unreadable")
        verdict.recovered = not verdict.problems


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 1), (3, 1)])
def test_campaign_keeps_the_runs_of_failed_trials_and_their_problems(
    count: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = Played(SETTING, count, 7, tmp_path / "table.txt")
    assert campaign.run(None, ["kill"], lambda kind: True) == code  # type: ignore[arg-type]
    left = {path.name: path / "chaos.txt" for path in (tmp_path / "runs").iterdir()}
    assert sorted(left) == ["chaos-7-002", "chaos-7-003"][: count - 1]
    for name, problem in (("chaos-7-002", "weights differ"), ("chaos-7-003", "unreadable")):
        if name in left:
            assert left[name].read_text().startswith(f"{problem}")
            assert left[name].read_text().endswith("\n\nwhat it said")
    said, table = capsys.readouterr().out, (tmp_path / "table.txt").read_text()
    assert table == campaign.table()
    passed = min(count, 1)
    assert f"{count} of {count} faults tested: {passed} handled correctly, {count - passed} not" in said
    median, total = {1: ("3.0", 0), 2: ("4.0", 0), 3: ("5.0", 2)}[count]
    assert f"time per trial: {median} s (median), {total} min in total" in said
    most = {1: 1.5, 2: 2.5, 3: 50.0}[count]
    assert f": {float(median) / 2:.1f} s (median), {most:.1f} s at most" in said
    assert f"recovered to the undisturbed run's weights: 1 of {count}" in said
    for number in range(1, count + 1):
        assert f"\n{number:4}  kill rank=1 step=3 phase=reduce" in f"\n{table}"


def test_interrupted_campaign_says_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Played):
        def meet(self, verdict: Verdict, name: str, oracle: Any) -> None:
            if name.endswith("002"):
                raise KeyboardInterrupt
            super().meet(verdict, name, oracle)

    monkeypatch.chdir(tmp_path)
    campaign = Interrupted(SETTING, 3, 7, tmp_path / "table.txt")
    with pytest.raises(KeyboardInterrupt):
        campaign.run(None, ["kill"], lambda kind: True)  # type: ignore[arg-type]
    done = "1 of 3 faults tested: 1 handled correctly, 0 not"
    assert f"stopped: {done}" in capsys.readouterr().out
    assert done in (tmp_path / "table.txt").read_text()
    assert Campaign(SETTING, None, 7, tmp_path / "t").summary() == "0 faults"
    assert "--campaign all --seed 7 " in Campaign(SETTING, None, 7, tmp_path / "t").table()


# ---- one launch, and the run into which faults are injected ----------------------------------------------------------


def test_launch_is_a_frog_run_with_the_settings_of_the_campaign(tmp_path: Path) -> None:
    launch = trial.Launch(SETTING, ["train", "tiny.toml"], 2, tmp_path, {"A": "b"})
    assert launch._command == [
        sys.executable, "-P", "-m", "frog.cli", "run", "--nproc", "2", "--deadline", "5", "--restarts", "2",
        "--", "train", "tiny.toml",
    ]  # fmt: skip
    assert (launch.code, launch.output, launch.problems) == (None, "", [])


class Ended:
    """A program that has ended, or not, without a process."""

    def __init__(self, code: int | None, all_gone: bool = True, left: tuple[str, ...] = ()) -> None:
        self._code, self._all_gone, self._left = code, all_gone, left
        self.ended, self.waited = 0, list[float]()
        self.output = "said"

    def __call__(self, command: list[str], scratch: Path, env: dict[str, str]) -> Ended:
        return self

    def __enter__(self) -> Ended:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, seconds: float) -> int | None:
        self.waited.append(seconds)
        return self._code

    def end(self, grace_s: float = 0.0) -> None:
        self.ended += 1

    def all_gone(self, within_s: float) -> bool:
        self.waited.append(within_s)
        return self._all_gone

    def left_files(self) -> list[str]:
        return [*self._left]


@pytest.mark.parametrize(
    ("program", "problems", "ended"),
    [
        (Ended(0), [], 0),
        (Ended(137, left=("a", "b")), ["left behind: a", "left behind: b"], 0),
        (Ended(None), ["did not end within 260 s"], 1),
        (Ended(0, all_gone=False), ["processes left behind: unknown"], 0),
    ],
)
def test_launch_must_end_in_time_and_leave_nothing(
    program: Ended, problems: list[str], ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "Program", program)
    launch = trial.Launch(SETTING, [], 0, tmp_path, {})
    launch.run(RunFolder(tmp_path / "run"))
    assert (launch.code, launch.output, launch.problems, program.ended) == (program._code, "said", problems, ended)
    assert program.waited == [260.0, 10.0]
    assert abs(launch.end_s - time.time()) < 60


def test_interrupted_launch_has_a_minute_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Ended):
        def wait(self, seconds: float) -> int | None:
            raise KeyboardInterrupt

        def end(self, grace_s: float = 0.0) -> None:
            self.waited.append(grace_s)

    program = Interrupted(0)
    monkeypatch.setattr(trial, "Program", program)
    launch = trial.Launch(SETTING, [], 0, tmp_path, {})
    with pytest.raises(KeyboardInterrupt):
        launch.run(RunFolder(tmp_path / "run"))
    assert (program.waited, launch.code, launch.problems) == ([60.0], None, [])


@pytest.mark.parametrize(("world", "is_probed"), [(("--nproc", "2"), True), (("--network", "rate=1mbit"), False)])
def test_port_of_a_world_must_be_free_after_it(
    world: tuple[str, ...], is_probed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses inside a simulated network are not this machine's."""
    folder = RunFolder(tmp_path)
    folder.events.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = {"event": "world", "node": 0, "node_rank": 0, "ranks": [0, 1], "world_size": 2, "mono_ns": 1}
        told |= {"pids": [1, os.getpid()], "unix_ns": 1, "attempt": 0, "master_port": port}
        lines = [json.dumps({**told, "master_addr": address}) for address in ("127.0.0.1", "127.0.0.1", "node0")]
        monkeypatch.setattr(
            trial, "Program", lambda *_: folder.launcher_events.write_text("\n".join(lines) + "\n") and Ended(0, False)
        )
        launch = trial.Launch(replace(SETTING, world=world), [], 0, tmp_path, {})
        launch.run(folder)
    busy = [f"port 127.0.0.1:{port} is not free: Address already in use"]
    assert launch.problems[1:] == (busy if is_probed else [])
    assert launch.problems[0].startswith("processes left behind: ")
    assert set(launch.problems[0].rpartition(": ")[2].split(", ")) == {"1", str(os.getpid())}


def test_tiny_run_has_its_files_and_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[list[str], float]] = []
    code = 0

    def run(command: list[str], capture_output: bool, text: bool, timeout: float) -> Any:
        assert capture_output
        assert text
        commands.append((command, timeout))
        return SimpleNamespace(returncode=code, stderr="no room\n")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sandbox.subprocess, "run", run)
    assert sandbox.tiny_program() == ["train", "chaos/tiny.toml"]
    assert json.loads(Path("chaos/tiny.json").read_text()) == sandbox.TINY_MODEL
    assert sandbox.TINY_MODEL["hidden_size"] == 4 * 8
    documents = Path("chaos/tiny.txt").read_text().split("\n\n")
    assert (len(documents), documents[0]) == (2000, "0 ships left the port; 0 sank, and 0 came home on day 0.")
    assert documents[-1] == "1999 ships left the port; 4 sank, and 4 came home on day 8.\n"
    words = ["data", "prepare", "--corpus", "chaos/tiny.txt", "--name", "chaos-tiny", "--vocab-size", "300"]
    assert commands == [([sys.executable, "-P", "-m", "frog.cli", *words], 300)]
    Path("chaos/tiny.toml").write_text("the user's own")
    Path("data/chaos-tiny").mkdir(parents=True)
    sandbox.tiny_program()
    assert (len(commands), Path("chaos/tiny.toml").read_text()) == (1, "the user's own")
    Path("data/chaos-tiny").rmdir()
    code = 1
    with pytest.raises(LaunchError) as caught:
        sandbox.tiny_program()
    assert caught.value.what == "the tiny corpus could not be prepared\nno room"


def test_default_run_of_faults_is_the_shortest_with_all_phases(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(sandbox.TINY_MODEL))
    (tmp_path / "tiny.toml").write_text(sandbox._RUN_FILE)
    config = load_run_config(tmp_path / "tiny.toml")
    assert (config.train.steps, config.train.global_batch_size, config.train.timeout_s) == (3, 8, 10)
    assert (config.eval.every, config.checkpoint.every, config.data.sequence_length) == (2, 1, 16)
    assert config.world_problems(4) == []


def test_list_shows_each_kind_with_its_phases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("  disk     the disk is full (ENOSPC) while the rank writes the step's checkpoint")
    assert lines[place + 1] == "             in checkpoint; default: checkpoint"
    place = lines.index("  kill     the process is killed (SIGKILL), as if the machine had run out of memory")
    assert lines[place + 1] == "             in any phase; default: reduce"
    assert "  slow     from then on the process takes `factor` (2) times as long" in lines
    assert lines[-1] == 'frog chaos --nproc 2 --fault "kill rank=1 collective=40" -- my.py'
