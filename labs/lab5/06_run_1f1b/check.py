"""Compare gradients and weights with one process that has the whole model and batch; replay the messages as a queue."""

import math
import random
from typing import NoReturn

import torch
from ranks import LENGTH, RATE, STEPS, Model, batch_of
from torch import nn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts

TIED = "embedding.weight"
SIZES = {2: (11, 4), 3: (13, 2), 4: (5, 3)}
"""For each world: samples and samples of a micro-batch. The last one has fewer; on 4 ranks there are only 2."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    largest = 0.0
    for size, (samples, micro_size) in SIZES.items():
        case = {"seed": grade.seed % 10**6 + size, "samples": samples, "micro_size": micro_size}
        case |= {"num_layers": 5, "width": draw.choice([7, 10]), "vocabulary": draw.choice([13, 19])}
        world = grade.world(size, case, seconds=4.0, may_fail=("one-rank-waits",))
        if world.failure is not None:
            explain_wait(grade, world)
        largest = max(largest, judge_steps(grade, world, case))
        judge_held(grade, world, case)
        judge_queues(grade, world)
        judge_bytes(grade, world, case)
        if size == 3:
            report(grade, world, case)
    grade.measured("largest difference to the gradient of one process", f"{largest:.1e}")
    measure_predictions(grade)


def explain_wait(grade, world) -> NoReturn:
    """Reject ranks that wait for each other; find the gradient that none of them sent."""
    later = range(1, world.size)
    sent_on = all(any(call.peer == rank and call.sends for call in messages(world, rank - 1)) for rank in later)
    sent_back = any(call.peer == rank - 1 and call.sends for rank in later for call in messages(world, rank))
    observed = world.failure.observed
    if sent_on and not sent_back:
        text = f"{observed} No rank ever sent a gradient back to the one before it."
        grade.reject("input-without-gradient", text)
    grade.reject(world.failure.id, observed, world.drawing(), world.failure.where)


def messages(world, rank):
    return [call for call in world.calls[rank] if call.is_message]


def sizes_of(case):
    """Return the number of samples of each micro-batch."""
    return [len(part) for part in torch.arange(case["samples"]).split(case["micro_size"])]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def gradients_of(model, tokens):
    """Return the mean loss of some samples, and its gradients; the tied weight's two parts, as embedding and output."""
    model.zero_grad()
    output = model.embedding.weight.detach().clone().requires_grad_()
    x = model.embedding(tokens[:, :-1])
    for layer in model.layers:
        x = layer(x)
    loss = nn.functional.cross_entropy((x @ output.T).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return loss.item(), found, (found.pop(TIED), output.grad)


def combined(parts, factors):
    """Return a weighted sum of the micro-batches' losses, gradients, and parts of the tied weight."""
    loss = sum(factor * one[0] for factor, one in zip(factors, parts, strict=True))
    names = parts[0][1]
    gradients = {
        name: None
        if names[name] is None
        else sum(factor * one[1][name] for factor, one in zip(factors, parts, strict=True))
        for name in names
    }
    ends = [sum(factor * one[2][end] for factor, one in zip(factors, parts, strict=True)) for end in (0, 1)]
    return loss, gradients, ends


def oracle(case):
    """Train one process with the whole batch. Return each step's numbers, and those of its micro-batches."""
    model, steps = Model(case), []
    for step in range(STEPS):
        tokens = batch_of(case, step)
        whole = gradients_of(model, tokens)
        parts = [gradients_of(model, micro) for micro in tokens.split(case["micro_size"])]
        steps.append((whole, parts))
        for name, p in model.named_parameters():
            gradient = sum(whole[2]) if name == TIED else whole[1][name]
            p.data -= RATE * gradient if gradient is not None else 0
    return steps, {name: p.detach() for name, p in model.named_parameters()}


def mixtures(case, size):
    """Return, for each misconception, the factors with which people add the micro-batches' means."""
    nums, total = sizes_of(case), case["samples"]
    full = [num if num == case["micro_size"] else 0 for num in nums]
    last = [0] * (len(nums) - 1) + [1]
    return {
        "mean-of-means": [1 / len(nums)] * len(nums),
        "sum-of-means": [1] * len(nums),
        "sum-of-means.2": nums,
        "divided-by-ranks": [num / total / size for num in nums],
        "divided-by-ranks.2": [1 / len(nums) / size] * len(nums),
        "only-the-last": last,
        "only-the-last.2": [one * nums[-1] / total for one in last],
        "only-the-last.3": [one / len(nums) for one in last],
        "drops-the-rest": [num / sum(full) for num in full],
        "drops-the-rest.2": [num / total for num in full],
    }


def close(found, expected):
    if expected is None:
        return found is None or not found.any()
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape:
        return False
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, expected.abs().max().item()))


