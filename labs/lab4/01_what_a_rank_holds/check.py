"""Compare the predicted bytes with those of real tensors, one kind after the other."""

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from ranks import Network, make_layers, measure_activations, measure_state
from torch import Tensor, nn

from frog.learn.grader.grade import Grade

KEPT = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}
WAYS = [("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)]


def check(grade: Grade) -> None:
    case = draw_case(random.Random(grade.seed))
    found = grade.call(case).values[0]
    facts = [Facts.of(one) for one in case["states"]]
    expected = [measure_state(Network(**f.case["network"]), f.case["optimizer"], f.case["has_masters"]) for f in facts]
    for n, one in enumerate(found["states"]):
        check_table(grade, facts[n], one)
    for kind in expected[0]:
        judge(grade, kind, facts, [one[kind] for one in found["states"]], [one[kind] for one in expected])
    for one, guess in zip(case["activations"], found["activations"], strict=True):
        real = measure_activations(make_layers(one["layers"], one["dtype"]), one["rows"])
        grade.compare(guess, real, f"activation_bytes, {one['rows']} rows, {one['dtype']}", rtol=0)
    measure(grade)


def draw_case(draw: random.Random) -> dict[str, Any]:
    sizes = {"vocabulary": draw.randint(60, 99), "context": draw.randint(21, 35), "width": draw.randint(11, 19)}
    sizes["hidden"] = draw.randint(30, 50)
    states = [
        {"network": sizes | {"dtype": dtype}, "optimizer": optimizer, "has_masters": has_masters}
        for dtype, has_masters in WAYS
        for optimizer in KEPT
    ]
    a, b, c = (draw.randint(5, 30) for _ in range(3))
    layers = [[a, b, True], "gelu", [b, c, True]], [[a, b, False], "gelu", [b, c, True], "gelu", [c, a, False]]
    activations = [
        {"layers": one, "rows": draw.randint(3, 40), "dtype": dtype}
        for one in layers
        for dtype in ("float32", "bfloat16")
    ]
    return {"states": states, "activations": activations}


# ---- what each misconception predicts --------------------------------------------------------------------------------


class Facts(NamedTuple):
    """The tensors of a case's network."""

    case: dict[str, Any]
    parameters: list[Tensor]
    trained: list[Tensor]
    tied: Tensor
    buffers: list[Tensor]
    saved: list[Tensor]

    @classmethod
    def of(cls, case: dict[str, Any]) -> "Facts":
        with torch.device("meta"):
            network = Network(**case["network"])
        parameters = list(network.parameters())
        trained = [p for p in parameters if p.requires_grad]
        saved = list(network.state_dict().values())
        return cls(case, parameters, trained, network.head.weight, list(network.buffers()), saved)

    @property
    def kept(self) -> int:
        return KEPT[self.case["optimizer"]]

    def narrow(self, parameters: list[Tensor]) -> list[Tensor]:
        """Return the parameters that get a master."""
        return [p for p in parameters if self.case["has_masters"] and p.element_size() < 4]

    def optimizer(self, parameters: list[Tensor], kept: int, size: Callable[[Tensor], int] | None = None) -> int:
        """Return the bytes of masters, and of `kept` tensors per parameter with elements of this size."""
        size = size or (lambda p: 4 if self.case["has_masters"] else p.element_size())
        return 4 * numel(self.narrow(parameters)) + kept * sum(p.numel() * size(p) for p in parameters)


def numel(tensors: list[Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def size(tensors: list[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


Way = Callable[[Facts], int]
MODEL: dict[str, Way] = {
    "tied-twice": lambda f: size([*f.parameters, *f.buffers, f.tied]),
    "state-dict": lambda f: size(f.saved),
    "buffers-forgotten": lambda f: size(f.parameters),
    "frozen-is-free": lambda f: size([*f.trained, *f.buffers]),
    "frozen-is-free.2": lambda f: size(f.trained),
    "four-bytes-each": lambda f: 4 * numel([*f.parameters, *f.buffers]),
    "four-bytes-each.2": lambda f: 4 * numel(f.parameters) + size(f.buffers),
    "one-dtype-for-all": lambda f: f.parameters[0].element_size() * numel([*f.parameters, *f.buffers]),
    "one-dtype-for-all.2": lambda f: f.parameters[0].element_size() * numel(f.parameters) + size(f.buffers),
    "elements-not-bytes": lambda f: numel([*f.parameters, *f.buffers]),
    "elements-not-bytes.2": lambda f: numel(f.parameters),
    "bits": lambda f: 8 * size([*f.parameters, *f.buffers]),
    "same-address": lambda f: f.buffers[-1].nbytes,
    "same-address.2": lambda f: f.parameters[0].nbytes,
}
GRADIENTS: dict[str, Way] = {
    "tied-twice": lambda f: size([*f.trained, f.tied]),
    "frozen-has-gradient": lambda f: size(f.parameters),
    "buffers-have-gradients": lambda f: size([*f.parameters, *f.buffers]),
    "gradient-in-float32": lambda f: 4 * numel(f.trained),
    "one-dtype-for-all": lambda f: f.trained[0].element_size() * numel(f.trained),
    "elements-not-bytes": lambda f: numel(f.trained),
    "bits": lambda f: 8 * size(f.trained),
}
OPTIMIZER: dict[str, Way] = {
    "tied-twice": lambda f: f.optimizer([*f.trained, f.tied], f.kept),
    "frozen-has-state": lambda f: f.optimizer(f.parameters, f.kept),
    "masters-forgotten": lambda f: f.optimizer(f.trained, f.kept) - 4 * numel(f.narrow(f.trained)),
    "masters-only": lambda f: f.optimizer(f.trained, 0 if f.case["has_masters"] else f.kept),
    "masters-for-all": lambda f: (
        f.optimizer(f.trained, f.kept)
        + (4 * (numel(f.trained) - numel(f.narrow(f.trained))) if f.case["has_masters"] else 0)
    ),
    "masters-have-gradients": lambda f: f.optimizer(f.trained, f.kept) + 4 * numel(f.narrow(f.trained)),
    "kept-in-model-dtype": lambda f: f.optimizer(f.trained, f.kept, Tensor.element_size),
    "kept-always-float32": lambda f: f.optimizer(f.trained, f.kept, lambda _: 4),
    "always-adam": lambda f: f.optimizer(f.trained, 2),
    "one-moment": lambda f: f.optimizer(f.trained, min(f.kept, 1)),
}
WAYS_OF = {"model": MODEL, "gradients": GRADIENTS, "optimizer": OPTIMIZER}
"""What each misconception predicts. It must fit every case."""


# ---- the verdict -----------------------------------------------------------------------------------------------------


def check_table(grade: Grade, facts: Facts, found: Any) -> None:
    is_table = isinstance(found, dict) and set(found) == set(WAYS_OF)
    if not is_table or not all(isinstance(value, int | float) for value in found.values()):
        grade.reject(
            "unknown", f"{name_of(facts)}: state_bytes returned {found!r}, not a number for each of three kinds."
        )


def judge(grade: Grade, kind: str, facts: list[Facts], found: list[float], expected: list[int]) -> None:
    wrong = [n for n, f in enumerate(facts) if found[n] not in (expected[n], expected[n] + step_counters(kind, f))]
    if wrong:
        explain(grade, kind, facts, found, expected, wrong)


def step_counters(kind: str, facts: Facts) -> int:
    return 4 * len(facts.trained) if kind == "optimizer" and facts.case["optimizer"] == "Adam" else 0


def explain(
    grade: Grade, kind: str, facts: list[Facts], found: list[float], expected: list[int], wrong: list[int]
) -> NoReturn:
    worst = max(wrong, key=lambda n: abs(found[n] - expected[n]))
    says = (
        f'{name_of(facts[worst])}: you predicted {found[worst]:,.0f} bytes for "{kind}"; real tensors hold '
        f"{expected[worst]:,}. {len(wrong)} of {len(facts)} cases differ."
    )
    for id, way in WAYS_OF[kind].items():
        if all(math.isclose(value, way(f)) for value, f in zip(found, facts, strict=True)):
            grade.reject(id.split(".")[0], says + evidence(id.split(".")[0], facts[worst]))
    grade.reject("unknown", says)


def name_of(facts: Facts) -> str:
    case = facts.case
    dtype = "float32" if case["network"]["dtype"] == "float32" else "bfloat16 with a float32 norm"
    return f"A model in {dtype}, {case['optimizer']}, has_masters={case['has_masters']}"


def evidence(id: str, facts: Facts) -> str:
    """Return a sentence with the bytes that make the difference, where one number does."""
    frozen = size([p for p in facts.parameters if not p.requires_grad])
    numbers = {
        "tied-twice": f"The tied weight has {facts.tied.nbytes:,} bytes.",
        "state-dict": f"The tied weight has {facts.tied.nbytes:,} bytes; the buffer that is not saved has "
        f"{facts.buffers[0].nbytes:,}.",
        "buffers-forgotten": f"The buffers have {size(facts.buffers):,} bytes.",
        "frozen-is-free": f"The frozen parameter has {frozen:,} bytes.",
        "frozen-has-gradient": f"The frozen parameter has {frozen:,} bytes.",
        "buffers-have-gradients": f"The buffers and the frozen parameter have {frozen + size(facts.buffers):,} bytes.",
        "masters-have-gradients": f"The masters have {4 * numel(facts.narrow(facts.trained)):,} bytes.",
        "masters-forgotten": f"The masters have {4 * numel(facts.narrow(facts.trained)):,} bytes.",
        "same-address": 'On the device "meta", every tensor has the address 0.',
    }
    return f" {numbers[id]}" if id in numbers else ""


# ---- the predictions -------------------------------------------------------------------------------------------------


def measure(grade: Grade) -> None:
    """Measure the predicted numbers, and one model in three precisions."""
    square = nn.Linear(1000, 1000, bias=False).to(torch.bfloat16)
    grade.predicted("bytes-per-rank", sum(measure_state(square, "Adam", True).values()))
    layers = [[400, 1600, True], "gelu", [1600, 100, True]]
    made = make_layers(layers, "bfloat16")
    made[0].bias = made[2].bias = None
    per_row = (measure_activations(made, 16) - measure_activations(made, 8)) / 8
    state = measure_state(made, "Adam", True)
    grade.predicted("rows", sum(state.values()) / per_row)
    num = numel(list(made.parameters()))
    for words, dtype, has_masters in (
        ("float32", "float32", False),
        ("bfloat16, float32 masters", "bfloat16", True),
        ("bfloat16 only", "bfloat16", False),
    ):
        one = make_layers(layers, dtype)
        one[0].bias = one[2].bias = None
        kinds = measure_state(one, "Adam", has_masters)
        each = ", ".join(f"{kind} {value / num:.0f}" for kind, value in kinds.items())
        grade.measured(f"{words}, Adam: bytes for each parameter", f"{each}, together {sum(kinds.values()) / num:.0f}")
    grade.note("A loop that keeps float32 copies of the gradients too, or DDP's buckets, holds 2 to 4 bytes more.")
