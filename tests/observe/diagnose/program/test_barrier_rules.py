"""A rank that torch's monitored_barrier missed, or for which others gave up with an error of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from seen import changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.known_errors.table.known import Level
from frog.observe.diagnose.program import barrier_rules, log_rules
from frog.observe.diagnose.program.code_blocks import source_of
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, SeenError
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

MISSED = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms\n Original exception: \nTimed out waiting 4000ms"
REACHED = (
    "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please "
    "check rank 0 logs for faulty rank."
)
SCRIPT = """\
def epoch(loader):
    for batch in loader:
        join()
def join():
    dist.monitored_barrier(group)
epoch(shards)
dist.all_reduce(total)
"""


def lines(script: Path, *numbers: tuple[int, str]) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(file=str(script), line=line, function=function) for line, function in numbers)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def waited(number: int, message: str, script: Path) -> RankEvidence:
    """Return a rank that raised an error in the barrier in line 5."""
    frames = lines(script, (6, "<module>"), (3, "epoch"), (5, "join"))
    error = SeenError("RuntimeError", message, frames[-1], frames, source="error.json")
    return rank(number, world=3, state="failed", exit_code=1, error=error)


def test_rank_that_left_the_loop_of_a_monitored_barrier_is_named(script: Path) -> None:
    gone = rank(2, ("all_reduce", 1, 7), world=3, pending=1, state="failed", exit_code=1)
    gone.error = failed("RuntimeError", "Connection closed by peer [127.0.0.1]:21703", 7)
    gone.calls = [changed(gone.calls[0], line=lines(script, (7, "<module>"))[0])]
    found = diagnose_program(evidence(waited(0, MISSED, script), waited(1, REACHED, script), gone, hung=False))
    assert (found.fault, found.rank, found.certain) == ("batches", 2, False)
    assert (found.line, found.peer_line) == ("train.py:7", "train.py:5 (join)")
    assert found.finding.startswith(
        "ranks 0 and 1 wait in monitored_barrier at train.py:5 (join) for rank 2: rank 2 waits"
    )
    assert "rank 2 has left the loop `for batch in loader:` in line 2" in found.finding


@pytest.mark.parametrize(
    ("fields", "fault", "words"),
    [
        ({"cpu_busy": True}, "busy", "rank 2 computed at train.py:2 (epoch)"),
        ({"cpu_busy": False}, "blocked", "rank 2 waited at train.py:2 (epoch)"),
        ({}, "stuck", "rank 2 was at train.py:2 (epoch)"),
        ({"state": "ended", "exit_code": 0}, "ended", "rank 2 had ended without an error"),
    ],
)
def test_rank_that_did_not_come_to_a_monitored_barrier(
    script: Path, fields: dict[str, object], fault: str, words: str
) -> None:
    fields = {"state": "running", "line": lines(script, (2, "epoch"))[0]} | fields
    found = diagnose_program(evidence(waited(0, MISSED, script), rank(1, world=3), rank(2, world=3, **fields)))
    assert (found.fault, found.rank) == (fault, 2)
    assert f"for rank 2: {words}" in found.finding


def test_ranks_of_a_smaller_group_are_not_taken_for_those_of_the_world(script: Path) -> None:
    """Rank 1 of a group may be any rank, such as one that came to the barrier."""
    message = MISSED.replace("Rank 2 failed", "Ranks 1, 2 failed")
    ranks = (waited(0, message, script), waited(1, REACHED, script), rank(2, world=3, state="running"))
    assert "monitored_barrier" not in diagnose_program(evidence(*ranks)).finding


def test_killed_rank_comes_before_the_barrier_that_missed_it(script: Path) -> None:
    ranks = (waited(0, MISSED, script), waited(1, REACHED, script), rank(2, world=3, exit_code=-9, state="running"))
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.rank) == ("kill", 2)


GIVES_UP = """\
def load(path):
    weights = convert(path)
    try:
        dist.barrier(group)
    except RuntimeError:
        raise ValueError("others did not load") from None
    check(weights)
"""


def gives_up(script: Path, line: int) -> Evidence:
    """Rank 0 raised an exception of its own in a line of GIVES_UP, rank 1 still computes."""
    script.write_text(GIVES_UP)
    source_of.cache_clear()
    frames = lines(script, (line, "load"))
    error = SeenError("ValueError", "others did not load", frames[0], frames, source="error.json")
    gone = rank(1, state="running", cpu_busy=True, line=lines(script, (2, "load"))[0])
    return evidence(rank(0, state="failed", exit_code=1, error=error), gone, hung=False)


@pytest.mark.parametrize(("line", "fault"), [(6, "busy"), (7, "raise")], ids=["in the handler", "after it"])
def test_error_raised_in_the_handler_of_a_collective_is_that_of_the_awaited_rank(
    script: Path, line: int, fault: str
) -> None:
    found = diagnose_program(gives_up(script, line))
    assert (found.fault, found.rank) == (fault, 1 if fault == "busy" else 0)
    assert found.finding.startswith("rank 0 waits at train.py:4 (load), whose error led it") is (fault == "busy")
    assert found.finding.endswith("rank 1 computed at train.py:2 (load)") is (fault == "busy")
    assert found.certain is (fault == "raise")


@pytest.mark.parametrize(("exception", "first"), [("ValueError", False), ("KeyError", True)])
def test_log_with_the_error_of_ranks_that_gave_up_does_not_come_first(
    script: Path, exception: str, first: bool
) -> None:
    seen = gives_up(script, 6)
    cause = SimpleNamespace(level=Level.CAUSE, exception=exception, rank=None)
    found = barrier_rules.gave_up(seen)
    assert found is not None
    assert log_rules._comes_first(seen, found, cause) is first  # type: ignore[arg-type]
    other = replace(found, peer_line="train.py:2 (load)")
    assert log_rules._comes_first(seen, other, cause)  # type: ignore[arg-type]
