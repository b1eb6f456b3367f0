from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from frog.core.config import OptimizerConfig, load_model_config
from frog.train.model import TinyTransformer
from frog.train.optim.learning_rate import learning_rate
from frog.train.parallel.data.ddp import cut_buckets
from frog.train.parallel.data.flat import FlatParameters, Partition, square_sum

CONFIG = load_model_config(Path(__file__).parents[3] / "config" / "config.json")


def model_and_batch(seed: int = 0) -> tuple[TinyTransformer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    tokens = torch.randint(0, CONFIG.vocab_size, (2, 9))
    return TinyTransformer(CONFIG), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def flat_of(model: torch.nn.Module, multiple: int = 1) -> FlatParameters:
    return FlatParameters({name: p for name, p in model.named_parameters() if p.requires_grad}, multiple)


def test_parameters_and_gradients_are_views_and_keep_their_values() -> None:
    model, tokens, labels = model_and_batch()
    twin, _, _ = model_and_batch()
    flat = flat_of(model)
    grad = torch.zeros_like(flat.data)
    flat.view_gradients(grad)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() % 64 == flat.data.data_ptr() % 64
        assert flat.view(flat.data, name).data_ptr() == mine.data_ptr()
    model(tokens, labels).backward()
    twin(tokens, labels).backward()
    for name, parameter in twin.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(flat.view(grad, name), parameter.grad, rtol=1e-5, atol=1e-8)
    squares = [p.grad.double().square().sum() for p in twin.parameters() if p.grad is not None]
    assert square_sum(grad).item() == pytest.approx(torch.stack(squares).sum().item(), rel=1e-6)


def test_norm_of_long_gradient_is_exact() -> None:
    x = torch.randn(3000 * 7001)
    assert square_sum(x).item() == pytest.approx(x.double().square().sum().item(), rel=1e-6)


def test_tied_weight_is_stored_once_and_frozen_one_omitted() -> None:
    model, _, _ = model_and_batch()
    model.norm.weight.requires_grad_(False)
    flat = flat_of(model)
    assert "norm.weight" not in flat.spans
    assert "lm_head.weight" not in flat.spans
    assert model.lm_head.weight.data_ptr() == model.embed_tokens.weight.data_ptr()


def test_matrices_decay_and_vectors_do_not() -> None:
    model, _, _ = model_and_batch()
    flat = flat_of(model)
    for name, parameter in model.named_parameters():
        assert (flat.spans[name][0] < flat.split) == (parameter.dim() >= 2)


@pytest.mark.parametrize("num_shares", [1, 3, 8])
def test_partitions_cover_every_element_once_and_separate_decay(num_shares: int) -> None:
    model, _, _ = model_and_batch()
    flat = flat_of(model, num_shares)
    length = flat.size // num_shares
    counts = {name: torch.zeros(p.numel()) for name, p in model.named_parameters()}
    for number in range(num_shares):
        start, end = number * length, (number + 1) * length
        share = Partition(flat, start, end, flat.data[start:end], torch.zeros(length))
        assert sum(one.tensor.numel() for one in share.tensors) == length
        for one in share.tensors:
            for piece in one.slices:
                counts[piece.name][piece.first : piece.first + piece.end - piece.start] += 1
                run = flat.parameters[piece.name].view(-1)[piece.first : piece.first + piece.end - piece.start]
                assert torch.equal(run, one.tensor[piece.start : piece.end])
                assert one.decayed == (flat.parameters[piece.name].dim() >= 2)
                assert piece.shape == flat.parameters[piece.name].shape
    assert all(bool((count == 1).all()) for count in counts.values())


def test_buckets_tile_the_buffer_from_its_end_to_its_beginning() -> None:
    model, _, _ = model_and_batch()
    flat = flat_of(model)
    for most in (1, 10_000, 100_000, 10**9):
        buckets = cut_buckets(flat, most, flat.size + 5)
        matrices = buckets[:-1]
        assert sorted(buckets)[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(sorted(buckets)))
        assert sorted(buckets)[-1][1] == flat.size + 5
        assert matrices == sorted(matrices, reverse=True)
        assert all(end - start >= most for start, end in matrices[:-1])


def test_learning_rate_warms_up_and_falls_to_the_minimum() -> None:
    config = OptimizerConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4)
    rates = [learning_rate(step, 20, config) for step in range(1, 21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    cosine = [0.1 + 0.9 * math.cos(math.pi * place / 32) ** 2 for place in range(1, 17)]
    assert rates[4:] == pytest.approx(cosine)
    assert learning_rate(30, 20, config) == learning_rate(20, 20, config) == pytest.approx(0.1)
    assert learning_rate(4, 4, config) == 1.0
    assert learning_rate(5, 4, config) == pytest.approx(0.1), "a run of warm-up only"
    assert learning_rate(11, 20, OptimizerConfig(warmup_steps=0)) > 0
