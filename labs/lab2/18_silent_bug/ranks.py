"""Train with the learner's code, and note the weights after each of its steps."""

import argparse
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [train(learner, run) for run in case["runs"]]


def train(learner: ModuleType, run: dict[str, Any]) -> Any:
    steps: list[Tensor] = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        tensors = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        steps.append(torch.cat([tensor.flatten() for tensor in tensors]))

    hook = register_optimizer_step_post_hook(note)
    try:
        weights = learner.train(argparse.Namespace(**run))
    finally:
        hook.remove()
    return {"steps": steps, "weights": weights}
