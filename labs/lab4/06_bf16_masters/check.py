"""Compare masters and weights with one process that adds the same bf16 gradients in float32."""

import math
import random
from typing import NoReturn

import torch
from ranks import MARK, loss_of, make_model, make_optimizer

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

RATE, NUM_STEPS = 1e-3, 100  # in the prediction


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    for size in (2, 3):
        base = {"seed": grade.seed % 1_000_000 + size, "sizes": draw_sizes(draw)}
        cases = [
            base | {"optimizer": "SGD", "num_micro": 3, "num_steps": 3},
            base | {"optimizer": "AdamW", "num_micro": 2, "num_steps": 4},
        ]
        world = grade.world(size, {"cases": cases}, seconds=4.0)
        ranks = [[values[number] for values in world.values] for number in range(len(cases))]
        for number in (1, 0):  # AdamW first: small steps show best what bf16 weights lose
            judge_state(grade, cases[number], size, ranks[number])
        largest = max(judge_steps(grade, cases[n], size, ranks[n], world) for n in range(len(cases)))
        judge_calls(grade, world, cases)
        judge_gradients(grade, cases[0], ranks[0])
    report(grade, cases[1], ranks[1], largest)
    grade.predicted("weight", lone_weight())


def draw_sizes(draw):
    """Draw a vocabulary, a width and an inner width so that 2 and 3 do not divide the trained parameters."""
    while True:
        sizes = [draw.randint(40, 60), draw.randint(13, 19), draw.randint(20, 30)]
        if all(sum(numels(sizes).values()) % size for size in (2, 3)):
            return sizes


def numels(sizes):
    """Return the number of elements of each trained parameter."""
    model = make_model({"sizes": sizes, "seed": 0})
    return {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}


