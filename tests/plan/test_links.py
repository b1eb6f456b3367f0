"""Seconds of collectives, compared with hand-computed values: the alpha-beta formula between nodes, also with the
textbook's and a simulation of gloo's ring, and the links of a GPU cluster.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import pytest

from frog.plan.estimate.constants import Constants
from frog.plan.estimate.hardware import clusters
from frog.plan.links import Cost, Group, collective_cost, payload_rate

MIB = 1 << 20


def ring_all_reduce_s(num_nodes: int, payload_bytes: float, alpha_s: float, beta_bytes_per_s: float) -> float:
    """Return the textbook's time of an all-reduce over one rank per node: 2(n-1) alpha + 2(n-1)/n B / beta.

    Source:  Thakur, Rabenseifner and Gropp 2005, section 4.4; Patarasuk and Yuan 2009.
    """
    steps = 2 * (num_nodes - 1)
    return steps * alpha_s + steps * payload_bytes / num_nodes / beta_bytes_per_s


def cost(op: str, groups: list[list[int]], asks: bool = True, payload_bytes: float = MIB) -> Cost:
    found = collective_cost(op, payload_bytes, groups, asks=asks)
    assert found is not None
    return found


@pytest.mark.parametrize("n", [2, 3, 4, 7, 16])
def test_one_rank_per_node_equals_textbook_formula(n: int) -> None:
    found = cost("all_reduce", [list(range(n))], asks=False)
    assert found.seconds(0.02, 1e7) == pytest.approx(ring_all_reduce_s(n, MIB, 0.02, 1e7))
    assert found == Cost(2 * (n - 1), pytest.approx(2 * (n - 1) / n * MIB))  # type: ignore[arg-type]
    assert cost("all_reduce", [list(range(n))]).num_delays == 4 * (n - 1)
    assert cost("all_gather", [list(range(n))], asks=False) == Cost(n - 1, pytest.approx((n - 1) / n * MIB))  # type: ignore[arg-type]


def test_textbook_formula_matches_hand_computed_time() -> None:
    """Two nodes, 4 MB, 20 ms, 12.5 MB/s: two messages of 2 MB each way, 40 ms + 320 ms."""
    assert ring_all_reduce_s(2, 4e6, 0.02, 12.5e6) == pytest.approx(0.36)
    assert cost("all_reduce", [[0, 1]], payload_bytes=4e6).seconds(0.02, 12.5e6) == pytest.approx(0.40)


def test_two_rings_over_the_same_links_share_them() -> None:
    one, two = cost("all_reduce", [[0, 1]]), cost("all_reduce", [[0, 1], [0, 1]])
    assert two == Cost(one.num_delays, 2 * one.link_bytes)


def test_link_bytes_follow_the_number_of_crossing_hops() -> None:
    """Four ranks: 3/2 of the payload over each link. If interleaved, all four hops of the ring cross: twice as much."""
    assert cost("all_reduce", [[0, 0, 1, 1]]).link_bytes == pytest.approx(1.5 * MIB)
    assert cost("all_reduce", [[0, 1, 0, 1]]).link_bytes == pytest.approx(3 * MIB)


def test_communication_within_a_node_costs_nothing() -> None:
    for op in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter"):
        assert cost(op, [[0, 0], [1, 1]]) == Cost(0, 0.0)


def test_all_to_all_loads_links_with_all_pairs() -> None:
    """Each of two ranks sends a quarter to each of the two on the other node: half of both payloads, B in total."""
    assert cost("all_to_all", [[0, 0, 1, 1]]) == Cost(2, MIB)
    assert cost("reduce_scatter", [[0, 1, 2]], asks=False) == Cost(1, pytest.approx(2 / 3 * MIB))  # type: ignore[arg-type]


def test_busiest_link_determines_the_cost() -> None:
    assert cost("all_to_all", [[0, 0, 0, 1]]).link_bytes == pytest.approx(0.75 * MIB)
    assert cost("all_to_all", [[0, 0, 1, 2]]).link_bytes == pytest.approx(MIB)


def test_operation_without_formula_returns_none() -> None:
    assert collective_cost("broadcast", MIB, [[0, 1]]) is None
    assert collective_cost("all_reduce", 24, [[0, 0, 1, 1]]) is None
    assert collective_cost("all_reduce", 32, [[0, 0, 1, 1]]) is not None


def test_beta_excludes_packet_headers() -> None:
    """A frame of 9014 bytes carries 8948 bytes of payload; one of 1514 carries 1448."""
    assert payload_rate(1e8, 9000) == pytest.approx(12.5e6 * 8948 / 9014)
    assert payload_rate(1e7, 1500) == pytest.approx(1.25e6 * 1448 / 1514)


@pytest.mark.parametrize(
    "nodes", [[0, 1], [0, 1, 2], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1, 1, 1], [0, 1, 2, 3], [0, 1, 1, 2], [0, 0, 1]]
)
@pytest.mark.parametrize("asks", [True, False])
def test_delays_match_simulated_messages(nodes: list[int], asks: bool) -> None:
    """A discrete-event simulation runs the same ring as programs that exchange messages."""
    for rounds, op in ((2, "all_reduce"), (1, "all_gather")):
        assert cost(op, [nodes], asks).num_delays == simulate(nodes, rounds * (len(nodes) - 1), asks)


def simulate(nodes: list[int], num_steps: int, asks: bool) -> int:
    """Simulate gloo: in each step a rank asks the rank after it, sends to the one before if that has asked, and
    continues when it has received and sent."""
    n, order = len(nodes), itertools.count()
    step, ready = [0] * n, [[False, False] for _ in range(n)]  # received, sent
    asked = [0 if asks else num_steps] * n  # number of requests from the rank before
    early = [0] * n  # messages that arrived before their step
    sent = [0] * n
    events: list[tuple[int, int, str, int]] = [(0, next(order), "begin", rank) for rank in range(n)]
    heapq.heapify(events)
    end = 0
    while events:
        now, _, what, rank = heapq.heappop(events)
        end = now

        def post(kind: str, to: int, source: int = rank, now: int = now) -> None:
            heapq.heappush(events, (now + (nodes[source] != nodes[to]), next(order), kind, to))

        if what == "begin" and asks and step[rank] < num_steps:
            post("ask", (rank + 1) % n)
        if what == "ask":
            asked[rank] += 1
        if what == "message":
            early[rank] += 1
        if step[rank] < num_steps and not ready[rank][1] and asked[rank] > sent[rank]:
            sent[rank] += 1
            ready[rank][1] = True
            post("message", (rank - 1) % n)
        if step[rank] < num_steps and not ready[rank][0] and early[rank]:
            early[rank] -= 1
            ready[rank][0] = True
        if all(ready[rank]):
            ready[rank] = [False, False]
            step[rank] += 1
            heapq.heappush(events, (now, next(order), "begin", rank))
    assert step == [num_steps] * n
    return end


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
    assert links.latency(Group(32, 1)) == pytest.approx(7 + 3 * 100 + 3 * 7 * 3.4e-6, abs=1e-9)
    assert links.latency(Group(4, 8)) == 3 * 100
    assert links.all_reduce(0, Group(32, 1)) == 2 * (7 + 2 * 100), "a tree between nodes"


def test_larger_groups_are_never_faster_and_pay_for_every_hop() -> None:
    links = H100.links(Constants())
    gathers = [links.gather(1e8, Group(2**doubling, 1)) for doubling in range(1, 11)]
    assert all(fewer < more for fewer, more in itertools.pairwise(gathers))
    many, few = (links.latency(Group(size, 1)) for size in (1024, 32))
    assert many - few == pytest.approx(124 * links.network_latency_s + 124 * 7 * 3.4e-6)


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
