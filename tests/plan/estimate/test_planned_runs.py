"""`frog plan MODEL`: the same numbers as `frog plan predict`, and arithmetic that anyone can repeat."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frog.cli import _parser, main
from frog.core.errors import ConfigError, UsageError
from frog.plan.estimate.architectures import model_of
from frog.plan.estimate.budget import daly_interval, training_budget, young_interval
from frog.plan.estimate.explain import (
    explain_budget,
    explain_memory,
    explain_range,
    explain_step,
    explain_utilization,
)
from frog.plan.estimate.fit import read_measured
from frog.plan.estimate.hardware import Cluster, clusters
from frog.plan.estimate.nearest import beyond_measured, spread_of_nearest
from frog.plan.estimate.predict import predict_run, spread_of
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.sources import NamedModel, read_named_model
from frog.plan.estimate.step_time import StepModel
from frog.plan.estimate.utilization import losses, utilization
from frog.plan.model_command import options_of
from frog.plan.plan_text import plan_lines

ROOT = Path(__file__).parents[3]
LLAMA_8B = ROOT / "config" / "llama3_8b.json"


def config_of(run: PlannedRun) -> dict[str, Any]:
    """Return a config.json with the sizes of a run's model."""
    model = run.model
    if model.latent is not None:
        return {
            "model_type": "deepseek_v3",
            "num_hidden_layers": model.layers,
            "hidden_size": model.hidden,
            "num_attention_heads": model.heads,
            "q_lora_rank": model.latent.query_rank,
            "kv_lora_rank": model.latent.key_value_rank,
            "qk_nope_head_dim": model.head_dim - model.latent.rotary_width,
            "qk_rope_head_dim": model.latent.rotary_width,
            "v_head_dim": model.value_dim,
            "intermediate_size": model.ffn,
            "moe_intermediate_size": model.expert_ffn,
            "n_routed_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "n_shared_experts": model.shared_experts,
            "n_group": 8,
            "topk_group": model.expert_groups,
            "first_k_dense_replace": model.dense_layers,
            "num_nextn_predict_layers": model.prediction_layers,
            "tie_word_embeddings": model.tied,
            "vocab_size": model.vocab,
        }
    if not model.gated:
        return {
            "model_type": "gpt2",
            "n_layer": model.layers,
            "n_embd": model.hidden,
            "n_head": model.heads,
            "n_inner": model.ffn,
            "vocab_size": model.vocab,
            "n_positions": model.positions,
            "tie_word_embeddings": model.tied,
        }
    return {
        "model_type": "mixtral" if model.experts else "llama",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied,
        "num_local_experts": model.experts,
        "num_experts_per_tok": model.experts_per_token,
        "moe_intermediate_size": model.expert_ffn,
        "shared_expert_intermediate_size": model.shared_experts * model.expert_ffn,
    }


def words_of(run: PlannedRun, row: dict[str, str]) -> list[str]:
    """Return the command line that describes a row's run."""
    layout = run.layout
    values = {
        name: getattr(layout, name)
        for name in ("seq_len", "global_batch", "micro_batch", "tp", "pp", "cp", "ep", "virtual_stages", "zero")
    }
    values |= {"recompute": layout.recompute, "precision": layout.precision, "gpus": layout.num_gpus}
    values |= {"schedule": layout.schedule, "seq-parallel": "yes" if layout.sequence_parallel else "no"}
    values |= {"software": row["software"] or "unknown", "year": row["year"] or 2024, "cluster": "h100x8"}
    if layout.zero_group:
        values["zero_group"] = layout.zero_group
    if "token drop" in row["arch_notes"]:
        values["capacity_factor"] = 1
    options = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["plan", "config.json", *options]


@cache
def parser() -> Any:
    return _parser("plan")


def test_every_row_of_the_table_is_planned_as_it_is_predicted() -> None:
    with (ROOT / "benchmarks" / "measured_runs.csv").open(newline="") as lines:
        rows = {row["row_id"]: row for row in csv.DictReader(lines)}
    measured = read_measured(ROOT / "benchmarks" / "measured_runs.csv")
    for one in measured:
        run, words = one.run, words_of(one.run, rows[one.row_id])
        named = NamedModel(model_of(config_of(run)))
        planned = request_run(named, options_of(parser().parse_args(words)), run.cluster, run.layout.num_gpus)
        # Equal runs have equal predictions.
        assert (planned.model, planned.layout, planned.cluster) == (run.model, run.layout, run.cluster), one.row_id
    assert len(measured) > 850


