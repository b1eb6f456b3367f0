"""Take three steps with a small network, and record the dtypes that the learner's code decides."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, STEPS, RATE = 16, 3, 0.05


class Network(nn.Module):
    """Two layers. The second's weights begin near 1, so that a small update is lost in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def make_model(seed: int) -> Network:
    model, generator = Network(), torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 4
    model.second.weight.data += 1.0
    return model


def make_optimizer(name: str, model: Network) -> torch.optim.Optimizer:
    """SGD, whose update is linear in the gradients, or Adam, whose update is not."""
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    return torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-3)


def make_batch(seed: int, step: int, rank: int, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 100 * step + rank)
    inputs = torch.randn(samples, WIDTH, generator=generator)
    return inputs, inputs[:, :4] * 3 + 5 + rank


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared distance over samples, in the dtype of the arguments, as a custom loss does."""
    return ((outputs - targets) * (outputs - targets)).sum(1).mean()


class Witness:
    """Records dtypes, and whether backward runs under autocast."""

    def __init__(self, model: Network) -> None:
        self.products: list[str] = []
        self.weights: set[str] = set()
        self.losses: list[str] = []
        self.backward_inside = False
        for layer in (model.first, model.second):
            layer.register_forward_hook(self.in_forward)

    def in_forward(self, layer: nn.Linear, _inputs: Any, output: Tensor) -> None:
        self.products.append(str(output.dtype))
        self.weights.add(str(layer.weight.dtype))

    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = squares(outputs, targets)
        self.losses.append(str(loss.dtype))
        if outputs.requires_grad:
            outputs.register_hook(self.in_backward)
        return loss

    def in_backward(self, _gradient: Tensor) -> None:
        self.backward_inside |= torch.is_autocast_enabled("cpu")


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank, model = dist.get_rank(), make_model(case["seed"])
    optimizer, steps = make_optimizer(case["optimizer"], model), []
    for step in range(STEPS):
        witness = Witness(model)
        loss = learner.train_step(
            model, optimizer, *make_batch(case["seed"], step, rank, case["samples"]), witness.loss_of
        )
        steps.append(
            {
                "loss": loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss,
                "weights": [p.detach().clone() for p in model.parameters()],
                "products": witness.products,
                "used": sorted(witness.weights),
                "losses": witness.losses,
                "inside": witness.backward_inside,
            }
        )
    return steps
