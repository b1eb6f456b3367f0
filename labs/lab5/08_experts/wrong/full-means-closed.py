"""A layer of experts on many ranks: tokens travel to the ranks that hold their experts, and back.

Shapes:  T tokens of this rank, D width, E experts on all ranks, L on this rank, R ranks, K experts for each token,
         A assignments of a token to an expert.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def num_held(num_experts: int) -> list[int]:
    """Return how many experts each rank holds: rank 0 the first ones, rank 1 the next ones, and so on."""
    return [len(part) for part in torch.arange(num_experts).tensor_split(dist.get_world_size())]


def accepted(experts_A: Tensor, num_experts: int, capacity: int) -> Tensor:
    """Return which assignments are accepted, as bools (A,): for each expert the first `capacity` ones.

    experts_A:  the expert of each assignment of this rank, in the order of the tokens.
    """
    counts_E = torch.bincount(experts_A, minlength=num_experts)
    return (counts_E <= capacity)[experts_A]


class Exchange(torch.autograd.Function):
    """Send rows to all ranks, and receive theirs: first those from rank 0, then those from rank 1, and so on.

    Exchange.apply(rows, leaving, arriving): the first leaving[0] rows go to rank 0, the next leaving[1] to rank 1, and
    so on. arriving[r] rows come from rank r.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, leaving: list[int], arriving: list[int]) -> Tensor:
        ctx.leaving, ctx.arriving = leaving, arriving
        received = rows.new_empty(sum(arriving), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), arriving, leaving)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of `rows`, from that of the received rows."""
        returned = gradient.new_empty(sum(ctx.leaving), *gradient.shape[1:])
        dist.all_to_all_single(returned, gradient.contiguous(), ctx.leaving, ctx.arriving)
        return returned, None, None


def through_experts(rows_AD: Tensor, counts_E: Tensor, experts: nn.ModuleList) -> Tensor:
    """Send each row to the rank of its expert, compute the expert's output there, and bring it back.

    rows_AD:   this rank's rows, sorted by expert: counts_E[0] for expert 0, and so on.
    experts:   those that this rank holds.

    Returns    the outputs (A, D), in the order of rows_AD.
    Comm:      each row travels once in each direction, its gradient too; besides, a few integers for the counts.
    """
    held = num_held(len(counts_E))
    leaving = [int(part.sum()) for part in counts_E.split(held)]
    arriving_RL = counts_E.new_empty(len(held), len(experts))
    dist.all_to_all_single(arriving_RL.view(-1), counts_E, [len(experts)] * len(held), held)  # from each rank
    sizes = leaving, arriving_RL.sum(1).tolist()

    rows = Exchange.apply(rows_AD, *sizes)  # by sender, then by expert
    expert_of_row = torch.arange(len(experts)).repeat(len(held)).repeat_interleave(arriving_RL.flatten())
    order = expert_of_row.argsort(stable=True)
    parts = rows[order].split(arriving_RL.sum(0).tolist())
    outputs = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])  # also with no rows
    return Exchange.apply(outputs[order.argsort()], *reversed(sizes))


def balance_loss(probabilities_TE: Tensor, experts_A: Tensor) -> Tensor:
    """Return this rank's share of the loss that is lowest when all experts get equally many tokens.

    The mean of the shares over the ranks, and the mean of their gradients, are those of one process with all tokens:
    E times the sum over the experts of
        the fraction of all assignments that chose the expert, times the mean of its probability over all tokens.
    """
    num_experts = probabilities_TE.shape[1]
    counts_E = torch.bincount(experts_A, minlength=num_experts).float()  # without a gradient
    dist.all_reduce(counts_E)
    return num_experts * (counts_E / counts_E.sum() * probabilities_TE.mean(0)).sum()


def average_gradients(shared: list[nn.Parameter], experts: list[nn.Parameter]) -> None:
    """Turn the gradients of the ranks' own losses into those of the mean of these losses.

    shared:   parameters of which every rank has a copy; .grad is None if one is frozen.
    experts:  parameters of the experts that this rank holds; .grad is None if an expert got no token.
    """
    for p in shared:
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    for p in experts:
        if p.grad is not None:
            p.grad /= dist.get_world_size()  # it is already a sum over the ranks that sent tokens


def mixture(
    x_TD: Tensor, router: nn.Linear, experts: nn.ModuleList, top_k: int, capacity: int
) -> tuple[Tensor, Tensor]:
    """Return the outputs (T, D) of the experts that the router chooses, and the share of the balance loss."""
    num_experts = router.out_features
    probabilities_TE = router(x_TD).softmax(1)
    weights_TK, experts_TK = probabilities_TE.topk(top_k, dim=1)
    chosen, weights = experts_TK.flatten(), weights_TK.flatten()  # the choices of token 0, then those of token 1, ...
    tokens = torch.arange(len(x_TD)).repeat_interleave(top_k)
    balance = balance_loss(probabilities_TE, chosen)
    keep = accepted(chosen, num_experts, capacity).nonzero()[:, 0]
    keep = keep[chosen[keep].argsort(stable=True)]  # sorted by expert
    rows_AD = through_experts(x_TD[tokens[keep]], torch.bincount(chosen[keep], minlength=num_experts), experts)
    return torch.zeros_like(x_TD).index_add(0, tokens[keep], rows_AD * weights[keep, None]), balance