def llama_run(num_gpus: int = 64, cluster: str = "h100x8", **options: object) -> PlannedRun:
    named = read_named_model(str(LLAMA_8B))
    return request_run(named, {name: str(value) for name, value in options.items()}, clusters()[cluster], num_gpus)


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "vocab_size": 129280,
}


def test_step_of_deepseek_v3_needs_the_overlap_of_experts() -> None:
    cells = {"pp": "16", "ep": "64", "zero": "1", "seq_len": "4096", "global_batch": "15360", "micro_batch": "1"}
    cells |= {"precision": "fp8", "schedule": "DualPipe"}
    named, cluster = NamedModel(model_of(DEEPSEEK_V3)), clusters()["h800x8"]

    def step_s(**options: str) -> float:
        return request_run(named, {**cells, **options}, cluster, 2048).step.step.total

    published = 180_000 * 3600 / 2048 / 1e12 * 15360 * 4096  # GPU-hours of a trillion tokens
    assert published == pytest.approx(19.9, rel=0.01)
    assert step_s(software="hai-llm") == pytest.approx(published, rel=0.2)
    assert step_s(software="hai-llm", overlap_moe="no") > 1.2 * published
    assert step_s(software="megatron", overlap_moe="yes") < 0.8 * step_s(software="megatron")


def test_float8_is_refused_on_a_gpu_without_it() -> None:
    with pytest.raises(ConfigError, match="precision=fp8: A100-80GB has no float8 products"):
        llama_run(16, "a100x8", cp=2, zero=1, software="megatron", precision="fp8")


def with_few_words(run: PlannedRun) -> PlannedRun:
    """Return the run with a small vocabulary, so that it needs most memory after the loss."""
    return replace(run, model=replace(run.model, vocab=1000))


def slow_run() -> PlannedRun:
    """Return FSDP on a network that decides the step."""
    run = llama_run(zero=3)
    return replace(run, cluster=replace(run.cluster, node_bandwidth=50e9 / 8))


RUNS = [
    llama_run(),
    slow_run(),
    llama_run(64, tp=4, pp=4, virtual_stages=2, recompute="full"),
    llama_run(16, "h100x8", cp=2, zero=1, software="megatron", precision="fp8"),
    llama_run(16, "a100x8", cp=2, zero=1, software="megatron"),
    llama_run(32, "h100x8", tp=16, zero=1, software="deepspeed"),
    llama_run(8, zero=3, recompute="full", micro_batch=4),
    llama_run(64, tp=8, zero=3, software="torchtitan", recompute="alternate"),
    llama_run(16, pp=4, zero=3, software="torchtitan"),
    llama_run(8, software="frog", tp=2),
    with_few_words(llama_run(8, zero=3)),
    with_few_words(llama_run(8, zero=3, recompute="full")),
    with_few_words(llama_run(8, zero=1, recompute="full", software="internevo", micro_batch=1, seq_len=512)),
]
TEMPORARY = ("logits and their loss", "a layer that is computed again", "tensors of the optimizer's step")
NAMES = [
    *(
        "fsdp",
        "slow network",
        "megatron",
        "context",
        "context on A100",
        "tensor over nodes",
        "recomputed",
        "loss parallelism",
    ),
    *("stages of fsdp", "frog", "few words", "few words, recomputed", "optimizer's step"),
]


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_explained_sums_give_the_numbers_of_the_plan(run: PlannedRun) -> None:
    step = StepModel(run.model, run.layout, run.cluster)
    memory, budget = step.memory, training_budget(step, 300e9)
    terms = [*explain_memory(step, memory), *explain_step(step), *explain_budget(step, budget)]
    terms += [*explain_range(run), *explain_utilization(step)]
    for term in terms:
        assert eval(term.sum) == pytest.approx(term.value, rel=1e-4), term
    values = {term.name: term.value for term in terms}
    assert values["memory"] == memory.total / 2**30
    assert values["MFU"] == utilization(step)
    assert values["days"] == budget.wall_s / 86400
    assert values["matrix products"] == step.step.products
    assert values["step"] == step.step.total
    for name in ("parameters", "gradients", "optimizer state"):
        assert values[name] == getattr(memory, name.split()[0]) / 2**30
    assert values["allocator's share, CUDA and NCCL"] == memory.allocator / 2**30
    passing = [value for name, value in values.items() if name in TEMPORARY]
    assert passing == ([memory.temporary / 2**30] if memory.temporary else [])
    assert values.get("gathered parameters, their gradients", 0.0) == memory.communication / 2**30
    backward, again = step.layers.layer(mixture=False).backward, step.layers.layer(mixture=False).recomputed.total
    assert values["products, one layer backward"] == backward.products * 1e3
    assert values["memory-bound operations, one layer backward"] == backward.memory * 1e3
    assert values.get("computed again, one layer", 0.0) == again * 1e3
    assert values["product of the logits, forward"] == step.head.forward.products * 1e3
    total, spread = step.step.total, spread_of(run)
    ends = (spread, total / (1 + spread), total * (1 + spread))
    assert (values["width of the range"], values["lower end"], values["upper end"]) == ends
    shares = {name: values.get(f"share of {name}", 0.0) for name in losses(step)}
    assert sum(shares.values()) + 100 * utilization(step) == pytest.approx(100, abs=0.5)
    assert values["data parallelism"] == step.step.data
    assert ("messages between stages" in values) == (run.layout.pp > 1)
    assert ("all-reduce of tensor parallelism" in values) == (run.layout.tp > 1)
    assert (values["GPU-hours"], values["energy"]) == (budget.gpu_hours, budget.energy_wh / 1e6)
    assert budget.checkpoints is not None
    assert (values["interval of Daly"], values["failures"]) == (budget.checkpoints.daly_s, budget.failures)