def judge_steps(grade, world, case):
    """Return the largest difference to the oracle's gradients."""
    size, largest = world.size, 0.0
    steps, weights = oracle(case)
    for step, ((loss, gradients, ends), parts) in enumerate(steps):
        seen = [value["steps"][step] for value in world.values]
        where = f"World of {size}, {listed_sizes(case)}, step {step + 1}"
        right = gradients | {TIED: sum(ends)}
        wrong = {
            (rank, name): (found, right[name])
            for rank, one in enumerate(seen)
            for name, found in one["gradients"].items()
            if not close(found, right[name])
        }
        if wrong and all(name == TIED for _, name in wrong):
            explain_tied(grade, where, seen, ends)
        if wrong:
            explain_gradients(grade, world, case, where, seen, parts, wrong)
        judge_loss(grade, case, where, seen, loss, parts)
        pairs = [(found, right[name]) for one in seen for name, found in one["gradients"].items()]
        largest = max([largest, *((a - b).abs().max().item() for a, b in pairs if a is not None and b is not None)])
    for rank, value in enumerate(world.values):
        for name, weight in value["weights"].items():
            what = f"World of {size}: {name} on rank {rank} after {STEPS} steps"
            grade.compare(weight, weights[name], what, rtol=1e-4, atol=1e-5)
    copies = [world.values[rank]["weights"][TIED] for rank in (0, size - 1)]
    if not torch.equal(*copies):
        text = f"World of {size}: after {STEPS} steps the two copies of the embedding differ by up to "
        grade.reject("unknown", f"{text}{(copies[0] - copies[1]).abs().max():.1g}. They must be equal, bit for bit.")
    return largest


def listed_sizes(case):
    nums = sizes_of(case)
    return f"micro-batches of {', '.join(map(str, nums[:-1]))} and {count(nums[-1], 'sample')}"


def explain_tied(grade, where, seen, ends) -> NoReturn:
    """Reject a tied weight whose gradient is wrong, while all others are right."""
    found = [seen[rank]["gradients"][TIED] for rank in (0, -1)]
    norms = " and ".join("none" if one is None else f"{one.norm():.4g}" for one in found)
    text = f"{where}: all gradients are right except that of the embedding, which the first and the last rank share. "
    text += f"Its norm is {norms} on the two ranks, expected {sum(ends).norm():.4g}. "
    if all(map(close, found, ends)):
        grade.reject("tied-not-summed", f"{text}Each has the part of its own layer only.")
    if all(close(one, sum(ends) / 2) for one in found):
        grade.reject("tied-averaged", f"{text}Both have half of the sum.")
    for end, name in enumerate(("embedding", "output layer")):
        if all(close(one, ends[end]) for one in found):
            grade.reject("tied-from-one", f"{text}Both have the part of the {name}.")
    both = [rank for rank in (0, 1) if close(found[rank], sum(ends))]
    if len(both) == 1 and close(found[1 - both[0]], ends[1 - both[0]]):
        grade.reject("tied-on-one", f"{text}Rank {both[0] * (len(seen) - 1)} has the sum, the other one its own part.")
    if all(close(one, 2 * sum(ends)) for one in found):
        grade.reject("tied-summed-twice", f"{text}Both have twice the sum.")
    worse = next(one for one in found if not close(one, sum(ends)))
    grade.reject_different(worse, sum(ends), f"{text}The gradient of {TIED}")


