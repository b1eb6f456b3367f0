"""Compare the learner's description of each file with the tensors written to it."""

from collections.abc import Callable
from typing import Any

import torch
from ranks import make_states
from torch import Tensor

from frog.learn.grader.grade import Grade


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}).values[0]
    if found["ran"]:
        text = "One checkpoint contained a small program next to its weights. describe ran it, and it created a folder."
        grade.reject("runs-code", text)
    for name, state in make_states(grade.seed).items():
        check_good(grade, name, found["good"][name], state, found["sizes"][name])
    for name, said in found["bad"].items():
        what = name.removesuffix(".pt").replace("-", " ")
        if not isinstance(said, list):
            grade.reject(
                "unknown", f"describe accepted a file that is not a safe checkpoint ({what}): {str(said)[:100]}."
            )
        if said[0] != "ValueError":
            text = f"For a file that is not a safe checkpoint ({what}), expected ValueError, got {said[0]}: {said[1]}."
            grade.reject("bad-file-crashes", text)
    text = ", ".join(f"{name} step {value['step']}" for name, value in found["good"].items())
    grade.measured("described", text)
    grade.measured("refused", f"{len(found['bad'])} files, one of which would have run a program")
    grade.predicted("mixed-bytes", 664_192 * (2 + 2 * 4))


def check_good(grade: Grade, name: str, said: Any, state: dict[str, Any], size: int) -> None:
    expected = truth(state)
    if isinstance(said, list):
        grade.reject("unknown", f"{name} is a complete checkpoint, but describe raised {said[0]}: {said[1]}.")
    if not isinstance(said, dict) or said.keys() != expected.keys():
        keys = ", ".join(map(str, said)) if isinstance(said, dict) else type(said).__name__
        grade.reject("unknown", f"{name}: expected the keys {', '.join(expected)}; found {keys}.")
    for key, right in expected.items():
        value = said[key]
        if value != right:
            text = f"{name}: your {key} is {value}, expected {right}."
            grade.reject(reason(key, value, state, size, expected), text)


def reason(key: str, value: Any, state: dict[str, Any], size: int, expected: dict[str, Any]) -> str:
    """Return the misconception that gives this value."""
    model = state["model"].values()
    averages = list(state.get("optimizer", {"state": {}})["state"].values())
    steps = sum(slots["step"].nbytes for slots in averages)
    numbers = sum(slots["exp_avg"].numel() for slots in averages)
    beliefs = {
        "weights": {"tied-twice": [sum(tensor.numel() for tensor in model)]},
        "weight_bytes": {
            "tied-twice": [sum(tensor.nbytes for tensor in model)],
            "four-bytes-each": [4 * expected["weights"]],
            "file-is-weights": [size],
        },
        "average_bytes": {
            "steps-are-averages": [expected["average_bytes"] + steps],
            "four-bytes-each": [2 * width * numbers for width in (2, 4, 8)],
            "file-is-weights": [size - expected["weight_bytes"]],
        },
    }
    for belief, values in beliefs.get(key, {}).items():
        if value in values:
            return belief
    if key == "not_finite" and isinstance(value, list):
        return reason_for_names(value, state["model"], expected[key])
    return "unknown"


def reason_for_names(value: list[Any], model: dict[str, Tensor], right: list[str]) -> str:
    sums = (Tensor.sum, Tensor.mean, lambda t: t.float().sum(), lambda t: t.abs().sum(), lambda t: t.double().sum())
    if value in (named(model, lambda t: t.isnan().any()), named(model, lambda t: t.sum().isnan())):
        return "nan-alone"
    if any(value == named(model, lambda t, add=add: not add(t).isfinite()) for add in sums):
        return "sum-for-all"
    in_file = [name for name in model if name in right]
    if right and value in ([right[0]], [in_file[0]]):
        return "first-bad-only"
    once = {model[name].data_ptr(): name for name in right}
    if value != right and value in (
        sorted(once.values()),
        sorted({model[n].data_ptr(): n for n in right[::-1]}.values()),
    ):
        return "named-once"
    return "unknown"


def named(model: dict[str, Tensor], is_bad: Callable[[Tensor], Any]) -> list[str]:
    return sorted(name for name, tensor in model.items() if is_bad(tensor))


def truth(state: dict[str, Any]) -> dict[str, Any]:
    """Compute the description from the tensors themselves; tied tensors share their memory."""
    own: list[Tensor] = list({tensor.data_ptr(): tensor for tensor in state["model"].values()}.values())
    slots = state.get("optimizer", {"state": {}})["state"].values()
    return {
        "step": state["step"],
        "weights": sum(tensor.numel() for tensor in own),
        "weight_bytes": sum(tensor.nbytes for tensor in own),
        "average_bytes": sum(one["exp_avg"].nbytes + one["exp_avg_sq"].nbytes for one in slots),
        "not_finite": sorted(n for n, t in state["model"].items() if not torch.isfinite(t).all()),
    }
