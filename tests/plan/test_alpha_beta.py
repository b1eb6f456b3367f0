"""The alpha-beta formula, compared with the textbook's, a simulation of gloo's ring, and hand-computed values."""

from __future__ import annotations

import heapq
import itertools

import pytest

from frog.plan.links import Cost, collective_cost, payload_rate

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
