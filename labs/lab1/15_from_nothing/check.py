"""Compare losses and weights of every start with those of the plain loop, bit for bit."""

from typing import Any, NoReturn

import torch
from ranks import EVERY, NUM_STEPS, SHORTER, Model, batch
from torch import Tensor
from torch.nn import functional as F

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts

LOST = {
    "weights": "weights-lost",
    "buffers": "buffers-lost",
    "averages": "optimizer-lost",
    "random numbers": "random-state-lost",
}


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}, seconds=8).values[0]
    check_loop(grade, found["never"], plain_loop(grade.seed))
    oracle = found["never"] | {"saved": found["saved"], "fresh": found["fresh"]}
    check_complete(grade, found["again"], found["longer"]["taken"][:1])
    for start in found["killed"]:
        last = (start["step"] - 1) // EVERY * EVERY
        check_start(grade, start, oracle, last)
    check_again(grade, found["again"], oracle)
    longer = {"at": f"step {SHORTER + 1}, because its num_steps was {SHORTER}", **found["longer"]}
    check_start(grade, longer, oracle, SHORTER)
    for start in found["pictures"]:
        check_picture(grade, start, oracle)
    starts = len(found["killed"]) + len(found["pictures"])
    grade.measured("starts after a kill", f"{starts}, each exact to the last bit")
    grade.measured("loss", f"{oracle['losses'][0]:.4f} at step 1, {oracle['losses'][-1]:.4f} at step {NUM_STEPS}")
    grade.predicted("steps-computed", 1050)
    grade.note("Now a real one: python scripts/train_tiny_transformer.py, Ctrl-C, --resume.")


def check_loop(grade: Grade, found: dict[str, Any], oracle: dict[str, Any]) -> None:
    """Never killed."""
    if found["error"]:
        grade.reject("unknown", f"A run in an empty folder failed: {found['error']}.")
    wanted = list(range(1, NUM_STEPS + 1))
    if found["taken"] != wanted:
        grade.reject("not-the-loop", f"A run of {NUM_STEPS} steps asked for the batches {found['taken']}.")
    check_rounded(grade, found["losses"], oracle["losses"])
    step = first_difference(found["losses"], oracle["losses"], 1e-4)
    if step is not None:
        text = f"Never killed: {pair(found['losses'], oracle['losses'], step, 'the plain loop in training mode')}."
        others = plain_loop(grade.seed, training=False)["losses"]
        is_eval = first_difference(found["losses"], others, 1e-4) is None
        grade.reject("left-in-eval" if is_eval else "not-the-loop", text)
    grade.compare(found["weights"], oracle["weights"], f"Never killed: after step {NUM_STEPS} the weights", 1e-3, 1e-4)


def check_rounded(grade: Grade, found: Any, expected: list[float]) -> None:
    """Reject rounded losses, in a resumed run or in one that was never killed."""
    if not isinstance(found, list) or len(found) != len(expected) or not all(isinstance(loss, float) for loss in found):
        return
    digits = next((n for n in range(1, 8) if all(round(loss, n) == loss for loss in found)), None)
    if digits is not None and all(abs(a - b) < 10**-digits for a, b in zip(found, expected, strict=True)):
        text = f"All losses have {count(digits, 'decimal')} at most: step 1 has {found[0]!r}, but {expected[0]!r}"
        grade.reject("losses-rounded", f"{text} was computed.")
    roundings = {f"{n} decimals": [round(loss, n) for loss in expected] for n in range(2, 8)}
    for dtype in (torch.bfloat16, torch.float16):
        rounded = torch.tensor(expected, dtype=torch.float64).to(dtype).tolist()
        roundings[str(dtype).removeprefix("torch.")] = rounded
    for how, rounded in roundings.items():
        ends = [n for n in range(1, len(found) + 1) if found == rounded[:n] + expected[n:]]
        if found != expected and ends:
            text = f"The losses of steps 1 to {ends[0]} are rounded to {how}: the loss of step 1 is {found[0]!r}"
            grade.reject("losses-rounded", f"{text}, but {expected[0]!r} was computed.")