def test_runs_need_most_memory_at_different_moments() -> None:
    """Show that the sums above are compared at each of the moments."""
    steps = [StepModel(run.model, run.layout, run.cluster) for run in RUNS]
    seen = {term.formula.split(" x ")[0] for step in steps for term in explain_memory(step, step.memory)}
    assert {"tokens", "12 bytes", "2", "(2 + bytes of a gradient)", "bytes of a parameter"} <= seen
    names = {term.name for step in steps for term in explain_memory(step, step.memory)}
    assert set(TEMPORARY) <= names


def test_explained_bandwidths_are_those_of_the_links() -> None:
    model = replace(llama_run().model, experts=64, experts_per_token=2, expert_ffn=2048)
    tree = replace(clusters()["h100x8"], nodes_per_leaf=2, oversubscription=7.0)
    layout = replace(llama_run(64, tp=2, cp=2, pp=2, zero=1).layout, ep=32, zero_group=8)
    step = StepModel(model, layout, tree)
    terms = {term.name: term for term in explain_step(step)}
    rings = {"data-parallel": "data", "sharding": "shards", "replicating": "replicas"}
    for words, name in rings.items():
        term = terms[f"bandwidth of a {words} ring"]
        assert term.value * 1e9 == pytest.approx(step.links.bandwidth(step.rings[name]))
        assert eval(term.sum) == pytest.approx(term.value, rel=1e-4)
    for name in ("bandwidth of a message between stages", "bandwidth of an all-to-all above a leaf"):
        assert eval(terms[name].sum) == pytest.approx(terms[name].value, rel=1e-4)
    assert "bandwidth of a context-parallel ring" not in terms, "it stays inside a node"
    message_s = (
        2 * layout.tokens * model.hidden / layout.tp / (terms["bandwidth of a message between stages"].value * 1e9)
    )
    assert step.sends == pytest.approx(2 * (message_s + step.constants.network_latency_s))


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_utilization_and_losses_make_the_whole_step(run: PlannedRun) -> None:
    step = StepModel(run.model, run.layout, run.cluster)
    lost = losses(step)
    assert utilization(step) + sum(lost.values()) == pytest.approx(1)
    assert all(share > -1e-12 for share in lost.values())
    assert (lost["recomputation"] > 0) == (run.layout.recompute in ("full", "alternate"))


