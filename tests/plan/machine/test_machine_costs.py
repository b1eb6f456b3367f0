"""Costs of a measured machine: fitted from samples, derived for other worlds, written to a cluster file and read."""

from __future__ import annotations

import contextlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from frog.core.config import ModelConfig
from frog.core.errors import ConfigError, RunError
from frog.core.processes import is_alive
from frog.plan.estimate.hardware import find_cluster
from frog.plan.machine.calibration import Calibration, summary_lines
from frog.plan.machine.costs import Cost, Curve, Work, fit_cost
from frog.plan.machine.request import quick
from frog.plan.machine.work import head_work, layer_work, moved, optimizer_work
from frog.plan.machine.world import fit_machine, measure_worlds, worlds_of

COST = Cost(fixed_s=2e-4, products_s=2e-11, attention_s=5e-11, byte_s=1e-10)


def samples(kind: str, name: str, works: list[Work], cost: Cost) -> list[dict[str, object]]:
    return [{"kind": kind, "name": name, "work": vars(work), "seconds": cost.seconds(work)} for work in works]


def measured(size: int, factor: float) -> dict[str, object]:
    """Return what the ranks of a world report if operations cost `COST`, and messages as much as memory."""
    works = [Work(flops, flops / part, num) for flops, part, num in ((1e8, 9, 1e6), (5e8, 5, 2e6), (2e9, 30, 9e7))]
    works += [Work(3e9, 1e9, 1e7), Work(1e7, 1e5, 1e5)]
    moves = [Work(num_bytes=num_bytes) for num_bytes in (1e3, 1e6, 1e8)]
    cost = COST * factor
    found = [
        *samples("memory", "add", moves[1:2], Cost(byte_s=1e-10 * factor)),
        *samples("launch", "add", [Work()], Cost(fixed_s=1e-6)),
        *samples("reference", "product", [Work(2 * 512**3)], Cost(products_s=2e-11 * factor)),
        *samples("product", "fp32 512", [Work(2 * 512**3)], Cost(products_s=2e-11 * factor)),
        *samples("layer", "fp32", works, cost),
        *samples("head", "fp32", works, cost),
        *samples("optimizer", "adamw", moves, cost),
    ]
    if size > 1:
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "tensor", "sequence"):
            found += samples("link", op, moves, cost)
    return {"world_size": size, "threads": 1, "samples": found}


def calibration(cores: float = 2) -> Calibration:
    worlds = [measured(1, 1.0), measured(2, 1.0), measured(4, 2.0)]
    return Calibration(worlds, fit_machine(worlds, cores), "measured on a test's machine")


def test_fit_finds_the_parts_of_exact_samples() -> None:
    machine = calibration().machine
    assert vars(machine.worlds[2].layer["fp32"]) == pytest.approx(vars(COST))
    assert vars(machine.worlds[4].layer["fp32"]) == pytest.approx(vars(COST * 2))


def test_fit_never_has_a_negative_part() -> None:
    faster_when_larger = [(Work(1e9, 0, 1e6), 2.0), (Work(2e9, 0, 1e6), 1.0), (Work(4e9, 0, 1e6), 0.5)]
    assert min(vars(fit_cost(faster_when_larger)).values()) >= 0


def test_curve_interpolates_and_keeps_the_last_rate() -> None:
    curve = Curve.of([(1e6, 1e-3), (1e3, 2e-3), (1e8, 0.1)])
    assert curve.points[0] == (1e3, 1e-3), "a smaller message takes no longer than a larger one"
    assert curve.seconds(10) == 1e-3
    assert curve.seconds(5.05e7) == pytest.approx((0.1 + 1e-3) / 2)
    assert curve.seconds(1e8) == 0.1
    assert curve.seconds(2e8) == pytest.approx(0.2)
    assert (curve * 3).points == ((1e3, pytest.approx(3e-3)), (1e6, pytest.approx(3e-3)), (1e8, pytest.approx(0.3)))
    assert Curve(((1e3, 1.0), (1e6, 4.0), (1e8, 5.0))).seconds(2e8) == 10.0


def test_more_ranks_than_cores_share_them() -> None:
    machine = calibration(cores=2).machine
    assert [machine.slowdown(size) for size in (1, 2, 3, 4, 8)] == [1, 1, 1.5, 1, 2]
    pairs, alone = (machine.link_s("all_reduce", 1e6, 2, world) for world in (4, 2))
    assert pairs == pytest.approx(2 * alone)
    assert machine.link_s("all_reduce", 1e6, 8, 8) > 2 * machine.link_s("all_reduce", 1e6, 4, 4)


