"""Futures of asynchronous operations: no result arrives and no callback runs before a wait."""

from __future__ import annotations

import pytest
import torch

from frog.learn.grader.late_future import LateFuture, collect_all, wait_all


def test_callback_runs_when_the_derived_future_is_waited_for() -> None:
    ran: list[str] = []
    future = LateFuture(lambda: ran.append("arrived") or [torch.ones(2)])
    half = future.then(lambda one: ran.append("divided") or one.value()[0] / 2)
    assert ran == []
    assert half.wait().tolist() == [0.5, 0.5]
    assert ran == ["arrived", "divided"]


def test_callbacks_run_once_when_the_first_future_is_waited_for() -> None:
    ran: list[int] = []
    future = LateFuture(lambda: 3)
    after = future.then(lambda one: ran.append(one.value()))
    future.add_done_callback(lambda one: ran.append(-one.value()))
    assert future.wait() == 3
    after.wait()
    assert ran == [3, -3]


def test_done_becomes_true_at_the_third_question() -> None:
    future = LateFuture(lambda: 1)
    assert [future.done() for _ in range(3)] == [False, False, True]


def test_error_in_a_callback_reaches_whoever_waits() -> None:
    def fail(_: object) -> None:
        raise ValueError("not a tensor")

    with pytest.raises(ValueError, match="not a tensor"):
        LateFuture(lambda: 1).then(fail).wait()


def test_several_futures_are_waited_for_together() -> None:
    futures = [LateFuture(lambda n=n: n) for n in range(3)]
    assert wait_all(futures) == [0, 1, 2]
    assert [one.value() for one in collect_all([LateFuture(lambda: 7)]).wait()] == [7]
