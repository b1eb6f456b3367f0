"""Compare with torch's causal attention of the whole sequence, forward and backward; count what each kind sends."""

import itertools
import random
from typing import NoReturn

import torch
from ranks import BACKWARD, BATCH, FORWARD, KINDS, WIDTH, sequence

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts

NAMES = {"gather": "gather_attention", "ring": "ring_attention", "head": "head_attention"}
MOST_UNEVEN = 1.2
"""Largest number of pairs of a rank, relative to the mean."""
SHIFT = 120
"""A score whose exponential float32 can't hold; with the other sign, one whose exponential is 0."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    seed = grade.seed % 10**6
    lengths = {3: [27], 2: [21, 9, draw.choice([30, 31, 33])], 4: [32]}
    largest = 0.0
    for size, of_size in lengths.items():
        heads = 4 if size == 4 else 5
        cases = [{"seed": seed + n, "length": length, "heads": heads} for n, length in enumerate(of_size)]
        if size == 2:
            cases += [cases[1] | {"shift": shift} for shift in (SHIFT, -SHIFT)]
        world = grade.world(size, {"cases": cases}, seconds=4.0)
        for n, case in enumerate(cases):
            found = [value[n] for value in world.values]
            judge_positions(grade, case, found[0]["positions"])
            for kind in KINDS:
                if "shift" in case:
                    judge_shifted(grade, case, kind, found)
                else:
                    largest = max(largest, judge_kind(grade, case, kind, found))
        for kind in KINDS:
            judge_messages(grade, world, cases, kind)
    grade.measured("largest difference to attention in one process, with gradients", f"{largest:.1e}")
    report(grade, world, cases)


# ---- which positions -------------------------------------------------------------------------------------------------


def listed(numbers):
    """Return the first numbers, as text."""
    shown = ", ".join(map(str, numbers[:12]))
    return f"{shown}, ..." if len(numbers) > 12 else shown or "nothing"


def judge_positions(grade, case, parts):
    length, size = case["length"], len(parts)
    everything = sorted(itertools.chain(*parts))
    if everything != list(range(length)):
        explain_cover(grade, length, parts)
    pairs = [sum(position + 1 for position in part) for part in parts]
    if max(pairs) > MOST_UNEVEN * sum(pairs) / size:
        explain_balance(grade, length, parts, pairs)


def explain_cover(grade, length, parts) -> NoReturn:
    """Reject parts that leave positions out, or have some twice."""
    size, seen = len(parts), list(itertools.chain(*parts))
    missing = [position for position in range(length) if position not in seen]
    twice = [position for position in sorted(set(seen)) if seen.count(position) > 1]
    text = f"{length} positions, {size} ranks: "
    if missing and not twice and missing == list(range(length // (2 * size) * 2 * size, length)):
        text += f"no rank has {'position' if len(missing) == 1 else 'positions'} {listed(missing)}."
        grade.reject("rest-left-out", text)
    if parts == by_chunk(length, size):
        text += f"{count(len(twice), 'position has', 'positions have')} two ranks ({listed(twice)}). "
        grade.reject("uneven-chunks", text + about_chunk(length, size))
    shown = "; ".join(f"rank {rank}: {listed(part)}" for rank, part in enumerate(parts))
    grade.reject("unknown", f"{text}each position must have one rank. Found {shown}.")


def by_chunk(length, size):
    """Return the parts of the ranks that torch.chunk gives."""
    chunks = torch.arange(length).chunk(2 * size)
    if len(chunks) < size:
        return None
    return [torch.cat([chunks[rank], chunks[-1 - rank]]).tolist() for rank in range(size)]


def about_chunk(length, size):
    """Describe the chunks that torch.chunk makes."""
    nums = [len(chunk) for chunk in torch.arange(length).chunk(2 * size)]
    return f"Asked for {2 * size} chunks of {length}, torch.chunk makes {len(nums)}: of {listed(nums)}."


def explain_balance(grade, length, parts, pairs) -> NoReturn:
    """Reject parts with which one rank has much more to compute than another."""
    size, (*first, last) = len(parts), map(str, pairs)
    text = f"{length} positions, {size} ranks: the queries of the ranks see {', '.join(first)} and {last} keys in all. "
    text += f"The rank with the most has {size * max(pairs) / sum(pairs):.2f} times the mean."
    if parts == by_chunk(length, size):
        grade.reject("uneven-chunks", f"{text} {about_chunk(length, size)}")
    if all(part == list(range(part[0], part[0] + len(part))) for part in parts if part):
        grade.reject("contiguous-parts", f"{text} Rank 0 has positions {listed(parts[0])}.")
    chunks = [chunk.tolist() for chunk in torch.arange(length).tensor_split(2 * size)]
    if all(sorted(part) == sorted(chunks[rank] + chunks[rank + size]) for rank, part in enumerate(parts)):
        grade.reject(
            "late-with-late", f"{text} Rank 0 has chunks 0 and {size}, rank {size - 1} {size - 1} and {2 * size - 1}."
        )
    grade.reject("uneven-parts", text)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def oracle(case):
    """Return the result of torch's causal attention and the gradients of q, k and v."""
    q, k, v, gradient = sequence(case)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.backward(gradient)
    return [y.detach(), q.grad, k.grad, v.grad]


