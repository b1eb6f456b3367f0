"""Plans computed from recorded facts: the peak, the clocks of a step, the text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from frog.plan.estimate.constants import FITTED
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.kernels import Kernels
from frog.plan.layout import Layout
from frog.plan.links import Group
from frog.plan.program.program_memory import memory_of
from frog.plan.program.program_text import ProgramPlan, program_json, program_lines
from frog.plan.program.program_time import ProgramTime, StepClock

CLUSTER = clusters()["h100x8"]
MIB, GIB = 2**20, 2**30
PRODUCT = ["product", 1, "forward", 1, 8192, 4096, 4096, 2, 16, "mm"]
GATHERED = 256 * MIB


def facts_of(rows: list[list[Any]] | None = None, **changes: Any) -> dict[str, Any]:
    facts = {
        "error": None,
        "steps": 2,
        "parameters": 1000,
        "rank_parameters": 500,
        "lines": ["(outside of your files)", "my.py:3", "my.py:4"],
        "rows": rows or [],
        "storages": [],
        "memory": [],
        "step_memory": 0,
        "answered": {},
        "no_rule": {},
        "embedded": {},
        "allow_tf32": False,
        "notes": {},
        "clock_readings": 0,
    }
    return {**facts, **changes}


def time_of(*rows: list[Any], num_gpus: int = 8) -> ProgramTime:
    return StepClock(CLUSTER).play(facts_of(list(rows)), num_gpus)


def collective(kind: str, mode: str = "blocking", key: str = "", stride: int = 1) -> list[Any]:
    return ["collective", 2, "forward", kind, GATHERED, 8, stride, mode, key]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_peak_is_the_largest_moment_of_the_planned_step() -> None:
    """The first step's peak, 9 GiB, does not count; storage 1 is held in both steps."""
    storages = [[1 * GIB, 1, "parameters"], [8 * GIB, 2, "forward"], [2 * GIB, 2, "activations"], [3 * GIB, 1, "x"]]
    facts = facts_of(storages=storages, memory=[1, 2, -2, 3, -3, 4], step_memory=3)
    memory = memory_of(facts)
    assert memory.by_kind == {"parameters": 1 * GIB, "other": 3 * GIB}
    assert memory.by_line == {(1, "parameters"): 1 * GIB, (1, "other"): 3 * GIB}
    assert memory.total == memory.allocated + 1.5e9 + 0.06 * 3 * GIB


def test_peak_may_be_what_the_step_begins_with() -> None:
    facts = facts_of(storages=[[GIB, 1, "parameters"], [MIB, 1, "x"]], memory=[1, 2, -2, 2, -2], step_memory=5)
    assert memory_of(facts).by_kind == {"parameters": GIB}


# ---- time ------------------------------------------------------------------------------------------------------------


def test_a_product_takes_the_time_of_the_kernel_model() -> None:
    kernels = Kernels(CLUSTER.gpu, Layout(seq_len=1, global_batch=1), FITTED)
    time = time_of(PRODUCT)
    assert time.products == kernels.product(8192, 4096, 4096)
    assert time.model_flops == 2 * 8192 * 4096 * 4096
    assert time.total == pytest.approx(time.products + FITTED.launch_s + FITTED.step_s)


def test_products_in_float32_take_longer_and_are_counted() -> None:
    in_float32 = [*PRODUCT[:7], 4, 16, "mm"]
    assert time_of(in_float32).products > 1.9 * time_of(PRODUCT).products
    assert time_of(in_float32).num_float32 == 1


def test_recomputed_operations_take_time_but_do_not_count_for_mfu() -> None:
    again = [*PRODUCT[:2], "recomputed", *PRODUCT[3:]]
    time = time_of(PRODUCT, again)
    assert time.products == 2 * time_of(PRODUCT).products
    assert time.model_flops == time_of(PRODUCT).model_flops


def test_causal_attention_counts_half_and_its_backward_pass_twice() -> None:
    sizes = [32, 4096, 4096, 128, 128]
    forward = ["attention", 1, "forward", *sizes, True, False, "flash"]
    backward = ["attention", 1, "backward", *sizes, True, True, "flash"]
    whole = ["attention", 1, "forward", *sizes, False, False, "flash"]
    flops = 2 * 32 * 4096 * 4096 * 256
    assert time_of(forward).model_flops == flops / 2
    assert time_of(backward).model_flops == flops
    assert time_of(whole).model_flops == flops
    assert time_of(whole).attention == pytest.approx(2 * 4096 / (4096 + 128) * time_of(forward).attention)
    assert time_of(backward).attention == 2.5 * time_of(forward).attention


