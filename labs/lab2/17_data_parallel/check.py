"""Compare the steps with one process that computes every rank's share in turn, and check bytes and buckets."""

import random

import torch
from ranks import BACKWARD, BUILT, STEP, gradients, loss_of, make_model, move, state

from frog.learn.grader.grade import Grade

BUFFERS = {"center", "num_seen", "widest"}
MARKS = {BUILT, BACKWARD, STEP}
ROUTES = ("left+right", "right+left", "left", "right")


def draw_case(seed, size):
    """Draw a world of two in which both ranks use the same branches, or a larger one in which they do not."""
    draw = random.Random(seed)
    both = ROUTES[:2] if draw.random() < 0.5 else ROUTES[1::-1]
    mixed = [*both, *(draw.choice(ROUTES) for _ in range(size))][:size]
    alone = ["left"] * size
    alone[draw.randrange(size)] = "right"
    routes = [mixed, alone, mixed[::-1], ["left+right"] * size, ["left+right"] * size]
    if size == 2:
        routes = [[route] * 2 for route in ("left", "left+right", "right", "left+right", "right+left")]
    # Each branch has 144 bytes: with this bucket size it never shares a bucket with the other or with later layers.
    case = {"seed": seed % 10**6, "routes": routes, "num_micro": [1, 1, 3, 1, 1], "error_before": 4}
    return case | {"bucket_bytes": draw.randint(260, 287)}


def check(grade: Grade) -> None:
    largest = 0.0
    for size in (2, 4):
        case = draw_case(grade.seed + size, size)
        world = grade.world(size, case)
        models = [make_model(case["seed"], 0) for _ in range(size)]
        check_start(grade, world, state(models[0]))
        calls = steps_of(world.calls[0])
        for step in range(len(case["routes"])):
            own, mean, early = shares(case, models, step)
            check_gradients(grade, world, case, step, own, mean, early, calls)
            check_sent(grade, case, step, calls[step])
            largest = max(largest, check_state(grade, world, step, models[0]))
        check_no_sync_ends(grade, size, calls[: len(case["routes"])])
    last = calls[len(case["routes"]) - 1]
    inside = len(until_backward(last))
    grade.measured("weights of 4 ranks and of one process, after 5 steps", f"largest difference {largest:.1e}")
    grade.measured("all-reduces in a step", f"{len(reductions(last))}, of which {inside} began in backward")
    if not inside:
        grade.note("Right. Your buckets are sent after backward; with hooks they would be sent during it (2.3).")
    grade.predicted("step-bytes", 4_000_000)


def check_start(grade, world, expected):
    for rank, value in enumerate(world.values):
        names = [name for name, tensor in expected.items() if not torch.equal(value["start"][name], tensor)]
        if names:
            id = "buffers-apart" if set(names) <= BUFFERS else "starts-apart"
            off = max((value["start"][name] - expected[name]).abs().max().item() for name in names)
            says = f"World of {world.size}: after construction {numbered(len(names), 'tensor')} on rank {rank} differ "
            says += f"from rank 0's before it ({', '.join(names[:3])}; by up to {off:.2g})."
            grade.reject(id, f"{says} {NOT_IN_STATE_DICT}" if names == ["widest"] else says)


NOT_IN_STATE_DICT = "This buffer was registered with persistent=False, so it is not in state_dict()."


def numbered(num, what):
    return f"{num} {what}{'s' if num != 1 else ''}"


def shares(case, models, step):
    """Return each rank's own gradients in this step, their mean, and the means after each micro-batch but the last.

    Then step the models.
    """
    sums = []
    for micro in range(case["num_micro"][step]):
        for rank, model in enumerate(models):
            loss_of(model, case, step, micro, rank).backward()
        sums.append([gradients(model) for model in models])
    means = [{name: mean_of([table[name] for table in tables]) for name in tables[0]} for tables in sums]
    for model in models:
        for name, p in model.named_parameters():
            p.grad = None if means[-1][name] is None else means[-1][name].clone()
        move(model)
        for buffer, first in zip(model.buffers(), models[0].buffers(), strict=True):
            buffer.copy_(first)
    return sums[-1], means[-1], means[:-1]


def mean_of(parts):
    there = [part for part in parts if part is not None]
    return sum(there) / len(parts) if there else None


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def right(found, mean):
    """True if the gradient is the mean; None and zeros are equivalent where no rank had a gradient."""
    if mean is None:
        return found is None or not found.any()
    return found is not None and close(found, mean)


