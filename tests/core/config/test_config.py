from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frog.core.config import RunConfig, from_dict, load_model_config, load_run_config, to_dict
from frog.core.config.load import override_dict
from frog.core.config.optimizers import OPTIMIZERS
from frog.core.config.run_config import batch_problem, nearest_batch
from frog.core.errors import ConfigError

ROOT = Path(__file__).parents[3]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    path = tmp_path / "run.toml"
    path.write_text("[data]\nsequence_length = 8\n[train]\nsteps = 3\n")
    return path


def problems_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.toml")), ids=lambda path: path.name)
def test_shipped_run_files_load(path: Path) -> None:
    assert isinstance(load_run_config(path), RunConfig)


def test_overrides_replace_defaults(run_file: Path) -> None:
    config = load_run_config(
        run_file, ["train.steps=7", "name=other", "model.num_hidden_layers=4", "optimizer.grad_clip=off"]
    )
    assert (config.train.steps, config.name, config.model.num_hidden_layers) == (7, "other", 4)
    assert config.optimizer.grad_clip == "off"
    assert load_run_config(run_file, ["name=2026"]).name == "2026"
    assert config.model.num_key_value_heads == 4  # as Hugging Face: absent means as many as heads
    assert load_run_config(run_file, ["optimizer.learning_rate=1"]).optimizer.learning_rate == 1.0


