"""Recorded steps of ranks that exchange messages, played together: against schedules computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog.core.errors import FrogError
from frog.core.runs import read_run
from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.observe.diagnose.run_diagnosis import diagnose
from frog.observe.view.report import render_report
from frog.plan.estimate.constants import FITTED
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.kernels import Kernels
from frog.plan.layout import Layout
from frog.plan.links import Group
from frog.plan.program.program_folder import write_program_folder
from frog.plan.program.program_text import ProgramPlan, program_json, program_lines
from frog.plan.program.program_time import ProgramTime
from frog.plan.program.ranks_together import play_together
from tests.plan.program.test_program_plans import facts_of

CLUSTER = clusters()["h100x8"]
CONSTANTS = replace(FITTED, launch_s=0.0, step_s=0.0, jitter=0.0)
FORWARD, BACKWARD, MESSAGE = 10**11, 3 * 10**11, 10**10
"""Bytes of a pass, and of a message."""
LINKS = CLUSTER.links(CONSTANTS)
Rows = list[list[Any]]


def moves(num_bytes: int) -> float:
    return float(Kernels(CLUSTER.gpu, Layout(seq_len=1, global_batch=1), CONSTANTS).moves(num_bytes))


F, B, C = moves(FORWARD), moves(BACKWARD), float(LINKS.send_inside(MESSAGE))


def compute(passed: str) -> list[Any]:
    return ["memory", 1, passed, FORWARD if passed == "forward" else BACKWARD, "add"]


def message(kind: str, rank: int, peer: int, name: str, line: int = 2, num_bytes: int = MESSAGE) -> list[Any]:
    return ["messages", line, "forward", f"messages {kind} {name}", "group 0", [[kind, num_bytes, peer, name]]]


def gpipe(rank: int, num_stages: int, num_micro: int, num_bytes: int = MESSAGE) -> dict[str, Any]:
    """Return the rows of torch's ScheduleGPipe: sends are awaited at the end, receptions at once."""
    rows: Rows = []

    def run(passed: str, before: int, after: int) -> None:
        for micro in range(num_micro):
            if 0 <= before < num_stages:
                received = message("recv", rank, before, f"{passed} {before} {micro}", num_bytes=num_bytes)
                rows.extend([received, ["wait", received[3]]])
            rows.append(compute(passed))
            if 0 <= after < num_stages:
                rows.append(message("send", rank, after, f"{passed} {rank} {micro}", num_bytes=num_bytes))

    run("forward", rank - 1, rank + 1)
    run("backward", rank + 1, rank - 1)
    return facts_of(rows, groups=[])


def played(facts: dict[int, dict[str, Any]], num_gpus: int = 8) -> dict[int, ProgramTime]:
    return play_together(facts, CLUSTER, num_gpus, CONSTANTS)


@pytest.mark.parametrize("num_micro", [1, 3, 8])
def test_two_stages_of_gpipe_take_the_time_computed_by_hand(num_micro: int) -> None:
    """A stage receives a micro-batch when its last one is computed, so each reception is exposed: 2 m of them.

    Micro-batch 1 reaches stage 1 at F + C, and each further one ends F + C later. In the backward pass it is the same.
    """
    times = played({rank: gpipe(rank, 2, num_micro) for rank in (0, 1)})
    expected = (num_micro + 1) * (F + B) + 2 * num_micro * C
    for rank, time in times.items():
        assert time.total == pytest.approx(expected)
        assert time.memory == pytest.approx(num_micro * (F + B))
        assert time.groups[2, 1].kinds == {"send": num_micro, "recv": num_micro}, rank
    assert times[0].communication == pytest.approx(num_micro * C)
    assert times[0].waiting == pytest.approx(expected - num_micro * (F + B + C))


@pytest.mark.parametrize(("num_stages", "num_micro"), [(2, 4), (4, 4), (4, 16)])
def test_the_bubble_of_gpipe_is_that_of_the_planner(num_stages: int, num_micro: int) -> None:
    """(p - 1) / m of the busy time, as in estimate/step_time.py (Narayanan et al. 2021, section 2.2)."""
    times = played({rank: gpipe(rank, num_stages, num_micro, num_bytes=1) for rank in range(num_stages)})
    busy = num_micro * (F + B)
    for time in times.values():
        assert time.waiting / busy == pytest.approx((num_stages - 1) / num_micro, rel=0.05)


