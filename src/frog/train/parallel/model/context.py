"""Context parallelism: each rank of `cp` has a part of every sequence; keys and values travel around a ring of ranks.

A sequence is divided into 2n chunks, n the number of ranks, and rank i takes chunks i and 2n-1-i (zig-zag). Late
positions attend to many others, early ones to few; an early and a late chunk together give every rank the same work.
All operations except attention work on single positions and need no other rank, given each position's rotation.

Attention takes n rounds. In round s a rank holds the keys and values of rank i-s, and receives the next ones:
  its own             causal, on both chunks;
  an earlier rank's   all local queries attend to its first chunk; its second chunk is later than all of them;
  a later rank's      the queries of the second chunk attend to both; those of the first chunk are earlier than both;
so every round except the first computes half of the block, without a mask. Each round's softmax covers its own keys;
the log of its sum of exponentials serves to merge the next round exactly (`blockwise.py`).

Plan of communication over `cp`, for each layer and micro-batch, with P = B * T/n * K * C elements of e bytes each:
  forward   n-1 shifts of k and v to the next rank: (n-1) * 2P * e bytes leave each rank.
  backward  the same n-1 shifts, because only the rank's own k and v were kept; and the gradients of k and v, which are
            summed along the ring in float32 and end on their owner: (n-1) * 2P * (e + 4) bytes leave each rank.
A step sends the sum of both, (n-1) * 2P * (2e + 4) bytes, times layers and micro-batches; with activation checkpointing
the forward's part twice. Each shift overlaps with the computation of a round.
The gradients of the weights are averaged over the ranks along with those of `dp`: the axis `data` covers both.

Source:  Liu et al. 2023 (Ring Attention); the zig-zag as in Llama 3 (2024, section 3.3.2), after Brandon et al. 2023
         (Striped Attention).
Shapes:  B batch, t = T/n positions of one rank, H heads, K key/value heads, G = H/K heads that share one, C head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from frog.core.errors import ShapeError
from frog.train.comm import Axis, Pending
from frog.train.model.transformer import Attention
from frog.train.parallel.model.blockwise import add_gradients, attend, merge, wide


def zigzag(T: int, cp_size: int, cp_rank: int) -> Tensor:
    """Return a rank's positions of a sequence: chunk i from the beginning and chunk i from the end, of 2n.

    Shapes:  -> (T/n,), ascending
    Raises:  ShapeError if T is not a multiple of 2n.
    """
    if cp_size == 1:
        return torch.arange(T)
    if T % (2 * cp_size):
        raise ShapeError(
            f"sequence of {T} tokens is not a multiple of 2 x cp {cp_size} = {2 * cp_size}: "
            "each rank takes one chunk from its beginning and one from its end",
            "change data.sequence_length or strategy.cp",
        )
    chunks = torch.arange(T).chunk(2 * cp_size)
    return torch.cat([chunks[cp_rank], chunks[-1 - cp_rank]])


def local_part(tokens: Tensor, labels: Tensor, cp: Axis) -> tuple[Tensor, Tensor, Tensor]:
    """Return this rank's part of sequences, and the positions to pass to the model.

    Shapes:  tokens and labels (..., T) -> two of (..., T/n), and (T/n,)
    Equals:  the mean over the ranks of the losses of their parts is the loss of the full sequences.
    """
    positions_t = zigzag(tokens.shape[-1], cp.size, cp.rank).to(tokens.device)
    return tokens.index_select(-1, positions_t), labels.index_select(-1, positions_t), positions_t


def use_context(model: nn.Module, cp: Axis) -> None:
    """Make every layer of a model use ring attention. From then on it takes `local_part`s, on all ranks together."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = RingAttention(cp)


