"""Compare the learner's loop with gradients derived by hand and torch's optimizers applied to them."""

from typing import Any

import torch
from ranks import OPTIMIZERS, Model, make_batches
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts

TRAINED = ("first", "second")


def check(grade: Grade) -> None:
    values = grade.call({"seed": grade.seed}).values[0]
    for name, run in values["runs"].items():
        check_run(grade, run, name, 5)
    stream = values["stream"]
    if stream.get("error"):
        grade.reject("data-read-once", f"The data was a stream, one batch after another: {stream['error']}.")
    if len(stream["losses"]) != 5:
        text = (
            f"A stream of 5 batches gave {count(len(stream['losses']), 'loss', 'losses')}; a list of the same 5 gave 5."
        )
        grade.reject("data-read-once", text)
    check_run(grade, stream, "SGD", 5)
    check_run(grade, values["one"], "SGD", 1)
    check_run(grade, grade.call({"seed": grade.seed}, work="work_without_data").values[0], "SGD", 0)
    grade.predicted("forgotten-zero", -0.1 * (1 + (1 + 2) + (1 + 2 + 4)))
    oracle = train_by_hand(grade.seed, "SGD", 5)
    before, after = oracle["losses"][0], oracle["after"][0]
    grade.measured("loss of the first batch", f"{before:.4f} before the step, {after:.4f} after it")


def check_run(grade: Grade, run: dict[str, Any], name: str, number: int) -> None:
    if run["error"]:
        text = f"With {name} the call order was {', '.join(run['events'])}, then backward, which PyTorch refused"
        grade.reject("one-batch-late", f"{text}: {run['error']}.")
    if "returned" in run:
        grade.reject("unknown", f"train should return a list, the loss of each batch; it returned {run['returned']}.")
    oracle = train_by_hand(grade.seed, name, number)
    found, batches = run["steps"], count(number, "batch", "batches")
    check_losses_kept(grade, run, number)
    if number and not found:
        start = Model(grade.seed)
        if all(torch.equal(run["weights"][key], getattr(start, key)) for key in TRAINED):
            text = (
                f"In {batches} backward ran {count(run['backwards'], 'time')}, optimizer.step never. No weight changed."
            )
            grade.reject("no-backward" if not run["backwards"] else "never-steps", text)
    if number > 1 and len(found) == 1:
        text = f"{batches} went through the model, and the optimizer stepped once, after all of them."
        grade.reject("one-step-for-all", text)
    if number and not run["backwards"]:
        check_by_other_means(grade, found, number)
    if run["steps_first"] and all(is_nothing(step[key]) for step in found for key in TRAINED):
        text = f"The optimizer made {count(number, 'step')}, each before its batch's backward pass: .grad was empty."
        grade.reject("one-batch-late", text)
    check_gradients(grade, found, oracle["gradients"], number)
    check_loss_values(grade, run["losses"], oracle, number)
    grade.compare(
        run["weights"], oracle["weights"], f"{name}, after {count(number, 'batch', 'batches')} the weights", 1e-4, 1e-6
    )


def check_losses_kept(grade: Grade, run: dict[str, Any], number: int) -> None:
    if any(run["kept"]):
        text = f"{sum(run['kept'])} of {count(number, 'loss', 'losses')} still hold the graph of their forward pass."
        grade.reject("graph-kept", f"{text} After a million steps you would hold a million graphs.")
    if number and run["types"] not in (["float"], ["int"]):
        grade.reject("unknown", f"train should return Python numbers; found {', '.join(run['types'])}.")


def check_by_other_means(grade: Grade, found: list[dict[str, Any]], number: int) -> None:
    """Explain a loop without a backward pass. torch.autograd.grad may have computed its gradients."""
    if all(step[key] is None for step in found for key in TRAINED):
        text = f"The optimizer stepped {count(len(found), 'time')}. .grad was None each time: backward never ran."
        grade.reject("no-backward", text)


