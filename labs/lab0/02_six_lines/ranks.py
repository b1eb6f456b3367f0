"""A small model trained by the learner's loop, with every optimizer step recorded."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
}


class Model(nn.Module):
    """Two matrices with a tanh between them, a third that no output depends on, and a frozen one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, shape in (("first", (3, 6)), ("second", (6, 2)), ("unused", (2, 2)), ("frozen", (2,))):
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator) / 2))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second + self.frozen


def compute_loss(output: Tensor) -> Tensor:
    return (output - 1.0).square().mean()


def make_batches(seed: int, number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    return [torch.randn(4 + place % 2, 3, generator=generator) for place in range(number)]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return {
        "runs": {name: run(learner, case["seed"], name, 5) for name in OPTIMIZERS},
        "stream": run(learner, case["seed"], "SGD", 5, stream=True),
        "one": run(learner, case["seed"], "SGD", 1),
    }


def work_without_data(learner: ModuleType, case: dict[str, Any]) -> Any:
    return run(learner, case["seed"], "SGD", 0)


def run(learner: ModuleType, seed: int, name: str, number: int, stream: bool = False) -> dict[str, Any]:
    """Return the loop's result, the contents of .grad at each step, and the final weights."""
    model, batches = Model(seed), make_batches(seed, number)
    optimizer = OPTIMIZERS[name](model.parameters())
    steps: list[dict[str, Any]] = []
    events: list[str] = []
    model.register_forward_pre_hook(lambda *_: events.append("forward"))
    model.second.register_hook(lambda gradient: events.append("backward"))
    optimizer.register_step_post_hook(lambda *_: events.append("step") or steps.append(gradients(model)))
    data = iter(batches) if stream else batches
    try:
        losses = learner.train(model, data, compute_loss, optimizer)
    except (TypeError, RuntimeError) as error:
        if not stream and events[-2:] != ["forward", "step"]:
            raise
        return {"error": str(error).split(":")[0], "events": events}
    if not isinstance(losses, list):
        return {"error": "", "returned": type(losses).__name__}
    kept = [isinstance(loss, Tensor) and loss.requires_grad for loss in losses]
    return {
        "losses": [loss.item() if isinstance(loss, Tensor) else float(loss) for loss in losses],
        "kept": kept,
        "types": sorted({type(loss).__name__ for loss in losses}),
        "steps": steps,
        "backwards": events.count("backward"),
        "steps_first": "backward" in events and "step" in events[: events.index("backward")],
        "weights": {key: value.detach() for key, value in model.named_parameters()},
        "error": "",
    }


def gradients(model: nn.Module) -> dict[str, Any]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
