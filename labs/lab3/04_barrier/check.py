"""Check that no rank leaves before all have arrived, and that all leave: in many orders, and in real processes."""

import random
from typing import Any

from frog.learn.grader.grade import Grade

Run = dict[str, Any]


def check(grade: Grade) -> None:
    """Check one barrier three times, two barriers in turn, keys that could collide, then a real store."""
    draw = random.Random(grade.seed)
    alone = [
        draw_run(draw, size, ["checkpoint"], **{pace: rank})
        for size in (1, 2, 3, 4)
        for pace in ("quick", "slow", "late", "drawn")
        for rank in range(size)
        if size > 1 or pace != "late"
    ]
    both = [draw_run(draw, size, ["checkpoint", "evaluation"]) for size in (2, 3) for _ in range(4)]
    alike = [draw_run(draw, 2, ["step", "step1"], rounds=11, quick=quick) for quick in (0, 1)]
    many = [draw_run(draw, 12, ["checkpoint"], rounds=11, slow=slow) for slow in (0, 1)]
    asked = [*alone, *both, *alike, *many]
    found = list(zip(asked, grade.call({"runs": asked}, seconds=4.0).values[0], strict=True))
    check_one(grade, found[: len(alone)])
    check_two(grade, found[len(alone) : len(alone) + len(both)])
    check_keys(grade, found[len(alone) + len(both) :])
    check_real(grade)
    passed = sum(run["counts"]["come"] // each["size"] for each, run in found)
    grade.measured("barriers that all ranks passed, none of them too early", f"{passed}")
    counts = found[len(alone) + len(both) - 1][1]["counts"]
    operations = sum(number for operation, number in counts.items() if operation != "come") / counts["come"]
    grade.measured("store operations per rank and barrier", f"{operations:.1f}")


def draw_run(draw: random.Random, size: int, names: list[str], rounds: int = 3, **pace: int) -> Run:
    """Draw an order of turns: `quick` runs whenever it can, `slow` when no other rank can, `late` arrives later."""
    orders = {name: pace.get(name) for name in ("quick", "slow", "late")}
    return {"seed": draw.randrange(1 << 30), "size": size, **orders, "names": names, "rounds": rounds}


def check_one(grade: Grade, runs: list[tuple[Run, Run]]) -> None:
    """Check the runs with one barrier."""
    early = [(asked, run) for asked, run in runs if run["early"]]
    stuck = [(asked, run) for asked, run in runs if run["stuck"]]
    if not early and not stuck:
        return
    asked, run = (early or stuck)[0]
    grade.reject(explain(runs, early, stuck), what(asked, run), drawing(asked, run))


def check_two(grade: Grade, runs: list[tuple[Run, Run]]) -> None:
    """Check two barriers on one store, in turn."""
    for asked, run in runs:
        if run["early"] or run["stuck"]:
            text = f"One barrier alone works. Two on one store, named checkpoint and evaluation: {what(asked, run)}"
            grade.reject("names-shared", text, drawing(asked, run))


def check_keys(grade: Grade, runs: list[tuple[Run, Run]]) -> None:
    """Check barriers and ranks whose numbers, written one after the other, could give the same key."""
    for asked, run in runs:
        if run["early"] or run["stuck"] == "waits":
            number = f"Two barriers named {' and '.join(asked['names'])}" if len(asked["names"]) > 1 else "One barrier"
            text = f"Fewer ranks and rounds work. {number}, {asked['rounds']} times: {what(asked, run)}"
            grade.reject("keys-collide", text, drawing(asked, run))


READS = ("wait", "get", "check")


def explain(runs: list[tuple[Run, Run]], early: list[tuple[Run, Run]], stuck: list[tuple[Run, Run]]) -> str:
    """Return the misconception that these runs show, or `unknown`."""
    if not any(has_looked(run) for _, run in runs):
        return "nobody-waits" if early else "unknown"
    if any(run["lost"] for _, run in runs):
        return "not-atomic"
    if any(run["cleared"] for _, run in runs):
        return "reset-too-early"
    return explain_early(early) if early else explain_stuck(stuck)


def has_looked(run: Run) -> bool:
    """Return True if a rank read a key, waited for one, or polled a counter by adding 0 to it."""
    return bool(run["polled"]) or any(name in run["counts"] for name in READS) or any(left[4] for left in run["early"])


def explain_early(early: list[tuple[Run, Run]]) -> str:
    """Explain a rank that left too early: in round 1, or in a later one by a key that already existed."""
    first = [(asked["size"], left) for asked, run in early for left in run["early"] if left[2] == 1]
    if not first:
        return "used-twice" if any(run["early"][0][5] for _, run in early) else "unknown"
    if len({left[0] for _, left in first if not left[4]}) > 1:
        return "nobody-waits"
    if all(size != 2 for size, _ in first):
        return "not-all"
    return "off-by-one" if all(left[3] == size - 1 for size, left in first) else "first-opens"


def explain_stuck(stuck: list[tuple[Run, Run]]) -> str:
    """Explain the waits of ranks that never continue."""
    waiting = [(asked["size"], at[1], run["polled"].get(rank, {}), run["numbers"], at[2])
               for asked, run in stuck for rank, at in run["waits"].items()]  # fmt: skip
    if any(run["stuck"] == "waits" and not run["writes"] for _, run in stuck):
        return "waits-for-itself"
    polls = [(size * number, does, int(value)) for size, number, polled, _, does in waiting
             for value in polled.values() if value and value.isdigit()]  # fmt: skip
    if any(value > full for full, _, value in polls):
        return "missed-it"
    if any(value == full and does.startswith("get") for full, does, value in polls):
        return "bytes-compared"
    if any(number == 1 and size in numbers.values() for size, number, _, numbers, _ in waiting):
        return "off-by-one"
    return (
        "used-twice"
        if any(max(numbers.values(), default=0) > size for size, _, _, numbers, _ in waiting)
        else "unknown"
    )


def what(asked: Run, run: Run) -> str:
    """Describe the first mistake in a sentence."""
    size = asked["size"]
    if run["early"]:
        rank, name, number, there = run["early"][0][:4]
        return (
            f"World of {size}: rank {rank} left {name} number {number} when only {there} of {size} ranks had arrived."
        )
    if run["stuck"] == "spins":
        return f"World of {size}: after 20 000 store operations, some ranks had not left all three barriers."
    rank, (name, number, operation) = next(iter(run["waits"].items()))
    values = [value for value in run["polled"].get(rank, {}).values() if value is not None]
    polls = {"get": values[0], "add": int(values[0])} if len(values) == 1 and values[0].isdigit() else {}
    gives = f", which gives {polls[operation[:3]]!r} each time" if operation[:3] in polls else ""
    return (
        f"World of {size}: {len(run['waits'])} of {size} ranks wait forever. Rank {rank} is in {name} "
        f"number {number}, in store.{operation}{gives}; no other rank can end this wait."
    )


def drawing(asked: Run, run: Run) -> str:
    """Describe the position of each rank at the end."""
    lines = []
    for rank in range(asked["size"]):
        at = run["waits"].get(str(rank))
        left = [found for found in run["early"] if found[0] == rank]
        state = f"waits in {at[0]} {at[1]}: store.{at[2]}"[:60] if at else "through"
        if left and not at:
            state += f", left {left[0][1]} {left[0][2]} when {left[0][3]} had arrived"
        lines.append(f"rank {rank}  {state}")
    return "\n".join(lines)


def check_real(grade: Grade) -> None:
    """Check three real processes on one clock: the first must leave after the last has arrived."""
    world = grade.world(3, {"rounds": 6}, work="meet")
    everyones = [value["moments"] for value in world.values]
    for number, moments in enumerate(zip(*everyones, strict=True), start=1):
        last_came, first_left = max(came for came, _ in moments), min(left for _, left in moments)
        if first_left < last_came:
            grade.reject(
                "unknown",
                f"Three processes, a real TCPStore: at barrier {number} the first rank left "
                f"{(last_came - first_left) / 1e6:.1f} ms before the last had arrived.",
            )
    waited = max(left - came for came, left in everyones[0]) / 1e6
    grade.measured("rank 0 waited at a barrier of a real TCPStore, at most", f"{waited:.1f} ms")
    grade.predicted("second-count", max(value["count"] for value in world.values))
