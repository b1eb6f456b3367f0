"""Compare the predicted bytes with formulas for meshes of many ranks, and with a real step on meshes of four."""

import math
import random
from collections.abc import Callable
from typing import Any, NoReturn

from ranks import AXES, MARK, coordinates

from frog.learn.grader.grade import Grade

FIVE = {
    "data 16": {"data": 16},
    "shard 16": {"shard": 16},
    "data 2 x tensor 8": {"data": 2, "tensor": 8},
    "shard 4 x tensor 4": {"shard": 4, "tensor": 4},
    "data 4 x pipeline 4": {"data": 4, "pipeline": 4},
}
LARGE = [32, 4096, 16384, 131072]
"""The prediction's model: number of layers, width, inner width, tokens."""
SMALL_MESHES = [
    {"data": 4},
    {"shard": 4},
    {"tensor": 4},
    {"pipeline": 4},
    {"data": 2, "tensor": 2},
    {"shard": 2, "pipeline": 2},
    {"data": 2, "shard": 2},
]
NEAR = 0.02
"""Relative tolerance: shards are padded, and the first ranks of an axis may have one column more."""


class Layout:
    """A model on a mesh, and the numbers from which people compute bytes."""

    def __init__(self, model: list[int], mesh: dict[str, int]) -> None:
        self.sizes, self.mesh = model, mesh
        self.L, self.D, self.F, self.T = model
        self.d, self.s, self.t, self.p = (mesh.get(axis, 1) for axis in ("data", "shard", "tensor", "pipeline"))
        self.layers, self.f = math.ceil(self.L / self.p), math.ceil(self.F / self.t)
        self.tokens = self.T / (self.d * self.s)
        self.layer = 8 * self.D * self.f  # bytes of the weights of a layer, after the tensor axis
        self.weights = self.layers * self.layer

    def __str__(self) -> str:
        axes = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        return f"{self.L} layers of {self.D} x {self.F}, {self.T:,} tokens, mesh {axes}"


Way = Callable[[Layout], float]


def ring(n: int) -> float:
    return (n - 1) / n


