"""What the resumed run has at the stop, part by part, and its losses and weights to the last bit."""

from typing import Any

import torch
from ranks import END, STOP
from torch import Tensor

from frog.grader.grade import Grade

LOST = {"weights": "weights-lost", "buffers": "buffers-lost", "optimizer": "optimizer-lost"}


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}).values[0]
    never, captured, resumed = value["never"], value["captured"], value["resumed"]
    check_capture(grade, never, captured)
    if value["problem"]:
        text = f"torch.load with weights_only, which runs no code from a file, refuses it: {value['problem']}."
        grade.reject("not-plain", text)
    check_stop(grade, never, captured, resumed)
    for place, (found, right) in enumerate(zip(resumed["losses"], never["losses"][STOP:], strict=True)):
        if found != right:
            text = f"Loss of step {STOP + place + 1}: {found:.6f}, of the run never stopped {right:.6f}."
            grade.reject("unknown", text)
    for name, weight in never["at end"]["weights"].items():
        if not torch.equal(resumed["at end"]["weights"][name], weight):
            grade.reject("unknown", f"The weight {name} is another after step {END} than in the run never stopped.")
    losses = ", ".join(f"{loss:.4f}" for loss in resumed["losses"])
    grade.measured(f"losses of steps {STOP + 1} to {END}", f"{losses}: those of the run never stopped, bit for bit")
    grade.predicted("checkpoint-bytes", 664_192 * (4 + 8))


def check_capture(grade: Grade, never: dict[str, Any], captured: dict[str, Any]) -> None:
    """The run that was captured goes on as if it had not been."""
    for part, before in captured["at stop"].items():
        if not same(before, captured["after stop"][part]):
            named = {"training": "mode", "random": "random numbers", "position": "place in the data"}.get(part, part)
            grade.reject("capture-disturbs", f"After capture the run's own {named} was another than before.")
    for place, (found, right) in enumerate(zip(captured["losses"], never["losses"], strict=True)):
        if found != right:
            text = f"The loss of step {place + 1} was {found:.5f}; without your capture {right:.5f}."
            grade.reject("capture-disturbs", text)


def check_stop(grade: Grade, never: dict[str, Any], captured: dict[str, Any], resumed: dict[str, Any]) -> None:
    """What the new objects hold after restore, held against the old ones at the stop."""
    stop, end, found = never["at stop"], captured["at end"], resumed["at stop"]
    loss = ""
    if "losses" in resumed:
        pairs = list(zip(resumed["losses"], never["losses"][STOP:], strict=True))
        step = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), 0)
        loss = f" Step {STOP + 1 + step} had the loss {pairs[step][0]:.4f}; never stopped {pairs[step][1]:.4f}."
    for part, id in LOST.items():
        if same(found[part], stop[part]):
            continue
        what = "optimizer's averages" if part == "optimizer" else part
        if found[part].keys() == end[part].keys() and any(torch.equal(found[part][k], end[part][k]) for k in end[part]):
            text = f"After restore the {what} were those of step {END}, {END - STOP} steps after capture."
            grade.reject("shares-memory", text)
        text = f"After restore the {what} were not those of step {STOP}: {difference(found[part], stop[part])}."
        grade.reject(id, text + loss)
    if resumed["step"] != STOP:
        grade.reject("step-lost", f"Captured after step {STOP}; restore returned {resumed['step']!r}.")
    if found["position"] != stop["position"]:
        was, now = stop["position"], found["position"]
        text = f"The loader stood at epoch {was[0]}, batch {was[1]}; after restore at epoch {now[0]}, batch {now[1]}."
        grade.reject("position-lost", text + loss)
    if not torch.equal(found["random"], stop["random"]):
        grade.reject("random-state-lost", f"Weights, averages, position are right; dropout drew others.{loss}")


def difference(found: dict[str, Tensor], right: dict[str, Tensor]) -> str:
    if not found:
        return f"there were none, of {len(right)}"
    if missing := sorted(right.keys() - found.keys()):
        return f"{missing[0]} was missing"
    name = next(name for name in right if not torch.equal(found[name], right[name]))
    return f"{name} was up to {float((found[name] - right[name]).abs().max()):.3g} away"


def same(found: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return found.keys() == right.keys() and all(same(found[key], right[key]) for key in right)
    if isinstance(right, Tensor):
        return found.shape == right.shape and torch.equal(found, right)
    return bool(found == right)
