"""`frog plan simulate`: its run folder, read like a real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frog.cli import main
from frog.core.errors import UsageError
from frog.diagnose.rules import diagnose
from frog.plan.simulate.trace import MOST_EVENTS, Span, Trace
from frog.runs import read_run
from frog.runs.folder import RunFolder
from frog.runs.schema import CollectiveEvent, SpanEvent, StepEvent
from frog.view.report import render_report

WORDS = [
    "plan", "simulate", str(Path(__file__).parents[3] / "config" / "llama3_8b.json"),
    "--cluster", "h100x8", "--micro-batch", "1", "--steps", "3", "--nodes", "2",
]  # fmt: skip
PIPELINE = ["--tp", "2", "--pp", "4", "--global-batch", "16"]
SHARDED = ["--zero", "3", "--global-batch", "16"]


def test_simulated_run_is_read_like_a_real_one_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "runs" / "simulated")
    assert main([*WORDS, *PIPELINE, "--jitter", "0.02", "--to", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SIMULATED")
    run = read_run(folder)
    assert not run.problems
    assert run.record is not None
    assert run.record.step == 3
    rank = run.ranks[5]
    assert sum(event.phase == "forward" for event in rank.of(SpanEvent)) == 3 * 8
    assert {event.op for event in rank.of(CollectiveEvent)} == {"all_reduce", "recv", "send", "reduce_scatter"}
    steps = [event.end_ns for event in rank.of(StepEvent)]
    assert f"{(steps[1] - steps[0]) / 1e9:.3g}" in out
    assert diagnose(folder).finding.startswith("simulated run: healthy: 3 steps by 16 ranks")
    assert "Simulated run: no GPU ran this" in render_report(folder)
    assert main(["runs", "--runs", str(folder.path.parent)]) == 0
    assert "completed, simulated" in capsys.readouterr().out


@pytest.mark.parametrize("layout", [PIPELINE, SHARDED], ids=["pipeline", "sharded"])
@pytest.mark.parametrize(
    ("disturbance", "fault", "rank"),
    [(["--slow", "9:5"], "slow", 9), (["--lose", "9@2"], "kill", 9), (["--cut", "1@2"], "cut", 8)],
    ids=["straggler", "lost rank", "cut node"],
)
def test_diagnosis_names_the_simulated_disturbance(
    layout: list[str], disturbance: list[str], fault: str, rank: int, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS, *layout, *disturbance, "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert (found.fault, found.rank) == (fault, rank)
    assert folder.read_run_json().count("train", "steps") == 3


def test_simulated_run_of_one_lost_rank_has_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert main([*WORDS[:-2], "--gpus", "1", "--global-batch", "1", "--lose", "0@2", "--to", str(folder.path)]) == 0
    found = diagnose(folder)
    assert (found.fault, found.rank, found.step) == ("kill", 0, 2)


def test_trace_that_is_too_large_for_a_folder_is_refused() -> None:
    trace, now = Trace([[]], num_ranks=MOST_EVENTS), np.zeros(1)
    trace.add(0, Span(1, "forward", 0, now, now))
    with pytest.raises(UsageError, match="more than 2,000,000 events"):
        trace.add(0, Span(1, "backward", 0, now, now))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--slow", "16:2"], "rank 16: ranks are 0 to 15"),
        (["--cut", "2@1"], "node 2: nodes are 0 to 1"),
        (["--lose", "3@9"], "step 9 is not one of the 3 steps"),
        (["--steps", "9999999"], "9,999,999 steps: must be at most 1,000"),
        (["--to", "."], "already exists"),
        (["--pp", "4", "--global-batch", "4"], "1 micro-batches for 4 stages"),
    ],
)
def test_impossible_disturbance_is_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--slow", "3"], ["--slow", "3:0.5"], ["--lose", "3:1"], ["--jitter", "nan"]])
def test_mistyped_disturbance_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*WORDS, *words])
    assert words[1] in capsys.readouterr().err
