"""Simulated connections between ranks: bytes, times, deadlocks and mistakes."""

from __future__ import annotations

import pytest
import torch

from frog.learn.grader.peers import BUFFER_BYTES, FrameError, Peers, Wires, share_memory

LARGE = BUFFER_BYTES  # elements of 4 bytes, so 4 times what the system's buffer holds


def pass_around(numel: int) -> tuple[Wires, list[torch.Tensor]]:
    """Let each of three ranks send its number to the next one."""
    wires, found = Wires(1, 3, alpha_s=1.0, beta_s=0.5), [torch.zeros(numel) for _ in range(3)]

    def be(peers: Peers) -> None:
        own = torch.full((numel,), float(peers.rank))
        peers.exchange((peers.rank + 1) % 3, own, (peers.rank - 1) % 3, found[peers.rank])

    assert wires.run(be) == []
    return wires, found


def test_exchange_delivers_values_and_counts_bytes_and_time() -> None:
    wires, found = pass_around(6)
    assert [x[0].item() for x in found] == [2.0, 0.0, 1.0]
    assert wires.sent == wires.received == [24, 24, 24]
    assert wires.time_s == [1.0 + 24 * 0.5] * 3


def test_exchange_of_more_than_the_buffers_does_not_deadlock() -> None:
    assert pass_around(LARGE)[0].stopped == ""


def test_message_waits_for_its_sender_to_finish_the_one_before() -> None:
    wires, x = Wires(1, 3, alpha_s=1.0, beta_s=0.0), torch.zeros(1)

    def be(peers: Peers) -> None:
        if peers.rank == 0:
            peers.send(1, x)
            peers.send(2, x)
        else:
            peers.receive(0, x.clone())

    wires.run(be)
    assert wires.time_s == [2.0, 1.0, 2.0]


def test_ranks_that_send_large_messages_first_are_stuck() -> None:
    wires = Wires(1, 2)

    def be(peers: Peers) -> None:
        peers.send(1 - peers.rank, torch.zeros(LARGE))
        peers.receive(1 - peers.rank, torch.zeros(LARGE))

    wires.run(be)
    assert wires.stopped == "waits forever"
    assert wires.waiting() == [(0, f"rank 1 to receive {LARGE} elements"), (1, f"rank 0 to receive {LARGE} elements")]


def test_message_of_another_size_is_an_error() -> None:
    wires = Wires(1, 2)

    def be(peers: Peers) -> None:
        peers.exchange(1 - peers.rank, torch.zeros(3), 1 - peers.rank, torch.zeros(2))

    (error, *_) = wires.run(be)
    assert isinstance(error, FrameError)


def test_exchange_of_overlapping_memory_is_an_error() -> None:
    wires = Wires(1, 2)

    def be(peers: Peers) -> None:
        x = torch.zeros(3)
        peers.exchange(1 - peers.rank, x, 1 - peers.rank, x)

    (error, *_) = wires.run(be)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [((0, 3), (3, 6), False), ((0, 4), (3, 6), True), ((2, 2), (0, 6), False), ((0, 6), (2, 3), True)],
)
def test_parts_of_a_tensor_share_memory_only_if_they_overlap(
    first: tuple[int, int], second: tuple[int, int], shared: bool
) -> None:
    x = torch.zeros(6)
    assert share_memory(x[slice(*first)], x[slice(*second)]) is shared
