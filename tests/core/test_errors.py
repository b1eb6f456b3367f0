"""Errors for people, their facts for programs, and exit codes."""

from __future__ import annotations

import errno
import signal

import pytest

from frog.core.errors import (
    ASKED_TO_STOP,
    MOST_WORDS,
    CommError,
    Damage,
    ErrorFacts,
    FrogError,
    UsageError,
    describe_exit,
    report_error,
    shell_code,
    signal_code,
    signal_name,
    system_cause,
)


def test_error_shows_its_hint_on_a_second_line() -> None:
    assert str(FrogError("it broke", "fix it")) == "it broke\n  try: fix it"
    assert str(FrogError("it broke")) == "it broke"
    assert (FrogError("").exit_code, UsageError("").exit_code) == (1, 2)


@pytest.mark.parametrize(("more", "is_cut"), [(-1, False), (0, False), (1, True), (100_000, True)])
def test_message_and_hint_are_cut_above_16000_characters(more: int, is_cut: bool) -> None:
    words = "x" * (16_000 + more)
    expected = "x" * 16_000 + "…" if is_cut else words
    error = FrogError(words, words)
    assert MOST_WORDS == 16_000
    assert (error.what, error.hint) == (expected, expected)


def test_signals_give_the_exit_codes_of_a_shell() -> None:
    assert [shell_code(code) for code in (0, 1, 3, -1, -9)] == [0, 1, 3, 129, 137]
    assert signal_code(signal.SIGTERM) == 143
    assert ASKED_TO_STOP == (130, 143)


def test_describe_exit_names_the_signal_or_the_code() -> None:
    assert [describe_exit(code) for code in (-signal.SIGSEGV, 0, 69)] == [
        "was killed by SIGSEGV",
        "ended with exit code 0",
        "ended with exit code 69",
    ]
    assert (signal_name(9), signal_name(1000)) == ("SIGKILL", "signal 1000")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, ""), "no_space"),
        (OSError(errno.EDQUOT, ""), "no_space"),
        (OSError(errno.EIO, ""), None),
        (MemoryError(), "no_memory"),
        (ValueError(), None),
    ],
)
def test_cause_of_an_error_of_the_system(error: BaseException, cause: str | None) -> None:
    assert system_cause(error) == cause
    assert report_error(error)["facts"] == ({"cause": cause} if cause else {})


def test_facts_without_a_value_are_left_out_and_zeros_stay() -> None:
    damage = Damage(cause="torn", what="rank_0.json: 3 bytes", rank=0)
    facts = ErrorFacts(cause="closed", seq=0, peer=0, waited_s=0.0, damage=(damage,))
    assert facts.as_json() == {
        "cause": "closed",
        "seq": 0,
        "peer": 0,
        "waited_s": 0.0,
        "damage": ({"cause": "torn", "what": "rank_0.json: 3 bytes", "step": None, "rank": 0},),
    }
    assert str(damage) == "rank_0.json: 3 bytes"
    assert ErrorFacts().as_json() == {}


def test_report_of_an_error_of_frogs_has_its_hint_and_its_own_facts() -> None:
    said = report_error(CommError("closed", "look", ErrorFacts(op="all_reduce")), ErrorFacts(op="other"))
    assert said.pop("unix_ns") > 10**18
    assert said == {"type": "CommError", "message": "closed", "hint": "look", "facts": {"op": "all_reduce"}}


def test_report_of_another_error_has_the_facts_that_the_caller_knows() -> None:
    said = report_error(KeyError("x"), ErrorFacts(step=3))
    assert (said["type"], said["message"], said["hint"], said["facts"]) == ("KeyError", "'x'", None, {"step": 3})
