"""The gate without any process: operations that match, operations that never will, and the resulting texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frog.learn.grader.drawing import draw
from frog.learn.grader.gate import Gate, Operation

WORLD = (0, 1)


def reduce(n: int = 4, *, is_async: bool = False, group: tuple[int, ...] = WORLD) -> Operation:
    return Operation("all_reduce", group, (f"{n} x float32", "SUM"), is_async)


def send(to: int, me: int, tag: int = 0, *, is_async: bool = False) -> Operation:
    return Operation("isend" if is_async else "send", tuple(sorted((me, to))), (), is_async, peer=to, tag=tag)


def recv(source: int | None, me: int, tag: int = 0) -> Operation:
    return Operation("recv", (me,), (), peer=source, tag=tag)


def test_collective_is_released_after_all_ranks_arrive() -> None:
    gate = Gate(2)
    gate.enter(0, reduce())
    assert gate.release() == []
    assert gate.problem() is None
    gate.enter(1, reduce())
    assert [rank for rank, _ in gate.release()] == [0, 1]


def test_asynchronous_collective_blocks_only_on_wait() -> None:
    gate = Gate(2)
    gate.enter(0, reduce(is_async=True))
    gate.enter(0, reduce(8, is_async=True))
    gate.wait(0, 0)
    assert gate.release() == []
    gate.enter(1, reduce(is_async=True))
    assert [rank for rank, _ in gate.release()] == [0]


def test_mismatched_sizes_are_detected_before_the_collective_starts() -> None:
    gate = Gate(2)
    gate.enter(0, reduce(4))
    gate.enter(1, reduce(5))
    problem = gate.problem()
    assert problem is not None
    assert problem.id == "different-collectives"
    assert "4 x float32" in problem.observed
    assert "5 x float32" in problem.observed


def test_mismatch_with_a_call_of_the_exercise_says_so() -> None:
    gate = Gate(2)
    gate.enter(0, replace(reduce(4), line="step.py:9"))
    gate.enter(1, reduce(5))
    problem = gate.problem()
    assert problem is not None
    assert "rank 0 called all_reduce (4 x float32, SUM, step.py:9)" in problem.observed
    assert "rank 1 called all_reduce (5 x float32, SUM, not in your file)" in problem.observed


def test_waiting_for_an_ended_rank_is_a_deadlock() -> None:
    gate = Gate(3)
    gate.enter(0, reduce(group=(0, 1, 2)))
    gate.finish(1, "returned")
    problem = gate.problem()
    assert problem is not None
    assert problem.id == "one-rank-waits"
    assert "rank 0 waited in all_reduce" in problem.observed
    assert "rank 1 never arrived: it had returned" in problem.observed
    assert draw(gate).splitlines() == [
        "rank 0  all_reduce 1 ░░░░ waits",
        "rank 1  returned",
        "rank 2  is still running",
    ]


def test_two_ranks_that_both_send_first_deadlock() -> None:
    gate = Gate(2)
    gate.enter(0, send(1, me=0))
    assert gate.problem() is None
    gate.enter(1, send(0, me=1))
    assert gate.release() == []
    problem = gate.problem()
    assert problem is not None
    assert problem.id == "one-rank-waits"


def test_messages_are_matched_by_peer_and_tag_in_order() -> None:
    gate = Gate(2)
    gate.enter(0, send(1, me=0, tag=7, is_async=True))
    gate.enter(0, send(1, me=0, is_async=True))
    gate.enter(1, recv(0, me=1))
    assert gate.release() == [(1, 0)]
    assert gate.ranks[0].other_ends == {1: 1}
    gate.enter(1, recv(0, me=1, tag=8))
    gate.finish(0, "returned")
    assert gate.problem() is not None


def test_recv_from_any_source_matches_the_lowest_rank_regardless_of_arrival() -> None:
    for first, second in ((1, 2), (2, 1)):
        gate = Gate(3)
        gate.enter(0, recv(None, me=0))
        gate.enter(first, send(0, me=first))
        assert gate.release() == []  # the other may still send
        gate.enter(second, send(0, me=second))
        assert gate.release() == [(0, 1), (1, 0)]


@pytest.mark.parametrize("sender_first", [True, False])
def test_message_larger_than_its_buffer_is_detected_before_sending(sender_first: bool) -> None:
    for room, is_clash in ((3, True), (4, False), (5, False)):
        gate = Gate(2)
        ends = [
            (0, Operation("isend", WORLD, ("4 x float32",), True, peer=1, line="ring.py:7", num_bytes=16)),
            (1, Operation("recv", WORLD, (f"{room} x float32",), peer=0, line="ring.py:9", num_bytes=4 * room)),
        ]
        for rank, operation in ends if sender_first else ends[::-1]:
            gate.enter(rank, operation)
        assert bool(gate.problem()) == is_clash
        if gate.mismatch is not None:
            assert gate.mismatch.id == "different-collectives"
            assert gate.mismatch.observed == (
                "rank 0 sent 4 x float32 (isend, ring.py:7) to rank 1, tag 0, "
                "whose buffer holds only 3 x float32 (recv, ring.py:9)."
            )


def test_collectives_of_different_groups_are_independent() -> None:
    gate = Gate(4)
    gate.enter(0, reduce(group=(0, 1)))
    gate.enter(2, reduce(9, group=(2, 3)))
    gate.enter(3, reduce(9, group=(2, 3)))
    assert [rank for rank, _ in gate.release()] == [2, 3]
    assert gate.problem() is None


def test_collectives_of_two_groups_in_opposite_orders_deadlock() -> None:
    gate = Gate(2)
    gate.enter(0, Operation("barrier", (0, 1)))
    gate.enter(1, Operation("barrier", (1,)))
    assert [rank for rank, _ in gate.release()] == [1]
    gate.finish(1, "failed with ValueError")
    problem = gate.problem()
    assert problem is not None
    assert "it had failed with ValueError" in problem.observed


def test_collective_number_does_not_count_new_group() -> None:
    gate = Gate(2)
    for rank in WORLD:
        gate.enter(rank, Operation("new_group", WORLD, ("ranks [0]",)))
    gate.release()
    gate.enter(0, reduce(4))
    gate.enter(1, reduce(8))
    problem = gate.problem()
    assert problem is not None
    assert "For collective 1 of their group" in problem.observed
