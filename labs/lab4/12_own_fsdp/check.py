"""Compare gradients and weights with one process, and the bytes that each rank holds with its part of the model."""

import copy
import math
import random
from typing import Any, NoReturn

import torch
from ranks import (
    LAYERS,
    MARK,
    MOST,
    SLACK,
    activations,
    by_place,
    formula,
    is_fair,
    loss_of,
    make_model,
    make_optimizer,
    owners_of,
    sizes,
    trained_of,
)

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

SENT = {
    **dict.fromkeys(("all_reduce",), 2),
    **dict.fromkeys(("broadcast", "scatter", "reduce", "gather", "all_to_all", "all_to_all_single"), 1),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"), 1),
}
"""Bytes that a rank sends on average, in (N - 1)/N of the call's: N ranks, a ring or direct messages."""
GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single")


def draw_case(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    case = {"seed": seed % 10**6, "num_micro": [3, 1, 2], "uses_extra": [True, False, True]}
    return case | {"shape": [draw.randint(1, 2), draw.randint(2, 3)]}


def check(grade: Grade) -> None:
    for size in (2, 3):
        case = draw_case(grade.seed + size)
        world = grade.world(size, case, seconds=6.0)
        check_owned(grade, world)
        check_waited(grade, world)
        oracle = Oracle(case, size)
        largest = check_numbers(grade, world, oracle)
        check_frozen(grade, world)
        check_forward(grade, world)
        check_backward(grade, world)
        check_resting(grade, world)
        check_evaluation(grade, world)
        check_sent(grade, world, case)
    grade.measured("weights of 3 ranks after 3 steps, compared with one process", f"largest difference {largest:.1e}")
    grade.predicted("resting-bytes", 2 * 4e6 / 8)
    grade.predicted("sent-bytes", 3 * 4e6 * 7 / 8)
    grade.note("It is a strategy of Frog's now: frog prove --set strategy.file=fsdp.py --world 2 --world 3 --world 5")


# ---- ownership -------------------------------------------------------------------------------------------------------


def check_owned(grade: Grade, world) -> None:
    everyone = [value["claims"] for value in world.values]
    for rank, claims in enumerate(everyone):
        for number, claim in enumerate(claims):
            if not is_fair(claim):
                what = f"a {claim}" if isinstance(claim, str) else f"({claim[0]}, {claim[1]}, a {claim[3]})"
                text = f"World of {world.size}: owned on rank {rank} returns {what} as item {number}"
                grade.reject("unknown", f"{text}; expected (name, start, nn.Parameter).")
    found, expected = owners_of(everyone), owners_of([])
    frozen = [name for name, p in make_model(0).named_parameters() if not p.requires_grad]
    for name, owners in found.items():
        if name not in expected:
            text = f"World of {world.size}: owned names {name}, with {count(len(owners), 'element')}"
            id = "frozen-owned" if name in frozen else "tied-twice" if name == "head.weight" else "unknown"
            grade.reject(id, f"{text}. named_parameters() has {'it frozen' if name in frozen else 'no such name'}.")
        if len(owners) > len(expected[name]):
            text = f"World of {world.size}: the owned ranges of {name} end at {len(owners):,}"
            grade.reject("padding-owned", f"{text}; it has {len(expected[name]):,} elements.")
    check_counts(grade, world.size, found)


def check_counts(grade: Grade, size: int, found: dict[str, torch.Tensor]) -> None:
    """Check how many ranks own each element of the trained parameters."""
    total = sum(map(len, found.values()))
    if all(bool((owners == size).all()) for owners in found.values()):
        grade.reject("not-sharded", f"World of {size}: every rank owns all {total:,} elements.")
    shared = {name: int((owners > 1).sum()) for name, owners in found.items() if (owners > 1).any()}
    if shared:
        text = f"World of {size}: more than one rank owns {sum(shared.values()):,} of {total:,} elements"
        is_root = all(not name.startswith("layers.") for name in shared)
        grade.reject("root-replicated" if is_root else "unknown", f"{text} ({', '.join(list(shared)[:3])}).")
    lost = {name: int((owners == 0).sum()) for name, owners in found.items() if (owners == 0).any()}
    if lost:
        text = f"World of {size}: no rank owns {count(sum(lost.values()), 'element')} of {total:,}"
        id = "root-without-owner" if all(not name.startswith("layers.") for name in lost) else "rest-lost"
        few = ", ".join(f"{num} of {name}" for name, num in list(lost.items())[:3])
        grade.reject(id, f"{text} ({few}).")


def check_waited(grade: Grade, world) -> None:
    started = [call for call in world.calls[0] if call.is_async]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        text = f"World of {world.size}: rank 0 started {count(len(started), 'asynchronous operation')}"
        grade.reject("not-waited", f"{text} and waited for {waited}.")


# ---- gradients and weights -------------------------------------------------------------------------------------------

Table = dict[str, torch.Tensor]


def table_of(loss: torch.Tensor, named: dict[str, torch.nn.Parameter]) -> Table:
    """Return the gradients of a loss, zeros where there is none."""
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    pairs = zip(named.items(), found, strict=True)
    return {name: (torch.zeros_like(p) if g is None else g).flatten() for (name, p), g in pairs}


class Oracle:
    """The steps in one process, which computes every rank's share in turn."""

    def __init__(self, case: dict[str, Any], size: int) -> None:
        self.case, self.size = case, size
        self.model, self.first = make_model(case["seed"]), make_model(case["seed"])
        self.last = self.first  # with the weights before the last step
        self.named = trained_of(self.model)
        self.optimizer = make_optimizer(list(self.named.values()))

    def gradients(self, model: torch.nn.Module, step: int) -> list[list[Table]]:
        """Return the gradients of each rank's micro-batches, zeros where there is none."""
        return [
            [self.gradient(model, step, micro, rank) for micro in range(self.case["num_micro"][step])]
            for rank in range(self.size)
        ]

    def gradient(self, model: torch.nn.Module, step: int, micro: int, rank: int) -> Table:
        return table_of(loss_of(model, self.case, step, micro, rank), trained_of(model))

    def late(self, step: int, rank: int) -> Table:
        """Return the first micro-batch's gradient if forward has missed the last step in weights left out by that."""
        model = copy.deepcopy(self.model)
        named, last = trained_of(model), trained_of(self.last)
        extra = [name for name in named if ".extra." in name]
        for name in extra:
            named[name].data.copy_(last[name].data)
        loss = loss_of(model, self.case, step, 0, rank)
        for name in extra:
            named[name].data.copy_(self.named[name].data)
        return table_of(loss, named)

    def step(self, gradient: Table) -> None:
        self.last = copy.deepcopy(self.model)
        for name, p in self.named.items():
            p.grad = gradient[name].view_as(p)
        self.optimizer.step()

    def evaluate(self, model: torch.nn.Module, step: int) -> float:
        with torch.no_grad():
            return loss_of(model, self.case, step, 9, 0).item()


def add(tables: list[Table], factor: float = 1.0) -> Table:
    return {name: factor * sum(table[name] for table in tables) for name in tables[0]}


def assembled(world, step: int, what: str) -> Table:
    """Put the ranks' parts of the gradients or weights together."""
    found = {name: torch.full_like(owners, math.nan) for name, owners in owners_of([]).items()}
    for value in world.values:
        for (name, start, num, _), part in zip(value["claims"], value["steps"][step][what], strict=True):
            found[name][start : start + num] = part
    return found


def close(found: Table, expected: Table) -> bool:
    return all(torch.allclose(found[name], one, rtol=1e-4, atol=1e-6) for name, one in expected.items())


def check_numbers(grade: Grade, world, oracle: Oracle) -> float:
    """Compare each step's gradients, its weights and the loss of an evaluation after it."""
    before: list[Table] = []
    for step in range(len(oracle.case["num_micro"])):
        parts = oracle.gradients(oracle.model, step)
        mean = add([table for rank in parts for table in rank], 1 / world.size)
        check_present(grade, world, oracle, step)
        found = assembled(world, step, "grads")
        if not close(found, mean):
            explain(grade, world, oracle, step, found, mean, parts, before)
        before.append(mean)
        oracle.step(mean)
        weights = assembled(world, step, "weights")
        for name, p in oracle.named.items():
            what = f"World of {world.size}: the owned elements of {name} after step {step + 1}"
            grade.compare(weights[name], p.detach().flatten(), what, rtol=1e-4, atol=1e-5)
        check_loss(grade, world, oracle, step)
    return max((weights[name] - p.detach().flatten()).abs().max().item() for name, p in oracle.named.items())


def check_present(grade: Grade, world, oracle: Oracle, step: int) -> None:
    """Reject an owned tensor without a gradient, or with one of another size."""
    for rank, value in enumerate(world.values):
        pairs = zip(value["claims"], value["steps"][step]["grads"], strict=True)
        where = f"World of {world.size}, step {step + 1}: on rank {rank}"
        none = [name for (name, *_), grad in pairs if grad is None]
        if none:
            is_layer = not oracle.case["uses_extra"][step] and all(name.startswith("layers.2.") for name in none)
            text = f"{where} {count(len(none), 'owned tensor')} of {len(value['claims'])} had no gradient after reduce"
            more = " In this step no batch used layers.2.extra." if is_layer else ""
            grade.reject("unused-blocks" if is_layer else "no-gradient", f"{text} ({', '.join(none[:3])}).{more}")
        for (name, _, num, _), grad in zip(value["claims"], value["steps"][step]["grads"], strict=True):
            if grad.numel() != num:
                text = f"{where} the owned tensor of {name} has {num} elements, its gradient {grad.numel()}."
                grade.reject("unknown", text)


def explain(
    grade: Grade,
    world,
    oracle: Oracle,
    step: int,
    found: Table,
    mean: Table,
    parts: list[list[Table]],
    before: list[Table],
) -> NoReturn:
    size, num = world.size, oracle.case["num_micro"][step]
    wrong = [name for name, one in mean.items() if not close({name: found[name]}, {name: one})]
    off = max((found[name] - mean[name]).abs().max().item() for name in wrong)
    says = (
        f"World of {size}, step {step + 1}, {count(num, 'micro-batch', 'micro-batches')}: {len(wrong)} of {len(mean)} "
        f"gradients differ from one process's by up to {off:.2g} ({', '.join(wrong[:3])}{', …' * (len(wrong) > 3)})."
    )
    micros = [add([rank[micro] for rank in parts], 1 / size) for micro in range(num)]
    ways: list[tuple[str, Table, str]] = [
        ("sum-is-average", add([mean], size), f"They are {size}.000 times the mean."),
        ("divided-again", add([mean], 1 / size), f"They are {1 / size:.3f} times the mean."),
        ("divided-again", add([mean], 1 / size**2), f"They are {1 / size**2:.3f} times the mean."),
        ("not-reduced", own_of(world, parts), "Each rank's part is that of its own batch."),
        (
            "not-reduced",
            add([own_of(world, parts)], 1 / size),
            "Each rank's part is that of its own batch, divided by the number of ranks.",
        ),
        ("not-zeroed", add([*before, mean]), "They are this step's and those of all earlier steps together."),
        (
            "stale-weights",
            add([table for rank in oracle.gradients(oracle.first, step) for table in rank], 1 / size),
            "They are those of the weights before the first step.",
        ),
    ]
    if num > 1:
        again = add([add(micros[: last + 1]) for last in range(num)])
        ways += [
            ("micro-batch-lost", micros[-1], "They are those of the last micro-batch."),
            ("micro-batch-lost", micros[0], "They are those of the first micro-batch."),
            ("counted-again", again, f"The first micro-batch counts {num} times, the last once."),
            ("divided-by-micro-batches", add([mean], 1 / num), f"They are {1 / num:.3f} times the mean."),
        ]
    if before and not oracle.case["uses_extra"][step - 1]:
        late = [oracle.late(step, rank) for rank in range(size)]
        rest = [table for _, *others in parts for table in others]
        words = "In the first forward pass, layers.2.extra was as before the previous step, which did not use it."
        ways.append(("stale-weights", add([*late, *rest], 1 / size), words))
    if before:
        ways.append(("not-zeroed", add([before[-1], mean]), "They are this step's and the previous one's together."))
    for id, table, words in ways:
        if close(found, table):
            grade.reject(id, f"{says} {words}")
    in_layer = all(name.startswith("layers.2.") for name in wrong)
    if in_layer and not oracle.case["uses_extra"][step] and not any(found[name].any() for name in wrong):
        words = "They are zero. In this step no batch used layers.2.extra."
        grade.reject("unused-blocks", f"{says} {words}")
    grade.reject("unknown", says)


def own_of(world, parts: list[list[Table]]) -> Table:
    """Return what the owners have whose part comes from their own batch alone."""
    sums = [add(rank) for rank in parts]
    found = {name: torch.empty_like(one) for name, one in sums[0].items()}
    for rank, value in enumerate(world.values):
        for name, start, num, _ in value["claims"]:
            found[name][start : start + num] = sums[rank][name][start : start + num]
    return found


def check_loss(grade: Grade, world, oracle: Oracle, step: int) -> None:
    """Compare the loss after a step, which each rank computes with the weights that it gathers."""
    right, first = oracle.evaluate(oracle.model, step), oracle.evaluate(oracle.first, step)
    for rank, value in enumerate(world.values):
        found = value["steps"][step]["evaluated"]
        if math.isclose(found, right, rel_tol=1e-4):
            continue
        says = f"World of {world.size}: after step {step + 1} the owned weights are right, but a forward pass on rank "
        says += f"{rank} gives the loss {found:.5f}; one process has {right:.5f}."
        if math.isclose(found, first, rel_tol=1e-4):
            grade.reject("stale-weights", f"{says} {first:.5f} is the loss with the weights before the first step.")
        grade.reject("unknown", says)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def check_resting(grade: Grade, world) -> None:
    """Check what a rank holds when no layer runs: before the first step, and after each step's reduction."""
    total, _, _ = sizes()
    expected = 2 * total / world.size
    for rank, value in enumerate(world.values):
        frozen = value["plain"][0][2] - total
        steps = [point for step in value["steps"] for point in step["points"] if point[0] in ("reduced", "stepped")]
        for point in (value["steps"][0]["points"][0], *steps):
            if point[2] - frozen > MOST * expected:
                explain_resting(grade, world.size, rank, point[2] - frozen, point)
    value = world.values[0]
    reduced = next(point for point in value["steps"][-1]["points"] if point[0] == "reduced")
    held = reduced[2] - (value["plain"][0][2] - total)
    words = f"{held:,} bytes; 2/{world.size} of the weights are {expected:,.0f}{more(held, expected)}"
    grade.measured(f"weights and gradients on rank 0 after reduce, world of {world.size}", words)


def check_frozen(grade: Grade, world) -> None:
    """Check that the frozen parameters are whole between two steps."""
    frozen = {name: p for name, p in make_model(0).named_parameters() if not p.requires_grad}
    for rank, value in enumerate(world.values):
        for step, found in enumerate(value["steps"]):
            short = [name for name, p in frozen.items() if found["frozen"].get(name, 0) < p.nbytes]
            if short:
                text = f"World of {world.size}: after step {step + 1} {count(len(short), 'frozen parameter')} of "
                text += f"{len(frozen)} on rank {rank} {'has' if len(short) == 1 else 'have'} lost elements"
                grade.reject("frozen-freed", f"{text} ({', '.join(short[:3])}). The gradients and weights are right.")


def more(held: float, expected: float) -> str:
    """Return how much more than the formula's this is, if it is more than 10 %."""
    return f" ({100 * (held / expected - 1):+.0f} %)" if held > 1.1 * expected else ""


def explain_resting(grade: Grade, size: int, rank: int, held: int, point) -> NoReturn:
    total, layer, _ = sizes()
    when = {"begin": "before the first step", "reduced": "after reduce", "stepped": "after a step"}[point[0]]
    says = (
        f"World of {size}: {when}, rank {rank} holds {held:,} bytes of weights and gradients. All trained weights have"
    )
    says += f" {total:,}, so that its part and the gradients of it have {2 * total / size:,.0f}. The numbers are right."
    own = f"the model's parameters hold {point[3]:,} bytes, and their .grad {point[4]:,}."
    if point[3] > SLACK * layer:
        grade.reject("parameters-stay", f"{says} T{own[1:]}")
    if point[4] > SLACK * layer:
        grade.reject("gradients-stay", f"{says} T{own[1:]}")
    grade.reject("hidden-copy", f"{says} T{own[1:]} Other tensors hold the rest.")


def gathered(value: dict[str, Any], phase: str) -> dict[tuple[int, str, int], tuple[int, int, int]]:
    """Return, by place in the first step, the bytes held in addition to those at the beginning of the micro-batch.

    Also those of the model's parameters, likewise, and of their gradients. What the activations take in one process is
    left out.
    """
    own, taken = by_place(value["steps"][0]["points"]), activations(value["plain"])
    starts = {micro: point for (micro, phase, _), point in own.items() if phase == "begin"}
    return {
        place: (point[2] - starts[place[0]][2] - taken[place], point[3] - starts[place[0]][3], point[4])
        for place, point in own.items()
        if place[1] == phase and place in taken
    }


def check_forward(grade: Grade, world) -> None:
    layer, expected = sizes()[1], formula("forward", world.size)
    for rank, value in enumerate(world.values):
        found = gathered(value, "forward")
        (*_, where), (held, parameters, _) = max(found.items(), key=lambda item: item[1][0])
        if held <= expected + SLACK * layer:
            continue
        first = found[0, "forward", 0][0]
        says = (
            f"World of {world.size}: while layer {where} of 0 to {LAYERS - 1} runs forward, rank {rank} holds "
            f"{held:,} bytes more than before the forward pass, activations aside; in layer 0 it was {first:,}. One "
            f"layer and the parameters outside have {expected:,}."
        )
        if first > expected + SLACK * layer:
            grade.reject("whole-model-at-once", says)
        if parameters > expected + SLACK * layer:
            grade.reject("never-freed", f"{says} The model's parameters hold {parameters:,} of them.")
        text = f"The model's parameters hold only {parameters:,} of them: other tensors share their old bytes"
        grade.reject("freed-by-name", f"{says} {text}, such as those that autograd has saved.")
    held = max(one[0] for one in gathered(world.values[0], "forward").values())
    words = f"{held:,} bytes; one layer and the parameters outside have {expected:,}{more(held, expected)}"
    grade.measured(f"gathered in the forward pass, world of {world.size}", words)


def check_backward(grade: Grade, world) -> None:
    _, layer, root = sizes()
    expected = formula("backward", world.size)
    for rank, value in enumerate(world.values):
        found = gathered(value, "backward")
        (*_, where), (held, parameters, grads) = max(found.items(), key=lambda item: item[1][0])
        if held <= expected + SLACK * layer:
            continue
        says = (
            f"World of {world.size}: while layer {where} of 0 to {LAYERS - 1} runs backward, rank {rank} holds "
            f"{held:,} bytes more than before the forward pass, activations aside. The weights and gradients of one "
            f"layer and of those outside, and its part of all gradients, have {expected:,}."
        )
        if parameters > layer + root + SLACK * layer:
            grade.reject("stays-after-backward", f"{says} The model's parameters hold {parameters:,} of them.")
        if grads > layer + root + SLACK * layer:
            grade.reject("gradients-stay", f"{says} .grad of the model's parameters holds {grads:,}.")
        text = f"The model's parameters hold {parameters:,} of them, their .grad {grads:,}; other tensors the rest."
        grade.reject("hidden-copy", f"{says} {text}")


def check_evaluation(grade: Grade, world) -> None:
    """Check that an evaluation, which has no backward pass, frees what it has gathered."""
    total, layer, _ = sizes()
    for rank, value in enumerate(world.values):
        held = {point[0]: point[2] for point in value["steps"][0]["points"]}
        extra = held["evaluated"] - held["stepped"]
        if extra > SLACK * layer:
            text = f"World of {world.size}: after an evaluation (no_grad) rank {rank} holds {extra:,} bytes more"
            grade.reject("evaluation-stays", f"{text} than before it; the trained parameters have {total:,}.")


def check_sent(grade: Grade, world, case: dict[str, Any]) -> None:
    size, (total, _, _) = world.size, sizes()
    calls = next(iter(steps_of(world.calls[0])))
    sent = sum(sent_by(call, size) for call in calls)
    num = case["num_micro"][0]
    expected = (3 * num + 1) * total * (size - 1) / size  # and the evaluation gathers once
    text = f"{sent:,.0f} bytes; {num} micro-batches and an evaluation need {expected:,.0f}"
    if sent > 1.9 * expected:
        ops = ", ".join(f"{sum(call.op == op for call in calls)} {op}" for op in sorted({call.op for call in calls}))
        says = f"World of {size}: in step 1, rank 0 sends {text} (its collectives: {ops}). The numbers are right"
        grade.reject("sends-more", f"{says}; the trained parameters have {total:,} bytes.")
    grade.measured(f"sent in step 1, world of {size}", f"{text}{more(sent, expected)}")


def steps_of(calls):
    """Yield the calls of each step."""
    step = []
    for call in calls:
        if call.op == "all_reduce" and call.numel == MARK and "int8" in call.dtype:
            yield step
            step = []
        else:
            step.append(call)


def sent_by(call, size: int) -> float:
    if call.op in GATHERS:
        return call.num_bytes * (size - 1)
    if call.op in ("send", "isend"):
        return call.num_bytes
    return call.num_bytes * SENT.get(call.op, 0) * (size - 1) / size
