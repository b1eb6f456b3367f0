"""Measured memory of a rank."""

from __future__ import annotations

import torch
from torch import nn

from frog.core.config import ModelConfig
from frog.train.memory import measure_activations, optimizer_bytes, storage_bytes
from frog.train.model import TinyTransformer


def test_shared_storage_counts_once_at_full_size() -> None:
    x, y = torch.zeros(10, 4), torch.zeros(3)
    assert storage_bytes([x, x[2:3], x.t(), None, y]) == 4 * (40 + 3)


def test_optimizer_bytes_are_those_of_the_moments() -> None:
    layer = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    assert optimizer_bytes([optimizer]) == 0
    layer(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert optimizer_bytes([optimizer]) == 2 * 4 * (8 * 4 + 4)


def test_activation_meter_tracks_allocation_and_release() -> None:
    """Two layers save activations: the first the batch, the second the output of the first; relu saves its output."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.ones(2, 8)
    with measure_activations(model) as meter:
        loss = model(x).sum()
        assert meter.live_bytes == meter.peak_bytes == 4 * (2 * 8 + 2 * 16)
        loss.backward()
        assert meter.live_bytes == 0
        model(x).sum().backward()
    assert (meter.live_bytes, meter.peak_bytes) == (0, 4 * (2 * 8 + 2 * 16))


def test_two_pending_forward_passes_use_twice_the_memory() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with measure_activations(model) as meter:
        losses = [model(torch.ones(2, 8)).sum() for _ in range(2)]
        assert meter.live_bytes == 2 * 4 * (2 * 8 + 2 * 16)
        losses[0].backward()
        assert meter.live_bytes == 4 * (2 * 8 + 2 * 16)
        losses[1].backward()
    assert meter.peak_bytes == 2 * 4 * (2 * 8 + 2 * 16)


def test_measuring_activations_does_not_change_gradients() -> None:
    torch.manual_seed(0)
    model = TinyTransformer(ModelConfig(64, 16, 32, 2, 4, 2, 16))
    tokens = torch.randint(0, 64, (2, 16))
    model(tokens, tokens).backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with measure_activations(model) as meter:
        model(tokens, tokens).backward()
    assert meter.peak_bytes > 0
    for one, other in zip(plain, (p.grad for p in model.parameters()), strict=True):
        assert other is not None
        assert torch.equal(one, other)
