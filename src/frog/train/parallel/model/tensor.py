"""Tensor parallelism: every matrix of a layer is split over the ranks of `tp`, which work on the same samples.

Split by rows of the weight (its outputs): q, k, v, gate, up, so that each rank has whole heads and FFN columns; the
embedding and the head, so that each rank has a part of the vocabulary. Split by columns (its inputs): o, down.
Norms are replicated; a norm of heads sees only this rank's heads, so the ranks sum its weight's gradient.
Plan of communication over `tp` (n ranks; x is B*T*D elements), for each of the 2 blocks of a layer:
  forward    the outputs of o and down are partial sums: one all-reduce of x. 2(n-1)/n x leave each rank.
  backward   the gradients of the inputs of q, k, v and of gate, up are partial sums: one all-reduce of x.
With sequence parallelism the same bytes do more: between the blocks each rank holds T/n positions, so the norms and the
residual stream are split too. An all-reduce is then divided into its two halves:
  forward    all-gather of x before the block, reduce-scatter of x after it.
  backward   the same two, in reverse order. The norms' gradients are summed over `tp` once per step.
Embedding: each rank looks up the tokens in its part, then the sum as above. Loss: each rank has the logits of its part;
one all-reduce of the largest logit and one of two numbers per token (the sum of exponentials, the label's logit).

Source:  Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022 for sequence parallelism.
Shapes:  B batch, T time, t = T/n, D model width, V vocabulary, v = V/n, N = B*T.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from frog.core.config.model import IGNORED_LABEL, split_dim
from frog.train.comm import Axis
from frog.train.model.transformer import RMSNorm, TinyTransformer


def split_model(model: TinyTransformer, tp: Axis, sequence_parallel: bool) -> None:
    """Keep this rank's part of every weight, in place, and add the communication at the edges of the blocks.

    Assumes: all ranks hold the same weights; the sizes divide (`strategy_problems` checks).
    """
    done: set[int] = set()
    for name, parameter in model.named_parameters():
        dim = split_dim(name)
        if dim is not None and id(parameter) not in done:
            done.add(id(parameter))
            parameter.data = parameter.data.chunk(tp.size, dim)[tp.rank].clone()
    enter, leave = (gather_sequence, scatter_sequence) if sequence_parallel else (copy_to_ranks, sum_of_ranks)
    for layer in model.layers.children():
        for block in (layer.get_submodule("self_attn"), layer.get_submodule("mlp")):
            block.register_forward_pre_hook(lambda block, inputs: (enter(inputs[0], tp), *inputs[1:]))
            block.register_forward_hook(lambda block, inputs, y: leave(y, tp))
        for row in model.config.layer_parameters():
            if row.kind == "head norm" and not sequence_parallel:  # which sums all norms' gradients once per step
                norm = layer.get_submodule(row.module)
                assert isinstance(norm, RMSNorm)
                norm.forward = _norm_of_heads(norm, tp)  # type: ignore[method-assign]
    if hasattr(model, "embed_tokens"):
        model.embed_tokens.forward = _embedding(model.embed_tokens, tp, leave)  # type: ignore[method-assign]
    model.token_loss = lambda x_BTD, w_vD, labels_BT: split_token_loss(
        enter(x_BTD, tp).flatten(0, 1), w_vD, labels_BT.flatten(), tp
    )


def _norm_of_heads(norm: RMSNorm, tp: Axis) -> Any:
    def normalize(x_BTHC: Tensor) -> Tensor:
        weight_C = copy_to_ranks(norm.weight, tp)
        return nn.functional.rms_norm(x_BTHC, weight_C.shape, weight_C, norm.eps)

    return normalize


def _embedding(module: nn.Embedding, tp: Axis, leave: Any) -> Any:
    def look_up(tokens_BT: Tensor) -> Tensor:
        part = module.weight.shape[0]
        local_BT = tokens_BT - tp.rank * part
        elsewhere_BT = (local_BT < 0) | (local_BT >= part)
        x_BTD = nn.functional.embedding(local_BT.masked_fill(elsewhere_BT, 0), module.weight)
        y_BTD: Tensor = leave(x_BTD.masked_fill(elsewhere_BT.unsqueeze(-1), 0.0), tp)
        return y_BTD

    return look_up


def copy_to_ranks(x: Tensor, tp: Axis) -> Tensor:
    """Return the input; backward sums the ranks' gradients. Enters a block whose weights are split by rows."""
    return _CopyToRanks.apply(x, tp)  # type: ignore[no-any-return, no-untyped-call]


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        ctx.tp.all_reduce(total)
        return total, None


