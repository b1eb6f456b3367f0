"""Give each rank micro-batches with different numbers of trained tokens."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frog.learn.grader.live_bytes import LiveBytes

VOCAB, WIDTH = 23, 7
IGNORED = -100
FEW = 4
"""An all-reduce with more elements carries gradients; the smallest parameter has more."""
MARK = 251  # elements of an all-reduce that only this file calls


class Model(nn.Module):
    """A small language model with a tied output layer, a frozen layer and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, 5)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.tanh(self.frozen(self.embedding(tokens)))
        before = nn.functional.pad(h, (0, 0, 1, 0))[:, :-1]
        return self.head(h + torch.tanh(self.mix(torch.cat([h, before], dim=2))))


def make_model(case: dict[str, Any]) -> Model:
    model, generator = Model(), torch.Generator().manual_seed(case["seed"])
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 2
    return model


def batches(case: dict[str, Any], rank: int) -> list[tuple[Tensor, Tensor]]:
    """Draw a rank's micro-batches. A shape is (sequences, tokens in each, trained tokens in all)."""
    generator = torch.Generator().manual_seed(case["seed"] + 100 * (rank + 1))
    found = []
    for num, length, trained in case["shapes"][rank]:
        tokens = torch.randint(VOCAB, (num, length), generator=generator)
        labels = (tokens * 5 + rank + 1) % VOCAB  # ranks have different text
        ignored = torch.randperm(num * length, generator=generator)[trained:]
        found.append((tokens, labels.flatten().index_fill(0, ignored, IGNORED).view_as(labels)))
    return found


def make_marker() -> Callable[[], None]:
    """Return a function that marks the end of a case by an all-reduce of this rank alone."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return lambda: dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=groups[dist.get_rank()])


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found, mark = [], make_marker()
    for case in cases["cases"]:
        model = make_model(case)
        micro_batches, live = batches(case, dist.get_rank()), LiveBytes()
        with live:
            loss = learner.accumulate(model, micro_batches)
        mark()
        loss = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
        gradients = {name: p.grad for name, p in model.named_parameters()}
        found.append({"loss": loss, "peak": live.peak, "gradients": gradients})
    return found
