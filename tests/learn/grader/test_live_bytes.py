"""Count the memory of tensors that a learner's code holds."""

from __future__ import annotations

import threading

import pytest
import torch

from frog.learn.grader import live_bytes
from frog.learn.grader.live_bytes import LiveBytes


def test_memory_counts_until_its_last_view_is_gone() -> None:
    with LiveBytes() as live:
        whole = torch.zeros(10)
        part = whole[2:4]
        assert (live.now, live.sizes()) == (40, [40])
        del whole
        assert live.now == 40
        del part
    assert (live.now, live.peak, live.sizes()) == (0, 40, [])


def test_memory_from_before_does_not_count() -> None:
    before = torch.ones(10)
    with LiveBytes() as live:
        before[2:4].add_(1)
        copy = before.clone()
    assert live.sizes() == [40]
    assert live.sizes(without=[copy]) == []


def test_gradients_count_while_backward_computes_them() -> None:
    layers = torch.nn.Sequential(*[torch.nn.Linear(30, 30, bias=False) for _ in range(6)])
    loss = layers(torch.ones(1, 30)).sum()
    for layer in layers:
        layer.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    with LiveBytes() as live:
        loss.backward()
    assert 3600 <= live.peak < 2 * 3600  # one gradient of 30 x 30 elements at a time, and gradients of activations
    assert live.now < 3600


def test_settled_waits_until_another_thread_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with LiveBytes() as live:
        held = [torch.zeros(10)]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        """Let the other thread run: it lets go in the third pause."""
        pauses.append(seconds)
        if len(pauses) == 3:
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()

    monkeypatch.setattr(live_bytes.time, "sleep", pause)
    assert live.settled(most=0, num_looks=6000) == []
    assert len(pauses) == 3
    held.append(torch.zeros(1))
    with live:
        kept = torch.zeros(10)
    assert live.settled(most=0, num_looks=1) == [kept.nbytes]