def sum_of_ranks(x: Tensor, tp: Axis) -> Tensor:
    """Sum the ranks' partial results; backward is the identity. Leaves a block that is split by columns."""
    return _SumOfRanks.apply(x, tp)  # type: ignore[no-any-return, no-untyped-call]


class _SumOfRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        tp.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def gather_sequence(x_BtD: Tensor, tp: Axis) -> Tensor:
    """Gather the full sequence, of which each rank has a slice; backward sums and splits again.

    Shapes:  (B, t, D) -> (B, T, D)
    """
    return _GatherSequence.apply(x_BtD, tp)  # type: ignore[no-any-return, no-untyped-call]


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BtD: Tensor, tp: Axis) -> Tensor:
        ctx.tp = tp
        return _all_gather_dim1(x_BtD, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter_dim1(grad_BTD, ctx.tp), None


def scatter_sequence(x_BTD: Tensor, tp: Axis) -> Tensor:
    """Return this rank's slice of the sum of the ranks' partial results; backward gathers.

    Shapes:  (B, T, D) -> (B, t, D)
    """
    return _ScatterSequence.apply(x_BTD, tp)  # type: ignore[no-any-return, no-untyped-call]


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, tp: Axis) -> Tensor:
        ctx.tp = tp
        return _reduce_scatter_dim1(x_BTD, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BtD: Tensor) -> tuple[Tensor, None]:
        return _all_gather_dim1(grad_BtD, ctx.tp), None


def _all_gather_dim1(x_BtD: Tensor, tp: Axis) -> Tensor:
    B, t, D = x_BtD.shape
    whole_nBtD = x_BtD.new_empty(tp.size, B, t, D)
    tp.all_gather(whole_nBtD, x_BtD.contiguous())
    return whole_nBtD.transpose(0, 1).reshape(B, tp.size * t, D)


def _reduce_scatter_dim1(x_BTD: Tensor, tp: Axis) -> Tensor:
    B, T, D = x_BTD.shape
    part_BtD = x_BTD.new_empty(B, T // tp.size, D)
    tp.reduce_scatter(part_BtD, x_BTD.view(B, tp.size, -1, D).transpose(0, 1).contiguous())
    return part_BtD


def split_token_loss(x_ND: Tensor, w_vD: Tensor, labels_N: Tensor, tp: Axis) -> Tensor:
    """Compute the mean cross-entropy of logits whose vocabulary is split.

    Shapes:  x_ND (N, D), the same on every rank; w_vD (v, D), this rank's rows; labels_N (N,) -> a scalar
    Comm:    forward all-reduces of N (maximum) and 2N numbers; backward none (`enter` before it sums x's gradient).
    Equals:  `F.cross_entropy(x @ w.T, labels)` on every rank, ignoring labels of -100.
    """
    logits_Nv = nn.functional.linear(x_ND, w_vD).float()
    return _SplitTokenLoss.apply(logits_Nv, labels_N, tp)  # type: ignore[no-any-return, no-untyped-call]


class _SplitTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_Nv: Tensor, labels_N: Tensor, tp: Axis) -> Tensor:
        v = logits_Nv.shape[1]
        largest_N = logits_Nv.amax(-1)
        tp.all_reduce(largest_N, dist.ReduceOp.MAX)
        exp_Nv = (logits_Nv - largest_N.unsqueeze(-1)).exp_()
        local_N = labels_N - tp.rank * v
        here_N = (local_N >= 0) & (local_N < v)
        local_N1 = local_N.clamp(0, v - 1).unsqueeze(-1)
        of_label_N = torch.where(here_N, logits_Nv.gather(1, local_N1).squeeze(-1) - largest_N, 0.0)
        sums_2N = torch.stack([exp_Nv.sum(-1), of_label_N])
        tp.all_reduce(sums_2N)
        counts_N = labels_N != IGNORED_LABEL
        num_labels = counts_N.sum()
        loss = torch.where(counts_N, sums_2N[0].log() - sums_2N[1], 0.0).sum() / num_labels
        if ctx.needs_input_grad[0]:  # the probabilities, minus one at the label
            error_Nv = exp_Nv.div_(sums_2N[0].unsqueeze(-1))
            error_Nv.scatter_add_(1, local_N1, -here_N.unsqueeze(-1).to(error_Nv.dtype))
            ctx.save_for_backward(error_Nv.mul_((counts_N / num_labels).unsqueeze(-1)))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (error_Nv,) = ctx.saved_tensors
        return error_Nv * grad, None, None