def test_intervals_of_young_and_daly_agree_for_rare_failures() -> None:
    assert young_interval(60, 24 * 3600) == pytest.approx(3219.9, abs=0.1)
    assert daly_interval(60, 24 * 3600) == pytest.approx(3219.9 * (1 + 0.0062 + 0.00004) - 60, abs=1)
    assert daly_interval(1, 1e9) == pytest.approx(young_interval(1, 1e9), rel=1e-4)
    assert daly_interval(100, 50) == 50


def test_failures_and_checkpoints_only_add_time() -> None:
    step = StepModel(RUNS[0].model, RUNS[0].layout, RUNS[0].cluster)
    budget = training_budget(step, 1e12)
    assert budget.checkpoints is not None
    assert 1 < budget.checkpoints.slowdown < 1.02
    assert budget.wall_s == budget.compute_s * budget.checkpoints.slowdown
    assert budget.money is None


def test_what_nobody_states_is_chosen_and_named() -> None:
    run = llama_run()
    layout = run.layout
    assert (layout.dp, layout.zero, layout.seq_len, layout.global_batch) == (64, 3, 8192, 512)
    assert {"zero=3", "global_batch=512", "software=torchtitan (FSDP2)"} < set(run.assumed)
    assert llama_run(tp=2).layout.traits.overlaps_tensor
    assert llama_run(tp=2).layout.zero == 1


def test_run_file_states_its_layout() -> None:
    named = read_named_model(str(ROOT / "config" / "demo.toml"))
    run = request_run(named, {"precision": "bf16"}, clusters()["h100x8"], 4)
    layout = run.layout
    assert (layout.seq_len, layout.global_batch, layout.micro_batch, layout.zero) == (64, 32, 8, 0)
    assert not layout.traits.keeps_whole_copy
    with pytest.raises(ConfigError, match="precision='fp32' is not modelled"):
        request_run(named, {}, clusters()["h100x8"], 4)


def test_range_is_at_least_the_error_of_the_nearest_runs() -> None:
    near, far = llama_run(), llama_run(64, "gb200-nvl72", seq_len=131072, global_batch=64, cp=8)
    assert 0 < spread_of_nearest(near) < spread_of_nearest(far)
    assert predict_run(near, "").spread >= spread_of_nearest(near)


def test_plan_beyond_all_measured_runs_says_so() -> None:
    assert beyond_measured(llama_run()) == []
    (problem,) = beyond_measured(llama_run(16384, global_batch=16384))
    assert problem == "16,384 GPUs: the largest measured run has 1,024"


def run_command(*words: str) -> int:
    return main(["plan", *words])


def test_command_prints_memory_time_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(LLAMA_8B), "--cluster", "h100x8", "--nodes", "8", "--tokens", "300e9", "--price", "2.50 USD/h"]
    assert run_command(*words, "--explain") == 0
    out = capsys.readouterr().out
    for part in ("8.03 B parameters on 64 H100-80GB", "of 79.1", "MFU ", "GPU-hours", " USD", "(Daly)", "2 r i c"):
        assert part in out
    assert run_command(*words, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["step_s"]["total"] == pytest.approx(sum(v for k, v in content["step_s"].items() if k != "total"))
    assert content["training"]["money"] == pytest.approx(2.5 * content["training"]["gpu_hours"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "h100x9"], "did you mean h100x8?"),
        (["--cluster", "h100x8", "--tp", "3"], "tp x pp x cp = 3 does not divide 8 GPUs"),
        (["--cluster", "h100x8", "--nodes", "1", "--gpus", "4"], "both state the number of GPUs"),
        (["--cluster", "h100x8", "--nodes", "2048"], "beyond the measured runs: 16,384 GPUs"),
        (["--cluster", "h100x8", "--nodes", "99999999999"], "must be at least 1 and at most 10000000"),
        (["--cluster", "h100x8", "--price", "2.50"], 'write it like "2.50 USD/h"'),
        (["--cluster", "h100x8", "--pp", "8", "--virtual-stages", "5"], "exceeds layers=32"),
        (["--cluster", "h100x8", "--overlap-moe", "yes"], "overlap_moe=yes: this program has no such overlap"),
    ],
)
def test_impossible_plan_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(LLAMA_8B), *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_size": 7}, "head_dim=0: must be at least 1"),
        ({"vocab_size": 0}, "vocab=0: must be at least 1"),
        ({"num_local_experts": 2, "num_experts_per_tok": 3}, "experts_per_token=3 exceeds experts=2"),
    ],
)
def test_model_without_a_size_is_refused(
    change: dict[str, int], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(LLAMA_8B.read_text()), "model_type": "mixtral", **change}))
    for words in ([str(path)], ["search", str(path)]):
        assert run_command(*words, "--cluster", "h100x8") == 2
        assert problem in capsys.readouterr().err