def test_messages_of_both_directions_pass_at_once_and_those_of_one_direction_share_the_link() -> None:
    both = {0: facts_of(groups=[]), 1: facts_of(groups=[])}
    for rank in (0, 1):
        parts = [["send", MESSAGE, 1 - rank, f"from {rank}"], ["recv", MESSAGE, 1 - rank, f"from {1 - rank}"]]
        both[rank]["rows"] = [["messages", 2, "forward", "messages 0", "group 0", parts], ["wait", "messages 0"]]
    assert played(both)[0].total == pytest.approx(C)
    for rank, kind in enumerate(("send", "recv")):
        parts = [[kind, MESSAGE, 1 - rank, "first"], [kind, MESSAGE, 1 - rank, "second"]]
        both[rank]["rows"] = [["messages", 2, "forward", "messages 0", "group 0", parts], ["wait", "messages 0"]]
    assert played(both)[0].total == pytest.approx(2 * C)


@pytest.mark.parametrize(("communicators", "expected"), [("gg", 2 * C), ("ab", C)])
def test_messages_of_one_communicator_pass_one_after_the_other(communicators: str, expected: float) -> None:
    facts = {}
    for rank, kind in enumerate(("send", "recv")):
        starts = [[*message(kind, rank, 1 - rank, name)[:4], name, [[kind, MESSAGE, 1 - rank, f"{n}"]]]
                  for n, name in enumerate(communicators)]  # fmt: skip
        for n, row in enumerate(starts):
            row[3] = f"messages {n}"
        facts[rank] = facts_of([*starts, ["wait", "messages 0"], ["wait", "messages 1"]], groups=[])
    assert played(facts)[0].total == pytest.approx(expected)


def test_a_message_to_another_node_uses_the_network() -> None:
    facts = {0: facts_of(groups=[]), 8: facts_of(groups=[])}
    for rank, kind, peer in ((0, "send", 8), (8, "recv", 0)):
        facts[rank]["rows"] = [message(kind, rank, peer, "0"), ["wait", f"messages {kind} 0"]]
    assert played(facts, 16)[8].total == pytest.approx(LINKS.send_outside(MESSAGE, LINKS.route(Group(2, 8))))
    assert played(facts, 16)[8].total > 2 * C


def test_a_collective_of_several_ranks_starts_when_the_last_one_is_ready() -> None:
    reduced = ["collective", 2, "optimizer", "all_reduce", MESSAGE, 2, 1, "blocking", "", 0]
    facts = {0: facts_of([reduced], groups=[[0, 1]]), 1: facts_of([compute("forward"), reduced], groups=[[0, 1]])}
    seconds = LINKS.all_reduce(MESSAGE, Group(2, 1))
    times = played(facts)
    assert times[0].total == times[1].total == pytest.approx(F + seconds)
    assert times[0].waiting == pytest.approx(F)
    assert times[0].communication == times[1].communication == pytest.approx(seconds)
    assert times[0].groups[2, 1].kinds == {"all_reduce": 1}


def test_waiting_for_a_message_hides_nothing_of_a_collective_that_slows_the_computation() -> None:
    gathered = ["collective", 2, "forward", "all_gather", MESSAGE, 2, 2, "started", "unshard 1", 0]
    hidden = [gathered, compute("backward"), ["wait", "unshard 1"]]
    facts = {rank: gpipe(rank, 2, 3) for rank in (0, 1)}
    for rank, found in facts.items():
        found["rows"] = [*hidden, *found["rows"]]
        found["groups"] = [[rank, rank + 2]]
    seconds = LINKS.gather(MESSAGE, Group(2, 2))
    passes = 3 * MESSAGE / 2 / (CLUSTER.gpu.memory_bandwidth * FITTED.memory)  # the half that arrives
    assert played(facts)[0].slowed == pytest.approx(20 / 112 * seconds + passes)  # 20 of 132 multiprocessors


