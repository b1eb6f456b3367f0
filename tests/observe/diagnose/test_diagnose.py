"""Faults are distinguished by the files that they leave in a run folder."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from failed_run import GRADIENT, SAMPLES, SCORE, UNIX_NS, FailedRun, lost
from harness import LIMIT_S
from run_files import run_json

from frog.core.errors import (
    CheckpointError,
    ConfigError,
    Damage,
    DamageCause,
    ErrorFacts,
    FrogError,
    NonFiniteError,
    NotFinite,
)
from frog.core.files import write_json
from frog.core.runs.event_schema import CollectiveEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.run import is_active, read_run
from frog.observe.diagnose.diagnosis import Diagnosis, clock, diagnosis_text
from frog.observe.diagnose.run_diagnosis import diagnose


@pytest.fixture
def run(tmp_path: Path) -> FailedRun:
    """Return four ranks that have taken four steps; in the fifth, all except rank 2 wait in reduce."""
    return until_step_5(FailedRun(tmp_path / "run"))


def until_step_5(run: FailedRun, odd: int = 2) -> FailedRun:
    run.start()
    run.steps(1, 4)
    for rank in run.ranks:
        run.up_to(rank, 5, "forward" if rank == odd else "reduce")
    return run


def found(run: FailedRun, code: int = 1) -> Diagnosis:
    """Return the diagnosis after the launcher's end; check its text, and that its facts do not depend on texts."""
    run.end(code)
    result = diagnose(run.folder)
    text = diagnosis_text("run", result)
    assert result.finding in text
    assert all(line in text for line in result.evidence)
    assert result.advice
    run.reword()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrogError, "__init__", say_quak)
        assert facts(diagnose(run.folder)) == facts(result)
    return result


def say_quak(error: FrogError, what: str, hint: str | None = None, facts: ErrorFacts | None = None) -> None:
    """Change the text of every error that the diagnosis itself raises."""
    error.what, error.hint, error.facts = "quak", "quak", facts or ErrorFacts()


def facts(result: Diagnosis) -> tuple[object, ...]:
    """Return the facts of a diagnosis, without texts."""
    words = ("finding", "evidence", "advice", "also")
    own = {name: value for name, value in result.as_json().items() if name not in words}
    return own, *(facts(other) for other in result.also)


def place(result: Diagnosis) -> tuple[str, int | None, int | None, str | None]:
    return result.fault, result.rank, result.step, result.phase


OTHERS = (0, 1, 3)


# ---- one rank --------------------------------------------------------------------------------------------------------


def test_rank_that_raises_is_diagnosed(run: FailedRun) -> None:
    run.fail(2, KeyError("pond"))
    run.lose(*OTHERS)
    result = found(run)
    assert place(result) == ("raise", 2, 5, "forward")
    assert result.certain
    assert result.collective == "all_reduce of 4012 bytes over dp"
    assert "KeyError" in result.finding
    assert any("CommError" in line and "gloo" not in line for line in result.evidence)
    failed_ns = UNIX_NS + run.ranks[2].now_ns  # not when its agent noticed
    assert result.evidence[0].startswith(clock(failed_ns))


