"""Compare with the same model without recomputation, and the bytes with those of torch's own checkpointing."""

import random
import warnings
from typing import NoReturn

import torch
from ranks import two_steps
from torch import nn
from torch.utils.checkpoint import checkpoint

from frog.learn.grader.grade import Grade, difference_of
from frog.learn.grader.words import count, distinct_texts

PARTS = ("attention", "mlp")
PREDICTED = {"num_layers": 6, "width": 24, "batch": 3, "length": 29}


def check(grade: Grade) -> None:
    cases = draw_cases(grade.seed)
    found = grade.call({"cases": cases}, seconds=12.0).values[0]
    plain = [two_steps(run_with(nn.Module.__call__), case) for case in cases]
    check_outputs(grade, cases, found, plain)
    without_dropout = [n for n, case in enumerate(cases) if not case["dropout"]]
    for some in (without_dropout, range(len(cases))):
        check_gradients(grade, some, cases, found, plain)
    check_states(grade, cases, found, plain)
    for n in (2, 3, 0, 1, 4):  # the first two are measured
        check_calls(grade, cases[n], found[n][1])
    measure(grade, cases, found, plain)


def draw_cases(seed):
    """Draw sizes. The last two cases differ only in the generator's seed."""
    draw = random.Random(seed)
    drawn = {"width": 3 * draw.randint(5, 8), "batch": draw.randint(2, 3), "length": draw.randint(17, 23)}
    drawn |= {"num_layers": draw.choice([3, 5])}
    small = {"width": 9, "batch": 2, "length": 5, "num_layers": 3}
    cases = [
        drawn | {"what": "attention", "dropout": 0.0, "trains_input": False},
        drawn | {"what": "layers", "dropout": 0.0, "trains_input": True},
        PREDICTED | {"what": "layers", "dropout": 0.2, "trains_input": True},
        PREDICTED | {"what": "attention", "dropout": 0.2, "trains_input": False},
        drawn | {"what": "nothing", "dropout": 0.2, "trains_input": True},
        small | {"what": "layers", "dropout": 0.2, "trains_input": True},
        small | {"what": "layers", "dropout": 0.2, "trains_input": True},
    ]
    return [
        case | {"seed": seed % 10**6 + min(n, 5), "draws": seed % 10**6 + n, "is_measured": n in (2, 3)}
        for n, case in enumerate(cases)
    ]


def named(case):
    what = {"layers": "each layer", "attention": "each attention", "nothing": "nothing"}[case["what"]]
    return f"{case['num_layers']} layers, {what} recomputed, dropout {case['dropout']:g}"


# ---- what recomputation by a misconception computes ------------------------------------------------------------------


def run_with(way):
    """Return a `run` that calls way(part, x) for each part that backward should compute again."""

    def run(layers, x, what):
        for layer in layers:
            if what == "layers":
                x = way(layer, x)
            else:
                x = layer.mlp((way if what == "attention" else nn.Module.__call__)(layer.attention, x))
        return x

    return run