def close(a, b):
    return isinstance(a, torch.Tensor) and a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=2e-5)


def judge_kind(grade, case, kind, found):
    """Return the largest difference to the oracle."""
    parts, right, largest = found[0]["positions"], oracle(case), 0.0
    where = f"{NAMES[kind]}, {len(parts)} ranks, {case['length']} positions"
    for rank, part in enumerate(parts):
        if not close(found[rank][kind][0], right[0][:, :, part]):
            explain_result(grade, case, kind, found, right[0], where)
    for rank, part in enumerate(parts):
        for n, name in enumerate("qkv", 1):
            if not close(found[rank][kind][n], right[n][:, :, part]):
                explain_gradient(grade, case, kind, found, right, f"{where}, rank {rank}", rank, (n, name))
        pairs = zip(found[rank][kind], right, strict=True)
        largest = max([largest, *((seen - one[:, :, part]).abs().max().item() for seen, one in pairs)])
    return largest


def judge_shifted(grade, case, kind, found):
    """Compare roughly, since scores as large as these are rounded."""
    parts, right = found[0]["positions"], oracle(case)
    for rank, part in enumerate(parts):
        for n, name in enumerate(("the result", "the gradient of q", "the gradient of k", "the gradient of v")):
            seen, expected = found[rank][kind][n], right[n][:, :, part]
            if torch.allclose(seen, expected, rtol=1e-2, atol=1e-2):
                continue
            where = f"{NAMES[kind]}, {len(parts)} ranks, all scores near {case['shift']}: {name} on rank {rank}"
            num = int((~seen.isfinite()).sum())
            if num == 0:
                grade.reject_different(seen, expected, where)
            text = f"{where} has {count(num, 'number')} of {seen.numel()} that {'is' if num == 1 else 'are'} nan or "
            grade.reject("overflows", f"{text}infinite. With scores between -20 and 20 it is right.")


def block(q, k, v, is_seen):
    scores = (q @ k.mT / WIDTH**0.5).masked_fill(~is_seen, torch.finfo(q.dtype).min / 4)
    log_sum = scores.logsumexp(-1, keepdim=True)
    return (scores - log_sum).exp() @ v, log_sum


def masks():
    """Return, for each misconception, which keys people let a query see.

    A function of positions, of their places in the ranks' parts, and of their ranks: (t, 1) for queries, (s) for keys.
    """
    return {
        "right": lambda qp, kp, qi, ki, qr, kr: qp >= kp,
        "sees-everything": lambda qp, kp, qi, ki, qr, kr: qp >= -1 - kp,
        "sees-others-whole": lambda qp, kp, qi, ki, qr, kr: (qp >= kp) | (qr != kr),
        "places-for-positions": lambda qp, kp, qi, ki, qr, kr: qi >= ki,
        "places-for-positions.2": lambda qp, kp, qi, ki, qr, kr: (qi >= ki) | (qr != kr),
        "ranks-in-order": lambda qp, kp, qi, ki, qr, kr: (qr > kr) | ((qr == kr) & (qp >= kp)),
        "ranks-in-order.2": lambda qp, kp, qi, ki, qr, kr: (qr > kr) | ((qr == kr) & (qi >= ki)),
        "skips-later-ranks": lambda qp, kp, qi, ki, qr, kr: (qr >= kr) & (qp >= kp),
        "not-itself": lambda qp, kp, qi, ki, qr, kr: qp > kp,
        "sees-the-future": lambda qp, kp, qi, ki, qr, kr: qp <= kp,
    }


