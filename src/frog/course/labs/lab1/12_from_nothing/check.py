"""Losses and weights of every start against those of the plain loop, bit for bit."""

from typing import Any

import torch
from ranks import EVERY, NUM_STEPS, SHORTER, Model, batch
from torch import Tensor
from torch.nn import functional as F

from frog.grader.grade import Grade

LOST = {
    "weights": "weights-lost",
    "buffers": "buffers-lost",
    "averages": "optimizer-lost",
    "random numbers": "random-state-lost",
}


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}, seconds=8).values[0]
    check_loop(grade, found["never"], plain_loop(grade.seed))
    oracle = found["never"]
    check_again(grade, found["again"], found["longer"], oracle)
    for start in found["killed"]:
        last = (start["step"] - 1) // EVERY * EVERY
        check_start(grade, start, oracle, last)
    longer = {"at": f"step {SHORTER + 1}, as its num_steps was {SHORTER}", **found["longer"]}
    check_start(grade, longer, oracle, SHORTER)
    for start in found["pictures"]:
        check_picture(grade, start, oracle)
    starts = len(found["killed"]) + len(found["pictures"])
    grade.measured("starts after a kill", f"{starts}, each to the last bit as if there had been none")
    grade.measured("loss", f"{oracle['losses'][0]:.4f} at step 1, {oracle['losses'][-1]:.4f} at step {NUM_STEPS}")
    grade.predicted("steps-computed", 1050)
    grade.note("Now a real one: python scripts/train_tiny_transformer.py, Ctrl-C, --resume.")


def check_loop(grade: Grade, found: dict[str, Any], oracle: dict[str, Any]) -> None:
    """Never killed."""
    if found["error"]:
        grade.reject("unknown", f"A run in an empty folder failed: {found['error']}.")
    wanted = list(range(1, NUM_STEPS + 1))
    if found["taken"] != wanted:
        grade.reject("not-the-loop", f"A run of {NUM_STEPS} steps took the batches {found['taken']}.")
    step = first_difference(found["losses"], oracle["losses"], 1e-4)
    if step is not None:
        text = f"Never killed: {pair(found['losses'], oracle['losses'], step, 'the plain loop in training mode')}."
        others = plain_loop(grade.seed, training=False)["losses"]
        is_eval = first_difference(found["losses"], others, 1e-4) is None
        grade.reject("left-in-eval" if is_eval else "not-the-loop", text)
    grade.compare(found["weights"], oracle["weights"], f"never killed, weights after step {NUM_STEPS}:", 1e-3, 1e-4)


