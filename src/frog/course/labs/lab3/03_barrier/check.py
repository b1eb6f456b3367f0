"""Whether anyone leaves before all have come, and whether all leave: in many orders, and in three real processes."""

import random
from typing import Any

from frog.grader.grade import Grade

Run = dict[str, Any]


def check(grade: Grade) -> None:
    """One barrier three times; two barriers in turn; then a real store."""
    draw = random.Random(grade.seed)
    alone = [
        draw_run(draw, size, ["checkpoint"], **{pace: rank})
        for size in (1, 2, 3, 4)
        for pace in ("quick", "slow", "drawn")
        for rank in range(size)
    ]
    both = [draw_run(draw, size, ["checkpoint", "evaluation"]) for size in (2, 3) for _ in range(4)]
    found = grade.call({"runs": alone + both}).values[0]
    check_one(grade, list(zip(alone, found, strict=False)))
    for asked, run in list(zip(alone + both, found, strict=True))[len(alone) :]:
        if run["early"] or run["stuck"]:
            grade.reject(
                "names-shared",
                f"One barrier alone works. Two on one store, named checkpoint and evaluation: {what(asked, run)}",
                drawing(asked, run),
            )
    check_real(grade)
    grade.measured("barriers passed by all, and by nobody too early", f"{3 * len(alone) + 6 * len(both)}")
    operations = sum(found[-1]["counts"].values()) / found[-1]["counts"]["come"] - 1
    grade.measured("operations of the store, a rank and barrier", f"{operations:.1f}")


def draw_run(draw: random.Random, size: int, names: list[str], **pace: int) -> Run:
    """An order of turns: `quick` is the rank that goes on whenever it can, `slow` the one that does so last."""
    orders = {"quick": pace.get("quick"), "slow": pace.get("slow")}
    return {"seed": draw.randrange(1 << 30), "size": size, **orders, "names": names, "rounds": 3}


def check_one(grade: Grade, runs: list[tuple[Run, Run]]) -> None:
    """The runs with one barrier."""
    early = [(asked, run) for asked, run in runs if run["early"]]
    stuck = [(asked, run) for asked, run in runs if run["stuck"]]
    if not early and not stuck:
        return
    asked, run = (early or stuck)[0]
    grade.reject(explain(runs, early, stuck), what(asked, run), drawing(asked, run))


def explain(runs: list[tuple[Run, Run]], early: list[tuple[Run, Run]], stuck: list[tuple[Run, Run]]) -> str:
    """The misconception that does just this."""
    first_round = [(asked["size"], found[3]) for asked, run in early for found in run["early"] if found[2] == 1]
    if not any(operation in run["counts"] for _, run in runs for operation in ("wait", "get", "check")):
        return "nobody-waits" if early else "unknown"
    if not any("add" in run["counts"] for _, run in runs) and any("get" in run["counts"] for _, run in runs):
        return "not-atomic"
    if any(run["cleared"] for _, run in runs):
        return "reset-too-early"
    if first_round and all(there == size - 1 for size, there in first_round):
        return "off-by-one"
    if first_round:
        return "first-opens"
    if early:
        return "used-twice"
    if any(run["stuck"] == "waits" and not run["writes"] for _, run in stuck):
        return "waits-for-itself"
    if any(run["stuck"] == "waits" and at[1] == 1 for _, run in stuck for at in run["waits"].values()):
        return "off-by-one"
    return "used-twice"


def what(asked: Run, run: Run) -> str:
    """The first thing that went wrong, in a sentence."""
    size = asked["size"]
    if run["early"]:
        rank, name, number, there = run["early"][0]
        return f"World of {size}: rank {rank} left {name} number {number} when {there} of {size} ranks had come."
    if run["stuck"] == "spins":
        return f"World of {size}: after 20 000 operations of the store the ranks had not all left three barriers."
    rank, (name, number, operation) = next(iter(run["waits"].items()))
    return (
        f"World of {size}: {len(run['waits'])} of {size} ranks wait for ever. Rank {rank} is in {name} "
        f"number {number}, in store.{operation}, and nobody is left who could end that."
    )


def drawing(asked: Run, run: Run) -> str:
    """Where each rank is at the end."""
    lines = []
    for rank in range(asked["size"]):
        at = run["waits"].get(str(rank))
        left = [found for found in run["early"] if found[0] == rank]
        state = f"waits in {at[0]} {at[1]}: store.{at[2]}"[:60] if at else "through"
        if left and not at:
            state += f", left {left[0][1]} {left[0][2]} when {left[0][3]} had come"
        lines.append(f"rank {rank}  {state}")
    return "\n".join(lines)


def check_real(grade: Grade) -> None:
    """Three processes, one clock: the first leaves after the last has come."""
    world = grade.world(3, {"rounds": 6}, work="meet")
    everyones = [value["moments"] for value in world.values]
    for number, moments in enumerate(zip(*everyones, strict=True), start=1):
        last_came, first_left = max(came for came, _ in moments), min(left for _, left in moments)
        if first_left < last_came:
            grade.reject(
                "unknown",
                f"Three processes, a real TCPStore: at barrier {number} the first left "
                f"{(last_came - first_left) / 1e6:.1f} ms before the last had come.",
            )
    waited = max(left - came for came, left in everyones[0]) / 1e6
    grade.measured("rank 0 waited at a barrier of a real TCPStore, at most", f"{waited:.1f} ms")
    grade.predicted("second-count", max(value["count"] for value in world.values))