def explain_gradients(grade, world, case, where, seen, parts, wrong) -> NoReturn:
    """Reject gradients that are not those of one process."""
    size = world.size
    rank, name = next(key for key in wrong if key[1] != TIED)
    ranks = sorted({rank for rank, _ in wrong})
    text = f"{where}: {len(wrong)} of {sum(len(one['gradients']) for one in seen)} gradients are wrong, on "
    text += f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}. "
    started = [call for calls in world.calls for call in calls if call.op == "irecv"]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        text += f"The ranks started {count(len(started), 'irecv')} and waited for {waited}."
        grade.reject("not-waited", text)
    shared = [value["shared"] for value in world.values]
    if any(shared):
        rank = next(rank for rank in range(size) if shared[rank])
        text += f"On rank {rank}, {count(shared[rank], 'input')} of the stage had the memory of an earlier one whose "
        grade.reject("one-buffer", f"{text}backward pass was still to come.")
    found, expected = wrong[rank, name]
    if found is not None and expected is not None and found.shape == expected.shape:
        text += f"The gradient of {name} on rank {rank} has the norm {found.norm():.4g}, expected "
        text += f"{expected.norm():.4g}. "
    for id, factors in mixtures(case, size).items():
        if all_close(seen, combined(parts, factors)[1]):
            shown = ", ".join(f"{factor:.3g}" for factor in factors)
            nums = [num / case["samples"] for num in sizes_of(case)]
            needed = ", ".join(f"{num:.3g}" for num in nums)
            grade.reject(
                id.split(".")[0],
                f"{text}The micro-batches' means are added with the factors {shown}, expected {needed}.",
            )
    zero = [rank for rank, one in enumerate(seen) if has_no_gradient(one["gradients"])]
    if zero == list(range(size - 1)):
        text = (
            f"{where}: of the layers' gradients only those on rank {size - 1} are right. Those of earlier layers are "
        )
        grade.reject("gradient-stays", f"{text}zero or None.")
    grade.reject_different(found, expected, f"{text}The gradient of {name} on rank {rank}")


def has_no_gradient(gradients):
    """True if no gradient of a rank's layers has anything but zeros."""
    return not any(gradient is not None and gradient.any() for name, gradient in gradients.items() if name != TIED)


def all_close(seen, gradients):
    """True if all ranks have these gradients; the tied weight may have any."""
    return all(
        close(found, gradients[name]) for one in seen for name, found in one["gradients"].items() if name != TIED
    )


def judge_loss(grade, case, where, seen, loss, parts):
    size = len(seen)
    for rank, one in enumerate(seen):
        expected = loss if rank == size - 1 else 0.0
        found = one["loss"]
        if not isinstance(found, (int, float)) or not math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6):
            explain_loss(grade, case, where, rank, size, found, expected, parts)


def explain_loss(grade, case, where, rank, size, found, expected, parts) -> NoReturn:
    if not isinstance(found, (int, float)):
        grade.reject("unknown", f"{where}: the gradients are right, but rank {rank} returned {found!r}, not a number.")
    a, b = distinct_texts(found, expected)
    text = f"{where}: the gradients are right, but rank {rank} returned the loss {a}, expected {b}."
    if rank == size - 1:
        for id, factors in mixtures(case, size).items():
            if math.isclose(found, combined(parts, factors)[0], rel_tol=1e-4):
                shown = ", ".join(f"{factor:.3g}" for factor in factors)
                text += f" It is the sum of the micro-batches' losses with the factors {shown}."
                grade.reject({"only-the-last": "loss-of-the-last"}.get(id.split(".")[0], id.split(".")[0]), text)
    grade.reject("unknown", text)


# ---- activations, messages -------------------------------------------------------------------------------------------


def judge_held(grade, world, case):
    size, num_micro = world.size, len(sizes_of(case))
    peaks = [value["peak"] for value in world.values]
    most = [min(num_micro, size - rank) for rank in range(size)]
    if any(peak > limit for peak, limit in zip(peaks, most, strict=True)):
        explain_held(grade, world, num_micro, peaks, most)
    for rank, value in enumerate(world.values):
        if value["inputs"] > most[rank] + 2:  # two may still be on their way out of a variable
            text = f"World of {size}, {num_micro} micro-batches: the gradients are right, and backward freed what is "
            text += f"inside the stage. But rank {rank} held the inputs of {value['inputs']} forward passes at a time; "
            grade.reject("never-lets-go", f"{text}1F1B needs {most[rank]}.")


def explain_held(grade, world, num_micro, peaks, most) -> NoReturn:
    """Reject too many activations: of forward passes that came too early, or that are kept."""
    size = world.size
    rank = next(rank for rank in range(size) if peaks[rank] > most[rank])
    text = f"World of {size}, {num_micro} micro-batches: the gradients are right, but rank {rank} held the activations "
    text += f"of {peaks[rank]} of them at a time; 1F1B needs {most[rank]}."
    ahead = 0
    for call in world.calls[-1]:
        if call.sends:
            break
        ahead += call.op in ("recv", "irecv")
    text += f" The last rank received {count(ahead, 'output')} before it sent the first gradient."
    grade.reject("all-forwards-first" if ahead >= num_micro > 1 else "never-lets-go", text)


def entries(calls, peer):
    """Return a rank's queue to a peer: its entries in order, each a list of messages."""
    found = []
    for call in calls:
        if call.is_message and call.peer == peer:
            is_same = bool(found) and call.batch is not None and found[-1][-1].batch == call.batch
            if is_same:
                found[-1].append(call)
            else:
                found.append([call])
    return found


