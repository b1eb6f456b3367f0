"""`frog check` finds the mistakes of exercises 2.18 and 4.13 as their pages say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Harness

from frog.learn.grader.exercise import find_exercise


def broken_rules(harness: Harness, number: str, *words: str) -> list[dict[str, Any]]:
    """Run `frog check` on an exercise's program as a learner gets it, and return the rules that it breaks."""
    for name, data in find_exercise(number).stub().items():
        (harness.root / name).write_bytes(data)
    done = harness.run("frog", "check", "--json", "--nproc", "2", *words, code=1)
    answers = json.loads(done.stdout[done.stdout.index("{\n") :])
    return [rule for rule in answers["rules"] if rule["outcome"] == "broken"]


@pytest.mark.slow
def test_step_without_a_reduction_is_found_at_its_forward(harness: Harness) -> None:
    (rule,) = broken_rules(harness, "2.18", "--", "train.py")
    line = int(rule["line"].rpartition(":")[2])
    assert (rule["rule"], rule["sure"], rule["step"]) == ("gradients", "certain", 3)
    assert "model(inputs)" in (harness.root / "train.py").read_text().splitlines()[line - 1]


@pytest.mark.slow
def test_gradients_that_only_the_root_adds_differ_from_one_rank(harness: Harness) -> None:
    words = ("--against-one", "--", "train.py", "--steps", "2", "--batch-size", "{16/world}")
    (rule,) = broken_rules(harness, "4.13", *words)
    assert (rule["rule"], rule["step"]) == ("one-gradients", 1)
    assert "blocks.0.norm.weight" in rule["finding"]
    assert "while those of 3 others agree" in rule["finding"]
