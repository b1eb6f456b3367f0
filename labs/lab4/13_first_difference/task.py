"""The task of train.py: a small language model, and texts of different lengths. Do not change this file."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, BLOCKS, PADDING = 20, 12, 9, 3, -100


class Block(nn.Module):
    """A layer with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))))


class Model(nn.Module):
    """Predict each token from the one before it: an embedding, blocks and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens.flatten())
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def batch_of(step: int, batch_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return this rank's texts of a step: their tokens and, for each token, the next one or PADDING."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tokens, targets = global_batch(step, batch_size * world_size, seed)
    return tokens[rank::world_size], targets[rank::world_size]


def global_batch(step: int, num_texts: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the texts of all ranks. Each counts up, by 1 to 3, and ends somewhere."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    first = torch.randint(VOCABULARY, (num_texts, 1), generator=generator)
    text = (first + torch.randint(1, 4, (num_texts, LENGTH + 1), generator=generator).cumsum(1)) % VOCABULARY
    ends = torch.randint(1, LENGTH + 1, (num_texts, 1), generator=generator)
    targets = text[:, 1:].masked_fill(torch.arange(LENGTH) >= ends, PADDING)
    return text[:, :-1].contiguous(), targets
