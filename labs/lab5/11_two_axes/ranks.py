"""Train a model for some steps on each mesh, with the learner's TwoAxes."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

Table = dict[str, Tensor]
TOKENS = 4
OPTIONS = {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1}  # with the usual eps, rounding would decide small steps
FROZEN = ("layers.1.norm.weight", "layers.1.norm.bias")
MARK = 251  # elements of an all-reduce that only this file calls, before and after each backward


def weights(case: dict[str, Any]) -> Table:
    """Return the weights of the whole model."""
    vocabulary, width, inner = (case[name] for name in ("vocabulary", "width", "inner"))
    shapes: dict[str, list[int]] = {"hint": [width], "spare": [width], "embedding.weight": [vocabulary, width]}
    for number in range(case["num_layers"]):
        shapes |= {
            f"layers.{number}.norm.weight": [width],
            f"layers.{number}.norm.bias": [width],
            f"layers.{number}.up.weight": [inner, width],
            f"layers.{number}.up.bias": [inner],
            f"layers.{number}.down.weight": [width, inner],
            f"layers.{number}.down.bias": [width],
        }
    shapes |= {"norm.weight": [width], "norm.bias": [width]}
    generator = torch.Generator().manual_seed(case["seed"])
    return {name: torch.randn(shape, generator=generator) * 0.5 for name, shape in shapes.items()}


def batch(case: dict[str, Any], step: int) -> tuple[Tensor, Tensor]:
    """Return a batch in which one sample begins with token 0, in each step another one."""
    generator = torch.Generator().manual_seed(case["seed"] + 100 * (step + 1))
    tokens = torch.randint(1, case["vocabulary"], (case["samples"], TOKENS + 1), generator=generator)
    tokens[(case["hinted"] + step) % case["samples"], 0] = 0
    return tokens[:, :-1], tokens[:, 1:]


def work(learner: ModuleType, cases: list[dict[str, Any]]) -> Any:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return [run(learner, case, groups[dist.get_rank()]) for case in cases]


def run(learner: ModuleType, case: dict[str, Any], alone: dist.ProcessGroup) -> Any:
    mesh = init_device_mesh("cpu", (case["data"], case["tensor"]), mesh_dim_names=("data", "tensor"))
    model = learner.Model(case["vocabulary"], case["width"], case["inner"], case["num_layers"])
    for name, p in model.named_parameters():
        p.data = weights(case)[name].clone()
        p.requires_grad_(name not in FROZEN)
    two = learner.TwoAxes(model, mesh)
    found: dict[str, Any] = {"shapes": {name: list(p.shape) for name, p in model.named_parameters()}}
    found["trained"] = [name for name, p in model.named_parameters() if p.requires_grad]
    if set(found["shapes"]) != set(weights(case)):
        return found
    found["bytes"] = storage_bytes(model)
    found["start"] = two.whole(detached(model))
    optimizer, steps = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **OPTIONS), []
    for step in range(case["steps"]):
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=alone)
        loss = two.backward(*batch(case, step))
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=alone)
        local = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        gradients = two.whole(in_order(local))
        norm = two.clip(case["max_norm"])
        after = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        numbers = {"loss": float(loss), "norm": float(norm), "before": local, "after": after}
        steps.append(numbers | {"gradients": gradients})
    return found | {"steps": steps, "weights": two.whole(detached(model))}


def in_order(named: Table) -> Table:
    """Leave out what some other rank has not got, so that all ranks ask for the same tensors."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, list(named))
    return {name: value for name, value in named.items() if all(name in names for names in everyone)}


def detached(model: nn.Module) -> Table:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def storage_bytes(model: nn.Module) -> int:
    """Return the bytes of the memory behind the parameters."""
    storages = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())
