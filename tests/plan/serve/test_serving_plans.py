"""Serving: the KV cache against transformers' caches, the roofline of a decode step, and what the command prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.cli import main
from frog.core.errors import ConfigError, UsageError
from frog.plan.estimate.architectures import model_of
from frog.plan.estimate.constants import FITTED
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.sources import read_named_model
from frog.plan.links import Group
from frog.plan.model import LatentAttention, PlannedModel
from frog.plan.quantities import Price
from frog.plan.serve.kv_cache import KvCache
from frog.plan.serve.server import Server, exchange_seconds, touched_experts
from frog.plan.serve.serving import Serving, check_server

LLAMA_8B = Path(__file__).parents[3] / "config" / "llama3_8b.json"
SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "pad_token_id": 0,
    "sliding_window": 16,
}
LATENT = {
    "head_dim": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MIXTURE = PlannedModel(4, 64, 4, 2, 16, 96, 128, experts=8, experts_per_token=2, expert_ffn=32)


def server(tp: int = 1, cluster: str = "h100x8", model: PlannedModel | None = None, **given: Any) -> Server:
    return Server(model or read_named_model(str(LLAMA_8B)).model, clusters()[cluster], tp, **given)


# ---- the KV cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [7, 40])
@pytest.mark.parametrize(
    ("kind", "sizes", "windowed"),
    [
        ("llama", {}, 0),
        ("mistral", {}, 4),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"] * 2}, 2),
        ("deepseek_v3", LATENT, 0),
    ],
)
def test_cache_has_the_bytes_of_transformers_cache(
    kind: str, sizes: dict[str, Any], windowed: int, tokens: int
) -> None:
    transformers = pytest.importorskip("transformers")
    usual, sizes = transformers.AutoConfig.for_model(kind), {**SMALL, **sizes}
    config = transformers.AutoConfig.for_model(kind, **{name: sizes[name] for name in sizes if hasattr(usual, name)})
    model = model_of({**config.to_dict(), "model_type": kind})
    assert model.windowed_layers == windowed
    module = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        cache = module(torch.zeros(3, tokens, dtype=torch.long), use_cache=True).past_key_values
    held = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    # A layer with a window keeps what the next token sees without itself; here it is counted with it.
    short = windowed * (tokens >= 16) * KvCache(model, number_bytes=4).layer_numbers * 4
    assert KvCache(model, number_bytes=4).sequence_bytes(tokens) * 3 == held + 3 * short


def test_ranks_share_heads_but_copy_what_they_cannot_split() -> None:
    model = read_named_model(str(LLAMA_8B)).model
    whole = KvCache(model).token_bytes
    assert whole == 2 * 32 * 2 * 8 * 128
    assert [whole / KvCache(model, tp).token_bytes for tp in (2, 8, 16)] == [2, 8, 8]
    latent = replace(model, latent=LatentAttention(0, 512, 64))
    assert KvCache(latent, 8).token_bytes == KvCache(latent).token_bytes == 2 * 32 * 576


def test_cache_is_held_in_whole_blocks() -> None:
    cache = KvCache(read_named_model(str(LLAMA_8B)).model)
    assert [cache.paged_bytes(tokens) / cache.token_bytes for tokens in (1, 16, 17)] == [16, 16, 32]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_weights_are_split_and_halved_by_float8() -> None:
    model = read_named_model(str(LLAMA_8B)).model
    outside = 2 * (2 * 128256 * 4096 + 4096)
    assert server().held_weights == 2 * model.num_parameters()
    assert server(4).held_weights == 2 * model.num_parameters() / 4
    assert server(precision="fp8").held_weights == model.num_parameters() - outside / 2 + outside


def test_largest_batch_fits_and_one_more_does_not() -> None:
    for tp, prompt, generate in ((1, 2048, 512), (2, 128, 128), (1, 30000, 1000)):
        one = server(tp)
        usable = 0.9 * one.cluster.gpu.memory
        most = one.largest_batch(prompt, generate, usable)
        assert one.memory(most, prompt, generate).total <= usable < one.memory(most + 1, prompt, generate).total
    big = server(1, model=replace(read_named_model(str(LLAMA_8B)).model, layers=320))
    assert big.largest_batch(128, 128, 0.9 * big.cluster.gpu.memory) == 0


# ---- one output token ------------------------------------------------------------------------------------------------


def test_a_token_takes_as_long_as_reading_the_weights_and_the_cache() -> None:
    one = server()
    rate = one.cluster.gpu.memory_bandwidth * FITTED.memory
    model, decode = one.model, one.decode(1, 1000)
    weights = 2 * (model.num_parameters() - model.embedding_parameters())
    assert decode.weights == pytest.approx(weights / rate, rel=2e-3)
    assert decode.cache == pytest.approx(1000 * one.cache.token_bytes / rate)
    assert decode.arithmetic == decode.exchange == 0
    large = one.decode(4096, 1000)
    assert large.weights == 0
    flops = 4096 * (model.product_flops_per_token())
    assert large.arithmetic == pytest.approx(flops / (one.cluster.gpu.sustained_bf16 * FITTED.product))


def test_latent_attention_may_compute_longer_than_it_reads() -> None:
    model = replace(read_named_model(str(LLAMA_8B)).model, heads=128, kv_heads=128, latent=LatentAttention(0, 512, 64))
    one = server(model=model)
    flops = 2 * 8 * 5000 * 32 * 128 * (2 * 512 + 64)
    assert one.decode(8, 5000).cache == pytest.approx(
        flops / (one.cluster.gpu.sustained_bf16 * FITTED.product), rel=0.3
    )


def test_more_sequences_and_more_context_take_longer_and_serve_more() -> None:
    times = [server().decode(batch, 1000).total for batch in (1, 8, 64, 512)]
    assert times == sorted(times)
    rates = [batch / seconds for batch, seconds in zip((1, 8, 64, 512), times, strict=True)]
    assert rates == sorted(rates)
    assert server().decode(8, 2000).total > server().decode(8, 1000).total


def test_a_batch_reads_the_experts_that_it_chooses() -> None:
    assert touched_experts(MIXTURE, 1) == pytest.approx(2)
    assert touched_experts(MIXTURE, 2) == pytest.approx(8 * (1 - 0.75**2))
    assert touched_experts(MIXTURE, 1000) == pytest.approx(8)
    few, many = (server(model=MIXTURE).decode(batch, 10).weights for batch in (1, 64))
    assert 2 < many / few < 5  # eight experts of a layer instead of two, next to attention


def test_small_messages_take_one_shot_and_large_ones_two() -> None:
    links = clusters()["h100x8"].links(FITTED)
    latency = links.link_latency_s
    assert exchange_seconds(links, 1e6, 1) == 0
    assert exchange_seconds(links, 8, 8) == pytest.approx(latency, rel=1e-3)
    large = exchange_seconds(links, 1e9, 8)
    assert large == pytest.approx(2 * (7 / 8 * 1e9 / links.link + latency))
    assert large <= links.all_reduce(1e9, Group(8, 1))
    assert exchange_seconds(links, 8, 16) > 2 * latency + 2 * links.network_latency_s - 1e-9


def test_tensor_parallelism_is_faster_for_one_sequence() -> None:
    times = [server(tp).decode(1, 1000) for tp in (1, 2, 4, 8)]
    assert [one.total for one in times] == sorted((one.total for one in times), reverse=True)
    assert times[0].weights == pytest.approx(8 * times[3].weights, rel=0.01)


# ---- prompts and batches ---------------------------------------------------------------------------------------------


def test_prefill_is_a_forward_pass_of_training() -> None:
    one = server()
    flops = 2048 * (one.model.product_flops_per_token() - 2 * 4096 * 128256)
    least = flops / one.cluster.gpu.peak_bf16
    assert least < one.prefill(2048) < 3 * least
    assert one.prefill(2048, 8) == pytest.approx(2 * one.prefill(2048, 4))
    assert one.prefill(100, 80) < 80 * one.prefill(100)


def test_a_batch_is_its_prompts_and_its_tokens() -> None:
    plan = Serving(server(), 16, 1000, 200, replicas=3)
    assert plan.batch_s == pytest.approx(plan.server.prefill(1000, 16) + 199 * plan.server.decode(16, 1100).total)
    assert plan.tokens_per_s == pytest.approx(3 * 16 * 200 / plan.batch_s)
    assert plan.cost_per_million is None
    cluster = replace(plan.server.cluster, price=Price(2.5, "USD"))
    priced = replace(plan, server=replace(plan.server, cluster=cluster))
    assert priced.cost_per_million == pytest.approx(2.5 * 3 / 3600 / plan.tokens_per_s * 1e6)


# ---- the command -----------------------------------------------------------------------------------------------------


def serve(*words: str) -> int:
    return main(["plan", "serve", str(LLAMA_8B), "--cluster", "h100x8", *words])


def test_command_prints_memory_time_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve("--prompt", "2048", "--generate", "512", "--batch", "32", "--price", "2 USD/h") == 0
    out = capsys.readouterr().out
    plan = Serving(server(), 32, 2048, 512)
    for words in (
        "KV cache of the batch                     10.00",
        "KV cache of a token: 128.0 KiB on each GPU",
        f"largest batch that fits: {plan.largest_batch} sequences",
        f"output tokens per second {plan.tokens_per_s:,.0f}",
        "USD for a million output tokens",
    ):
        assert words in out


def test_without_a_batch_all_that_fit_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve("--prompt", "2048", "--generate", "512", "--tp", "2", "--gpus", "8", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["batch"] == plan["largest_batch"] > 100
    assert plan["replicas"] == 4
    assert plan["memory_bytes"]["total"] <= plan["memory_bytes"]["usable"]


def test_a_batch_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve("--prompt", "2048", "--generate", "512", "--batch", "400") == 0
    assert "DOES NOT FIT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--prompt 100 --generate 10 --tp 3", "heads=32 do not divide by tp=3"),
        ("--prompt 100 --generate 10 --tp 4 --gpus 6", "no multiple of --tp 4"),
        ("--prompt 8000 --generate 1000", "has 8192 positions"),
    ],
)
def test_impossible_servers_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(*words.split()) != 0
    assert said in capsys.readouterr().err


def test_gpus_without_float8_and_cpus_are_refused() -> None:
    for one in (server(cluster="a100x8", precision="fp8"), server(cluster="a100x8", cache_bytes=1)):
        with pytest.raises(ConfigError, match="no float8"):
            check_server(one)
    with pytest.raises(UsageError, match="GPUs only"):
        check_server(server(cluster="cpux4"))
