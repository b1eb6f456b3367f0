"""All that a run would need to go on as if it had never stopped, gathered and put back."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frog.checkpoint import Checkpoint
from frog.model import TinyTransformer
from frog.parallel import FlatParameters
from frog.train.optimizer import named_state


class TrainState:
    """The state of a run: tensors (weights, optimizer), scalars (steps, tokens, order, loss scale), random generators.

    The position in the data is the step itself.
    """

    def __init__(
        self,
        model: TinyTransformer,
        flat: FlatParameters,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
    ) -> None:
        weights = {f"model/{name}": parameter.detach() for name, parameter in model.named_parameters()}
        self.tensors: dict[str, Tensor] = {**weights, **named_state(optimizer, flat)}
        self._scaler = scaler
        self.step = 0
        self.tokens = 0

    def scalars(self, order_link: str) -> dict[str, Any]:
        """What a manifest holds beside the tensors."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "order_sha256": order_link,
            "scaler": self._scaler.state_dict(),
        }

    def load(self, checkpoint: Checkpoint, rank: int) -> str:
        """Take everything over from a checkpoint of any world; return the link of its data order."""
        checkpoint.load_into(self.tensors)
        own = checkpoint.load_own(rank)
        if own is not None:
            restore_generators(own)
        state = checkpoint.state
        self.step, self.tokens = int(state["step"]), int(state["tokens"])
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        return str(state["order_sha256"])


def generators() -> dict[str, Tensor]:
    """The states of this rank's random generators, as bytes."""
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng/cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: dict[str, Tensor]) -> None:
    """The inverse of `generators`."""
    torch.set_rng_state(states["rng/cpu"])
    if torch.cuda.is_available() and "rng/cuda" in states:
        torch.cuda.set_rng_state(states["rng/cuda"])


def weights_sha256(model: torch.nn.Module) -> str:
    """Hex SHA-256 of all weights, by name: two models with the same are bitwise the same."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parameter.detach().float().cpu().numpy()).data)
    return digest.hexdigest()
