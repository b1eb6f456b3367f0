"""Futures of asynchronous operations: no result arrives and no callback runs before a wait."""

from __future__ import annotations

import pytest
import torch

from frog.learn.grader.late_future import LateFuture, collect_all, wait_all


def test_callback_runs_on_wait_for_the_derived_future() -> None:
    ran: list[str] = []
    future = LateFuture(lambda: ran.append("arrived") or [torch.ones(2)])
    half = future.then(lambda one: ran.append("divided") or one.value()[0] / 2)
    assert ran == []
    assert half.wait().tolist() == [0.5, 0.5]
    assert ran == ["arrived", "divided"]


def test_callbacks_run_once_on_wait_for_the_first_future() -> None:
    ran: list[int] = []
    future = LateFuture(lambda: 3)
    after = future.then(lambda one: ran.append(one.value()))
    future.add_done_callback(lambda one: ran.append(-one.value()))
    assert future.wait() == 3
    after.wait()
    assert ran == [3, -3]


def test_done_returns_true_on_the_third_call() -> None:
    future = LateFuture(lambda: 1)
    assert [future.done() for _ in range(3)] == [False, False, True]


def test_wait_raises_a_callbacks_error() -> None:
    def fail(_: object) -> None:
        raise ValueError("not a tensor")

    with pytest.raises(ValueError, match="not a tensor"):
        LateFuture(lambda: 1).then(fail).wait()


def test_wait_all_completes_several_futures() -> None:
    futures = [LateFuture(lambda n=n: n) for n in range(3)]
    assert wait_all(futures) == [0, 1, 2]
    assert [one.value() for one in collect_all([LateFuture(lambda: 7)]).wait()] == [7]
