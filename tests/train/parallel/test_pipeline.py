"""The executor, its stages and the deferred weight gradients, in one process; worlds are in tests/worlds."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frog.core.config import ModelConfig
from frog.core.env import world_env
from frog.core.errors import ConfigError
from frog.train.comm import Axis, World
from frog.train.data import Batch
from frog.train.model import TinyTransformer
from frog.train.model.transformer import Linear
from frog.train.parallel.data.data_parallel import DataParallel
from frog.train.parallel.model.deferred import DeferredWeights, add_weight_gradients
from frog.train.parallel.model.pipeline import Pipeline
from frog.train.parallel.model.stages import Stages, build_stages
from frog.train.parallel.schedules.schedule import make_schedule

CPU = torch.device("cpu")


def small_model(layers: int = 4, tied: bool = True, checkpointing: bool = False, **more: Any) -> TinyTransformer:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=tied,
        **more,
    )
    return TinyTransformer(config, checkpointing)


def batch_of(accum: int) -> Batch:
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 96, (accum, 2, 17)))
    return Batch(
        1, np.arange(2 * accum), tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous(), (1 / accum,) * accum
    )


def axis_of_one() -> Axis:
    return World(world_env(), CPU, timeout_s=10).make_axis("pp", [[0]])


def gradients_of_one(model: TinyTransformer, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    total = torch.zeros(())
    for micro, share in enumerate(batch.loss_weight_A):
        loss = model(batch.tokens_ABT[micro], batch.labels_ABT[micro]) * share
        loss.backward()
        total += loss.detach()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


class CallRecorder:
    """A fake data-parallel strategy that records its calls, and the gradients computed between them."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Any] = []
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self.calls[-1][1].append(name))

    def before_backward(self, last: bool) -> None:
        self.calls.append((last, []))

    def after_backward(self) -> None:
        return


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)])
def test_pipeline_on_one_rank_equals_plain_loop(schedule: str, virtual: int, checkpointing: bool) -> None:
    batch, axis = batch_of(3), axis_of_one()
    model = build_stages(small_model(checkpointing=checkpointing), axis, virtual)
    line = Pipeline(Stages(model, axis, virtual), axis, make_schedule(schedule, 1, 3, virtual))
    loss = line.run(batch, lambda loss: loss)
    expected_loss, expected = gradients_of_one(small_model(), batch)
    found = {name: p.grad for name, p in model.named_parameters()}
    assert torch.equal(loss, expected_loss)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(cast(Tensor, found[name]), gradient) or (virtual > 1 and name == "embed_tokens.weight")
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)
    assert torch.equal(
        line.loss(batch.tokens_ABT[0], batch.labels_ABT[0]),
        small_model().eval()(batch.tokens_ABT[0], batch.labels_ABT[0]).detach(),
    )


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_data_parallelism_is_notified_of_each_gradient_once(schedule: str) -> None:
    """After `last` comes only the parameter's last gradient; a deferred weight's hook runs only in W."""
    axis = axis_of_one()
    model = build_stages(small_model(), axis)
    recorder = CallRecorder(model)
    line = Pipeline(Stages(model, axis), axis, make_schedule(schedule, 1, 3))
    line.run(batch_of(3), lambda loss: loss, data=cast(DataParallel, recorder))
    names = {name for name, _ in model.named_parameters()}
    for name in names:
        heard = [last for last, came in recorder.calls for other in came if other == name]
        assert heard == [False, False, True], name
    if schedule == "zero_bubble":
        assert [last for last, _ in recorder.calls] == [False, False, False, False, True, True]
        projections = {name for name in names if "_proj" in name}
        assert all(set(came) == projections for _, came in recorder.calls[1::2])


class Sentinel:
    """An object that exists as long as its autograd graph."""


class Identity(torch.autograd.Function):
    """Stores a sentinel in the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sentinel: Sentinel) -> Tensor:
        ctx.sentinel = sentinel
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


@pytest.mark.parametrize(("schedule", "peak"), [("gpipe", 4), ("1f1b", 1), ("zero_bubble", 1)])
def test_activations_are_freed_after_last_use(schedule: str, peak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gpipe holds all graphs at the same time, 1f1b one."""
    axis = axis_of_one()
    line = Pipeline(Stages(build_stages(small_model(), axis), axis), axis, make_schedule(schedule, 1, 4))
    sentinels: list[weakref.ref[Sentinel]] = []
    alive: list[int] = []
    forward = line.forward

    def watched(*inputs: Any) -> Any:
        sentinel = Sentinel()
        sentinels.append(weakref.ref(sentinel))
        y, router_loss = forward(*inputs)
        return Identity.apply(y, sentinel), router_loss

    def span(phase: Any, micro: int = 0, /) -> AbstractContextManager[None]:
        if phase == "backward":
            alive.append(sum(sentinel() is not None for sentinel in sentinels))
        return nullcontext()

    monkeypatch.setattr(line, "forward", watched)
    line.run(batch_of(4), lambda loss: loss, span)
    assert max(alive) == line.peak_in_flight == peak
    assert not any(sentinel() for sentinel in sentinels)


@pytest.mark.parametrize("rows", [5, 100])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("frozen_input", [False, True])
def test_deferred_weight_gradients_are_bitwise_equal(rows: int, autocast: bool, frozen_input: bool) -> None:
    torch.manual_seed(0)
    plain, deferred = Linear(48, 80), Linear(48, 80)
    deferred.load_state_dict(plain.state_dict())
    store = DeferredWeights([deferred])
    x = torch.randn(2, rows, 48)
    grad, results = torch.randn(2, rows, 80), []
    for module in (plain, deferred):
        own = x.clone().requires_grad_(not frozen_input)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = module(own)
        y.backward(grad.to(y.dtype))
        if module is deferred:
            assert module.weight.grad is None
            add_weight_gradients(store.take())
        results.append((y, own.grad, module.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    assert store.take() == []


def test_frozen_weights_are_not_deferred() -> None:
    module = Linear(4, 4)
    module.weight.requires_grad_(False)
    store = DeferredWeights([module])
    module(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert store.take() == []
    assert module.weight.grad is None


@pytest.mark.parametrize("tied", [True, False])
def test_stages_keep_names_and_divide_the_model(tied: bool) -> None:
    whole = [name for name, _ in small_model(5, tied).named_parameters()]
    held: list[str] = []
    for rank in range(2):
        axis = cast(Axis, SimpleNamespace(rank=rank, size=2))
        model = build_stages(small_model(5, tied), axis, virtual_stages=2)
        held += [name for name, _ in model.named_parameters()]
        layers = {stage: len(own) for stage, own in Stages(model, axis, 2).layers.items()}
        assert layers == ({0: 2, 2: 1} if rank == 0 else {1: 1, 3: 1})
    assert set(held) == set(whole)
    assert len(held) == len(whole) + tied  # both ends have the tied weight
    with pytest.raises(ConfigError, match="2 layers for 4 stages"):
        build_stages(small_model(2), cast(Axis, SimpleNamespace(rank=0, size=2)), virtual_stages=2)


def test_stage_with_routers_has_its_own_loss() -> None:
    axis = axis_of_one()
    mixture = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1}
    model = build_stages(small_model(tied=False, **mixture), axis, 2)
    line = Pipeline(Stages(model, axis, 2), axis, make_schedule("interleaved", 1, 3, 2))
    loss = line.run(batch_of(3), lambda loss: loss)
    expected_loss, expected = gradients_of_one(small_model(tied=False, **mixture), batch_of(3))
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-7)
