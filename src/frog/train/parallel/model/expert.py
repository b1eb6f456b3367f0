"""Expert parallelism: the ranks of `ep` share the experts of every layer, and send each other tokens.

`ep` consists of neighboring ranks of `dp`: each works on its own samples, but holds only 1/n of each layer's experts.
Plan of communication over `ep`, for each layer and micro-batch. A rank has N tokens of D elements of e bytes each, each
of which goes through A experts: R = N * A rows, sorted by expert, so that the rows for one rank are contiguous.
  counts    all-to-all of the number of rows for each expert: 8 bytes per expert. Every rank knows what it will receive.
  dispatch  all-to-all of the rows, as uneven as the router's choice: R * D * e bytes, (n-1)/n of them to other ranks
            if the experts are chosen evenly. They arrive by sender, and are sorted by expert.
  combine   returns the experts' outputs: the same number of bytes, in the order in which the rows left.
  backward  the gradients make the same two transfers in reverse: as many bytes again. A step sends 4 R D e bytes per
            layer and micro-batch (6 with activation checkpointing, which runs the forward pass twice).
For the load-balancing loss, one all-reduce over `data` of E + 1 counts: the fraction of all tokens for each expert.

Gradients. With m data ranks the loss is the mean over them, so a gradient is the sum over data ranks, divided by m. The
rows of all ranks of an `ep` group reach the expert's owner, whose gradient is already a sum over n ranks. A hook
divides it by n, so it is the mean over that group, and averaging over `expert_data` (the m/n ranks that hold the same
experts, one in each group) gives the mean over all. All other parameters are averaged over `data` as usual.

Source:  Lepikhin et al. 2020 (GShard); but experts have no capacity limit and no token is dropped, as in Gale et al.
         2022 (MegaBlocks).
Shapes:  as in `train/model/moe.py`; n ranks of `ep`, E' = E/n experts of one rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from frog.train.comm import Axis
from frog.train.model.moe import Experts, MixtureOfExperts


def expert_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that are split by expert along their first dim."""
    return [
        f"{stem}.{name}"
        for stem, module in model.named_modules()
        if isinstance(module, Experts)
        for name, _ in module.named_parameters()
    ]


def shard_experts(model: nn.Module, ep: Axis) -> None:
    """Keep only this rank's experts of every layer, in place, and send tokens to the others.

    Layout:  expert parameters are split over `ep` on their first dim: rank i has experts [i E', (i+1) E').
    Equals:  the full model, once the gradients of `expert_names` are averaged over `expert_data` and all others over
             `data`.
    Assumes: all ranks of `ep` hold the same weights; their number divides that of the experts. From then on they run
             the model the same number of times, in evaluation too.
    """
    if ep.size == 1:
        return
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.run_experts = ExpertParallel(ep)
            for parameter in module.experts.parameters():
                parameter.data = parameter.data.chunk(ep.size)[ep.rank].clone()
                parameter.register_hook(lambda grad: grad / ep.size)  # type: ignore[no-untyped-call]


def balance_over(model: nn.Module, data: Axis) -> None:
    """Make the load-balancing loss of every layer count the tokens of all data ranks.

    The fraction of tokens has no gradient, and the loss is linear in the rest: with the fraction over the full batch,
    the mean of the ranks' losses is the loss of the full batch. Batch means a micro-batch of all data ranks.
    """
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.token_fraction = GlobalTokenFraction(data)


class GlobalTokenFraction:
    """Computes the fraction of all ranks' tokens that each expert gets.

    Comm:    one all-reduce of E + 1 numbers.
    """

    def __init__(self, data: Axis) -> None:
        self.data = data

    def __call__(self, counts_E: Tensor, num_tokens: int) -> Tensor:
        totals = torch.cat([counts_E, counts_E.new_tensor([num_tokens])])
        self.data.all_reduce(totals)
        return totals[:-1] / totals[-1]


class ExpertParallel:
    """Sends each row through its expert, on whichever rank that is.

    Shapes:  x_RD (R, D), sorted by expert; counts_E (E,): number of rows for each -> (R, D), in the same order
    Comm:    forward three all-to-alls (counts, rows, rows), backward two.
    Equals:  `run_here` with all experts.
    """

    def __init__(self, ep: Axis) -> None:
        self.ep = ep

    def __call__(self, experts: Experts, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        leaving_ne = counts_E.view(self.ep.size, -1)
        arriving_ne = torch.empty_like(leaving_ne)
        self.ep.all_to_all(arriving_ne, leaving_ne)
        leaving, arriving = leaving_ne.sum(dim=1).tolist(), arriving_ne.sum(dim=1).tolist()

        rows = exchange(_narrow(x_RD), leaving, arriving, self.ep)
        order = by_expert(arriving_ne)
        rows = experts(rows.index_select(0, order), arriving_ne.sum(dim=0).tolist())
        return exchange(rows.index_select(0, order.argsort()), arriving, leaving, self.ep)


def _narrow(x: Tensor) -> Tensor:
    """Under autocast, convert to the dtype of the experts' products, to send fewer bytes."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def by_expert(counts_ne: Tensor) -> Tensor:
    """Return the order that sorts rows by expert and then by sender; they arrive by sender and then by expert.

    Shapes:  counts_ne (n, E') -> (the sum of counts,)
    """
    experts_e = torch.arange(counts_ne.shape[1], device=counts_ne.device)
    return experts_e.repeat(counts_ne.shape[0]).repeat_interleave(counts_ne.flatten()).argsort(stable=True)


def exchange(x: Tensor, leaving: list[int], arriving: list[int], ep: Axis) -> Tensor:
    """Send each rank its slice of rows, and receive slices in rank order; backward returns the gradients.

    Shapes:  (sum of leaving, D) -> (sum of arriving, D)
    """
    return _Exchange.apply(x, leaving, arriving, ep)  # type: ignore[no-any-return, no-untyped-call]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: list[int], arriving: list[int], ep: Axis) -> Tensor:
        ctx.way_back = arriving, leaving, ep
        return _move(x, leaving, arriving, ep)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _move(grad, *ctx.way_back), None, None, None


def _move(x: Tensor, leaving: list[int], arriving: list[int], ep: Axis) -> Tensor:
    received = x.new_empty(sum(arriving), *x.shape[1:])
    ep.all_to_all(received, x.contiguous(), (arriving, leaving))
    return received
