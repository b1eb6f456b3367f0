"""Compare gradients with one process that has the whole batch, and the bytes alive with the sizes of shards."""

import math
import random
from dataclasses import replace
from typing import NoReturn

import torch
from ranks import FROZEN, ONE, ORDER, RATE, SMALL, STEPS, TIED, Sizes, batch, gradient_of, loss_of, make_model

from frog.learn.grader.grade import Grade, Rejected
from frog.learn.grader.words import count

PART_2 = "part 2: fill in"
"""What the stub of shard_model raises."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    base = {"seed": grade.seed % 1_000_000, "sizes": draw_sizes(draw)}
    forward, stack = base | {"kind": "forward"}, base | {"kind": "stack"}
    first = grade.world(2, {"cases": [forward, stack]}, may_fail=("raised",))
    if first.failure is not None:
        if PART_2 in first.failure.observed:
            judge_part_1(grade, base | {"kind": "one"}, first.failure)
        raise Rejected(first.failure)
    for rank, values in enumerate(first.values):
        judge_bytes(grade, forward, first, rank, values[0])
    for size in (2, 3):
        case = {"kind": "train", "seed": base["seed"] + size, "sizes": draw_sizes(draw)}
        world = grade.world(size, {"cases": [case]}, seconds=4.0)
        found = [values[0] for values in world.values]
        for rank, one in enumerate(found):
            judge_bytes(grade, case, world, rank, one)
        largest = judge_numbers(grade, world, case, found)
        judge_calls(grade, world, case)
    report(grade, case, found[0], largest)
    peak = first.values[0][1]["peak"]
    grade.measured("12 layers of 10,000 bytes on 2 ranks: most bytes that a rank holds", f"{peak:,}")
    grade.predicted("peak", peak)


def judge_part_1(grade, case, missing) -> NoReturn:
    """Judge `Sharded` alone, while the hooks are missing: end with its mistake, or with what remains to do."""
    size = 3
    world = grade.world(size, case, work="work_on_one")
    whole = dict(make_model(case).named_parameters())[ONE]
    gradients = [gradient_of(case, rank, whole) for rank in range(size)]
    padded = torch.zeros(size * math.ceil(whole.numel() / size))
    padded[: whole.numel()] = sum(gradients).flatten() / size
    for rank, found in enumerate(world.values):
        says = f"Part 1, world of {size}, rank {rank}"
        grade.compare(found["gathered"], [whole.detach()] * 2, f"{says}: the weight after gather, once and again")
        if found["freed"]:
            grade.reject("not-freed", f"{says}: after free, the storage of the weight has {found['freed']:,} bytes.")
        part = padded.chunk(size)[rank]
        if found["shard"] is not None and torch.allclose(found["shard"], part * size, rtol=1e-4, atol=1e-6):
            grade.reject("sum-is-average", f"{says}: the gradient of the shard is {size}.000 times the mean's.")
        grade.compare(found["shard"], part, f"{says}: the gradient of the shard after reduce", rtol=1e-4, atol=1e-6)
        if found["left"]:
            text = f"{says}: after reduce, the parameter's own .grad has {found['left']:,} bytes."
            grade.reject("whole-gradient-stays", text)
    text = f"Part 1 of 2 is right: gather, free and reduce do what they should with a weight on {size} ranks."
    raise Rejected(replace(missing, observed=f"{text} Part 2: the hooks in shard_model, which call them."))


def draw_sizes(draw):
    """Draw a vocabulary, a width and an inner width whose products 2 and 3 do not divide."""
    return [draw.choice([53, 55, 59, 61]), draw.choice([31, 35, 37]), draw.choice([41, 43, 47])]


def judge_bytes(grade, case, world, rank, found):
    size = world.size
    sizes = Sizes(case, size)
    if set(found["shard_bytes"]) != {name for name, _ in make_model(case).named_parameters()}:
        names = {name for name, _ in make_model(case).named_parameters()} ^ set(found["shard_bytes"])
        text = f"World of {size}: shard_model returned the shards of {count(len(found['shard_bytes']), 'parameter')}. "
        grade.reject("unknown", f"{text}Only in yours or only in the model: {', '.join(sorted(names))}.")
    for note in found["notes"]:
        if note["moment"] == "backward" and found["stopped"]:
            break
        extra = note["alive"] - sizes.expected(note["moment"], note["layer"])
        is_over = extra >= sizes.least or set(note["whole"]) & set(sizes.whole)
        if is_over and note["moment"] != "end":
            explain_bytes(grade, sizes, world, rank, found, note, extra)
    if found["stopped"]:
        explain_stopped(grade, sizes, size, rank, found["stopped"])
    for note in found["notes"]:
        extra = note["alive"] - sizes.expected("end", "")
        if note["moment"] == "end" and (extra >= sizes.least or set(note["whole"]) & set(sizes.whole)):
            explain_bytes(grade, sizes, world, rank, found, note, extra)


def when(note):
    if note["moment"] == "built":
        return "after shard_model"
    if note["moment"] == "end":
        return "after backward"
    if note["moment"] == "backward":
        return f"in backward, after the layer {note['layer']} and all later ones"
    without = " under no_grad" if note["moment"] == "evaluation" else ""
    return f"in forward{without}, after the layer {note['layer']}"


def describe(world, rank, note, extra):
    return (
        f"World of {world.size}, rank {rank}, {when(note)}: {note['alive']:,} bytes of weights, shards and gradients "
        f"are alive, expected {note['alive'] - extra:,}."
    )


def explain_bytes(grade, sizes, world, rank, found, note, extra) -> NoReturn:
    """Reject too many bytes alive: find what holds them."""
    whole = [name for name in note["whole"] if name in sizes.whole]
    frozen = [other for other in found["notes"] if set(other["whole"]) & set(sizes.whole) == {FROZEN}]
    if set(whole) == {TIED} and frozen:  # a tied weight also waits for the embedding; the frozen one waits for nothing
        note, whole = frozen[0], [FROZEN]
        extra = note["alive"] - sizes.expected(note["moment"], note["layer"])
    says = describe(world, rank, note, extra)
    if whole:
        text = f"{says} The storage of {listed(whole)} has {note['whole'][whole[0]]:,} bytes."
        if note["moment"] == "built" and whole != [FROZEN]:
            grade.reject("not-freed", text)
        if whole == [FROZEN]:
            grade.reject("frozen-stays", text)
        if note["moment"] in ("backward", "end"):
            grade.reject("not-freed-after-backward", text)
        later = [name for name in whole if is_later(name, note["layer"])]
        if later:
            others = [name for name in later if name.split(".")[0] != note["layer"].split(".")[0]]
            id = "gathers-everything" if others else "gathers-a-block"
            grade.reject(id, f"{text} {(others or later)[0]} is used later, or never.")
        grade.reject("not-freed", text)
    gradients = [name for name in note["gradients"] if name in sizes.whole]
    if gradients:
        size_of = note["gradients"][gradients[0]]
        text = f"{says} The .grad of {listed(gradients)}, of the whole parameter, has {size_of:,} bytes."
        grade.reject("whole-gradient-stays", text)
    for id, what, kept in (
        ("shard-is-a-view", "shard", found["shard_bytes"]),
        ("gradient-is-a-view", "shard's .grad", found["gradient_bytes"]),
    ):
        large = [name for name in sizes.shard if kept.get(name, 0) >= sizes.shard[name] + SMALL]
        if large:
            name = large[0]
            text = f"The {what} of {name} needs {sizes.shard[name]:,} bytes, and its storage has {kept[name]:,}."
            grade.reject(id, f"{says} {text}")
    explain_hidden(grade, sizes, world.calls[rank], found, note, extra, says)


def explain_hidden(grade, sizes, calls, found, note, extra, says) -> NoReturn:
    """Reject bytes that no parameter, shard or gradient refers to."""
    started = [call for call in calls if call.is_async]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        text = f"{says} You started {count(len(started), 'operation')} and waited for {waited}."
        grade.reject("not-waited", f"{text} Until then, an operation keeps its tensors.")
    says += f" No parameter, shard or .grad refers to the other {extra:,} bytes."
    free = [other["alive"] for other in found["notes"] if other["moment"] == "evaluation"]
    if note["moment"] == "forward" and max(free) < sizes.shards + sizes.least:
        text = f"{says} Under no_grad, with the same code, {max(free):,} bytes were alive."
        grade.reject("saved-by-autograd", text)
    grade.reject("still-referenced", says)


def is_later(name, layer):
    """True if a layer with this parameter runs only after `layer`, or never."""
    owner = name.rsplit(".", 1)[0]
    return owner not in ORDER or (owner != "embed" and ORDER.index(owner) > ORDER.index(layer))


def listed(names):
    return names[0] if len(names) == 1 else f"{names[0]} (and of {len(names) - 1} more)"


def explain_stopped(grade, sizes, size, rank, stopped) -> NoReturn:
    says = f"World of {size}, rank {rank}: backward failed with “{stopped['error']}”. "
    name, num_bytes = stopped["name"], stopped["bytes"]
    if stopped["changes"]:
        text = f"Since forward, the version counter of {name} has increased by {stopped['changes']}."
        grade.reject("counted-as-a-change", f"{says}{text}")
    text = f"The storage of {name} had {num_bytes:,} bytes then, and backward needs {sizes.whole[name]:,}."
    grade.reject("not-gathered-again", f"{says}{text}")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def oracle(case, size):
    """Return, for each step, the mean gradients of the whole batch, and those of each rank's part."""
    model, steps = make_model(case), []
    for step in range(STEPS):
        own = []
        for rank in range(size):
            model.zero_grad()
            loss_of(model, batch(case, step, rank)).backward()
            own.append({name: None if p.grad is None else p.grad.flatten() for name, p in model.named_parameters()})
        model.zero_grad()
        loss_of(model, torch.cat([batch(case, step, rank) for rank in range(size)])).backward()
        mean = {name: None if p.grad is None else p.grad.flatten() for name, p in model.named_parameters()}
        steps.append((mean, own))
        for p in model.parameters():
            p.data -= RATE * p.grad if p.grad is not None else 0
    return steps, {name: p.detach().flatten() for name, p in model.named_parameters()}