def test_config_error_on_all_ranks_is_a_usage_error(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    for rank in run.ranks:
        run.fail(rank, ConfigError("train.steps=-1: must be 1 or more", "--set train.steps=8"), code=2)
    result = found(run, 2)
    assert result.fault == "usage"
    assert "all ranks refused" in result.finding
    assert result.advice == "--set train.steps=8"


def test_out_of_memory_is_diagnosed(run: FailedRun) -> None:
    run.fail(2, MemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    run.lose(*OTHERS)
    result = found(run)
    assert place(result) == ("memory", 2, 5, "forward")
    assert result.collective == "all_reduce of 4012 bytes over dp"


def test_killed_rank_is_diagnosed(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -9)
    result = found(run)
    assert place(result) == ("kill", 2, 5, "forward")
    assert result.certain
    assert result.collective == "all_reduce of 4012 bytes over dp"
    assert "oom" in result.advice


def test_crashed_rank_is_diagnosed(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -11)
    result = found(run)
    assert place(result) == ("crash", 2, 5, "forward")
    assert "SIGSEGV" in result.finding


def test_stopped_rank_is_diagnosed(run: FailedRun) -> None:
    """The watchdog saw no heartbeat and killed it; only then did the others lose it."""
    run.hang(2, "silent", 15)
    run.exit(2, -9)
    run.lose(*OTHERS, after_s=15.2)
    result = found(run)
    assert place(result) == ("stop", 2, 5, "forward")
    assert result.certain


def test_rank_dead_before_watchdog_check_was_killed(run: FailedRun) -> None:
    """The rank's connections to its peers closed immediately, so it was killed, not stopped."""
    run.hang(2, "silent", 15)
    run.lose(*OTHERS, after_s=0.3)
    result = found(run)
    assert place(result) == ("kill", 2, 5, "forward")
    assert not result.certain


def test_killed_rank_is_diagnosed_although_peers_report_late(run: FailedRun) -> None:
    """The peers finished a checkpoint first, so the rank's heartbeat was old; but its connection had closed."""
    run.exit(2, -9)
    for rank in OTHERS:
        run.ranks[rank].now_ns += 10_000_000_000
    run.lose(*OTHERS, after_s=0.0)
    result = found(run)
    assert place(result) == ("kill", 2, 5, "forward")
    assert result.certain


def test_stopped_rank_is_diagnosed_although_peers_gave_up_before_the_watchdog(run: FailedRun) -> None:
    """The first rank timed out and left; the next one lost that rank, not the stopped one."""
    run.lose(1, 3, after_s=10, cause="timed_out")
    run.lose(0, after_s=10.1)
    run.hang(2, "silent", 15)
    run.exit(2, -9)
    result = found(run)
    assert place(result) == ("stop", 2, 5, "forward")
    assert result.certain


def test_stopped_rank_is_diagnosed_although_all_peers_gave_up_together(run: FailedRun) -> None:
    """A rank lost the connection to another that timed out, and reported it before that rank did."""
    run.lose(0, after_s=9.9)
    run.lose(1, 3, after_s=10, cause="timed_out")
    run.hang(2, "silent", 15)
    run.exit(2, -9)
    result = found(run)
    assert place(result) == ("stop", 2, 5, "forward")
    assert result.certain


def test_stopped_rank_is_diagnosed_without_watchdog(tmp_path: Path) -> None:
    run = until_step_5(FailedRun(tmp_path / "run", launcher=False))
    run.lose(*OTHERS, after_s=60, cause="timed_out")
    assert place(found(run)) == ("stop", 2, 5, "forward")


def test_killed_rank_is_diagnosed_without_launcher(tmp_path: Path) -> None:
    run = until_step_5(FailedRun(tmp_path / "run", launcher=False))
    run.lose(*OTHERS, after_s=0.3)
    result = found(run)
    assert place(result) == ("kill", 2, 5, "forward")
    assert not result.certain


def test_simultaneous_end_of_all_ranks_is_diagnosed(run: FailedRun) -> None:
    run.launcher = False  # it was killed too, so it reports no end
    result = found(run)
    assert result.fault == "gone"
    assert not result.certain


def test_rank_that_never_enters_collective_is_diagnosed(run: FailedRun) -> None:
    """The rank's heartbeat continues, in forward, while the others' collective times out."""
    run.lose(*OTHERS, after_s=60, cause="timed_out")
    run.ranks[2].now_ns = run.ranks[0].now_ns
    run.beat(2)
    run.exit(2, -15)
    result = found(run)
    assert place(result) == ("stuck", 2, 5, "forward")
    assert result.collective == "all_reduce of 4012 bytes over dp"


@pytest.mark.parametrize(
    ("culprits", "expected"),
    [
        ([NotFinite(rank=2, loss="2.1", grad_norm="nan", of_loss=False)], (2, "backward")),
        ([NotFinite(rank=1, loss="nan", grad_norm="nan", of_loss=True)], (1, "forward")),
        ([NotFinite(rank=3, loss="2.1", grad_norm="inf", of_loss=False)], (3, "backward")),
        ([], (None, "backward")),
    ],
)
def test_non_finite_loss_names_first_rank(
    run: FailedRun, culprits: list[NotFinite], expected: tuple[int | None, str]
) -> None:
    known = ErrorFacts(cause="not_finite", not_finite=tuple(culprits))
    for rank in run.ranks:
        run.enter(rank, 5, "optimize")
        run.fail(rank, NonFiniteError("step 5: the loss or the gradient is not finite", facts=known))
    result = found(run)
    assert (result.fault, result.step) == ("nan", 5)
    assert (result.rank, result.phase) == expected


def test_full_disk_is_diagnosed(run: FailedRun) -> None:
    """Rank 0 failed too, because rank 2 had left; the rank with the full disk comes first."""
    words = "checkpoint of step 4 could not be written to runs/run/checkpoints"
    run.fail(0, CheckpointError(words, facts=ErrorFacts(step=4)))
    full = CheckpointError(words, facts=ErrorFacts(cause="no_space", step=4))
    run.fail(2, full, after_s=1, code=-15)
    result = found(run)
    assert place(result) == ("disk", 2, 4, "checkpoint")


# ---- collectives -----------------------------------------------------------------------------------------------------


def different_call(
    run: FailedRun, odd: int, call: tuple[str, str, str, int], right: tuple[str, str, str, int] = GRADIENT
) -> Diagnosis:
    """Let rank `odd` call a different collective than the others, and gloo end it."""
    for rank in run.ranks:
        run.begin(rank, call if rank == odd else right)
    for rank in run.ranks:
        if rank == odd:
            run.exit(rank, -6)
        else:
            run.fail(rank, lost(right, rank, 0.2), 0.2)
    return found(run)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("odd", [0, 1])
def test_wrong_collective_size_is_diagnosed(tmp_path: Path, num_ranks: int, odd: int) -> None:
    """With two ranks there is no majority: earlier steps decide."""
    run = until_step_5(FailedRun(tmp_path / "run", num_ranks), odd)
    run.up_to(odd, 5, "reduce")
    result = different_call(run, odd, ("reduce", "all_reduce", "dp", 2010))
    assert place(result) == ("shape", odd, 5, "reduce")
    assert result.certain
    assert result.collective == "all_reduce of 2010 bytes over dp"


@pytest.mark.parametrize("odd", [0, 1])
def test_wrong_collective_size_in_first_step_is_diagnosed(tmp_path: Path, odd: int) -> None:
    """There is no earlier step: the size of the model decides."""
    run = FailedRun(tmp_path / "run", 2)
    run.start()
    for rank in run.ranks:
        run.up_to(rank, 1, "reduce")
    assert place(different_call(run, odd, ("reduce", "all_reduce", "dp", 2010))) == ("shape", odd, 1, "reduce")


@pytest.mark.parametrize("odd", [0, 1])
def test_skipped_last_collective_is_diagnosed(tmp_path: Path, odd: int) -> None:
    """The other rank has reached the final barrier."""
    run = FailedRun(tmp_path / "run", 2)
    run.start()
    run.steps(1, 7)
    for rank in run.ranks:
        run.up_to(rank, 8, None)
        run.do(rank, 8, "evaluate", SCORE)
    run.enter(1 - odd, 8, "checkpoint")
    run.begin(1 - odd, SAMPLES)
    run.do(odd, 8, "checkpoint")
    run.enter(odd, 8, None)
    run.begin(odd, ("", "barrier", "world", 0))
    for rank, call in ((odd, ("", "barrier", "world", 0)), (1 - odd, SAMPLES)):
        run.fail(rank, lost(call, rank, 10, "timed_out"), 10)
    assert place(found(run)) == ("missing", odd, 8, "checkpoint")


@pytest.mark.parametrize("odd", [0, 1])
def test_wrong_collective_size_in_checkpoint_is_diagnosed(tmp_path: Path, odd: int) -> None:
    """Two steps of sixteen samples, eight bytes each, or half of that; the first checkpoint has none before it."""
    run = FailedRun(tmp_path / "run", 2)
    run.start()
    for rank in run.ranks:
        run.up_to(rank, 2, None)
        run.enter(rank, 2, "checkpoint")
    result = different_call(run, odd, ("checkpoint", "all_gather", "world", 64 + 128), SAMPLES)
    assert place(result) == ("shape", odd, 2, "checkpoint")
    assert result.certain


def test_majority_of_ranks_is_taken_as_right(tmp_path: Path) -> None:
    """This holds even if the call of the one rank looks more usual."""
    run = FailedRun(tmp_path / "run")
    run.start()
    for rank in run.ranks:
        run.up_to(rank, 1, "reduce")
        run.begin(rank, GRADIENT if rank == 1 else ("reduce", "all_reduce", "dp", 3000))
    run.exit(1, -6)
    assert place(found(run)) == ("shape", 1, 1, "reduce")


@pytest.mark.parametrize("phase", ["data", "forward", "reduce", "zero"])
@pytest.mark.parametrize("odd", [0, 1])
def test_extra_collective_is_diagnosed(tmp_path: Path, phase: str, odd: int) -> None:
    run = until_step_5(FailedRun(tmp_path / "run", 2), odd)
    if phase == "zero":
        run.up_to(1 - odd, 5, None)
        run.up_to(odd, 5, "zero")
        run.begin(odd, ("zero", "all_reduce", "world", 4))
        run.up_to(1 - odd, 6, "reduce")
        run.lose(1 - odd)
        run.exit(odd, -6)
        result = found(run)
    else:
        run.up_to(odd, 5, phase)
        result = different_call(run, odd, ("", "all_reduce", "world", 4))
    assert place(result) == ("extra", odd, 5, phase)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_missing_collective_is_diagnosed(tmp_path: Path, num_ranks: int) -> None:
    """Rank 1 skips the reduction of step 5; its next one, of step 6, matches instead, and so on to the end."""
    run = FailedRun(tmp_path / "run", num_ranks)
    run.start()
    run.steps(1, 4)
    others = [rank for rank in run.ranks if rank != 1]
    for name in ("data", "forward", "backward", "reduce", "optimize", "zero"):
        run.do(1, 5, name)
    run.steps(6, 8, 1)
    run.steps(5, 7, *others)
    run.begin(1, ("", "barrier", "world", 0))
    for rank in others:
        run.up_to(rank, 8, "reduce")
    run.lose(*others, after_s=20, cause="timed_out")
    result = found(run)
    assert place(result) == ("missing", 1, 5, "reduce")
    assert result.certain


def test_missing_collective_before_another_due_one_is_diagnosed(tmp_path: Path) -> None:
    """Both calls occur in every run: the rank that is further ahead has skipped one."""
    run = FailedRun(tmp_path / "run", 2)
    run.start()
    run.steps(1, 7)
    run.up_to(0, 8, "reduce")
    for name in ("data", "forward", "backward", "reduce", "optimize", "zero"):
        run.do(1, 8, name)
    run.enter(1, 8, "evaluate")
    run.lose(0)
    run.lose(1, call=SCORE)
    assert place(found(run)) == ("missing", 1, 8, "reduce")


TIED = ("reduce", "all_reduce", "tied", 4 * 10 * 8)
AGREED = ("reduce", "all_reduce", "world", 4 * 2)
NORM = ("optimize", "all_reduce", "pp", 8)


def pipeline(path: Path, steps: int, pp: int = 2, **strategy: str) -> FailedRun:
    """Return pipeline ranks that are all in the reduction of the step after so many."""
    config = {"model": {"vocab_size": 10, "hidden_size": 8}, "strategy": strategy}
    run = FailedRun(path, pp, mesh={"pp": pp, "dp": 1}, config=config)
    run.start()
    for step in range(1, steps + 1):
        for rank in run.ranks:
            run.do(rank, step, "reduce", *([TIED] if rank in (0, pp - 1) else []), AGREED)
            run.do(rank, step, "optimize", NORM)
            run.do(rank, step, "zero")
    for rank in run.ranks:
        run.do(rank, steps + 1, "backward")
        run.enter(rank, steps + 1, "reduce")
    return run


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("odd", [0, 1])
def test_wrong_size_of_tied_embedding_is_diagnosed(tmp_path: Path, steps: int, odd: int) -> None:
    run = pipeline(tmp_path / "run", steps)
    result = different_call(run, odd, ("reduce", "all_reduce", "tied", TIED[3] // 2), TIED)
    assert place(result) == ("shape", odd, steps + 1, "reduce")
    assert result.certain
    assert result.collective == "all_reduce of 160 bytes over tied"


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("odd", [0, 1])
def test_skipped_tied_embedding_is_diagnosed(tmp_path: Path, steps: int, odd: int) -> None:
    """This also works in the first step: the next call in the reduction is known."""
    result = different_call(pipeline(tmp_path / "run", steps), odd, AGREED, TIED)
    assert place(result) == ("missing", odd, steps + 1, "reduce")
    assert result.certain
    assert result.collective == "all_reduce of 320 bytes over tied"


def test_tied_embedding_follows_overlapped_reduction(tmp_path: Path) -> None:
    result = different_call(pipeline(tmp_path / "run", 0, name="ddp", reduction="overlapped"), 1, TIED, AGREED)
    assert place(result) == ("missing", 1, 1, "reduce")
    assert result.collective == "all_reduce of 8 bytes over world"


def test_skipped_collective_differs_from_same_size_on_other_axis(tmp_path: Path) -> None:
    """One rank sends the norm's eight bytes over the pipeline, the other its losses over the world."""
    run = pipeline(tmp_path / "run", 0)
    for rank in run.ranks:
        run.call(rank, TIED)
    run.do(1, 1, "reduce")
    run.enter(1, 1, "optimize")
    assert place(different_call(run, 1, NORM, AGREED)) == ("missing", 1, 1, "reduce")


@pytest.mark.parametrize("odd", [0, 3])
def test_only_pipeline_ends_have_tied_embedding(tmp_path: Path, odd: int) -> None:
    run = pipeline(tmp_path / "run", 2, pp=4)
    half = ("reduce", "all_reduce", "tied", TIED[3] // 2)
    for rank in run.ranks:
        run.begin(rank, AGREED if rank in (1, 2) else half if rank == odd else TIED)
    for rank in run.ranks:
        if rank != odd:
            run.fail(rank, lost(AGREED if rank in (1, 2) else TIED, rank, 0.2), 0.2)
    run.exit(odd, -6)
    assert place(found(run)) == ("shape", odd, 3, "reduce")


def test_all_to_all_sizes_may_differ(run: FailedRun) -> None:
    for rank in run.ranks:
        run.call(rank, ("", "all_to_all", "dp", 100 + rank))
    run.lose(*OTHERS)
    run.exit(2, -9)
    assert found(run).fault == "kill"


def test_calls_after_a_gap_are_not_compared(run: FailedRun) -> None:
    """Rank 0 began a collective and never reported its end: later calls do not line up."""
    run.ranks[0].seq += 1
    run.call(0, SCORE)
    run.lose(1, 3)
    run.exit(2, -9)
    assert found(run).fault == "kill"


# ---- nodes and network -----------------------------------------------------------------------------------------------


def two_nodes(path: Path) -> FailedRun:
    run = FailedRun(path, num_nodes=2)
    run.start()
    run.steps(1, 4)
    for rank in run.ranks:
        run.up_to(rank, 5, "reduce")
    return run


def test_lost_node_is_diagnosed(tmp_path: Path) -> None:
    run = two_nodes(tmp_path / "run")
    run.tell("node", run.ranks[2].now_ns + 100_000_000, node=1, host="node1", code=-9)
    run.lose(0, 1)
    result = found(run)
    assert (result.fault, result.node_rank, result.step, result.phase) == ("node", 1, 5, "reduce")
    assert "ranks 2 and 3" in result.finding


def test_lost_node_with_one_silent_rank_uses_the_other_ranks_position(tmp_path: Path) -> None:
    """The report uses the rank of the node whose position is known, not the silent one."""
    run = FailedRun(tmp_path / "run", num_ranks=2)
    run.start()
    run.enter(1, 0, "evaluate")
    for path in (run.folder.rank_events(0), run.folder.heartbeat(0)):
        path.unlink()
    run.tell("node", run.ranks[1].now_ns + 100_000_000, node=0, host="node0", code=-9)
    result = found(run)
    assert (*place(result), result.node_rank) == ("node", 1, 0, "evaluate", 0)


def test_lost_node_before_first_event_is_diagnosed(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run", num_ranks=2)
    run.start()
    for rank in run.ranks:
        for path in (run.folder.rank_events(rank), run.folder.heartbeat(rank)):
            path.unlink()
    run.tell("node", run.ranks[1].now_ns + 100_000_000, node=0, host="node0", code=-9)
    result = found(run)
    assert (*place(result), result.node_rank) == ("node", 0, None, None, 0)
    assert "was lost before its first step, and ranks 0 and 1 with it" in result.finding


def test_node_ended_with_the_world_is_not_the_fault(tmp_path: Path) -> None:
    run = two_nodes(tmp_path / "run")
    run.exit(3, -9)
    run.lose(0, 1)
    run.tell("node", run.ranks[3].now_ns + 60_000_000_000, node=1, host="node1", code=-9)
    assert place(found(run)) == ("kill", 3, 5, "reduce")


def test_node_whose_agent_exited_is_not_the_fault(tmp_path: Path) -> None:
    run = two_nodes(tmp_path / "run")
    run.fail(3, KeyError("pond"))
    run.tell("node", run.ranks[3].now_ns + 1_000_000_000, node=1, host="node1", code=1)
    run.lose(0, 1, 2)
    assert place(found(run)) == ("raise", 3, 5, "reduce")


def test_lost_node_is_diagnosed_without_launcher(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run", num_nodes=2, launcher=False)
    run.start()
    run.steps(1, 4)
    for rank in run.ranks:
        run.up_to(rank, 5, "reduce")
    run.lose(0, 1)
    result = found(run)
    assert (result.fault, result.node_rank) == ("node", 1)


def test_network_cut_between_two_nodes_is_diagnosed(tmp_path: Path) -> None:
    run = two_nodes(tmp_path / "run")
    run.lose(0, 1, after_s=10, cause="timed_out")
    for rank in (2, 3):
        run.begin(rank, GRADIENT)
        run.fail(rank, lost(GRADIENT, rank, 10, "timed_out"), 10, code=None)
    result = found(run)
    assert (result.fault, result.step, result.phase) == ("cut", 5, "reduce")
    assert result.collective == "all_reduce of 4012 bytes over dp"
    assert not result.certain


@pytest.mark.parametrize(("cut", "told"), [(1, (0, 2, 3)), (0, (0,))])
def test_network_cut_names_the_node_whose_agent_could_not_report(
    tmp_path: Path, cut: int, told: tuple[int, ...]
) -> None:
    """The agents meet on node 0: if node 0 is cut off, only its own agent reports."""
    run = FailedRun(tmp_path / "run", num_nodes=4)
    run.start()
    run.steps(1, 4)
    for rank in run.ranks:
        run.up_to(rank, 5, "reduce")
        run.begin(rank, GRADIENT)
        run.fail(rank, lost(GRADIENT, rank, 10, "timed_out"), 10, code=1 if rank in told else None)
    result = found(run)
    assert (result.fault, result.node_rank, result.certain) == ("cut", cut, True)


@pytest.mark.parametrize(("on_loss", "fault"), [("fail", "cut"), ("shrink", "slow")])
def test_rank_with_shortest_wait_was_late_if_step_is_repeated(tmp_path: Path, on_loss: str, fault: str) -> None:
    """Each rank of a ring that is cut waits from the arrival of its own last bytes."""
    run = FailedRun(tmp_path / "run", num_nodes=4, config={"comm": {"on_loss": on_loss}})
    run.start()
    run.steps(1, 4)
    for rank in run.ranks:
        run.up_to(rank, 5, "reduce")
        run.begin(rank, GRADIENT)
        waited_s = 10.0 if rank == 1 else 10.7
        run.fail(rank, lost(GRADIENT, rank, waited_s, "timed_out"), waited_s)
    assert found(run).fault == fault


def test_closed_connections_of_living_rank_are_diagnosed(run: FailedRun) -> None:
    """The rank's neighbors on the ring fail with it, rank 0 after they have left."""
    run.up_to(2, 5, "reduce")
    run.lose(1, 2, 3, after_s=0.1)
    run.lose(0, after_s=4)
    result = found(run)
    assert place(result) == ("port", 2, 5, "reduce")
    assert result.collective == "all_reduce of 4012 bytes over dp"
    assert not result.certain


def test_closed_connections_are_diagnosed_when_all_fail_within_a_second(run: FailedRun) -> None:
    """Rank 0 was waiting when its neighbors left, so it is not the rank between the first failures."""
    for rank in run.ranks:
        run.up_to(rank, 5, "reduce")
    run.lose(1, 2, 3, after_s=0.0)
    run.lose(0, after_s=0.3)
    result = found(run)
    assert place(result) == ("port", 2, 5, "reduce")
    assert "look alike" not in result.finding


def test_failed_rendezvous_is_diagnosed(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run", num_nodes=2)
    run.folder.run_json.unlink()
    run.tell("end", code=1)
    result = diagnose(run.folder)
    assert result.fault == "start"
    assert any("0 of 2 nodes joined the rendezvous" in line for line in result.evidence)


# ---- stragglers ------------------------------------------------------------------------------------------------------


def slow(run: FailedRun, rank: int, phase: str, extra_ms: dict[int, int]) -> Diagnosis:
    run.start()
    for step in range(1, 9):
        for other in run.ranks:
            for name in ("data", "forward", "backward", "reduce", "optimize", "zero"):
                late = extra_ms.get(step, 0) if (other, name) == (rank, phase) else 0
                waits = 2 if other == rank else 2 + extra_ms.get(step, 0) * 11 // 10
                calls = [GRADIENT] if name == "reduce" else []
                run.do(other, step, name, *calls, took_ms=10 + late, wait_ms=waits)
            run.after(other, step)
    run.complete()
    return found(run, 0)


@pytest.mark.parametrize("phase", ["data", "backward", "reduce", "zero"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_straggler_is_diagnosed(tmp_path: Path, phase: str, num_ranks: int) -> None:
    result = slow(FailedRun(tmp_path / "run", num_ranks), num_ranks - 1, phase, dict.fromkeys(range(4, 9), 200))
    assert place(result) == ("slow", num_ranks - 1, 4, phase)
    assert (result.outcome, result.certain) == ("completed", True)


def test_straggler_after_a_hiccup_is_diagnosed(tmp_path: Path) -> None:
    result = slow(FailedRun(tmp_path / "run"), 1, "forward", {3: 80} | dict.fromkeys(range(4, 9), 400))
    assert place(result) == ("slow", 1, 4, "forward")


def test_hiccup_is_not_a_straggler(tmp_path: Path) -> None:
    assert slow(FailedRun(tmp_path / "run"), 1, "forward", {3: 300, 8: 80}).fault == "none"


def test_rank_late_only_in_last_step_is_reported_as_extra_finding(tmp_path: Path) -> None:
    """A hiccup of the machine looks the same: the run was healthy, and the delay is an additional finding."""
    result = slow(FailedRun(tmp_path / "run", 2), 1, "forward", {8: 500})
    assert result.fault == "none"
    (beside,) = result.also
    assert place(beside) == ("slow", 1, 8, "forward")
    assert not beside.certain


def test_rank_late_in_last_two_steps_is_a_straggler(tmp_path: Path) -> None:
    result = slow(FailedRun(tmp_path / "run", 2), 1, "forward", {7: 500, 8: 500})
    assert place(result) == ("slow", 1, 7, "forward")
    assert not result.certain


def test_pipeline_stages_may_differ_in_work(tmp_path: Path) -> None:
    """The last stage has the head and the loss; within a stage, a straggler is found."""
    extra_ms = dict.fromkeys(range(1, 9), 200)
    assert slow(FailedRun(tmp_path / "even", 2, mesh={"pp": 2, "dp": 1}), 1, "forward", extra_ms).fault == "none"
    result = slow(FailedRun(tmp_path / "slow", 4, mesh={"pp": 2, "dp": 2}), 3, "forward", extra_ms)
    assert place(result) == ("slow", 3, 1, "forward")


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(DamageCause))
def test_checkpoint_damaged_by_dying_rank_is_diagnosed(run: FailedRun, kind: str) -> None:
    path = run.save(4) / "rank_2.safetensors"
    data = path.read_bytes()
    path.unlink()
    if kind != "absent":
        path.write_bytes(data[:-1] + b"\0" if kind == "corrupt" else data[:50])
    run.enter(2, 4, "checkpoint")
    run.lose(*OTHERS)
    run.exit(2, -9)
    result = found(run)
    assert place(result) == (kind, 2, 4, "checkpoint")
    assert "rank_2.safetensors" in result.finding


def test_earlier_damaged_checkpoint_is_reported_as_extra_finding(run: FailedRun) -> None:
    """A kill in step 5 is unrelated to it; the damage is an additional finding."""
    path = run.save(2) / "rank_1.safetensors"
    path.unlink()
    run.lose(*OTHERS)
    run.exit(2, -9)
    result = found(run)
    assert place(result) == ("kill", 2, 5, "forward")
    (beside,) = result.also
    assert place(beside) == ("absent", 1, 2, "checkpoint")


def test_finetune_run_advice_is_frog_finetune_resume(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -9)
    write_json(run.folder.run_json, json.loads(run.folder.run_json.read_text()) | {"finetune": {"epochs": 1}})
    assert f"`frog finetune --resume {run.folder.path}`" in found(run).advice


def test_skipped_and_replaced_damage_is_reported(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 3)
    run.steps(4, 4, *OTHERS)
    run.up_to(2, 4, None)
    run.do(2, 4, "evaluate", SCORE)
    run.enter(2, 4, "checkpoint")
    for rank in OTHERS:
        run.up_to(rank, 5, "reduce")
    run.lose(*OTHERS)
    run.exit(2, -9)
    run.start(from_step=2, passed_over=[Damage(cause="torn", step=4, rank=2, what="rank_2.safetensors: 50 bytes")])
    run.steps(3, 8)
    run.save(4)
    run.complete()
    result = found(run, 0)
    assert (result.fault, result.rank, result.outcome) == ("torn", 2, "recovered")


def test_run_without_good_checkpoint_is_diagnosed(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    damage = Damage(cause="corrupt", step=4, rank=1, what="rank_1.safetensors: its SHA-256 is 1…")
    known = ErrorFacts(cause="corrupt", damage=(damage,))
    for rank in run.ranks:
        run.fail(rank, CheckpointError("runs/run: none of 1 checkpoints can be trusted", facts=known))
    result = found(run)
    assert (result.fault, result.rank) == ("corrupt", 1)


def test_completed_run_with_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 8)
    (run.save(6) / "manifest.json").unlink()
    run.save(8)
    run.complete()
    result = found(run, 0)
    assert (result.fault, result.step, result.outcome) == ("torn", 6, "completed")


# ---- several starts, and good ends -----------------------------------------------------------------------------------


def test_recovered_run_names_first_failure(run: FailedRun) -> None:
    """The heartbeats are from the second world: the events of the first show where rank 2 was."""
    run.lose(*OTHERS)
    run.exit(2, -9)
    run.start(from_step=4)
    run.steps(5, 8)
    run.complete()
    result = found(run, 0)
    assert place(result) == ("kill", 2, 5, "forward")
    assert (result.outcome, result.collective) == ("recovered", "all_reduce of 4012 bytes over dp")
    assert "the run restarted from step 4 with 4 ranks and completed" in result.finding


def test_only_the_last_failure_says_how_the_run_continued(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -9)
    run.start(from_step=4)
    run.lose(0, 2, 3)
    run.exit(1, -9)
    run.start(from_step=4)
    run.steps(5, 8)
    run.complete()
    result = found(run, 0)
    assert result.rank == 1
    assert "the run restarted from step 4" in result.finding
    assert [earlier.rank for earlier in result.also] == [2]
    assert "restarted" not in result.also[0].finding


@pytest.mark.parametrize(
    ("done", "expected"), [("data", (5, "forward")), ("reduce", (5, "optimize")), ("zero", (6, "data"))]
)
def test_rank_position_is_inferred_from_events(tmp_path: Path, done: str, expected: tuple[int, str]) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 4)
    for name in ("data", "forward", "backward", "reduce", "optimize", "zero"):
        run.do(2, 5, name, *([GRADIENT] if name == "reduce" else []))
        if name == done:
            break
    shutil.rmtree(run.folder.heartbeats)
    run.exit(2, -9)
    result = found(run)
    assert place(result) == ("kill", 2, *expected)
    assert any("next would be" in line for line in result.evidence)


@pytest.mark.parametrize(("score", "save", "expected"), [(False, False, "evaluate"), (True, False, "checkpoint")])
def test_rank_position_after_a_step_is_next_phase(tmp_path: Path, score: bool, save: bool, expected: str) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 3)
    run.up_to(2, 4, None)
    if score:
        run.do(2, 4, "evaluate", SCORE)
    if save:
        run.do(2, 4, "checkpoint", SAMPLES)
    shutil.rmtree(run.folder.heartbeats)
    run.exit(2, -9)
    assert place(found(run)) == ("kill", 2, 4, expected)


def test_last_failure_counts_and_earlier_ones_are_listed(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -9)
    run.start(from_step=4)
    run.up_to(1, 5, "backward")
    run.fail(1, ValueError("no frogs"))
    result = found(run)
    assert place(result) == ("raise", 1, 5, "backward")
    assert [other.fault for other in result.also] == ["kill"]


def test_manually_resumed_worlds_are_separate_attempts(tmp_path: Path) -> None:
    run = until_step_5(FailedRun(tmp_path / "run", launcher=False))
    run.lose(*OTHERS)
    run.start(from_step=4)
    attempts = read_run(run.folder).attempts
    assert [sorted(attempt.workers) for attempt in attempts] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert [attempt.workers[0].last_step for attempt in attempts] == [4, 4]
    assert [sorted(attempt.beats) for attempt in attempts] == [[], [0, 1, 2, 3]]
    assert all(isinstance(worker.events[0], CollectiveEvent) for worker in attempts[1].workers.values())


def test_heartbeats_of_removed_ranks_belong_to_earlier_attempt(tmp_path: Path) -> None:
    run = until_step_5(FailedRun(tmp_path / "run", launcher=False))
    run.num_ranks, run.ranks = 2, {rank: run.ranks[rank] for rank in (0, 1)}
    run.start(from_step=4)
    assert [sorted(attempt.beats) for attempt in read_run(run.folder).attempts] == [[2, 3], [0, 1]]


REFUSAL = "model.init_from=nowhere: no run folder here"


@pytest.mark.parametrize("launcher", [True, False])
def test_old_failed_start_is_not_the_last(tmp_path: Path, launcher: bool) -> None:
    run = FailedRun(tmp_path / "run", launcher=launcher)
    run.start(refusal=REFUSAL)
    run = until_step_5(run)
    run.lose(*OTHERS, after_s=0.3)
    if launcher:
        run.exit(2, -9)
    result = found(run)
    assert place(result) == ("kill", 2, 5, "forward")
    assert [other.fault for other in result.also] == ["usage"]


def test_latest_failed_start_is_the_last(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -9)
    run.start(refusal=REFUSAL)
    result = found(run)
    assert result.fault == "usage"
    assert [other.fault for other in result.also] == ["kill"]


def test_failed_starts_are_ordered_by_their_ranks(tmp_path: Path) -> None:
    """A smaller world, two failed starts of a larger one, then one that trained: four worlds in that order."""
    run = until_step_5(FailedRun(tmp_path / "run", 2, launcher=False), odd=1)
    run.fail(0, KeyError("pond"))
    run.num_ranks = 4
    run.start(refusal=REFUSAL)
    run.start(refusal=REFUSAL)
    run.start(from_step=4)
    attempts = read_run(run.folder).attempts
    assert [sorted(attempt.workers) for attempt in attempts] == [[0, 1], *[[0, 1, 2, 3]] * 3]
    assert [bool(attempt.workers[0].start) for attempt in attempts] == [True, False, False, True]


def test_healthy_run_is_diagnosed(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 8)
    run.complete()
    result = found(run, 0)
    assert (result.fault, result.outcome, result.certain) == ("none", "completed", True)


def test_interrupted_run_is_diagnosed(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 4)
    run.save(4)
    run.complete("interrupted", 4)
    result = found(run, 143)
    assert (result.fault, result.outcome, result.step) == ("interrupted", "interrupted", 4)
    assert "saved at step 4" in result.finding


@pytest.mark.parametrize(("code", "saved"), [(130, True), (143, False)])
def test_second_ctrl_c_is_not_a_lost_node(run: FailedRun, code: int, saved: bool) -> None:
    """The launcher killed its only agent, and the ranks with it."""
    if saved:
        run.save(4)
    run.tell("node", run.ranks[2].now_ns + 100_000_000, node=0, host="node0", code=-9)
    result = found(run, code)
    assert (result.fault, result.outcome, result.step, result.certain) == ("interrupted", "interrupted", 4, True)
    assert "the launcher killed the ranks that had not exited yet" in result.finding
    assert ("step 4" in result.finding) == saved


def test_rank_that_failed_before_ctrl_c_is_the_fault(run: FailedRun) -> None:
    run.fail(2, KeyError("pond"))
    run.tell("node", run.ranks[2].now_ns + 100_000_000, node=0, host="node0", code=-9)
    assert found(run, 130).fault == "raise"


def now(run: FailedRun, seconds_ago: float) -> None:
    """Move the run to the present, with the id of this process as its launcher."""
    shift_ns = time.time_ns() - int(seconds_ago * 1e9) - UNIX_NS - max(own.now_ns for own in run.ranks.values())
    for path in (run.folder.launcher_events, *run.folder.heartbeats.iterdir()):
        text = path.read_text().replace(f'"pid": {2**22 + 1}', f'"pid": {os.getpid()}')
        path.write_text(re.sub(r'"unix_ns": (\d+)', lambda match: f'"unix_ns": {int(match[1]) + shift_ns}', text))


@pytest.mark.parametrize(("seconds_ago", "goes_on"), [(20, True), (600, False)])
def test_reused_launcher_pid_does_not_mean_running(run: FailedRun, seconds_ago: float, goes_on: bool) -> None:
    """The launcher was killed before it reported its end; its pid was reused, or the folder is from another machine."""
    now(run, seconds_ago)
    assert is_active(run.folder) == goes_on


# ---- torn and missing files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(12))
def test_torn_or_missing_files_still_give_a_diagnosis(run: FailedRun, number: int) -> None:
    run.save(2)
    run.save(4)
    run.log(0, "skipped checkpoint: \xff")
    run.lose(*OTHERS)
    run.hang(2, "silent", 15)
    run.exit(2, -9)
    run.end(1)
    draw = random.Random(number)
    files = sorted(path for path in run.folder.path.rglob("*") if path.is_file())
    for path in draw.sample(files, k=draw.randrange(1, len(files))):
        data = path.read_bytes()
        act = draw.choice(["unlink", "cut", "empty", "noise"])
        if act == "unlink":
            path.unlink()
        elif act == "noise":
            path.write_bytes(bytes(draw.randrange(256) for _ in range(200)) + data[200:])
        else:
            path.write_bytes(data[: draw.randrange(len(data))] if act == "cut" else b"")
    result = diagnose(run.folder)
    assert result.finding
    assert dataclasses.asdict(result) == result.as_json()


@pytest.mark.parametrize(
    "make",
    [lambda path: None, lambda path: (path / "events").mkdir(), lambda path: (path / "run.json").write_text("[]")],
)
def test_nearly_empty_folder_gives_a_diagnosis(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path)
    assert diagnose(RunFolder(tmp_path)).fault in ("unknown", "none")


def test_torn_line_is_reported(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.exit(2, -9)
    with run.folder.rank_events(1).open("a") as file:
        file.write('{"event":"sp')
    assert any("1 damaged or torn line" in line for line in found(run).evidence)


def test_run_format_of_older_frog_is_reported(run: FailedRun) -> None:
    run.lose(*OTHERS)
    run.end(1)
    write_json(run.folder.run_json, run_json(format=1))
    assert "found 1, expected 2: a run's run.json of an older Frog" in diagnose(run.folder).evidence[-1]


def test_errors_without_facts_of_older_frog_are_noted(run: FailedRun) -> None:
    """An older Frog's errors have texts but no facts; Frog does not parse texts, and reports this."""
    run.fail(2, KeyError("pond"))
    run.lose(*OTHERS)
    run.end(1)
    for path in run.folder.events.glob("*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in events:
            if event["event"] == "error":
                for name in ("hint", "facts", "unix_ns"):
                    del event[name]
            elif event["event"] == "exit":
                event["error"] = f"{event['error']['type']}: {event['error']['message']}"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    result = diagnose(run.folder)
    assert (result.fault, result.certain) == ("unknown", False)
    assert sum("from another version of Frog" in line for line in result.evidence) == 5


def test_diagnosis_of_thousands_of_starts_is_shortened() -> None:
    lines = tuple(map(str, range(5000)))
    also = tuple(Diagnosis("kill", f"start {number}", evidence=lines) for number in range(5000))
    shown = Diagnosis("kill", "the last", evidence=lines, also=also).shortened()
    assert len(diagnosis_text("run", shown)) < 64 << 10
    assert len(json.dumps(shown.as_json(), indent=2)) < 64 << 10
    assert (shown.also[0].finding, shown.also[-1].finding) == ("start 0", "start 4999")
    assert shown.evidence[-1] == "... and 4940 more lines"
    few = Diagnosis("kill", "the last", evidence=lines[:3], also=also[:2])
    assert few.shortened().evidence == few.evidence


def test_command_loads_no_rules_for_other_programs_to_diagnose_a_run_of_frogs_own(run: FailedRun) -> None:
    run.end(1)
    code = (
        "import sys; from frog.cli import main; main(['diagnose', sys.argv[1]]); "
        "sys.exit(' '.join(name for name in sys.modules if name.startswith('frog.observe.diagnose.')))"
    )
    words = [sys.executable, "-c", code, str(run.folder.path)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "What to do" in result.stdout
    loaded = result.stderr.split()
    assert "frog.observe.diagnose.find" in loaded
    assert [name for name in loaded if name.startswith("frog.observe.diagnose.program")] == []
