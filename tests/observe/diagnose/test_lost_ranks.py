"""Ranks that a run lost and continued without are diagnosed from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from failed_run import MS, FailedRun
from test_diagnose import place

from frog.core.runs.changes import find_changes, identities_of
from frog.core.runs.run import read_run
from frog.observe.diagnose.diagnosis import Diagnosis, diagnosis_text
from frog.observe.diagnose.run_diagnosis import diagnose


@pytest.fixture
def run(tmp_path: Path) -> FailedRun:
    """Return four ranks that have taken two steps; in the third, rank 2 is in backward, and the others wait."""
    run = FailedRun(tmp_path / "run")
    run.start()
    run.steps(1, 2)
    stand(run, 3, "backward", 2)
    return run


def stand(run: FailedRun, step: int, phase: str, odd: int) -> None:
    """Put a rank into a phase of a step, and all others into its reduction."""
    for rank in run.ranks:
        run.up_to(rank, step, phase if rank == odd else "reduce")


def ended(run: FailedRun, code: int = 0) -> Diagnosis:
    run.end(code)
    found = diagnose(run.folder)
    assert found.finding in diagnosis_text("run", found)
    return found


def test_two_lost_ranks_and_one_new_rank_are_reported(run: FailedRun) -> None:
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3])
    run.steps(3, 3)
    stand(run, 4, "reduce", 0)
    run.exit(0, -9)
    run.change(3, kept=[1, 2])
    run.steps(4, 5)
    run.change(5, kept=[0, 1], joined=1)
    run.steps(6, 8)
    run.complete()
    found = ended(run)
    assert place(found) == ("kill", 0, 4, "reduce")
    assert found.finding == (
        "rank 0 was killed by SIGKILL in step 4, reduce; the other 2 ranks continued after step 3, 0.20 s "
        "after detecting the loss; the run completed"
    )
    assert (found.outcome, found.certain) == ("recovered", True)
    assert any("rank 4    joined after step 5: 3 ranks from then on" in line for line in found.evidence)
    assert [place(other) for other in found.also] == [("kill", 2, 3, "backward")]
    changes = find_changes(read_run(run.folder).attempts)
    assert [(change.lost, change.joined, change.members) for change in changes] == [
        ({2: 2}, [], [0, 1, 3]),
        ({0: 0}, [], [1, 3]),
        ({}, [4], [1, 3, 4]),
    ]


def test_renumbered_rank_is_reported_by_permanent_number(run: FailedRun) -> None:
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3])
    stand(run, 3, "forward", 2)
    run.exit(2, -11)
    run.change(2, kept=[0, 1])
    run.steps(3, 8)
    run.complete()
    found = ended(run)
    assert place(found) == ("crash", 3, 3, "forward")
    assert any("rank 3 (its permanent number) was rank 2 then" in line for line in found.evidence)


@pytest.mark.parametrize("who", ["others", "watchdog"])
def test_stopped_rank_is_distinguished_from_killed_one(who: str, run: FailedRun) -> None:
    for rank in (0, 1, 3):
        run.ranks[rank].now_ns += 5_000 * MS
    if who == "others":
        run.left_out(2, 5.2)
    else:
        run.hang(2, "silent", 5.2)
        run.exit(2, -9, late_s=5.3)
    run.change(2, kept=[0, 1, 3])
    run.steps(3, 8)
    run.complete()
    assert place(ended(run)) == ("stop", 2, 3, "backward")


def test_rank_whose_agent_noticed_late_was_killed(run: FailedRun) -> None:
    """This happens on a loaded machine. A stopped process still exists, and has to be ended."""
    for rank in (0, 1, 3):
        run.ranks[rank].now_ns += 5_000 * MS
    run.exit(2, -9, late_s=5.2)
    run.change(2, kept=[0, 1, 3])
    run.steps(3, 8)
    run.complete()
    assert place(ended(run)) == ("kill", 2, 3, "backward")


def test_rank_with_heartbeats_until_left_out_was_cut_off(run: FailedRun) -> None:
    run.left_out(2, 0.3)
    run.change(2, kept=[0, 1, 3])
    run.steps(3, 8)
    run.complete()
    assert place(ended(run)) == ("cut", 2, 3, "backward")


def test_rank_that_was_left_out_was_cut_off(run: FailedRun) -> None:
    left = run.ranks[2]
    left.writer.emit(
        "error", step=3, phase="reduce", type="CommError", message="m", hint=None,
        facts={"cause": "timed_out"}, unix_ns=1,
    )  # fmt: skip
    run.change(2, kept=[0, 1, 3])
    run.steps(3, 8)
    run.complete()
    assert place(ended(run)) == ("cut", 2, 3, "reduce")


@pytest.mark.parametrize("noticed_s", [0, 20])
def test_ranks_lost_with_their_node_are_distinguished_from_silent_exits(noticed_s: int, tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run", num_nodes=2)
    run.start()
    run.steps(1, 2)
    stand(run, 3, "backward", 2)
    run.tell("node", run.ranks[2].now_ns, node=1, host="node1", code=-9)
    for rank in (0, 1):
        run.ranks[rank].now_ns += noticed_s * 1_000 * MS
    run.change(2, kept=[0, 1])
    run.steps(3, 8)
    run.complete()
    found = ended(run)
    (other,) = found.also
    assert (place(other), place(found)) == (("node", 2, 3, "backward"), ("node", 3, 3, "reduce"))
    assert "was lost with its node, node1, in step 3, reduce; the other 2 ranks continued" in found.finding
    assert found.certain


def test_cause_of_loss_is_unknown_without_launcher(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run", launcher=False)
    run.start()
    run.steps(1, 2)
    stand(run, 3, "backward", 2)
    run.change(2, kept=[0, 1, 3])
    run.steps(3, 8)
    run.complete()
    found = ended(run)
    assert (place(found), found.certain) == (("kill", 2, 3, "backward"), False)


def test_running_run_reports_losses_too(run: FailedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3], joined=1)
    run.steps(3, 4)
    monkeypatch.setattr("frog.observe.diagnose.run_diagnosis.is_active", lambda folder: True)
    found = diagnose(run.folder)
    assert (found.fault, found.outcome) == ("running", "running")
    assert "4 of 8 steps taken by 4 ranks" in found.finding
    assert [place(other) for other in found.also] == [("kill", 2, 3, "backward")]
    assert any("rank 4    joined after step 2" in line for line in found.evidence)


def test_run_that_loses_all_ranks_reports_each(run: FailedRun) -> None:
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3])
    stand(run, 3, "forward", 1)
    run.exit(1, -9)
    run.lose(0, 2)
    found = ended(run, 1)
    assert place(found) == ("kill", 1, 3, "forward")
    assert found.outcome == "failed"
    assert any("rank 2 is member 3" in line for line in found.evidence)
    assert [place(other) for other in found.also] == [("kill", 2, 3, "backward")]


def test_joining_rank_is_not_a_fault(run: FailedRun) -> None:
    run.up_to(2, 3, None)
    run.change(2, kept=[0, 1, 2, 3], joined=1)
    run.steps(3, 8)
    run.complete()
    found = ended(run)
    assert (found.fault, found.outcome, found.also) == ("none", "completed", ())
    assert any("rank 4    joined after step 2" in line for line in found.evidence)


def test_overtaken_membership_change_is_reported_with_the_next(run: FailedRun) -> None:
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3])
    events = run.folder.events
    for path in events.glob("rank_*.jsonl"):  # this change never completed
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"membership"' not in line))
    run.exit(1, -9)
    run.change(2, kept=[0, 2])
    run.steps(3, 8)
    run.complete()
    found = ended(run)
    assert [one.rank for one in (*found.also, found)] == [1, 2]


def test_restart_in_new_processes_is_not_a_membership_change(run: FailedRun) -> None:
    run.exit(2, -9)
    run.lose(0, 1, 3)
    run.start(2)
    assert find_changes(read_run(run.folder).attempts) == []


def test_rank_killed_before_reporting_keeps_its_permanent_number(run: FailedRun) -> None:
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3])
    run.exit(0, -9)
    run.change(2, kept=[1, 2])
    events = run.folder.rank_events(1)
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(lines[:-1]))  # rank 3 had started as rank 1, and was killed
    assert '"membership"' in lines[-1]
    pids = run.ranks[1].pid
    run.exit(1, -9)
    run.change(2, kept=[0])
    run.steps(3, 8)
    run.complete()
    ended(run)
    assert identities_of(read_run(run.folder).attempts)[pids] == 3


def test_missing_replacement_is_named_by_lost_ranks_permanent_number(run: FailedRun) -> None:
    def replace(lost: int, pid: int, number: int) -> None:
        run.tell("replace", attempt=0, rank=2, node=0, node_rank=0, lost=lost, pid=pid, number=number)

    replace(run.ranks[2].pid, 2**22 + 5004, 1)  # it joins as rank 4
    run.exit(2, -9)
    run.change(2, kept=[0, 1, 3])
    run.change(2, kept=[0, 1, 2], joined=1)
    replace(run.ranks[3].pid, 2**22 + 9000, 2)
    run.exit(3, -9)
    run.change(2, kept=[0, 1, 2])
    run.steps(3, 8)
    run.complete()
    found = ended(run)
    assert any("rank 4    joined to replace rank 2" in line for line in found.evidence)
    assert any("was started to replace rank 4, but has not joined" in line for line in found.evidence)