def part(flat, rank, size):
    """Return a rank's part of a flattened parameter, without the padding."""
    numel = math.ceil(flat.numel() / size)
    return flat[rank * numel : (rank + 1) * numel]


def part_in_front(flat, rank, size):
    """Return the elements of a rank's part if the padding is at the front."""
    numel = math.ceil(flat.numel() / size)
    padded = torch.cat([torch.zeros(size * numel - flat.numel()), flat])
    return padded[rank * numel : (rank + 1) * numel][: len(part(flat, rank, size))]


def is_right(found, mean, rank, size):
    """True if a shard has its part of the mean; without a mean it has None, or zeros."""
    if mean is None:
        return found is None or not found.any()
    return close(found, part(mean, rank, size)) and found.numel() == math.ceil(mean.numel() / size)


def close(found, expected):
    """True if a shard's gradient begins with these numbers; its padding may have any."""
    if found is None or found.numel() < len(expected):
        return False
    return torch.allclose(found.flatten()[: len(expected)], expected, rtol=1e-4, atol=2e-5)


def judge_numbers(grade, world, case, found):
    size, largest = world.size, 0.0
    steps, weights = oracle(case, size)
    for step, (mean, own) in enumerate(steps):
        for rank, one in enumerate(found):
            seen = one["steps"][step]
            wrong = [name for name in mean if not is_right(seen[name], mean[name], rank, size)]
            if wrong:
                explain(grade, world, case, step, rank, seen, (mean, own), wrong)
            pairs = [(seen[n], part(mean[n], rank, size)) for n in mean if mean[n] is not None]
            largest = max([largest, *((a[: len(b)] - b).abs().max().item() for a, b in pairs if len(b))])
    for rank, one in enumerate(found):
        for name, shard in one["shards"].items():
            what = f"the shard of {name} on rank {rank} of {size} after {STEPS} steps"
            expected = part(weights[name], rank, size)
            grade.compare(shard[: len(expected)], expected, what, rtol=1e-4, atol=2e-5)
    return largest


