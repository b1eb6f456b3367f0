"""Tensor parallelism with torch's DTensor: the same splits as `tensor.py`, as a plan for `parallelize_module`.

For each module, the plan gives the layout of its weight, input and output over `tp`. DTensor derives the collectives,
which are the same: with sequence parallelism an all-gather before a block's first matrices and a reduce-scatter after
its last, without it one all-reduce; in reverse order in the backward pass. Tensors between the modules are plain local
parts, so that attention and its rotations need no change.

The loss is torch's `loss_parallel`: cross-entropy over logits whose vocabulary is split. It replaces four operators of
DTensor while it is active, in the backward pass too, so a whole step runs under it.
Comm:    as in `tensor.py`, except the loss: all-reduces of the maximum, the sum and the label's logit of each token.
         None of it is in the events.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

from frog.core.config import ModelConfig
from frog.train.comm import Axis
from frog.train.model.transformer import TinyTransformer


class Repeated(ParallelStyle):
    """Every rank has the full weight and works on the full input: a norm without sequence parallelism."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)

        def leave(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            return output.to_local()

        return distribute_module(module, device_mesh, None, enter, leave)


def split_model(model: TinyTransformer, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Make every weight a DTensor over the one-dimensional `mesh`, split or replicated, in place.

    Assumes: all ranks hold the same weights.
    """
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    between = Shard(1) if sequence_parallel else Replicate()
    norm: ParallelStyle = SequenceParallel(use_local_output=True) if sequence_parallel else Repeated()
    parallelize_module(
        model,
        mesh,
        {
            "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "norm": norm,
            "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
        },
    )
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    for layer in model.layers:
        parallelize_module(layer, mesh, _layer_plan(model.config, between, norm))
    for name, parameter in model.named_parameters():  # SequenceParallel omits it
        parameter.requires_grad_(name not in frozen)
    model.token_loss = lambda x, w_VD, labels_BT: _token_loss(x, w_VD, labels_BT, mesh, between)


def _layer_plan(model: ModelConfig, between: Shard | Replicate, norm: ParallelStyle) -> dict[str, ParallelStyle]:
    of_heads = SequenceParallel(sequence_dim=2, use_local_output=True)  # (B, T, H, C) is split over H
    split = {0: ColwiseParallel(), 1: RowwiseParallel(output_layouts=between)}
    repeated = {"norm": norm, "head norm": of_heads}
    attention = PrepareModuleInput(input_layouts=(between, None, None), desired_input_layouts=(Replicate(), None, None))
    return {
        "self_attn": attention,
        "mlp": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        **{row.module: repeated.get(row.kind) or split[row.split_dim or 0] for row in model.layer_parameters()},
    }


def _token_loss(x: Tensor, w_VD: Tensor, labels_BT: Tensor, mesh: DeviceMesh, between: Shard | Replicate) -> Tensor:
    """Compute the mean cross-entropy of logits whose vocabulary is split; under `loss_parallel`.

    Shapes:  x (B, T, D), or this rank's positions of it; w_VD (V, D), a DTensor -> a scalar, the same on every rank
    """
    x_BTD = DTensor.from_local(x, mesh, [between], run_check=False).redistribute(placements=[Replicate()])
    logits_BTV = F.linear(x_BTD, w_VD)
    labels = DTensor.from_local(labels_BT.flatten(), mesh, [Replicate()], run_check=False)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels)
    assert isinstance(loss, DTensor)
    return loss.to_local().clone()  # not a view: FSDP2 attaches a hook to it


def loss_parallel_over(tp: Axis) -> AbstractContextManager[Any]:
    """Within this context, the loss and its backward pass work on logits whose vocabulary is split."""
    return loss_parallel() if tp.size > 1 else nullcontext()


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Convert each DTensor's gradient to its parameter's layout, where autograd has not yet summed over ranks."""
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)