def test_a_message_from_an_earlier_step_has_arrived() -> None:
    """A rank may receive after its optimizer's step what the other one sent before its own."""
    received = message("recv", 1, 0, "loss of the last step")
    times = played({0: gpipe(0, 2, 1), 1: gpipe(1, 2, 1)})
    late = gpipe(1, 2, 1)
    late["rows"] = [received, ["wait", received[3]], *late["rows"]]
    assert played({0: gpipe(0, 2, 1), 1: late})[1].total <= times[1].total + 2 * C


def test_ranks_that_wait_for_each_other_are_named_with_their_lines() -> None:
    facts = {}
    for rank in (0, 1):
        received = message("recv", rank, 1 - rank, f"to {rank}", line=rank + 1)
        sent = message("send", rank, 1 - rank, f"to {1 - rank}")
        facts[rank] = facts_of([received, ["wait", received[3]], sent], groups=[])
    stuck = "rank 0 waits for rank 1 at my.py:3; rank 1 waits for rank 0 at my.py:4"
    with pytest.raises(FrogError, match=f"the ranks wait for each other: {stuck}"):
        played(facts)


def test_text_and_json_show_what_each_rank_holds_and_how_long_it_waits() -> None:
    facts = {rank: gpipe(rank, 2, 4) for rank in (0, 1)}
    facts[1] |= {"storages": [[75 * 2**30, 1, "parameters"]], "memory": [1]}
    facts[0]["embedded"] = {"1": 8192}
    plan = ProgramPlan(facts, "my.py", "h100x8", CLUSTER, 1, 0)
    lines = program_lines(plan)
    share = 100 * plan.times[0].waiting / plan.time.total
    (line,) = [line for line in lines if line.startswith("  1  ")]
    assert line.endswith("MAY NOT FIT")
    assert f"({share:.1f} %)" in "\n".join(lines)
    assert f"{8192 * 4 / plan.time.total:,.0f} tokens/s if each 2 of them has its own" in "\n".join(lines)
    assert "ranks 0, 1 stand for all 8" in "\n".join(lines)
    assert '"waiting"' in program_json(plan)


def test_a_plan_is_written_as_a_run_folder_with_its_phases_and_messages(tmp_path: Path) -> None:
    """The spans of a rank hold what it computes, and what it waits for is in its messages."""
    facts = {rank: gpipe(rank, 2, 3) for rank in (0, 1)}
    for rank, found in facts.items():
        reduced = ["collective", 2, "optimizer", "all_reduce", 1000 * (rank + 1), 4, 2, "blocking", "", 0]
        found["rows"], found["groups"] = [*found["rows"], reduced], [[rank, rank + 2, rank + 4, rank + 6]]
    plan = ProgramPlan(facts, "my.py", "h100x8", CLUSTER, 1, 0)
    write_program_folder(tmp_path / "run", plan, ["frog", "plan"])
    run = read_run(RunFolder(tmp_path / "run"))
    assert not run.problems
    assert run.is_simulated
    for rank, time in plan.times.items():
        spans, calls = run.ranks[rank].of(SpanEvent), run.ranks[rank].of(CollectiveEvent)
        order = [(phase, micro) for phase in ("forward", "backward") for micro in range(3)]
        assert [(span.phase, span.micro) for span in spans] == [("data", 0), *order]
        busy = sum(span.end_ns - span.start_ns for span in spans) / 1e9
        assert busy == pytest.approx(time.memory, rel=1e-3)
        assert spans[0].start_ns / 1e9 == pytest.approx(run.ranks[rank].of(StepEvent)[0].end_ns / 1e9 - time.total)
        waited = sum(call.wait_ns for call in calls if call.op == "recv") / 1e9
        assert waited <= time.waiting + time.communication + 1e-6
        assert [call.op for call in calls].count("send") == 3
    assert run.ranks[1].of(CollectiveEvent)[0].wait_ns / 1e9 == pytest.approx(F + C, rel=0.01)
    assert {call.axis for call in run.ranks[1].of(CollectiveEvent)} == {"pp", "4 ranks with rank 1"}
    assert diagnose(RunFolder(tmp_path / "run")).fault == "none"  # stages may reduce other sizes than their neighbors
    report = render_report(RunFolder(tmp_path / "run"))
    assert "Simulated run" in report
    assert ", 1 step," in " ".join(report.split())
    for part in ("Train loss", "<h2>Checkpoints", "<h2>What it wrote", "First steps"):  # nothing that a plan lacks
        assert part not in report