def test_a_gpu_waits_for_python_until_a_synchronization_stops_both() -> None:
    """Small operations are bound by their launches; after a large one, Python is ahead."""
    small = ["memory", 1, "forward", 1000, "add"]
    large = ["memory", 1, "forward", 10**10, "add"]
    assert time_of(*[small] * 100).launch == pytest.approx(100 * FITTED.launch_s, rel=0.01)
    assert time_of(large, *[small] * 10).launch == pytest.approx(FITTED.launch_s)
    assert time_of(large, ["sync", 1], *[small] * 10).launch == pytest.approx(11 * FITTED.launch_s, rel=0.01)
    assert time_of(*[["memory", 1, "backward", 1000, "add"]] * 10).launch == pytest.approx(
        5 * FITTED.launch_s, rel=0.01
    )


def test_a_product_whose_matrices_start_anywhere_takes_eight_times_as_long() -> None:
    odd = [*PRODUCT[:-2], 2, "mm"]
    assert time_of(odd).products == pytest.approx(8 * time_of(PRODUCT).products)
    in_float32 = [[*PRODUCT[:7], 4, loaded, "mm"] for loaded in (4, 16)]
    assert time_of(in_float32[0]).products == time_of(in_float32[1]).products


def test_a_blocking_collective_is_exposed_whole() -> None:
    links = CLUSTER.links(FITTED)
    time = time_of(PRODUCT, collective("all_reduce"))
    assert time.communication == pytest.approx(links.all_reduce(GATHERED, Group(8, 1)))
    assert time.slowed == 0


def test_a_started_collective_hides_behind_computation_until_it_is_awaited() -> None:
    links = CLUSTER.links(FITTED)
    seconds = links.gather(GATHERED, Group(8, 1))
    alone = time_of(collective("all_gather", "started", "unshard 1"), ["wait", "unshard 1"])
    hidden = time_of(collective("all_gather", "started", "unshard 1"), *[PRODUCT] * 20, ["wait", "unshard 1"])
    assert alone.communication == pytest.approx(seconds + FITTED.launch_s)
    assert hidden.communication == 0
    passes = 3 * 7 / 8 * GATHERED / (CLUSTER.gpu.memory_bandwidth * FITTED.memory)
    assert hidden.slowed == pytest.approx(20 / 112 * seconds + passes)  # 20 of 132 multiprocessors


def test_only_bytes_of_other_ranks_pass_the_memory() -> None:
    links, rate = CLUSTER.links(FITTED), CLUSTER.gpu.memory_bandwidth * FITTED.memory

    def passed(kind: str, num_ranks: int) -> float:
        row, group = collective(kind, "started", "reduce"), Group(num_ranks, 1)
        row[5] = num_ranks
        seconds = links.all_reduce(GATHERED, group) if kind == "all_reduce" else links.gather(GATHERED, group)
        time = time_of(row, *[PRODUCT] * 100, ["wait", "reduce"])
        return (time.slowed - 20 / 112 * float(seconds)) * rate / GATHERED

    for kind, times in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        assert passed(kind, 8) == pytest.approx(times * 3 * 7 / 8)
    assert passed("all_reduce", 1) == 0, "nothing arrives"


def test_a_collective_takes_at_most_half_of_a_small_device() -> None:
    small = replace(CLUSTER, gpu=replace(CLUSTER.gpu, num_sms=20, memory_bandwidth=1e20))
    rows = [collective("all_gather", "started", "unshard 1"), *[PRODUCT] * 2000, ["wait", "unshard 1"]]
    seconds = small.links(FITTED).gather(GATHERED, Group(8, 1))
    assert StepClock(small).play(facts_of(rows), 8).slowed == pytest.approx(seconds)


def test_a_reduction_starts_after_its_gradients_and_the_step_ends_after_it() -> None:
    links = CLUSTER.links(FITTED)
    time = time_of(*[PRODUCT] * 20, collective("reduce_scatter", "started", "reduce"))
    assert time.communication == pytest.approx(links.gather(GATHERED, Group(8, 1)))
    assert time.by_line[2] == time.communication


def test_a_group_across_nodes_uses_the_network() -> None:
    inside, across = time_of(collective("all_reduce")), time_of(collective("all_reduce", stride=8), num_gpus=64)
    assert across.communication > 3 * inside.communication
    assert across.groups[8, 8].kinds == {"all_reduce": 1}


# ---- streams and events ----------------------------------------------------------------------------------------------

ON_1, ON_0 = ["stream", 1], ["stream", 0]


