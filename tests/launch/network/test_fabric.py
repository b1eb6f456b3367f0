"""The switch's arithmetic: when frames arrive, and which are dropped. Times are simulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from frog.launch.network.link import Link
from frog.launch.network.namespaces import address_of, mac_of, name_of
from frog.launch.network.switch import Fabric

MBIT = 1e6


def frame(target: int, source: int, size: int = 1250, number: int = 0) -> bytes:
    head = mac_of(target) + mac_of(source) + number.to_bytes(8, "big")
    return head + bytes(size - len(head))


@dataclass
class FabricHarness:
    """A fabric, and the frames that it delivered: (time, node, frame)."""

    fabric: Fabric
    arrived: list[tuple[float, int, bytes]] = field(default_factory=list)

    def run(self, until_s: float = 1e9) -> None:
        """Deliver every frame exactly when it is due."""
        while (due_s := self.fabric.due_s) is not None and due_s <= until_s:
            self.fabric.deliver(due_s, lambda node, data, at=due_s: self.arrived.append((at, node, data)))  # type: ignore[misc]

    def times(self, node: int) -> list[float]:
        return [at for at, where, _ in self.arrived if where == node]

    def count(self, node: int, name: str) -> int:
        return int(self.fabric.describe()["nodes"][node][name])


def make_harness(num_nodes: int = 2, **link: float) -> FabricHarness:
    return FabricHarness(Fabric(num_nodes, Link(**{"rate_bits_per_s": 10 * MBIT, **link})))  # type: ignore[arg-type]


def test_frame_time_is_two_transmissions_and_one_delay() -> None:
    """1250 bytes at 10 Mbit/s are 1 ms up to the switch and 1 ms down to the node."""
    harness = make_harness(delay_s=0.02)
    harness.fabric.take(5.0, 0, frame(1, 0))
    harness.run()
    assert harness.times(1) == pytest.approx([5.022])


def test_stream_arrives_at_the_rate_of_the_link() -> None:
    harness = make_harness(delay_s=0.02)
    for number in range(100):
        harness.fabric.take(0.0, 0, frame(1, 0, number=number))
    harness.run()
    assert harness.times(1) == pytest.approx([0.001 * (number + 1) + 0.02 + 0.001 for number in range(100)])


def test_both_directions_have_the_full_rate_concurrently() -> None:
    harness = make_harness()
    for number in range(50):
        harness.fabric.take(0.0, 0, frame(1, 0, number=number))
        harness.fabric.take(0.0, 1, frame(0, 1, number=number))
    harness.run()
    assert harness.times(0)[-1] == harness.times(1)[-1] == pytest.approx(0.051)


def test_two_senders_share_the_link_of_their_receiver() -> None:
    harness = make_harness(3)
    for number in range(50):
        harness.fabric.take(0.0, 0, frame(2, 0, number=number))
        harness.fabric.take(0.0, 1, frame(2, 1, number=number))
    harness.run()
    assert harness.times(2)[-1] == pytest.approx(0.101)
    assert [data[11] for _, _, data in harness.arrived[:4]] in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_frames_between_two_nodes_keep_their_order() -> None:
    harness, draw = make_harness(3, delay_s=0.001), random.Random(3)
    now_s = 0.0
    for number in range(500):
        source = draw.randrange(2)
        harness.fabric.take(now_s, source, frame(2, source, draw.randrange(60, 1500), number))
        now_s += draw.random() * 0.001
        harness.run(now_s)
    harness.run()
    assert len(harness.arrived) == 500
    for source in range(2):
        numbers = [int.from_bytes(data[12:20], "big") for _, _, data in harness.arrived if data[11] == source + 1]
        assert numbers == sorted(numbers)


def test_full_queue_drops_frames_and_counts_them() -> None:
    harness = make_harness()
    room = Link(10 * MBIT).queue_bytes
    num = room // 1250 + 40
    for number in range(num):
        harness.fabric.take(0.0, 0, frame(1, 0, number=number))
    harness.run()
    assert len(harness.arrived) == room // 1250
    assert harness.count(0, "overflowed_frames") == num - len(harness.arrived)
    assert harness.count(0, "sent_frames") == num
    harness.fabric.take(100.0, 0, frame(1, 0))  # the queue has drained since
    harness.run()
    assert harness.times(1)[-1] == pytest.approx(100.002)


def test_full_port_of_the_switch_drops_frames() -> None:
    """Four nodes send as much as their links can carry, which is too much for the receiver's link."""
    harness = make_harness(5)
    num = Link(10 * MBIT).queue_bytes // 1250
    for number in range(num):
        for source in range(4):
            harness.fabric.take(0.0, source, frame(4, source, number=number))
    harness.run()
    assert harness.count(4, "overflowed_frames") > 0
    assert len(harness.arrived) + harness.count(4, "overflowed_frames") == 4 * num
    assert sum(harness.count(source, "overflowed_frames") for source in range(4)) == 0


