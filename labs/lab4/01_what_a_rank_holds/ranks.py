"""Networks with tied, frozen and float32 parts, and what their training really holds."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Network(nn.Module):
    """A small language model without a forward pass: its tensors are all that counts here."""

    def __init__(self, vocabulary: int, context: int, width: int, hidden: int, dtype: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).tril(), persistent=False)
        self.register_buffer("seen", torch.zeros(vocabulary))
        self.to(DTYPES[dtype])
        self.norm = nn.LayerNorm(width)  # float32, whatever the others are
        self.positions.weight.requires_grad_(False)


def make_layers(layers: list[Any], dtype: str) -> nn.Sequential:
    """layers: [in, out, is trained] for a linear layer, or "gelu"."""
    made = [nn.GELU() if one == "gelu" else nn.Linear(*one[:2]).requires_grad_(one[2]) for one in layers]
    return nn.Sequential(*made).to(DTYPES[dtype])


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Return the learner's predictions. Nothing is allocated: each model is on the device "meta"."""
    states, activations = [], []
    for one in case["states"]:
        with torch.device("meta"):
            network = Network(**one["network"])
        states.append(learner.state_bytes(network, one["optimizer"], one["has_masters"]))
    for one in case["activations"]:
        with torch.device("meta"):
            layers = make_layers(one["layers"], one["dtype"])
        activations.append(learner.activation_bytes(layers, one["rows"]))
    return {"states": states, "activations": activations}


# ---- measured on real tensors, by the judge --------------------------------------------------------------------------


def held(tensors: list[Tensor]) -> int:
    """Return the bytes of the memory behind these tensors; memory that two share counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def measure_state(model: nn.Module, optimizer: str, has_masters: bool) -> dict[str, int]:
    """Train until the second backward has ended, and return the bytes held then."""
    trained = [p for p in model.parameters() if p.requires_grad]
    is_copied = [has_masters and p.dtype != torch.float32 for p in trained]
    updated = [p.detach().float() if copied else p for p, copied in zip(trained, is_copied, strict=True)]
    if optimizer == "Adam":
        used: torch.optim.Optimizer = torch.optim.Adam(updated)
    else:
        used = torch.optim.SGD(updated, lr=0.1, momentum=0.9 if "momentum" in optimizer else 0.0)
    for step in range(2):
        model.zero_grad()
        torch.stack([p.float().square().sum() for p in trained]).sum().backward()
        if step == 1:
            break
        for p, one in zip(trained, updated, strict=True):
            one.grad = p.grad.to(one.dtype)
        used.step()
        for p, one, copied in zip(trained, updated, is_copied, strict=True):
            if copied:
                p.data.copy_(one)
                one.grad = None
    kept = [t for state in used.state.values() for name, t in state.items() if name != "step" and t is not None]
    masters = [one for one, copied in zip(updated, is_copied, strict=True) if copied]
    return {
        "model": held([*model.parameters(), *model.buffers()]),
        "gradients": held([p.grad for p in model.parameters() if p.grad is not None]),
        "optimizer": held([*masters, *kept]),
    }


def measure_activations(layers: nn.Sequential, rows: int) -> int:
    """Run the forward pass and return the bytes that autograd keeps, without the parameters."""
    own = {p.untyped_storage().data_ptr() for p in layers.parameters()}
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor)
        return tensor

    inputs = torch.ones(rows, layers[0].in_features, dtype=layers[0].weight.dtype)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layers(inputs)
    return held(kept)