def test_larger_group_passes_on_more_bytes_in_more_hops() -> None:
    machine = calibration(cores=8).machine
    known = machine.worlds[4].links["all_reduce"].seconds(1e6)
    assert machine.link_s("all_reduce", 1e6, 4, 4) == pytest.approx(known)
    assert machine.link_s("all_reduce", 1e6, 8, 8) == pytest.approx(known * 7 / 3)  # hops: 7 instead of 3
    assert machine.link_s("all_reduce", 1e6, 3, 3) == pytest.approx(2 * machine.link_s("all_reduce", 1e6, 2, 2))
    assert machine.link_s("all_reduce", 1e6, 1, 1) == 0.0


# A layer of width 8 with 2 of 4 key heads' width 4, FFN 16: matrices 64 + 32 + 32 + 64 + 3 x 128 = 576, norms 16.
LAYER = ModelConfig(20, 8, 16, 3, 4, 2, 16)


@pytest.mark.parametrize(
    ("tp", "split", "work"),
    [
        (1, 1, Work(6 * 32 * 576, 7 * 32 * 16 * 8, 4 * (32 * (36 * 8 + 28 * 12 / 2 + 16 * 16) + 4 * 592))),
        (2, 1, Work(6 * 32 * 288, 7 * 32 * 16 * 4, 4 * (32 * (36 * 8 + 28 * 12 / 4 + 16 * 8) + 4 * 304))),
        (2, 2, Work(6 * 32 * 288, 7 * 32 * 16 * 4, 4 * (32 * (36 * 4 + 28 * 12 / 4 + 16 * 8) + 4 * 304))),
    ],
)
def test_work_of_a_layer_matches_hand_computed_numbers(tp: int, split: int, work: Work) -> None:
    assert layer_work(LAYER, 32, 16, tp, split) == work


def test_work_of_head_and_optimizer_matches_hand_computed_numbers() -> None:
    assert head_work(LAYER, 32) == Work(6 * 32 * 160, 0, 4 * (32 * (18 * 8 + 6 * 20) + 8 * 160))
    assert head_work(LAYER, 32, 2) == Work(6 * 32 * 80, 0, 4 * (32 * (18 * 8 + 6 * 10) + 8 * 80))
    # AdamW moves 11 numbers of a parameter; each moment less is read and written no more.
    assert [optimizer_work(10, states).num_bytes for states in (2, 1, 0)] == [440, 360, 280]
    assert moved(7) == Work(num_bytes=7)
    assert Work(1, 2, 3, 4) * 2 == Work(2, 4, 6, 8)
    assert Cost(1, 20, 300, 4000).seconds(Work(5, 6, 7, 8)) == 8 + 100 + 1800 + 28000
    assert Cost(1, 2, 3, 4) * 3 == Cost(3, 6, 9, 12)


def test_worlds_are_powers_of_two_with_the_threads_of_frog_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.core.machine.usable_cores", lambda: 4.0)
    assert worlds_of(8, None) == ((1, 4), (2, 2), (4, 1), (8, 1))
    assert worlds_of(2, 1) == ((1, 1), (2, 1))