def test_cut_drops_sent_frames_and_frames_in_flight() -> None:
    harness = make_harness(3, delay_s=0.5)
    harness.fabric.take(0.0, 0, frame(1, 0))
    harness.fabric.take(0.0, 1, frame(2, 1))
    harness.fabric.take(0.0, 0, frame(2, 0))
    harness.fabric.cut(1)
    harness.fabric.take(0.1, 1, frame(0, 1))
    harness.fabric.take(0.1, 0, frame(1, 0))
    harness.run()
    assert [(node, data[11] - 1) for _, node, data in harness.arrived] == [(2, 0)]
    assert sum(harness.count(node, "cut_frames") for node in range(3)) == 4
    assert [node["is_cut"] for node in harness.fabric.describe()["nodes"]] == [False, True, False]
    harness.fabric.heal(1)
    harness.fabric.take(2.0, 0, frame(1, 0))
    harness.fabric.take(2.0, 1, frame(0, 1))
    harness.run()
    assert sorted(node for _, node, _ in harness.arrived) == [0, 1, 2]


def lost(seed: int, loss: float = 0.1) -> tuple[int, ...]:
    harness = make_harness(loss=loss, seed=seed)
    for number in range(4000):
        harness.fabric.take(number, 0, frame(1, 0, 60, number))
        harness.run()
    arrived = {int.from_bytes(data[12:20], "big") for _, _, data in harness.arrived}
    gone = tuple(number for number in range(4000) if number not in arrived)
    assert harness.count(0, "lost_frames") == len(gone)
    return gone


def test_seed_determines_the_lost_frames() -> None:
    assert 300 < len(lost(1)) < 500
    assert lost(1) == lost(1)
    assert lost(1) != lost(2)
    assert lost(1, loss=0.0) == ()


def test_broadcast_reaches_all_other_nodes_and_unknown_frames_none() -> None:
    harness = make_harness(4)
    harness.fabric.take(0.0, 2, b"\xff" * 6 + mac_of(2) + bytes(48))
    harness.fabric.take(0.0, 2, b"\x33\x33" + bytes(58))
    harness.run()
    assert sorted(node for _, node, _ in harness.arrived) == [0, 1, 3]
    assert harness.count(2, "sent_frames") == 1


def test_fabric_reports_how_late_it_delivered() -> None:
    harness = make_harness(delay_s=0.01)
    harness.fabric.take(0.0, 0, frame(1, 0))
    harness.fabric.deliver(0.032, lambda node, data: None)
    told = harness.fabric.describe()
    assert told["worst_late_s"] == told["mean_late_s"] == pytest.approx(0.02)
    assert told["nodes"][1]["received_bytes"] == 1250


def test_mean_lateness_is_over_all_delivered_frames() -> None:
    harness = make_harness(delay_s=0.01)
    told = harness.fabric.describe()
    assert (told["worst_late_s"], told["mean_late_s"]) == (0.0, 0.0)
    for sent_s, delivered_s in ((0.0, 0.032), (1.0, 1.018)):
        harness.fabric.take(sent_s, 0, frame(1, 0))
        harness.fabric.deliver(delivered_s, lambda node, data: None)
    told = harness.fabric.describe()
    assert told["worst_late_s"] == pytest.approx(0.02)
    assert told["mean_late_s"] == pytest.approx(0.013)


def test_hardware_addresses_are_local_and_different() -> None:
    """The lowest bit of the first byte marks a group of nodes, the next one an address that no vendor gave."""
    addresses = [mac_of(node) for node in (0, 1, 63, 255)]
    assert [address.hex(":") for address in addresses] == [
        "02:00:0a:4d:00:01", "02:00:0a:4d:00:02", "02:00:0a:4d:00:40", "02:00:0a:4d:01:00",
    ]  # fmt: skip


@pytest.mark.parametrize(("num_nodes", "first"), [(1, 1), (9, 1), (10, 101), (64, 101)])
def test_addresses_of_nodes_sort_as_text_in_node_order(num_nodes: int, first: int) -> None:
    addresses = [address_of(node, num_nodes) for node in range(num_nodes)]
    assert addresses == [f"10.77.0.{first + node}" for node in range(num_nodes)]
    assert addresses == sorted(addresses)
    assert [name_of(node) for node in (0, 12)] == ["node0", "node12"]