@pytest.mark.parametrize("cut", ["strategy.name='zero1'", "strategy.name='zero3'", "strategy.tp=2"])
def test_whole_matrix_optimizer_rejects_strategies_that_split_matrices(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    whole = replace(OPTIMIZERS["sgd"], needs_whole_matrices=True)
    monkeypatch.setitem(OPTIMIZERS, "whole", whole)
    message = problems_of(run_file, "optimizer.name=whole", cut.replace("'", ""))
    assert f"optimizer.name='whole' with {cut}: this optimizer needs whole matrices" in message
    assert "set strategy.name to 'ddp' or 'diloco' and strategy.tp to 1, or optimizer.name to 'adamw'" in message
    for strategy in ("name=ddp", "pp=2", "cp=2"):
        load_run_config(run_file, ["optimizer.name=whole", f"strategy.{strategy}"])


def test_llama_with_experts_is_rejected_with_a_hint_to_set_mixtral() -> None:
    demo = ROOT / "config" / "demo.toml"
    assert "add --set model.model_type=mixtral" in problems_of(demo, "model.num_local_experts=4")
    config = load_run_config(demo, ["model.num_local_experts=4", "model.model_type=mixtral"])
    assert config.model.num_local_experts == 4


def test_qk_norm_requires_model_type_qwen3() -> None:
    demo = ROOT / "config" / "demo.toml"
    assert "add --set model.model_type=qwen3" in problems_of(demo, "model.qk_norm=true")
    assert load_run_config(demo, ["model.model_type=qwen3"]).model.qk_norm
    both = problems_of(demo, "model.model_type=qwen3", "model.num_local_experts=4")
    assert "qk_norm=true with num_local_experts=4" in both


def test_all_mistakes_are_reported_together_with_suggestions(run_file: Path) -> None:
    text = problems_of(
        run_file, "train.stps=3", "train.precision=fp8", "datta.name=x", "optimizer.beta1=true", "nonsense"
    )
    assert "5 mistakes" in text
    for part in (
        "did you mean train.steps?",
        "'fp32' or 'bf16' or 'fp16'",
        "did you mean data?",
        "a number",
        "KEY=VALUE",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("override", "numbers"),
    [
        ("model.num_attention_heads=5", ("hidden_size=32", "num_attention_heads=5")),
        ("model.num_key_value_heads=3", ("num_attention_heads=4", "num_key_value_heads=3")),
        ("model.num_attention_heads=32", ("hidden_size=32", "= 1 columns a head")),
        ("data.sequence_length=17", ("sequence_length=17", "max_position_embeddings=16")),
        ("model.hidden_size=0", ("hidden_size=0", "at least 1")),
        ("train.steps=0", ("train.steps=0", "at least 1")),
        ("train.initial_loss_scale=0.5", ("initial_loss_scale=0.5", "at least 1")),
        ("train.initial_loss_scale=inf", ("initial_loss_scale=inf", "finite")),
        ("name=a/b", ("'a/b'", "names a folder")),
        ("optimizer.grad_clip=0", ("grad_clip=0", "off")),
        ("model.hidden_act=gelu", ("hidden_act='gelu'", "'silu'")),
        ("model.head_dim=16", ("head_dim=16", "hidden_size=32")),
    ],
)
def test_invalid_sizes_are_reported_with_numbers_and_rule(
    run_file: Path, override: str, numbers: tuple[str, ...]
) -> None:
    text = problems_of(run_file, override)
    assert all(number in text for number in numbers), text


def test_global_batch_must_divide_evenly(run_file: Path) -> None:
    config = load_run_config(run_file, ["train.global_batch_size=12", "train.grad_accum=2"])
    assert config.world_problems(3) == []
    assert config.micro_batch_size(3) == 2
    (problem,) = config.world_problems(4)
    assert "12" in problem
    assert "world size 4 x train.grad_accum 2 = 8" in problem


def test_elastic_run_allows_uneven_global_batch(run_file: Path) -> None:
    config = load_run_config(run_file, ["comm.on_loss=shrink", "train.global_batch_size=12", "train.grad_accum=2"])
    assert config.world_problems(5) == config.world_problems(6) == []
    (problem,) = config.world_problems(7)
    assert "global_batch_size=12 is less than world size 7 x train.grad_accum 2 = 14" in problem


def test_fp16_is_refused_only_where_ranks_could_disagree_about_a_skipped_step(run_file: Path) -> None:
    """Each precision with each strategy and compression: fp16 alone, diloco alone and int8 alone are all allowed."""
    refused = {
        (precision, name, compression)
        for precision in ("fp32", "bf16", "fp16")
        for name in ("ddp", "zero1", "diloco")
        for compression in (("off", "int8") if name != "zero1" else ("off",))
        if load_run_config(
            run_file,
            [f"train.precision={precision}", f"strategy.name={name}", f"strategy.compression={compression}"],
        ).world_problems(2)
    }
    assert refused == {("fp16", "ddp", "int8"), ("fp16", "diloco", "off"), ("fp16", "diloco", "int8")}


def test_elastic_run_is_limited_to_64_ranks(run_file: Path) -> None:
    config = load_run_config(run_file, ["train.global_batch_size=8320", "comm.on_loss=shrink"])
    assert config.world_problems(64) == []
    (problem,) = config.world_problems(65)
    assert "with 65 ranks: at most 64" in problem


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.toml", "= 3", "not valid TOML"),
        ("run.toml", "model = 3", "[model]"),
        ("run.toml", "train = 3", "[train]"),
        ("config.json", "{", "not valid JSON"),
        ("config.json", "[]", "found a list, expected object"),
        ("config.json", '{"vocab_size": 8}', "hidden_size: missing"),
    ],
)
def test_malformed_run_and_model_files_are_reported(run_file: Path, name: str, content: str, words: str) -> None:
    (run_file.parent / name).write_text(content)
    assert words in problems_of(run_file)


def test_missing_run_and_model_files_are_reported(run_file: Path) -> None:
    assert "run.toml" in problems_of(run_file.parent / "absent.toml")
    assert "no such file" in problems_of(run_file, "model.file=absent.json")


def test_config_round_trips_through_run_json(run_file: Path) -> None:
    config = load_run_config(run_file, ["train.precision=bf16"])
    table = json.loads(json.dumps(to_dict(config)))
    assert from_dict(table) == config
    assert from_dict(override_dict(table, ["train.steps=9"])).train.steps == 9
    with pytest.raises(ConfigError, match="unknown key"):
        from_dict({**table, "novelty": 1})
    with pytest.raises(ConfigError, match="at least 1"):
        from_dict(override_dict(table, ["train.steps=0"]))


