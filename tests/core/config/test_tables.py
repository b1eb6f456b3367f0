"""Tables of the configuration as users read them: defaults, kinds of faults, strategies, optimizers, parameters."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from frog.core.config import OptimizerConfig, RunConfig, to_dict
from frog.core.config import fault_kinds as kinds
from frog.core.config.fault_kinds import KINDS, Kind
from frog.core.config.faults import Fault
from frog.core.config.finetune import FinetuneConfig, LoraConfig, parse_lora
from frog.core.config.model import IGNORED_LABEL, ModelConfig, split_dim
from frog.core.config.optimizers import OPTIMIZERS
from frog.core.config.own_strategy import own_entry
from frog.core.config.strategies import AXES, DATA_STRATEGIES, HYBRID, find_strategy, or_list
from frog.core.errors import ConfigError

DENSE = ModelConfig(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=6,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=5,
)
MIXTURE = replace(DENSE, num_local_experts=4)


def test_run_file_without_a_setting_has_these_values() -> None:
    defaults = to_dict(RunConfig(DENSE))
    assert defaults.pop("model") == {
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 5,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "qk_norm": False,
        "num_local_experts": None,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    }
    assert defaults == {
        "name": "run",
        "seed": 1337,
        "source": {"file": "config.json", "init_from": None},
        "data": {"name": "python-docs", "sequence_length": 64},
        "train": {
            "steps": 200,
            "global_batch_size": 16,
            "grad_accum": 1,
            "precision": "fp32",
            "initial_loss_scale": 65536.0,
            "compile": False,
            "activation_checkpointing": False,
            "device": "auto",
            "log_every": 10,
            "timeout_s": 120.0,
        },
        "comm": {"backend": "auto", "on_loss": "fail"},
        "strategy": {
            "name": "ddp",
            "implementation": "frog",
            "tp": 1,
            "pp": 1,
            "cp": 1,
            "ep": 1,
            "shard": None,
            "reduction": "bucketed",
            "bucket_mb": 25.0,
            "compression": "off",
            "inner_steps": 50,
            "outer_learning_rate": 0.7,
            "outer_momentum": 0.9,
            "sequence_parallel": True,
            "schedule": "1f1b",
            "virtual_stages": 2,
            "deepspeed_file": None,
            "file": None,
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 3e-3,
            "min_learning_rate": 3e-4,
            "warmup_steps": 20,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "momentum": 0.9,
            "muon_momentum": 0.95,
            "muon_rate_factor": 7.0,
            "weight_decay": 0.1,
            "grad_clip": 1.0,
        },
        "eval": {"every": 100, "tokens": 16384, "prompt": "The ", "sample_tokens": 40},
        "checkpoint": {"every": 100, "keep_last": 5},
    }


# ---- faults ----------------------------------------------------------------------------------------------------------

FLAGS = [field.name for field in fields(Kind) if field.type == "bool" and field.name != "ends"]


@pytest.mark.parametrize(
    ("name", "default", "needs", "flags"),
    [
        ("raise", "reduce", None, "peers_wait named_first traceback survivable"),
        ("kill", "reduce", None, "peers_wait named_first survivable"),
        ("midway", "reduce", "own_backend", "peers_wait named_first survivable"),
        ("stop", "reduce", None, "peers_wait named_first survivable"),
        ("slow", "forward", None, ""),
        ("shape", "reduce", "peers", ""),
        ("extra", "reduce", "peers", ""),
        ("missing", "reduce", "peers", ""),
        ("nan", "backward", None, "spoils_gradient"),
        ("corrupt", "checkpoint", None, "damages_checkpoint peers_wait named_first"),
        ("torn", "checkpoint", None, "damages_checkpoint peers_wait named_first"),
        ("absent", "checkpoint", None, "damages_checkpoint peers_wait named_first"),
        ("disk", "checkpoint", "full_device", "named_first"),
        ("port", "reduce", "peers", "severs peers_wait survivable"),
        ("node", "reduce", None, "of_node peers_wait survivable"),
        ("cut", "reduce", "network", "of_node severs peers_wait survivable"),
    ],
)
def test_kind_of_fault_has_these_effects(name: str, default: str, needs: str | None, flags: str) -> None:
    kind = KINDS[name]
    assert (kind.name, kind.default, kind.needs) == (name, default, needs)
    assert {flag for flag in FLAGS if getattr(kind, flag)} == set(flags.split())
    assert kind.ends == (name != "slow")
    assert kind.default in kind.phases


def test_every_kind_of_fault_is_in_the_table_above() -> None:
    assert len(KINDS) == 16
    assert {name: kind.collective for name, kind in KINDS.items() if kind.collective} == {
        "shape": "resized",
        "missing": "left_out",
        "extra": "added",
    }
    assert {name for name, kind in KINDS.items() if kind.alters_collective} == {"shape", "missing"}
    assert {name: kind.own for name, kind in KINDS.items() if kind.own} == {
        "midway": ("signs", "sent_bytes"),
        "slow": ("seconds",),
        "cut": ("after_s", "for_s"),
    }
    assert {name: len(kind.phases) for name, kind in KINDS.items() if kind.phases != kinds.PHASES} == {
        "shape": 6,
        "missing": 6,
        "nan": 2,
        "corrupt": 1,
        "torn": 1,
        "absent": 1,
        "disk": 1,
    }


@pytest.mark.parametrize(
    ("needs", "world_size", "network", "own_backend", "words"),
    [
        ("peers", 1, False, False, "a world of one rank has no collectives and no connections"),
        ("peers", 2, False, False, None),
        ("network", 2, False, False, 'no simulated network to cut; try --nodes 2x1 --network "delay=1ms"'),
        ("network", 2, True, False, None),
        ("own_backend", 2, False, False, "only Frog's own backend counts a rank's signs of life; try 2 ranks"),
        ("own_backend", 1, False, True, "only Frog's own backend counts"),
        ("own_backend", 2, False, True, None),
        (None, 1, False, False, None),
    ],
)
def test_fault_needs_a_world_that_has_what_it_breaks(
    needs: Any, world_size: int, network: bool, own_backend: bool, words: str | None
) -> None:
    missing = Kind(name="x", what="", needs=needs).missing(world_size, network, own_backend)
    assert words in missing if words and missing else missing == words


def test_full_disk_needs_the_device_that_is_always_full(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (KINDS["disk"].missing(1, False) is None) == Path("/dev/full").exists()
    monkeypatch.setattr(kinds, "FULL_DEVICE", Path("/dev/no-such-device"))
    assert "this system has no /dev/no-such-device" in (KINDS["disk"].missing(1, False) or "")
    assert KINDS["kill"].missing(1, False) is None


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault("kill", 2, 7, "reduce"), "kill rank=2 step=7 phase=reduce"),
        (Fault("kill", 0, 1, "forward", micro=1, times=2), "kill rank=0 step=1 phase=forward micro=1 times=2"),
        (Fault("slow", 1, 3, "data"), "slow rank=1 step=3 phase=data seconds=0.5"),
        (Fault("cut", 1, 3, "data"), "cut rank=1 step=3 phase=data after_s=0"),
        (Fault("cut", 1, 3, "data", for_s=2.5), "cut rank=1 step=3 phase=data after_s=0 for_s=2.5"),
        (Fault("midway", 1, 3, "data"), "midway rank=1 step=3 phase=data signs=3"),
    ],
)
def test_fault_is_shown_as_the_text_that_describes_it(fault: Fault, text: str) -> None:
    assert str(fault) == text


# ---- strategies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "splits", "stage", "every_micro_batch", "trains_locally", "implementations"),
    [
        ("ddp", "", 0, False, False, "frog torch"),
        ("zero1", "optimizer", 1, False, False, "frog torch deepspeed"),
        ("zero2", "optimizer gradients", 2, True, False, "frog torch deepspeed"),
        ("zero3", "optimizer gradients parameters", 3, True, False, "frog torch deepspeed"),
        ("diloco", "", 0, False, True, "frog"),
    ],
)
def test_data_strategy_has_these_properties(
    name: str, splits: str, stage: int, every_micro_batch: bool, trains_locally: bool, implementations: str
) -> None:
    entry = DATA_STRATEGIES[name]
    assert (entry.name, entry.splits, entry.zero_stage) == (name, set(splits.split()), stage)
    assert (entry.sends_every_micro_batch, entry.trains_locally) == (every_micro_batch, trains_locally)
    assert entry.has_formulas
    assert list(entry.modules) == implementations.split()
    assert find_strategy(name) is entry


def test_proofs_cover_small_buckets_rounds_and_all_schedules() -> None:
    proofs = {
        case: dict(settings)
        for entry in (*DATA_STRATEGIES.values(), *AXES.values(), HYBRID)
        for case, settings in entry.proofs.items()
    }
    assert proofs == {
        "ddp-naive": {"reduction": "naive"},
        "ddp-bucketed": {"reduction": "bucketed", "bucket_mb": 0.02},
        "ddp-overlapped": {"reduction": "overlapped", "bucket_mb": 0.02},
        "diloco": {"name": "diloco", "inner_steps": 2},
        "tp": {"tp": "all", "sequence_parallel": False},
        "tp+sp": {"tp": "all"},
        "pp-gpipe": {"pp": "all", "schedule": "gpipe"},
        "pp-1f1b": {"pp": "all", "schedule": "1f1b"},
        "pp-interleaved": {"pp": 2, "schedule": "interleaved"},
        "pp-zero-bubble": {"pp": "all", "schedule": "zero_bubble"},
        "cp": {"cp": "all"},
        "ep": {"ep": "all"},
    }  # fmt: skip


def test_names_are_listed_with_or() -> None:
    assert [or_list(names) for names in ("a", "ab", "abc")] == ["a", "a or b", "a, b or c"]
    assert (find_strategy("hybrid"), find_strategy("tp")) == (HYBRID, AXES["tp"])
    assert (own_entry("x/mine.py").name, own_entry("x/mine.py").has_formulas, own_entry("").name) == ("mine", False, "")


# ---- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "state", "counts_steps", "whole", "rate"),
    [
        ("adamw", ("exp_avg", "exp_avg_sq"), True, False, 1e-3),
        ("sgd", ("momentum_buffer",), False, False, 0.1),
        ("muon", ("exp_avg", "exp_avg_sq"), True, True, 5e-4),
    ],
)
def test_optimizer_has_this_state(
    name: str, state: tuple[str, ...], counts_steps: bool, whole: bool, rate: float
) -> None:
    entry = OptimizerConfig(name).entry
    assert entry is OPTIMIZERS[name]
    assert (entry.counts_steps, entry.needs_whole_matrices, entry.proof_rate) == (counts_steps, whole, rate)
    assert OptimizerConfig(name).state == state


def test_sgd_without_momentum_keeps_no_state() -> None:
    assert [OptimizerConfig("sgd", momentum=momentum).state for momentum in (0.0, 0.5)] == [(), ("momentum_buffer",)]


@pytest.mark.parametrize(
    ("setting", "accepted", "refused", "words"),
    [
        *(
            (name, [0.0, 5.0], -0.1, f"optimizer.{name}=-0.1: must be at least 0")
            for name in ("learning_rate", "min_learning_rate", "muon_rate_factor", "warmup_steps", "weight_decay")
        ),
        *(
            (name, [0.0, 0.999], value, f"optimizer.{name}={value}: must lie in [0, 1)")
            for name in ("beta1", "beta2", "momentum", "muon_momentum")
            for value in (1.0, -0.1)
        ),
        ("eps", [1e-12], 0.0, "optimizer.eps=0.0: must be above 0"),
        ("grad_clip", [0.1, "off"], 0.0, 'optimizer.grad_clip=0.0: must be above 0, or "off"'),
        ("grad_clip", [0.1, "off"], -1.0, 'optimizer.grad_clip=-1.0: must be above 0, or "off"'),
        ("name", ["sgd", "muon"], "adam", "optimizer.name='adam': must be 'adamw', 'sgd' or 'muon'"),
    ],
)
def test_optimizers_setting_outside_its_limits_is_refused(
    setting: str, accepted: list[Any], refused: Any, words: str
) -> None:
    assert [OptimizerConfig(**{setting: value}).problems() for value in accepted] == [[]] * len(accepted)
    assert OptimizerConfig(**{setting: refused}).problems() == [words]


# ---- the model -------------------------------------------------------------------------------------------------------

LAYER = {
    "input_layernorm.weight": (8,),
    "self_attn.q_proj.weight": (8, 8),
    "self_attn.k_proj.weight": (4, 8),
    "self_attn.v_proj.weight": (4, 8),
    "self_attn.o_proj.weight": (8, 8),
    "post_attention_layernorm.weight": (8,),
}
MLP = {"mlp.gate_proj.weight": (6, 8), "mlp.up_proj.weight": (6, 8), "mlp.down_proj.weight": (8, 6)}
HEAD_NORMS = {"self_attn.q_norm.weight": (2,), "self_attn.k_norm.weight": (2,)}
EXPERTS = {"mlp.gate.weight": (4, 8), "mlp.experts.gate_up_proj": (4, 12, 8), "mlp.experts.down_proj": (4, 8, 6)}


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (DENSE, {**LAYER, **MLP}),
        (replace(DENSE, qk_norm=True), {**LAYER, **MLP, **HEAD_NORMS}),
        (MIXTURE, {**LAYER, **EXPERTS}),
    ],
    ids=["dense", "qk_norm", "mixture"],
)  # fmt: skip
def test_model_has_these_parameters(model: ModelConfig, layer: dict[str, tuple[int, ...]]) -> None:
    shapes = model.shapes()
    assert shapes == {
        "embed_tokens.weight": (11, 8),
        **{f"layers.{number}.{name}": shape for number in range(3) for name, shape in layer.items()},
        "norm.weight": (8,),
        "lm_head.weight": (11, 8),
    }
    assert (next(iter(shapes)), list(shapes)[-2:]) == ("embed_tokens.weight", ["norm.weight", "lm_head.weight"])
    assert [row.name for row in model.layer_parameters()][-3:] == list(layer if "mlp.gate.weight" in layer else MLP)[
        -3:
    ]


def test_sizes_of_a_dense_model_are_these() -> None:
    layer = 8 + 64 + 32 + 32 + 64 + 8 + 3 * 48
    total = 88 + 3 * layer + 8
    assert (DENSE.head_dim, DENSE.kv_width) == (2, 4)
    assert DENSE.num_parameters() == total
    assert replace(DENSE, tie_word_embeddings=False).num_parameters() == total + 88
    assert DENSE.built_bytes() == 4 * (total + 2 * 5 * 2)
    products = 3 * (64 + 32 + 32 + 64 + 144) + 88
    assert DENSE.flops_per_token(5) == 6 * products + 12 * 3 * 8 * 5


def test_token_of_a_mixture_goes_through_two_experts_of_four() -> None:
    layer = 8 + 64 + 32 + 32 + 64 + 8 + 32 + 4 * 144
    assert MIXTURE.num_parameters() == 88 + 3 * layer + 8
    assert MIXTURE.flops_per_token(1) == 6 * (3 * (64 + 32 + 32 + 64 + 32 + 2 * 144) + 88) + 12 * 3 * 8
    assert replace(DENSE, qk_norm=True).flops_per_token(1) == DENSE.flops_per_token(1)


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        *[("embed_tokens.weight", 0), ("lm_head.weight", 0), ("norm.weight", None), ("unknown", None)],
        *[(f"layers.12.self_attn.{each}_proj.weight", 0) for each in "qkv"],
        *[("model.layers.0.self_attn.o_proj.weight", 1), ("layers.0.input_layernorm.weight", None)],
        *[("layers.0.mlp.gate_proj.weight", 0), ("layers.0.mlp.up_proj.weight", 0)],
        ("layers.0.mlp.down_proj.weight", 1),
        *[("layers.0.mlp.gate.weight", None), ("layers.0.mlp.experts.down_proj", None)],
    ],
)  # fmt: skip
def test_tensor_parallelism_splits_this_dim(name: str, dim: int | None) -> None:
    assert split_dim(name) == dim


MOST = {
    "vocab_size": 10**8,
    "hidden_size": 10**6,
    "intermediate_size": 10**7,
    "num_hidden_layers": 10**4,
    "num_attention_heads": 10**5,
    "num_key_value_heads": 10**5,
    "max_position_embeddings": 10**8,
    "num_local_experts": 10**5,
}


@pytest.mark.parametrize("name", MOST)
def test_size_lies_between_1_and_its_limit(name: str) -> None:
    for size, words in ((0, "at least 1"), (MOST[name] + 1, f"at most {MOST[name]}")):
        assert replace(DENSE, **{name: size}).problems() == [f"{name}={size}: must be {words}"]
    for size in (1, MOST[name]):
        assert f"{name}={size}: must be" not in "".join(replace(DENSE, **{name: size}).problems())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"rope_theta": 0.0}, "rope_theta=0.0: must be above 0"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0: must be above 0"),
        ({"rms_norm_eps": 0.0, "initializer_range": 0.0}, None),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0: must be at least 0"),
        ({"initializer_range": -1.0}, "initializer_range=-1.0: must be at least 0"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "num_attention_heads = 2.66667 columns"),
        ({"num_attention_heads": 8}, "hidden_size=8 / num_attention_heads=8 = 1 columns a head"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
        ({"qk_norm": True}, None),
        ({"qk_norm": True, "num_local_experts": 2}, "qk_norm=true with num_local_experts=2"),
        ({"num_local_experts": 2}, None),
        ({"num_local_experts": 1}, "num_experts_per_tok=2 of num_local_experts=1: each token"),
        ({"num_local_experts": 4, "num_experts_per_tok": 0}, "num_experts_per_tok=0 of num_local_experts=4"),
        ({"num_local_experts": 4, "num_experts_per_tok": 1}, None),
        ({"num_local_experts": 4, "router_aux_loss_coef": 0.0}, None),
        ({"num_local_experts": 4, "router_aux_loss_coef": -0.1}, "router_aux_loss_coef=-0.1: must be at least 0"),
        ({"num_experts_per_tok": 0, "router_aux_loss_coef": -0.1}, None),  # a dense model reads neither
    ],
)
def test_model_that_cannot_be_built_is_refused(changes: dict[str, Any], words: str | None) -> None:
    problems = replace(DENSE, **changes).problems()
    assert len(problems) == (words is not None)
    assert (words or "") in "".join(problems)


def test_ignored_label_is_pytorchs() -> None:
    assert IGNORED_LABEL == -100


# ---- adapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lora"),
    [
        ("", LoraConfig(8, 16.0, ("all",))),
        ("rank=4", LoraConfig(4)),
        ("r=2, lora_alpha=1.5; target_modules=all-linear", LoraConfig(2, 1.5, ("all",))),
        ("targets=q_proj,v_proj,rank=1,alpha=1e-3", LoraConfig(1, 1e-3, ("q_proj", "v_proj"))),
    ],
)
def test_adapters_are_read_from_one_argument(text: str, lora: LoraConfig) -> None:
    assert parse_lora(text) == lora


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank=0", "1 wrong\n  - rank=0: must be at least 1"),
        ("rank=1.5", "1 wrong\n  - rank=1.5: must be a whole number"),
        ("rank=1,2", "1 wrong\n  - rank=1,2: must be a whole number"),
        ("alpha=x", "1 wrong\n  - alpha=x: must be a number"),
        ("alpha=0", "1 wrong\n  - alpha=0: must be above 0, and finite"),
        ("alpha=inf", "1 wrong\n  - alpha=inf: must be above 0, and finite"),
        ("targets=", "1 wrong\n  - targets: names no projection; all selects every one"),
        ("q_proj", "1 wrong\n  - q_proj: must be NAME=VALUE; names: rank, alpha, targets"),
        ("rnk=4,x", "1 wrong\n  - rnk: unknown; did you mean rank?"),
        ("rank=0,alpha=0", "2 wrong\n  - rank=0"),
    ],
)
def test_wrong_adapters_are_refused_with_every_mistake(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_lora(text)
    assert f"--lora {text}: {words}" in caught.value.what
    assert caught.value.hint == "--lora rank=8,alpha=16,targets=all"


def test_products_of_adapters_are_scaled_by_alpha_over_rank() -> None:
    assert LoraConfig(rank=4, alpha=6.0).scaling == 1.5
    assert FinetuneConfig("b", 1, "0", "d", "1", "completion", (), 1, 0.1).lora == LoraConfig()