def owner_masks(size):
    """The same for keys that are taken for those of another rank: their positions are other ones."""
    return {
        "another-ranks-positions": lambda rank, owner: (2 * rank - owner) % size,
        "another-ranks-positions.2": lambda rank, owner: (owner + 1) % size,
        "another-ranks-positions.3": lambda rank, owner: (owner - 1) % size,
    }


def emulate(case, parts, rank, is_seen, merge_rule="right", num_blocks=None):
    """Return what a rank computes with some mask and some way to merge blocks, in the order of the ring."""
    q, k, v, _ = sequence(case)
    size = len(parts)
    y = log_sum = None
    for step in range(num_blocks or size):
        owner = (rank - step) % size
        seen = is_seen(rank, owner)
        if seen is None:
            return None
        part, log_part = block(q[:, :, parts[rank]], k[:, :, parts[owner]], v[:, :, parts[owner]], seen)
        y, log_sum = (part, log_part) if y is None else fold(y, log_sum, part, log_part, merge_rule)
    return y / size if merge_rule == "mean" else y


def fold(y, log_sum, part, log_part, rule):
    """Merge two blocks in one of the ways that people write."""
    total = torch.logaddexp(log_sum, log_part)
    weights = (log_sum - total).exp(), (log_part - total).exp()
    return {
        "right": (y * weights[0] + part * weights[1], total),
        "sum": (y + part, total),
        "mean": (y + part, total),
        "halves": ((y + part) / 2, total),
        "unscaled": (y * log_sum.exp() + part * log_part.exp(), total),
        "old sum": (y * weights[0] + part * weights[1], log_sum),
        "new sum": (y * weights[0] + part * weights[1], log_part),
        "added sum": (y * weights[0] + part * weights[1], log_sum + log_part),
        "only new": (y + part * weights[1], total),
        "by logs": ((y * log_sum + part * log_part) / (log_sum + log_part), total),
        "exchanged": (y * weights[1] + part * weights[0], total),
    }[rule]


MERGES = {
    "sum": "adds-blocks",
    "mean": "averages-blocks",
    "halves": "averages-blocks",
    "unscaled": "not-divided",
    "old sum": "sum-not-updated",
    "new sum": "sum-not-updated",
    "added sum": "sum-not-updated",
    "only new": "first-not-scaled",
    "by logs": "weighted-by-logs",
    "exchanged": "weights-exchanged",
}


def ways(case, parts):
    """Yield each misconception with the function that returns what a rank computes with it."""
    size = len(parts)
    where = [torch.tensor(part) for part in parts]

    def of(rule, query_rank, key_rank):
        q, k = where[query_rank], where[key_rank]
        qi, ki = torch.arange(len(q)), torch.arange(len(k))
        ranks = torch.tensor(query_rank), torch.tensor(key_rank)
        return rule(q[:, None], k, qi[:, None], ki, *ranks).expand(len(q), len(k))

    def as_if(owner_rule, rank, owner):
        other = owner_rule(rank, owner) if owner != rank else rank
        if len(where[other]) != len(where[owner]):
            return None
        return where[rank][:, None] >= where[other]

    for id, rule in masks().items():
        if id != "right":
            yield id, lambda rank, rule=rule: emulate(case, parts, rank, lambda r, o: of(rule, r, o))
    right = masks()["right"]
    for rule, id in MERGES.items():
        yield id, lambda rank, rule=rule: emulate(case, parts, rank, lambda r, o: of(right, r, o), rule)
    yield "own-block-only", lambda rank: emulate(case, parts, rank, lambda r, o: of(right, r, o), num_blocks=1)
    if size > 2:
        blocks = size - 1
        yield (
            "last-block-left-out",
            lambda rank: emulate(case, parts, rank, lambda r, o: of(right, r, o), "right", blocks),
        )
    for id, rule in owner_masks(size).items():
        yield id, lambda rank, rule=rule: emulate(case, parts, rank, lambda r, o: as_if(rule, r, o))