def explain(grade, world, case, step, rank, found, expected, wrong) -> NoReturn:
    """Reject gradients of shards that are not their part of the mean."""
    (mean, own), size = expected, world.size
    says = (
        f"World of {size}, step {step + 1}, rank {rank}: the gradients of {len(wrong)} of {len(found)} shards are not "
        f"their part of the mean ({', '.join(wrong[:3])}{', …' if len(wrong) > 3 else ''})."
    )
    started = [call for call in world.calls[rank] if call.is_async]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        grade.reject("not-waited", f"{says} You started {len(started)} operations and waited for {waited}.")
    missing = [name for name in wrong if found[name] is None]
    if missing:
        grade.reject("unknown", f"{says} The gradient of {missing[0]} is None.")
    there = [name for name in wrong if mean[name] is not None]
    if there == wrong:
        explain_ways(grade, says, size, rank, found, mean, own, wrong)
    name = there[0] if there else wrong[0]
    target = part(mean[name], rank, size) if there else torch.zeros_like(found[name])
    seen = found[name].flatten()
    if there and len(seen) == math.ceil(mean[name].numel() / size):
        seen = seen[: len(target)]
    grade.reject_different(seen, target, f"{says} The gradient of {name}")


def explain_ways(grade, says, size, rank, found, mean, own, wrong):
    """Reject gradients that a known mistake gives."""
    if all(close(found[n], part(mean[n], rank, size) * size) for n in wrong):
        grade.reject("sum-is-average", f"{says} They are {size}.000 times the mean.")
    for factor in (1, size):
        if all(close(found[n], part(own[rank][n], rank, size) / factor) for n in wrong):
            text = f"{says} They are the rank's own part{f', divided by {size}' if factor > 1 else ''}."
            grade.reject("own-gradient", text)
    if all(close(found[n], part_in_front(mean[n], rank, size)) for n in wrong):
        grade.reject("padding-in-front", f"{says} They are the mean with the padding before it, not after it.")
    others = [other for other in range(size) if all(close(found[n], part(mean[n], other, size)) for n in wrong)]
    if others:
        grade.reject("part-of-another", f"{says} They are the part of rank {others[0]}.")


