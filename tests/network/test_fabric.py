"""The switch as arithmetic: when frames arrive, which are dropped. Times are numbers here, no clock runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from frog.launch.network.fabric import Fabric, mac_of
from frog.launch.network.link import Link

MBIT = 1e6


def frame(target: int, source: int, size: int = 1250, number: int = 0) -> bytes:
    head = mac_of(target) + mac_of(source) + number.to_bytes(8, "big")
    return head + bytes(size - len(head))


@dataclass
class Desk:
    """A fabric, and what came out of it: (time, node, frame)."""

    fabric: Fabric
    arrived: list[tuple[float, int, bytes]] = field(default_factory=list)

    def run(self, until_s: float = 1e9) -> None:
        """See to every frame exactly when it is due."""
        while (due_s := self.fabric.due_s) is not None and due_s <= until_s:
            self.fabric.deliver(due_s, lambda node, data, at=due_s: self.arrived.append((at, node, data)))  # type: ignore[misc]

    def times(self, node: int) -> list[float]:
        return [at for at, where, _ in self.arrived if where == node]

    def count(self, node: int, name: str) -> int:
        return int(self.fabric.describe()["nodes"][node][name])


def make_desk(num_nodes: int = 2, **link: float) -> Desk:
    return Desk(Fabric(num_nodes, Link(**{"rate_bits_per_s": 10 * MBIT, **link})))  # type: ignore[arg-type]


def test_a_frame_takes_its_bits_twice_and_the_delay_once() -> None:
    """1250 bytes at 10 Mbit/s are 1 ms up to the switch and 1 ms down to the node."""
    desk = make_desk(delay_s=0.02)
    desk.fabric.take(5.0, 0, frame(1, 0))
    desk.run()
    assert desk.times(1) == pytest.approx([5.022])


def test_a_stream_has_the_rate() -> None:
    desk = make_desk(delay_s=0.02)
    for number in range(100):
        desk.fabric.take(0.0, 0, frame(1, 0, number=number))
    desk.run()
    assert desk.times(1) == pytest.approx([0.001 * (number + 1) + 0.02 + 0.001 for number in range(100)])


def test_both_directions_have_the_rate_at_once() -> None:
    desk = make_desk()
    for number in range(50):
        desk.fabric.take(0.0, 0, frame(1, 0, number=number))
        desk.fabric.take(0.0, 1, frame(0, 1, number=number))
    desk.run()
    assert desk.times(0)[-1] == desk.times(1)[-1] == pytest.approx(0.051)


def test_two_that_send_to_one_share_its_link() -> None:
    desk = make_desk(3)
    for number in range(50):
        desk.fabric.take(0.0, 0, frame(2, 0, number=number))
        desk.fabric.take(0.0, 1, frame(2, 1, number=number))
    desk.run()
    assert desk.times(2)[-1] == pytest.approx(0.101)
    assert [data[11] for _, _, data in desk.arrived[:4]] in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_frames_between_two_nodes_keep_their_order() -> None:
    desk, draw = make_desk(3, delay_s=0.001), random.Random(3)
    now_s = 0.0
    for number in range(500):
        source = draw.randrange(2)
        desk.fabric.take(now_s, source, frame(2, source, draw.randrange(60, 1500), number))
        now_s += draw.random() * 0.001
        desk.run(now_s)
    desk.run()
    assert len(desk.arrived) == 500
    for source in range(2):
        numbers = [int.from_bytes(data[12:20], "big") for _, _, data in desk.arrived if data[11] == source + 1]
        assert numbers == sorted(numbers)


def test_a_full_queue_drops_and_says_so() -> None:
    desk = make_desk()
    room = Link(10 * MBIT).queue_bytes
    num = room // 1250 + 40
    for number in range(num):
        desk.fabric.take(0.0, 0, frame(1, 0, number=number))
    desk.run()
    assert len(desk.arrived) == room // 1250
    assert desk.count(0, "overflowed_frames") == num - len(desk.arrived)
    assert desk.count(0, "sent_frames") == num
    desk.fabric.take(100.0, 0, frame(1, 0))  # it has drained since
    desk.run()
    assert desk.times(1)[-1] == pytest.approx(100.002)


def test_a_full_port_of_the_switch_drops_too() -> None:
    """Four at once send as much as their own links take: one link down cannot."""
    desk = make_desk(5)
    num = Link(10 * MBIT).queue_bytes // 1250
    for number in range(num):
        for source in range(4):
            desk.fabric.take(0.0, source, frame(4, source, number=number))
    desk.run()
    assert desk.count(4, "overflowed_frames") > 0
    assert len(desk.arrived) + desk.count(4, "overflowed_frames") == 4 * num
    assert sum(desk.count(source, "overflowed_frames") for source in range(4)) == 0


def test_a_cut_drops_what_is_sent_and_what_is_under_way() -> None:
    desk = make_desk(3, delay_s=0.5)
    desk.fabric.take(0.0, 0, frame(1, 0))
    desk.fabric.take(0.0, 1, frame(2, 1))
    desk.fabric.take(0.0, 0, frame(2, 0))
    desk.fabric.cut(1)
    desk.fabric.take(0.1, 1, frame(0, 1))
    desk.fabric.take(0.1, 0, frame(1, 0))
    desk.run()
    assert [(node, data[11] - 1) for _, node, data in desk.arrived] == [(2, 0)]
    assert sum(desk.count(node, "cut_frames") for node in range(3)) == 4
    assert [node["is_cut"] for node in desk.fabric.describe()["nodes"]] == [False, True, False]
    desk.fabric.heal(1)
    desk.fabric.take(2.0, 0, frame(1, 0))
    desk.fabric.take(2.0, 1, frame(0, 1))
    desk.run()
    assert sorted(node for _, node, _ in desk.arrived) == [0, 1, 2]


def lost(seed: int, loss: float = 0.1) -> tuple[int, ...]:
    desk = make_desk(loss=loss, seed=seed)
    for number in range(4000):
        desk.fabric.take(number, 0, frame(1, 0, 60, number))
        desk.run()
    arrived = {int.from_bytes(data[12:20], "big") for _, _, data in desk.arrived}
    gone = tuple(number for number in range(4000) if number not in arrived)
    assert desk.count(0, "lost_frames") == len(gone)
    return gone


def test_what_is_lost_follows_from_the_seed() -> None:
    assert 300 < len(lost(1)) < 500
    assert lost(1) == lost(1)
    assert lost(1) != lost(2)
    assert lost(1, loss=0.0) == ()


def test_a_broadcast_goes_to_all_others_and_strange_frames_to_nobody() -> None:
    desk = make_desk(4)
    desk.fabric.take(0.0, 2, b"\xff" * 6 + mac_of(2) + bytes(48))
    desk.fabric.take(0.0, 2, b"\x33\x33" + bytes(58))
    desk.run()
    assert sorted(node for _, node, _ in desk.arrived) == [0, 1, 3]
    assert desk.count(2, "sent_frames") == 1


def test_it_knows_how_late_it_was() -> None:
    desk = make_desk(delay_s=0.01)
    desk.fabric.take(0.0, 0, frame(1, 0))
    desk.fabric.deliver(0.032, lambda node, data: None)
    told = desk.fabric.describe()
    assert told["worst_late_s"] == told["mean_late_s"] == pytest.approx(0.02)
    assert told["nodes"][1]["received_bytes"] == 1250