def check_complete(grade: Grade, found: dict[str, Any], longer: list[int]) -> None:
    """Check a call on a complete run: the last checkpoint must have been saved, and must be found.

    `longer`: the first step of the start after a complete run of one digit.
    """
    if found["error"]:
        grade.reject("unknown", f"Called again on a complete run: {found['error']}.")
    if found["taken"] == list(range(1, NUM_STEPS + 1)):
        text = f"Called again in the folder of a complete run, train started at step 1 and took all {NUM_STEPS} steps."
        grade.reject("starts-over", text)
    if found["taken"] == list(range(NUM_STEPS // EVERY * EVERY + 1, NUM_STEPS + 1)):
        text = f"A complete run of {NUM_STEPS} steps had a checkpoint every {EVERY}. Called again, train took the steps"
        text = f"{text} {', '.join(map(str, found['taken']))} again."
        if longer == [SHORTER + 1]:
            grade.reject("sorted-as-text", f"{text} Called again after a run of {SHORTER}, it repeated none.")
        if longer == [SHORTER // EVERY * EVERY + 1]:
            text = f"{text} Called again after a run of {SHORTER}, it continued after step {SHORTER // EVERY * EVERY}."
            grade.reject("last-step-unsaved", text)


def check_again(grade: Grade, found: dict[str, Any], oracle: dict[str, Any]) -> None:
    """Check a call on a complete run, once the starts after kills are right."""
    if found["taken"]:
        text = f"Called again on a complete run of {NUM_STEPS} steps, train asked for the batches {found['taken']}."
        grade.reject("trains-again", text)
    check_losses(grade, found, oracle, "Called again on a complete run")


def check_start(grade: Grade, found: dict[str, Any], oracle: dict[str, Any], last: int) -> None:
    """Check the start after a kill in a step; `last` is the step of the last checkpoint."""
    about = f"Killed in {found['at']}, restarted"
    if found["error"]:
        grade.reject("unknown", f"{about}: {found['error']}.")
    first = found["taken"][0] if found["taken"] else None
    asked = f"train first asked for the batch of step {first}" if first is not None else "it asked for no batch"
    text = f"{about}: the last checkpoint should be that of step {last}, but {asked}."
    if last and found["taken"] == list(range(1, NUM_STEPS - last + 1)):
        steps = f"steps {last + 1} to {NUM_STEPS} remained, but it asked for batches 1 to {NUM_STEPS - last}"
        grade.reject("counts-from-its-start", f"{about}: {steps}.")
    if first is not None and first == last:
        grade.reject("step-off-by-one", text)
    if first is not None and first < last and last < SHORTER and last not in oracle["saved"]:
        saved = f"only after step {', '.join(map(str, oracle['saved']))}" if oracle["saved"] else "after no step"
        before = f"before step {NUM_STEPS} the folder changed {saved}"
        grade.reject("not-every-n", f"{text} In a run that was never killed, {before}.")
    saved_on_the_way_out = first == found.get("step") and first_difference(found["losses"], oracle["losses"]) is None
    if first != last + 1 and not saved_on_the_way_out:
        grade.reject("step-off-by-one" if first == last + 2 else "unknown", text)
    check_losses(grade, found, oracle, about)


def check_losses(grade: Grade, found: dict[str, Any], oracle: dict[str, Any], about: str) -> None:
    losses = found["losses"]
    if isinstance(losses, list) and len(losses) < NUM_STEPS and losses == oracle["losses"][NUM_STEPS - len(losses) :]:
        text = f"{about}: train returned {count(len(losses), 'loss', 'losses')} for a run of {NUM_STEPS} steps."
        grade.reject("losses-lost", text)
    extra = len(losses) - NUM_STEPS if isinstance(losses, list) else 0
    if extra > 0 and any(losses[:n] + losses[n + extra :] == oracle["losses"] for n in range(NUM_STEPS)):
        text = f"{about}: train returned {count(len(losses), 'loss', 'losses')} for a run of {NUM_STEPS} steps."
        grade.reject("dead-past-kept", f"{text} A step taken before the kill, and again after it, has two.")
    check_rounded(grade, losses, oracle["losses"])
    step = first_difference(losses, oracle["losses"])
    if step is not None:
        check_state(grade, found, oracle, f"{about}: {pair(losses, oracle['losses'], step)}.")
    for name, weight in oracle["weights"].items():
        if not torch.equal(found["weights"][name], weight):
            what, id = ("buffer", "buffers-lost") if name == "mean" else ("weight", "weights-lost")
            text = f"all losses are right; the {what} {name} differs from its value when the run was complete"
            if torch.equal(found["weights"][name], oracle["fresh"][f"{what}s"][name]):
                grade.reject(id, f"{about}: {text}, and equals that of a new model.")
            grade.reject("unknown", f"{about}: {text}.")


def check_state(grade: Grade, found: dict[str, Any], oracle: dict[str, Any], text: str) -> NoReturn:
    """Explain wrong losses by the state that the first step of this start read."""
    if found["taken"] and found["taken"][0] <= NUM_STEPS:
        step = found["taken"][0]
        here, there = found["read"][0], oracle["read"][step - 1]
        for part, id in LOST.items():
            if not same(here[part], there[part]):
                text = f"{text} When step {step} began, the {part} were not those of a run that was never killed"
                explain_part(grade, part, id, here[part], oracle, text)
    grade.reject("unknown", text)


def explain_part(
    grade: Grade, part: str, id: str, found: dict[str, Tensor], oracle: dict[str, Any], text: str
) -> NoReturn:
    """Explain a state that is wrong at the start: that of a new process, or of another step."""
    if same(found, oracle["fresh"][part]):
        grade.reject(id, f"{text}: they were those of a new process that has loaded nothing.")
    for step, read in enumerate(oracle["read"], 1):
        if same(found, read[part]):
            grade.reject("unknown", f"{text}: they were those at the start of step {step}.")
    grade.reject(id if part == "random numbers" else "unknown", f"{text}, nor those of a new process.")


def same(found: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)


def check_picture(grade: Grade, found: dict[str, Any], oracle: dict[str, Any]) -> None:
    """Check the start after a kill in a save."""
    about = f"Killed in {found['at']}, restarted"
    if found["error"]:
        when = f" after step {found['taken'][-1]} had begun" if found["taken"] else ", before the first step"
        id = "unknown" if found["taken"] else "half-a-checkpoint"
        grade.reject(id, f"{about}{when}: {found['error']}.")
    if first_difference(found["losses"], oracle["losses"]) is not None or not same(found["weights"], oracle["weights"]):
        grade.reject("half-a-checkpoint", f"{about}: losses or weights are not those of a run that was never killed.")
    if found["taken"] and found["taken"][0] == 1 and found["before"]:
        text = f"{about}: it started at step 1, although a checkpoint of step {found['before']} had been saved."
        grade.reject("half-a-checkpoint", text)


def first_difference(found: Any, expected: list[float], rtol: float = 0.0) -> int | None:
    """Return the number of the first step whose loss differs."""
    if not isinstance(found, list):
        return 1
    pairs = zip(found, expected, strict=False)
    step = next((n for n, (a, b) in enumerate(pairs, start=1) if not abs(a - b) <= rtol * b), None)
    return step if step or len(found) == len(expected) else min(len(found), len(expected)) + 1


def pair(found: Any, expected: list[float], step: int, of: str = "a run that was never killed") -> str:
    if not isinstance(found, list) or step > len(found):
        what = count(len(found), "loss", "losses") if isinstance(found, list) else f"a {type(found).__name__}"
        return f"train returned {what} for a run of {NUM_STEPS} steps"
    if step > len(expected):
        return f"train returned {count(len(found), 'loss', 'losses')} for a run of {NUM_STEPS} steps"
    yours, right = distinct_texts(found[step - 1], expected[step - 1], 7)
    return f"the loss of step {step} was {yours}, but {right} in {of}"


def plain_loop(seed: int, training: bool = True) -> dict[str, Any]:
    """Run the six lines, or the same without dropout, as in eval mode."""
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