def test_a_collective_on_its_own_stream_hides_until_a_stream_or_an_event_joins() -> None:
    seconds = CLUSTER.links(FITTED).gather(GATHERED, Group(8, 1))
    gather = [ON_1, collective("all_gather"), ON_0]
    assert time_of(*gather, *[PRODUCT] * 20, ["join", 0, 1]).communication == 0
    assert time_of(*gather, ["join", 0, 1]).communication == pytest.approx(seconds + FITTED.launch_s)
    by_event = time_of(*gather[:2], ["record", 5, 1], *gather[1:], ["wait_event", 0, 5], *[PRODUCT] * 20)
    assert by_event.communication == pytest.approx(seconds + FITTED.launch_s)  # of the first one only
    assert by_event.by_line[2] == by_event.communication


def test_a_stream_that_joins_the_default_one_starts_after_its_work() -> None:
    seconds = CLUSTER.links(FITTED).gather(GATHERED, Group(8, 1))
    after = time_of(*[PRODUCT] * 20, ["join", 1, 0], ON_1, collective("reduce_scatter"), ON_0, ["join", 0, 1])
    assert after.communication == pytest.approx(seconds)
    assert time_of(*[PRODUCT] * 20, ON_1, collective("reduce_scatter"), ON_0, ["join", 0, 1]).communication == 0


def test_work_on_another_stream_takes_the_gpu_only_while_the_default_one_computes() -> None:
    copy = ["memory", 1, "forward", 10**9, "copy_"]
    assert time_of(ON_1, copy, ON_0).memory == 0
    beside = time_of(PRODUCT, ON_1, copy, ON_0)
    assert beside.total == pytest.approx(time_of(PRODUCT, copy).total, rel=0.01)


def test_python_waits_for_an_event_and_then_launches_late() -> None:
    """So does FSDP1, which limits how many gathers are in flight."""
    small = ["memory", 1, "forward", 1000, "add"]
    ahead = time_of(PRODUCT, ["record", 1, 0], PRODUCT, *[small] * 5)
    late = time_of(PRODUCT, ["record", 1, 0], ["sync_event", 1], PRODUCT, *[small] * 5)
    assert late.launch == pytest.approx(ahead.launch + FITTED.launch_s)


def test_a_clock_continues_over_steps() -> None:
    clock = StepClock(CLUSTER)
    first = clock.play(facts_of([PRODUCT, ["sync", 1], ["record", 1, 0]]), 8)
    clock.play_rows([PRODUCT, ["sync", 1], ["record", 2, 0]])
    assert clock.events[2] - clock.events[1] == pytest.approx(first.total - FITTED.launch_s)  # launched meanwhile


# ---- text ------------------------------------------------------------------------------------------------------------


def plan_of(facts: dict[str, Any]) -> ProgramPlan:
    return ProgramPlan({0: facts}, "my.py", "h100x8", CLUSTER, 8, 0)


@pytest.mark.parametrize(("size", "verdict"), [(70, "fits"), (76, "MAY NOT FIT"), (79, "DOES NOT FIT")])
def test_text_says_if_the_program_fits_and_which_line_holds_the_peak(size: int, verdict: str) -> None:
    facts = facts_of([PRODUCT], storages=[[size * GIB, 1, "parameters"]], memory=[1])
    text = "\n".join(program_lines(plan_of(facts)))
    assert f"of 79.1: {verdict}" in text
    assert f"{size:>10.2f}  my.py:3  parameters" in text


def test_text_names_what_was_answered_skipped_and_assumed() -> None:
    facts = facts_of(
        [[*PRODUCT[:7], 4, 16, "mm"]],
        answered={"my.py:9": [".item()", 3]},
        no_rule={"my.op.default": 2},
        notes={"torch.compile": 1, "torch.save": 1},
        embedded={"1": 8192},
        clock_readings=4,
    )
    text = "\n".join(program_lines(plan_of(facts)))
    for words in (
        "rank 0 stands for all 64",
        "it read the planned time 4 x from `time` and CUDA events, so the speeds that it prints are simulated",
        "my.py:9: .item() answered by a constant, 3 x",
        "my.op.default: 2 x, counted as memory-bound",
        "torch.compile: skipped",
        "torch.save: wrote nothing",
        "1 product in float32: at the rate of TF32, half of bfloat16's; the program does not allow TF32",
        "8,192 tokens on this rank",
    ):
        assert words in text


def test_json_has_the_numbers_of_the_text() -> None:
    facts = facts_of([PRODUCT], storages=[[GIB, 1, "parameters"]], memory=[1], embedded={"1": 100, "2": 8192})
    found = json.loads(program_json(plan_of(facts)))
    time = StepClock(CLUSTER).play(facts, 64)
    assert found["memory"]["by_line"] == [{"line": "my.py:3", "kind": "parameters", "bytes": GIB}]
    assert found["time"]["total"] == time.total
    assert found["mfu"] == time.model_flops / (CLUSTER.gpu.peak_bf16 * time.total)
    assert found["tokens"] == 8192
