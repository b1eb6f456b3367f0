"""The state machines of a world, tested with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from frog.launch.lifecycle import Lifecycle, Limits, Repairs, State

LIMITS = Limits(grace_s=45, rankless_grace_s=5, patience_s=20, repair_at_most_s=30)


def idle_from(worked_until: float, now: float) -> Callable[[float], float]:
    """Return a function that gives the idle time of an agent whose ranks were last seen at `worked_until`."""
    return lambda since: now - max(since, worked_until)


def test_other_nodes_are_stopped_once_when_patience_ends_after_a_failure() -> None:
    life = Lifecycle(LIMITS)
    assert not life.patience_is_over(1000)
    life.node_failed(10)
    life.node_failed(25)  # patience counts from the first failure
    assert [life.patience_is_over(now) for now in (30, 30.1, 30.2)] == [False, True, False]
    assert life.state is State.STOPPING


def test_stop_request_of_the_user_ends_the_wait_for_patience() -> None:
    life = Lifecycle(LIMITS)
    life.stop(10)
    life.node_failed(11)
    assert life.state is State.STOPPING
    assert not life.patience_is_over(100)


@pytest.mark.parametrize(
    ("now", "worked_until", "must"),
    [(54, 54, False), (55.1, 55, True), (14.9, 0, False), (15.1, 0, True), (20, 16, False)],
)
def test_stopped_node_has_time_to_save_and_less_without_ranks(now: float, worked_until: float, must: bool) -> None:
    life = Lifecycle(LIMITS)
    assert not life.must_be_killed(1000, idle_from(0, 1000))
    life.stop(10)
    life.stop(40)
    assert life.must_be_killed(now, idle_from(worked_until, now)) == must


@pytest.mark.parametrize(
    ("had_ranks", "now", "can"), [(False, 14, False), (False, 16, True), (True, 29, False), (True, 31, True)]
)
def test_node_without_ranks_is_superfluous_after_others_finish(had_ranks: bool, now: float, can: bool) -> None:
    life = Lifecycle(LIMITS)
    assert not life.is_superfluous(had_ranks, idle_from(0, 1000))
    life.node_finished(10)
    assert life.is_superfluous(had_ranks, idle_from(0, now)) == can
    assert life.state is State.FINISHING
    life.node_failed(12)  # the same in a world that then fails and is stopped
    assert life.is_superfluous(had_ranks, idle_from(0, now)) == can
    life.stop(13)
    assert life.is_superfluous(had_ranks, idle_from(0, now)) == can


def test_failing_world_does_not_return_to_finishing() -> None:
    life = Lifecycle(LIMITS)
    life.node_failed(10)
    life.node_finished(12)
    assert life.state is State.FAILING
    assert life.is_superfluous(False, idle_from(0, 18))
    assert life.patience_is_over(31)


def repairs(elastic: bool = True) -> Repairs:
    return Repairs(elastic, repair_s=5, at_most_s=30, world={0, 1})


def test_node_returns_immediately_to_a_world_of_fixed_size() -> None:
    gone = repairs(elastic=False)
    assert not gone
    gone.go(1, 10)
    assert gone
    assert gone.pop_returning(10, lambda: False) == [1]
    assert (bool(gone), gone.returns) == (False, 1)


def test_node_returns_to_an_elastic_world_after_it_has_worked_for_a_while() -> None:
    gone = repairs()
    gone.go(1, 10)
    assert gone.pop_returning(20, lambda: True) == [], "the others have not continued without it"
    gone.start_world({0})
    assert gone.pop_returning(21, lambda: False) == [], "their ranks are not at work yet"
    assert gone.pop_returning(22, lambda: True) == []
    assert gone.pop_returning(27, lambda: True) == []
    assert gone.pop_returning(27.1, lambda: True) == [1]


def test_repair_time_restarts_when_a_node_is_lost_again() -> None:
    gone = repairs()
    gone.start_world({0})
    gone.go(1, 10)
    assert gone.pop_returning(15.1, lambda: True) == [], "the world was not seen at work before"
    assert gone.pop_returning(20.2, lambda: True) == [1]
    gone.go(1, 30)
    assert gone.pop_returning(34, lambda: True) == []
    assert gone.pop_returning(35.1, lambda: True) == [1]


def test_node_returns_after_the_longest_repair_time_in_any_case() -> None:
    gone = repairs()
    gone.go(1, 10)
    assert gone.pop_returning(40, lambda: False) == []
    assert gone.pop_returning(40.1, lambda: False) == [1]


def test_no_node_returns_to_a_stopping_world() -> None:
    gone = repairs()
    gone.go(1, 10)
    gone.cancel()
    assert not gone
    assert gone.pop_returning(1000, lambda: True) == []


def test_default_limits_leave_time_for_a_checkpoint() -> None:
    limits = Limits()
    assert (limits.grace_s, limits.rankless_grace_s, limits.patience_s) == (45, 5, 20)
    assert (limits.repair_at_most_s, limits.up_at_most_s) == (30, 120)