def check_again(grade: Grade, found: dict[str, Any], longer: dict[str, Any], oracle: dict[str, Any]) -> None:
    """Called once more when the run is complete; `longer`: the start after a complete run of one digit."""
    if found["taken"] == list(range(1, NUM_STEPS + 1)):
        text = f"Called again in the folder of a complete run, train began at step 1 and made all {NUM_STEPS} steps."
        grade.reject("starts-over", text)
    if found["taken"] == list(range(NUM_STEPS // EVERY * EVERY + 1, NUM_STEPS + 1)):
        text = f"A checkpoint every {EVERY} steps, {NUM_STEPS} steps, all made; called again, train made the steps"
        text = f"{text} {', '.join(map(str, found['taken']))} once more."
        if longer["taken"][:1] == [SHORTER + 1]:
            grade.reject("sorted-as-text", f"{text} Called again after a run of {SHORTER}, it made none twice.")
        grade.reject("last-step-unsaved", text)
    if found["taken"] == [NUM_STEPS]:
        grade.reject("step-off-by-one", f"Called again on a complete run, train made step {NUM_STEPS} again.")
    if found["taken"]:
        text = f"Called again on a complete run of {NUM_STEPS} steps, train took the batches {found['taken']}."
        grade.reject("trains-again", text)
    check_losses(grade, found, oracle, "Called again on a complete run")


def check_start(grade: Grade, found: dict[str, Any], oracle: dict[str, Any], last: int) -> None:
    """The start after a kill in a step; the last checkpoint was of step `last`."""
    about = f"Killed in {found['at']}, started again"
    if found["error"]:
        grade.reject("unknown", f"{about}: {found['error']}.")
    first = found["taken"][0] if found["taken"] else None
    text = f"{about}: the last checkpoint should be of step {last}, the first batch was that of step {first}."
    if first == 1 and last:
        grade.reject("not-every-n", text)
    if first is not None and first == last:
        grade.reject("step-off-by-one", text)
    if first is not None and first <= last:
        grade.reject("not-every-n", text)
    saved_on_the_way_out = first == found.get("step") and first_difference(found["losses"], oracle["losses"]) is None
    if first != last + 1 and not saved_on_the_way_out:
        grade.reject("step-off-by-one", text)
    check_losses(grade, found, oracle, about)


def check_losses(grade: Grade, found: dict[str, Any], oracle: dict[str, Any], about: str) -> None:
    losses = found["losses"]
    if isinstance(losses, list) and len(losses) < NUM_STEPS and losses == oracle["losses"][NUM_STEPS - len(losses) :]:
        text = f"{about}: train returned {len(losses)} losses, of a run of {NUM_STEPS} steps."
        grade.reject("losses-lost", text)
    extra = len(losses) - NUM_STEPS if isinstance(losses, list) else 0
    if extra > 0 and any(losses[:n] + losses[n + extra :] == oracle["losses"] for n in range(NUM_STEPS)):
        text = f"{about}: train returned {len(losses)} losses, of a run of {NUM_STEPS} steps."
        grade.reject("dead-past-kept", f"{text} A step made before the kill, and again after it, has two.")
    step = first_difference(losses, oracle["losses"])
    if step is not None:
        check_state(grade, found, oracle, f"{about}: {pair(losses, oracle['losses'], step)}.")
    for name, weight in oracle["weights"].items():
        if not torch.equal(found["weights"][name], weight):
            what, id = ("buffer", "buffers-lost") if name == "mean" else ("weight", "weights-lost")
            text = f"all losses are right; the {what} {name} is not what it was when the run was complete."
            grade.reject(id, f"{about}: {text}")


def check_state(grade: Grade, found: dict[str, Any], oracle: dict[str, Any], text: str) -> None:
    """Losses are wrong: what did the first step of this start read that the run never killed did not?"""
    if found["taken"] and found["taken"][0] <= NUM_STEPS:
        step = found["taken"][0]
        here, there = found["read"][0], oracle["read"][step - 1]
        for part, id in LOST.items():
            if not same(here[part], there[part]):
                grade.reject(id, f"{text} When step {step} began, the {part} were not those of the run never killed.")
    grade.reject("unknown", text)


def same(found: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)


def check_picture(grade: Grade, found: dict[str, Any], oracle: dict[str, Any]) -> None:
    """The start after a kill in a save."""
    about = f"Killed in {found['at']}; started again"
    if found["error"]:
        grade.reject("half-a-checkpoint", f"{about}: {found['error']}.")
    if first_difference(found["losses"], oracle["losses"]) is not None or not same(found["weights"], oracle["weights"]):
        grade.reject("half-a-checkpoint", f"{about}: losses or weights are not those of a run never killed.")
    if found["taken"] and found["taken"][0] == 1 and found["before"]:
        text = f"{about}: it began at step 1, though a checkpoint of step {found['before']} had been saved."
        grade.reject("half-a-checkpoint", text)


def first_difference(found: Any, expected: list[float], rtol: float = 0.0) -> int | None:
    """The number of the first step whose loss is another."""
    if not isinstance(found, list):
        return 1
    pairs = zip(found, expected, strict=False)
    step = next((n for n, (a, b) in enumerate(pairs, start=1) if not abs(a - b) <= rtol * b), None)
    return step if step or len(found) == len(expected) else min(len(found), len(expected)) + 1


def pair(found: Any, expected: list[float], step: int, of: str = "a run never killed") -> str:
    if not isinstance(found, list) or step > len(found):
        return f"train returned {len(found) if isinstance(found, list) else type(found).__name__} losses of {NUM_STEPS}"
    if step > len(expected):
        return f"train returned {len(found)} losses of {NUM_STEPS}"
    return f"the loss of step {step} was {found[step - 1]:.6f}, and of {of} {expected[step - 1]:.6f}"


def plain_loop(seed: int, training: bool = True) -> dict[str, Any]:
    """The six lines; or without dropout, as in eval mode."""
    torch.manual_seed(seed + 17)
    model = Model(seed).train(training)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.05), []
    for step in range(1, NUM_STEPS + 1):
        inputs, labels = batch(seed, step)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weights": dict(model.state_dict())}
