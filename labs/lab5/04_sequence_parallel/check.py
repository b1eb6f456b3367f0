"""Compare two steps with one process that has the whole sequence; compare the bytes with gathers and scatters."""

import random
from typing import NoReturn

import torch
from ranks import MARK, MICRO_BATCHES, Whole, batch, move, part_of

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

PREDICTED = {"batch": 2, "length": 33, "width": 48, "inner": 20, "blocks": 1, "vocabulary": 9}


def check(grade: Grade) -> None:
    draw, seed = random.Random(grade.seed), grade.seed % 1_000_000
    first = draw_cases(draw, seed, [12, 13])  # 2 divides the first
    second = draw_cases(draw, seed + 500, [13, 14])
    second[1] |= {"length": 2}  # the first of three ranks has no position
    second.append(PREDICTED | {"seed": seed + 900, "frozen": False, "steps": 1})
    run_world(grade, 2, first[:1])
    run_world(grade, 2, first[1:])
    world = run_world(grade, 3, second)
    sent = judge_bytes(grade, world, second) / MICRO_BATCHES
    grade.measured("world of 3, one block: bytes that a rank sends in forward and backward", f"{sent:,.0f}")
    if seen := world.values[0][-1]["seen"]:
        grade.measured("positions that the norm saw on rank 0", f"{max(seen)} of {PREDICTED['length']}")
    grade.predicted("bytes-sent", sent)


def draw_cases(draw, seed, inner):
    """Draw sizes that 2 and 3 do not divide; the second model has a frozen norm."""
    usual = {"batch": draw.choice([1, 3]), "length": draw.choice([5, 7]), "width": draw.choice([5, 7])}
    usual |= {"vocabulary": 6, "steps": 2}
    cases = [{"blocks": 1, "frozen": False}, {"blocks": 2, "frozen": True}]
    return [usual | case | {"inner": inner[n], "seed": seed + 100 * n} for n, case in enumerate(cases)]


def run_world(grade, size, cases):
    world = grade.world(size, {"cases": cases}, seconds=4.0)
    for n, case in enumerate(cases):
        judge_case(grade, world, n, case)
    return world


def cut(name, whole, rank, size):
    """Return a rank's part of a parameter, or of its gradient."""
    if whole is None or not is_divided(name):
        return whole
    return whole[:, part_of(whole.shape[1], rank, size)] if ".down." in name else whole[part_of(len(whole), rank, size)]


def is_divided(name):
    return ".up." in name or ".down." in name


def close(found, expected):
    if found is None or expected is None:
        return found is expected
    if found.shape != expected.shape:
        return False
    largest = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def all_close(found, expected):
    return all(close(a, b) for a, b in zip(found, expected, strict=True))


# ---- one case --------------------------------------------------------------------------------------------------------


def judge_case(grade, world, n, case):
    size, found = world.size, [rank[n] for rank in world.values]
    where = f"World of {size}, {case['length']} positions, {count(case['blocks'], 'block')}"
    judge_waits(grade, where, world)
    whole = Whole(case)
    for step in range(case["steps"]):
        at, parts = f"{where}, step {step + 1}", rank_parts(whole, case, step, size)
        outputs = run(whole, case, step)
        own = [[y[:, part_of(case["length"], rank, size)] for y in outputs] for rank in range(size)]
        for rank, one in enumerate(found):
            if not all_close(one["steps"][step]["outputs"], own[rank]):
                ranks = [f["steps"][step]["outputs"][0] for f in found]
                explain_output(grade, at, whole, case, step, ranks, [ys[0] for ys in own])
        judge_positions(grade, where, case, size, found)
        gradients = move(whole.named())
        judge_gradients(grade, at, case, [one["steps"][step]["gradients"] for one in found], gradients, parts)
    for rank, one in enumerate(found):
        for name, p in whole.named().items():
            text = f"{where}, rank {rank}, after {count(case['steps'], 'step')}: {name}"
            if not close(one["weights"].get(name), cut(name, p.detach(), rank, size)):
                grade.reject_different(one["weights"].get(name), cut(name, p.detach(), rank, size), text)


def run(whole, case, step):
    outputs = []
    for micro_batch in range(MICRO_BATCHES):
        tokens_BT, gradient_BTD = batch(case, step, micro_batch)
        y_BTD = whole(tokens_BT)
        y_BTD.backward(gradient_BTD)
        outputs.append(y_BTD.detach())
    return outputs


def judge_waits(grade, where, world):
    for rank, calls in enumerate(world.calls):
        started = [call for call in calls if call.is_async]
        waited = sum(call.waited for call in started)
        if waited < len(started):
            text = f"{where}, rank {rank}: you started {count(len(started), 'operation')} and waited for {waited}."
            grade.reject("not-waited", text)