def test_mistyped_action_is_not_taken_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command("predcit", "runs.csv")
    assert "did you mean predict?" in capsys.readouterr().err
    assert run_command("no/config.json", "--cluster", "h100x8") == 2
    assert "no such file" in capsys.readouterr().err


NANOGPT = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Config:
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 64
    vocab_size: int = 1000
    block_size: int = 32

class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.config = Config()
        self.embeddings = nn.ModuleList([nn.Embedding(1000, 64), nn.Embedding(32, 64)])
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(64, 2, 256) for _ in range(layers)])
        self.norm = nn.LayerNorm(64)

def wider():
    return Model(20)

def bare():
    return nn.Linear(2, 2)
"""


@pytest.mark.slow
def test_function_that_builds_a_module_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nano.py").write_text(NANOGPT)
    monkeypatch.chdir(tmp_path)
    named = read_named_model("nano:Model")
    assert named.model.num_parameters() == 1032 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert named.most_positions == 32
    with pytest.raises(ConfigError, match="it is another architecture"):
        read_named_model("nano:wider")
    with pytest.raises(UsageError, match="the module has no `config`"):
        read_named_model("nano:bare")
    with pytest.raises(UsageError, match="has no attribute 'nothing'"):
        read_named_model("nano:nothing")


def with_memory(num_bytes: float) -> Cluster:
    """Return h100x8 with another size of memory."""
    cluster = clusters()["h100x8"]
    return replace(cluster, gpu=replace(cluster.gpu, memory=num_bytes))


@pytest.mark.parametrize(("share", "verdict"), [(1.01, ": DOES NOT FIT"), (0.99, ": MAY NOT FIT"), (0.94, "")])
def test_plan_that_needs_nearly_all_memory_may_not_fit(share: float, verdict: str) -> None:
    run = llama_run()
    run = replace(run, cluster=with_memory(run.step.memory.total / share))
    lines = plan_lines(run, "own", None, [], explain=False)
    (total,) = (line for line in lines if line.startswith("  total ") and " of " in line)
    assert total.endswith(f" of {run.cluster.gpu.memory / 2**30:.1f}{verdict}")


@pytest.mark.parametrize(("share", "micro_batch"), [(0.96, 1), (0.94, 2)])
def test_chosen_micro_batch_leaves_a_twentieth_of_the_memory(share: float, micro_batch: int) -> None:
    needed = llama_run(micro_batch=2).step.memory.total
    run = request_run(read_named_model(str(LLAMA_8B)), {}, with_memory(needed / share), 64)
    assert run.layout.micro_batch == micro_batch


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--pp 4 --virtual-stages 3", "32 layers do not divide by pp 4 x 3 virtual stages: some hold 2 and some 3"),
        ("--pp 4 --virtual-stages 4", ""),
        ("--pp 4", ""),
    ],
)
def test_layers_that_do_not_divide_among_stages_are_said(
    words: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", str(LLAMA_8B), "--cluster", "h100x8", "--nodes", "4", "--global-batch", "128"]
    assert main([*command, *words.split()]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "do not divide" in line]
    assert [line.startswith(f"note: {note}") for line in said] == [True] * bool(note)
    assert main([*command, *words.split(), "--json"]) == 0
    assert [line.startswith(note) for line in json.loads(capsys.readouterr().out)["notes"]] == [True] * bool(note)


def test_plan_that_does_not_fit_says_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(LLAMA_8B), "--cluster", "h100x8", "--zero", "0", "--software", "megatron"]
    assert main([*command, "--recompute", "none"]) == 0
    out = capsys.readouterr().out
    assert "DOES NOT FIT\n  try: --recompute full, more ranks of --tp or --pp, or frog plan search" in out
    assert main([*command[:4], "--nodes", "8", "--recompute", "full"]) == 0
    assert "try:" not in capsys.readouterr().out
