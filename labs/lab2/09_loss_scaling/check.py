"""Compare weights and scale, step by step, with torch.amp.GradScaler and with each misconception."""

import math

import torch
from ranks import MAX_NORM, RATE, draw_case, loss_of, make_model

from frog.learn.grader.grade import Grade


def check(grade: Grade) -> None:
    fixed = {"seed": grade.seed, "interval": 3, "scale": 1024.0}
    fixed["overflows"] = [[0, 1] if step == 5 else [0, 0] for step in range(1, 11)]
    for size, cases in ((2, [draw_case(grade.seed, 2), fixed]), (3, [draw_case(grade.seed + 1, 3)])):
        world = grade.world(size, {"cases": cases})
        judge(grade, cases, [[rank[n] for rank in world.values] for n in range(len(cases))])
        if size == 2:
            scales = [step["scale"] for step in world.values[0][1]]
            grade.predicted("scale", scales[-1])
            grade.measured("scale, step by step", " ".join(f"{scale:.0f}" for scale in scales))
            grade.measured("gradients that are zero without scaling", lost(fixed))


class Sgd:
    """The part of an optimizer that GradScaler needs."""

    def __init__(self, model):
        self.param_groups = [{"params": list(model.parameters())}]
        self.moved = False

    def step(self):
        self.moved = True
        for p in self.param_groups[0]["params"]:
            p.data -= RATE * p.grad


def oracle(case):
    """Run GradScaler in one process that averages the ranks' gradients."""
    size = len(case["overflows"][0])
    model = make_model(case)
    optimizer = Sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=case["scale"], growth_interval=case["interval"])
    steps = []
    for step in range(len(case["overflows"])):
        set_gradients(model, mean([scaled(case, model, step, r, scaler.get_scale()) for r in range(size)]))
        scaler.scale(torch.zeros(1))  # GradScaler creates its state at the first loss
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
    """A rank that trains as a misconception would have it."""

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
        if self.belief == "clips-before-reducing":
            return clipped([g / factor for g in own])
        return [zero_where_infinite(g) for g in own] if self.belief in ZEROS_BEFORE else own

    def finish(self, gradients, first):
        """Take the step with the mean of what `backward` returned. `first`: rank 0's own gradients."""
        believes = self.belief.__eq__
        gradients = self.own if believes("never-reduces") else gradients
        factor = 1.0 if self.belief in ("never-scales", "never-unscales", "clips-before-reducing") else self.scale
        if believes("clips-before-unscaling"):
            gradients = clipped(gradients)
        overflowed = self.finds_overflow(self.seen(gradients, first))
        everyones = self.finds_overflow(gradients)
        self.update(everyones if believes("overflow-is-private.2") else overflowed)
        gradients = [g / (self.scale if believes("unscales-too-late") else factor) for g in gradients]
        if self.belief in ZEROS_AFTER:
            gradients = [zero_where_infinite(g) for g in gradients]
        moves = not (everyones if believes("overflow-is-private.3") else overflowed)
        moves = moves or self.belief in ("steps-on-overflow", *ZEROS_AFTER, *ZEROS_BEFORE)
        if moves:
            set_gradients(self.model, self.limited(gradients))
            for p in self.model.parameters():
                p.data -= RATE * p.grad
        self.left = self.leaves(gradients, overflowed, moves)
        told = not overflowed if believes("steps-with-zeros") or believes("steps-with-zeros.3") else moves
        self.steps.append({"moved": told, "scale": self.scale, "weights": flat(self.model)})

    def seen(self, gradients, first):
        """Return the gradients that decide on the step."""
        if self.belief.startswith("overflow-is-private") or self.belief == "steps-with-zeros.3":
            return self.own
        return {"looks-at-one": gradients[:1], "looks-at-one.2": gradients[-1:], "rank-0-decides": first}.get(
            self.belief, gradients
        )

    def finds_overflow(self, gradients):
        if self.belief == "looks-at-the-loss":
            return not bool(flat(self.model).isfinite().all())  # then the loss is not finite either
        test = {"nan-is-finite": torch.isinf, "nan-is-finite.2": torch.isposinf}.get(self.belief)
        return any(bool(test(g).any()) if test else not bool(g.isfinite().all()) for g in gradients)

    def limited(self, gradients):
        if self.belief in ("clips-before-unscaling", "never-clips", "clips-before-reducing"):
            return gradients
        if self.belief == "clips-each":
            return [clipped([g])[0] for g in gradients]
        return (
            [g.clamp(-MAX_NORM, MAX_NORM) for g in gradients] if self.belief == "clips-values" else clipped(gradients)
        )

    def leaves(self, gradients, overflowed, moves):
        """Return the gradients that stay in .grad after the step."""
        moved_with = [p.grad.clone() for p in self.model.parameters()] if moves else None
        if self.belief == "never-clears":
            return moved_with or gradients
        if self.belief == "never-clears.2":
            return moved_with
        return gradients if overflowed and self.belief == "keeps-the-bad-gradient" else None

    def update(self, overflowed):
        if self.belief == "never-told" or (overflowed and self.belief == "never-backs-off.2"):
            return
        if overflowed:
            self.scale *= 1.0 if self.belief == "never-backs-off" else 0.5
            self.good = self.good if self.belief == "counts-through-overflows" else 0
            return
        self.good += 1
        enough = self.interval + (self.belief == "grows-too-late")
        if self.belief == "grows-once":
            self.scale *= 2.0 if self.good == enough else 1.0
        elif self.belief != "never-grows" and (self.good >= enough or self.belief == "grows-too-soon"):
            self.scale *= 2.0
            self.good = self.good if self.belief == "grows-too-soon.2" else 0


