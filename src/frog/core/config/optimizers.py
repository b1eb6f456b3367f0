"""The optimizers, one entry each, and the [optimizer] section of a run file.

The run file's checks, checkpoints and the memory formulas read these entries, and none of them needs torch. To add an
optimizer, add its entry and its settings here, and its file in `frog/optim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from frog.core.config.strategies import or_list
from frog.core.schema import shortened
from frog.core.units import Unit


@dataclass(frozen=True)
class OptimizerEntry:
    """The facts about an optimizer that Frog knows without running it."""

    module: str
    """The file whose `build` creates the optimizer."""
    state: Callable[[OptimizerConfig], tuple[str, ...]]
    """The names of its float32 state per element, in the optimizer's own spelling.

    A checkpoint stores each as `optimizer/<name>/<parameter>`.
    """
    counts_steps: bool = False
    """True if the optimizer counts steps per tensor, in a state called `step`."""
    needs_whole_matrices: bool = False
    """True if the update of an element depends on its whole matrix. The run file's checks then reject strategies that
    split matrices."""
    proof_rate: float = 1e-3
    """The learning rate of `frog prove`: five steps must change the weights by much more than the tolerance."""


OPTIMIZERS: dict[str, OptimizerEntry] = {
    "adamw": OptimizerEntry(
        module="frog.train.optim.adamw", state=lambda config: ("exp_avg", "exp_avg_sq"), counts_steps=True
    ),
    "sgd": OptimizerEntry(
        module="frog.train.optim.sgd",
        state=lambda config: ("momentum_buffer",) if config.momentum > 0 else (),
        proof_rate=0.1,
    ),
    "muon": OptimizerEntry(
        module="frog.train.optim.muon",
        state=lambda config: ("exp_avg", "exp_avg_sq"),
        counts_steps=True,
        needs_whole_matrices=True,
        proof_rate=5e-4,
    ),
}


@dataclass(frozen=True)
class OptimizerConfig:
    """[optimizer]: the optimizer and its schedule, a linear warm-up and a cosine to `min_learning_rate`"""

    name: str = "adamw"
    """"adamw"; "sgd": stochastic gradient descent, with momentum if `momentum` is above 0; "muon": orthogonal updates
    of the layers' matrices, AdamW for all other parameters."""
    learning_rate: Annotated[float, Unit()] = 3e-3
    """Learning rate after the warm-up."""
    min_learning_rate: Annotated[float, Unit()] = 3e-4
    """Learning rate at the last step."""
    warmup_steps: Annotated[int, Unit("steps")] = 20
    """Steps in which the learning rate rises from 0."""
    beta1: Annotated[float, Unit()] = 0.9
    """adamw, muon: decay of AdamW's first moment."""
    beta2: Annotated[float, Unit()] = 0.95
    """adamw, muon: decay of AdamW's second moment."""
    eps: Annotated[float, Unit()] = 1e-8
    """adamw, muon: added to the square root of the second moment."""
    momentum: Annotated[float, Unit()] = 0.9
    """sgd: decay of the sum of gradients; with 0 the optimizer keeps no state."""
    muon_momentum: Annotated[float, Unit()] = 0.95
    """muon: decay of the mean gradient of the layers' matrices."""
    muon_rate_factor: Annotated[float, Unit()] = 7.0
    """muon: the learning rate of the layers' matrices, as a multiple of `learning_rate`."""
    weight_decay: Annotated[float, Unit()] = 0.1
    """Decay of matrices; other parameters have none. adamw and muon decay the weights themselves; sgd adds the decay to
    the gradient."""
    grad_clip: Annotated[float | Literal["off"], Unit("norm")] = 1.0
    """Largest allowed norm of the gradient."""

    @property
    def entry(self) -> OptimizerEntry:
        """The optimizer's entry in `OPTIMIZERS`; `problems` reports a name that has none."""
        return OPTIMIZERS[self.name]

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the optimizer's state per element."""
        return self.entry.state(self)

    def problems(self) -> list[str]:
        """Return every rule that these settings break."""
        problems = []
        if self.name not in OPTIMIZERS:
            problems.append(f"optimizer.name={shortened(repr(self.name))}: must be {or_list(map(repr, OPTIMIZERS))}")
        problems += [
            f"optimizer.{name}={value}: must be at least 0"
            for name in ("learning_rate", "min_learning_rate", "muon_rate_factor", "warmup_steps", "weight_decay")
            if (value := getattr(self, name)) < 0
        ]
        problems += [
            f"optimizer.{name}={value}: must lie in [0, 1)"
            for name in ("beta1", "beta2", "momentum", "muon_momentum")
            if not 0 <= (value := getattr(self, name)) < 1
        ]
        if self.eps <= 0:
            problems.append(f"optimizer.eps={self.eps}: must be above 0")
        if self.grad_clip != "off" and self.grad_clip <= 0:
            problems.append(f'optimizer.grad_clip={self.grad_clip}: must be above 0, or "off"')
        return problems
