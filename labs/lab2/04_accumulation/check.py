"""Compare gradients with the whole batch's in one process, and count the reductions."""

import random

import torch
from ranks import SAMPLES, STEP, batches, loss_of, make_model

from frog.learn.grader.grade import Grade


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    cases = [{"seed": grade.seed + n, "width": draw.randint(3, 8), "num_micro": num} for n, num in enumerate((5, 1, 2))]
    cases.append(cases[0] | {"seed": grade.seed + 9, "num_micro": draw.randint(3, 7)})
    for size, some in ((2, cases), (3, cases[-1:])):
        world = grade.world(size, {"cases": some})
        calls = split(world.calls[0])
        for n, case in enumerate(some):
            check_case(grade, case, calls[n], [rank[n] for rank in world.values])
        if size == 2:
            grade.measured("all-reduces for 5 micro-batches of a model of 6 parameters", str(len(calls[0])))
            grade.measured(
                "samples with activations in memory at the same time", str(most_alive(world.values[0][0]["events"]))
            )
            grade.predicted("all-reduces", len(calls[0]))


def split(calls):
    cases = [[]]
    for call in calls:
        if call.numel == STEP:
            cases.append([])
        elif call.op == "all_reduce":
            cases[-1].append(call)
    return cases


def most_alive(events):
    return max((alive for _, _, alive in events), default=0)


def gradient(case, inputs):
    model = make_model(case)
    loss_of(model, inputs).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def check_case(grade, case, calls, found):
    size, num = len(found), case["num_micro"]
    own = [torch.stack([gradient(case, part) for part in batches(case, rank)]) for rank in range(size)]
    mean = torch.stack(own).mean(0)  # for each micro-batch, over the ranks
    setting = f"World of {size}, {num} micro-batches"
    for rank, value in enumerate(found):
        if any(g is None for g in value["gradients"]):
            grade.reject("unknown", f"{setting}: rank {rank} has parameters without a gradient.")
        flat = torch.cat([g.flatten() for g in value["gradients"]])
        if not close(flat, mean.mean(0)):
            explain(grade, setting, rank, flat, own[rank], mean, size)
            grade.compare(flat, mean.mean(0), f"{setting}: the gradient on rank {rank}", rtol=1e-4, atol=1e-6)
            grade.reject("unknown", f"{setting}: the gradient on rank {rank} is not the whole batch's.")
    check_cost(grade, setting, num, len(calls), len(found[0]["gradients"]), found[0]["events"])
    check_kept(grade, setting, found[0]["kept"])


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def explain(grade, setting, rank, flat, own, mean, size):
    num = len(own)
    says = f"{setting}: the gradient on rank {rank} is"
    if num == 1:
        if close(flat, own[0]):
            grade.reject(
                "never-syncs", f"{says} its own, not the mean over the ranks. The only micro-batch is also the last."
            )
        if close(flat, mean[0] / size):
            grade.reject("divided-twice", f"{says} {1 / size:.3f} times the whole batch's.")
        return
    each_time = torch.zeros_like(mean[0])
    for part in mean:
        each_time = (each_time + part) / num
    told = [
        ("divided-each-time", each_time, f"a sum: micro-batch 1 counts 1/{num**num}, the last one 1/{num}."),
        ("not-divided", mean.sum(0), f"{num}.000 times the whole batch's."),
        ("divided-twice", mean.mean(0) / size, f"{1 / size:.3f} times the whole batch's."),
        (
            "never-syncs",
            own.mean(0),
            "its own, not the mean over the ranks: nothing was reduced after the last backward.",
        ),
        ("never-syncs", own.sum(0), "the sum of its own, not the mean over the ranks: nothing was reduced."),
        ("zeroed-between", mean[-1] / num, f"that of the last micro-batch, divided by {num}: the others are lost."),
        ("zeroed-between", mean[-1], "that of the last micro-batch alone: the others are lost."),
        (
            "syncs-all-but-the-last",
            (mean[:-1].sum(0) + own[-1]) / num,
            f"the mean for the first {num - 1} micro-batches, and its own for the last.",
        ),
        (
            "syncs-all-but-the-last",
            (mean[:1].sum(0) + own[1:].sum(0)) / num,
            f"the mean for the first micro-batch, and its own for the other {num - 1}.",
        ),
    ]
    for id, value, words in told:
        if close(flat, value):
            grade.reject(id, f"{says} {words}")


def check_kept(grade, setting, kept):
    """Reject if tensors of earlier micro-batches' graphs are still in memory when a later forward begins."""
    if any(kept):
        n = next(n for n, num in enumerate(kept) if num)
        text = f"{setting}: when the forward of micro-batch {n + 1} began, {kept[n]} tensors of earlier graphs were"
        grade.reject(
            "keeps-graphs", f"{text} still in memory, although their backward had ended. The gradient is right."
        )


def check_cost(grade, setting, num, num_calls, num_parameters, events):
    alive = most_alive(events)
    if alive > SAMPLES:
        grade.reject(
            "holds-all-graphs",
            f"{setting}: {alive} samples had activations in memory at the same time; a micro-batch has {SAMPLES}. "
            "The gradient is right.",
        )
    if num_calls == num_parameters:
        return
    seen = f"{setting}: {num_calls} all-reduces for {num_parameters} parameters. The gradient is right."
    backwards = [sync for what, sync, _ in events if what == "backward"]
    forwards = [sync for what, sync, _ in events if what == "forward"]
    if all(forwards) and not all(backwards):
        inside = backwards.count(False)
        grade.reject("forward-outside", f"{seen} {inside} backwards ran inside no_sync, but no forward did.")
    if num_calls > num_parameters:
        grade.reject("syncs-every-time", seen)
    grade.reject("unknown", seen)