def head_ways(case, parts):
    """Yield the same for an exchange of heads, where a rank has the whole sequence, in the order of ranks."""
    q, k, v, _ = sequence(case)
    order = torch.tensor(list(itertools.chain(*parts)))
    ranks = torch.cat([torch.full((len(part),), rank) for rank, part in enumerate(parts)])
    places, start = torch.arange(len(order)), 0
    starts = []
    for part in parts:
        starts.append(start)
        start += len(part)

    def cut(y, rank):
        return y[:, :, starts[rank] : starts[rank] + len(parts[rank])]

    def attention(is_seen):
        return block(q[:, :, order], k[:, :, order], v[:, :, order], is_seen.expand(len(order), len(order)))[0]

    seen = {
        "places-for-positions": places[:, None] >= places,
        "sees-everything": torch.tensor(True),
        "not-itself": order[:, None] > order,
        "sees-the-future": order[:, None] <= order,
        "ranks-in-order": (ranks[:, None] > ranks) | ((ranks[:, None] == ranks) & (order[:, None] >= order)),
        "own-block-only": (ranks[:, None] == ranks) & (order[:, None] >= order),
    }
    for id, is_seen in seen.items():
        yield id, lambda rank, is_seen=is_seen: cut(attention(is_seen), rank)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield "back-in-order", lambda rank: cut(whole, rank)


def explain_result(grade, case, kind, found, right, where) -> NoReturn:
    """Reject wrong results: find the mask or the merging that gives them on every rank."""
    parts, seen = found[0]["positions"], [one[kind][0] for one in found]
    shapes = [tuple(y.shape) if isinstance(y, torch.Tensor) else None for y in seen]
    rank = next(rank for rank, part in enumerate(parts) if not close(seen[rank], right[:, :, part]))
    expected = right[:, :, parts[rank]]
    if shapes[rank] != tuple(expected.shape):
        grade.reject_different(seen[rank], expected, f"{where}, rank {rank}: the result")
    wrong = [
        [position for n, position in enumerate(part) if not close(seen[r][:, :, n], right[:, :, position])]
        for r, part in enumerate(parts)
    ]
    gap = (seen[rank] - expected).abs().nan_to_num(torch.inf)
    place = [int(n) for n in torch.unravel_index(gap.argmax(), gap.shape)]
    numbers = distinct_texts(seen[rank][tuple(place)].item(), expected[tuple(place)].item(), 4)
    text = f"{where}: the results of {sum(map(len, wrong))} of {case['length']} positions are wrong; on rank {rank} "
    text += f"those of {listed(wrong[rank])}. At position {parts[rank][place[2]]} a number is {numbers[0]}, expected "
    text += f"{numbers[1]}."
    for id, way in ways(case, parts) if kind == "ring" else head_ways(case, parts):
        if fits(seen, [way(rank) for rank in range(len(parts))], parts):
            grade.reject(id.split(".")[0], text)
    grade.reject_different(seen[rank], expected, f"{text} Rank {rank}")


def fits(seen, results, parts):
    """True if all ranks have these results, except for position 0, which sees nothing with some masks."""
    for one, result, part in zip(seen, results, parts, strict=True):
        keep = [n for n, position in enumerate(part) if position > 0]
        if result is None or one.shape != result.shape:
            return False
        if not torch.allclose(one[:, :, keep], result[:, :, keep], rtol=1e-3, atol=2e-5, equal_nan=True):
            return False
    return True


def explain_gradient(grade, case, kind, found, right, where, rank, which) -> NoReturn:
    """Reject a wrong gradient of a right result."""
    (n, name), parts = which, found[0]["positions"]
    seen, expected = found[rank][kind][n], right[n][:, :, parts[rank]]
    text = f"{where}: all results are right, but the gradient of {name} is wrong."
    if seen is None:
        grade.reject("gradient-stays", f"{text} It is None.")
    text += f" Its norm is {seen.norm():.4g}, expected {expected.norm():.4g}."
    if name != "q":
        own = own_gradients(case, parts, rank)
        if close(seen, own[n - 2]):
            grade.reject("gradient-stays", f"{text} It is the part of this rank's own queries.")
    grade.reject_different(seen, expected, f"{text} The gradient of {name}")


