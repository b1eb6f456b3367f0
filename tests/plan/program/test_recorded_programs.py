"""Programs that run with fake tensors: operations, collectives and memory against formulas."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.core.errors import FrogError
from frog.plan.estimate.hardware import clusters
from frog.plan.program.program_memory import HELD, memory_of
from frog.plan.program.program_process import Request, record_program
from frog.plan.program.program_text import ProgramPlan, program_lines
from frog.plan.program.program_time import StepClock
from frog.plan.program.recording_rank import CannotFake, attention_row
from frog.plan.program.stand_in_flash_attn_rank import flash_attn_func

PROGRAM = Path(__file__).parent / "planned_program.py"
WIDTH, LAYERS, VOCAB, LENGTH, BATCH = 64, 3, 512, 32, 2
"""Sizes of the program."""
WORLD = 16
LAYER = 2 * WIDTH + 4 * WIDTH * WIDTH
PARAMETERS = 2 * VOCAB * WIDTH + LAYERS * LAYER


def record(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Return the facts of the program on 16 GPUs, and its output."""
    with (folder / "output").open("w+") as output:
        facts = record_program(Request(str(PROGRAM), arguments, clusters()["h100x8"], nodes=2), output)
    return facts[0], (folder / "output").read_text()


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return record(tmp_path_factory.mktemp("ddp"), "ddp")


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return record(tmp_path_factory.mktemp("fsdp"), "fsdp")