def lone_weight():
    """Train one bf16 weight of 1.0 without a master, with a gradient that always has the same sign."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([weight], lr=RATE)
    for _ in range(NUM_STEPS):
        weight.grad = torch.full_like(weight, -1.0)
        optimizer.step()
    return weight.item()


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def pad(values, size):
    return torch.cat([values, values.new_zeros(-len(values) % size)])


def part(values, rank, size):
    return pad(values, size).chunk(size)[rank]


def close(found, expected):
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


def is_bf16(values):
    return torch.equal(values, values.bfloat16().float())


# ---- state -----------------------------------------------------------------------------------------------------------


def judge_state(grade, case, size, ranks):
    """Check dtypes, and the number, bytes and first values of the masters."""
    names = numels(case["sizes"])
    total = sum(names.values())
    start = flat(p for p in make_model(case).parameters() if p.requires_grad)
    for rank, one in enumerate(ranks):
        built, where = one["built"], f"World of {size}, rank {rank}"
        types = set(built["types"].values())
        if types != {"bfloat16"}:
            explain_types(grade, where, built["types"])
        if built["masters"] is None:
            grade.reject("unknown", f"{where}: make_optimizer was never called in the constructor.")
        if built["dtypes"] != ["float32"]:
            text = f"{where}, {case['optimizer']}: the optimizer's tensors are {' and '.join(built['dtypes'])}."
            grade.reject("no-masters", f"{text} {unmoved(one, built)}")
        judge_numel(grade, where, len(built["masters"]), names, size, case)
        own = part(start, rank, size)
        if not close(built["masters"], own):
            off = (built["masters"] - own).abs().max()
            text = f"{where}: before the first step the masters differ from the float32 weights by up to {off:.2g}."
            if torch.equal(built["masters"], own.bfloat16().float()):
                grade.reject("rounded-at-start", f"{text} All of them are bf16 numbers.")
            grade.reject_different(built["masters"], own, f"{text} The part of this rank")
        most = max(step["num_bytes"] for step in one["steps"])
        per_element = 4 if case["optimizer"] == "SGD" else 12
        if most >= 1.9 * per_element * math.ceil(total / size):
            text = f"{where}, {case['optimizer']}: the optimizer and its tensors have {most:,} bytes, expected "
            grade.reject("unknown", f"{text}{per_element * math.ceil(total / size):,}.")


def explain_types(grade, where, types) -> NoReturn:
    for dtype, id in (("float32", "computes-in-float32"), ("float16", "float16-instead")):
        wrong = [name for name, found in types.items() if found == dtype]
        if wrong:
            text = f"{where}: {len(wrong)} of {count(len(types), 'parameter')} of the model are {dtype}"
            grade.reject(id, f"{text}, {wrong[0]} among them.")
    grade.reject("unknown", f"{where}: the model's parameters are {', '.join(sorted(set(types.values())))}.")


def unmoved(one, built):
    """Say how many norm weights are still 1 at the end."""
    norm = one["steps"][-1]["weights"]["norm.weight"]
    num = int((norm == built["weights"]["norm.weight"]).sum())
    return f"After {len(one['steps'])} steps, {num} of {len(norm)} weights of the norm are exactly what they were."


def judge_numel(grade, where, found, names, size, case):
    total = sum(names.values())
    expected = math.ceil(total / size)
    if found == expected:
        return
    model = make_model(case)
    tied, frozen = model.head.weight.numel(), sum(p.numel() for p in model.frozen.parameters())
    says = f"{where}: the optimizer has {found:,} elements. The model has {total:,} trained elements, 1/{size} is "
    says += f"{expected:,}."
    if found in (total, expected * size):
        grade.reject("masters-everywhere", says)
    if found in (total + frozen, math.ceil((total + frozen) / size)):
        grade.reject("frozen-has-a-master", f"{says} The frozen layer has {frozen:,} more.")
    if found in (total + tied, math.ceil((total + tied) / size)):
        grade.reject("tied-twice", f"{says} The tied weight has {tied:,}.")
    if found == total // size:
        text = f"{says} With {size} parts of {found:,}, the remainder of {total - size * found} belongs to no rank."
        grade.reject("tail-lost", text)
    grade.reject("unknown", says)


# ---- steps -----------------------------------------------------------------------------------------------------------


class Step:
    """The gradients of a step at known bf16 weights: those of each rank and micro-batch, in bf16."""

    def __init__(self, case, size, step, weights):
        model = make_model(case)
        for name, p in model.named_parameters():
            p.data = weights[name].bfloat16()
        self.size = size
        self.trained = [p for p in model.parameters() if p.requires_grad]
        trained = [(name, p.numel()) for name, p in model.named_parameters() if p.requires_grad]
        self.used = torch.cat([torch.full((numel,), not name.startswith("idle.")) for name, numel in trained])
        self.ranks = [
            [self.gradient(model, case, step, micro, rank) for micro in range(case["num_micro"])]
            for rank in range(size)
        ]

    def gradient(self, model, case, step, micro, rank):
        model.zero_grad()
        loss_of(model, case, step, micro, rank).backward()
        return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained)

    def sums(self):
        return [sum(micro.float() for micro in micros) for micros in self.ranks]

    def mean(self):
        return sum(self.sums()) / self.size

    def ways(self, before):
        """Return the gradient under each misconception: one for all ranks, or one for each."""
        sums, size = self.sums(), self.size
        in_bf16 = [running(micros)[-1] for micros in self.ranks]
        again = [sum(total.float() for total in running(micros)) for micros in self.ranks]
        mean = self.mean()
        return {
            "sum-is-average": mean * size,
            "own-gradient": sums,
            "own-gradient.2": [total / size for total in sums],
            "accumulates-in-bf16": sum(total.float() for total in in_bf16) / size,
            "micro-batches-again": sum(again) / size,
            "last-micro-batch": sum(micros[-1].float() for micros in self.ranks) / size,
            "divided-again": mean / len(self.ranks[0]),
            "sum-stays": mean + before,
            "unused-shifts": torch.cat([mean[self.used], torch.zeros(int((~self.used).sum()))]),
        }


def running(micros):
    """Return the sums that bf16 .grad tensors hold after each micro-batch."""
    totals = [micros[0]]
    for micro in micros[1:]:
        totals.append(totals[-1] + micro)
    return totals


def judge_steps(grade, case, size, ranks, world):
    """Follow the masters in one process. Each step starts from the bf16 weights that the ranks had."""
    model = make_model(case)
    master = torch.nn.Parameter(flat(p for p in model.parameters() if p.requires_grad))
    optimizer = make_optimizer(case, [master])
    weights, before, largest = ranks[0]["built"]["weights"], torch.zeros(len(master)), 0.0
    judge_weights(grade, case, size, None, ranks, [one["built"] for one in ranks])
    for number in range(case["num_steps"]):
        step, old = Step(case, size, number, weights), master.detach().clone()
        master.grad = step.mean()
        optimizer.step()
        found = [one["steps"][number] for one in ranks]
        for rank, one in enumerate(found):
            if not close(one["masters"], part(master.detach(), rank, size)):
                facts = {"old": old, "new": master.detach(), "before": before, "weights": weights}
                explain(grade, case, size, number, rank, one["masters"], step, facts, world)
            largest = max(largest, (one["masters"] - part(master.detach(), rank, size)).abs().max().item())
        judge_weights(grade, case, size, number, ranks, found)
        weights, before = found[0]["weights"], before + step.mean()
    return largest


def explain(grade, case, size, number, rank, masters, step, facts, world) -> NoReturn:
    """Reject masters that are not those of one process."""
    own = part(facts["new"], rank, size)
    says = f"World of {size}, {case['optimizer']}, step {number + 1}, rank {rank}: "
    says += f"the masters differ by up to {off(masters, own):.2g} from those of one process"
    says += f"; the step changes them by up to {off(part(facts['old'], rank, size), own):.2g}."
    late = [call for call in world.calls[rank] if call.is_async and not call.waited]
    if late:
        grade.reject("not-waited", f"{says} You started {count(len(late), 'operation')} and did not wait.")
    low = [call for call in world.calls[rank] if is_low(call)]
    if low:
        text = f"{says} You called {low[0].op} with {low[0].numel:,} numbers in bfloat16 (line {low[0].line})."
        grade.reject("reduces-in-bf16", text)
    if close(masters, part(facts["old"], rank, size)):
        grade.reject("never-steps", f"{says} They are the same as before the step.")
    if is_bf16(masters):
        grade.reject("masters-rounded", f"{says} All of them are bf16 numbers.")
    if case["optimizer"] == "SGD":  # its update follows from the gradient alone
        rate = make_optimizer(case, [torch.zeros(1)]).param_groups[0]["lr"]
        old = part(facts["old"], rank, size)
        for id, way in step.ways(facts["before"]).items():
            gradient = part(way[rank] if isinstance(way, list) else way, rank, size)
            if close(masters, old - rate * gradient):
                grade.reject(id.split(".")[0], f"{says} {WAYS[id.split('.')[0]]}")
        model = make_model(case)
        rounded = flat(facts["weights"][name] for name, p in model.named_parameters() if p.requires_grad)
        if close(masters, part(rounded - rate * step.mean(), rank, size)):
            grade.reject("rebuilt-from-the-model", f"{says} They are the model's bf16 weights plus this step's update.")
    grade.reject_different(masters, own, f"{says} The part of this rank")


def is_low(call):
    """True if an operation adds bf16 numbers."""
    return "reduce" in call.op and "bfloat16" in call.dtype


def off(a, b):
    return (a - b).abs().max().item() if a.shape == b.shape else math.inf


WAYS = {
    "sum-is-average": "That step used the sum over the ranks, not the mean.",
    "own-gradient": "That step used only the gradients of this rank.",
    "accumulates-in-bf16": "That step used gradients whose micro-batches were added in bf16.",
    "micro-batches-again": "That step counted earlier micro-batches again with each later one.",
    "last-micro-batch": "That step used only the last micro-batch of each rank.",
    "divided-again": "That step divided the sum by the number of micro-batches.",
    "sum-stays": "That step used its gradients plus those of earlier steps.",
    "unused-shifts": "In that step, the elements after the layer without a gradient got those of their neighbors.",
}


def judge_weights(grade, case, size, number, ranks, found):
    """Check that the model's weights on every rank are the masters, rounded."""
    names = numels(case["sizes"])
    total = sum(names.values())
    masters = torch.cat([one["masters"] for one in found])[:total]
    rounded = {name: p.detach().bfloat16().float() for name, p in make_model(case).named_parameters()}
    frozen = {name: value for name, value in rounded.items() if name not in names}
    when = "after the constructor" if number is None else f"after step {number + 1}"
    for rank, one in enumerate(found):
        where = f"World of {size}, {case['optimizer']}, rank {rank}, {when}"
        for name, value in frozen.items():
            grade.compare(one["weights"][name], value, f"{where}: the frozen {name}")
        seen = flat(one["weights"][name] for name in names)
        wrong = seen != masters.bfloat16().float()
        if wrong.any() and number is None:
            grade.compare(seen, masters.bfloat16().float(), f"{where}: the model's weights", rtol=0, atol=0)
        if wrong.any():
            before = ranks[rank]["built" if number == 0 else "steps"]
            before = before if number == 0 else before[number - 1]
            explain_weights(grade, where, rank, size, seen, masters, flat(before["weights"][name] for name in names))


