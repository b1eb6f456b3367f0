"""Exercise 4.4 has two parts: the check judges the first one alone while the hooks of the second are missing."""

from __future__ import annotations

import pytest

from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import find_exercise

EXERCISE = find_exercise("4.4")
STUB, SOLVED = (files["gather.py"].decode() for files in (EXERCISE.stub(), EXERCISE.reference()))
PART_1 = SOLVED[: SOLVED.index("def shard_model")] + STUB[STUB.index("def shard_model") :]


def without(line: str) -> str:
    assert PART_1.count(line) == 1
    return PART_1.replace(line, "")


@pytest.mark.parametrize(
    ("text", "status", "misconception", "says"),
    [
        (STUB, "unsolved", "raised", "fill in free"),
        (PART_1, "unsolved", "raised", "Part 1 of 2 is right: gather, free and reduce"),
        (without("        self.shard.grad /= dist.get_world_size()\n"), "rejected", "sum-is-average", "3.000 times"),
        (without("        self.parameter.grad = None\n"), "rejected", "whole-gradient-stays", "own .grad has "),
        (PART_1.replace("resize_(0)", "nbytes()"), "rejected", "not-freed", "after free, the storage"),
        (PART_1.replace(", self.shard.data)", ", self.shard.data * 2)"), "rejected", "unknown", "weight after gather"),
        (SOLVED, "passed", None, ""),
    ],
    ids=["stub", "part 1", "sum", "gradient kept", "not freed", "wrong gather", "both parts"],
)
def test_first_part_is_judged_alone(
    grader: Grader, text: str, status: str, misconception: str | None, says: str
) -> None:
    verdict = grader.check(EXERCISE, {"gather.py": text.encode()})
    assert (verdict.status, verdict.misconception) == (status, misconception)
    assert says in (verdict.observed or "")
