"""Compare gradients with the mean computed here, and the sizes of the all-reduces with the bucket rules."""

import math
import random

import torch
from ranks import MARK, gradients

from frog.learn.grader.grade import Grade

BYTES = {"float32": 4, "float16": 2}
PREDICTED = [[1000, 32], [64, 32], [64], [32, 64], [32]]


def draw_cases(seed):
    draw = random.Random(seed)
    first = draw_one_type(draw)
    second = draw_one_type(draw)
    mixed, limit = draw_mixed(draw)
    predicted = [(shape, "float32") for shape in PREDICTED]
    cases = [
        {"parameters": predicted, "bucket_bytes": 10_000, "tied": True},
        {"parameters": first[0], "bucket_bytes": first[1], "frozen": [1]},
        {"parameters": second[0], "bucket_bytes": second[1], "unused": [3]},
        {"parameters": first[0], "bucket_bytes": 1},
        {"parameters": first[0], "bucket_bytes": 1 << 30},
        {"parameters": mixed, "bucket_bytes": limit},
        {"parameters": [([], "float32"), ([0, 3], "float32"), ([5], "float32")], "bucket_bytes": 24},
    ]
    empty = {"frozen": [], "unused": [], "tied": False}
    return [empty | case | {"seed": seed + number} for number, case in enumerate(cases)]


def draw_one_type(draw):
    """Draw float32 gradients and a limit for which first fit gives different buckets."""
    while True:
        shapes = [[draw.randint(2, 9), draw.randint(10, 40)] for _ in range(draw.randint(8, 11))]
        parameters, limit = [(shape, "float32") for shape in shapes], draw.randint(1500, 2500)
        if all(tells(parameters, limit, frozen, [first_fit]) for frozen in ([], [1])):
            return parameters, limit


def draw_mixed(draw):
    """Draw gradients of two types and a limit for which each rule in RIVALS gives different buckets."""
    while True:
        parameters = [([draw.randint(11, 90)], draw.choice(["float32", "float16", "float16"])) for _ in range(12)]
        limit = draw.randint(300, 500)
        if {dtype for _, dtype in parameters[-6:]} == set(BYTES) and tells(parameters, limit, [], RIVALS):
            return parameters, limit


def tells(parameters, limit, frozen, rivals):
    """True if none of these rules agrees with the docstring's."""
    sizes = sizes_of({"parameters": parameters, "frozen": frozen})
    return not any(as_the_rules_say(rule(sizes, limit), sizes, limit) for rule in rivals)


def fill(sizes, limit, size_of=lambda numel, dtype: numel * BYTES[dtype], ask_before=True, resets=True, full=False):
    """Fill buckets with (numel, dtype) in the order of `sizes`; return each bucket as (numel, dtype)."""
    buckets, used = [], 0
    for numel, dtype in sizes:
        more = size_of(numel, dtype) if ask_before else 0
        over = used + more >= limit if full else used + more > limit
        if not buckets or buckets[-1][1] != dtype or over:
            buckets.append([0, dtype])
            used = 0 if resets else used
        buckets[-1][0] += numel
        used += size_of(numel, dtype)
    return [tuple(bucket) for bucket in buckets]


def as_the_rules_say(calls, sizes, limit):
    """True if the buckets are right: one ends where the type changes, or each type has its own open bucket."""
    by_type = all(
        [call for call in calls if call[1] == dtype] == fill([size for size in sizes if size[1] == dtype], limit)
        for dtype in BYTES
    )
    return by_type or calls == fill(sizes, limit)


RULES = {
    "forward-order": lambda sizes, limit: fill(sizes[::-1], limit),
    "one-a-gradient": lambda sizes, limit: sizes,
    "limit-is-elements": lambda sizes, limit: fill(sizes, limit, size_of=lambda numel, dtype: numel),
    "four-bytes-each": lambda sizes, limit: fill(sizes, limit, size_of=lambda numel, dtype: 4 * numel),
    "over-the-limit": lambda sizes, limit: fill(sizes, limit, ask_before=False),
    "count-goes-on": lambda sizes, limit: fill(sizes, limit, resets=False),
    "never-full": lambda sizes, limit: fill(sizes, limit, full=True),
    "over-the-limit.2": lambda sizes, limit: fill(sizes, limit, ask_before=False, full=True),
    "one-bucket": lambda sizes, limit: fill(sizes, math.inf),
}
"""The buckets that each misconception makes from gradients and a limit. It must match every case."""