def test_profile_is_a_cluster_file_with_the_same_costs(tmp_path: Path) -> None:
    found = calibration()
    (tmp_path / "machine.toml").write_text(found.text)
    cluster = find_cluster(str(tmp_path / "machine.toml"))
    assert cluster.machine is not None
    assert cluster.gpus_per_node == 2
    assert cluster.gpu.sustained_bf16 == pytest.approx(5e10)
    for size, costs in found.machine.worlds.items():
        again = cluster.machine.worlds[size]
        assert vars(again.layer["fp32"]) == pytest.approx(vars(costs.layer["fp32"]), rel=1e-3)
        assert again.optimizer.seconds(3e6) == pytest.approx(costs.optimizer.seconds(3e6), rel=1e-3)
        assert again.links.keys() == costs.links.keys()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cores = 2", "cores = 0", "machine.cores=0: must be above 0"),
        ('product = "50 GFLOP/s"', 'product = "50 s"', "machine.worlds.1.product='50 s': must be a number with a unit"),
        ('launch = "1 us"', "launch = 1", "machine.worlds.1.launch=1: must be a number with a unit"),
        ("[machine.worlds.4]", "[machine.worlds.many]", "machine.worlds.many: must be a number of ranks"),
        ("layer.fp32", "layer.fp23", "machine.worlds.1.layer.fp23: unknown key"),
        ("links.all_to_all = {", "links.all_reduced = {", "machine.worlds.2.links.all_to_all is missing"),
    ],
)
def test_wrong_profile_names_each_mistake(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = calibration().text
    assert old in text
    (tmp_path / "machine.toml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        find_cluster(str(tmp_path / "machine.toml"))
    assert said in str(caught.value)


@pytest.mark.parametrize(("cores", "ranks", "rate"), [(1, 1, "50 GFLOP/s"), (2, 2, "50 GFLOP/s"), (4, 4, "25 GFLOP/s")])
def test_node_of_the_cluster_file_is_the_largest_measured_world_with_a_core_per_rank(
    cores: int, ranks: int, rate: str
) -> None:
    """A rank of the world of four takes twice the time of 2e-11 s per operation, so it has half the rate."""
    keys = tomllib.loads(calibration(cores).text)
    assert keys["gpus_per_node"] == keys["nvlink_domain"] == ranks
    assert keys["gpu"]["peak_bf16"]["value"] == rate


@pytest.mark.parametrize("hostile", ["0", "-1", "nan", '"1"', '"1e99 s"', "[]", "{}", "true", "9" * 20])
def test_any_value_may_be_hostile(tmp_path: Path, hostile: str) -> None:
    text, path = calibration().text, tmp_path / "machine.toml"
    for found in list(re.finditer(r'(?<== )("[^"]*"|[0-9.]+|\{.*\})', text))[::3]:
        path.write_text(text[: found.start()] + hostile + text[found.end() :])
        with contextlib.suppress(ConfigError):
            find_cluster(str(path))


def test_half_a_profile_is_refused(tmp_path: Path) -> None:
    text = calibration().text
    (tmp_path / "machine.toml").write_text(text[: text.index("links.all_gather")])
    with pytest.raises(ConfigError, match="all_gather is missing"):
        find_cluster(str(tmp_path / "machine.toml"))


def test_empty_machine_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_text(calibration().text.partition("[machine.worlds.1]")[0])
    with pytest.raises(ConfigError, match=r"machine\.worlds"):
        find_cluster(str(tmp_path / "machine.toml"))


_FAILS_NEXT_TO_ANOTHER = """
import os, signal, sys, time
folder = "FOLDER"
if sys.argv[1] == "1":
    with open(folder + "/new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(folder + "/new", folder + "/pid")
    signal.pause()
while not os.path.exists(folder + "/pid"):
    time.sleep(0.01)
sys.exit("no room for the matrices")
"""


def test_failed_rank_ends_the_others_and_its_last_output_is_shown(tmp_path: Path) -> None:
    program = ("-c", _FAILS_NEXT_TO_ANOTHER.replace("FOLDER", str(tmp_path)))
    with pytest.raises(RunError, match=r"rank 0 ended with exit code 1.*\n.*no room for the matrices"):
        measure_worlds(quick(((1, 1), (2, 1)), cores=2), program)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_calibration_that_ran_out_of_time_says_how_much_differs() -> None:
    found = calibration()
    samples = [one for world in found.measured for one in world["samples"]]
    for number, one in enumerate(samples):
        one["late"] = number < 3
    assert any(f"3 of {len(samples)} operations differed" in line for line in summary_lines(found))
    assert not any("operations differed" in line for line in summary_lines(calibration()))


def test_calibration_of_a_busy_machine_says_so() -> None:
    idle = calibration()
    busy = replace(idle, cores=2, load=5.1)
    assert not [line for line in summary_lines(replace(idle, cores=2, load=0.9)) if line.startswith("note")]
    assert any("load 5.1 on 2" in line for line in summary_lines(busy))
    for load, says_so in ((1.5, False), (1.6, True)):  # three quarters of the cores
        lines = summary_lines(replace(idle, cores=2, load=load))
        assert any(line.startswith("note") for line in lines) == says_so


def test_summary_has_a_column_for_each_world() -> None:
    links = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "tensor", "sequence"]
    lines = [" ".join(line.split()) for line in summary_lines(calibration())]
    assert lines[:6] == [
        "measured on a test's machine",
        "ranks at once 1 2 4",
        "products of fp32, GFLOP/s 50 50 25",
        "memory, GB/s 10 10 5",
        "launch of an operation, us 1 1 1",
        "optimizer, large, GB/s 9.8 9.8 4.9",  # 1e8 bytes in 0.2 ms and 10 ms
    ]
    for place, op in enumerate(links):
        assert lines[6 + 2 * place] == f"{op}, alpha, us - 200 400"
        assert lines[7 + 2 * place] == f"{op}, beta, GB/s - 9.8 4.9"
    assert len(lines) == 6 + 2 * 7


def test_ranks_share_the_work_of_the_output_matrix() -> None:
    """Operations divide by the ranks; of the bytes, only those of the stream of hidden states do not."""
    small, large = (
        ModelConfig(
            vocab_size=size, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32,
        )
        for size in (1000, 3000)
    )  # fmt: skip
    for model in (small, large):
        assert head_work(model, 512, tp=4).products == head_work(model, 512).products / 4
    kept = [4 * head_work(model, 512, tp=4).num_bytes - head_work(model, 512).num_bytes for model in (small, large)]
    assert kept[0] == pytest.approx(kept[1])
    assert kept[0] > 0
