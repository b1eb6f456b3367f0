"""Times of collectives, by hand, on two nodes of eight GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frog.plan.estimate.constants import Constants
from frog.plan.estimate.hardware import clusters
from frog.plan.links import Group

NO_LATENCY = replace(Constants(), link=1.0, network=1.0, link_latency_s=0.0, network_latency_s=0.0)
H100 = clusters()["h100x8"]
LINKS = H100.links(NO_LATENCY)
GIGA = 1e9


@pytest.mark.parametrize(
    ("group", "bytes_per_s"),
    [
        (Group(8, 1), 450 * GIGA),  # a node
        (Group(4, 2), 450 * GIGA),
        (Group(16, 1), 400 * GIGA),  # two nodes, all their adapters
        (Group(4, 4), 100 * GIGA),  # two ranks in each node, with an adapter each
        (Group(2, 8), 50 * GIGA),  # one rank in each node
    ],
)
def test_ring_is_as_fast_as_its_slowest_link(group: Group, bytes_per_s: float) -> None:
    assert LINKS.bandwidth(group) == pytest.approx(bytes_per_s)


def test_all_reduce_is_a_reduce_scatter_and_a_gather() -> None:
    assert LINKS.gather(8e9, Group(8, 1)) == pytest.approx(7 / 8 * 8 / 450)
    assert LINKS.all_reduce(8e9, Group(8, 1)) == pytest.approx(2 * LINKS.gather(8e9, Group(8, 1)))
    assert LINKS.all_reduce(8e9, Group(1, 1)) == 0


@pytest.mark.parametrize(
    ("group", "seconds"),
    [
        (Group(16, 1), 2 * 7 / 8 * 8 / 450),  # two nodes: the links inside bound it
        (Group(4, 4), 2 * 1 / 2 * 8 / 100),  # two ranks of each of two nodes
        (Group(32, 1), 2 * 7 / 8 * 8 / 450),
        (Group(8, 8), 2 * 7 / 8 * 8 / 50),  # a rank of each of eight nodes
    ],
)
def test_all_reduce_between_nodes_sends_only_the_sum_of_each(group: Group, seconds: float) -> None:
    assert LINKS.all_reduce(8e9, group) == pytest.approx(seconds)


def test_latency_counts_hops_inside_and_between_nodes() -> None:
    links = H100.links(replace(NO_LATENCY, link_latency_s=1.0, network_latency_s=100.0))
    assert links.latency(Group(8, 1)) == 7
    assert links.latency(Group(32, 1)) == 7 + 3 * 100
    assert links.all_reduce(0, Group(32, 1)) == 2 * (7 + 2 * 100), "a tree between nodes"


def test_rows_sent_once_to_a_node_take_less_time() -> None:
    group = Group(64, 1)
    usual = LINKS.all_to_all(1e9, group)
    once, few = LINKS.all_to_all(1e9, group, 8), LINKS.all_to_all(1e9, group, 8, 4)
    assert usual == pytest.approx(56 / 64 / 50)
    assert once == pytest.approx(usual * 8 * (1 - (7 / 8) ** 8) / 8)
    assert few == pytest.approx(usual * 4 / 8)


@pytest.mark.parametrize(
    ("group", "bytes_per_s"),
    [
        (Group(8, 1), 450 * GIGA),  # a node
        (Group(32, 1), 400 * GIGA),  # below one leaf switch
        (Group(4, 8), 50 * GIGA),
        (Group(64, 1), 400 * GIGA),  # two leaves: the leaf's links carry the traffic of one of its four nodes
        (Group(8, 8), 50 * GIGA),  # four ranks below each leaf, at a quarter of their bandwidth
        (Group(8, 16), 25 * GIGA),  # two below each leaf
        (Group(8, 32), 12.5 * GIGA),  # one
        (Group(8, 64), 12.5 * GIGA),
    ],
)
def test_groups_share_the_links_above_a_leaf_switch(group: Group, bytes_per_s: float) -> None:
    links = replace(H100, nodes_per_leaf=4, oversubscription=4.0).links(NO_LATENCY)
    assert links.bandwidth(group) == pytest.approx(bytes_per_s)
    assert links.gather(8e9, group) == pytest.approx((group.size - 1) / group.size * 8e9 / bytes_per_s)


def test_messages_and_rows_share_the_links_above_a_leaf_switch() -> None:
    links = replace(H100, nodes_per_leaf=4, oversubscription=4.0).links(NO_LATENCY)
    assert links.send(1e9, links.route(Group(2, 4))) == LINKS.send(1e9, LINKS.route(Group(2, 4)))
    assert links.send(1e9, links.route(Group(4, 8))) == pytest.approx(1 / 50), "all four stages below one leaf switch"
    assert links.send(1e9, links.route(Group(2, 16))) == pytest.approx(1 / 50), "both stages below one leaf switch"
    assert links.send(1e9, links.route(Group(8, 8))) == pytest.approx(1 / 50), (
        "8 of 32 GPUs send above the leaf, as many as it can"
    )
    assert links.send(1e9, links.route(Group(8, 16))) == pytest.approx(2 / 50)
    assert links.send(1e9, links.route(Group(8, 64))) == pytest.approx(4 / 50)
    assert links.all_to_all(1e9, Group(32, 1)) == LINKS.all_to_all(1e9, Group(32, 1))
    assert links.all_to_all(1e9, Group(64, 1)) == pytest.approx(4 * 32 / 64 / 50), "half of the rows go to another leaf"


def test_leaf_smaller_than_an_nvlink_domain_limits_only_what_leaves_the_domain() -> None:
    gb200 = replace(clusters()["gb200-nvl72"], nodes_per_leaf=1, oversubscription=2.0)
    links = gb200.links(NO_LATENCY)
    assert links.bandwidth(Group(72, 1)) == gb200.gpu.link_bandwidth
    assert links.bandwidth(Group(4, 36)) == pytest.approx(2 * 50 * GIGA / 2)


@pytest.mark.parametrize(
    ("group", "outside"),
    [
        (Group(4, 2), 0),  # all stages in a node
        (Group(16, 2), 4 / 16),  # 3 -> 4, 7 -> 8, 11 -> 12, and 15 -> 0 with chunks
        (Group(10, 2), 3 / 10),
        (Group(2, 8), 1),
        (Group(3, 6), 1),  # a node has no two stages
    ],
)
def test_stages_at_the_edge_of_a_node_send_over_the_network(group: Group, outside: float) -> None:
    assert LINKS.send(1e9, LINKS.route(group)) == pytest.approx(outside / 50 + (1 - outside) / 450)


def test_message_to_another_node_takes_the_network() -> None:
    assert LINKS.send(1e9, LINKS.route(Group(2, 1))) == pytest.approx(1 / 450)
    assert LINKS.send(1e9, LINKS.route(Group(2, 8))) == pytest.approx(1 / 50)