def first_fit(sizes, limit):
    """Fill buckets that stay open: each gradient goes into the first bucket with enough space."""
    buckets = []
    for numel, dtype in sizes:
        rooms = [b for b in buckets if b[1] == dtype and (b[0] + numel) * BYTES[dtype] <= limit]
        if rooms:
            rooms[0][0] += numel
        else:
            buckets.append([numel, dtype])
    return [tuple(bucket) for bucket in buckets]


RIVALS = [
    *RULES.values(),
    first_fit,
    lambda sizes, limit: fill(sorted(sizes, reverse=True), limit),
    lambda sizes, limit: fill(sizes, limit, size_of=lambda numel, dtype: numel * BYTES[sizes[-1][1]]),
]
"""Rules that a drawn case must distinguish from the right ones."""


def check(grade: Grade) -> None:
    cases = draw_cases(grade.seed)
    calls = run_cases(grade, 2, cases)
    check_buckets(grade, cases, calls)
    run_cases(grade, 3, cases[1:3])
    grade.measured("buckets of the model in the prediction", f"{listed(calls[0])} bytes")
    grade.predicted("buckets", len(calls[0]))
    grade.predicted("bucket-bytes", bytes_of(calls[0]))
    grade.note("PyTorch's DDP has buckets of 25 MiB, and a first bucket of 1 MiB that fills early.")


def run_cases(grade, size, cases):
    """Return the all-reduces of each case, after checking its gradients."""
    world = grade.world(size, {"cases": cases})
    calls = split(world.calls[0])
    late = sum(call.is_async and not call.waited for call in world.calls[0])
    is_last_lost = all(calls[n] == fill(sizes_of(case), case["bucket_bytes"])[:-1] for n, case in enumerate(cases))
    for n, case in enumerate(cases):
        check_case(grade, case, calls[n], late, is_last_lost, [rank[n] for rank in world.values])
    return calls


def split(calls):
    """Return the all-reduces of each case, as (numel, dtype)."""
    cases = [[]]
    for call in calls:
        if call.op == "all_reduce" and call.numel == MARK and "int8" in call.dtype:
            cases.append([])
        elif call.op == "all_reduce":
            cases[-1].append((call.numel, call.dtype.removeprefix("torch.")))
    return cases


def sizes_of(case):
    """Return (numel, dtype) of each gradient, the last parameter first."""
    trained = [n for n in range(len(case["parameters"])) if n not in case["frozen"]]
    return [(math.prod(case["parameters"][n][0]), case["parameters"][n][1]) for n in reversed(trained)]


def bytes_of(buckets):
    return sum(numel * BYTES.get(dtype, 8) for numel, dtype in buckets)


def listed(buckets):
    return ", ".join(f"{bytes_of([bucket]):,}" for bucket in buckets)


def check_case(grade, case, calls, late, is_last_lost, found):
    trained = [n for n in range(len(case["parameters"])) if n not in case["frozen"]]
    own = [gradients(case, rank) for rank in range(len(found))]
    for n in case["unused"]:
        own[1][n] = torch.zeros_like(own[1][n])
    own = [[rank[n] for n in trained] for rank in own]
    found = [[rank[n] for n in trained] for rank in found]
    mean = [torch.stack([part.float() for part in parts]).mean(0) for parts in zip(*own, strict=True)]
    whole = bytes_of(sizes_of(case))
    if calls and bytes_of(calls) < whole:
        grade.reject(
            "last-bucket-lost" if is_last_lost else "unknown",
            f"The gradients have {whole:,} bytes, but your {len(calls)} all-reduces had {bytes_of(calls):,}: "
            f"{whole - bytes_of(calls):,} bytes of gradient were in no bucket.",
        )
    wrong = [rank for rank, parts in enumerate(found) if not all(map(close, parts, mean))]
    if wrong:
        explain(grade, wrong[0], found, own, mean, calls, late)


def close(found, mean):
    """True if a value is as close as its type allows."""
    if not isinstance(found, torch.Tensor) or found.shape != mean.shape:
        return False
    near = 3e-3 if found.dtype == torch.float16 else 1e-5
    return torch.allclose(found.float(), mean, rtol=near, atol=near)