ZEROS_BEFORE = ("steps-with-zeros.3", "steps-with-zeros.4")
ZEROS_AFTER = ("steps-with-zeros", "steps-with-zeros.2")


def zero_where_infinite(gradient):
    return gradient.nan_to_num(0.0, 0.0, 0.0)


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
            one.finish(gradients, ranks[0].own)
    return [one.steps for one in ranks]


BELIEFS = (
    "never-scales",
    "never-unscales",
    "clips-before-unscaling",
    "overflow-is-private",
    "overflow-is-private.2",
    "overflow-is-private.3",
    "rank-0-decides",
    "steps-with-zeros",
    "steps-with-zeros.2",
    "steps-with-zeros.3",
    "steps-with-zeros.4",
    "steps-on-overflow",
    "nan-is-finite",
    "nan-is-finite.2",
    "keeps-the-bad-gradient",
    "never-backs-off",
    "never-backs-off.2",
    "never-told",
    "grows-too-soon",
    "grows-too-soon.2",
    "counts-through-overflows",
    "unscales-too-late",
    "clips-each",
    "clips-values",
    "clips-before-reducing",
    "never-clips",
    "looks-at-the-loss",
    "looks-at-one",
    "looks-at-one.2",
    "never-reduces",
    "never-clears",
    "never-clears.2",
    "grows-once",
    "grows-too-late",
    "never-grows",
)


def same(found, expected):
    weights = torch.allclose(found["weights"], expected["weights"], rtol=1e-4, atol=1e-6, equal_nan=True)
    return weights and found["scale"] == expected["scale"] and found["moved"] == expected["moved"]


def judge(grade, cases, found):
    """Compare each case with GradScaler; name a misconception if it explains all cases of this world."""
    expected = [oracle(case) for case in cases]
    for case, ranks, steps in zip(cases, found, expected, strict=True):
        num = len(steps)
        first = next((n for n in range(num) if not all(same(rank[n], steps[n]) for rank in ranks)), None)
        if first is None:
            check_equal(grade, ranks)
            continue
        says = f"World of {len(ranks)}, step {first + 1} ({signs(case['overflows'][first])}): "
        says += f"{told(ranks, first, steps[first])}. torch.amp.GradScaler {line(steps[first])}."
        for belief in BELIEFS:
            if all(explains(belief, *one) for one in zip(cases, found, strict=True)):
                grade.reject(belief.split(".")[0], says)
        grade.reject(differing([rank[first] for rank in ranks], steps[first]), says)


def explains(belief, case, found):
    steps = believed(case, belief)
    return all(same(a, b) for rank, one in zip(found, steps, strict=True) for a, b in zip(rank, one, strict=True))


def check_equal(grade, found):
    for rank, steps in enumerate(found):
        if not torch.equal(steps[-1]["weights"], found[0][-1]["weights"]):
            off = (steps[-1]["weights"] - found[0][-1]["weights"]).abs().max().item()
            text = (
                f"After {len(steps)} steps rank {rank}'s weights differ from rank 0's by up to {off:.1e}. They must be"
            )
            grade.reject("unknown", f"{text} equal, bit for bit.")


def differing(ranks, expected):
    """Return the id for the one thing in which a step differs, where no misconception explains the rest."""
    for key, id in (("moved", "says-otherwise"), ("scale", "another-scale")):
        if all(same(one | {key: expected[key]}, expected) for one in ranks):
            return id
    return "unknown"


def signs(overflows):
    ranks = [str(rank) for rank, sign in enumerate(overflows) if sign]
    return f"overflow on {'rank' if len(ranks) == 1 else 'ranks'} {' and '.join(ranks)}" if ranks else "no overflow"


def line(step, expected=None):
    if expected is None:
        return f"{'took the step' if step['moved'] else 'skipped the step'}, scale {step['scale']:.0f}"
    off = (step["weights"] - expected["weights"]).abs().max().item()
    weights = "as expected" if off == 0 else f"off by up to {off:.1e}" if math.isfinite(off) else "not finite"
    return f"returned {step['moved']}, scale {step['scale']:.0f}, weights {weights}"


def told(found, step, expected):
    lines = [line(rank[step], expected) for rank in found]
    if len(set(lines)) == 1:
        return f"all ranks {lines[0]}"
    return "; ".join(f"rank {rank} {text}" for rank, text in enumerate(lines))