@pytest.fixture(scope="module")
def fsdp1(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return record(tmp_path_factory.mktemp("fsdp1"), "fsdp1", "original")


def rows_of(facts: dict[str, Any], kind: str) -> list[list[Any]]:
    return [row[1:] for row in facts["rows"] if row[0] == kind]


def flops_of(facts: dict[str, Any]) -> int:
    return sum(2 * num * rows * inner * columns for _, _, num, rows, inner, columns, *_ in rows_of(facts, "product"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp1"])
def test_products_of_a_step_are_those_of_the_formula(kind: str, request: pytest.FixtureRequest) -> None:
    """Six operations for each token and weight of a product: two in the forward pass, four in the backward pass."""
    facts, _ = request.getfixturevalue(kind)
    weights = LAYERS * 4 * WIDTH * WIDTH + VOCAB * WIDTH
    assert facts["error"] is None
    assert flops_of(facts) == 6 * BATCH * LENGTH * weights
    sizes = [row[2:9] for row in rows_of(facts, "attention")]
    expected = [BATCH * 4, LENGTH, LENGTH, WIDTH // 4, WIDTH // 4, True]
    assert sizes == [[*expected, False]] * LAYERS + [[*expected, True]] * LAYERS


def test_ddp_reduces_every_gradient_once(ddp: tuple[dict[str, Any], str]) -> None:
    collectives = rows_of(ddp[0], "collective")
    assert {row[2] for row in collectives} == {"all_reduce"}
    assert sum(row[3] for row in collectives) == 4 * PARAMETERS
    assert {tuple(row[4:7]) for row in collectives} == {(WORLD, 1, "started")}


def test_fsdp_gathers_layers_in_both_passes_and_scatters_their_gradients(fsdp: tuple[dict[str, Any], str]) -> None:
    """The root keeps its weights after the forward pass, so they are gathered once."""
    collectives = rows_of(fsdp[0], "collective")
    gathered = sorted(row[3] for row in collectives if row[2] == "all_gather")
    scattered = sorted(row[3] for row in collectives if row[2] == "reduce_scatter")
    root = 4 * 2 * VOCAB * WIDTH
    assert gathered == [4 * LAYER] * 2 * LAYERS + [root]
    assert scattered == [4 * LAYER] * LAYERS + [root]


@pytest.mark.parametrize(("kind", "share"), [("ddp", 1), ("fsdp", WORLD), ("fsdp1", WORLD)])
def test_states_of_a_rank_are_those_of_the_formula(kind: str, share: int, request: pytest.FixtureRequest) -> None:
    """Blocks of 512 bytes round each tensor up; AdamW has two moments. DDP has gradients, and buckets of them."""
    facts, _ = request.getfixturevalue(kind)
    memory = memory_of(facts)
    exact = 4 * PARAMETERS / share
    assert 0 < facts["step_memory"] < len(facts["memory"])
    assert facts["parameters"] == PARAMETERS
    assert facts["rank_parameters"] * share == PARAMETERS
    assert exact <= memory.by_kind["parameters"] <= exact + 512 * 20
    assert 2 * exact <= memory.by_kind["optimizer state"] <= 2 * exact + 512 * 60
    assert memory.by_kind["activations"] > 4 * BATCH * LENGTH * WIDTH * LAYERS


def test_a_program_reads_its_gpu_its_data_and_stand_ins(ddp: tuple[dict[str, Any], str]) -> None:
    facts, output = ddp
    first, second = output.splitlines()[::2]
    assert first == "step 0: loss 1.000 on cuda:0, True, cuda:0, 0.549"
    assert second.startswith("step 1: ")  # it continues until the next forward pass
    asked, (line,) = list(facts["answered"].values()), facts["answered"]
    assert asked == [[".item()", 1]]
    assert "planned_program.py:" in line
    assert list(facts["embedded"].values()) == [BATCH * LENGTH]
    assert facts["notes"] == {"torch.compile": 1}


def test_operations_of_the_backward_pass_have_the_line_of_their_forward_operation(
    ddp: tuple[dict[str, Any], str],
) -> None:
    facts, _ = ddp
    source = PROGRAM.read_text().splitlines()
    places = {(row[1], facts["lines"][row[0]]) for row in rows_of(facts, "attention")}
    (line,) = {int(place.rpartition(":")[2]) for _, place in places}
    assert {passed for passed, _ in places} == {"forward", "backward"}
    assert "scaled_dot_product_attention" in source[line - 1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp1"])
def test_a_program_prints_the_planned_time_and_memory(kind: str, request: pytest.FixtureRequest) -> None:
    """The times are those of the last step, between two synchronizations and between two CUDA events."""
    facts, output = request.getfixturevalue(kind)
    _, seconds, milliseconds, peak = output.splitlines()[-1].split()
    planned = StepClock(clusters()["h100x8"]).play(facts, WORLD).total
    assert float(seconds) == pytest.approx(planned, rel=0.01)
    assert float(milliseconds) == pytest.approx(1e3 * planned, rel=0.05)  # without what follows the event
    assert int(peak) == memory_of(facts).allocated
    assert facts["clock_readings"] == 5


def test_fsdp1_gathers_in_both_passes_on_its_own_streams(fsdp1: tuple[dict[str, Any], str]) -> None:
    """It computes, gathers and reduces in bfloat16; the root keeps its weights after the forward pass."""
    facts, _ = fsdp1
    collectives = rows_of(facts, "collective")
    gathered = sorted(row[3] for row in collectives if row[2] == "all_gather")
    scattered = sorted(row[3] for row in collectives if row[2] == "reduce_scatter")
    root = 2 * 2 * VOCAB * WIDTH
    assert gathered == [2 * LAYER] * 2 * LAYERS + [root]
    assert scattered == [2 * LAYER] * LAYERS + [root]
    launched: list[tuple[int, str]] = []
    stream = 0
    for row in facts["rows"]:
        stream = row[1] if row[0] == "stream" else stream
        launched += [(stream, row[3])] if row[0] == "collective" else []
    assert {kind for stream, kind in launched if stream == 0} == set()
    assert len({stream for stream, _ in launched}) == 2  # gathers and reductions


@pytest.mark.slow
def test_a_shape_that_depends_on_data_is_named_with_its_line(tmp_path: Path) -> None:
    line = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if "noise[noise > 0.5]" in text)
    with pytest.raises(FrogError, match=rf"planned_program.py:{line}: the shape or value of \w+ depends on data"):
        record(tmp_path, "ddp", "shapes")


def test_tensor_parallelism_reduces_each_block_once_in_both_passes(tmp_path: Path) -> None:
    facts, _ = record(tmp_path, "tp")
    collectives = rows_of(facts, "collective")
    assert Counter((row[1], row[2]) for row in collectives) == {
        ("forward", "all_reduce"): LAYERS,
        ("backward", "all_reduce"): LAYERS,
    }
    assert {tuple(row[4:7]) for row in collectives} == {(4, 1, "blocking")}
    assert {row[3] for row in collectives if row[1] == "forward"} == {2 * BATCH * LENGTH * WIDTH}


ODD = """
import torch

layer = torch.nn.Linear(64, 255, bias=False).cuda().bfloat16()
model = {compiled}
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(9):
    model(torch.ones(24, 64).cuda().bfloat16()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("compiled", "loaded"), [("layer", 2), ("torch.compile(layer)", 16)])
def test_a_compiler_pads_matrices_whose_rows_start_anywhere(compiled: str, loaded: int, tmp_path: Path) -> None:
    program = tmp_path / "odd.py"
    program.write_text(ODD.format(compiled=compiled))
    with (tmp_path / "output").open("w+") as output:
        facts = record_program(Request(str(program), (), clusters()["h100x8"], nodes=1), output)[0]
    assert {row[7] for row in rows_of(facts, "product") if row[1] == "forward"} == {loaded}


CHUNKED = """
import torch
from torch.utils.checkpoint import checkpoint

head = torch.nn.Linear(64, 256, bias=False).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
tokens, labels = torch.ones(24, 64).cuda(), torch.zeros(24, dtype=torch.int64).cuda()
for _ in range(9):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = checkpoint(lambda x: torch.log_softmax(head(x), -1), tokens, use_reentrant=False)[:, 0].mean()
    {backward}
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("backward", ["loss.backward()", "torch.autograd.backward(loss)"])
def test_a_checkpoint_computes_again_what_cudas_autocast_computed(backward: str, tmp_path: Path) -> None:
    """The loss of TRL's trainer is in a checkpoint; a softmax of 16 bits is one of float32."""
    program = tmp_path / "chunked.py"
    program.write_text(CHUNKED.format(backward=backward))
    with (tmp_path / "output").open("w+") as output:
        facts = record_program(Request(str(program), (), clusters()["h100x8"], nodes=1), output)[0]
    assert facts["error"] is None
    passes = [row[1] for row in rows_of(facts, "product")]
    assert passes == ["forward", "recomputed", "backward"]


def test_recomputed_operations_are_a_pass_of_their_own(tmp_path: Path) -> None:
    """Recomputation stops at the last tensor that the backward pass needs, so the last product is not repeated."""
    facts, _ = record(tmp_path, "fsdp", "recompute")
    passes = Counter(row[1] for row in rows_of(facts, "attention"))
    assert passes == {"forward": LAYERS, "recomputed": LAYERS, "backward": LAYERS}
    again = [row for row in rows_of(facts, "product") if row[1] == "recomputed"]
    assert sum(2 * rows * inner * columns for _, _, _, rows, inner, columns, *_ in again) in (
        LAYERS * 2 * BATCH * LENGTH * 3 * WIDTH * WIDTH,
        LAYERS * 2 * BATCH * LENGTH * 4 * WIDTH * WIDTH,
    )


def test_fsdp_frees_gathered_weights(fsdp: tuple[dict[str, Any], str]) -> None:
    """FSDP resizes their storages to nothing; after the step only a rank's states and a few numbers are left."""
    facts, _ = fsdp
    live: set[int] = set()
    for event in facts["memory"]:
        if event > 0:
            live.add(event)
        else:
            live.remove(-event)
    kinds = [facts["storages"][index - 1] for index in live]
    assert sum(size for size, _, kind in kinds if kind not in HELD) < LAYER


def test_a_module_that_names_no_vendor_runs_with_the_kernels_of_flash_attn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each function of flash_attn is one kernel, which reads what it needs once and writes its results."""
    monkeypatch.chdir(PROGRAM.parent)
    cluster = replace(clusters()["h100x8"], gpus_per_node=4)
    with (tmp_path / "output").open("w+") as output:
        facts = record_program(Request("planned_accelerator", [], cluster, is_module=True), output)[0]
    lines = (tmp_path / "output").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {n} of 4 ranks on cuda: True" for n in range(2)]
    x, scale, tables = 2 * 2 * 32 * 64, 2 * 64, 2 * 2 * 32 * 8
    assert {(row[1], row[3]): row[2] for row in rows_of(facts, "memory") if row[3].startswith(("rotary", "layer"))} == {
        ("forward", "layer_norm"): 2 * x + scale + x + 2 * x,
        ("backward", "layer_norm_backward"): 3 * x + 4 + 2 * scale,  # the sum's gradient is an expanded number
        ("forward", "rotary"): 2 * x + tables,
        ("backward", "rotary_backward"): 3 * x + tables,
    }
    assert [(row[1], row[7]) for row in rows_of(facts, "attention")] == [("forward", True), ("backward", True)]
    assert all(facts["lines"][row[0]].startswith("planned_accelerator.py") for row in rows_of(facts, "memory"))


def test_options_of_flash_attn_that_choose_other_kernels_are_refused() -> None:
    flash_attn_func(*torch.ones(3, 1, 2, 1, 4), causal=True, softcap=0.0)
    flash_attn_func(*torch.ones(3, 1, 2, 1, 4), window_size=(-1, -1))
    for name, value in (("softcap", 30.0), ("window_size", (128, 0))):
        with pytest.raises(CannotFake, match=rf"{name}=\.\.\."):
            flash_attn_func(*torch.ones(3, 1, 2, 1, 4), **{name: value})


@pytest.mark.slow
def test_a_trainer_script_is_planned_with_the_lines_of_its_model(tmp_path: Path) -> None:
    """Its masks are all ones, which it finds out, so attention is causal without a mask.

    accelerate tells its parameters apart by their addresses.
    """
    pytest.importorskip("transformers")
    script = PROGRAM.with_name("planned_trainer.py")
    with (tmp_path / "output").open("w+") as output:
        facts = record_program(Request(str(script), [str(tmp_path)], clusters()["h100x8"], nodes=2), output)[0]
    assert (tmp_path / "output").read_text().count("'grad_norm'") == 2
    attention = rows_of(facts, "attention")
    assert [row[1] for row in attention] == (["forward"] * 2 + ["backward"] * 2) * 2
    assert {(row[7], row[9].removesuffix("_backward")) for row in attention} == {
        (True, "_scaled_dot_product_flash_attention")
    }
    assert all("transformers/models/llama/" in facts["lines"][row[0]] for row in rows_of(facts, "product"))
    kinds = Counter(row[2] for row in rows_of(facts, "collective"))
    assert kinds["reduce_scatter"] == 4  # embedding, two layers and head, in the second micro-batch
    assert facts["parameters"] == 2 * 512 * 64 + 2 * (3 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.mark.slow
def test_a_program_with_fewer_steps_is_told_how_many_it_has(tmp_path: Path) -> None:
    program = tmp_path / "one_step.py"
    program.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "optimizer.step()\n"
    )
    with (tmp_path / "output").open("w+") as output, pytest.raises(FrogError, match="after 1 of 2") as refused:
        record_program(Request(str(program), [], clusters()["h100x8"]), output)
    assert refused.value.hint == "--steps 1 plans its last step"


@pytest.mark.slow
def test_zero_1_of_deepspeed_reduces_gradients_and_gathers_parameters_once(tmp_path: Path) -> None:
    """Each rank has the moments of an eighth; both collectives carry 16 bits of each parameter."""
    pytest.importorskip("deepspeed")
    script = PROGRAM.with_name("planned_deepspeed.py")
    with (tmp_path / "output").open("w+") as output:
        facts = record_program(Request(str(script), ["1"], clusters()["h100x8"]), output)[0]
    parameters = 2 * 512 * 256 + 512 + 4 * (256 * 256 + 256)
    sent: Counter[str] = Counter()
    for row in rows_of(facts, "collective"):
        sent[row[2]] += row[3] if row[3] > 100 else 0
    assert sent == {"all_reduce": 2 * parameters, "all_gather": 2 * parameters}
    moments = memory_of(facts).by_kind["optimizer state"]
    assert 2 * 4 * parameters / 8 <= moments <= 2 * 4 * parameters / 8 + 512 * 4


@pytest.mark.slow
def test_zero_3_of_deepspeed_gathers_what_it_split_and_scatters_gradients_once(tmp_path: Path) -> None:
    """Its linear layers are functions of autograd. In its second step it also broadcasts a few bytes of checks."""
    pytest.importorskip("deepspeed")
    script = PROGRAM.with_name("planned_deepspeed.py")
    with (tmp_path / "output").open("w+") as output:
        facts = record_program(Request(str(script), ["3"], clusters()["h100x8"]), output)[0]
    kinds = Counter(row[2] for row in rows_of(facts, "collective") if row[3] > 200)
    assert set(kinds) == {"all_gather", "reduce_scatter"}
    assert kinds["reduce_scatter"] == 1
    assert flops_of(facts) == 6 * 2 * 64 * (4 * 256 * 256 + 512 * 256)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_causal_only_if_its_own_flag_says_so(is_causal: bool) -> None:
    tensor = torch.empty(2, 4, 16, 8, device="meta")
    flags = [is_causal] if is_causal else []  # torch leaves out what is the default
    forward = attention_row(
        "_scaled_dot_product_efficient_attention", (tensor, tensor, tensor, None, True, 0.0, *flags)
    )
    assert forward == ["attention", 8, 16, 16, 8, 8, is_causal, False]
    flash = attention_row("_scaled_dot_product_flash_attention", (tensor, tensor, tensor, 0.0, is_causal, False))
    assert flash == forward


# ---- every row -------------------------------------------------------------------------------------------------------

KEPT = Path(__file__).with_name("recorded_programs.json")
"""FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/plan/program/test_recorded_programs.py rewrites it; read the difference."""
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ


_PATH = re.compile(rf"[^\s'\"]*{PROGRAM.name}")


def shown(facts: dict[str, Any], output: str = "") -> dict[str, Any]:
    """Return each row with its line's text, in groups of equal neighbors; the memory by kind; and the plan's text."""
    lines = facts["lines"]
    keys: dict[str, str] = {}

    def plain(row: list[Any]) -> str:
        words = [str(keys.setdefault(word, f"key {len(keys)}") if "unshard" in str(word) else word) for word in row[1:]]
        if row[0] != "wait":
            words[0] = lines[row[1]].rpartition("/")[2]
        return " ".join([row[0], *words])

    counted = [f"{len(list(same))} x {text}" for text, same in itertools.groupby(map(plain, facts["rows"]))]
    sums: Counter[str] = Counter()
    for size, line, kind in facts["storages"]:
        sums[f"{kind}, {lines[line].rpartition('/')[2]}"] += size
    text = program_lines(ProgramPlan({0: facts}, "my.py", "h100x8", clusters()["h100x8"], 2, 0))
    others = {name: facts[name] for name in ("answered", "no_rule", "embedded", "notes", "steps", "rank_parameters")}
    return {
        "rows": counted,
        "storages": dict(sorted(sums.items())),
        "memory": [facts["step_memory"], len(facts["memory"]), memory_of(facts).allocated],
        "plan": [_PATH.sub(PROGRAM.name, line).rstrip() for line in text],
        "facts": {name: _PATH.sub(PROGRAM.name, str(value)) for name, value in others.items()},
        "output": [line for line in output.splitlines() if not line.startswith("time")],
    }


def compare(name: str, facts: dict[str, Any], output: str = "") -> None:
    version = torch.__version__.partition("+")[0]
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {"torch": version}
    if known["torch"] != version and not REWRITE:
        pytest.skip("another version of torch has other operations")
    found = shown(facts, output)
    if REWRITE:
        known |= {"torch": version, name: found}
        KEPT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    assert found == known[name], "if the change is meant, rewrite recorded_programs.json: see above"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_no_row_of_a_program_changes_unnoticed(kind: str, request: pytest.FixtureRequest) -> None:
    compare(kind, *request.getfixturevalue(kind))


def test_loads_of_a_matrix_are_as_long_as_all_its_rows_allow() -> None:
    from frog.plan.program.recording_rank import loaded_at_once

    odd = torch.empty(4, 50257, dtype=torch.bfloat16)
    assert [loaded_at_once(one) for one in (odd, odd.t(), odd[:, :768])] == [2, 2, 2]
    assert [loaded_at_once(odd.new_empty(7, width)) for width in (50304, 108, 150)] == [16, 8, 4]
    heads = odd.new_empty(4, 16, 8 * 150).view(4, 16, 8, 150).transpose(1, 2)
    assert loaded_at_once(heads) == 4, "rows start at multiples of 2,400 bytes, heads at multiples of 300"
