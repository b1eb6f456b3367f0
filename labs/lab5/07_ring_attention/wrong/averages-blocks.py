"""Causal attention over a sequence of which each rank has a part: by a ring, and by exchanging heads.

Shapes:  B batch, H heads, t positions of this rank, s of another, C head width. q, k and v are (B, H, t, C).
"""

import torch
import torch.distributed as dist
from exchange import exchange, shift
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, is_seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention to these keys only, and the log of its sum of exponentials, by which it can be merged.

    is_seen:  (t, s), true where a query may see a key. If a query sees none, the log of the sum is about -1e38.
    Shapes:   -> (B, H, t, C) and (B, H, t, 1)
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~is_seen, torch.finfo(scores.dtype).min / 4)
    log_sum = scores.logsumexp(-1, keepdim=True)
    return (scores - log_sum).exp() @ v, log_sum


def gather_attention(q: Tensor, k: Tensor, v: Tensor, num_positions: int) -> Tensor:
    """Return attention of this rank's queries to all keys, which every rank sends to every other one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    positions = [positions_of(num_positions, peer, size) for peer in range(size)]
    shapes = [(2, *k.shape[:2], len(one), k.shape[3]) for one in positions]
    keys, values = torch.cat(exchange([torch.stack([k, v])] * size, shapes), dim=3)
    return attend(q, keys, values, positions[rank][:, None] >= torch.cat(positions))[0]


def positions_of(num_positions: int, rank: int, size: int) -> Tensor:
    """Return a rank's positions of a sequence: chunk `rank` of 2 * size, and the chunk as far from the end.

    Each position belongs to one rank, also if the chunks have unequal lengths. Every rank's queries see about as many
    keys, in all, as any other's.
    """
    chunks = torch.arange(num_positions).tensor_split(2 * size)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def merge(y: Tensor, log_sum: Tensor, part: Tensor, log_part: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention to the keys of both (y, log_sum) and (part, log_part), and the log of its sum."""
    total = torch.logaddexp(log_sum, log_part)
    return (y + part) / 2, total


def ring_attention(q: Tensor, k: Tensor, v: Tensor, num_positions: int) -> Tensor:
    """Return attention of this rank's queries to all keys, which travel around the ring of ranks.

    Comm:    size - 1 shifts of keys and values to the next rank. Their gradients come back the same way.
    Memory:  keys and values of two ranks, not of all.
    Equals:  causal attention of one process to the whole sequence, at this rank's positions; so do the gradients.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    positions = [positions_of(num_positions, peer, size) for peer in range(size)]
    kv, owner = torch.stack([k, v]), rank
    y, log_sum = attend(q, k, v, positions[rank][:, None] >= positions[rank])
    for _ in range(size - 1):
        owner = (owner - 1) % size
        kv = shift(kv, (2, *k.shape[:2], len(positions[owner]), k.shape[3]))
        is_seen = positions[rank][:, None] >= positions[owner]
        y, log_sum = merge(y, log_sum, *attend(q, kv[0], kv[1], is_seen))
    return y


def head_attention(q: Tensor, k: Tensor, v: Tensor, num_positions: int) -> Tensor:
    """Return the same as ring_attention: each rank computes some heads, of the whole sequence (DeepSpeed's Ulysses).

    The heads are divided as torch's tensor_split divides them.

    Comm:    each rank sends the other ranks their heads of its q, k and v; they send its positions of the result back.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    positions = [positions_of(num_positions, peer, size) for peer in range(size)]
    batch, _, length, width = q.shape
    heads = [len(part) for part in torch.arange(q.shape[1]).tensor_split(size)]
    parts = list(torch.stack([q, k, v]).split(heads, dim=2))
    received = exchange(parts, [(3, batch, heads[rank], len(one), width) for one in positions])
    q, k, v = torch.cat(received, dim=3)
    order = torch.cat(positions)
    y, _ = attend(q, k, v, order[:, None] >= order)
    parts = list(y.split([len(one) for one in positions], dim=2))
    return torch.cat(exchange(parts, [(batch, num, length, width) for num in heads]), dim=1)
