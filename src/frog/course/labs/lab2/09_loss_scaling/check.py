"""Weights and scale, step by step, against torch.amp.GradScaler; and against each belief."""

import torch
from ranks import MAX_NORM, RATE, draw_case, loss_of, make_model

from frog.grader.grade import Grade


def check(grade: Grade) -> None:
    fixed = {"seed": grade.seed, "interval": 3, "scale": 1024.0}
    fixed["overflows"] = [[0, 1] if step == 5 else [0, 0] for step in range(1, 11)]
    for size, cases in ((2, [draw_case(grade.seed, 2), fixed]), (3, [draw_case(grade.seed + 1, 3)])):
        world = grade.world(size, {"cases": cases})
        for n, case in enumerate(cases):
            judge(grade, case, [rank[n] for rank in world.values])
        if size == 2:
            scales = [step["scale"] for step in world.values[0][1]]
            grade.predicted("scale", scales[-1])
            grade.measured("scale, step by step", " ".join(f"{scale:.0f}" for scale in scales))
            grade.measured("gradients that are zero without scaling", lost(fixed))


class Sgd:
    """As much of an optimizer as GradScaler wants."""

    def __init__(self, model):
        self.param_groups = [{"params": list(model.parameters())}]
        self.moved = False

    def step(self):
        self.moved = True
        for p in self.param_groups[0]["params"]:
            p.data -= RATE * p.grad


def oracle(case):
    """What GradScaler does in one process that averages the ranks' gradients."""
    size = len(case["overflows"][0])
    model = make_model(case)
    optimizer = Sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=case["scale"], growth_interval=case["interval"])
    steps = []
    for step in range(len(case["overflows"])):
        set_gradients(model, mean([scaled(case, model, step, r, scaler.get_scale()) for r in range(size)]))
        scaler.scale(torch.zeros(1))  # GradScaler makes its state at the first loss
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.moved = False
        scaler.step(optimizer)
        scaler.update()
        steps.append({"moved": optimizer.moved, "scale": scaler.get_scale(), "weights": flat(model)})
    return steps


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def set_gradients(model, gradients):
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient.clone()


def scaled(case, model, step, rank, scale):
    return torch.autograd.grad(loss_of(model, case, step, rank) * scale, list(model.parameters()))


def mean(gradients):
    return [torch.stack(parts).sum(0) / len(parts) for parts in zip(*gradients, strict=True)]


def lost(case):
    gradients = scaled(case, make_model(case), 0, 0, 1.0)
    return f"{sum(int((g == 0).sum()) for g in gradients)} of {sum(g.numel() for g in gradients)} on rank 0 in step 1"


class Believer:
    """One rank that trains as somebody with a belief would write it."""

    def __init__(self, case, belief):
        self.model, self.belief = make_model(case), belief
        self.scale, self.good, self.interval = case["scale"], 0, case["interval"]
        self.left = None
        self.steps = []

    def backward(self, case, step, rank):
        factor = 1.0 if self.belief == "never-scales" else self.scale
        own = scaled(case, self.model, step, rank, factor)
        if self.left is not None:
            own = [a + b for a, b in zip(own, self.left, strict=True)]
        self.own = own
        return own

    def finish(self, gradients):
        believes = self.belief.__eq__
        gradients = self.own if believes("never-reduces") else gradients
        factor = 1.0 if believes("never-scales") or believes("never-unscales") else self.scale
        if believes("clips-before-unscaling"):
            gradients = clipped(gradients)
        seen = self.own if believes("overflow-is-private") else gradients
        seen = {"looks-at-one": seen[:1], "looks-at-one.2": seen[-1:]}.get(self.belief, seen)
        if believes("looks-at-the-loss"):
            overflowed = not bool(flat(self.model).isfinite().all())  # then the loss is none, too
        elif believes("nan-is-finite"):
            overflowed = any(bool(g.isinf().any()) for g in seen)
        else:
            overflowed = any(not bool(g.isfinite().all()) for g in seen)
        self.update(overflowed)
        gradients = [g / (self.scale if believes("unscales-too-late") else factor) for g in gradients]
        moves = not overflowed or believes("steps-on-overflow")
        if moves:
            is_left = believes("clips-before-unscaling") or believes("never-clips")
            set_gradients(self.model, gradients if is_left else clipped(gradients))
            for p in self.model.parameters():
                p.data -= RATE * p.grad
        if believes("never-clears"):
            self.left = [p.grad.clone() for p in self.model.parameters()] if moves else gradients
        else:
            self.left = gradients if overflowed and believes("keeps-the-bad-gradient") else None
        self.steps.append({"moved": moves, "scale": self.scale, "weights": flat(self.model)})

    def update(self, overflowed):
        if overflowed:
            self.scale *= 1.0 if self.belief == "never-backs-off" else 0.5
            self.good = self.good if self.belief == "counts-through-overflows" else 0
            return
        self.good += 1
        enough = self.interval + (self.belief == "grows-too-late")
        if self.belief != "never-grows" and (self.good >= enough or self.belief == "grows-too-soon"):
            self.scale *= 2.0
            self.good = self.good if self.belief == "grows-too-soon.2" else 0


