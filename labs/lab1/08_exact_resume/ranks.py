"""Run a training that never stops, another that the learner's code captures, and a third that resumes it."""

import io
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STOP, END = 4, 9
"""Number of steps before the capture, and in total."""
NUM_SAMPLES, BATCH = 15, 5


class Model(nn.Module):
    """Two matrices with dropout between them; a buffer tracks the mean of the inputs and is subtracted from them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(6, 8, generator=generator) / 2)
        self.second = nn.Parameter(torch.randn(8, 3, generator=generator) / 2)
        self.register_buffer("mean", torch.zeros(6))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.8 * self.mean + 0.2 * x.mean(0)
        return self.dropout(torch.relu((x - self.mean) @ self.first)) @ self.second


class Loader:
    """Batches of samples, shuffled again from the seed in each epoch."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed + 1)
        self.x = torch.randn(NUM_SAMPLES, 6, generator=generator) + 1.0
        self.y = torch.randint(3, (NUM_SAMPLES,), generator=generator)
        self.seed, self.epoch, self.index = seed, 0, 0

    def next(self) -> tuple[Tensor, Tensor]:
        order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(self.seed + 7 * self.epoch))
        ids = order[self.index * BATCH :][:BATCH]
        self.index += 1
        if self.index * BATCH >= NUM_SAMPLES:
            self.epoch, self.index = self.epoch + 1, 0
        return self.x[ids], self.y[ids]


def make_objects(seed: int, init: int) -> tuple[Model, torch.optim.Optimizer, Loader]:
    model = Model(init)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05), Loader(seed)


def train(model: Model, optimizer: torch.optim.Optimizer, loader: Loader, step: int, end: int) -> list[float]:
    """Train up to step `end`; return the losses."""
    losses = []
    while step < end:
        step += 1
        optimizer.param_groups[0]["lr"] = 0.05 / step**0.5
        x, y = loader.next()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def picture(model: Model, optimizer: torch.optim.Optimizer, loader: Loader) -> dict[str, Any]:
    """Return copies of everything that the next step reads."""
    state = optimizer.state
    return {
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "buffers": {name: b.detach().clone() for name, b in model.named_buffers()},
        "optimizer": {
            f"{name} {key}": torch.as_tensor(value).clone()
            for name, p in model.named_parameters()
            for key, value in state.get(p, {}).items()
        },
        "position": [loader.epoch, loader.index],
        "random": torch.get_rng_state().clone(),
        "training": model.training,
    }


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Run the trainings that never stop; return them, and the captured state of one as a file."""
    seed = case["seed"]
    never = run(seed, None)
    captured = run(seed, learner)
    state, file, problem = captured.pop("state"), io.BytesIO(), ""
    other = not_plain(state, "")
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error).split('.')[0][:150]}"
    return {"never": never, "captured": captured, "problem": problem, "other": other, "file": file.getvalue()}


def not_plain(value: Any, place: str) -> str:
    """Describe the first value that is not a dict, list, tensor, number or string; "" if there is none."""
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return next((text for key, one in pairs if (text := not_plain(one, f"{place}[{key!r}]"))), "")
    plain = value is None or isinstance(value, Tensor | bool | int | float | str)
    return "" if plain else f"{type(value).__name__} at {place or 'the top'}"


def resume(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Restore new objects in another process; return their state, and the rest of the run."""
    seed, state = case["seed"], torch.load(io.BytesIO(case["file"]), weights_only=True)
    torch.manual_seed(seed + 99)
    model, optimizer, loader = make_objects(seed, seed + 5)
    step = learner.restore(state, model, optimizer, loader)
    resumed = {"at stop": picture(model, optimizer, loader), "step": step}
    if step == STOP:
        resumed["losses"] = train(model, optimizer, loader, step, END)
        resumed["at end"] = picture(model, optimizer, loader)
    return resumed


def run(seed: int, learner: ModuleType | None) -> dict[str, Any]:
    """Run a training to its end, with a capture after STOP steps if there is a learner."""
    torch.manual_seed(seed + 3)
    model, optimizer, loader = make_objects(seed, seed)
    losses = train(model, optimizer, loader, 0, STOP)
    found: dict[str, Any] = {"at stop": picture(model, optimizer, loader)}
    if learner is not None:
        found["state"] = learner.capture(model, optimizer, loader, STOP)
    found["after stop"] = picture(model, optimizer, loader)
    found["losses"] = losses + train(model, optimizer, loader, STOP, END)
    found["at end"] = picture(model, optimizer, loader)
    return found