def explain_weights(grade, where, rank, size, seen, masters, before) -> NoReturn:
    expected = masters.bfloat16().float()
    wrong = seen != expected
    says = f"{where}: {int(wrong.sum()):,} of {len(seen):,} weights of the model are not the rounded masters."
    if torch.equal(seen, before):
        grade.reject("model-stays", f"{says} They are what they were before the step.")
    numel = math.ceil(len(seen) / size)
    own = slice(rank * numel, (rank + 1) * numel)
    mixed = before.clone()
    mixed[own] = expected[own]
    if torch.equal(seen, mixed):
        grade.reject("not-gathered", f"{says} Only this rank's part has changed.")
    grade.reject_different(seen, expected, f"{says} The weights")


# ---- communication ---------------------------------------------------------------------------------------------------


def judge_calls(grade, world, cases):
    """Check the dtype and the bytes of what a rank sends."""
    num_steps = sum(case["num_steps"] for case in cases)
    numel = math.ceil(sum(numels(cases[0]["sizes"]).values()) / world.size)
    calls = [call for call in world.calls[0] if call.numel != MARK]
    reduced = [call for call in calls if "reduce" in call.op]
    gathered = [call for call in calls if call.op.startswith(("all_gather", "gather", "broadcast"))]
    where = f"World of {world.size}: masters and weights are right. In {num_steps} steps rank 0 passed"
    whole = [call for call in reduced if call.op == "all_reduce" and call.numel > 1]
    if whole:
        text = f"{where} {sum(call.num_bytes for call in whole):,} bytes to all_reduce, in {whole[0].dtype}."
        if is_low(whole[0]):
            grade.reject("unknown", f"{text} An all-gather of the weights is given 1/{world.size} of that.")
        text += f" It leaves the whole sum on every rank, which uses {numel:,} of its {numel * world.size:,} elements."
        grade.reject("all-reduces", text)
    sent, expected = sum(call.num_bytes for call in gathered), 2 * numel * num_steps
    if sent >= 1.9 * expected:
        dtypes = " and ".join(sorted({call.dtype for call in gathered}))
        text = f"{where} {sent:,} bytes of weights to {gathered[0].op}, in {dtypes}; in bf16 they have {expected:,}."
        grade.reject("gathers-float32" if dtypes == "float32" else "unknown", text)
    if sent > 1.1 * expected:
        grade.note(f"You all-gathered {sent:,} bytes; the weights have {expected:,} in bf16.")


