"""The state machines of a world, with a clock of numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from frog.launch.lifecycle import Lifecycle, Limits, Repairs, State

LIMITS = Limits(grace_s=45, last_words_s=5, patience_s=20, repair_at_most_s=30)


def idle_from(worked_until: float, now: float) -> Callable[[float], float]:
    """What an agent answers that was last seen with ranks then."""
    return lambda since: now - max(since, worked_until)


def test_a_failure_is_noticed_or_the_others_are_asked_once() -> None:
    life = Lifecycle(LIMITS)
    assert not life.patience_is_over(1000)
    life.node_failed(10)
    life.node_failed(25)  # counted from the first
    assert [life.patience_is_over(now) for now in (30, 30.1, 30.2)] == [False, True, False]
    assert life.state is State.STOPPING


def test_a_user_does_not_wait_for_patience() -> None:
    life = Lifecycle(LIMITS)
    life.stop(10)
    life.node_failed(11)
    assert life.state is State.STOPPING
    assert not life.patience_is_over(100)


@pytest.mark.parametrize(
    ("now", "worked_until", "must"),
    [(54, 54, False), (55.1, 55, True), (14.9, 0, False), (15.1, 0, True), (20, 16, False)],
)
def test_who_was_asked_has_time_to_save_and_without_ranks_less(now: float, worked_until: float, must: bool) -> None:
    life = Lifecycle(LIMITS)
    assert not life.must_be_killed(1000, idle_from(0, 1000))
    life.stop(10)
    life.stop(40)
    assert life.must_be_killed(now, idle_from(worked_until, now)) == must


@pytest.mark.parametrize(
    ("had_ranks", "now", "can"), [(False, 14, False), (False, 16, True), (True, 29, False), (True, 31, True)]
)
def test_a_node_without_ranks_is_done_without_once_others_have_finished(had_ranks: bool, now: float, can: bool) -> None:
    life = Lifecycle(LIMITS)
    assert not life.is_superfluous(had_ranks, idle_from(0, 1000))
    life.node_finished(10)
    assert life.is_superfluous(had_ranks, idle_from(0, now)) == can
    assert life.state is State.FINISHING
    life.node_failed(12)  # also in a world that then fails, and is told to stop
    assert life.is_superfluous(had_ranks, idle_from(0, now)) == can
    life.stop(13)
    assert life.is_superfluous(had_ranks, idle_from(0, now)) == can


def test_a_world_that_fails_does_not_go_back_to_finishing() -> None:
    life = Lifecycle(LIMITS)
    life.node_failed(10)
    life.node_finished(12)
    assert life.state is State.FAILING
    assert life.is_superfluous(False, idle_from(0, 18))
    assert life.patience_is_over(31)


def repairs(elastic: bool = True) -> Repairs:
    return Repairs(elastic, repair_s=5, at_most_s=30, world={0, 1})


def test_where_a_world_keeps_its_size_a_node_comes_back_at_once() -> None:
    gone = repairs(elastic=False)
    assert not gone
    gone.go(1, 10)
    assert gone
    assert gone.pop_returning(10, lambda: False) == [1]
    assert (bool(gone), gone.returns) == (False, 1)


def test_a_world_that_shrinks_works_for_a_while_without_the_node() -> None:
    gone = repairs()
    gone.go(1, 10)
    assert gone.pop_returning(20, lambda: True) == [], "the others have not gone on without it"
    gone.start_world({0})
    assert gone.pop_returning(21, lambda: False) == [], "their ranks are not at work yet"
    assert gone.pop_returning(22, lambda: True) == []
    assert gone.pop_returning(27, lambda: True) == []
    assert gone.pop_returning(27.1, lambda: True) == [1]


def test_a_node_that_has_gone_again_is_counted_from_then() -> None:
    gone = repairs()
    gone.start_world({0})
    gone.go(1, 10)
    assert gone.pop_returning(15.1, lambda: True) == [], "the world was not seen at work before"
    assert gone.pop_returning(20.2, lambda: True) == [1]
    gone.go(1, 30)
    assert gone.pop_returning(34, lambda: True) == []
    assert gone.pop_returning(35.1, lambda: True) == [1]


def test_it_comes_back_in_any_case_after_long() -> None:
    gone = repairs()
    gone.go(1, 10)
    assert gone.pop_returning(40, lambda: False) == []
    assert gone.pop_returning(40.1, lambda: False) == [1]


def test_nobody_comes_back_to_a_world_that_stops() -> None:
    gone = repairs()
    gone.go(1, 10)
    gone.cancel()
    assert not gone
    assert gone.pop_returning(1000, lambda: True) == []
