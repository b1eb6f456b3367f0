"""Attention with grouped queries, whose heads are divided over the ranks.

Shapes: B batch, T time, D model width, C head width; H query heads, K key/value heads; h, k: those of this rank.
"""

import torch
import torch.distributed as dist
from linear import CopyToRanks, SumOfRanks  # exercise 5.1
from torch import Tensor, nn


def query_heads(num_heads: int, rank: int) -> list[int]:
    """Return the query heads of a rank. Every rank has at least one."""
    size = dist.get_world_size()
    return list(range(rank * num_heads // size, (rank + 1) * num_heads // size))


def kv_heads(num_heads: int, num_kv_heads: int, rank: int) -> list[int]:
    """Return the key/value heads that a rank's query heads use, each once, in ascending order.

    Query heads 0, 1, … form groups of H / K neighbours. All heads of group n use the key/value head n.
    """
    group = num_heads // num_kv_heads
    return sorted({head // group for head in query_heads(num_heads, rank)})


def select(whole: nn.Linear, heads: list[int], num_heads: int) -> nn.Linear:
    """Return a layer with some of the heads of `whole`, whose outputs are `num_heads` heads one after another."""
    weight_HCD = whole.weight.detach().unflatten(0, (num_heads, -1))
    layer = nn.Linear(whole.in_features, len(heads) * weight_HCD.shape[1], bias=whole.bias is not None)
    layer.weight.data = weight_HCD[heads].flatten(0, 1)
    if whole.bias is not None:
        layer.bias.data = whole.bias.detach().unflatten(0, (num_heads, -1))[heads].flatten()
    return layer


class SplitAttention(nn.Module):
    """One rank's part of an attention layer: some of the query heads, and the key/value heads that these use.

    whole:   has q, k, v, o (nn.Linear; q and v may have biases), num_heads and num_kv_heads. K divides H; the number of
             ranks need not divide either.
    Layout:  q, k, v: this rank's heads, in ascending order; o: the input columns of its query heads.
    Comm:    forward one all-reduce of the output, backward one of x's gradient.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = whole.num_heads, whole.num_kv_heads
        rank = dist.get_rank()
        self.own = query_heads(self.num_heads, rank)
        self.own_kv = kv_heads(self.num_heads, self.num_kv_heads, rank)
        self.q = select(whole.q, self.own, self.num_heads)
        self.k = select(whole.k, self.own_kv, self.num_kv_heads)
        self.v = select(whole.v, self.own_kv, self.num_kv_heads)
        columns_DHC = whole.o.weight.detach().unflatten(1, (self.num_heads, -1))
        self.o = nn.Linear(self.q.out_features, whole.o.out_features, bias=False)
        self.o.weight.data = columns_DHC[:, self.own].flatten(1)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = CopyToRanks.apply(x_BTD)
        q_BhTC = self.q(x_BTD).unflatten(-1, (len(self.own), -1)).transpose(1, 2)
        k_BkTC, v_BkTC = (
            layer(x_BTD).unflatten(-1, (len(self.own_kv), -1)).transpose(1, 2) for layer in (self.k, self.v)
        )
        k_BhTC, v_BhTC = self.for_each_query_head(k_BkTC), self.for_each_query_head(v_BkTC)
        y_BhTC = nn.functional.scaled_dot_product_attention(q_BhTC, k_BhTC, v_BhTC, is_causal=True)
        return SumOfRanks.apply(self.o(y_BhTC.transpose(1, 2).flatten(2)))

    def for_each_query_head(self, kv_BkTC: Tensor) -> Tensor:
        """Return, for each of this rank's query heads, the key/value head that it uses.

        Shapes:  (B, k, T, C) -> (B, h, T, C)
        """
        group = self.num_heads // self.num_kv_heads
        return kv_BkTC[:, [self.own_kv.index(head // group) for head in self.own]]

    def sum_shared_gradients(self) -> None:
        """Complete the gradients of k and v. It is called once in a step, after the last backward.

        A key/value head that several ranks use is a copy on each, and each copy's .grad has the part from the rank's
        own query heads. Replace it by the sum over the ranks that have the head. A frozen layer has the .grad None.

        Comm:  one all-reduce or more, of the gradients of the heads that several ranks have, and of no others.
        """
        size = dist.get_world_size()
        users = [kv_heads(self.num_heads, self.num_kv_heads, rank) for rank in range(size)]
        shared = [head for head in range(self.num_kv_heads) if sum(head in used for used in users) > 1]
        for parameter in (*self.k.parameters(), *self.v.parameters()):
            if parameter.grad is None or not shared:
                continue
            own = parameter.grad.unflatten(0, (len(self.own_kv), -1))
            total = own.new_zeros(len(shared), *own.shape[1:])
            here = [(n, self.own_kv.index(head)) for n, head in enumerate(shared) if head in self.own_kv]
            for n, place in here:
                total[n] = own[place]
            dist.all_reduce(total)
            for n, place in here:
                own[place] = total[n]
