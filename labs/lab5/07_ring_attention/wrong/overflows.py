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
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def merge(y: Tensor, log_sum: Tensor, part: Tensor, log_part: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention to the keys of both (y, log_sum) and (part, log_part), and the log of its sum."""
    a, b = log_sum.exp(), log_part.exp()
    return (a * y + b * part) / (a + b), (a + b).log()


def ring_attention(q: Tensor, k: Tensor, v: Tensor, num_positions: int) -> Tensor:
    """Return attention of this rank's queries to all keys, which travel around the ring of ranks.

    Comm:    size - 1 shifts of keys and values to the next rank. Their gradients come back the same way.
    Memory:  keys and values of two ranks, not of all.
    Equals:  causal attention of one process to the whole sequence, at this rank's positions; so do the gradients.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = positions_of(num_positions, rank, size)
    y, log_sum = attend(q, k, v, mine[:, None] >= mine)
    kv = torch.stack([k, v])
    for turn in range(1, size):
        owner = (rank - turn) % size
        theirs = positions_of(num_positions, owner, size)
        kv = shift(kv, (2, *k.shape[:2], len(theirs), k.shape[3]))
        y, log_sum = merge(y, log_sum, *attend(q, kv[0], kv[1], mine[:, None] >= theirs))
    return y


def head_attention(q: Tensor, k: Tensor, v: Tensor, num_positions: int) -> Tensor:
    """Return the same as ring_attention: each rank computes some heads, of the whole sequence (DeepSpeed's Ulysses).

    The heads are divided as torch's tensor_split divides them.

    Comm:    each rank sends the other ranks their heads of its q, k and v; they send its positions of the result back.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    positions = [positions_of(num_positions, r, size) for r in range(size)]
    qkv = torch.stack([q, k, v])
    sent = list(qkv.tensor_split(size, dim=2))
    own = sent[rank].shape[2]
    came = exchange(sent, [(3, len(q), own, len(p), q.shape[3]) for p in positions])
    order = torch.cat(positions)
    whole = torch.cat(came, dim=3)
    y, _ = attend(whole[0], whole[1], whole[2], order[:, None] >= order)
    back = exchange(list(y.split([len(p) for p in positions], dim=2)), [(len(q), s.shape[2], q.shape[2], q.shape[3]) for s in sent])
    return torch.cat(back, dim=1)
