"""Every rule of a run file at its border: the last accepted value, the first refused one, and the sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog.core.config import ModelConfig, OptimizerConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.config.hugging_face import from_hugging_face, to_hugging_face
from frog.core.config.load import build_section, list_problems, override_dict, unknown_keys
from frog.core.config.run_config import CheckpointConfig, CommConfig, DataConfig, EvalConfig
from frog.core.config.strategy import strategy_problems
from frog.core.errors import ConfigError

MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=8,
    max_position_embeddings=32,
)
RUN = RunConfig(MODEL, data=DataConfig(sequence_length=16))
MIXTURE = replace(MODEL, num_local_experts=4)


def with_setting(section: str, **values: Any) -> RunConfig:
    return replace(RUN, **{section: replace(getattr(RUN, section), **values)})


LIMITS = {
    ("data", "sequence_length"): (2, 10**8),
    ("train", "steps"): (1, 10**9),
    ("train", "global_batch_size"): (1, 10**7),
    ("train", "grad_accum"): (1, 10**5),
    ("train", "log_every"): (1, 10**9),
    ("train", "timeout_s"): (1, 10**9),
    **{("strategy", name): (1, 10**9) for name in ("tp", "pp", "cp", "ep", "inner_steps")},
    ("strategy", "shard"): (1, 10**9),
    ("strategy", "bucket_mb"): (0, 10**9),
    ("strategy", "virtual_stages"): (2, 10**9),
    ("eval", "every"): (1, 10**9),
    ("eval", "tokens"): (1, 10**9),
    ("eval", "sample_tokens"): (0, 10**5),
    ("checkpoint", "every"): (1, 10**9),
    ("checkpoint", "keep_last"): (1, 10**9),
}


@pytest.mark.parametrize(("section", "name"), LIMITS)
def test_number_of_a_run_file_lies_within_its_limits(section: str, name: str) -> None:
    least, most = LIMITS[section, name]
    refused = {value: with_setting(section, **{name: value}).problems() for value in (least - 1, most + 1)}
    if name == "shard":
        del refused[0]  # means none
    if name == "sequence_length":
        refused[most + 1].pop()  # more than the model's positions
    words = {least - 1: f"at least {least}", most + 1: f"at most {most}"}
    assert refused == {value: [f"{section}.{name}={value}: must be {words[value]}"] for value in refused}
    for value in (least, most):
        assert [line for line in with_setting(section, **{name: value}).problems() if "must be" in line] == []


@pytest.mark.parametrize(
    ("section", "name", "accepted", "refused", "words"),
    [
        ("strategy", "outer_momentum", [0, 0.99], [-0.1, 1], "must lie in [0, 1)"),
        ("strategy", "outer_learning_rate", [0.01, 9], [0, -1, float("inf")], "must be above 0, and finite"),
        ("train", "initial_loss_scale", [1, 2.0**40], [0.99, float("inf")], "must be at least 1, and finite"),
    ],
)
def test_factor_lies_within_its_limits(
    section: str, name: str, accepted: list[float], refused: list[float], words: str
) -> None:
    assert [with_setting(section, **{name: value}).problems() for value in accepted] == [[]] * len(accepted)
    for value in refused:
        assert with_setting(section, **{name: value}).problems() == [f"{section}.{name}={value}: {words}"]


def test_sequence_is_at_most_as_long_as_the_models_positions() -> None:
    assert with_setting("data", sequence_length=32).problems() == []
    (problem,) = with_setting("data", sequence_length=33).problems()
    assert problem == (
        "data.sequence_length=33 is more than max_position_embeddings=32: every position needs a rotation"
    )


def test_ranks_of_diloco_meet_at_the_end_of_a_round_and_of_the_run() -> None:
    rounds = replace(RUN, train=TrainConfig(steps=10), strategy=StrategyConfig("diloco", inner_steps=4))
    assert [step for step in range(1, 11) if rounds.meets(step)] == [4, 8, 10]
    assert all(RUN.meets(step) for step in range(1, 11))


@pytest.mark.parametrize(
    ("optimizer", "strategy", "world_size", "kept", "sequences", "cut"),
    [
        ("adamw", {}, 1, 3, 16, 1),
        ("adamw", {}, 4, 3, 4, 1),
        ("sgd", {}, 4, 2, 4, 1),
        ("adamw", {"tp": 2, "cp": 2}, 8, 3, 8, 4),
    ],
)
def test_least_memory_is_the_model_a_share_of_its_state_and_one_input(
    optimizer: str, strategy: dict[str, int], world_size: int, kept: int, sequences: int, cut: int
) -> None:
    run = replace(RUN, optimizer=OptimizerConfig(optimizer), strategy=StrategyConfig(**strategy))
    weights = 4 * MODEL.num_parameters()
    expected = MODEL.built_bytes() + kept * weights // world_size + 4 * sequences * 16 * 32 // cut
    assert run.least_bytes(world_size) == expected


def test_micro_batch_is_rounded_up() -> None:
    run = with_setting("train", global_batch_size=9, grad_accum=2)
    assert [run.micro_batch_size(dp_size) for dp_size in (1, 2, 4, 5)] == [5, 3, 2, 1]


# ---- strategies ------------------------------------------------------------------------------------------------------


def problems(
    world_size: int = 4, length: int = 16, grad_accum: int = 4, model: ModelConfig = MODEL, **strategy: Any
) -> list[str]:
    return strategy_problems(StrategyConfig(**strategy), model, length, grad_accum, world_size)


NARROW = replace(MODEL, num_key_value_heads=2)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, []),
        ({"tp": 2, "world_size": 6}, []),
        (
            {"tp": 2, "pp": 2, "world_size": 6},
            ["strategy.pp 2 x strategy.cp 1 x strategy.tp 2 = 4 ranks do not divide the world of 6"],
        ),
        ({"tp": 4, "model": NARROW}, ["num_key_value_heads=2 is not a multiple of strategy.tp=4: each rank takes"]),
        ({"tp": 2, "model": NARROW}, []),
        (
            {"tp": 3, "world_size": 3},
            [
                "num_attention_heads=8 is not a multiple of strategy.tp=3: each rank takes whole heads",
                "num_key_value_heads=8 is not a multiple of strategy.tp=3",
                "intermediate_size=64 is not a multiple of strategy.tp=3",
                "vocab_size=64 is not a multiple of strategy.tp=3",
                "data.sequence_length=16 is not a multiple of strategy.tp=3: sequence parallelism",
            ],
        ),
        ({"tp": 2, "length": 15}, ["data.sequence_length=15 is not a multiple of strategy.tp=2"]),
        ({"tp": 2, "length": 15, "sequence_parallel": False}, []),
        ({"length": 15}, []),
        ({"cp": 2}, []),
        ({"cp": 2, "length": 12}, []),
        ({"cp": 2, "length": 14}, ["data.sequence_length=14 is not a multiple of 2 x strategy.cp=4: each"]),
        ({"cp": 2, "length": 4}, []),
        ({"pp": 4}, []),
        ({"pp": 4, "model": replace(MODEL, num_hidden_layers=3)}, ["num_hidden_layers=3 is less than 4 stages"]),
        ({"pp": 2, "schedule": "interleaved"}, []),
        ({"pp": 2, "schedule": "interleaved", "virtual_stages": 3}, ["num_hidden_layers=4 is less than 6 stages"]),
        ({"pp": 1, "schedule": "interleaved", "virtual_stages": 9}, []),
        ({"pp": 4, "grad_accum": 3}, ["train.grad_accum=3 micro-batches are fewer than strategy.pp=4 stages"]),
        ({"pp": 1, "grad_accum": 1}, []),
        ({"pp": 2, "grad_accum": 3}, []),
        (
            {"pp": 2, "grad_accum": 3, "schedule": "interleaved"},
            ["train.grad_accum=3 is not a multiple of strategy.pp=2: interleaving needs that"],
        ),
        ({"pp": 1, "grad_accum": 3, "schedule": "interleaved"}, []),
        ({"name": "zero2", "shard": 2}, []),
        ({"name": "zero1", "shard": 3}, ["strategy.shard=3 does not divide the 4 data ranks"]),
        ({"shard": 2}, ["strategy.shard=2: ddp shards nothing; hybrid sharding needs zero1, zero2 or zero3"]),
        ({"name": "zero3", "shard": 4, "tp": 2}, ["strategy.shard=4 does not divide the 2 data ranks"]),
        ({"name": "zero3", "shard": 4, "cp": 2}, []),
        ({"name": "zero3", "shard": 4, "pp": 1}, []),
        ({"name": "zero1", "pp": 2}, []),
        (
            {"name": "zero2", "pp": 2},
            ["strategy.name='zero2' with strategy.pp=2: it would reduce or gather again in every micro-batch"],
        ),
        ({"name": "zero3", "pp": 1}, []),
        ({"compression": "int8"}, []),
        ({"compression": "int8", "reduction": "naive"}, ["strategy.compression='int8' with strategy.reduction="]),
        ({"compression": "int8", "name": "diloco", "reduction": "naive"}, []),
        ({"compression": "int8", "tp": 2}, ["strategy.compression='int8' with strategy.tp=2: error feedback"]),
        ({"compression": "int8", "name": "zero3"}, ["strategy.compression='int8': a setting of Frog's own ddp and"]),
        ({"compression": "bf16"}, ["strategy.compression='bf16': a communication hook of torch's ddp"]),
        ({"name": "diloco"}, []),
        ({"name": "diloco", "tp": 2}, ["strategy.name='diloco' with strategy.tp=2: each replica must be one rank"]),
        ({"name": "diloco", "model": MIXTURE}, ["strategy.name='diloco' with num_local_experts=4: the routers are"]),
        ({"ep": 2}, ["strategy.ep=2: this model has no experts to distribute (num_local_experts)"]),
        ({"ep": 1}, []),
        ({"ep": 2, "model": MIXTURE}, []),
        ({"ep": 4, "model": MIXTURE}, []),
        ({"ep": 3, "model": MIXTURE, "world_size": 3}, ["num_local_experts=4 is not a multiple of strategy.ep=3"]),
        ({"ep": 4, "model": MIXTURE, "world_size": 2}, ["strategy.ep=4 does not divide the 2 dp ranks"]),
        ({"tp": 2, "model": MIXTURE}, ["strategy.tp=2 with num_local_experts=4: tp does not split experts"]),
        ({"pp": 2, "model": MIXTURE}, []),
        (
            {"cp": 2, "implementation": "torch"},
            ["strategy.cp=2 with strategy.implementation='torch': it does not implement this strategy; frog does"],
        ),
        ({"model": MIXTURE, "implementation": "torch"}, []),
        ({"model": MIXTURE, "implementation": "torch", "pp": 2}, ["strategy.pp=2 with num_local_experts=4"]),
        ({"name": "diloco", "implementation": "torch"}, ["strategy.name='diloco' with strategy.implementation="]),
        ({"name": "zero1", "implementation": "torch", "tp": 1}, []),
        ({"name": "zero2", "implementation": "torch", "tp": 2}, []),
        ({"name": "zero3", "implementation": "deepspeed"}, []),
    ],
)  # fmt: skip
def test_strategy_is_refused_with_both_numbers_and_the_rule(settings: dict[str, Any], found: list[str]) -> None:
    said = problems(**settings)
    assert len(said) == len(found), said
    assert [words for words, line in zip(found, said, strict=True) if not line.startswith(words)] == []


def test_data_ranks_are_those_that_the_other_axes_leave() -> None:
    assert [StrategyConfig(tp=tp, pp=pp, cp=cp).dp_size(24) for tp, pp, cp in ((1, 1, 1), (2, 1, 1), (2, 3, 4))] == [
        *(24, 12, 1)
    ]


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (RUN, []),
        (replace(RUN, train=TrainConfig(compile=True)), []),
        (replace(RUN, train=TrainConfig(compile=True), strategy=StrategyConfig("zero2")), []),
        (
            replace(RUN, train=TrainConfig(compile=True), strategy=StrategyConfig("zero3")),
            ["train.compile=true with strategy.name='zero3': the ranks communicate inside the model"],
        ),
        (
            replace(RUN, train=TrainConfig(compile=True), strategy=StrategyConfig(tp=2, cp=2)),
            ["train.compile=true with strategy.tp=2 and strategy.cp=2: the ranks communicate inside the model, which "
             "is compiled as a whole; use ddp, zero1, zero2 or diloco"],
        ),
        (replace(RUN, train=TrainConfig(compile=True), strategy=StrategyConfig("zero3", "torch")), []),
        (replace(RUN, comm=CommConfig(on_loss="shrink")), []),
        (replace(RUN, comm=CommConfig(on_loss="shrink", backend="frog")), []),
        *(
            (replace(RUN, **changes, comm=comm), [f"comm.on_loss='shrink' with {words}: the other ranks could not"])
            for changes, comm, words in (
                ({"strategy": StrategyConfig(tp=2)}, CommConfig(on_loss="shrink"), "strategy.tp=2"),
                ({"strategy": StrategyConfig("zero1", shard=2)}, CommConfig(on_loss="shrink"), "strategy.shard=2"),
                ({"strategy": StrategyConfig(compression="int8")}, CommConfig(on_loss="shrink"),
                 "strategy.compression='int8'"),
                ({"strategy": StrategyConfig("diloco")}, CommConfig(on_loss="shrink"),
                 "strategy.name='diloco' of frog"),
                ({"strategy": StrategyConfig("ddp", "torch")}, CommConfig(on_loss="shrink"),
                 "strategy.name='ddp' of torch"),
                ({"model": MIXTURE}, CommConfig(on_loss="shrink"), "a mixture of experts"),
                ({}, CommConfig(on_loss="shrink", backend="gloo"), "comm.backend='gloo'"),
                ({"train": TrainConfig(compile=True)}, CommConfig(on_loss="shrink"), "train.compile=true"),
            )
        ),
        (replace(RUN, strategy=StrategyConfig("zero1", "deepspeed")), []),
        (
            replace(RUN, strategy=StrategyConfig("zero1", "deepspeed"), optimizer=OptimizerConfig("sgd")),
            ["optimizer.name='sgd' with strategy.implementation='deepspeed': Frog supports only DeepSpeed's AdamW"],
        ),
        (replace(RUN, optimizer=OptimizerConfig("sgd")), []),
        (replace(RUN, strategy=StrategyConfig("zero1", "deepspeed"), optimizer=OptimizerConfig("adamw")), []),
    ],
)  # fmt: skip
def test_run_that_does_not_fit_a_world_of_four_is_refused(run: RunConfig, found: list[str]) -> None:
    said = run.world_problems(4)
    assert len(said) == len(found), said
    assert [words for words, line in zip(found, said, strict=True) if not line.startswith(words)] == []


@pytest.mark.parametrize(
    ("strategy", "grad_accum", "world_size", "hint"),
    [
        ({"tp": 3}, 1, 4, "--set strategy.tp=2"),
        ({"cp": 3}, 1, 4, "--set strategy.cp=2"),
        ({"pp": 4}, 2, 4, "--set strategy.pp=2"),
        ({"pp": 8}, 8, 8, "--set strategy.pp=4"),
        ({"pp": 2, "cp": 2, "schedule": "interleaved"}, 3, 4, "--set strategy.pp=1"),
        ({"ep": 2}, 1, 4, "--set strategy.ep=1"),
        ({"tp": 3, "pp": 3}, 1, 4, "frog strategies --world 4 shows what is possible"),
    ],
)
def test_hint_is_the_nearest_setting_that_fits(
    strategy: dict[str, Any], grad_accum: int, world_size: int, hint: str
) -> None:
    train = TrainConfig(global_batch_size=48, grad_accum=grad_accum)
    run = replace(RUN, train=train, strategy=StrategyConfig(**strategy))
    with pytest.raises(ConfigError) as caught:
        run.check_world(world_size)
    assert caught.value.hint == hint


def test_further_problems_and_hints_of_the_caller_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        RUN.check_world(4, ["no GPU", "no network"], "buy some")
    assert str(caught.value) == "no GPU\n  - no network\n  try: buy some"


# ---- Hugging Face ----------------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "max_position_embeddings": 32,
}  # fmt: skip
FOR_ALL = {
    **SIZES,
    "head_dim": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 0,
    "dtype": "float32",
}
NO_BIAS = {"attention_bias": False, "mlp_bias": False}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001, "sliding_window": None}


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (MODEL, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **NO_BIAS}),
        (
            replace(MODEL, qk_norm=True),
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False},
        ),
        (MIXTURE, {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **EXPERTS}),
    ],
    ids=["llama", "qwen3", "mixtral"],
)  # fmt: skip
def test_hugging_faces_file_has_these_values_and_is_read_back(model: ModelConfig, more: dict[str, Any]) -> None:
    table = to_hugging_face(model)
    assert table == {**FOR_ALL, **more}
    said: list[str] = []
    assert build_section(ModelConfig, from_hugging_face(table, said), "", said) == model
    assert said == []


@pytest.mark.parametrize(
    ("key", "allowed", "refused"),
    [
        ("hidden_act", ["silu"], "gelu"),
        ("attention_bias", [False], True),
        ("mlp_bias", [False], True),
        ("attention_dropout", [0, 0.0], 0.1),
        ("rope_scaling", [None], {"factor": 2}),
        ("pretraining_tp", [1], 2),
        ("router_jitter_noise", [0, 0.0], 0.1),
        ("sliding_window", [None], 4096),
        ("use_sliding_window", [False], True),
        ("model_type", ["llama", "mixtral", "qwen3"], "gemma"),
        ("architectures", [["LlamaForCausalLM"], ["MixtralForCausalLM"], ["Qwen3ForCausalLM"]], ["Gemma"]),
    ],
)
def test_fixed_property_has_frogs_value_or_is_refused(key: str, allowed: list[Any], refused: Any) -> None:
    said: list[str] = []
    for value in allowed:
        assert key not in from_hugging_face({**SIZES, key: value}, said)
    assert said == []
    from_hugging_face({**SIZES, key: refused}, said)
    assert said == [f"model.{key}={refused!r}: Frog's model has {allowed[0]!r}"]


@pytest.mark.parametrize(
    ("table", "values", "found"),
    [
        ({"model_type": "mixtral"}, {"num_local_experts": 8}, []),
        ({"model_type": "mixtral", "num_local_experts": 2}, {"num_local_experts": 2}, []),
        ({"model_type": "llama", "num_local_experts": None}, {"num_local_experts": None}, []),
        ({"model_type": "llama", "num_local_experts": 4}, {}, ["model.num_local_experts=4: model_type='llama' has no"]),
        ({"model_type": "llama", "qk_norm": True}, {}, ["model.qk_norm=true: model_type='llama' has none; add --set"]),
        ({"model_type": "qwen3"}, {"qk_norm": True}, []),
        ({"model_type": "qwen3", "qk_norm": False}, {"qk_norm": False}, []),
        ({"qk_norm": True}, {"qk_norm": True}, []),
        ({"rope_parameters": {"rope_theta": 5.0}}, {"rope_theta": 5.0}, []),
        ({"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 6.0}, {"rope_theta": 6.0}, []),
        ({"rope_parameters": None}, {}, []),
        ({"rope_parameters": 3}, {}, ["model.rope_parameters=3: must be an object"]),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, ["model.rope_parameters.rope_type='yarn': Frog's model has"]),
        ({"rope_parameters": {"rope_type": "aa"}}, {}, ["model.rope_parameters.rope_type='aa': Frog's model has"]),
        ({"head_dim": 4}, {}, []),
        ({"head_dim": 5}, {}, ["model.head_dim=5 x num_attention_heads=8 is not hidden_size=32"]),
        ({"head_dim": "4"}, {}, ["model.head_dim='4': must be a whole number"]),
        ({"head_dim": 5, "hidden_size": "x"}, {}, []),
        ({"bos_token_id": 1, "torch_dtype": "bfloat16", "use_cache": True}, {}, []),
    ],
)
def test_other_keys_of_hugging_face_are_translated_or_refused(
    table: dict[str, Any], values: dict[str, Any], found: list[str]
) -> None:
    said: list[str] = []
    read = from_hugging_face({**SIZES, **table}, said)
    assert len(said) == len(found), said
    assert [words for words, line in zip(found, said, strict=True) if not line.startswith(words)] == []
    if not found and table.get("hidden_size") is None:
        assert read == {**SIZES, **values}


def test_absent_key_and_value_heads_are_as_many_as_heads() -> None:
    assert from_hugging_face({"num_attention_heads": 8}, []) == {"num_attention_heads": 8, "num_key_value_heads": 8}
    assert from_hugging_face({}, []) == {}


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "table", "found"),
    [
        (TrainConfig, {"steps": 2**63 - 1, "timeout_s": 3, "compile": True}, []),
        (TrainConfig, {"steps": 2**63}, [f"train.steps={2**63}: must be a whole number, finite and of 64 bits"]),
        (TrainConfig, {"steps": -(2**63)}, [f"train.steps={-(2**63)}: must be a whole number, finite and of 64 bits"]),
        (TrainConfig, {"steps": 1.5}, ["train.steps=1.5: must be a whole number"]),
        (TrainConfig, {"steps": True}, ["train.steps=True: must be a whole number"]),
        (TrainConfig, {"timeout_s": True}, ["train.timeout_s=True: must be a number"]),
        (TrainConfig, {"timeout_s": "1"}, ["train.timeout_s='1': must be a number"]),
        (TrainConfig, {"compile": 1}, ["train.compile=1: must be true or false"]),
        (TrainConfig, {"device": "tpu"}, ["train.device='tpu': must be 'auto' or 'cpu' or 'cuda' or 'mps'"]),
        (EvalConfig, {"prompt": 3}, ["train.prompt=3: must be a string"]),
        (CheckpointConfig, {"evry": 3}, ["train.evry: unknown key; did you mean train.every?"]),
        (StrategyConfig, {"shard": "x"}, ["train.shard='x': must be a whole number or null"]),
        (OptimizerConfig, {"grad_clip": "on"}, ["train.grad_clip='on': must be a number or 'off'"]),
        (RunConfig, {"train": 3}, ["train.train=3: must be a table, [train.train]", "train.model: missing"]),
    ],
)
def test_value_of_another_type_is_refused(cls: type[Any], table: dict[str, Any], found: list[str]) -> None:
    said: list[str] = []
    value = build_section(cls, table, "train.", said)
    assert said == found
    assert (value is None) == bool(found)


def test_whole_number_becomes_a_float_where_one_is_meant() -> None:
    value = build_section(TrainConfig, {"timeout_s": 3}, "", []).timeout_s
    assert (value, type(value)) == (3.0, float)


def test_problems_are_counted_and_shortened() -> None:
    assert list_problems(Path("a"), ["x"]) == "a: a mistake\n  - x"
    assert list_problems(Path("a"), ["x", "y" * 501]) == f"a: 2 mistakes\n  - x\n  - {'y' * 500}…"
    assert list_problems(Path("a"), ["x"] * 2).startswith("a: 2 mistakes")
    assert [len(unknown_keys(dict.fromkeys(map(str, range(number))), ["a"])) for number in (99, 100, 101)] == [
        *(99, 100, 100)
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.steps=9", {"train": {"steps": 9}}),
        (" train.steps = 9", {"train": {"steps": 9}}),
        ("name=2026", {"name": "2026"}),
        ("eval.prompt= 7 ", {"eval": {"prompt": "7"}}),
        ("model.file=1", {"model": {"file": "1"}}),
        ("strategy.file=1", {"strategy": {"file": "1"}}),
        ("train.x=bare", {"train": {"x": "bare"}}),
        ("train.x=a=b", {"train": {"x": "a=b"}}),
        ("a.b.c.d.e.f.g.h=1", {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": 1}}}}}}}}),
        (f"train.x={2**63}", {"train": {"x": 2**63}}),
    ],
)
def test_override_changes_a_copy(text: str, value: dict[str, Any]) -> None:
    before: dict[str, Any] = {}
    assert override_dict(before, [text]) == value
    assert before == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.steps", "--set train.steps: must be KEY=VALUE, like train.steps=200"),
        ("=3", "--set =3: must be KEY=VALUE"),
        ("train..x=1", "--set train..x=1: must be KEY=VALUE"),
        ("a.b.c.d.e.f.g.h.i=1", "--set a.b.c.d.e.f.g.h.i=1: must be KEY=VALUE"),
        ("name.x=1", "--set name.x=1: name is not a section"),
    ],
)
def test_override_that_names_no_field_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="write KEY=VALUE") as caught:
        override_dict({"name": "a"}, [text])
    assert caught.value.what.startswith(f"--set: a mistake\n  - {words}")