def left_over(first, second):
    """Replay two queues. Return what remains of each when nothing can move any more."""
    queues = [[list(entry) for entry in queue] for queue in (first, second)]
    has_moved = True
    while has_moved and all(queues):
        has_moved = False
        for one, other in (queues, queues[::-1]):
            if not one or not other:
                break
            send = next((call for call in one[0] if call.sends), None)
            receive = next((call for call in other[0] if not call.sends), None)
            if send is not None and receive is not None:
                one[0].remove(send)
                other[0].remove(receive)
                has_moved = True
            for queue in queues:
                if queue and not queue[0]:
                    queue.pop(0)
    return queues


def judge_queues(grade, world):
    for rank in range(world.size - 1):
        queues = left_over(entries(world.calls[rank], rank + 1), entries(world.calls[rank + 1], rank))
        if all(queues):
            explain_queue(grade, world, rank, queues)


def explain_queue(grade, world, rank, queues) -> NoReturn:
    """Reject messages that stop in a queue."""
    text = f"World of {world.size}: the gradients are right. But with one queue between ranks {rank} and {rank + 1}, "
    text += f"rank {rank} stops at {shown(queues[0][0])}, and rank {rank + 1} at {shown(queues[1][0])}. "
    text += "Each waits there for the other rank's part, which is further back in the other queue."
    lines = [
        f"rank {one}'s queue to {2 * rank + 1 - one}:  {' | '.join(map(shown, queue[:3]))} | ..."
        for one, queue in zip((rank, rank + 1), queues, strict=True)
    ]
    grade.reject("one-queue", text, "\n".join(lines))


def shown(entry):
    return " + ".join(f"{call.op} ({call.line})" for call in entry)


def bytes_of(case, rank, size, samples):
    """Return the bytes that a rank sends to its neighbours in a step: outputs forward, gradients back."""
    return ((rank < size - 1) + (rank > 0)) * samples * LENGTH * case["width"] * 4


def judge_bytes(grade, world, case):
    size = world.size
    for rank in range(size):
        calls = [call for call in world.calls[rank] if call.op not in ("recv", "irecv", "new_group")]
        tied = STEPS * case["vocabulary"] * case["width"] * 4 if rank in (0, size - 1) else 0
        needed = STEPS * bytes_of(case, rank, size, case["samples"])
        sent = sum(call.num_bytes for call in calls) - tied
        text = (
            f"World of {size}: in {STEPS} steps, rank {rank} passed {sent:,} bytes to sends and collectives, without "
        )
        text += f"the embedding's gradient. Its outputs and the gradients of its inputs have {needed:,}."
        if sent >= 2 * needed:
            grade.reject("too-many-bytes", f"{text} All gradients are right.")
        if sent > 1.1 * needed:
            grade.note(text)
            break


# ---- a passed check --------------------------------------------------------------------------------------------------


def report(grade, world, case):
    num = len(sizes_of(case))
    peaks = [str(value["peak"]) for value in world.values]
    grade.measured(f"3 ranks, {num} micro-batches: activations that ranks 0, 1 and 2 held", ", ".join(peaks))
    messages = [call for call in world.calls[1] if call.is_message]
    sent = sum(call.num_bytes for call in messages if call.sends) // STEPS
    grade.measured("bytes that rank 1 sent to its neighbours in a step", f"{sent:,}")
    unwaited = sum(not call.waited for call in messages if call.sends)
    if unwaited:
        total = sum(call.sends for call in messages)
        grade.note(
            f"Rank 1 never waited for {unwaited} of {total} sends. Until wait() returns, a tensor may not be changed, "
            "and a process that ends earlier may lose the message."
        )


def measure_predictions(grade):
    case = {"width": 16, "samples": 11}
    per_length = bytes_of(case, 1, 3, 11) // LENGTH
    grade.predicted("bytes", 10 * per_length)
    grade.predicted("stops", next(num for num in range(1, 9) if stops(num)))


class Blocking:
    """A message in a queue of its own entry."""

    def __init__(self, sends):
        self.sends = sends


def stops(num_micro):
    """True if blocking sends and receives, each when a pass needs it, stop on two ranks."""
    first = ["F"] * min(2, num_micro) + ["B", "F"] * max(0, num_micro - 2) + ["B"] * min(2, num_micro)
    queues = [[[Blocking(kind == "F")] for kind in first]]
    queues.append([[Blocking(sends)] for _ in range(num_micro) for sends in (False, True)])
    return all(left_over(*queues))
