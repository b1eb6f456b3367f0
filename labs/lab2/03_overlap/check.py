"""Compare gradients with one process, and count the calls that began before backward ended."""

import random

import torch
from ranks import BACKWARD, LR, STEP, batch, loss_of, make_model

from frog.learn.grader.grade import Grade

DRAWING = """\
time  →
rank 0  backward ████████████████ all_reduce of all buckets ░░░░░░░░░ step █
                    ↑ the first bucket was complete here, but was not sent"""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    six_layers = {"seed": grade.seed, "num_layers": 6, "width": 7, "buckets": four_each(draw), "rank 0 first": True}
    num_layers = draw.randint(4, 6)
    drawn = {"num_layers": num_layers, "buckets": draw_buckets(draw, 2 * num_layers)}
    drawn = six_layers | drawn | {"seed": grade.seed + 1, "rank 0 first": False}

    first = grade.world(2, six_layers, may_fail=("one-rank-waits",))
    if first.failure:
        judge_wait(grade, first)
    check_numbers(grade, first, six_layers)
    third = grade.world(3, drawn)
    check_numbers(grade, third, drawn)
    started = check_calls(grade, first, six_layers)
    check_calls(grade, third, drawn)
    check_kept(grade, first)
    grade.measured("all-reduces that began before backward ended", f"{started} of 3 in each step")
    grade.predicted("started", started)


def four_each(draw):
    """Put two of six layers in each bucket, the gradients that backward finds first at both ends of its list."""
    buckets = []
    for start in (0, 4, 8):
        late, early = [start, start + 1], [start + 2, start + 3]
        draw.shuffle(late)
        draw.shuffle(early)
        buckets.append([early[0], *late, early[1]])
    draw.shuffle(buckets)
    return buckets


def draw_buckets(draw, num_parameters):
    """Put neighbours in one bucket; shuffle the list and each bucket, so that the order has no meaning."""
    buckets, rest = [], list(range(num_parameters))
    while rest:
        size = draw.randint(1, 3)
        buckets.append(draw.sample(rest[:size], len(rest[:size])))
        rest = rest[size:]
    draw.shuffle(buckets)
    return buckets


def judge_wait(grade, world):
    sends = world.count("send", 0)
    steps = sum(call.numel == STEP for call in world.calls[0])
    if sends == steps:  # rank 0 never returned from this step's backward
        num = sum(call.op == "all_reduce" and call.numel != STEP for call in world.calls[0])
        grade.reject(
            "waits-in-the-hook",
            f"Rank 1 begins its backward only after rank 0 has finished its own. Rank 0 never did: inside backward it "
            f"waited for rank 1, in all-reduce number {num}.",
            world.drawing(),
        )
    grade.reject(world.failure.id, world.failure.observed, world.failure.drawing)


def oracle(case, size):
    """Return every rank's own gradients and their mean for each step, at the weights of one process."""
    model = make_model(case)
    steps = []
    for step in range(3):
        own = []
        for rank in range(size):
            model.zero_grad()
            loss_of(model, batch(case, rank, step)).backward()
            own.append([p.grad.clone() for p in model.parameters()])
        mean = [torch.stack(parts).mean(0) for parts in zip(*own, strict=True)]
        for p, gradient in zip(model.parameters(), mean, strict=True):
            p.data -= LR * gradient
        steps.append((own, mean))
    return steps


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def check_numbers(grade, world, case):
    for step, (own, mean) in enumerate(oracle(case, world.size)):
        for rank, value in enumerate(world.values):
            found = value["gradients"][step]
            wrong = [n for n, (g, m) in enumerate(zip(found, mean, strict=True)) if not close(g, m)]
            if wrong:
                explain(grade, world, rank, step, found, own[rank], mean, wrong, case["buckets"])
    for rank, value in enumerate(world.values):
        same = all(torch.equal(a, b) for a, b in zip(value["weights"], world.values[0]["weights"], strict=True))
        if not same:
            grade.reject("unknown", f"After three steps the weights of rank {rank} differ from rank 0's.")