class Ones(torch.autograd.Function):
    """Returns x; its gradient is one, whatever comes back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.ones_like(grad)


def with_parameters(change):
    """Return a way that calls a part with changed parameters."""

    def way(part, x):
        return torch.func.functional_call(part, {name: change(p) for name, p in part.named_parameters()}, x)

    return way


def twice(p):
    """Return a tensor equal to p whose gradient counts twice in p."""
    return 2 * p - p.detach()


def without_dropout(part, x):
    """Return part(x) with the gradients of a part without dropout."""
    y = part(x)
    drops = [module for module in part.modules() if isinstance(module, nn.Dropout)]
    rates = [drop.p for drop in drops]
    for drop in drops:
        drop.p = 0.0
    quiet = part(x)
    for drop, rate in zip(drops, rates, strict=True):
        drop.p = rate
    return quiet + (y - quiet).detach()


def with_masks_of(place):
    """Return a way that gives part(x) and the gradients of a part whose masks begin where `place` puts the generator.

    `place` gets the state after part(x).
    """

    def way(part, x):
        y = part(x)
        after = torch.get_rng_state()
        place(after)
        again = part(x)
        torch.set_rng_state(after)
        return again + (y - again).detach()

    return way


def with_restored_generator(part, x):
    """Return part(x), and put the generator back to where it was."""
    before = torch.get_rng_state()
    y = part(x)
    torch.set_rng_state(before)
    return y


WAYS = {
    "upstream-ignored": lambda part, x: Ones.apply(part(x)),
    "parameters-forgotten": with_parameters(torch.Tensor.detach),
    "input-gradient-missing": lambda part, x: part(x.detach()),
    "counted-twice": with_parameters(twice),
    "first-layer-untrained": lambda part, x: checkpoint(part, x, use_reentrant=True),
    "new-masks": lambda part, x: checkpoint(part, x, use_reentrant=True, preserve_rng_state=False),
    "new-masks.2": lambda part, x: checkpoint(part, x, use_reentrant=False, preserve_rng_state=False),
    "without-dropout": without_dropout,
    "kept-too-late": with_masks_of(torch.set_rng_state),
    "seed-is-no-place": with_masks_of(lambda after: torch.manual_seed(torch.initial_seed())),
}
"""What each misconception computes for a part. It must match every case."""


# ---- the verdict -----------------------------------------------------------------------------------------------------


def check_outputs(grade, cases, found, plain):
    for case, steps, right in zip(cases, found, plain, strict=True):
        for step in range(2):
            what = f"The output of step {step + 1} ({named(case)})"
            if step and not torch.equal(steps[0]["state"], right[0]["state"]):
                break  # the second step begins with another state: check_states explains it
            difference = difference_of(steps[step]["output"], right[step]["output"], what, 1e-3, 1e-3)
            if difference is None:
                continue
            a, b = (found[n][0]["output"] for n in (-2, -1))
            if difference_of(a, b, "", 1e-3, 1e-3) is None:
                grade.reject(
                    "reseeds",
                    f"{difference} Two runs with differently seeded generators gave the same output: their dropout "
                    "masks were the same.",
                )
            again = two_steps(run_with(with_restored_generator), case | {"is_measured": False})[0]["output"]
            if difference_of(steps[0]["output"], again, "", 1e-3, 1e-3) is None:
                grade.reject(
                    "forward-restores",
                    f"{difference} It is the output if the generator is put back after the forward pass of each part "
                    "that is recomputed: the next part then draws the same masks.",
                )
            grade.reject("unknown", difference)


def is_close(one, other):
    """True if a gradient is the other one; no gradient counts as zero."""
    one, other = (torch.zeros(()) if value is None else value for value in (one, other))
    size = torch.broadcast_shapes(one.shape, other.shape)
    return torch.allclose(one.expand(size), other.expand(size), rtol=1e-3, atol=1e-4 * float(other.abs().max()) + 1e-7)


def are_close(one, other):
    return one.keys() == other.keys() and all(is_close(one[name], other[name]) for name in other)


def check_gradients(grade, numbers, cases, found, plain):
    """Compare the gradients of the first step."""
    wrong = [n for n in numbers if not are_close(found[n][0]["gradients"], plain[n][0]["gradients"])]
    if wrong:
        explain_gradients(grade, numbers, wrong[0], cases, found, plain)
    for n in numbers:
        for name, gradient in plain[n][0]["gradients"].items():
            if gradient is None and found[n][0]["gradients"][name] is not None:
                grade.reject(
                    "no-gradient-is-zero",
                    f"{named(cases[n])}: {name} takes no part in the loss. Its .grad is a tensor of zeros; without "
                    "recomputation it is None.",
                )


def explain_gradients(grade, numbers, first, cases, found, plain) -> NoReturn:
    gradients, right = found[first][0]["gradients"], plain[first][0]["gradients"]
    wrong = [name for name in right if not is_close(gradients[name], right[name])]
    none = sum(gradients[name] is None for name in wrong)
    worst = max(wrong, key=lambda name: gap(gradients[name], right[name]))
    norms = distinct_texts(*(0.0 if g is None else g.norm().item() for g in (gradients[worst], right[worst])))
    says = f"{named(cases[first])}: {len(wrong)} of {len(right)} gradients differ from those without recomputation"
    says += f", {none} of them None" if none else ""
    says += f". The norm of {worst}'s gradient is {norms[0]}, expected {norms[1]}."
    if cases[first]["dropout"]:
        says += " Without dropout, all gradients are right."
    for id, way in WAYS.items():
        if all(are_close(found[n][0]["gradients"], simulated(way, cases[n])) for n in numbers):
            grade.reject(id.split(".")[0], says)
    grade.reject("unknown", says)


def gap(one, other):
    zero = torch.zeros(())
    return ((zero if one is None else one) - (zero if other is None else other)).abs().max().item()


def simulated(way, case):
    with warnings.catch_warnings(action="ignore"):  # torch warns of a misconception
        return two_steps(run_with(way), case | {"is_measured": False})[0]["gradients"]


def check_states(grade, cases, found, plain):
    """Compare the generator's state after a step: recomputation must not change which numbers come next."""
    for case, steps, right in zip(cases, found, plain, strict=True):
        if torch.equal(steps[0]["state"], right[0]["state"]):
            continue
        says = f"{named(case)}: the gradients of a step are right, but not the generator's state after it"
        if torch.equal(steps[0]["state"], state_after(case, 1)):
            grade.reject(
                "masks-repeat",
                f"{says}: it is the one after the first part of this step's forward pass. Step 2 begins with dropout "
                "masks that step 1 has used.",
            )
        grade.reject("state-moves-on", f"{says}: later random numbers depend on what is recomputed.")


