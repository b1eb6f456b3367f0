"""The report's section on the network: measured times of known collectives, compared with the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_files import event

from frog.core.runs import EventWriter
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.plan.report.network_section import axis_groups, network_section

MS = 1_000_000
LINK = {"rate_bits_per_s": 1e8, "delay_s": 0.02, "loss": 0.0, "seed": 0, "mtu": 9000}

Told = list[tuple[str, str, int, float, float]]
"""The collectives of one rank in step 1: operation, axis, payload, start and end in ms."""


def make_run(path: Path, ranks: list[Told], *, nodes: list[int], tp: int = 1, network: Any = LINK) -> RunFolder:
    folder = RunFolder(path)
    for rank, told in enumerate(ranks):
        writer = EventWriter(folder.rank_events(rank))
        place = {"pp": 0, "dp": rank // tp, "cp": 0, "tp": rank % tp}
        writer.emit(
            "start", rank=rank, world_size=len(ranks), local_rank=0, node_rank=nodes[rank], host=f"node{nodes[rank]}",
            pid=1, device="cpu", threads=1, step=0, unix_ns=10**18, mono_ns=0, place=place, passed_over=[],
            mesh={"pp": 1, "dp": len(ranks) // tp, "cp": 1, "tp": tp},
        )  # fmt: skip
        for seq, (op, axis, payload_bytes, start_ms, end_ms) in enumerate(told):
            writer.emit(
                "collective", step=1, op=op, axis=axis, payload_bytes=payload_bytes, seq=seq, wait_ns=0,
                start_ns=int(start_ms * MS), end_ns=int(end_ms * MS),
            )  # fmt: skip
        writer.close()
    launch(folder, network)
    return folder


def launch(folder: RunFolder, network: Any, counted: Any = None) -> None:
    with open(folder.launcher_events, "a") as file:
        file.write(json.dumps(event("launch", network=network)) + "\n")
        if counted is not None:
            file.write(json.dumps({"event": "end", "unix_ns": 2, "code": 0, "network": counted}) + "\n")


def rows_of(folder: RunFolder) -> list[dict[str, Any]]:
    section = network_section(read_history(folder))
    assert section is not None
    return list(section["rows"])


def test_collective_time_is_from_last_arrival_to_last_end(tmp_path: Path) -> None:
    """Rank 1 arrives 30 ms late, which is not counted as time of the network."""
    late = [("all_reduce", "dp", 1 << 20, 130.0, 290.0)]
    folder = make_run(tmp_path, [[("all_reduce", "dp", 1 << 20, 100.0, 296.0)], late], nodes=[0, 1])
    [row] = rows_of(folder)
    assert (row["op"], row["axis"], row["payload_bytes"], row["num"]) == ("all_reduce", "dp", 1 << 20, 1)
    assert row["measured_ms"] == pytest.approx(166.0)
    # Four delays of 20 ms, and 1 MiB at 100 Mbit/s, of which 8948 bytes of 9014 are payload: 84.5 ms.
    assert row["num_delays"] == 4
    assert row["gloo_ms"] == pytest.approx(80 + 1e3 * 2**20 / (12.5e6 * 8948 / 9014))
    assert row["book_ms"] == pytest.approx(row["gloo_ms"] - 40)
    assert row["ratio"] == pytest.approx(166.0 / row["gloo_ms"])


def test_second_of_two_overlapping_collectives_counts_from_the_end_of_the_first(tmp_path: Path) -> None:
    told: Told = [("all_reduce", "dp", 1 << 20, 0.0, 200.0), ("all_reduce", "dp", 1 << 19, 10.0, 260.0)]
    rows = {row["payload_bytes"]: row["measured_ms"] for row in rows_of(make_run(tmp_path, [told, told], nodes=[0, 1]))}
    assert rows == pytest.approx({1 << 20: 200.0, 1 << 19: 60.0})


def test_repeated_collectives_are_summarized_by_their_median(tmp_path: Path) -> None:
    told: Told = [("all_reduce", "dp", 4096, 100.0 * i, 100.0 * i + last) for i, last in enumerate((82, 81, 99))]
    [row] = rows_of(make_run(tmp_path, [told, told], nodes=[0, 1]))
    assert (row["num"], row["measured_ms"]) == (3, pytest.approx(82.0))


def test_collectives_inside_a_node_are_omitted(tmp_path: Path) -> None:
    """With dp 2 x tp 2 on two nodes of two ranks, tp stays inside a node, and two rings of dp share the links."""
    told: Told = [("all_reduce", "tp", 4096, 0.0, 1.0), ("all_reduce", "dp", 1 << 20, 2.0, 300.0)]
    folder = make_run(tmp_path, [told] * 4, nodes=[0, 0, 1, 1], tp=2)
    [row] = rows_of(folder)
    assert (row["axis"], row["link_bytes"], row["num_delays"]) == ("dp", 2 << 20, 4)


def test_operation_without_a_formula_is_shown_without_prediction(tmp_path: Path) -> None:
    told: Told = [("broadcast", "world", 64, 0.0, 41.0), ("all_reduce", "wormhole", 64, 50.0, 60.0)]
    [row] = rows_of(make_run(tmp_path, [told, told], nodes=[0, 1]))
    assert (row["op"], row["gloo_ms"], row["book_ms"], row["ratio"]) == ("broadcast", None, None, None)
    assert row["measured_ms"] == pytest.approx(41.0)


def test_collective_that_one_rank_never_ended_is_not_counted(tmp_path: Path) -> None:
    told: Told = [("all_reduce", "dp", 4096, 0.0, 80.0), ("all_reduce", "dp", 4096, 100.0, 180.0)]
    [row] = rows_of(make_run(tmp_path, [told, told[:1]], nodes=[0, 1]))
    assert row["num"] == 1


def test_run_without_a_network_has_no_network_section(tmp_path: Path) -> None:
    told: Told = [("all_reduce", "dp", 4096, 0.0, 1.0)]
    folder = make_run(tmp_path / "a", [told, told], nodes=[0, 1], network=None)
    assert network_section(read_history(folder)) is None
    folder = make_run(tmp_path / "b", [told, told], nodes=[0, 1])
    folder.launcher_events.unlink()
    assert network_section(read_history(folder)) is None
    folder = make_run(tmp_path / "c", [told, told], nodes=[0, 0])
    assert network_section(read_history(folder)) is None


def test_network_section_describes_the_last_launch(tmp_path: Path) -> None:
    told: Told = [("all_reduce", "dp", 4096, 0.0, 81.0)]
    folder = make_run(tmp_path, [told, told], nodes=[0, 1], network=None)
    launch(folder, {**LINK, "delay_s": 0.01}, {"mean_late_s": 0.0002, "worst_late_s": 0.004})
    with open(folder.launcher_events, "a") as file:
        file.write('{"event": "laun\n')
    section = network_section(read_history(folder))
    assert section is not None
    assert (section["delay_s"], section["counted"].worst_late_s) == (0.01, 0.004)
    launch(folder, None)
    assert network_section(read_history(folder)) is None


def test_axis_groups_follow_the_places_of_the_ranks() -> None:
    places = {rank: {"pp": 0, "dp": rank // 2, "cp": 0, "tp": rank % 2} for rank in range(4)}
    assert axis_groups("tp", places) == [[0, 1], [2, 3]]
    assert axis_groups("dp", places) == axis_groups("data", places) == [[0, 2], [1, 3]]
    assert axis_groups("world", places) == [[0, 1, 2, 3]]
    assert axis_groups("shard", places) == []