def judge_positions(grade, where, case, size, found):
    """Reject norms that see more than the rank's slice; the numbers are right."""
    for rank, one in enumerate(found):
        own = part_of(case["length"], rank, size)
        if one["seen"] and max(one["seen"]) > own.stop - own.start:
            text = f"a block's norm saw {max(one['seen'])} positions; the rank's slice has {own.stop - own.start}."
            grade.reject("norm-on-everything", f"{where}, rank {rank}: the output is right, but {text}")


@torch.no_grad()
def slices_after(whole, case, tokens_BT, size, way):
    """Return each rank's output if a block adds what `way` makes of the ranks' products, not their sum."""
    parts = [part_of(case["inner"], rank, size) for rank in range(size)]
    own = [part_of(case["length"], rank, size) for rank in range(size)]
    xs = [whole.embed(tokens_BT[:, one]) for one in own]
    for norm, up, down in zip(whole.norms, whole.ups, whole.downs, strict=True):
        h_BTF = torch.tanh(up(norm(torch.cat(xs, 1))))
        products = [h_BTF[..., one] @ down.weight[:, one].T for one in parts]
        xs = [x + way(rank, products, down.bias)[:, own[rank]] for rank, x in enumerate(xs)]
    return [whole.norm(x) for x in xs]


def explain_output(grade, where, whole, case, step, found, right) -> NoReturn:
    size, (tokens_BT, _) = len(found), batch(case, step, 0)
    rank = next((r for r in range(size) if not close(found[r], right[r])), 0)
    says = f"{where}, rank {rank}: the output for its slice is not that of one process."
    if found[rank].shape != right[rank].shape:
        text = f"It has the shape {list(found[rank].shape)}, expected {list(right[rank].shape)}."
        is_whole = found[rank].shape[1:2] == torch.Size([case["length"]])
        grade.reject("never-scattered" if is_whole else "unknown", f"{says} {text}")
    ways = {
        "never-summed": (lambda r, p, b: p[r] + b, "A block added the product of this rank's part of the width only."),
        "mean-of-products": (lambda r, p, b: sum(p) / size + b, f"A block added 1/{size} of the sum of products."),
        "bias-on-every-rank": (lambda r, p, b: sum(p) + size * b, f"A block added the bias {size} times."),
        "bias-left-out": (lambda r, p, b: sum(p), "A block did not add its bias."),
    }
    for id, (way, text) in ways.items():
        if all_close(found, slices_after(whole, case, tokens_BT, size, way)):
            grade.reject(id, f"{says} {text}")
    grade.reject_different(found[rank], right[rank], f"{says} It")


# ---- gradients -------------------------------------------------------------------------------------------------------


def rank_parts(whole, case, step, size):
    """Return, for each micro-batch and rank, the gradients from its positions: of all columns, and of its own only."""
    found = []
    for micro_batch in range(MICRO_BATCHES):
        tokens_BT, gradient_BTD = batch(case, step, micro_batch)
        named = {name: p for name, p in whole.named().items() if p.requires_grad}
        ranks = []
        for rank in range(size):
            own, columns = part_of(case["length"], rank, size), part_of(case["inner"], rank, size)
            y_BtD, z_BtD = whole(tokens_BT[:, own]), whole(tokens_BT[:, own], columns)
            grads = (torch.autograd.grad(one, list(named.values()), gradient_BTD[:, own]) for one in (y_BtD, z_BtD))
            ranks.append([dict(zip(named, one, strict=True)) for one in grads])
        found.append(ranks)
    return found


def judge_gradients(grade, where, case, found, right, parts):
    size = len(found)
    names = [name for name in right if is_divided(name)] + [name for name in right if not is_divided(name)]
    wrong = [
        name
        for name in names
        if not all_close([one[name] for one in found], [cut(name, right[name], rank, size) for rank in range(size)])
    ]
    if wrong:
        explain_gradients(grade, where, case, found, right, parts, wrong)


def explain_gradients(grade, where, case, found, right, parts, wrong) -> NoReturn:
    size = len(found)
    whole = [name for name in wrong if not is_divided(name)]
    for name in wrong:
        expected = [cut(name, right[name], rank, size) for rank in range(size)]
        rank = next(r for r in range(size) if not close(found[r][name], expected[r]))
        says = f"{where}, rank {rank}: the gradient of {name}"
        ways = divided_ways(name, right, parts, size) if is_divided(name) else whole_ways(name, right, parts, size)
        for id, (gradients, text) in ways.items():
            if all_close([one[name] for one in found], gradients):
                if id == "gradient-of-slice":
                    explain_unsummed(grade, f"{says} {text}", whole, right)
                grade.reject(id.split(".")[0], f"{says} {text}")
    name = wrong[0]
    expected = [cut(name, right[name], rank, size) for rank in range(size)]
    rank = next(r for r in range(size) if not close(found[r][name], expected[r]))
    says = f"{where}, rank {rank}: the gradient of {name}"
    grade.reject_different(found[rank][name], expected[rank], says)


