"""Programs whose ranks exchange messages, run with fake tensors: one process for each stage of a pipeline."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.core.errors import FrogError
from frog.plan.estimate.hardware import clusters
from frog.plan.program.messages_rank import _arrive
from frog.plan.program.program_memory import memory_of
from frog.plan.program.program_process import Request, record_program
from frog.plan.program.ranks_together import play_together
from frog.plan.program.recording_rank import CannotFake

CLUSTER = clusters()["h100x8"]
MESSAGES = Path(__file__).with_name("planned_messages.py")
TRACKED = Path(__file__).with_name("tracked_pipeline.py")
PIPELINE = Path(__file__).parents[3] / "config" / "gpt_pipeline.py"
WIDTH, LAYERS, VOCAB, LENGTH, MICRO = 128, 4, 512, 64, 4
"""Sizes of the pipeline; each micro-batch is one sequence."""
ACTIVATION = 2 * LENGTH * WIDTH
"""Bytes of a micro-batch between two stages, in bfloat16."""
Facts = dict[int, dict[str, Any]]


def record(folder: Path, program: Path, *arguments: str) -> tuple[Facts, str]:
    with (folder / "output").open("w+") as output:
        facts = record_program(Request(str(program), arguments, CLUSTER), output)
    return facts, (folder / "output").read_text()


SIZES = [
    f"--{name}={value}"
    for name, value in {
        "layers": LAYERS, "width": WIDTH, "vocab": VOCAB, "length": LENGTH, "batch": MICRO, "micro": MICRO, "stages": 2
    }.items()
]  # fmt: skip


def pipeline(folder: Path, schedule: str) -> Facts:
    return record(folder, PIPELINE, *SIZES, f"--schedule={schedule}")[0]


def messages_of(facts: dict[str, Any]) -> list[list[Any]]:
    return [message for row in facts["rows"] if row[0] == "messages" for message in row[5]]


@pytest.fixture(scope="module")
def one_f_one_b(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return pipeline(tmp_path_factory.mktemp("1f1b"), "1f1b")


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return pipeline(tmp_path_factory.mktemp("interleaved"), "interleaved")


def products(facts: dict[str, Any]) -> int:
    rows = [row[3:] for row in facts["rows"] if row[0] == "product"]
    return sum(2 * num * rows * inner * columns for num, rows, inner, columns, *_ in rows)


@pytest.mark.slow
def test_each_stage_computes_its_blocks_and_sends_every_micro_batch_once(one_f_one_b: Facts) -> None:
    """Ranks 0 and 1 are the stages of the first pipeline; six operations for each token and weight of a product."""
    assert sorted(one_f_one_b) == [0, 1]
    blocks = LAYERS // 2 * 12 * WIDTH * WIDTH
    tokens = MICRO * LENGTH
    assert products(one_f_one_b[0]) == 6 * tokens * blocks
    assert products(one_f_one_b[1]) == 6 * tokens * (blocks + VOCAB * WIDTH)
    for rank, facts in one_f_one_b.items():
        assert Counter(tuple(row[:3]) for row in messages_of(facts)) == {
            ("send", ACTIVATION, 1 - rank): MICRO,
            ("recv", ACTIVATION, 1 - rank): MICRO,
        }
    assert {row[3] for row in messages_of(one_f_one_b[0])} == {row[3] for row in messages_of(one_f_one_b[1])}


@pytest.mark.slow
def test_a_stage_of_1f1b_holds_a_micro_batch_for_each_stage_from_it_on(one_f_one_b: Facts) -> None:
    """Narayanan et al. 2021: stage i of p holds p - i micro-batches. Attention's output is kept once for each."""
    live: dict[int, int] = {}
    for rank, facts in one_f_one_b.items():
        lines = facts["lines"]
        held = most = 0
        for event in facts["memory"][facts["step_memory"] :]:
            size, line, kind = facts["storages"][abs(event) - 1]
            is_hidden = kind == "activations" and size == 4 * ACTIVATION and lines[line].endswith(_line_of("F.gelu"))
            held += (1 if event > 0 else -1) * is_hidden
            most = max(most, held)
        live[rank] = most
    assert live[0] == 2 * live[1]


def _line_of(text: str) -> str:
    (number,) = (n for n, line in enumerate(PIPELINE.read_text().splitlines(), 1) if text in line)
    return f":{number}"


