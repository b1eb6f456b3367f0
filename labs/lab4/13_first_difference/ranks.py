"""Train with the learner's code, and note what its optimizer uses in each step."""

import argparse
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook


def whole(value: Tensor) -> Tensor:
    """Return a tensor as it would be in one process."""
    value = value.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


class Notes:
    """What the optimizer uses in each step, and which blocks are sharded while the first one runs."""

    def __init__(self) -> None:
        self.gradients: list[dict[int, Tensor]] = []
        self.rates: list[list[float]] = []
        self.early: list[bool] = []
        self.blocks: list[nn.Module] = []

    def step(self, optimizer: Optimizer, *_: Any) -> None:
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        self.gradients.append({id(p): whole(p.grad) for p in tensors if p.grad is not None})
        self.rates.append([float(group["lr"]) for group in optimizer.param_groups])

    def forward(self, module: nn.Module, *_: Any) -> None:
        blocks = getattr(module, "blocks", None)
        if isinstance(blocks, nn.ModuleList):
            self.blocks = list(blocks)
        elif self.blocks and module is self.blocks[0]:
            self.early.append(not all(isinstance(p, DTensor) for p in self.blocks[-1].parameters()))


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    notes = Notes()
    hooks = [register_optimizer_step_pre_hook(notes.step), register_module_forward_pre_hook(notes.forward)]
    try:
        model = learner.train(argparse.Namespace(**case))
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(model, nn.Module):
        return {"returned": type(model).__name__}
    parameters = {name.removeprefix("module."): p for name, p in model.named_parameters()}
    local = [p.to_local() if isinstance(p, DTensor) else p for p in parameters.values()]
    return {
        "gradients": [{n: step[id(p)] for n, p in parameters.items() if id(p) in step} for step in notes.gradients],
        "weights": {name: whole(p) for name, p in parameters.items()},
        "rates": notes.rates,
        "early": notes.early,
        "held": sum(part.numel() for part in local),
    }
