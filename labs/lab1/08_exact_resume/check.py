"""Check the resumed run's state at the stop, part by part, then its losses and weights to the last bit."""

from typing import Any

import torch
from ranks import END, STOP
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import distinct_texts

LOST = {"weights": "weights-lost", "buffers": "buffers-lost", "optimizer": "optimizer-lost"}


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}).values[0]
    never, captured = value["never"], value["captured"]
    check_capture(grade, never, captured)
    if value["problem"]:
        text = f"torch.load with weights_only, which runs no code from a file, refuses the state: {value['problem']}."
        grade.reject("not-plain", text)
    if value["other"]:
        text = f"The state holds {value['other']}; dicts, lists, tensors, numbers and strings are allowed."
        grade.reject("not-plain", text)
    resumed = grade.call({"seed": grade.seed, "file": value["file"]}, work="resume").values[0]
    check_stop(grade, never, captured, resumed)
    for place, (found, right) in enumerate(zip(resumed["losses"], never["losses"][STOP:], strict=True)):
        if found != right:
            yours, expected = distinct_texts(found, right)
            text = f"Loss of step {STOP + place + 1}: {yours}. A run that never stopped has {expected}."
            grade.reject("unknown", text)
    for name, weight in never["at end"]["weights"].items():
        if not torch.equal(resumed["at end"]["weights"][name], weight):
            grade.reject(
                "unknown", f"After step {END} the weight {name} differs from that of a run that never stopped."
            )
    losses = ", ".join(f"{loss:.4f}" for loss in resumed["losses"])
    grade.measured(
        f"losses of steps {STOP + 1} to {END}", f"{losses}: the same as in a run that never stopped, bit for bit"
    )
    grade.predicted("checkpoint-bytes", 664_192 * (4 + 8))


def check_capture(grade: Grade, never: dict[str, Any], captured: dict[str, Any]) -> None:
    """Check that the captured run continues as if it had not been captured."""
    for part, before in captured["at stop"].items():
        if not same(before, captured["after stop"][part]):
            named = {"training": "mode", "random": "random numbers", "position": "place in the data"}.get(part, part)
            grade.reject("capture-disturbs", f"capture changed the {named} of the run itself.")
    for place, (found, right) in enumerate(zip(captured["losses"], never["losses"], strict=True)):
        if found != right:
            yours, expected = distinct_texts(found, right)
            text = f"The loss of step {place + 1} was {yours}; without your capture it is {expected}."
            grade.reject("capture-disturbs", text)


def check_stop(grade: Grade, never: dict[str, Any], captured: dict[str, Any], resumed: dict[str, Any]) -> None:
    """Compare the new objects after restore with the old ones at the stop."""
    stop, end, found = never["at stop"], captured["at end"], resumed["at stop"]
    loss = ""
    if "losses" in resumed:
        pairs = list(zip(resumed["losses"], never["losses"][STOP:], strict=True))
        step = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), 0)
        if pairs[step][0] != pairs[step][1]:
            yours, expected = distinct_texts(*pairs[step])
            loss = f" Step {STOP + 1 + step} had the loss {yours}; a run that never stopped has {expected}."
    for part, id in LOST.items():
        if same(found[part], stop[part]):
            continue
        what = "optimizer's averages" if part == "optimizer" else part
        if found[part].keys() == end[part].keys() and any(torch.equal(found[part][k], end[part][k]) for k in end[part]):
            text = f"After restore the {what} were those of step {END}, {END - STOP} steps after capture."
            grade.reject("shares-memory", text)
        text = f"After restore the {what} were not those of step {STOP}: {difference(found[part], stop[part])}."
        if (dtype := rounded_to(found[part], stop[part])) is not None:
            grade.reject("rounded", f"{text} All of them are the right values, rounded to {dtype}.{loss}")
        grade.reject(id, text + loss)
    if resumed["step"] != STOP:
        grade.reject("step-lost", f"Captured after step {STOP}; restore returned {resumed['step']!r}.")
    if found["position"] != stop["position"]:
        was, now = stop["position"], found["position"]
        text = (
            f"The loader was at epoch {was[0]}, batch {was[1]}; after restore it was at epoch {now[0]}, batch {now[1]}."
        )
        grade.reject("position-lost", text + loss)
    if not torch.equal(found["random"], stop["random"]):
        text = "After restore torch's random state was not the captured one, so dropout drew different numbers."
        grade.reject("random-state-lost", f"{text}{loss}")


def difference(found: dict[str, Tensor], right: dict[str, Tensor]) -> str:
    if not found:
        return f"none of the {len(right)} existed"
    if missing := sorted(right.keys() - found.keys()):
        return f"{missing[0]} was missing"
    name = next(name for name in right if not torch.equal(found[name], right[name]))
    return f"{name} was off by up to {float((found[name] - right[name]).abs().max()):.3g}"


def rounded_to(found: dict[str, Tensor], right: dict[str, Tensor]) -> str | None:
    """Return the type to which all of these were rounded, or None."""
    for dtype in (torch.bfloat16, torch.float16):
        if found.keys() == right.keys() and all(
            close_to(found[k], right[k].to(dtype).to(right[k].dtype)) for k in right
        ):
            return str(dtype).removeprefix("torch.")
    return None


def close_to(found: Tensor, rounded: Tensor) -> bool:
    return found.shape == rounded.shape and torch.allclose(found.to(rounded.dtype), rounded, rtol=1e-7, atol=0.0)


def same(found: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return found.keys() == right.keys() and all(same(found[key], right[key]) for key in right)
    if isinstance(right, Tensor):
        return found.shape == right.shape and torch.equal(found, right)
    return bool(found == right)
