"""Compare two steps with the whole layer in one process, and the bytes with those of the shared heads."""

import random
from typing import NoReturn

import torch
from ranks import MARK, MICRO_BATCHES, STEPS, Attention, batch, move, parameters_of, run_step

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

LARGE = {"heads": 32, "kv_heads": 8, "width": 3, "head_width": 2, "bias": False, "frozen": False}
"""The layer of the prediction. It is built, and does not run."""


def check(grade: Grade) -> None:
    draw, seed = random.Random(grade.seed), grade.seed % 1_000_000
    built = [*draw_cases(draw, seed, [(10, 5), (10, 2), (4, 1)]), LARGE | {"seed": seed}]
    large = [rank[-1] for rank in run_world(grade, 3, [case | {"runs": False} for case in built])[0].values]
    first, cases = run_world(grade, 2, draw_cases(draw, seed + 500, [(9, 3), (10, 5), (5, 1)]))
    second, others = run_world(grade, 3, built[:-1])
    grade.predicted("kv-heads", sum(len(rank["start"]["k.weight"]) for rank in large) / LARGE["head_width"])
    for world, drawn in ((first, cases), (second, others)):
        judge_bytes(grade, world, drawn)
    text = ", ".join(f"{len(query_heads(cases[0], rank, 2))} and {held(first, cases[0], rank)}" for rank in range(2))
    grade.measured("world of 2, 9 query heads, 3 key/value heads: both kinds on each rank", text)
    grade.measured("the same: bytes that rank 0 sends for the shared head", f"{sent_for_sums(first)[0]:,.0f}")


def draw_cases(draw, seed, pairs):
    """Draw sizes that nothing divides; the second case has a frozen k and no biases."""
    sizes = {"length": draw.choice([5, 7]), "batch": draw.choice([1, 3]), "width": draw.choice([11, 13])}
    usual = sizes | {"head_width": draw.choice([3, 5]), "bias": True, "frozen": False, "runs": True}
    cases = [usual | {"heads": heads, "kv_heads": kv_heads} for heads, kv_heads in pairs]
    cases[1] |= {"bias": False, "frozen": True}
    return [case | {"seed": seed + 100 * n} for n, case in enumerate(cases)]


def run_world(grade, size, cases):
    world = grade.world(size, {"cases": cases}, seconds=4.0)
    for n, case in enumerate(cases):
        judge_case(grade, world, n, case)
    return world, cases


# ---- heads -----------------------------------------------------------------------------------------------------------