@pytest.mark.slow
def test_the_stages_end_their_step_together_and_wait_for_each_other(one_f_one_b: Facts) -> None:
    times = play_together(one_f_one_b, CLUSTER, 8)
    assert times[0].total == pytest.approx(times[1].total)
    assert min(time.waiting for time in times.values()) > 0


@pytest.mark.slow
def test_a_stage_holds_as_many_bytes_as_torch_tracks(one_f_one_b: Facts, interleaved: Facts) -> None:
    """torch's MemTracker runs the same stages without Frog: every byte of the peaks is the same."""
    command = [sys.executable, str(TRACKED), "0 1", "1f1b interleaved", str(PIPELINE), *SIZES]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr
    tracked = {(name, int(rank)): int(peak) for name, rank, peak in map(str.split, ended.stdout.splitlines())}
    recorded = {"1f1b": one_f_one_b, "interleaved": interleaved}
    assert {(name, rank): memory_of(recorded[name][rank]).allocated for name, rank in tracked} == tracked


@pytest.mark.slow
def test_interleaved_stages_of_a_rank_make_one_step_with_two_optimizers(interleaved: Facts) -> None:
    """Each rank has two of the four stages, and an optimizer for each."""
    facts = interleaved
    assert [found["steps"] for found in facts.values()] == [2, 2]
    assert sum(map(products, facts.values())) == 6 * MICRO * LENGTH * (LAYERS * 12 * WIDTH * WIDTH + VOCAB * WIDTH)
    sent = Counter(row[0] for found in facts.values() for row in messages_of(found))
    assert sent == {"send": 6 * MICRO, "recv": 6 * MICRO}
    assert facts[0]["parameters"] == VOCAB * WIDTH + LAYERS // 2 * (12 * WIDTH * WIDTH + 4 * WIDTH)
    play_together(facts, CLUSTER, 8)


@pytest.mark.slow
def test_shapes_and_objects_arrive_in_a_pipeline_by_hand(tmp_path: Path) -> None:
    facts, output = record(tmp_path, MESSAGES)
    assert sorted(facts) == [0, 4]
    assert "rank 4 received (2, 32, 64), step 1 of rank 0" in output
    sizes = Counter(row[1] for row in messages_of(facts[4]))
    assert sizes == {3 * 8: 3, 4 * 2 * 32 * 64: 2 * 3}
    times = play_together(facts, CLUSTER, 8)
    assert times[4].groups[2, 4].kinds == {"recv": 2 * 3, "send": 3}
    ends = {(rank, step): float(re.search(rf"rank {rank}, step {step} ended at (.*)", output)[1])  # type: ignore[index]
            for rank in (0, 4) for step in (0, 1)}  # fmt: skip
    for rank in (0, 4):  # the program's own clock waits for the other stage's messages, as the plan does
        assert ends[rank, 1] - ends[rank, 0] == pytest.approx(times[rank].total, rel=0.02)
        assert times[rank].waiting > 0.1 * times[rank].total


def test_a_received_tensor_of_another_size_is_named_with_both_lines() -> None:
    tensor = torch.empty(4, 8)
    wrong = r"my.py:9: rank 1 receives \[4, 8\] of torch.float32, but rank 0 sends \[2, 8\] of torch.float32 at my.py:5"
    with pytest.raises(CannotFake, match=wrong):
        _arrive(tensor, ((2, 8), "torch.float32", None, "my.py:5"), "my.py:9", 1, 0)
    _arrive(tensor, ((8, 4), "torch.float32", bytes(torch.arange(32.0).view(torch.uint8).numpy()), ""), "", 1, 0)
    assert tensor[0].tolist() == list(range(8))


@pytest.mark.slow
def test_a_rank_whose_starter_has_ended_ends_before_the_program(tmp_path: Path) -> None:
    """It imports torch first, and waits for messages later, both longer than a killed starter lives."""
    request = tmp_path / "request-0"
    request.write_text(json.dumps({"parent": os.getpid() + 1}))
    command = [sys.executable, "-P", "-m", "frog.plan.program.run_program_rank", str(request)]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.slow
def test_ranks_that_all_wait_end_the_plan_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(FrogError, match=r"rank 0 waits for a message of rank 4.*rank 4 waits .* all ranks wait"):
        record(tmp_path, MESSAGES, "wait")