def check_gradients(grade, world, case, step, own, mean, early, calls):
    size = world.size
    for rank, value in enumerate(world.values):
        found = value["steps"][step]["gradients"]
        wrong = [name for name in mean if not right(found[name], mean[name])]
        if not wrong:
            continue
        says = (
            f"World of {size}, step {step + 1}: {len(wrong)} of {len(mean)} gradients on rank {rank} are not the mean "
            f"({', '.join(wrong[:3])}{', …' if len(wrong) > 3 else ''})."
        )
        explain_calls(grade, says, reductions(calls[step]), case["num_micro"][step])
        explain_micro(grade, says, found, mean, early, wrong)
        explain_factor(grade, says, found, own, mean, wrong)
        if all(found[name] is None and own[rank][name] is None for name in wrong):
            grade.reject(
                "unused-stays-none", f"{says} They are None: another rank's batch used them, but this rank's did not."
            )
        there = sum(value is not None for value in mean.values())
        if len(wrong) < there and all(same(found[name], own[rank][name]) for name in wrong):
            grade.reject("unused-blocks-bucket", f"{says} They are still the rank's own.")
        grade.compare(
            {name: found[name] for name in wrong if mean[name] is not None},
            {name: mean[name] for name in wrong if mean[name] is not None},
            f"the mean gradient in step {step + 1} on rank {rank} of {size}",
        )
        grade.reject("unknown", says)


def explain_calls(grade, says, calls, num_micro):
    """Explain wrong gradients by the step's reductions: none, some not waited for, or more than one set."""
    started = [call for call in calls if call.is_async]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        grade.reject("not-waited", f"{says} You started {len(started)} all-reduces and waited for {waited}.")
    if not calls:
        grade.reject("unknown", f"{says} No all-reduce of gradients ran in this step.")
    sent = sum(call.num_bytes for call in calls)
    trained = sum(p.numel() * 4 for p in make_model(0, 0).parameters() if p.requires_grad)
    if num_micro > 1 and sent > trained + 256:
        text = f"In {num_micro} micro-batches {sent:,} bytes were sent; the trained parameters have {trained:,}."
        grade.reject("no-sync-ignored", f"{says} {text}")


def explain_micro(grade, says, found, mean, early, wrong):
    """Explain gradients that are the mean of only some of the step's micro-batches."""
    num = len(early) + 1
    if early and all(any(right(found[name], partial[name]) for partial in early) for name in wrong):
        text = (
            f"They hold only a part of the {num} micro-batches: their buckets were sent inside no_sync, or before the"
        )
        grade.reject("no-sync-ignored", f"{says} {text} last backward had reached them.")
    for k, partial in enumerate(early, 1):
        if all(right(found[name], minus(mean[name], partial[name])) for name in wrong):
            text = f"They hold only the last {num - k} of {num} micro-batches: the earlier sum is lost."
            grade.reject("no-sync-drops", f"{says} {text}")


def minus(a, b):
    return a if b is None else a - b


def explain_factor(grade, says, found, own, mean, wrong):
    """Explain the mean times a factor: the number of ranks, or of ranks that had this gradient."""
    size = len(own)
    there = [name for name in wrong if mean[name] is not None and found[name] is not None]
    num = sum(value is not None for value in mean.values())
    if len(there) == num and all(close(found[n], mean[n] * size) for n in there):
        grade.reject("sum-is-average", f"{says} They are {size}.000 times the mean.")
    had = {name: sum(table[name] is not None for table in own) for name in there}
    if there == wrong and all(had[n] < size and close(found[n], mean[n] * size / had[n]) for n in there):
        name = there[0]
        text = (
            f"{name} had a gradient on {had[name]} of {size} ranks, and yours is {size / had[name]:.3f} times the mean."
        )
        grade.reject("absent-not-counted", f"{says} {text}")


def same(a, b):
    return (a is None or not a.any()) if b is None else a is not None and close(a, b)


def steps_of(calls):
    """Return the calls of each step, without those of the constructor."""
    built = next(n for n, call in enumerate(calls) if call.numel == BUILT)
    steps = [[]]
    for call in calls[built + 1 :]:
        steps[-1].append(call)
        if call.numel == STEP:
            steps.append([])
    return steps


