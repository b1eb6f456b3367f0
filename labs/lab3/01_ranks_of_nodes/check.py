"""Check that place finds every rank of uneven nodes."""

import random
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from ranks import outside

from frog.learn.grader.grade import Grade

Sizes = list[int]
Place = list[int]


def right(sizes: Sizes, rank: int) -> Place:
    """Find the place of a rank by listing all places."""
    return [[node, local] for node, size in enumerate(sizes) for local in range(size)][rank]


def _edge(sizes: Sizes, rank: int) -> Place:
    ends = list(accumulate(sizes))
    node = next(n for n, end in enumerate(ends) if rank <= end)
    return [node, rank - (ends[node] - sizes[node])]


BELIEFS: dict[str, list[Callable[[Sizes, int], Place]]] = {
    "turned-round": [lambda s, r: right(s, r)[::-1]],
    "local-rank-is-rank": [lambda s, r: [right(s, r)[0], r], lambda s, r: [0, r]],
    "nodes-are-equal": [
        lambda s, r: list(divmod(r, s[0])),
        lambda s, r: list(divmod(r, s[-1])),
        lambda s, r: list(divmod(r, max(s))),
        lambda s, r: list(divmod(r, min(s))),
        lambda s, r: list(divmod(r, sum(s) // len(s))),
    ],
    "dealt-like-cards": [lambda s, r: [r % len(s), r // len(s)]],
    "counts-from-one": [
        lambda s, r: [right(s, r)[0] + 1, right(s, r)[1]],
        lambda s, r: [right(s, r)[0] + 1, right(s, r)[1] + 1],
        lambda s, r: [right(s, r)[0], right(s, r)[1] + 1],
        lambda s, r: right(s, r - 1) if r else [0, -1],
    ],
    "edge-of-a-node": [_edge],
    "one-node-before": [
        lambda s, r: [right(s, r)[0], r - (s[right(s, r)[0] - 1] if right(s, r)[0] else 0)],
        lambda s, r: [right(s, r)[0], r - (s[0] if right(s, r)[0] else 0)],
    ],
    "counts-from-the-end": [lambda s, r: [right(s, r)[0], r - sum(s[: right(s, r)[0] + 1])]],
}


def check(grade: Grade) -> None:
    """Check all ranks of layouts that are new on each check; all but one are uneven."""
    layouts = make_layouts(random.Random(grade.seed))
    found = grade.call({"layouts": layouts}).values[0]
    for sizes, answers in zip(layouts, found, strict=True):
        check_given(grade, sizes, answers)
    places = [answers["places"] for answers in found]
    asked = [(s, rank, there) for s, a in zip(layouts, places, strict=True) for rank, there in enumerate(a)]
    check_places(grade, asked)
    for sizes, answers in zip(layouts, found, strict=True):
        check_outside(grade, sizes, answers["outside"])
    grade.measured("ranks found on their nodes", f"{len(asked)}, in {len(layouts)} worlds")
    grade.predicted("first-rank", found[0]["ranks"][3 * 8])
    grade.predicted("last-rank", found[0]["ranks"][3 * 8 + 7])


def make_layouts(draw: random.Random) -> list[Sizes]:
    """Draw layouts: the README's four nodes of eight first, then one rank, one node, and uneven nodes."""
    uneven = [[draw.randint(1, 9) for _ in range(draw.randint(2, 6))] for _ in range(6)]
    return [[8] * 4, [1], [draw.randint(2, 8)], [2, 1, 3], [1, 4], [4, 1], *uneven]


def check_given(grade: Grade, sizes: Sizes, answers: dict[str, Any]) -> None:
    """Check the functions that the exercise provides."""
    grade.compare(answers["world"], sum(sizes), f"world_size({sizes})")
    grade.compare(answers["ranks"], list(range(sum(sizes))), f"global_rank of every place of {sizes}")


def check_places(grade: Grade, asked: list[tuple[Sizes, int, Any]]) -> None:
    """Reject wrong places with the misconception that explains all of them."""
    wrong = [(sizes, rank, there) for sizes, rank, there in asked if there != right(sizes, rank)]
    fractions = [each for each in asked if any(type(number) is float for number in numbers(each[2]))]
    if not wrong and not fractions:
        return
    changed = next(((sizes, rank) for sizes, rank, there in asked if there == "changed"), None)
    if changed:
        text = f"place({changed[0]}, {changed[1]}) changed the list that it received; the caller's next call uses it."
        grade.reject("list-is-mine", text)
    sizes, rank, there = (wrong or fractions)[0]
    expected = tuple(right(sizes, rank))
    observed = f"nodes of {sizes} ranks: for rank {rank}, place returned {said(there)}, expected {expected}."
    if fractions:
        grade.reject("not-whole", f"{observed} These are not integers.")
    for belief, ways in BELIEFS.items():
        if any(all(there == way(sizes, rank) for sizes, rank, there in asked) for way in ways):
            grade.reject(belief, f"{observed} {len(wrong)} of {len(asked)} places differ.")
    away = [(sizes, rank) for sizes, rank, there in wrong if there == "ValueError"]
    if away and len(away) == len(wrong):
        grade.reject("turned-away", f"{observed} {len(away)} of {len(asked)} existing ranks were rejected.")
    silent = [each for each in wrong if each[2] is None]
    if silent:
        grade.reject("no-answer", f"{observed} {len(silent)} of {len(asked)} places were None.")
    even = [each for each in wrong if len(set(each[0])) == 1]
    if not even:
        grade.reject("nodes-are-equal", f"{observed} Worlds whose nodes all have the same number of ranks are right.")
    node = [each for each in wrong if numbers(each[2])[:1] == right(*each[:2])[:1]]
    if len(node) == len(wrong):
        says = f"{observed} All nodes are right, but {len(wrong)} of {len(asked)} local ranks are wrong."
        grade.reject("not-counted-from-its-node", says)
    right_nodes = len(asked) - len(wrong) + len(node)
    grade.reject("wrong-node", f"{observed} {right_nodes} of {len(asked)} places have the right node.")


def check_outside(grade: Grade, sizes: Sizes, answers: dict[str, Any]) -> None:
    """Check that a rank that does not exist raises ValueError."""
    for rank in outside(sizes):
        if answers[str(rank)] != "ValueError":
            last = sum(sizes) - 1
            grade.reject(
                "no-such-rank",
                f"nodes of {sizes} ranks: ranks count from 0 to {last}, but for rank {rank}, place returned "
                f"{said(answers[str(rank)])} instead of raising a ValueError.",
            )


def numbers(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def said(found: Any) -> str:
    """Show an answer as the learner's code returned it."""
    return f"{tuple(found)}" if isinstance(found, list) else f"{found}"
