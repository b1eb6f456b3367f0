"""flash_attn's functions as torch computes them with simulated GPUs."""

from __future__ import annotations

import pytest
import torch

from frog.observe.hook.frog_simulated_gpus.flash_attention import (
    apply_rotary_emb,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    layer_norm_fn,
    rms_norm_fn,
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def test_attention_equals_softmax_of_scores_in_float64() -> None:
    q, k, v = (torch.randn(2, 5, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    scores = torch.einsum("bqhc,bkhc->bhqk", q, k.repeat_interleave(2, 2)) / 8**0.5
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhqk,bkhc->bqhc", scores.softmax(-1), v.repeat_interleave(2, 2))
    torch.testing.assert_close(flash_attn_func(q, k, v, causal=True), expected)
    packed = torch.stack((q, q, q), 2)
    torch.testing.assert_close(flash_attn_qkvpacked_func(packed), flash_attn_func(q, q, q))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_rotates_pairs_as_complex_numbers(interleaved: bool) -> None:
    x = torch.randn(1, 3, 2, 6)
    angles = torch.rand(3, 2)
    out = apply_rotary_emb(x, angles.cos(), angles.sin(), interleaved=interleaved)
    pairs = x[..., :4].unflatten(-1, (2, 2)) if interleaved else x[..., :4].unflatten(-1, (2, 2)).transpose(-1, -2)
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(3, 2), angles)[:, None]
    )
    expected = (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)
    torch.testing.assert_close(out, torch.cat((expected, x[..., 4:]), -1))


def test_norms_add_the_residual_first() -> None:
    x, residual, weight, bias = torch.randn(3, 4), torch.randn(3, 4), torch.rand(4), torch.rand(4)
    total = x + residual
    rms = total / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    out, summed = rms_norm_fn(x, weight, residual=residual, prenorm=True)
    torch.testing.assert_close(out, rms)
    torch.testing.assert_close(summed, total)
    expected = torch.nn.functional.layer_norm(total, (4,), weight, bias, 1e-6)
    torch.testing.assert_close(layer_norm_fn(x, weight, bias, residual), expected)


def test_unusual_options_are_refused_by_name() -> None:
    x = torch.ones(1, 2, 1, 4)
    with pytest.raises(RuntimeError, match="softcap"):
        flash_attn_func(x, x, x, softcap=30.0)
    with pytest.raises(RuntimeError, match="different lengths"):
        flash_attn_func(x[:, :1], x, x, causal=True)