def clipped(gradients):
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    factor = torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0)
    return [g * factor for g in gradients]


def believed(case, belief):
    size = len(case["overflows"][0])
    ranks = [Believer(case, belief) for _ in range(size)]
    for step in range(len(case["overflows"])):
        gradients = mean([one.backward(case, step, rank) for rank, one in enumerate(ranks)])
        for one in ranks:
            one.finish(gradients)
    return [one.steps for one in ranks]


BELIEFS = (
    "never-scales",
    "never-unscales",
    "clips-before-unscaling",
    "overflow-is-private",
    "steps-on-overflow",
    "nan-is-finite",
    "keeps-the-bad-gradient",
    "never-backs-off",
    "grows-too-soon",
    "grows-too-soon.2",
    "counts-through-overflows",
    "unscales-too-late",
    "never-clips",
    "looks-at-the-loss",
    "looks-at-one",
    "looks-at-one.2",
    "never-reduces",
    "never-clears",
    "grows-too-late",
    "never-grows",
)


def same(found, expected):
    weights = torch.allclose(found["weights"], expected["weights"], rtol=1e-4, atol=1e-6, equal_nan=True)
    return weights and found["scale"] == expected["scale"] and found["moved"] == expected["moved"]


def judge(grade, case, found):
    expected = oracle(case)
    size, num = len(found), len(expected)
    first = next((n for n in range(num) if not all(same(rank[n], expected[n]) for rank in found)), None)
    if first is None:
        for rank, steps in enumerate(found):
            if not torch.equal(steps[-1]["weights"], found[0][-1]["weights"]):
                grade.reject("unknown", f"After {num} steps rank {rank} has not, bit for bit, the weights of rank 0.")
        return
    overflow = signs(case["overflows"][first])
    says = f"World of {size}, step {first + 1} (overflow on rank: {overflow}): {told(found, first, expected[first])}. "
    says += f"torch.amp.GradScaler: {line(expected[first])}."
    for belief in BELIEFS:
        steps = believed(case, belief)
        if all(same(a, b) for rank, one in zip(found, steps, strict=True) for a, b in zip(rank, one, strict=True)):
            grade.reject(belief.split(".")[0], says)
    grade.reject(differing([rank[first] for rank in found], expected[first]), says)


def differing(ranks, expected):
    """The one thing in which a step differs first, where no belief explains all that follows."""
    for key, id in (("moved", "says-otherwise"), ("scale", "another-scale")):
        if all(same(one | {key: expected[key]}, expected) for one in ranks):
            return id
    return "unknown"


def signs(overflows):
    return ", ".join(str(rank) for rank, sign in enumerate(overflows) if sign) or "none"


def line(step, expected=None):
    text = f"{'stepped' if step['moved'] else 'left out'}, scale {step['scale']:.0f}"
    if expected is None:
        return text
    off = (step["weights"] - expected["weights"]).abs().max().item()
    return f"{text}, weights {off:.1e} off"


def told(found, step, expected):
    lines = [line(rank[step], expected) for rank in found]
    if len(set(lines)) == 1:
        return f"all ranks {lines[0]}"
    return "; ".join(f"rank {rank} {text}" for rank, text in enumerate(lines))