class RingAttention:
    """Causal attention over a sequence of which each rank of `cp` has its zig-zag part.

    Shapes:  q (B, H, t, C), k and v (B, K, t, C) -> (B, H, t, C)
    Layout:  split over `cp` on the sequence, as `zigzag` says.
    Comm:    forward n-1 shifts of k and v; backward n-1 of them and n-1 of their gradients.
    Equals:  `causal_attention` of the full sequence, at this rank's positions, within rtol 1e-5 in float32.
    """

    def __init__(self, cp: Axis) -> None:
        self.cp = cp

    def __call__(self, q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor) -> Tensor:
        device = q_BHtC.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else v_BKtC.dtype
        B, H, t, C = q_BHtC.shape
        q_BKGtC = q_BHtC.to(dtype).view(B, k_BKtC.shape[1], -1, t, C)
        y_BKGtC: Tensor = _Ring.apply(q_BKGtC, k_BKtC.to(dtype), v_BKtC.to(dtype), self.cp)  # type: ignore[no-untyped-call]
        return y_BKGtC.view(B, H, t, C)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BKGtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor, cp: Axis) -> Tensor:
        kv = torch.stack([k_BKtC, v_BKtC])
        with torch.autocast(q_BKGtC.device.type, enabled=False):
            for owner, (k, v) in ring(kv, cp):
                is_own = owner == cp.rank
                rows, columns = visible(owner, cp.rank, kv.shape[-2])
                part, log_part = attend(q_BKGtC[..., rows, :], k[..., columns, :], v[..., columns, :], is_own)
                if is_own:
                    y_BKGtC, log_sum_BKGt = part, log_part
                else:
                    merge(y_BKGtC[..., rows, :], log_sum_BKGt[..., rows], part, log_part)
        result = y_BKGtC.to(q_BKGtC.dtype)
        ctx.save_for_backward(q_BKGtC, kv, result, log_sum_BKGt)
        ctx.cp = cp
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BKGtC, kv, y_BKGtC, log_sum_BKGt = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            dq, dkv = ring_gradients(grad, q_BKGtC, kv, y_BKGtC, log_sum_BKGt, ctx.cp)
        dk, dv = dkv.to(kv.dtype)
        return dq.to(q_BKGtC.dtype), dk, dv, None


def ring(kv: Tensor, cp: Axis) -> Iterator[tuple[int, Tensor]]:
    """Yield the owner, and its keys and values, as they arrive around the ring; this rank's own come first.

    While one block is in use, the next one is on its way.
    """
    for step in range(cp.size):
        is_last = step == cp.size - 1
        following = kv if is_last else torch.empty_like(kv)
        pending = None if is_last else cp.start_shift([following], [kv])
        yield (cp.rank - step) % cp.size, kv
        if pending is not None:
            pending.wait()
        kv = following


def visible(owner: int, rank: int, t: int) -> tuple[slice, slice]:
    """Select the queries that attend to the owner's keys, and those keys: exactly what the causal mask leaves."""
    if owner < rank:
        return slice(None), slice(t // 2)
    if owner > rank:
        return slice(t // 2, None), slice(None)
    return slice(None), slice(None)


def ring_gradients(
    grad_BKGtC: Tensor, q_BKGtC: Tensor, kv: Tensor, y_BKGtC: Tensor, log_sum_BKGt: Tensor, cp: Axis
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of q and of this rank's own k and v, to which every rank that attended to them contributes.

    Comm:    k and v travel as in the forward pass, followed by the sum of their gradients so far, which the last
             shift returns to the owner.
    Shapes:  kv (2, B, K, t, C) -> (B, K, G, t, C) and (2, B, K, t, C), in float32
    """
    grad_BKGtC = wide(grad_BKGtC)
    delta_BKGt = (grad_BKGtC * y_BKGtC).sum(dim=-1)
    dq, home = torch.zeros_like(grad_BKGtC), torch.zeros_like(kv, dtype=grad_BKGtC.dtype)
    arriving = leaving = home
    pending: Pending | None = None
    for owner, (k, v) in ring(kv, cp):
        is_own = owner == cp.rank
        rows, columns = visible(owner, cp.rank, kv.shape[-2])
        dkv = home if is_own else torch.zeros_like(home)
        dq[..., rows, :] += add_gradients(
            dkv[..., columns, :],
            grad_BKGtC[..., rows, :],
            (log_sum_BKGt[..., rows], delta_BKGt[..., rows]),
            (q_BKGtC[..., rows, :], k[..., columns, :], v[..., columns, :]),
            is_own,
        )
        if is_own:
            continue
        if pending is not None:
            pending.wait()
            dkv += arriving
        arriving, leaving = torch.empty_like(dkv), dkv
        pending = cp.start_shift([arriving], [leaving])
    if pending is not None:
        pending.wait()
        home += arriving
    return dq, home