def state_after(case, num_parts):
    """Return the generator's state after the first parts of step 1's forward pass that backward computes again."""
    states = []

    def way(part, x):
        y = part(x)
        states.append(torch.get_rng_state())
        return y

    two_steps(run_with(way), case)
    return states[num_parts - 1]


def check_calls(grade, case, step):
    """Check how often each part was computed: once in forward, and once more if it is recomputed."""
    forward, backward = step["forward"], [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs(step)]
    again = {"layers": [1, 1], "attention": [1, 0], "nothing": [0, 0]}[case["what"]]
    says = f"{named(case)}: "
    for number, parts in enumerate(forward):
        for name, calls in zip(PARTS, parts, strict=True):
            if calls != 1:
                grade.reject(
                    "unknown", f"{says}the {name} of layer {number} was computed {count(calls, 'time')} in forward."
                )
    if all(parts == again for parts in backward):
        return
    sums = [sum(column) for column in zip(*backward, strict=True)]
    says += f"backward computed attention {count(sums[0], 'time')} and mlp {count(sums[1], 'time')} again"
    says += f", expected {again[0] * len(backward)} and {again[1] * len(backward)}."
    if not any(sums):
        grade.reject("keeps-everything", f"{says} Between forward and backward {step['kept']:,} bytes existed.")
    if all(parts == [2 * times for times in again] for parts in backward):
        grade.reject("recomputed-twice", says)
    if case["what"] == "attention" and all(parts == [0, 1] for parts in backward):
        grade.reject("wrong-part", says)
    if case["what"] == "attention" and all(parts == [1, 1] for parts in backward):
        grade.reject("selects-nothing", says)
    num = sum(parts == again for parts in backward)
    if num and all(parts in (again, [0, 0]) for parts in backward):
        grade.reject("some-layers", f"{says} It computed {count(num, 'layer')} of {len(backward)} again.")
    grade.reject("unknown", says)


def pairs(step):
    return zip(step["calls"], step["forward"], strict=True)


def measure(grade, cases, found, plain):
    """Compare bytes with those of torch's own checkpointing."""
    own = run_with(lambda part, x: checkpoint(part, x, use_reentrant=False))
    for n in (2, 3):
        case, step, right = cases[n], found[n][1], two_steps(own, cases[n])[1]
        without = plain[n][1]
        says = f"{named(case)}: between forward and backward {step['kept']:,} bytes existed; "
        says += f"torch's checkpointing keeps {right['kept']:,}, and without recomputation it is {without['kept']:,}."
        if step["kept"] > 2 * right["kept"]:
            grade.reject("activations-live-on", says)
        if step["peak"] > 2 * right["peak"]:
            peak = f" Backward had up to {step['peak']:,} bytes at once; torch's has {right['peak']:,}, and without "
            peak += f"recomputation it is {without['peak']:,}."
            grade.reject("one-segment" if step["kept"] < 0.9 * right["kept"] else "unknown", f"{says}{peak}")
        what = "each layer" if case["what"] == "layers" else "each attention"
        more = f", torch's own {right['kept']:,}" if step["kept"] > 1.1 * right["kept"] else ""
        grade.measured(f"bytes kept for backward, {what} recomputed", f"{step['kept']:,} of {without['kept']:,}{more}")
        grade.measured(f"most bytes at once in a step, {what} recomputed", f"{step['peak']:,} of {without['peak']:,}")
    calls = [sum(parts[0] for parts in found[n][1]["calls"]) for n in (2, 4)]
    num_layers = cases[2]["num_layers"]
    grade.predicted("calls", calls[0])
    grade.predicted("kept", found[2][1]["kept"])
    grade.predicted("longer", 100 * ((calls[0] / num_layers + 2) / 3 - 1))