def own_gradients(case, parts, rank):
    """Return the gradients of a rank's keys and values that come from its own queries."""
    q, k, v, gradient = sequence(case)
    k, v = k.requires_grad_(), v.requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y[:, :, parts[rank]].backward(gradient[:, :, parts[rank]])
    return k.grad[:, :, parts[rank]], v.grad[:, :, parts[rank]]


# ---- messages --------------------------------------------------------------------------------------------------------


def messages_of(calls, kind, direction):
    """Return the sends of one kind in forward or backward, in all cases."""
    found, place, now = [], -1, None
    for call in calls:
        if call.op == "all_reduce" and call.numel in (FORWARD, BACKWARD):
            now = call.numel
            place += now == FORWARD
        elif call.sends and (KINDS[place % len(KINDS)], now) == (kind, direction):
            found.append(call)
    return found


def needed_bytes(case, lengths, kind):
    """Return the bytes that all ranks together send in forward; in backward as many bytes of gradients come back."""
    size, total = len(lengths), case["length"]
    each = BATCH * WIDTH * 4
    if kind != "head":
        return 2 * (size - 1) * total * case["heads"] * each
    heads = [len(part) for part in torch.arange(case["heads"]).tensor_split(size)]
    there = sum(3 * length * (case["heads"] - num) for length, num in zip(lengths, heads, strict=True))
    back = sum(num * (total - length) for length, num in zip(lengths, heads, strict=True))
    return (there + back) * each


def judge_messages(grade, world, cases, kind):
    """Reject twice as many bytes as needed, or keys that do not travel along a ring."""
    size = world.size
    sends = {way: [messages_of(calls, kind, way) for calls in world.calls] for way in (FORWARD, BACKWARD)}
    lengths = [[len(part) for part in value["positions"]] for value in world.values[0]]
    needed = sum(needed_bytes(case, one, kind) for case, one in zip(cases, lengths, strict=True))
    forward, backward = (sum(call.num_bytes for calls in sends[way] for call in calls) for way in sends)
    text = f"{NAMES[kind]}, {size} ranks: the results and gradients are right. All ranks together sent {forward:,} "
    text += f"bytes in forward and {backward:,} in backward; {needed:,} are enough for each."
    peers = sorted({call.peer for call in sends[FORWARD][0]})
    if kind == "ring" and len(peers) > 1:
        grade.reject("not-a-ring", f"{text} Rank 0 sent to ranks {listed(peers)}; in a ring it sends to one.")
    # A ring may send the keys again in backward, and the gradients one shift further, back to their owner.
    most = needed * (2 + 1 / (size - 1)) if kind == "ring" else needed
    if forward >= 2 * needed or backward >= 2 * most:
        explain_bytes(grade, kind, text, len(sends[FORWARD][0]) / len(cases))
    if forward + backward > 2.2 * needed:
        grade.note(text)


def explain_bytes(grade, kind, text, num_messages) -> NoReturn:
    """Reject twice as many bytes as needed, or more."""
    if kind == "ring":
        grade.reject("shifts-too-often", f"{text} Rank 0 sent {num_messages:g} messages in each forward pass.")
    grade.reject("sends-all-heads" if kind == "head" else "unknown", text)


def report(grade, world, cases):
    """Report the bytes of the last world, in which everything divides."""
    (case,), size = cases, world.size
    part = BATCH * case["heads"] * case["length"] // size * WIDTH * 4
    for kind in KINDS:
        num_bytes = sum(call.num_bytes for call in messages_of(world.calls[0], kind, FORWARD))
        grade.measured(f"{size} ranks: bytes that rank 0 sends in forward with {NAMES[kind]}", f"{num_bytes:,}")
    ring, head = (needed_bytes(case, [case["length"] // size] * size, kind) / size for kind in ("ring", "head"))
    grade.predicted("ring", 1_000_000 * ring / part)
    grade.predicted("heads", 1_000_000 * head / part)
    pairs = [sum(position + 1 for position in one) for one in world.values[0][0]["positions"]]
    grade.measured(f"{size} ranks: keys that the queries of each rank see", ", ".join(map(str, pairs)))