def judge_calls(grade, world, case):
    """Reject whole gradients that are sent to every rank."""
    judge_gathers(grade, world, case)
    least = Sizes(case, world.size).least // 4
    calls = [call for call in world.calls[0] if call.op == "all_reduce" and call.numel >= least]
    if not calls:
        return
    says = f"World of {world.size}: the gradients are right. Rank 0 called {count(len(calls), 'all-reduce')} of up to "
    says += f"{max(call.numel for call in calls):,} elements."
    if any(call.op.startswith("all_gather") for call in world.calls[0]):
        text = f"{says} They gave it the mean of every whole gradient, of which it keeps 1/{world.size}."
        grade.reject("all-reduces", text)
    grade.reject("unknown", f"{says} An all-gather of a weight sends 1/{world.size} of what an all-reduce is given.")


def judge_gathers(grade, world, case):
    """Compare the bytes of the all-gathers with one before each forward of a layer, and one before each backward."""
    layers = dict(make_model(case).named_modules())
    sizes = {
        name: sum(4 * math.ceil(p.numel() / world.size) for p in layers[name].parameters(recurse=False))
        for name in ORDER
    }
    expected = (STEPS + 1) * sum(sizes.values()) + STEPS * (sum(sizes.values()) - sizes["side"])  # one evaluation
    sent = sum(call.num_bytes for call in world.calls[0] if call.op.startswith("all_gather"))
    says = f"World of {world.size}: in {STEPS} steps and one evaluation, rank 0 passed {sent:,} bytes to all-gathers. "
    says += f"One before each forward and each backward of a layer takes {expected:,}."
    if sent >= 2 * expected:
        grade.reject("unknown", f"{says} The gradients are right.")
    if sent > 1.1 * expected:
        grade.note(says)


def report(grade, case, found, largest):
    sizes = Sizes(case, 3)
    forward = max(note["alive"] for note in found["notes"] if note["moment"] == "forward")
    grade.measured("world of 3: bytes of weights alive between layers, in forward", f"{forward:,} of {sizes.all:,}")
    head = next(note["alive"] for note in found["notes"] if note["layer"] == "head" and note["moment"] == "backward")
    grade.measured("the same in backward, after the head", f"{head:,}")
    grade.measured("largest difference to the gradient of the whole batch", f"{largest:.1e}")
