"""Simulated nodes: the option `--nodes`, their addresses, and the table of their ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frog.core.errors import UsageError
from frog.launch.node_agents import Options, Starter
from frog.launch.nodes import Nodes, parse_nodes, world_table


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("2x4", Nodes(2, 2, 4)),
        ("3", Nodes(3, 3, 1)),
        ("1:3x2", Nodes(1, 3, 2)),
        ("1:4", Nodes(1, 4, 1)),
        ("2:2", Nodes(2, 2, 1)),
        ("1x1", Nodes(1, 1, 1)),
        ("99", Nodes(99, 99, 1)),
    ],
)
def test_nodes_option_is_parsed(text: str, nodes: Nodes) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "x4", "2x", "two", "2x4x1", "0x2", "2x0", "3:1x2", "-1x2", "100"])
def test_invalid_nodes_option_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--nodes"):
        parse_nodes(text)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has one loopback address")
@pytest.mark.parametrize("count", [1, 9, 10, 99])
def test_addresses_of_nodes_sort_as_text_in_node_order(count: int) -> None:
    addresses = [Nodes(count, count, 1).address(node) for node in range(count)]
    assert addresses == sorted(addresses)
    assert len(set(addresses)) == count
    first = 1 if count < 10 else 101
    assert addresses == [f"127.0.0.{first + node}" for node in range(count)]


def test_nodes_are_elastic_or_several() -> None:
    kinds = [(nodes.elastic, nodes.several) for nodes in map(parse_nodes, ("1", "2x2", "1:2", "2:3"))]
    assert kinds == [(False, False), (False, True), (True, True), (True, True)]


def test_world_table_shows_what_the_agents_reported() -> None:
    def world(node: int, node_rank: int, ranks: list[int]) -> dict[str, object]:
        common = {"world_size": 4, "master_addr": "127.0.0.2", "master_port": 29511}
        return {"node": node, "node_rank": node_rank, "ranks": ranks, **common}

    table = world_table([world(2, 1, [2, 3]), world(1, 0, [0, 1])], {1: "node1", 2: "node2"})
    assert table.splitlines() == [
        "node   NODE_RANK  RANK    LOCAL_RANK  WORLD_SIZE  MASTER_ADDR  MASTER_PORT",
        "node1  0          0 to 1  0 to 1      4           127.0.0.2    29511",
        "node2  1          2 to 3  0 to 1      4           127.0.0.2    29511",
    ]


@pytest.mark.parametrize(
    ("gpus", "own"),
    [("0,1,2,3,4,5", ["0,1,2", "3,4,5"]), ("3,4,5,6,7", ["", ""]), ("", [None, None])],
)
def test_simulated_nodes_share_no_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: str, own: list[str | None]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    starter = Starter(parse_nodes("2x3"), [], Options(), tmp_path, None)
    found = [starter.environment(node)["CUDA_VISIBLE_DEVICES"] for node in (0, 1)]
    assert found == [gpus if expected is None else expected for expected in own]


def test_agent_finds_its_launch_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("frog.core.machine.usable_cores", lambda: 13)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.delenv("FROG_NODE_NAME", raising=False)
    options = Options(replace=3, extra_env={"OWN": "1"})
    starter = Starter(parse_nodes("1:2x3"), [], options, tmp_path, None)
    env = starter.environment(1)
    assert (env["OMP_NUM_THREADS"], env["FROG_REPLACE"], env["OWN"]) == ("2", "3", "1")  # 13 cores, 6 ranks
    assert (env["FROG_LAUNCH_DIR"], env["FROG_NODE_NAME"]) == (str(tmp_path), "node1")
    assert "PYTHONUNBUFFERED" not in env
    alone = Starter(parse_nodes("1x3"), [], Options(threads=7), tmp_path, None).environment(0)
    assert (alone["OMP_NUM_THREADS"], "FROG_NODE_NAME" in alone) == ("7", False)