def test_num_parameters_and_flops_match_hand_computed_values() -> None:
    model = load_model_config(ROOT / "config" / "config.json")
    hidden, ffn, vocab = model.hidden_size, model.intermediate_size, model.vocab_size
    layer = 4 * hidden**2 + 3 * hidden * ffn + 2 * hidden
    assert model.num_parameters() == model.num_hidden_layers * layer + vocab * hidden + hidden
    matrices = model.num_hidden_layers * (4 * hidden**2 + 3 * hidden * ffn) + vocab * hidden
    assert model.flops_per_token(64) == 6 * matrices + 12 * model.num_hidden_layers * hidden * 64


@pytest.mark.parametrize(
    ("settings", "world_size", "words"),
    [
        ((), 4, "global batch 16 sequences = dp 4 x grad_accum 1 x micro-batch 4; 128 tokens a step"),
        (
            ("train.grad_accum=2",),
            2,
            "global batch 16 sequences = dp 2 x grad_accum 2 x micro-batch 4; 128 tokens a step",
        ),
        (
            ("comm.on_loss=shrink", "train.grad_accum=2"),
            3,
            "global batch 16 sequences = dp 3 x grad_accum 2 x micro-batch 2 or 3; 128 tokens a step",
        ),
        (
            ("strategy.tp=2", "strategy.pp=2", "train.grad_accum=4"),
            8,
            "global batch 16 sequences = dp 2 x grad_accum 4 x micro-batch 2; 128 tokens a step; "
            "4 ranks work together on each sequence",
        ),
    ],
)
def test_effective_batch_is_explained(run_file: Path, settings: tuple[str, ...], world_size: int, words: str) -> None:
    config = load_run_config(run_file, settings)
    config.check_world(world_size)
    assert config.explain_batch(world_size) == words


def test_world_size_that_does_not_divide_batch_is_rejected(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="global_batch_size=16 is not a multiple of world size 3") as caught:
        load_run_config(run_file).check_world(3)
    assert caught.value.hint == "--set train.global_batch_size=15"
    with pytest.raises(ConfigError, match=r"strategy\.tp 3"):
        load_run_config(run_file, ["strategy.tp=3"]).check_world(2)


def test_deeply_nested_key_is_rejected(run_file: Path) -> None:
    run_file.write_text("seed" + ".a" * 3000 + " = 1\n" + run_file.read_text())
    with pytest.raises(ConfigError, match="a key with more than 32 parts"):
        load_run_config(run_file)


def test_override_with_too_many_parts_is_rejected(run_file: Path) -> None:
    for text in ("seed" + ".a" * 3000 + "=1", "seed={a" + ".a" * 3000 + "=1}"):
        with pytest.raises(ConfigError, match="seed"):
            load_run_config(run_file, [text])


def test_only_first_hundred_unknown_keys_are_reported(run_file: Path) -> None:
    model = run_file.with_name("config.json")
    model.write_text(json.dumps({**json.loads(model.read_text()), **{f"hidden_siz{n}": 1 for n in range(3000)}}))
    with pytest.raises(ConfigError, match=": 100 mistakes"):
        load_run_config(run_file)


@pytest.mark.parametrize(
    ("batch", "dp", "accum", "even", "uneven", "nearest"),
    [
        (8, 4, 2, None, None, 8),
        (24, 4, 2, None, None, 24),
        (9, 4, 2, "not a multiple of dp 4 x train.grad_accum 2 = 8", None, 8),
        (13, 4, 2, "not a multiple of", None, 16),
        (7, 4, 2, "not a multiple of", "less than dp 4 x train.grad_accum 2 = 8", 8),
        (1, 1, 1, None, None, 1),
        (1, 3, 1, "not a multiple of", "less than dp 3 x train.grad_accum 1 = 3", 3),
    ],
)
def test_batch_is_shared_equally_unless_parts_may_differ_by_one(
    batch: int, dp: int, accum: int, even: str | None, uneven: str | None, nearest: int
) -> None:
    for expected, found in (
        (even, batch_problem(batch, dp, accum)),
        (uneven, batch_problem(batch, dp, accum, uneven=True)),
    ):
        assert (expected is None) == (found is None)
        assert (expected or "") in (found or "")
    assert nearest_batch(batch, dp, accum) == nearest
    assert "ep 4 x" in (batch_problem(9, 4, 2, ranks="ep") or "")
