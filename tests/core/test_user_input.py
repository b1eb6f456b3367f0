"""What users type: numbers within limits, names of runs, and the nearest known word."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from frog.core.user_input import CommandOrValue, at_least, between, did_you_mean, integer, name_problem, nearest


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("-3", -3), ("1_000", 1000), ("9" * 1000, 10**1000 - 1)], ids=range(4)
)
def test_integer_has_up_to_1000_digits(text: str, number: int) -> None:
    assert integer(text) == number


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "''"),
        ("two", "'two'"),
        ("1.0", "'1.0'"),
        ("x" * 80, "'" + "x" * 80 + "'"),
        ("x" * 81, "'" + "x" * 80 + "… (81 characters)'"),
        ("9" * 1001, "'" + "9" * 80 + "… (1001 characters)'"),
    ],
    ids=range(6),
)
def test_other_text_is_no_integer(text: str, shown: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        integer(text)
    assert str(caught.value) == f"invalid int value: {shown}"


@pytest.mark.parametrize(
    ("kind", "accepted", "refused", "words"),
    [
        (at_least(1), ["1", "2"], "0", "0: must be at least 1"),
        (at_least(0), ["0"], "-1", "-1: must be at least 0"),
        (between(0, 1), ["0", "0.5", "1"], "1.01", "1.01: must be between 0 and 1"),
        (between(1e-9, 1e9), ["1e-9", "1e9"], "0", "0: must be between 1e-9 and 1e9"),
        (between(0.25, 1e12), ["0.25"], "0.2", "0.2: must be between 0.25 and 1e+12"),
    ],
)
def test_number_outside_its_limits_is_refused(
    kind: Callable[[str], float], accepted: list[str], refused: str, words: str
) -> None:
    assert [kind(text) for text in accepted] == [float(text) for text in accepted]
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        kind(refused)
    assert str(caught.value) == words


@pytest.mark.parametrize("name", ["a", "7", "A-b_c.d", "x" * 100])
def test_valid_name_has_no_problem(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "_x", "a/b", "a b", "ä", "a\n", "x" * 101])
def test_name_that_is_no_folder_below_the_runs_is_refused(name: str) -> None:
    problem = name_problem(name)
    assert problem is not None
    assert problem.startswith(f"name={name[:100]!r}: use at most 100 letters, digits, '.', '_' and '-'")


def test_nearest_word_is_the_most_similar_one_above_the_cutoff() -> None:
    known = ["train.steps", "train.seed", "eval.every"]
    assert nearest("train.stps", known) == "train.steps"
    assert nearest("zzz", known) is None
    assert (nearest("abcde", ["abxyz"], 0.4), nearest("abcde", ["abxyz"], 0.41)) == ("abxyz", None)
    assert nearest("ab", ["abcd"]) == "abcd"  # two thirds
    assert nearest("ab", ["abcdef"]) is None  # a half
    assert did_you_mean("train.stps", known) == "did you mean train.steps?"
    assert did_you_mean("zzz", known) == "valid: train.steps, train.seed, eval.every"


@pytest.mark.parametrize(
    ("words", "chosen", "value"),
    [
        (["list"], "list", None),
        (["a.json"], "FILE", "a.json"),
        (["listt"], "FILE", "listt"),
    ],
)
def test_command_that_is_no_name_starts_with_its_value(words: list[str], chosen: str, value: str | None) -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="chosen", action=CommandOrValue)
    commands.add_parser("list")
    commands.add_parser("FILE").add_argument("value")
    namespace = argparse.Namespace()
    commands(parser, namespace, words)
    assert (namespace.chosen, getattr(namespace, "value", None)) == (chosen, value)


@pytest.mark.parametrize(
    ("word", "is_value"),
    [("a.json", True), ("a/b", True), ("a:b", True), ("listt", False), ("there", True), (3, False)],
)
def test_value_has_a_mark_or_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: object, is_value: bool
) -> None:
    (tmp_path / "there").touch()
    monkeypatch.chdir(tmp_path)
    commands = argparse.ArgumentParser().add_subparsers(action=CommandOrValue)
    assert commands.is_value(word) == is_value