def explain(grade, rank, found, own, mean, calls, late):
    """Explain why a rank's gradients are not the mean."""
    shapes = [list(g.shape) if isinstance(g, torch.Tensor) else g for g in found[rank]]
    if shapes != [list(m.shape) for m in mean]:
        grade.reject("unknown", f"The gradients of rank {rank} have the shapes {shapes} afterwards.")
    if not calls:
        grade.reject("never-reduces", "No all-reduce ran on rank 0, and its gradients are not the mean.")
    if late:
        grade.reject("not-waited", f"Rank 0 started {late} operations and never waited for them.")
    if all(torch.equal(a, b) for parts in zip(found, own, strict=True) for a, b in zip(*parts, strict=True)):
        grade.reject("result-dropped", f"{len(calls)} all-reduces ran on rank 0, but no gradient changed.")
    size = len(found)
    if all(close(g, m * size) for g, m in zip(found[rank], mean, strict=True)):
        grade.reject("sum-is-average", f"The gradients on rank {rank} are {size}.000 times the mean of {size} ranks.")
    if all(close(g, m / size) for g, m in zip(found[rank], mean, strict=True)):
        grade.reject("divided-twice", f"The gradients on rank {rank} are 1/{size} of the mean of {size} ranks.")
    values, means = (torch.cat([g.float().flatten() for g in parts]).sort().values for parts in (found[rank], mean))
    if close(values, means):
        wrong = [n for n, (g, m) in enumerate(zip(found[rank], mean, strict=True)) if not close(g, m)]
        grade.reject(
            "unpacked-elsewhere",
            f"All values of the mean exist on rank {rank}, but gradients {wrong} (in the model's order) contain "
            "values of other gradients.",
        )
    grade.compare(found[rank], mean, f"the mean gradient on rank {rank} of {size}", rtol=3e-3, atol=1e-5)
    grade.reject("unknown", f"The mean gradient on rank {rank} of {size} is less exact than its type allows.")


def check_buckets(grade, cases, calls):
    wrong = [n for n, case in enumerate(cases) if not as_the_rules_say(calls[n], sizes_of(case), case["bucket_bytes"])]
    if not wrong:
        return
    one = max(wrong, key=lambda n: len(cases[n]["parameters"]))
    sizes, limit = sizes_of(cases[one]), cases[one]["bucket_bytes"]
    most = "1 byte" if limit == 1 else f"{limit:,} bytes"
    says = f"{len(sizes)} gradients, buckets of at most {most}: you reduced {listed(calls[one])} bytes."
    rules = f"The docstring's rules give {listed(fill(sizes, limit))}, in this order."
    elements = [sum(numel for numel, _ in part) for part in (calls[one], sizes)]
    if bytes_of(calls[one]) > bytes_of(sizes) and elements[0] == elements[1] and len({dtype for _, dtype in sizes}) > 1:
        more = f"That is {bytes_of(calls[one]):,} in total; the gradients have {bytes_of(sizes):,}."
        grade.reject("types-mixed", f"{says} {more} float16 gradients were sent in a wider type.")
    for id, rule in RULES.items():
        if all(calls[n] == rule(sizes_of(case), case["bucket_bytes"]) for n, case in enumerate(cases)):
            grade.reject(id.split(".")[0], f"{says} {rules}")
    for rule in RULES.values():
        if all(calls[n] == rule(sizes_of(case)[::-1], case["bucket_bytes"]) for n, case in enumerate(cases)):
            grade.reject(
                "forward-order", f"{says} {rules} Reverse the order first; your buckets break another rule too."
            )
    if all(keeps_limit(calls[n], sizes_of(case), case["bucket_bytes"]) for n, case in enumerate(cases)):
        grade.reject("another-rule", f"{says} {rules}")
    grade.reject("unknown", f"{says} {rules}")


def keeps_limit(calls, sizes, limit):
    """True if these buckets hold all gradients, and only a bucket with a single gradient exceeds the limit."""
    within = [bucket for bucket in calls if bytes_of([bucket]) <= limit or bucket in sizes]
    return len(within) == len(calls) and bytes_of(calls) == bytes_of(sizes)
