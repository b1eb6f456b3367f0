"""What exercises draw tells their misconceptions apart, whatever the seed."""

from __future__ import annotations

import importlib
import itertools
import random
import sys
from types import ModuleType
from typing import Any

import pytest

from frog.learn.grader.exercise import find_exercise


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that loads an exercise's check.py, as a grader's process does."""

    def loaded(number: str) -> ModuleType:
        monkeypatch.syspath_prepend(find_exercise(number).folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        for name in ("check", "ranks"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that the end of the test removes it
            del sys.modules[name]
        return importlib.import_module("check")

    return loaded


def test_some_expert_is_full_and_another_has_room(load: Any) -> None:
    check = load("5.8")
    for seed, size in itertools.product(range(15), (2, 3)):
        for case in check.draw_cases(random.Random(seed), seed, size)[::2]:
            oracle = check.Oracle(case, size)
            counts = [one.count(expert) for one in oracle.chosen for expert in range(case["num_experts"])]
            assert min(counts) < case["capacity"] < max(counts), seed
            assert sum(oracle.num_rows) < sum(map(len, oracle.chosen)), seed


def test_no_two_rules_of_capacity_accept_the_same_assignments(load: Any) -> None:
    check = load("5.8")
    for seed in range(200):
        drawn = check.draw_assignments(random.Random(seed))
        masks = [[rule(chosen, most) for chosen, _, most in drawn] for rule in (check.keep, *check.MASKS.values())]
        assert [pair for pair in itertools.combinations(masks, 2) if pair[0] == pair[1]] == [], seed


def test_run_with_an_error_has_a_warning_on_a_rank_that_no_other_belief_names(load: Any) -> None:
    check = load("2.11")
    for seed in range(200):
        (run,) = [one for one in check.draw_runs(seed) if one["what"] == "error"]
        assert run["warning"] == "read"
        assert run["warned"] not in (0, run["victim"]), seed
