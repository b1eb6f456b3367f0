"""Write files of several kinds, some of which are not checkpoints, and describe each with the learner's code."""

import math
import os
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

MARK = "the-file-ran-its-code"


class Program:
    """An object that creates a folder when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (MARK,)


def make_model(seed: int, dtype: torch.dtype, tied: bool, bad: bool) -> dict[str, Tensor]:
    """A state dict."""
    numbers, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    V, D, F = numbers.randint(11, 19), numbers.randint(4, 9), numbers.randint(10, 18)
    shapes = {"embed_tokens": (V, D), "up_proj": (F, D), "down_proj": (D, F), "norm": (D,), "last_norm": (D,)}
    model = {f"{name}.weight": torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    model["up_proj.weight"][0, :2] = torch.finfo(dtype).max  # finite; their sum is not
    for name in ("norm.weight", "last_norm.weight"):
        model[name] = torch.ones(D, dtype=dtype)  # two tensors with equal values
    embed = model["embed_tokens.weight"]
    model["lm_head.weight"] = embed.detach() if tied else embed.clone()  # as state_dict() does: an object for each name
    if bad:
        model["up_proj.weight"][1, 2] = math.inf
        model["norm.weight"][0] = math.nan
        model["down_proj.weight"][0, 1] = -math.inf
        embed[2, 1] = math.nan
    return model


def make_optimizer(model: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Any]:
    """Return AdamW's state dict, with averages of a separate type."""
    own = [tensor for name, tensor in model.items() if name != "lm_head.weight"]
    state = {
        number: {
            "step": torch.tensor(3.0),
            "exp_avg": torch.zeros(tensor.shape, dtype=dtype),
            "exp_avg_sq": torch.zeros(tensor.shape, dtype=dtype),
        }
        for number, tensor in enumerate(own)
    }
    return {"state": state, "param_groups": [{"lr": 1e-3, "params": list(state)}]}


def make_states(seed: int) -> dict[str, dict[str, Any]]:
    """Draw the states of the valid checkpoints, by file name."""
    step = random.Random(seed).randint(100, 9999)
    plain = make_model(seed, torch.float32, False, False)
    mixed = make_model(seed + 1, torch.bfloat16, True, False)
    broken = make_model(seed + 2, torch.float32, True, True)
    return {
        "plain.pt": {"step": step, "model": plain, "optimizer": make_optimizer(plain, torch.float32)},
        "weights.pt": {"step": step + 1, "model": make_model(seed + 3, torch.float64, False, False)},
        "mixed.pt": {"step": step + 2, "model": mixed, "optimizer": make_optimizer(mixed, torch.float32)},
        "broken.pt": {"step": step + 3, "model": broken, "optimizer": make_optimizer(broken, torch.float32)},
    }


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    states = make_states(case["seed"])
    for name, state in states.items():
        torch.save(state, name)
    whole = Path("plain.pt").read_bytes()
    Path("cut-off.pt").write_bytes(whole[: len(whole) // 2])
    Path("empty.pt").write_bytes(b"")
    Path("text.pt").write_text("step: 7\n")
    torch.save([1, 2, 3], "a-list.pt")
    torch.save({"step": 7, "weights": {}}, "other-names.pt")
    torch.save({"step": 7, "model": states["plain.pt"]["model"], "extra": Program()}, "with-a-program.pt")
    found = {"good": {name: describe(learner, name) for name in states}, "sizes": {}, "bad": {}}
    found["sizes"] = {name: Path(name).stat().st_size for name in states}
    for name in ("cut-off.pt", "empty.pt", "text.pt", "a-list.pt", "other-names.pt", "with-a-program.pt"):
        found["bad"][name] = describe(learner, name)
    return found | {"ran": Path(MARK).exists()}


def describe(learner: ModuleType, name: str) -> Any:
    """Return the learner's description of a file, or the type and text of its error."""
    try:
        return learner.describe(Path(name))
    except NotImplementedError:
        raise
    except ValueError as error:
        return ["ValueError", str(error)[:100]]
    except Exception as error:
        return [type(error).__name__, str(error).split("\n")[0][:100]]