def explain_unsummed(grade, says, wrong, right) -> NoReturn:
    """Name the kind of parameter whose gradients were not summed."""
    trained = [name for name, gradient in right.items() if gradient is not None and not is_divided(name)]
    summed = [name for name in trained if name not in wrong]
    says += f" You summed {'no gradient' if not summed else 'that of ' + ', '.join(summed)}."
    kinds = {
        "final-norm-forgotten": lambda name: name.startswith("norm."),
        "bias-forgotten": lambda name: name.endswith("].bias") or (name.startswith("blocks") and name.count(".") == 2),
        "embedding-forgotten": lambda name: name.startswith("embed"),
    }
    for id, is_kind in kinds.items():
        if set(wrong) == {name for name in trained if is_kind(name)}:
            grade.reject(id, says)
    grade.reject("gradient-of-slice", says)


def whole_ways(name, right, parts, size):
    """Return wrong gradients of a parameter that every rank has, by misconception."""
    if right[name] is None:
        return {}
    ranks = range(size)
    own = [sum(micro[rank][0][name] for micro in parts) for rank in ranks]
    columns = [sum(micro[rank][1][name] for micro in parts) for rank in ranks]
    sums = [sum(micro[rank][0][name] for rank in ranks) for micro in parts]
    again = size * sums[0] + sum(sums[1:])
    return {
        "gradient-of-slice": (own, "is that of the rank's own positions."),
        "mean-of-slices": ([right[name] / size] * size, f"is 1/{size} of the whole sequence's, on every rank."),
        "summed-again": ([right[name] * size] * size, f"is {size}.000 times the whole sequence's, on every rank."),
        "summed-in-each-backward": (
            [again] * size,
            f"contains the first micro-batch {size} times, and the second once.",
        ),
        "one-ranks-slice": ([own[0]] * size, "is that of rank 0's positions, on every rank."),
        "input-gradient-in-parts": (
            [sum(columns)] * size,
            "has, for each position, only what comes through the columns of the rank with that position.",
        ),
        "input-gradient-in-parts.2": (
            columns,
            "is that of the rank's own positions, through the rank's own columns of the inner width.",
        ),
    }


def divided_ways(name, right, parts, size):
    """Return wrong gradients of a parameter of which each rank has a part, by misconception."""
    ranks = range(size)
    own = [cut(name, sum(micro[rank][0][name] for micro in parts), rank, size) for rank in ranks]
    whole = [cut(name, right[name], rank, size) for rank in ranks]
    ways = {
        "own-positions-only": (own, "has only the rank's own positions, and the rank computed with all of them."),
        "gradient-divided": ([one / size for one in whole], f"is 1/{size} of the whole model's."),
        "gathered-and-summed": ([one * size for one in whole], f"is {size}.000 times the whole model's."),
    }
    if len({one.shape for one in whole}) == 1:
        text = "is the sum of the gradients of all ranks' parts, and these are different columns."
        ways["sums-what-is-divided"] = ([sum(whole)] * size, text)
        ways["sums-what-is-divided.2"] = ([sum(whole) / size] * size, f"{text[:-1]}, divided by {size}.")
    return ways


# ---- bytes -----------------------------------------------------------------------------------------------------------


def last_calls(world):
    """Return rank 0's calls in forward and backward of the last case's only step."""
    marks = [n for n, call in enumerate(world.calls[0]) if call.numel == MARK and "int8" in call.dtype]
    return world.calls[0][marks[-3] + 1 : marks[-2]]


def sent_by(call, size):
    """Return the bytes that a rank sends in a ring."""
    if "all_reduce" in call.op:
        return 2 * (size - 1) / size * call.num_bytes
    return call.num_bytes * (size - 1 if "all_gather" in call.op else (size - 1) / size)


def judge_bytes(grade, world, cases):
    """Compare the bytes of the last case, in which x is large, with those of gathers and scatters; return them."""
    case, calls, size = cases[-1], last_calls(world), world.size
    numel = case["batch"] * case["width"] * case["length"]
    expected = 4 * (size - 1) / size * 4 * numel * MICRO_BATCHES
    found = sum(sent_by(call, size) for call in calls)
    says = (
        f"World of {size}, {case['length']} positions: the numbers are right. In forward and backward of a micro-batch "
        f"a rank sends {found / MICRO_BATCHES:,.0f} bytes; an all-gather and a reduce-scatter of x in each take "
        f"{expected / MICRO_BATCHES:,.0f}."
    )
    large = [call for call in calls if "all_reduce" in call.op and call.numel >= numel // 2]
    if large:
        num = count(len(large) // MICRO_BATCHES, "all-reduce")
        text = f"You called {num} of {large[0].numel:,} numbers: the whole x."
        grade.reject("all-reduces", f"{says} {text}")
    if found >= 1.95 * expected:
        grade.reject("unknown", says)
    if found > 1.1 * expected:
        grade.note(says)
    return found
