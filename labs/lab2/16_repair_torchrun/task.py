"""The task of train.py. Do not change this file: the check brings its own copy, which also takes notes."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

NUM_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED, RATE = 48, 8, 2, 5, 0.1


class Points(Dataset):
    """48 points, and the target of each."""

    def __init__(self, rank: int) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.inputs = torch.randn(NUM_SAMPLES, 6, generator=generator)
        self.targets = self.inputs.pow(2).sum(1, keepdim=True)
        self.rank = rank

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        note(self.rank, "sample", int(index))
        return self.inputs[index], self.targets[index]


def make_model() -> nn.Module:
    """Create a model. Every rank draws the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over the samples of a batch."""
    return (outputs - targets).pow(2).mean()


def save(state: dict[str, Tensor], rank: int) -> None:
    """Write the trained weights. Only one rank should do this."""
    note(rank, "saved", sorted(state))
    torch.save({name: value.clone() for name, value in state.items()}, "model.pt")


def note(rank: int, what: str, value: object) -> None:
    """Do nothing. In the check, write a line of notes."""
