"""A trial's end, and a campaign's course, without worlds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.core.config.faults import Fault
from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder
from frog.measure.chaos import trial
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
    assert (verdict.found is found) == diagnosed


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
    assert (verdict.recovered, verdict.found) == (True, found if met else None)
    assert verdict.from_step == (2 if met and kind == "kill" else None)
    how = ("resumed", "restarted")[restarts]
    assert verdict.continuation == ("" if verdict.from_step is None else f"{how} at step 2")
    assert 0 < verdict.seconds < 60


def test_diagnosis_is_shown_with_the_fields_that_it_has() -> None:
    assert Verdict(KILL, 0).seen == ""
    found = Diagnosis("kill", "", rank=0, step=0, phase="data")
    assert Verdict(KILL, 0, found=found).seen == "kill rank=0 step=0 phase=data"
    assert Verdict(KILL, 0, found=Diagnosis("none", "", step=3)).seen == "none step=3"


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
    assert "stopped: 1 of 3 faults tested: 1 handled correctly, 0 not" in capsys.readouterr().out
    assert Campaign(SETTING, None, 7, tmp_path / "t").summary() == "0 faults"
    assert "--campaign all --seed 7 " in Campaign(SETTING, None, 7, tmp_path / "t").table()
