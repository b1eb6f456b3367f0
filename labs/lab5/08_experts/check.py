"""Compare outputs and gradients with one process that has all tokens and all experts, and the bytes with the rows."""

import random
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from ranks import MARK, Model, batch, experts_of, loose
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

SKEWED = [0] * 30 + [1] * 20 + [2] * 10 + [3] * 4
"""64 tokens that choose one of 4 experts each: the prediction's."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    for size in (2, 3):
        case = {"assignments": draw_assignments(draw), "cases": draw_cases(draw, grade.seed % 10**6 + size, size)}
        world = grade.world(size, case, seconds=4.0, may_fail=("one-rank-waits", "different-collectives"))
        if world.failure is not None:
            explain_stopped(grade, world, case["cases"])
        for rank, value in enumerate(world.values):
            check_accepted(grade, case["assignments"], rank, value["masks"])
        for number, one in enumerate(case["cases"]):
            found = [value["cases"][number] for value in world.values]
            oracle = Oracle(one, size)
            check_balance(grade, one, found)
            check_outputs(grade, oracle, found)
            check_gradients(grade, oracle, found)
        check_bytes(grade, world, case["cases"])
    report(grade, world, oracle)


def draw_assignments(draw: random.Random) -> list[Any]:
    """Draw the experts that tokens choose, the number of experts, and a capacity that some of them exceed."""
    mixed = draw.sample(SKEWED, len(SKEWED))
    few = [draw.choice([0, 1, 1, 1, 4]) for _ in range(23)]
    return [[mixed, 4, 20], [few, 5, draw.randint(3, 5)], [few, 5, 23]]


def draw_cases(draw: random.Random, seed: int, size: int) -> list[dict[str, Any]]:
    """Draw two experts for each token and little capacity; a rank that no token reaches; and many tokens."""
    experts = draw.choice([5, 7])
    usual = {"num_experts": experts, "inner": 5, "router_bias": [0.0] * experts, "even": False}
    idle = draw.randrange(size)
    to_idle = [-1e4 if number in experts_of(experts, size)[idle] else 0.0 for number in range(experts)]
    scarce = usual | {"tokens": draw.choice([17, 19, 23]), "width": 6, "top_k": 2, "seed": seed}
    ample = usual | {"tokens": 13, "width": 6, "top_k": 1, "router_bias": to_idle, "seed": seed + 10}
    many = usual | {"tokens": draw.choice([59, 61, 67]), "width": 37, "top_k": 1, "even": True, "seed": seed + 20}
    return [
        scarce | {"capacity": some_exceed(scarce, size, draw.randint(4, 6))},
        ample | {"capacity": 13},
        many | {"capacity": some_exceed(many, size, 100 // experts)},
    ]


def some_exceed(case: dict[str, Any], size: int, wanted: int) -> int:
    """Return the capacity nearest to `wanted` which some expert's tokens exceed, and another's do not reach."""
    model = Model(case)
    chosen = [model.router(model.first(batch(case, rank)[0])).topk(case["top_k"]).indices for rank in range(size)]
    counts = [int((one == expert).sum()) for one in chosen for expert in range(case["num_experts"])]
    return min(max(wanted, min(counts) + 1), max(counts) - 1)


def explain_stopped(grade: Grade, world: Any, cases: list[dict[str, Any]]) -> NoReturn:
    """Reject a world that stopped: because a rank without rows left out an exchange, or for what the grader saw."""
    num = [sum(call.op == "all_to_all_single" for call in calls) for calls in world.calls]
    idle = idle_rank(cases[1], world.size)
    others = [one for rank, one in enumerate(num) if rank != idle]
    if num[idle] < min(others) and num[idle] > 0:
        grade.reject(
            "idle-rank-skips",
            f"World of {world.size}: no token chose an expert of rank {idle}. It had called {num[idle]} all-to-alls "
            f"when the others called their number {max(others)}, and the world stopped. {world.failure.observed}",
            world.failure.drawing,
        )
    grade.reject(world.failure.id, world.failure.observed, world.failure.drawing)


def idle_rank(case: dict[str, Any], size: int) -> int:
    """Return the rank of which no token chooses an expert."""
    lowest = case["router_bias"].index(min(case["router_bias"]))
    return next(rank for rank, held in enumerate(experts_of(case["num_experts"], size)) if lowest in held)


# ---- capacity --------------------------------------------------------------------------------------------------------


def keep(chosen: list[int], most: int) -> list[bool]:
    """Return which assignments are accepted: for each expert the first ones."""
    seen: dict[int, int] = {}
    found = []
    for expert in chosen:
        seen[expert] = seen.get(expert, 0) + 1
        found.append(seen[expert] <= most)
    return found


MASKS: dict[str, Callable[[list[int], int], list[bool]]] = {
    "all-accepted": lambda chosen, most: [True] * len(chosen),
    "one-too-many": lambda chosen, most: keep(chosen, most + 1),
    "one-too-few": lambda chosen, most: keep(chosen, most - 1),
    "last-ones": lambda chosen, most: keep(chosen[::-1], most)[::-1],
    "full-means-closed": lambda chosen, most: [chosen.count(expert) <= most for expert in chosen],
    "one-capacity-for-all": lambda chosen, most: [place < most for place in range(len(chosen))],
    "inverted": lambda chosen, most: [not one for one in keep(chosen, most)],
}
"""What each misconception accepts. It must match every list of assignments."""


def check_accepted(grade: Grade, assignments: list[Any], rank: int, masks: list[Any]) -> None:
    right = [keep(chosen, most) for chosen, _, most in assignments]
    found = [as_bools(grade, one, len(chosen)) for one, (chosen, _, _) in zip(masks, assignments, strict=True)]
    wrong = [number for number, one in enumerate(found) if one != right[number]]
    if wrong:
        explain_accepted(grade, assignments, found, right, wrong[0])


def as_bools(grade: Grade, mask: Any, length: int) -> list[bool]:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (length,):
        what = f"a tensor of {mask.dtype}, {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)[:60]
        grade.reject("unknown", f"accepted returned {what} for {length} assignments; expected {length} bools.")
    return mask.tolist()


def explain_accepted(
    grade: Grade, assignments: list[Any], found: list[list[bool]], right: list[list[bool]], first: int
) -> NoReturn:
    chosen, num_experts, most = assignments[first]
    sizes = [[expert for expert, one in zip(chosen, mask, strict=True) if one] for mask in (found[first], right[first])]
    took, expected = ([one.count(expert) for expert in range(num_experts)] for one in sizes)
    place = next(n for n, pair in enumerate(zip(found[first], right[first], strict=True)) if pair[0] != pair[1])
    says = (
        f"{len(chosen)} assignments, capacity {most}: the {num_experts} experts accepted {took}, expected {expected}. "
        f"The first difference is assignment {place}, to expert {chosen[place]}, which was "
        f"{'accepted' if found[first][place] else 'not accepted'}; {chosen[:place].count(chosen[place])} assignments "
        "to it came before."
    )
    for id, rule in MASKS.items():
        if all(mask == rule(one[0], one[2]) for mask, one in zip(found, assignments, strict=True)):
            grade.reject(id, says)
    grade.reject("unknown", says)


# ---- balance ---------------------------------------------------------------------------------------------------------


def check_balance(grade: Grade, case: dict[str, Any], found: list[dict[str, Any]]) -> None:
    size, num_experts = len(found), case["num_experts"]
    drawn = [loose(case, rank) for rank in range(size)]
    counts = [torch.bincount(chosen, minlength=num_experts).float() for _, chosen in drawn]
    total, num = sum(counts), len(drawn[0][1])
    slopes = {
        "right": [num_experts * total / (size * num)] * size,
        "balance-of-own-tokens": [num_experts * own / num for own in counts],
        "sum-is-average": [num_experts * total / num] * size,
        "gradient-not-reduced": [total / num * num_experts / size**2] * size,
        "not-times-experts": [total / (size * num)] * size,
    }
    values = {
        id: [float((slope * one.mean(0)).sum()) for slope, (one, _) in zip(ways, drawn, strict=True)]
        for id, ways in slopes.items()
    }
    mean, expected = sum(float(one["share"]) for one in found) / size, sum(values["right"]) / size
    says = (
        f"World of {size}: the mean of the ranks' balance_loss is {mean:.5f}; one process with all tokens has "
        f"{expected:.5f}."
    )
    if abs(mean - expected) > 1e-4 * expected:
        for id in ("balance-of-own-tokens", "sum-is-average", "not-times-experts"):
            if abs(mean - sum(values[id]) / size) < 1e-4 * expected:
                grade.reject(id, says)
        squares = [num_experts * float(one.mean(0).square().sum()) for one, _ in drawn]
        if abs(mean - sum(squares) / size) < 1e-4 * expected:
            grade.reject("probabilities-twice", f"{says} Yours is E times the sum of the squared probabilities.")
        grade.reject("unknown", says)
    gradients = [one["share gradient"] for one in found]
    if any(one is None or not one.any() for one in gradients):
        grade.reject("balance-without-gradient", f"{says} But no gradient reaches the probabilities.")
    for rank, gradient in enumerate(gradients):
        slope = slopes["right"][rank] / case["tokens"]
        if not torch.allclose(gradient, slope.expand_as(gradient), rtol=1e-4, atol=1e-7):
            explain_slope(grade, case, rank, gradient, slopes)


def explain_slope(
    grade: Grade, case: dict[str, Any], rank: int, gradient: Tensor, slopes: dict[str, list[Tensor]]
) -> NoReturn:
    size, right = len(slopes["right"]), slopes["right"][rank] / case["tokens"]
    says = (
        f"World of {size}, rank {rank}: the mean of the ranks' balance_loss is right. Its gradient for the probability "
        f"of expert 0 is {gradient[0, 0]:.5f}; with all tokens in one process it would be {right[0]:.5f} when averaged "
        "as the other gradients are."
    )
    for id in ("gradient-not-reduced", "balance-of-own-tokens", "sum-is-average", "not-times-experts"):
        if torch.allclose(gradient, (slopes[id][rank] / case["tokens"]).expand_as(gradient), rtol=1e-4, atol=1e-7):
            grade.reject(id, says)
    grade.reject("unknown", says)


# ---- one process with all tokens and all experts ---------------------------------------------------------------------

Route = Callable[[list[int], list[int]], list[tuple[int, int]]]
ROUTES: dict[str, tuple[str, Route]] = {
    "right": ("", lambda experts, order: [(row, expert) for row, expert in enumerate(experts)]),
    "experts-by-position": (
        "Rows that had arrived by sender were divided as if they had arrived by expert.",
        lambda experts, order: [(row, experts[order[row]]) for row in range(len(experts))],
    ),
    "returned-in-expert-order": (
        "The outputs went back in the order of the experts, not in the order in which their rows had come.",
        lambda experts, order: [(order[row], experts[order[row]]) for row in range(len(experts))],
    ),
    "order-is-not-its-inverse": (
        "The outputs were sorted with the order that had sorted the rows, which is not its inverse.",
        lambda experts, order: [(order[order[row]], experts[order[order[row]]]) for row in range(len(experts))],
    ),
}
"""Which of the rows that arrived at a rank, and which expert, make the output that goes back in place of each row."""


class Oracle:
    """The step with all ranks' tokens in one process."""

    def __init__(self, case: dict[str, Any], size: int, route: str = "right", is_lost: str = "") -> None:
        self.case, self.size, self.model = case, size, Model(case)
        self.is_lost = is_lost
        model, top_k = self.model, case["top_k"]
        hidden = [model.first(batch(case, rank)[0]) for rank in range(size)]
        probabilities = [model.router(one).softmax(1) for one in hidden]
        self.chosen = [one.topk(top_k, dim=1).indices.flatten().tolist() for one in probabilities]
        kept = [self.sorted_kept(chosen) for chosen in self.chosen]
        outputs: dict[tuple[int, int], Tensor] = {}
        for held in experts_of(case["num_experts"], size):
            self.run_rank(held, kept, hidden, ROUTES[route][1], outputs)
        self.num_rows = [len(one) for one in kept]
        counts = [torch.bincount(torch.tensor(one), minlength=case["num_experts"]).float() for one in self.chosen]
        share = sum(counts) / sum(map(len, self.chosen)) * case["num_experts"]
        self.mixed, self.losses = [], []
        for rank, one in enumerate(hidden):
            tokens = [place // top_k for place in kept[rank]]
            weights = probabilities[rank][tokens, [self.chosen[rank][place] for place in kept[rank]]]
            rows = torch.stack([outputs[rank, place] for place in kept[rank]]) * weights[:, None]
            mixed = torch.zeros_like(one).index_add(0, torch.tensor(tokens), rows)
            self.mixed.append(mixed)
            self.losses.append(
                model.loss(one, mixed, batch(case, rank)[1], (share * probabilities[rank].mean(0)).sum())
            )

    def sorted_kept(self, chosen: list[int]) -> list[int]:
        places = [place for place, one in enumerate(keep(chosen, self.case["capacity"])) if one]
        return sorted(places, key=lambda place: chosen[place])

    def run_rank(
        self,
        held: list[int],
        kept: list[list[int]],
        hidden: list[Tensor],
        route: Route,
        outputs: dict[tuple[int, int], Tensor],
    ) -> None:
        """Compute the outputs of one rank's experts, for each (rank, assignment)."""
        arrived = [(rank, place) for rank, places in enumerate(kept) for place in places]
        arrived = [one for one in arrived if self.chosen[one[0]][one[1]] in held]
        experts = [self.chosen[rank][place] for rank, place in arrived]
        order = sorted(range(len(experts)), key=lambda row: experts[row])
        for here, (row, expert) in zip(arrived, route(experts, order), strict=True):
            rank, place = arrived[row]
            value = hidden[rank][place // self.case["top_k"]]
            output = self.model.experts[expert](value.detach() if "rows" in self.is_lost else value)
            outputs[here] = output.detach() if "outputs" in self.is_lost else output

    def gradients(self, rank: int | None = None) -> dict[str, Tensor]:
        """Return the gradients of the mean of all losses, or of one rank's; zeros where there is none."""
        loss = sum(self.losses) / self.size if rank is None else self.losses[rank]
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
        return {
            name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)
        }


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def describe(oracle: Oracle) -> str:
    case = oracle.case
    return (
        f"World of {oracle.size}, {case['num_experts']} experts, {case['tokens']} tokens on each rank, "
        f"{case['top_k']} for each token"
    )


def check_outputs(grade: Grade, oracle: Oracle, found: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(found):
        if not isinstance(one["mixed"], Tensor) or one["mixed"].shape != oracle.mixed[rank].shape:
            grade.compare(one["mixed"], oracle.mixed[rank].detach(), f"{describe(oracle)}: the output on rank {rank}")
    wrong = [rank for rank, one in enumerate(found) if not close(one["mixed"], oracle.mixed[rank])]
    if wrong:
        explain_outputs(grade, oracle, found, wrong[0])


def explain_outputs(grade: Grade, oracle: Oracle, found: list[dict[str, Any]], rank: int) -> NoReturn:
    off = (found[rank]["mixed"] - oracle.mixed[rank]).abs()
    tokens = int((off.amax(1) > 1e-4).sum())
    says = (
        f"{describe(oracle)}: the outputs of {count(tokens, 'token')} on rank {rank} differ from one process's, by up "
        f"to {off.max():.2g}."
    )
    for id, (words, _) in ROUTES.items():
        way = Oracle(oracle.case, oracle.size, id)
        if id != "right" and all(close(one["mixed"], way.mixed[rank]) for rank, one in enumerate(found)):
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)


# ---- gradients -------------------------------------------------------------------------------------------------------


def check_gradients(grade: Grade, oracle: Oracle, found: list[dict[str, Any]]) -> None:
    right = oracle.gradients()
    held = experts_of(oracle.case["num_experts"], oracle.size)
    for rank, one in enumerate(found):
        names = [name for name in right if name in oracle.model.shared() or int(name.split(".")[1]) in held[rank]]
        after = {name: one["after"].get(name, torch.zeros_like(right[name])) for name in names}
        wrong = [name for name in names if not close(after[name], right[name])]
        if wrong:
            explain_gradients(grade, oracle, found, rank, after, right, wrong)
        if one["frozen"]:
            grade.reject(
                "zeros-for-frozen",
                f"{describe(oracle)}: the gradients of trained parameters are right. On rank {rank}, "
                f"{one['frozen'][0]} is frozen, and had no gradient. After average_gradients its .grad is a tensor.",
            )


def explain_gradients(
    grade: Grade,
    oracle: Oracle,
    found: list[dict[str, Any]],
    rank: int,
    after: dict[str, Tensor],
    right: dict[str, Tensor],
    wrong: list[str],
) -> NoReturn:
    size, of_experts = oracle.size, [name for name in wrong if name.startswith("experts.")]
    off = max((after[name] - right[name]).abs().max().item() for name in wrong)
    says = (
        f"{describe(oracle)}: the outputs are right. On rank {rank}, {len(wrong)} of {len(after)} gradients differ "
        f"from one process's by up to {off:.2g} ({', '.join(wrong[:3])}{', …' * (len(wrong) > 3)})."
    )
    trained = [name for name in after if name.startswith("experts.") and right[name].any()]
    if trained and not any(after[name].any() for name in trained):
        words = f"{count(len(trained), 'parameter')} of the experts got no gradient from {sum(oracle.num_rows)} rows."
        grade.reject("gradient-lost", f"{says} {words}")
    lost = Oracle(oracle.case, size, is_lost="rows").gradients()
    if all(close(after[name], lost[name]) for name in after):
        grade.reject("gradient-lost", f"{says} They lack what the experts' rows send back to the layers before.")
    own = oracle.gradients(rank)
    ways: list[tuple[str, Callable[[str], Tensor], str]] = [
        ("experts-summed", lambda name: size * right[name], f"They are {size}.000 times as large."),
        ("divided-again", lambda name: right[name] / size, f"They are {1 / size:.3f} times as large."),
    ]
    if of_experts == wrong:
        for id, way, words in ways:
            if all(close(after[name], way(name)) for name in trained):
                grade.reject(id, f"{says} {words}")
        grade.reject("unknown", says)
    of_shared = [name for name in after if not name.startswith("experts.")]
    others: list[tuple[str, Callable[[str], Tensor], str]] = [
        ("sum-is-average", lambda name: size * right[name], f"They are {size}.000 times as large."),
        ("shared-not-averaged", lambda name: own[name], "They are those of this rank's own loss."),
        ("shared-not-averaged", lambda name: own[name] / size, f"They are this rank's own, divided by {size}."),
    ]
    for id, way, words in others:
        if all(close(after[name], way(name)) for name in of_shared):
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def sent_bytes(world: Any, number: int) -> int:
    """Return the bytes that rank 0 sends in a case's step, without average_gradients; about, for an all-to-all."""
    marks = [n for n, call in enumerate(world.calls[0]) if call.numel == MARK and "int8" in call.dtype]
    factor = {"all_gather": world.size - 1, "all_reduce": 2 * (world.size - 1) / world.size}
    total = 0.0
    for call in world.calls[0][marks[2 * number] + 1 : marks[2 * number + 1]]:
        kind = next((kind for kind in factor if kind in call.op), "")
        total += call.num_bytes * factor.get(kind, (world.size - 1) / world.size)
    return round(total)


def check_bytes(grade: Grade, world: Any, cases: list[dict[str, Any]]) -> None:
    number, oracle = len(cases) - 1, Oracle(cases[-1], world.size)
    sent = sent_bytes(world, number)
    expected = 4 * oracle.case["width"] * 2 * (world.size - 1) / world.size * (oracle.num_rows[0] + arrived(oracle))
    if sent > 2 * expected:
        ops = sorted({call.op for call in world.calls[0] if call.num_bytes > 1000})
        grade.reject(
            "sends-everything",
            f"{describe(oracle)}: rank 0 sent about {sent:,} bytes forward and backward (by {', '.join(ops)}). Each "
            f"accepted row, sent once to its expert and back, and their gradients: about {expected:,.0f}.",
        )
    if sent > 1.1 * expected:
        grade.note(f"Rank 0 sent about {sent:,} bytes; accepted rows and their gradients have {expected:,.0f}.")


def arrived(oracle: Oracle) -> int:
    """Return the number of rows that rank 0 computes, its own included."""
    held = experts_of(oracle.case["num_experts"], oracle.size)[0]
    return sum(chosen[place] in held for chosen in oracle.chosen for place in oracle.sorted_kept(chosen))


def report(grade: Grade, world: Any, oracle: Oracle) -> None:
    case, dropped = oracle.case, [len(one) - num for one, num in zip(oracle.chosen, oracle.num_rows, strict=True)]
    counts = [sum(one.count(expert) for one in oracle.chosen) for expert in range(case["num_experts"])]
    grade.measured(f"tokens for each of {case['num_experts']} experts, from {world.size} ranks", counts)
    grade.measured("tokens that no expert accepted, by rank", dropped)
    grade.measured("bytes that rank 0 sends to and from experts", f"{sent_bytes(world, 2):,}")
    grade.predicted("dropped", len(SKEWED) - sum(keep(SKEWED, 20)))
    grade.predicted("sent", 2 * 2 * 4096 * 2048 * 7 / 8)