def explain(grade, world, rank, step, found, own, mean, wrong, buckets):
    size, num = world.size, len(found)
    works = [
        c for c in steps_of(world.calls[rank])[step] if c.op == "all_reduce" and c.numel != BACKWARD and c.is_async
    ]
    early = sum(call.overwritten for call in works)
    if early and all(close(found[n], mean[n] * size) for n in wrong):
        grade.reject(
            "divided-too-soon",
            f"World of {size}: {len(wrong)} of {num} gradients are {size}.000 times the mean. Your code wrote to "
            f"{early} of {len(works)} flat tensors after their all-reduce had started and before waiting for it: "
            "the sum arrived later and overwrote the result.",
        )
    if step > 0:
        grade.reject(
            "not-reset",
            f"World of {size}: step 1 was right. In step {step + 1}, {len(wrong)} of {num} gradients on rank {rank} "
            "are not the mean over the ranks.",
        )
    stale = [n for n in wrong if close(found[n], own[n]) or close(found[n], own[n] / size)]
    waited = sum(call.waited for call in works)
    if stale and works and waited < len(works):
        grade.reject(
            "waits-for-the-last" if waited else "not-waited",
            f"World of {size}: you started {len(works)} all-reduces and waited for {waited}. {len(stale)} of {num} "
            f"gradients on rank {rank} were used before the other ranks' had arrived. A fast machine hides this.",
        )
    if stale and works:
        explain_own(grade, world, rank, found, own, [call.numel for call in works], stale, buckets)
    explain_empty(grade, size, found, rank, buckets)
    if all(close(found[n], mean[n] * size) for n in wrong):
        grade.reject(
            "sum-is-average", f"{len(wrong)} of {num} gradients are {size}.000 times the mean of {size} ranks."
        )
    grade.compare(found, mean, f"the mean gradient in step 1 on rank {rank} of {size}", rtol=1e-4, atol=1e-6)
    grade.reject("unknown", f"World of {size}: {len(wrong)} of {num} gradients on rank {rank} are not the mean.")


def explain_empty(grade, size, found, rank, buckets):
    """Explain gradients that were still zero when their bucket was packed: the last of a bucket, or more."""
    empty = [[n for n in bucket if not found[n].any()] for bucket in buckets]
    num = sum(map(len, empty))
    if not num:
        return
    says = f"World of {size}, step 1: {num} of {len(found)} gradients on rank {rank} are zero."
    if all(len(missing) == 1 for missing in empty):
        text = f"{says} It is one gradient in each bucket, which was not in .grad yet when the bucket was packed."
        grade.reject("hook-too-early", text)
    bucket, missing = max(zip(buckets, empty, strict=True), key=lambda pair: len(pair[1]))
    text = f"{says} One bucket has {len(bucket)} gradients; {len(missing)} of them had not arrived when it was packed."
    grade.reject("starts-incomplete", text)


def explain_own(grade, world, rank, found, own, reduced, stale, buckets):
    """Explain gradients that are still the rank's own, although it waited for all-reduces of `reduced` elements."""
    says = f"World of {world.size}: you started and waited for {len(reduced)} all-reduces, but {len(stale)} of "
    says += f"{len(found)} gradients on rank {rank} are"
    last = sum(own[n].numel() for n in buckets[-1])
    if len(reduced) < len(buckets) and set(reduced) == {last}:
        text = f"{says} the rank's own. Of {len(buckets)} buckets only the last one, of {last} elements, was sent."
        grade.reject("hooks-share-a-bucket", text)
    if len(reduced) == len(buckets) and all(close(found[n], own[n] / world.size) for n in stale):
        grade.reject("not-waited", f"{says} the rank's own, divided by {world.size}: read before the sum arrived.")
    if len(reduced) == len(buckets):
        grade.reject("result-dropped", f"{says} the rank's own.")
    grade.reject("unknown", f"{says} the rank's own.")


def steps_of(calls):
    steps = [[]]
    for call in calls:
        if call.numel == STEP:
            steps.append([])
        else:
            steps[-1].append(call)
    return steps[:3]


def check_calls(grade, world, case):
    """Return the number of all-reduces that began before backward ended, in the step with the fewest."""
    num_buckets = least = first = len(case["buckets"])
    complete, words = num_buckets - 1, "ended"
    if not case["rank 0 first"]:
        complete, words = sum(min(bucket) >= 2 for bucket in case["buckets"]), "reached the first layer"
    for step, calls in enumerate(steps_of(world.calls[0])):
        end = next(n for n, call in enumerate(calls) if call.op == "send" or call.numel == BACKWARD)
        inside = sum(call.op == "all_reduce" for call in calls[:end])
        total = sum(call.op == "all_reduce" and call.numel != BACKWARD for call in calls)
        least, first = min(least, inside), total if step == 0 else first
        if inside < complete:
            grade.reject(
                "reduced-after-backward",
                f"{total} all-reduces in a step. When backward {words}, {complete} buckets were complete, and "
                f"{inside} of the all-reduces had begun.",
                DRAWING,
            )
        if step > 0 and total > first:
            grade.reject("not-reset", f"{total} all-reduces in step {step + 1}, for {num_buckets} buckets.")
        if total == 2 * case["num_layers"] != num_buckets:
            grade.reject(
                "one-a-gradient", f"{total} all-reduces in a step for {total} gradients in {num_buckets} buckets."
            )
        if total != num_buckets:
            grade.reject("unknown", f"{total} all-reduces in a step for {num_buckets} buckets.")
    return least


def check_kept(grade, world):
    first, second, third = world.values[0]["kept"]
    if first < second < third:
        grade.reject(
            "never-forgets",
            f"The gradients are right. After step 1 your Overlap held {first} tensors and works, including parameters; "
            f"after step 2 {second}, after step 3 {third}.",
        )
