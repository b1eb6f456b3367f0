"""Check the loads while a batch is held, the effect of a broken load, and the threads after close()."""

import random

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count


def batches(number: int) -> str:
    return count(number, "batch", "batches")


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    case = {"num": draw.randint(40, 46), "depth": draw.randint(5, 6), "at": draw.randint(5, 9)}
    judges = {
        "held": lambda one: check_held(grade, case, one),
        "shallow": lambda one: check_held(grade, case | {"depth": 1}, one),
        "none": lambda one: check_batches(grade, 0, one),
        "one": lambda one: check_batches(grade, 1, one),
        "two": lambda one: check_batches(grade, 2, one),
        "empty": lambda one: check_empty(grade, case, one),
        "broken": lambda one: check_broken(grade, case, one),
        "closed": lambda one: check_closed(grade, case, one),
    }
    ahead = 0
    for runs in (("held", "shallow"), ("none", "one", "two", "empty", "broken", "closed")):
        found = grade.call(case | {"runs": runs}, seconds=4.0).values[0]
        for name, one in found.items():
            judges[name](one)
            if one.get("stopped"):
                text = f"{case['num']} batches: {count(len(one['begun']), 'load')} began, and then none for 3 s."
                grade.reject("unknown", text)
        ahead = found["held"]["ahead"][0] if "held" in found else ahead
    grade.measured("batches loaded while the first batch was held", f"{ahead}, with a depth of {case['depth']}")
    grade.measured("a step, with 30 ms to load and 20 ms to compute", f"{step_ms(30, 20, 3):.0f} ms")
    grade.predicted("step-ms", step_ms(30, 20, 3))


def step_ms(load_ms: float, compute_ms: float, depth: int, steps: int = 200) -> float:
    """Simulate the steps and return the time of a step in the long run."""
    loaded, done = [0.0], [0.0]
    for i in range(steps):
        can_begin = max(loaded[-1], done[i - depth] if i >= depth else 0.0)
        loaded.append(can_begin + load_ms)
        done.append(max(done[-1], loaded[-1]) + compute_ms)
    return (done[-1] - done[-101]) / 100


def numbers(taken) -> str:
    if len(taken) > 2 and taken == [[i] for i in range(len(taken))]:
        return f"0 to {len(taken) - 1}"
    return ", ".join(str(value[0]) if isinstance(value, list) else repr(value) for value in taken)


def check_batches(grade: Grade, num: int, one) -> None:
    taken = [value for what, value in one["seen"] if what == "batch"]
    last = one["seen"][-1]
    where = f"{num} batches"
    check_threads(grade, where, one)
    if last[0] == "error":
        grade.reject("raised", f"{where}: batch {len(taken)} raised {last[1]}.")
    if taken == [[i] for i in range(num)] and last[0] == "end":
        return
    words = f"{where}: the loop got batches {numbers(taken) or 'none'}, and then "
    words += {"end": "the end.", "hangs": "waited for a batch that never came.", "batch": "still more."}[last[0]]
    if last[0] == "end" and is_cut_short(taken, len(set(one["begun"]))):
        grade.reject("last-is-lost", f"{words} {batches(len(one['begun']))} had been loaded.")
    grade.reject("unknown", words)


def is_cut_short(taken, loaded: int) -> bool:
    """True if all delivered batches are right, and later ones were loaded but never delivered."""
    return taken == [[i] for i in range(len(taken))] and len(taken) < loaded


def check_threads(grade: Grade, where: str, one) -> None:
    if one["most active"] > 1:
        grade.reject("several-at-once", f"{where}: load ran in {one['most active']} threads at the same time.")
    if len(one["begun"]) != len(set(one["begun"])):
        twice = next(i for i in one["begun"] if one["begun"].count(i) > 1)
        grade.reject("several-at-once", f"{where}: load({twice}) was called {one['begun'].count(twice)} times.")


def check_held(grade: Grade, case, one) -> None:
    check_threads(grade, f"{case['num']} batches", one)
    if one["first held"]:
        text = f"{case['num']} batches: batch 0 was delivered only after {batches(len(one['begun']))} had been loaded"
        if len(one["begun"]) >= case["num"]:
            grade.reject("reads-all-ahead", f"{text}.")
        if one["in caller"] == len(one["begun"]):
            grade.reject("loads-when-asked", f"{text}, each in the thread that asked for batch 0.")
        grade.reject("unknown", f"{text}.")
    check_ahead(grade, case, one)
    check_batches(grade, case["num"], one)


def check_ahead(grade: Grade, case, one) -> None:
    num, depth = case["num"], case["depth"]
    ahead = one["ahead"][: num - depth - 1]
    if not ahead:
        return
    says = f"depth {depth}: while a batch was held, {', '.join(map(str, ahead[:6]))} more were loaded."
    if max(ahead) == 0:
        grade.reject("loads-when-asked", says)
    if any(step + more >= num for step, more in enumerate(ahead, 1)):
        grade.reject("reads-all-ahead", f"{num} batches, {says}")
    if min(ahead) < depth or max(ahead) > depth + 1:
        grade.reject("depth-ignored", says)


def check_empty(grade: Grade, case, one) -> None:
    at, num = case["at"], case["num"]
    taken = [value for what, value in one["seen"] if what == "batch"]
    if taken == [None if i == at else [i] for i in range(num)] and one["seen"][-1][0] == "end":
        return
    says = f"load({at}) returned None, of {num} batches: the loop got {batches(len(taken))}, then {one['seen'][-1][0]}."
    is_end = one["seen"][-1][0] == "end" and taken == [[i] for i in range(at)]
    grade.reject("none-is-the-end" if is_end else "unknown", says)


def check_broken(grade: Grade, case, one) -> None:
    at = case["at"]
    taken = [value for what, value in one["seen"] if what == "batch"]
    what, value = one["seen"][-1]
    if what == "error" and value == f"ShardError: shard {at} cannot be read" and taken == [[i] for i in range(at)]:
        return
    says = f"load({at}) raised a ShardError, a subclass of Exception. The loop got {batches(len(taken))}"
    if what == "error" and value == f"ShardError: shard {at} cannot be read" and len(taken) < at:
        grade.reject("error-comes-early", f"{says}, and then that error, {batches(at - len(taken))} too soon.")
    if what == "error":
        grade.reject("unknown", f"{says}, and then another error: {value}")
    end = {"end": "the end, without an error", "hangs": "nothing: it still waits", "batch": "more batches"}[what]
    if what == "end" and is_cut_short(taken, at):
        grade.reject("last-is-lost", f"{says}, and then {end}; {batches(at)} had been loaded.")
    is_lost = taken[:at] == [[i] for i in range(at)]
    grade.reject("error-is-lost" if is_lost else "unknown", f"{says}, and then {end}.")


def check_closed(grade: Grade, case, one) -> None:
    says = f"Two of 200 batches were taken, with depth {case['depth']}, and the iterator was closed"
    if one["after"] > one["begun"] + 2:
        grade.reject("goes-on-loading", f"{says}: {one['after'] - one['begun']} more batches were loaded after that.")
    if one["left"]:
        threads = "a thread was" if one["left"] == 1 else f"{one['left']} threads were"
        grade.reject("thread-left", f"{says}: {threads} still running 1.5 s later.")
