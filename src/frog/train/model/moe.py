"""A mixture of experts in place of the FFN: a router sends each token to a few of many SwiGLUs.

Plan of a layer: the router computes each token's probability of each expert, keeps the best few and scales them to sum
to one. The tokens are sorted by expert, so that each expert reads a contiguous slice of rows. Each token's outputs are
summed, weighted with these probabilities.

Shapes: B batch, T time (sequence), N tokens (B and T as one), D model width, F FFN width, E experts, A experts that one
token goes through, R rows: one for each pair of token and expert (N x A), in order of experts.
Parameter names and layouts are those of Hugging Face's Mixtral in memory; `train/model/hf.py` maps them to its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frog.core.config import ModelConfig
from frog.train.model.functions import linear


class Experts(nn.Module):
    """Several SwiGLUs with stacked matrices: an expert's gate and up projection are one matrix of 2F rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        E, D, width = config.num_local_experts or 0, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(E, 2 * width, D))
        self.down_proj = nn.Parameter(torch.empty(E, D, width))

    def init_weights(self, std: float) -> None:
        """Draw every matrix from a normal distribution."""
        nn.init.normal_(self.gate_up_proj, std=std)
        nn.init.normal_(self.down_proj, std=std)

    def forward(self, x_RD: Tensor, counts: Sequence[int]) -> Tensor:
        """Apply to each row its expert.

        Shapes:  x_RD (R, D): the first counts[0] rows are the first expert's, and so on -> (R, D)
        """
        # An expert without rows runs too, so that its gradient is zero and not None.
        parts = []
        matrices = zip(self.gate_up_proj.unbind(), self.down_proj.unbind(), strict=True)
        for x, (gate_up, down) in zip(torch.split(x_RD, list(counts)), matrices, strict=True):
            gate, up = linear(x, gate_up).chunk(2, dim=-1)
            parts.append(linear(F.silu(gate) * up, down))
        return torch.cat(parts)


def run_here(experts: Experts, x_RD: Tensor, counts_E: Tensor) -> Tensor:
    """Apply to each row its expert; this process holds all experts."""
    return experts(x_RD, counts_E.tolist())  # type: ignore[no-any-return]


def local_token_fraction(counts_E: Tensor, num_tokens: int) -> Tensor:
    """Compute the fraction of this process's tokens that each expert gets."""
    return counts_E / num_tokens


class MixtureOfExperts(nn.Module):
    """Sends each token through its best few experts. Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral)."""

    run_experts: Callable[[Experts, Tensor, Tensor], Tensor] = staticmethod(run_here)
    """Computes the experts; expert parallelism replaces it."""
    token_fraction: Callable[[Tensor, int], Tensor] = staticmethod(local_token_fraction)
    """Counts tokens per expert; a strategy that splits the batch replaces it to count all of them."""
    losses: list[Tensor] | None = None
    """The list that collects the load-balancing loss, inside `balance_losses`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_experts, self.num_active = config.num_local_experts or 0, config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, self.num_experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        probabilities_NE, weights_NA, experts_NA = self.route(x_ND)
        counts_E = experts_NA.flatten().bincount(minlength=self.num_experts)
        if self.training:
            loss = load_balancing_loss(self.token_fraction(counts_E, len(x_ND)), probabilities_NE)
            if self.losses is not None:
                self.losses.append(loss)

        order_R = experts_NA.flatten().argsort(stable=True)
        x_RD = x_ND.index_select(0, order_R // self.num_active)
        y_RD = self.run_experts(self.experts, x_RD, counts_E)
        y_NAD = y_RD.index_select(0, order_R.argsort()).view(*experts_NA.shape, -1)
        y_ND = (y_NAD * weights_NA.unsqueeze(-1)).sum(dim=1)
        return y_ND.to(x_BTD.dtype).view_as(x_BTD)

    def route(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute every token's probabilities of the experts, and its best few with weights that sum to one.

        Shapes:  -> (N, E) and (N, A), in float32; (N, A)
        """
        probabilities_NE = self.gate(x_ND).float().softmax(dim=-1)
        best_NA, experts_NA = probabilities_NE.topk(self.num_active, dim=-1)
        return probabilities_NE, best_NA / best_NA.sum(dim=-1, keepdim=True), experts_NA


def load_balancing_loss(share_E: Tensor, probabilities_NE: Tensor) -> Tensor:
    """Compute E times the sum over experts of the fraction of tokens sent there times the mean probability.

    It is A when all experts get the same number, and up to E when all tokens go to the same A experts. The fraction has
    no gradient; that of the probabilities pushes popular experts down.

    Shapes:  share_E (E,): sums to A, since a token goes to A experts -> a scalar
    Source:  Fedus et al. 2021 (Switch), equations 4 to 6.
    """
    return len(share_E) * (share_E * probabilities_NE.mean(dim=0)).sum()


@contextmanager
def balance_losses(layers: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Within this context, every mixture in `layers` in training mode appends its load-balancing loss to the list.

    No loss is appended outside it: activation checkpointing runs a layer again in the backward pass.
    """
    losses: list[Tensor] = []
    mixtures = [module for layer in layers for module in layer.modules() if isinstance(module, MixtureOfExperts)]
    for mixture in mixtures:
        mixture.losses = losses
    try:
        yield losses
    finally:
        for mixture in mixtures:
            mixture.losses = None


def weigh(found: Sequence[Tensor], config: ModelConfig) -> Tensor:
    """Compute the routers' part of the training loss, for a model's layers or those of one stage.

    Equals:  router_aux_loss_coef x the mean over all of the model's layers, counting only the given ones. Hugging
             Face pools the shares and the probabilities of all layers first, so that one layer's favourite can hide
             another's; for one layer it is the same.
    """
    return config.router_aux_loss_coef / config.num_hidden_layers * torch.stack(list(found)).sum()
