"""Calls that differ between ranks in programs that did not fail because of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import changed, evidence, failed, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.evidence import Evidence
from frog.observe.diagnose.program.program_diagnosis import diagnose_program

STEP = ("all_reduce", 4, 9)


def ended(*last: tuple[str, int, int], dtype: str = "Float", world: int = 3, **fields: object) -> Evidence:
    """Return a program that completed, in which rank 1 made another last call."""
    right = [rank(n, STEP, STEP, STEP, world=world, state="ended", exit_code=0) for n in range(world)]
    odd = rank(1, STEP, STEP, *(last or (STEP,)), world=world, state="ended", exit_code=0)
    odd.calls[-1] = changed(odd.calls[-1], dtypes=(dtype,), **fields)
    right[1] = odd
    found = evidence(*right, hung=False)
    found.ended_code = 0
    return found


@pytest.mark.parametrize(
    ("program", "fault", "certain"),
    [
        (ended(dtype="Int"), "dtype", True),
        (ended(dtype="Int", world=2), "dtype", False),
        (ended(("broadcast", 4, 9)), "order", False),
        (ended(("all_reduce", 3, 9)), "shape", True),
    ],
    ids=["dtype", "dtype on one of two", "operation", "size"],
)
def test_mismatch_that_passed_is_reported_of_a_program_that_completed(
    program: Evidence, fault: str, certain: bool
) -> None:
    found = diagnose_program(program)
    assert (found.fault, found.rank, found.line, found.outcome) == (fault, 1, "train.py:9 (main)", "completed")
    assert found.certain is certain or fault == "shape"
    assert "It passed, since the backend does not compare the calls" in found.finding


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    assert diagnose_program(ended(("all_to_all", 3, 9))).fault != "shape"
    uneven = evidence(*(rank(n, ("all_gather", 3 + n, 9), state="ended", exit_code=0) for n in (0, 1)), hung=False)
    assert diagnose_program(uneven).fault == "none"


def test_mismatch_that_passed_is_added_to_a_later_error() -> None:
    program = ended(dtype="Int")
    program.ranks[0].error, program.ranks[0].state = failed("ValueError", "the loss is 10000000", 12), "failed"
    found = diagnose_program(program)
    assert (found.fault, [also.fault for also in found.also]) == ("raise", ["dtype"])


@pytest.mark.parametrize(
    ("loop", "fault"),
    [
        ("pending = {name for name in names}\nfor name in pending:\n", "order"),
        ("pending = sorted({name for name in names})\nfor name in pending:\n", "none"),
        ("pending = set(names)\nfor name in sorted(pending):\n", "none"),
        ("\nfor name in set(names):\n", "order"),
    ],
)
def test_collectives_in_the_order_of_a_set_are_reported(tmp_path: Path, loop: str, fault: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{loop}    dist.all_reduce(own[name].grad)\n")
    ranks = [rank(n, *[("all_reduce", 256, 3)] * 6, state="ended", exit_code=0) for n in (0, 1)]
    for one in ranks:
        line = CodeLine(file=str(script), line=3, function="<module>")
        one.calls = [changed(call, line=line) for call in one.calls]
    found = diagnose_program(evidence(*ranks, hung=False))
    assert (found.fault, found.certain) == (fault, fault == "none")
    if fault == "order":
        assert found.line == "train.py:3"
        assert "in line 2 calls a collective at train.py:3 in the order of a set" in found.finding