def judge_gradients(grade, case, ranks):
    """Check that no gradient is kept after it has been added to the sum."""
    for rank, one in enumerate(ranks):
        if left := one["steps"][0]["bytes_left"]:
            total = sum(numels(case["sizes"]).values())
            grade.reject(
                "gradient-stays",
                f"World of {len(ranks)}, rank {rank}: masters and weights are right. After add, the model's .grad have "
                f"{left:,} bytes, {left / total:.1f} for each trained element.",
            )


def report(grade, case, ranks, largest):
    """Show the rounding errors that the masters avoid."""
    names, size = numels(case["sizes"]), len(ranks)
    last = [one["steps"][-1] for one in ranks]
    held = last[0]["num_bytes"] / sum(names.values())
    grade.measured("largest difference between the masters and one process", f"{largest:.1e}")
    grade.measured(f"bytes for each trained element, on each of {size} ranks", f"weight 2, master and AdamW {held:.2f}")
    masters = torch.cat([one["masters"] for one in last])[: sum(names.values())].split(list(names.values()))
    norms = last[0]["weights"]["norm.weight"], dict(zip(names, masters, strict=True))["norm.weight"]
    model, master = (int((values != 1).sum()) for values in norms)
    what = f"of {len(norms[0])} norm weights, those that are no longer 1 after {case['num_steps']} steps of AdamW"
    grade.measured(what, f"{model} in the bf16 model, {master} in the masters")