def reductions(calls):
    """Return the reductions that carry gradients, without buffers, marks and small messages."""
    return [c for c in calls if c.op != "broadcast" and c.numel not in MARKS and c.dtype == "float32" and c.numel > 2]


def until_backward(calls):
    end = next(n for n, call in enumerate(calls) if call.numel == BACKWARD)
    return reductions(calls[:end])


def check_sent(grade, case, step, calls):
    model = make_model(0, 0)
    trained = [p.numel() * 4 for p in model.parameters() if p.requires_grad]
    shared, frozen = model.head.weight.numel() * 4, sum(p.numel() * 4 for p in model.frozen.parameters())
    sent = [call.num_bytes for call in reductions(calls)]
    limit, num_micro = case["bucket_bytes"], case["num_micro"][step]
    says = (
        f"Step {step + 1}, {num_micro} micro-batch{'es' * (num_micro > 1)}: {len(sent)} all-reduces of {sum(sent):,} "
        f"bytes in total. The trained parameters have {sum(trained):,}."
    )
    extra = sum(sent) - sum(trained)
    if extra > 256:
        if num_micro > 1:
            grade.reject("no-sync-ignored", says)
        if abs(extra - shared) <= 64:
            grade.reject("tied-twice", f"{says} The shared weight has {shared:,}.")
        if abs(extra - frozen) <= 64:
            grade.reject("frozen-travels", f"{says} The frozen parameters have {frozen:,}.")
        grade.reject("unknown", says)
    if extra < -256:
        grade.reject("unknown", f"{says} The gradients are right; reduce them with operations of torch.distributed.")
    if len(sent) >= len(trained) - 1:
        grade.reject("one-a-gradient", f"{says} Buckets may have {limit} bytes.")
    if max(sent, default=0) > max(limit, *trained):
        grade.reject("bucket-too-large", f"{says} The largest had {max(sent):,}, but a bucket may have {limit}.")
    numels = [p.numel() for p in model.parameters() if p.requires_grad]
    counts = [call.numel for call in reductions(calls)]
    if sorted(counts) == sorted(filled(numels, limit)) != sorted(filled(numels[::-1], limit)):
        grade.reject(
            "forward-order",
            f"{says} Your buckets have {listed(counts)} bytes; filled from the last parameter to the first they have "
            f"{listed(filled(numels[::-1], limit))}.",
        )


def listed(numels):
    return ", ".join(str(4 * numel) for numel in numels)


def filled(numels, limit):
    """Fill buckets in this order, and return the number of elements of each."""
    buckets = []
    for numel in numels:
        if buckets and 4 * (buckets[-1] + numel) <= limit:
            buckets[-1] += numel
        else:
            buckets.append(numel)
    return buckets


def check_no_sync_ends(grade, size, steps):
    """Check that a class that reduces during backward in step 1 also does so later, when all layers are used."""
    first, second, _, fourth, fifth = (len(until_backward(calls)) for calls in steps)
    says = (
        f"World of {size}: {numbered(first, 'all-reduce')} began during the backward of step 1, and none during that of"
    )
    if first and not second:
        grade.reject("not-reset", f"{says} step 2. The gradients are right.")
    if first and not fourth:
        grade.reject("no-sync-stays", f"{says} step 4, after a step that used no_sync. The gradients are right.")
    if first and not fifth:
        text = f"{says} step 5. Before it an error was raised inside no_sync. The gradients are right."
        grade.reject("no-sync-stays", text)


def check_state(grade, world, step, model):
    """Check the weights bit for bit between ranks and closely with one process, and the buffers with rank 0's."""
    expected, largest = state(model), 0.0
    for rank, value in enumerate(world.values):
        found = value["steps"][step]["state"]
        for name, tensor in expected.items():
            first = world.values[0]["steps"][step]["state"][name]
            if not torch.equal(found[name], first):
                off = (found[name] - first).abs().max().item()
                id = "buffers-apart" if name in BUFFERS else "unknown"
                says = (
                    f"World of {world.size}, step {step + 1}: {name} on rank {rank} differs from rank 0's by {off:.2g}."
                )
                grade.reject(id, f"{says} {NOT_IN_STATE_DICT}" if name == "widest" else says)
            grade.compare(found[name], tensor, f"{name} after step {step + 1} on rank {rank}", rtol=1e-4, atol=1e-5)
            largest = max(largest, (found[name] - tensor).abs().max().item())
    return largest