def query_heads(case, rank, size):
    return list(range(rank * case["heads"] // size, (rank + 1) * case["heads"] // size))


def kv_heads(case, rank, size):
    group = case["heads"] // case["kv_heads"]
    return sorted({head // group for head in query_heads(case, rank, size)})


def users(case, size):
    """Return, for each key/value head, the ranks that use it."""
    return [[r for r in range(size) if head in kv_heads(case, r, size)] for head in range(case["kv_heads"])]


def held(world, case, rank):
    return len(world.values[rank][0]["start"]["k.weight"]) // case["head_width"]


def cut(name, whole, case, rank, size):
    """Return a rank's part of a parameter, or of its gradient."""
    if whole is None:
        return None
    if name == "o.weight":
        return whole.unflatten(1, (case["heads"], -1))[:, query_heads(case, rank, size)].flatten(1)
    if name.startswith("q"):
        return whole.unflatten(0, (case["heads"], -1))[query_heads(case, rank, size)].flatten(0, 1)
    return whole.unflatten(0, (case["kv_heads"], -1))[kv_heads(case, rank, size)].flatten(0, 1)


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
    where = f"World of {size}, {case['heads']} query heads, {count(case['kv_heads'], 'key/value head')}"
    whole = Attention(case)
    whole.k.requires_grad_(not case["frozen"])
    start = {name: p.detach().clone() for name, p in parameters_of(whole).items()}
    sums = sum_calls(world)[STEPS * n :]
    if any(not is_layout(one["start"], start, case, rank, size) for rank, one in enumerate(found)):
        explain_layout(grade, where, case, [one["start"] for one in found], start)
    for step in range(STEPS if case["runs"] else 0):
        at = f"{where}, step {step + 1}"
        parts = own_parts(whole, case, step, size)
        right = run_step(whole, case, step)
        outputs = [one["steps"][step]["y"] for one in found]
        if not all(all_close(one, right["y"]) for one in outputs):
            explain_output(grade, at, [one[0] for one in outputs], right["y"][0], whole, case, step)
        gradients = move(parameters_of(whole))
        steps = [one["steps"][step] for one in found]
        judge_gradients(grade, world, at, case, steps, gradients, parts, sums[step])
        for rank, one in enumerate(found):
            if not all_close(one["steps"][step]["x.grad"], right["x.grad"]):
                text = f"{at}, rank {rank}: the gradient of x"
                grade.reject_different(one["steps"][step]["x.grad"], right["x.grad"], text)
    weights = {name: p.detach() for name, p in parameters_of(whole).items()}
    for rank, one in enumerate(found):
        for name, weight in weights.items():
            if not close(one["weights"][name], cut(name, weight, case, rank, size)):
                text = f"{where}, rank {rank}, after {STEPS} steps: {name}"
                grade.reject_different(one["weights"][name], cut(name, weight, case, rank, size), text)


def is_layout(found, whole, case, rank, size):
    return all(close(found.get(name), cut(name, whole[name], case, rank, size)) for name in whole)


def heads_in(weight, whole, width):
    """Return the key/value heads whose rows a weight has, in its order."""
    blocks = weight.split(width) if len(weight) % width == 0 else []
    return [head for block in blocks for head, one in enumerate(whole.split(width)) if close(block, one)]


def explain_layout(grade, where, case, found, whole) -> NoReturn:
    """Find which heads of k the ranks hold."""
    size, num, width = len(found), case["kv_heads"], case["head_width"]
    group, ranks, part = case["heads"] // num, range(size), -(-num // size)
    right, queries = ([one(case, rank, size) for rank in ranks] for one in (kv_heads, query_heads))
    heads = [heads_in(one["k.weight"], whole["k.weight"], width) for one in found]
    everything = list(range(num))
    ways = {
        "keeps-all-kv-heads": [everything] * size,
        "divided-alone": [everything[rank * num // size : (rank + 1) * num // size] for rank in ranks],
        "divided-alone.2": [everything[rank * part : (rank + 1) * part] for rank in ranks],
        "divided-alone.3": [everything[rank * (num // size) : (rank + 1) * (num // size)] for rank in ranks],
        "tiled-heads": [sorted({head % num for head in one}) for one in queries],
        "one-per-query-head": [[head // group for head in one] for one in queries],
    }
    rank = next(rank for rank in ranks if not is_layout(found[rank], whole, case, rank, size))
    says = (
        f"{where}, rank {rank}: its query heads {queries[rank][0]} to {queries[rank][-1]} use the key/value heads "
        f"{listed(right[rank])}; the rank has {listed(heads[rank])}."
    )
    for id, candidate in ways.items():
        if heads == candidate and heads != right:
            grade.reject(id.split(".")[0], says)
    if heads != right and all(set(one) <= set(own) for one, own in zip(heads, right, strict=True)) and all(heads):
        grade.reject("head-missing", says)
    if heads != right and all(set(one) >= set(own) for one, own in zip(heads, right, strict=True)):
        grade.reject("head-too-many", says)
    name = next(n for n in whole if not close(found[rank].get(n), cut(n, whole[n], case, rank, size)))
    expected = cut(name, whole[name], case, rank, size)
    grade.reject_different(found[rank].get(name), expected, f"{where}, rank {rank}: {name}")


def listed(numbers):
    *most, last = [str(number) for number in numbers] or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


def explain_output(grade, where, found, right, whole, case, step) -> NoReturn:
    """Find which key/value head each query head used. Every rank has the right ones."""
    size, (x_BTD, _) = len(found), batch(case, step, 0)
    rank = next(rank for rank, y in enumerate(found) if not close(y, right))
    says = f"{where}, rank {rank}: the output is not the whole layer's."
    ranks = [(query_heads(case, r, size), kv_heads(case, r, size)) for r in range(size)]
    group = case["heads"] // case["kv_heads"]
    maps = {
        "tiled-heads": lambda i, heads, own: own[i % len(own)],
        "counted-from-zero": lambda i, heads, own: own[min(i // group, len(own) - 1)],
        "equal-groups": lambda i, heads, own: own[min(i // -(-len(heads) // len(own)), len(own) - 1)],
        "equal-groups.2": lambda i, heads, own: own[i * len(own) // len(heads)],
        "equal-groups.3": lambda i, heads, own: own[min(i // max(len(heads) // len(own), 1), len(own) - 1)],
        "first-head-for-all": lambda i, heads, own: own[0],
    }
    for id, kv_of in maps.items():
        parts = []
        for heads, own in ranks:
            used = {head: kv_of(i, heads, own) for i, head in enumerate(heads)}
            parts.append(whole.attend(x_BTD, heads, used.__getitem__).detach())
        if all_close(found, [sum(parts)] * size):
            heads, own = ranks[rank]
            i = next((i for i, head in enumerate(heads) if kv_of(i, heads, own) != head // group), None)
            if i is None:  # this rank is right, and another one's part of the sum is not
                heads, own = next(one for one in ranks if differs(one, kv_of, group))
                i = next(i for i, head in enumerate(heads) if kv_of(i, heads, own) != head // group)
            text = f"Query head {heads[i]} belongs to key/value head {heads[i] // group}"
            grade.reject(id.split(".")[0], f"{says} {text}, and was given {kv_of(i, heads, own)}.")
    parts = [whole.attend(x_BTD, heads, lambda head: head // group).detach() for heads, _ in ranks]
    if all_close(found, parts):
        grade.reject("never-summed", f"{says} It is the part from this rank's heads.")
    grade.reject_different(found[rank], right, f"{says} It")


def differs(one, kv_of, group):
    heads, own = one
    return any(kv_of(i, heads, own) != head // group for i, head in enumerate(heads))


# ---- gradients -------------------------------------------------------------------------------------------------------


def own_parts(whole, case, step, size):
    """Return, for each micro-batch and rank, the gradients that come from the rank's query heads."""
    group, found = case["heads"] // case["kv_heads"], []
    for micro_batch in range(MICRO_BATCHES):
        x_BTD, gradient_BTD = batch(case, step, micro_batch)
        named = {name: p for name, p in parameters_of(whole).items() if p.requires_grad}
        ranks = []
        for rank in range(size):
            y_BTD = whole.attend(x_BTD, query_heads(case, rank, size), lambda head: head // group)
            grads = torch.autograd.grad(y_BTD, list(named.values()), gradient_BTD)
            ranks.append(dict(zip(named, grads, strict=True)))
        found.append(ranks)
    return found


def judge_gradients(grade, world, where, case, found, right, parts, calls):
    size = world.size
    wrong = []
    for name, gradient in right.items():
        for rank, one in enumerate(found):
            if not close(one["gradients"][name], cut(name, gradient, case, rank, size)):
                wrong.append((name, rank))
    if wrong:
        explain_gradients(grade, world, where, case, found, right, parts, calls, wrong)


def explain_gradients(grade, world, where, case, found, right, parts, calls, wrong) -> NoReturn:
    size, (name, rank) = world.size, wrong[0]
    gradient, expected = found[rank]["gradients"][name], cut(name, right[name], case, rank, size)
    says = f"{where}, rank {rank}: the gradient of {name}"
    if gradient is None or expected is None or gradient.shape != expected.shape or name[0] not in "kv":
        grade.reject_different(gradient, expected, says)
    started = [call for call in world.calls[rank] if call.is_async]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        text = f"{says} is not complete: you started {count(len(started), 'operation')} and waited for {waited}."
        grade.reject("not-waited", text)
    ways = gradient_ways(case, name, size, right[name], parts)
    names = sorted({n for n, _ in wrong})
    for id, (by_rank, text) in ways.items():
        if all_close([one["gradients"][name] for one in found], by_rank):
            explain_way(grade, calls, says, id.split(".")[0], text, names, case)
    grade.reject_different(gradient, expected, says)


def explain_way(grade, calls, says, id, text, names, case) -> NoReturn:
    """Reject gradients that a known mistake gives; only some of the parameters may have it.

    calls:  those of this sum_shared_gradients on rank 0.
    """
    trained = [n for n in ("k.weight", "v.weight", "v.bias") if case["bias"] or "bias" not in n]
    trained = [n for n in trained if not (case["frozen"] and n[0] == "k")]
    others = [n for n in trained if n not in names]
    if id == "shared-not-summed" and others:
        is_right = "That of {} is right." if len(others) == 1 else "Those of {} are right."
        grade.reject("some-not-summed", f"{says} {text} {is_right.format(listed(others))}")
    num = len([call for call in calls if "reduce" in call.op])
    if id == "shared-not-summed" and num:
        text = f"{text} sum_shared_gradients called {count(num, 'all-reduce')}; no gradient is its result."
        grade.reject("result-dropped", f"{says} {text}")
    if id == "shared-not-summed" and case["frozen"]:
        text = f"{text} Here k is frozen, and no layer has a bias; where k is trained, with biases, it is right."
        grade.reject("stops-at-none", f"{says} {text}")
    grade.reject(id, f"{says} {text}")


def gradient_ways(case, name, size, right, parts):
    """Return wrong gradients of a parameter on all ranks, by misconception."""
    own = [[micro[rank][name] for rank in range(size)] for micro in parts]
    sums = [sum(micro) for micro in own]
    total = [sum(micro[rank] for micro in own) for rank in range(size)]
    used_by = users(case, size)
    factor = torch.tensor([float(len(ranks)) for ranks in used_by])
    by_head = factor.repeat_interleave(case["head_width"]).reshape(-1, *[1] * (right.dim() - 1))
    local = [cut(name, one, case, rank, size) for rank, one in enumerate(total)]
    firsts = [total[ranks[0]].unflatten(0, (case["kv_heads"], -1))[head] for head, ranks in enumerate(used_by)]
    first = torch.cat([one.reshape(-1, *right.shape[1:]) for one in firsts])
    again = by_head * sums[0] + sums[1]
    shared = [head for head, ranks in enumerate(used_by) if len(ranks) > 1]
    head = shared[0]
    place = f"key/value head {head} (on ranks {listed(used_by[head])})"
    every = lambda one: [cut(name, one, case, rank, size) for rank in range(size)]  # noqa: E731
    ways = {
        "shared-not-summed": (local, f"is the part from the rank's own query heads, also for {place}."),
        "mean-of-copies": (every(right / by_head), f"is 1/{len(used_by[head])} of the whole layer's for {place}."),
        "mean-of-copies.2": (
            every(torch.where(by_head > 1, right / size, right)),
            f"is 1/{size} of the whole layer's for {place}.",
        ),
        "mean-of-copies.3": (every(right / size), f"is 1/{size} of the whole layer's."),
        "summed-in-each-backward": (
            every(again),
            f"contains, for {place}, the first micro-batch {len(used_by[head])} times, and the second once.",
        ),
        "one-ranks-part": (every(first), f"is, for {place}, only the part from rank {used_by[head][0]}'s query heads."),
    }
    if len({len(one) for one in local}) == 1:
        firsts = listed(kv_heads(case, rank, size)[0] for rank in range(size))
        text = f"is the sum of the ranks' gradients, place by place. The ranks' first key/value heads are {firsts}."
        ways["adds-different-heads"] = ([sum(local)] * size, text)
    return ways


# ---- bytes -----------------------------------------------------------------------------------------------------------


def sum_calls(world):
    """Return the calls of each sum_shared_gradients on rank 0."""
    found, is_inside = [], False
    for call in world.calls[0]:
        if call.numel == MARK and "int8" in call.dtype:
            is_inside = not is_inside
            found += [[]] if is_inside else []
        elif is_inside:
            found[-1].append(call)
    return found


def sent(call):
    """Return the bytes that a rank sends, in a ring of the call's group or as a message."""
    size = len(call.group)
    if "all_reduce" in call.op:
        return 2 * (size - 1) / size * call.num_bytes
    if "recv" in call.op:
        return 0.0
    return call.num_bytes * (size - 1 if "all_gather" in call.op else 1)


def sent_for_sums(world):
    """Return the bytes that rank 0 sends in each sum_shared_gradients."""
    return [sum(map(sent, calls)) for calls in sum_calls(world)]


def judge_bytes(grade, world, cases):
    for n, case in enumerate(case for case in cases if case["runs"]):
        shared = sum(len(ranks) > 1 for ranks in users(case, world.size))
        of_head = 4 * case["head_width"] * (case["width"] * (1 if case["frozen"] else 2) + case["bias"])
        of_head *= 2 * (world.size - 1) / world.size
        found = sent_for_sums(world)[STEPS * n]
        says = (
            f"World of {world.size}, {count(case['kv_heads'], 'key/value head')}, {shared} on several ranks: the "
            f"gradients are right. In sum_shared_gradients, rank 0 sends {found:,.0f} bytes; a ring all-reduce of the "
            f"shared heads' gradients sends {shared * of_head:,.0f}."
        )
        if found >= 1.95 * shared * of_head:
            is_all = abs(found - case["kv_heads"] * of_head) <= 0.05 * found
            grade.reject("sends-all-kv-heads", says) if is_all else grade.reject("unknown", says)
        if found > 1.1 * shared * of_head and not grade.notes:
            grade.note(says)