RIGHT: dict[tuple[str, str], Way] = {
    ("held", "states"): lambda c: 4 * c.weights / c.s,
    ("held", "gathered"): lambda c: c.layer if c.s > 1 else 0,
    ("held", "activations"): lambda c: 4 * c.tokens * c.layers * (c.D + c.f),
    ("sent", "data"): lambda c: 2 * ring(c.d) * c.weights / c.s,
    ("sent", "shard"): lambda c: 3 * ring(c.s) * c.weights,
    ("sent", "tensor"): lambda c: c.layers * 4 * ring(c.t) * 4 * c.tokens * c.D,
    ("sent", "pipeline"): lambda c: 4 * c.tokens * c.D * min(c.p - 1, 2),
}
WAYS: dict[tuple[str, str], dict[str, Way]] = {
    ("held", "states"): {
        "gradients-forgotten": lambda c: 3 * c.weights / c.s,
        "moments-forgotten": lambda c: 2 * c.weights / c.s,
        "weights-alone": lambda c: c.weights / c.s,
        "data-divides-states": lambda c: 4 * c.weights / c.s / c.d,
        "shard-is-data": lambda c: 4 * c.weights,
        "shard-is-zero1": lambda c: 2 * c.weights + 2 * c.weights / c.s,
        "tensor-has-it-whole": lambda c: 4 * c.layers * 8 * c.D * c.F / c.s,
        "pipeline-has-it-whole": lambda c: 4 * c.L * c.layer / c.s,
        "stages-are-equal": lambda c: 4 * c.L / c.p * c.layer / c.s,
        "stages-are-equal.2": lambda c: 4 * (c.L // c.p) * c.layer / c.s,
    },
    ("held", "gathered"): {
        "gathered-forgotten": lambda c: 0,
        "gathers-everything": lambda c: c.weights if c.s > 1 else 0,
        "gathers-everything.2": lambda c: 8 * c.D * c.F * c.L if c.s > 1 else 0,
        "tensor-has-it-whole": lambda c: 8 * c.D * c.F if c.s > 1 else 0,
        "gathers-without-shards": lambda c: c.layer,
    },
    ("held", "activations"): {
        "whole-batch": lambda c: 4 * c.T * c.layers * (c.D + c.f),
        "shard-keeps-the-batch": lambda c: 4 * c.T / c.d * c.layers * (c.D + c.f),
        "tensor-divides-x": lambda c: 4 * c.tokens * c.layers * (c.D / c.t + c.f),
        "tensor-has-it-whole": lambda c: 4 * c.tokens * c.layers * (c.D + c.F),
        "pipeline-has-it-whole": lambda c: 4 * c.tokens * c.L * (c.D + c.f),
        "stages-are-equal": lambda c: 4 * c.tokens * c.L / c.p * (c.D + c.f),
        "stages-are-equal.2": lambda c: 4 * c.tokens * (c.L // c.p) * (c.D + c.f),
        "one-layer-at-a-time": lambda c: 4 * c.tokens * (c.D + c.f),
        "inner-forgotten": lambda c: 4 * c.tokens * c.layers * c.D,
        "elements-not-bytes": lambda c: c.tokens * c.layers * (c.D + c.f),
    },
    ("sent", "data"): {
        "once-around": lambda c: ring(c.d) * c.weights / c.s,
        "without-the-ring": lambda c: 2 * c.weights / c.s if c.d > 1 else 0,
        "without-the-ring.2": lambda c: c.weights / c.s if c.d > 1 else 0,
        "without-the-ring.3": lambda c: (c.d - 1) * c.weights / c.s,
        "whole-gradient": lambda c: 2 * ring(c.d) * c.weights,
        "tensor-has-it-whole": lambda c: 2 * ring(c.d) * c.layers * 8 * c.D * c.F / c.s,
        "pipeline-has-it-whole": lambda c: 2 * ring(c.d) * c.L * c.layer / c.s,
        "stages-are-equal": lambda c: 2 * ring(c.d) * c.L / c.p * c.layer / c.s,
        "elements-not-bytes": lambda c: ring(c.d) * c.weights / c.s / 2,
    },
    ("sent", "shard"): {
        "two-of-three": lambda c: 2 * ring(c.s) * c.weights,
        "one-of-three": lambda c: ring(c.s) * c.weights,
        "all-reduced-too": lambda c: 4 * ring(c.s) * c.weights,
        "without-the-ring": lambda c: 3 * c.weights if c.s > 1 else 0,
        "shard-of-a-shard": lambda c: 3 * ring(c.s) * c.weights / c.s,
        "tensor-has-it-whole": lambda c: 3 * ring(c.s) * c.layers * 8 * c.D * c.F,
        "pipeline-has-it-whole": lambda c: 3 * ring(c.s) * c.L * c.layer,
        "stages-are-equal": lambda c: 3 * ring(c.s) * c.L / c.p * c.layer,
    },
    ("sent", "tensor"): {
        "half-of-it": lambda c: c.layers * 2 * ring(c.t) * 4 * c.tokens * c.D,
        "without-the-ring": lambda c: c.layers * 4 * 4 * c.tokens * c.D if c.t > 1 else 0,
        "weights-travel": lambda c: 2 * ring(c.t) * c.weights,
        "inner-travels": lambda c: c.layers * 4 * ring(c.t) * 4 * c.tokens * c.F,
        "inner-travels.2": lambda c: c.layers * 4 * ring(c.t) * 4 * c.tokens * c.f,
        "whole-batch": lambda c: c.layers * 4 * ring(c.t) * 4 * c.T * c.D,
        "shard-keeps-the-batch": lambda c: c.layers * 4 * ring(c.t) * 4 * c.T / c.d * c.D,
        "pipeline-has-it-whole": lambda c: c.L * 4 * ring(c.t) * 4 * c.tokens * c.D,
        "stages-are-equal": lambda c: c.L / c.p * 4 * ring(c.t) * 4 * c.tokens * c.D,
        "one-layer-at-a-time": lambda c: 4 * ring(c.t) * 4 * c.tokens * c.D,
    },
    ("sent", "pipeline"): {
        "forward-only": lambda c: 4 * c.tokens * c.D * min(c.p - 1, 1),
        "ends-send-both-ways": lambda c: 2 * 4 * c.tokens * c.D if c.p > 1 else 0,
        "all-stages-together": lambda c: 4 * c.tokens * c.D * 2 * (c.p - 1),
        "all-stages-together.2": lambda c: 4 * c.tokens * c.D * (c.p - 1),
        "every-layer-sends": lambda c: 4 * c.tokens * c.D * min(c.p - 1, 2) * c.layers,
        "weights-travel": lambda c: c.weights * min(c.p - 1, 2),
        "tensor-divides-x": lambda c: 4 * c.tokens * c.D * min(c.p - 1, 2) / c.t,
        "whole-batch": lambda c: 4 * c.T * c.D * min(c.p - 1, 2),
        "shard-keeps-the-batch": lambda c: 4 * c.T / c.d * c.D * min(c.p - 1, 2),
        "inner-travels": lambda c: 4 * c.tokens * c.f * min(c.p - 1, 2),
    },
}
"""What each misconception predicts. It must fit every layout."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    small = [[draw_small(draw), mesh] for mesh in SMALL_MESHES]
    large = [draw_large(draw) for _ in range(8)]
    case = {"layouts": [*small, *large, *([LARGE, mesh] for mesh in FIVE.values())], "choice": draw_choice()}
    found = grade.call(case).values[0]
    layouts = [Layout(model, mesh) for model, mesh in case["layouts"]]
    expected = [{key: way(one) for key, way in RIGHT.items()} for one in layouts]
    for key in RIGHT:
        judge(grade, key, layouts, [take(grade, one, key) for one in found["layouts"]], [one[key] for one in expected])
    check_choice(grade, case["choice"], found["chosen"])
    for one, layout, real in zip(found["layouts"], layouts, measured(grade, small), strict=False):
        check_measured(grade, one, layout, real)
    report(grade, expected[-len(FIVE) :])


def draw_small(draw: random.Random) -> list[int]:
    """Draw a model for 4 ranks: layers and an inner width that 4 does not divide."""
    return [draw.choice([5, 6, 7]), draw.choice([18, 20, 22]), draw.choice([59, 63, 67]), 8 * draw.choice([3, 5])]


def draw_large(draw: random.Random) -> list[Any]:
    """Draw a model on a mesh with four axes that divide neither the layers nor the inner width."""
    p, t = draw.choice([2, 3, 4, 7]), draw.choice([2, 3, 6])
    mesh = {"data": draw.choice([2, 3, 5]), "shard": draw.choice([2, 4, 6]), "tensor": t, "pipeline": p}
    layers = p * draw.randint(2, 4) + draw.randint(1, p - 1)
    width = 64 * draw.randint(9, 21)
    model = [layers, width, 3 * width + draw.randint(1, t - 1), mesh["data"] * mesh["shard"] * 256 * draw.randint(2, 9)]
    return [model, {axis: mesh[axis] for axis in draw.sample(list(mesh), 4)}]


def draw_choice() -> list[Any]:
    return [LARGE, FIVE, [80e9, 30e9, 30e8]]


# ---- measured --------------------------------------------------------------------------------------------------------


def measured(grade: Grade, layouts: list[Any]) -> list[dict[tuple[str, str], float]]:
    """Return what four real ranks hold and send: for each number the rank with most."""
    world = grade.world(4, {"layouts": layouts}, work="measure", seconds=4.0)
    found = []
    for number, (_, mesh) in enumerate(layouts):
        held = [rank[number] for rank in world.values]
        table = {("held", kind): max(one[kind] for one in held) for kind in held[0]}
        for axis in AXES:
            table["sent", axis] = max(sent_on(world, number, mesh, axis, rank) for rank in range(4))
        found.append(table)
    return found


def sent_on(world: Any, number: int, mesh: dict[str, int], axis: str, rank: int) -> float:
    """Return the bytes that a rank sent on an axis in the step of this number."""
    calls = [call for call in world.calls[rank] if call.op != "new_group"]
    marks = [n for n, call in enumerate(calls) if call.numel == MARK and "int8" in call.dtype]
    group, total = ranks_on(mesh, axis, rank), 0.0
    n = len(group)
    for call in calls[marks[number] + 1 : [*marks, len(calls)][number + 1]]:
        if call.op == "send" and axis == "pipeline":
            total += call.num_bytes
        elif tuple(call.group) == tuple(group) and axis != "pipeline" and n > 1 and call.op not in ("send", "recv"):
            factor = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "reduce_scatter": (n - 1) / n}[call.op]
            total += factor * call.num_bytes
    return total


def ranks_on(mesh: dict[str, int], axis: str, rank: int) -> list[int]:
    mine = coordinates(mesh, rank)
    others = [coordinates(mesh, other) for other in range(4)]
    return [n for n, one in enumerate(others) if all(one[a] == mine[a] for a in AXES if a != axis)]


def check_measured(grade: Grade, found: dict[str, Any], layout: Layout, real: dict[tuple[str, str], float]) -> None:
    for (of, name), value in real.items():
        if not near(found[of][name], value, 2 * NEAR):
            says = (
                f'{layout}: "{name}" of {of}_bytes is {found[of][name]:,.0f} bytes; four real ranks have {value:,.0f}.'
            )
            grade.reject("unknown", says)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def take(grade: Grade, found: dict[str, Any], key: tuple[str, str]) -> float:
    table, name = found[key[0]], key[1]
    names = [name for kind, name in RIGHT if kind == key[0]]
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or set(table) != set(names):
        what = ", ".join(f"{one}: {value!r}" for one, value in table.items())
        grade.reject("unknown", f"{key[0]}_bytes returned {{{what}}}; expected numbers for {', '.join(names)}.")
    return float(value)


def near(value: float, expected: float, tolerance: float = NEAR) -> bool:
    return math.isclose(value, expected, rel_tol=tolerance, abs_tol=1e-6)


def judge(grade: Grade, key: tuple[str, str], layouts: list[Layout], found: list[float], expected: list[float]) -> None:
    wrong = [n for n, value in enumerate(found) if not near(value, expected[n])]
    if wrong:
        explain(grade, key, layouts, found, expected, wrong)


def explain(
    grade: Grade,
    key: tuple[str, str],
    layouts: list[Layout],
    found: list[float],
    expected: list[float],
    wrong: list[int],
) -> NoReturn:
    worst = wrong[0]
    what = f'"{key[1]}" of {key[0]}_bytes'
    says = (
        f"{layouts[worst]}: {what} is {found[worst]:,.0f} bytes; expected {expected[worst]:,.0f}. "
        f"{len(wrong)} of {len(found)} layouts differ."
    )
    for id, way in WAYS[key].items():
        if all(near(value, way(one), 1e-3) for value, one in zip(found, layouts, strict=True)):
            grade.reject(id.split(".")[0], says)
    grade.reject("unknown", says)


def check_choice(grade: Grade, choice: list[Any], chosen: list[Any]) -> None:
    model, meshes, memories = choice
    for most, name in zip(memories, chosen, strict=True):
        layouts = {name: Layout(model, mesh) for name, mesh in meshes.items()}
        total = {
            kind: {name: sum(way(one) for (of, _), way in RIGHT.items() if of == kind) for name, one in layouts.items()}
            for kind in ("held", "sent")
        }
        fitting = [name for name in meshes if total["held"][name] <= most]
        right = min(fitting, key=total["sent"].__getitem__, default=None)
        if name != right:
            grade.reject("unknown", f"With {most:,.0f} bytes of memory, choose returned {name!r}; expected {right!r}.")


def report(grade: Grade, expected: list[dict[tuple[str, str], float]]) -> None:
    for name, one in zip(FIVE, expected, strict=True):
        held, sent = (sum(value for (of, _), value in one.items() if of == kind) for kind in ("held", "sent"))
        grade.measured(f"{name}: a rank holds and sends", f"{held / 1e9:.1f} GB, {sent / 1e9:.1f} GB")
    grade.predicted("held", sum(value for (of, _), value in expected[0].items() if of == "held"))
    grade.predicted("sent", sum(value for (of, _), value in expected[2].items() if of == "sent"))
    grade.note("On seven meshes of four ranks, your numbers are those of a real step.")