def check_gradients(grade: Grade, found: list[dict[str, Any]], expected: list[dict[str, Tensor]], number: int) -> None:
    if len(found) != len(expected):
        grade.reject(
            "unknown",
            f"{count(number, 'batch', 'batches')} need {number} optimizer steps, one each; there were {len(found)}.",
        )
    if number and all(is_nothing(step[key]) for step in found for key in TRAINED):
        text = f"The optimizer made {count(number, 'step')}, and each time .grad had been cleared before."
        grade.reject("zeroed-before-step", text)
    if number > 1 and is_nothing(found[0]["first"]) and not is_nothing(found[1]["first"]):
        text = "At the first step .grad was still empty; at the second it held the gradient of the first batch."
        grade.reject("one-batch-late", text)
    for place, (step, want) in enumerate(zip(found, expected, strict=True)):
        if place and adds_up(found, expected, place):
            size, right = distinct_texts(float(step["first"].norm()), float(want["first"].norm()), 4)
            text = f"At step {place + 1} the gradient's norm was {size}; for this batch's gradient alone it is {right}."
            grade.reject("gradients-add-up", f"{text} .grad held the sum of {place + 1} batches' gradients.")
        for key in TRAINED:
            if step[key] is None:
                grade.reject("unknown", f"At step {place + 1} the weight {key} had no gradient.")
            grade.compare(step[key], want[key], f"gradient of {key} at step {place + 1}", 1e-4, 1e-6)


def adds_up(found: list[dict[str, Any]], expected: list[dict[str, Tensor]], place: int) -> bool:
    """True if this step's gradient is the previous step's plus this batch's.

    This batch's gradient was taken at the learner's weights, which differ from the oracle's only after this step.
    """
    step, before, want = found[place]["first"], found[place - 1]["first"], expected[place]["first"]
    return step is not None and place == 1 and torch.allclose(step, before + want, rtol=1e-4, atol=1e-6)


def check_loss_values(grade: Grade, losses: list[float], oracle: dict[str, Any], number: int) -> None:
    if number > 1 and len(losses) == number and close(losses, oracle["after"]):
        found, right = distinct_texts(losses[0], oracle["losses"][0])
        text = f"Your first loss is {found}; the forward pass before the step had {right}."
        grade.reject("loss-after-step", f"{text} Yours is the loss of the same batch after the step.")
    grade.compare(losses, oracle["losses"], f"the losses of {count(number, 'batch', 'batches')}", 1e-4, 1e-6)


def close(found: list[float], expected: list[float]) -> bool:
    return torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-6)


def is_nothing(gradient: Tensor | None) -> bool:
    return gradient is None or not gradient.any()


def train_by_hand(seed: int, name: str, number: int) -> dict[str, Any]:
    """Compute losses, gradients by the chain rule, and the weights that torch's optimizer gives with them."""
    model = Model(seed)
    optimizer = OPTIMIZERS[name](model.parameters())
    losses, after, gradients = [], [], []
    for x in make_batches(seed, number):
        loss, gradient = loss_and_gradients(model, x)
        losses.append(loss)
        gradients.append(gradient)
        model.first.grad, model.second.grad = gradient["first"].clone(), gradient["second"].clone()
        optimizer.step()
        after.append(loss_and_gradients(model, x)[0])
    weights = {key: value.detach() for key, value in model.named_parameters()}
    return {"losses": losses, "after": after, "gradients": gradients, "weights": weights}


@torch.no_grad()
def loss_and_gradients(model: Model, x: Tensor) -> tuple[float, dict[str, Tensor]]:
    hidden = torch.tanh(x @ model.first)
    error = hidden @ model.second + model.frozen - 1.0
    d_output = 2 * error / error.numel()
    d_hidden = d_output @ model.second.T * (1 - hidden.square())
    return float(error.square().mean()), {"first": x.T @ d_hidden, "second": hidden.T @ d_output}
