"""LoRA and QLoRA: numbers of adapters against PEFT, kept tensors against autograd, and what the command prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frog.cli import main
from frog.core.errors import ConfigError, UsageError
from frog.plan.estimate.adapter_time import AdaptedStep
from frog.plan.estimate.adapters import (
    ALL,
    FROZEN_BYTES,
    NF4_BYTES,
    Adapters,
    adapter_kept,
    adapter_memory,
    layer_matrices,
)
from frog.plan.estimate.architectures import model_of
from frog.plan.estimate.explain_adapters import explain_adapters
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.predict import spread_of
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.sources import read_named_model
from frog.plan.estimate.step_time import StepModel
from frog.plan.estimate.utilization import losses, utilization
from frog.plan.model import PlannedModel

ROOT = Path(__file__).parents[3]
LLAMA_8B = ROOT / "config" / "llama3_8b.json"
SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 128,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "num_key_value_heads": 4,
}


def run_of(adapters: Adapters | None, num_gpus: int = 1, **options: object) -> PlannedRun:
    named, words = read_named_model(str(LLAMA_8B)), {name: str(value) for name, value in options.items()}
    return request_run(named, words, clusters()["h100x8"], num_gpus, adapters)


def step_of(adapters: Adapters, num_gpus: int = 1, **options: object) -> AdaptedStep:
    step = run_of(adapters, num_gpus, **options).step
    assert isinstance(step, AdaptedStep)
    return step


# ---- against PEFT and torch ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning", "ignore:fan_in_fan_out:UserWarning")
@pytest.mark.filterwarnings("ignore:The following rank_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("targets", [(ALL,), ("q_proj", "v_proj")], ids=["all-linear", "two"])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("gemma2", {}),
        ("phi3", {}),
        ("glm4", {"partial_rotary_factor": 0.5}),
        ("mixtral", EXPERTS),
        ("qwen3_moe", EXPERTS),
        ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
        ("deepseek_v3", {**EXPERTS, **LATENT}),
        ("gpt2", {"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 32}),
        ("gpt_neox", {}),
    ],
)
def test_number_of_trained_parameters_is_pefts(kind: str, sizes: dict[str, Any], targets: tuple[str, ...]) -> None:
    if ALL in targets and "num_experts" in sizes:
        pytest.skip("PEFT adapts experts, too, which is refused")
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = {**SMALL, **sizes}
    usual = transformers.AutoConfig.for_model(kind)
    config = transformers.AutoConfig.for_model(kind, **{name: sizes[name] for name in sizes if hasattr(usual, name)})
    model = model_of({**config.to_dict(), "model_type": kind})
    names = [one.name for one in layer_matrices(model, kind)]
    if ALL not in targets and not set(targets) <= set(names):
        targets = tuple(names[:2])
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
        wanted = ALL if ALL in targets else list(targets)
        tuned = peft.get_peft_model(module, peft.LoraConfig(r=8, target_modules=wanted, task_type="CAUSAL_LM"))
    trained, _ = tuned.get_nb_trainable_parameters()
    assert Adapters(8, targets, kind).num_parameters(model) == trained


class Saved:
    """Counts the bytes of the tensors that autograd keeps, each once, without parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.known = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.bytes = 0

    def keep(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self.known:
            self.known.add(place)
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


class Adapted(nn.Module):
    """A frozen linear layer with an adapter, as PEFT computes it without casts."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.first, self.second = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.second(self.first(x)) * 2.0  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A layer of Llama with adapters on some matrices; attention and norms keep what fused kernels keep."""

    def __init__(self, model: PlannedModel, targets: tuple[str, ...], rank: int) -> None:
        super().__init__()
        self.parts, self.model = nn.ModuleDict(), model
        for one in layer_matrices(model):
            adapted = ALL in targets or one.name in targets
            plain = nn.Linear(one.inputs, one.outputs, bias=False).requires_grad_(False)
            self.parts[one.name] = Adapted(one.inputs, one.outputs, rank) if adapted else plain

    def forward(self, x: Tensor) -> Tensor:
        heads, width = self.model.heads, self.model.head_dim
        y = Norm.apply(x)  # type: ignore[no-untyped-call]
        q, k, v = (self.parts[f"{name}_proj"](y).unflatten(-1, (-1, width)).transpose(1, 2) for name in ("q", "k", "v"))
        attended = Attention.apply(q, k, v, heads)  # type: ignore[no-untyped-call]
        x = x + self.parts["o_proj"](attended)
        y = Norm.apply(x)  # type: ignore[no-untyped-call]
        inner = Gate.apply(self.parts["gate_proj"](y), self.parts["up_proj"](y))  # type: ignore[no-untyped-call]
        return x + self.parts["down_proj"](inner)  # type: ignore[no-any-return]


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        y = torch.empty(q.shape[0], q.shape[2], heads * v.shape[-1])
        ctx.save_for_backward(q, k, v, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (*ctx.saved_tensors[:3], None)


class Gate(torch.autograd.Function):
    """A fused activation and product: it keeps its two inputs."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


@pytest.mark.parametrize(
    "targets", [(ALL,), ("q_proj", "v_proj"), ("down_proj",), ("o_proj",), ("gate_proj", "k_proj")]
)
def test_a_layer_keeps_the_tensors_that_autograd_keeps(targets: tuple[str, ...]) -> None:
    model, adapters = PlannedModel(1, 64, 4, 2, 16, 96, 128), Adapters(8, targets)
    layer = Layer(model, targets, 8)
    x = torch.zeros(2, 32, 64, requires_grad=True) * 1.0  # like another layer's output, which this one keeps
    saved = Saved(layer)
    with torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda tensor: tensor):
        layer(x)
    run = run_of(None, software="megatron", micro_batch=2, seq_len=32, global_batch=2, recompute="none")
    layout = replace(run.layout, traits=replace(run.layout.traits, number_bytes=4))
    ours = 2 * 32 * sum(one.numbers * one.num_bytes / one.split for one in adapter_kept(model, layout, adapters))
    assert ours == saved.bytes


# ---- the sums --------------------------------------------------------------------------------------------------------


def test_nf4_with_double_quantization_has_4_127_bits() -> None:
    assert pytest.approx(4.127, abs=5e-4) == 8 * NF4_BYTES


@pytest.mark.parametrize("num_gpus", [1, 8])
@pytest.mark.parametrize("quantized", [False, True])
def test_states_are_frozen_weights_once_and_sixteen_bytes_for_each_adapter(num_gpus: int, quantized: bool) -> None:
    step = step_of(Adapters(16, quantized=quantized), num_gpus, software="fsdp")
    model, trained, memory = step.model, step.trained_parameters, step.memory
    matrices = model.layers * sum(one.numel for one in layer_matrices(model))
    frozen = FROZEN_BYTES * model.num_parameters() - (FROZEN_BYTES - NF4_BYTES) * matrices * quantized
    assert trained == 32 * 16 * (9 * 4096 + 2 * 1024 + 3 * 14336)
    assert memory.states == pytest.approx((frozen + 16 * trained) / num_gpus)
    assert memory.gradients == 4 * trained / num_gpus
    assert (memory.communication > 0) == (num_gpus > 1)


def test_zero_stages_split_adapters_and_only_the_third_the_frozen_weights() -> None:
    adapters = Adapters(16)
    memories = [
        adapter_memory(run.model, run.layout, adapters, run.cluster.gpu.memory)
        for run in (run_of(adapters, 8, zero=zero, software="fsdp") for zero in (0, 1, 2, 3))
    ]
    model = run_of(None).model
    trained, frozen = adapters.num_parameters(model), 2 * model.num_parameters()
    assert [memory.optimizer for memory in memories] == [8 * trained / split for split in (1, 8, 8, 8)]
    assert [memory.gradients for memory in memories] == [4 * trained / split for split in (1, 1, 8, 8)]
    assert [memory.parameters for memory in memories] == [
        pytest.approx((frozen + 4 * trained) / split) for split in (1, 1, 1, 8)
    ]


def test_frozen_products_cost_a_third_less_and_adapters_little() -> None:
    full, tuned = (
        run_of(None, 8).step,
        step_of(Adapters(16), 8, software="fsdp", micro_batch=run_of(None, 8).layout.micro_batch),
    )
    plain = full.layers.layer(mixture=False)
    ours = tuned.layers.layer(mixture=False)
    own = tuned.layers.adapter_products(False)
    assert ours.forward.products == pytest.approx(plain.forward.products + own[0])
    assert (ours.backward.products - own[1]) / plain.backward.products == pytest.approx(0.5, abs=0.03)
    assert 0 < sum(own) < 0.2 * plain.total.products


def test_wider_adapters_take_more_time_and_memory() -> None:
    steps = [step_of(Adapters(rank), 1, micro_batch=1) for rank in (8, 16, 64)]
    times, totals = [step.step.total for step in steps], [step.memory.total for step in steps]
    assert times == sorted(times)
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


def test_quantized_weights_are_written_out_in_each_pass() -> None:
    plain = step_of(Adapters(16), 1, micro_batch=1, recompute="full")
    small = step_of(Adapters(16, quantized=True), 1, micro_batch=1, recompute="full")
    one = small.layers.dequantize_s
    numel = sum(matrix.numel for matrix in layer_matrices(small.model))
    assert one == pytest.approx((2 + NF4_BYTES) * numel / small.kernels.memory_rate)
    added = small.stages[0].total.memory - plain.stages[0].total.memory
    assert added == pytest.approx(3 * 32 * one)  # forward, backward, and forward again


def test_only_adapters_are_reduced_and_frozen_weights_are_gathered() -> None:
    sharded = step_of(Adapters(16), 64, software="fsdp")
    full = run_of(None, 64).step
    gather, reduce, _ = sharded.layer_transfers
    assert gather == pytest.approx(full.layer_transfers[0], rel=0.02)
    assert reduce < 0.2 * full.layer_transfers[1]
    replicated = step_of(Adapters(16), 64, software="fsdp", zero=0)
    all_of_it = replicated.links.all_reduce(4 * replicated.trained_parameters, replicated.rings["data"])
    assert replicated.step_transfers == (pytest.approx(all_of_it), 0.0)


def test_only_adapters_slow_the_computation_down() -> None:
    replicated, sharded = (step_of(Adapters(16), 8, software="fsdp", zero=zero) for zero in (0, 3))
    assert 0 < replicated.data[1] < 1e-3
    full = run_of(None, 8, software="fsdp").step
    assert sharded.whole_bytes[0] == pytest.approx(full.whole_bytes[0], rel=0.02)
    assert sharded.copies_s == pytest.approx(full.copies_s * 8 / 14, rel=0.03), "8 bytes gathered, 6 of gradients"


def test_utilization_counts_two_products_of_three() -> None:
    step = step_of(Adapters(16), 1, micro_batch=1)
    product = step.model.product_flops_per_token()
    expected = 2 * product + 6 * step.trained_parameters + 3 * step.model.attention_flops_per_token(step.layout.seq_len)
    assert step.model_flops == expected
    assert utilization(step) + sum(losses(step).values()) == pytest.approx(1)


def test_tensor_parallelism_splits_one_side_of_an_adapter() -> None:
    model, adapters = run_of(None).model, Adapters(16)
    one, two = adapters.layer_parameters(model), adapters.layer_parameters(model, tp=2)
    outputs, inputs = 4096 + 2 * 1024 + 2 * 14336, 4096 + 14336
    assert one - two == 16 * (outputs + inputs) / 2


def test_peft_copies_inputs_and_casts_what_is_not_quantized() -> None:
    run = run_of(Adapters(16, quantized=True))
    assert run.adapters is not None
    assert (run.adapters.casts_inputs, run.adapters.rest_bytes) == (True, 4)
    other = run_of(Adapters(16, quantized=True), software="fsdp")
    assert other.adapters == Adapters(16, quantized=True)
    kept = [
        sum(one.numbers for one in adapter_kept(one.model, one.layout, one.adapters) if "adapters" in one.what)
        for one in (run, other)
        if one.adapters
    ]
    # Copies for q, k, v, o, gate and up, instead of the two blocks' inputs.
    assert kept[0] - kept[1] == 4 * 4096


def test_ranges_are_wider_than_those_of_full_training() -> None:
    assert spread_of(run_of(Adapters(16), 8, software="fsdp")) > spread_of(run_of(None, 8))


def test_explained_sums_are_the_plans_numbers() -> None:
    for quantized in (False, True):
        terms = list(explain_adapters(step_of(Adapters(16, quantized=quantized), 8)))
        for term in terms:
            assert eval(term.sum) == pytest.approx(term.value, rel=1e-4), term
        assert any("4.127" in term.formula for term in terms)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adapters", "num_gpus", "options", "words"),
    [
        (Adapters(16, ("q_prj",)), 1, {}, "did you mean q_proj"),
        (Adapters(4096), 1, {}, "exceeds the smaller side of a matrix, 1024"),
        (Adapters(16), 1, {"recompute": "alternate"}, "not modelled next to adapters"),
        (Adapters(16, quantized=True), 2, {"tp": 2}, "--tp 2"),
        (Adapters(16, quantized=True), 2, {"pp": 2}, "--pp 2"),
        (Adapters(16, quantized=True), 1, {"precision": "fp8"}, "products are in 16 bits"),
    ],
)
def test_impossible_adapters_are_refused(
    adapters: Adapters, num_gpus: int, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run_of(adapters, num_gpus, **options)


def test_adapters_of_experts_are_refused() -> None:
    model = PlannedModel(2, 64, 4, 2, 16, 96, 128, experts=4, experts_per_token=2, expert_ffn=32, dense_layers=1)
    layout = run_of(None, seq_len=64).layout
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert Adapters(8, attention).problems(model, layout) == []
    for targets in ((ALL,), ("q_proj", "up_proj")):
        assert f"of attention: {','.join(attention)}" in Adapters(8, targets).problems(model, layout)[0]
    assert "the experts are one tensor" in Adapters(8, attention, quantized=True).problems(model, layout)[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--quantize nf4", "weights in 4 bits cannot be trained"),
        ("--lora-targets q_proj", "without --lora-r"),
        ("--lora-r 16 --lora-targets ,", "names no matrix"),
        ("--lora-r 16 --software frog", "adapters with frog are not planned"),
        ("--lora-r 16 --lora-targets w_q", "no such matrix"),
    ],
)
def test_command_refuses_with_a_reason(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(LLAMA_8B), "--cluster", "h100x8", *words.split()]) != 0
    assert said in capsys.readouterr().err


def test_a_run_file_has_no_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "config" / "demo.toml"), "--cluster", "h100x8", "--lora-r", "8"]) != 0
    assert "which trains all parameters" in capsys.readouterr().err


def test_json_names_the_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--cluster h100x8 --gpus 1 --lora-r 16 --lora-targets q_proj,v_proj --quantize nf4 --json"
    assert main(["plan", str(LLAMA_8B), *words.split()]) == 0
    plan = json.loads(capsys.readouterr().out)
    trained = 32 * 16 * (4096 + 4096 + 4096 + 1024)
    expected = {"r": 16, "targets": ["q_proj", "v_proj"], "quantized": True, "trained_parameters": trained}
    assert plan["adapters"] == expected


def test_full_training_has_no_trace_of_adapters() -> None:
    step = run_of(None, 8).step
    assert type(step) is StepModel
    assert step.trained_parameters == step.model.num_parameters()


def test_targets_are_read_from_a_list() -> None:
    from frog.plan.estimate.adapters import parse_targets

    assert parse_targets("q_proj, v_proj") == ("q_proj", "v_proj")
    with pytest.raises(UsageError):
        parse_targets(" , ")
