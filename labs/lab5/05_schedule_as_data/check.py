"""Simulate the learner's schedules, and compare their time and memory with what 1F1B needs."""

import math
import random
from collections import Counter
from typing import NoReturn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts
from frog.train.parallel.schedules.drawing import draw as draw_times
from frog.train.parallel.schedules.drawing import table
from frog.train.parallel.schedules.schedule import Action, Schedule, in_order, problems
from frog.train.parallel.schedules.simulation import simulate

MOST_COLUMNS = 110
"""Width of a drawing that fits below a verdict."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    plain = [(3, 7), (4, 2), (4, 8), (draw.randint(2, 5), draw.randint(5, 12))]
    num_ranks = draw.randint(2, 3)
    looped = [(2, 4, 2), (3, 6, 2), (4, 4, 2), (num_ranks, num_ranks * draw.randint(2, 3), draw.randint(2, 3))]
    ratios = [(4, 8), (3, 7), (4, 2), (3, 6, 2), (2, 6, 3), (draw.randint(3, 6), draw.randint(20, 30) * 6)]
    calls = [("one_f_one_b", sizes) for sizes in plain] + [("interleaved", sizes) for sizes in looped]
    calls += [("bubble", sizes) for sizes in ratios]
    found = grade.call({"calls": calls}).values[0]
    schedules = [
        judge_schedule(grade, name, sizes, rows)
        for (name, sizes), rows in zip(calls, found, strict=True)
        if name != "bubble"
    ]
    judge_bubbles(grade, dict(zip(ratios, found[len(schedules) :], strict=True)))
    report(grade, schedules[plain.index((4, 8))], found[calls.index(("interleaved", (3, 6, 2)))])


# ---- schedules -------------------------------------------------------------------------------------------------------


def judge_schedule(grade, name, sizes, rows):
    """Return a schedule that is complete, runs, and takes no more time and memory than it may."""
    num_ranks, num_micro, num_chunks = (*sizes, 1)[:3]
    says = f"{name}({', '.join(map(str, sizes))})"
    if not isinstance(rows, list) or len(rows) != num_ranks:
        seen = f"{count(len(rows), 'list')}" if isinstance(rows, list) else rows
        grade.reject("unknown", f"{says} returned {seen}, expected a list of actions for each of {num_ranks} ranks.")
    schedule = Schedule(name, num_micro, num_chunks, tuple(tuple(Action(*action) for action in row) for row in rows))
    expected = {
        Action(kind, stage, micro)
        for kind in "FB"
        for stage in range(schedule.num_stages)
        for micro in range(num_micro)
    }
    if Counter(action for row in schedule.ranks for action in row) != Counter(expected):
        explain_actions(grade, schedule, says, expected)
    if any(schedule.rank_of(action.stage) != rank for rank, row in enumerate(schedule.ranks) for action in row):
        explain_places(grade, schedule, says)
    if problems(schedule):
        explain_deadlock(grade, schedule, says)
    simulation = simulate(schedule)
    most = [most_held(rank, num_ranks, num_micro, num_chunks) for rank in range(num_ranks)]
    if any(peak > limit for peak, limit in zip(simulation.peak_in_flight, most, strict=True)):
        explain_memory(grade, simulation, says, most)
    if simulation.makespan > shortest(num_ranks, num_micro, num_chunks) + 1e-6:
        explain_time(grade, simulation, says)
    return simulation


def most_held(rank, num_ranks, num_micro, num_chunks):
    """Return the most activations that a rank may hold."""
    if num_chunks == 1:
        return min(num_micro, num_ranks - rank)
    return min(num_micro * num_chunks, (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - rank) + 1)


def shortest(num_ranks, num_micro, num_chunks):
    """Return the time of a schedule whose first micro-batch reaches the last rank at once, in forward passes."""
    return 3 * (num_micro + (num_ranks - 1) / num_chunks)


def text_of(action):
    return f"{action.kind} of micro-batch {action.micro} in stage {action.stage}"


def picture(simulation):
    """Draw a schedule if it fits on a screen."""
    drawing = draw_times(simulation)
    return drawing if max(map(len, drawing.splitlines())) <= MOST_COLUMNS else None


def explain_actions(grade, schedule, says, expected) -> NoReturn:
    """Reject a schedule with the wrong passes: of micro-batches or stages that do not exist, missing, or twice."""
    rows = schedule.ranks
    strange = [
        (rank, action)
        for rank, row in enumerate(rows)
        for action in row
        if not 0 <= action.micro < schedule.num_micro and action.kind in "FB"
    ]
    if strange:
        rank, action = strange[0]
        text = f"{says}: rank {rank}'s list has {text_of(action)}. There are {schedule.num_micro} micro-batches, "
        text += f"numbered from 0; {count(len(strange), 'pass', 'passes')} in all are of other numbers."
        grade.reject("micro-that-does-not-exist", text)
    chunks = set(range(schedule.virtual_stages))
    if schedule.virtual_stages > 1 and all({action.stage for action in row} == chunks for row in rows):
        text = f"{says}: every rank's list has the stages {listed(chunks)}. There are {schedule.num_stages} stages, "
        grade.reject(
            "chunk-is-not-a-stage", f"{text}and rank 1 holds {listed(range(1, schedule.num_stages, len(rows)))}."
        )
    seen = Counter(action for row in rows for action in row)
    kinds = sorted({action.kind for action in seen} - {"F", "B"})
    if kinds:
        grade.reject("unknown", f"{says} has passes of the kind {kinds[0]!r}. The kinds are F and B.")
    missing = sorted(expected - set(seen), key=lambda action: (action.micro, action.stage))
    twice = [action for action, num in seen.items() if num > 1]
    last = {action.stage for action in missing if action.micro == schedule.num_micro - 1}
    is_end = all(action.kind == "B" and action.stage in last for action in missing)
    if missing and is_end and not twice and set(seen) <= expected:
        num = schedule.num_micro * schedule.num_stages
        text = f"{says}: all {num} forward passes are there, and {num - len(missing)} of {num} backward passes. "
        grade.reject("never-drains", f"{text}The first that is missing is {text_of(missing[0])}.")
    if missing:
        text = f"{says}: {count(len(missing), 'pass is', 'passes are')} missing; the first is {text_of(missing[0])}."
        grade.reject("some-missing", text)
    if twice:
        grade.reject("some-twice", f"{says}: {text_of(twice[0])} occurs {seen[twice[0]]} times.")
    extra = [action for action in seen if action not in expected]
    grade.reject("unknown", f"{says}: {extra[0]} is not a pass of this pipeline.")


def explain_places(grade, schedule, says) -> NoReturn:
    """Reject a schedule in which a rank computes a stage of another rank."""
    stages = [sorted({action.stage for action in row}) for row in schedule.ranks]
    num = schedule.virtual_stages
    expected = [list(range(rank, schedule.num_stages, len(stages))) for rank in range(len(stages))]
    rank = next(rank for rank in range(len(stages)) if stages[rank] != expected[rank])
    text = f"{says}: rank {rank}'s list has the stages {listed(stages[rank])}, expected {listed(expected[rank])}."
    if all(stages[rank] == list(range(rank * num, (rank + 1) * num)) for rank in range(len(stages))):
        grade.reject("neighbouring-stages", text)
    grade.reject("unknown", text)


def listed(numbers):
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def ahead_of(row):
    """Return the number of forward passes before a rank's first backward pass."""
    return next((n for n, action in enumerate(row) if action.kind == "B"), len(row))


def explain_deadlock(grade, schedule, says) -> NoReturn:
    """Reject a schedule that stops: find the rank whose order makes it stop."""
    num_ranks, ahead = len(schedule.ranks), [ahead_of(row) for row in schedule.ranks]
    done = Counter(rank for rank, _ in in_order(schedule))
    stuck = {rank: row[done[rank]] for rank, row in enumerate(schedule.ranks) if done[rank] < len(row)}
    rank = max(stuck)
    text = f"{says} stops: {sum(done.values())} of {sum(map(len, schedule.ranks))} passes run. "
    backwards = [[action for action in row if action.kind == "B"] for row in schedule.ranks]
    if schedule.virtual_stages > 1 and all(row[0].stage == rank for rank, row in enumerate(backwards)):
        text += f"Rank {num_ranks - 1}'s first backward pass is {text_of(backwards[-1][0])}. It needs the one in stage "
        grade.reject("backward-from-the-front", f"{text}{num_ranks}, on rank 0.")
    if all(row[0].micro == schedule.num_micro - 1 for row in backwards) and schedule.num_micro > 1:
        text += f"The backward passes on rank {rank} begin with micro-batch {backwards[rank][0].micro}; its forward "
        grade.reject("last-in-first-out", f"{text}passes begin with micro-batch 0.")
    if schedule.virtual_stages == 1 and ahead == sorted(ahead) and ahead[0] < ahead[-1]:
        text += f"Before the first backward pass, ranks 0 to {num_ranks - 1} have {listed(ahead)} forward passes."
        grade.reject("filled-from-the-wrong-end", text)
    for rank, action in stuck.items():
        own = Action("F", action.stage, action.micro)
        later = schedule.ranks[rank][done[rank] :]
        if action.kind == "B" and own in later:
            num = sum(before.kind == "F" for before in schedule.ranks[rank][: done[rank]])
            text += f"Rank {rank} stops at {text_of(action)}, after {count(num, 'forward pass', 'forward passes')}: "
            text += f"its own {text_of(own)} comes {count(later.index(own), 'place')} later."
            grade.reject("backward-before-forward", text, drawn(schedule))
    waits = [f"rank {rank} for {text_of(schedule.needs(action))}" for rank, action in stuck.items()]
    grade.reject("unknown", f"{text}{'; '.join(waits)} wait forever.", drawn(schedule))


def drawn(schedule):
    """Return each rank's list, as far as it fits on a screen."""
    return "\n".join(line[:MOST_COLUMNS] for line in table(schedule).splitlines())


def explain_memory(grade, simulation, says, most) -> NoReturn:
    """Reject a schedule that holds too many activations."""
    schedule, peaks = simulation.schedule, simulation.peak_in_flight
    rank = next(rank for rank in range(len(most)) if peaks[rank] > most[rank])
    text = f"{says}: rank {rank} holds up to {count(peaks[rank], 'activation')} at a time; it may hold {most[rank]}. "
    text += f"(All ranks: {listed(peaks)}; they may hold {listed(most)}.)"
    num = schedule.num_micro * schedule.virtual_stages
    if all(peak == num for peak in peaks):
        grade.reject("all-forwards-first", text, picture(simulation))
    if is_chunk_by_chunk(schedule):
        grade.reject("whole-batch-per-chunk", text, picture(simulation))
    if all(peak == peaks[0] for peak in peaks):
        grade.reject("same-on-all-ranks", text, picture(simulation))
    if all(peak == min(num, limit + 1) for peak, limit in zip(peaks, most, strict=True)):
        grade.reject("one-too-many", text, picture(simulation))
    grade.reject("holds-too-many", text, picture(simulation))


def is_chunk_by_chunk(schedule):
    """True if all micro-batches go through a rank's first stage before one goes through its second."""
    if schedule.virtual_stages == 1 or schedule.num_micro <= len(schedule.ranks):
        return False
    forwards = [[action.stage for action in row if action.kind == "F"] for row in schedule.ranks]
    return all(stages == sorted(stages) for stages in forwards)


def explain_time(grade, simulation, says) -> NoReturn:
    """Reject a schedule that takes longer than it must."""
    schedule = simulation.schedule
    num_ranks, num = len(schedule.ranks), schedule.virtual_stages
    found, least = distinct_texts(simulation.makespan, shortest(num_ranks, schedule.num_micro, num))
    text = f"{says} takes as long as {found} forward passes; {least} are enough. "
    if is_chunk_by_chunk(schedule):
        text += f"Rank 0 takes all {schedule.num_micro} micro-batches through stage 0 before the first one through "
        grade.reject("whole-batch-per-chunk", f"{text}stage {num_ranks}.", picture(simulation))
    ahead = [ahead_of(row) for row in schedule.ranks]
    needed = [min(schedule.num_micro * num, (num - 1) * num_ranks + num_ranks - rank) for rank in range(num_ranks)]
    short = [rank for rank in range(num_ranks) if ahead[rank] < needed[rank]]
    if short:
        rank = short[0]
        text += f"Rank {rank} has {count(ahead[rank], 'forward pass', 'forward passes')} before its first backward "
        grade.reject("begins-too-late", f"{text}pass, and then waits for that.", picture(simulation))
    grade.reject("unknown", text.strip(), picture(simulation))


# ---- the formula -----------------------------------------------------------------------------------------------------


def part(num_ranks, num_micro, num_chunks=1):
    """Return the bubble of a schedule that takes the shortest time."""
    return 1 - 3 * num_micro / shortest(num_ranks, num_micro, num_chunks)


def formulas():
    """Return, for each misconception, the wrong numbers that people compute."""
    return {
        "part-of-the-ideal-time": lambda p, m, v=1: (p - 1) / (m * v),
        "part-of-the-ideal-time.2": lambda p, m, v=1: (p - 1) / m / v,
        "counts-ranks": lambda p, m, v=1: p / (m * v + p),
        "counts-ranks.2": lambda p, m, v=1: (p - 1) / (m * v + p),
        "chunks-left-out": lambda p, m, v=1: (p - 1) / (m + p - 1),
        "bubble-divided": lambda p, m, v=1: (p - 1) / (m + p - 1) / v,
        "working-time": lambda p, m, v=1: m * v / (m * v + p - 1),
        "counts-percent": lambda p, m, v=1: 100 * part(p, m, v),
        "counts-forward-passes": lambda p, m, v=1: 3 * (p - 1) / v,
        "counts-forward-passes.2": lambda p, m, v=1: (p - 1) / v,
        "counts-forward-passes.3": lambda p, m, v=1: p - 1,
        "both-directions": lambda p, m, v=1: 2 * (p - 1) / (m * v + 2 * (p - 1)),
    }


def is_close(found, expected):
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return is_number and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def judge_bubbles(grade, found):
    wrong = [sizes for sizes in found if not is_close(found[sizes], part(*sizes))]
    if not wrong:
        return
    sizes = wrong[0]
    if not isinstance(found[sizes], (int, float)) or isinstance(found[sizes], bool):
        grade.reject("unknown", f"bubble({', '.join(map(str, sizes))}) returned {found[sizes]!r}, expected a number.")
    explain_bubble(grade, found, sizes)


def explain_bubble(grade, found, sizes) -> NoReturn:
    """Reject a formula; the first sizes for which it is wrong are given."""
    seen, expected = distinct_texts(found[sizes], part(*sizes), 4)
    idle, total = 3 * (sizes[0] - 1) / (*sizes, 1)[2], shortest(*(*sizes, 1)[:3])
    text = f"bubble({', '.join(map(str, sizes))}) is {seen}. The simulated schedule is as long as {total:g} forward "
    text += f"passes, and each rank waits for {idle:g} of them: {expected}."
    for id, formula in formulas().items():
        if all(is_close(found[one], formula(*one)) for one in found):
            grade.reject(id.split(".")[0], text)
    grade.reject("unknown", text)


# ---- a passed check --------------------------------------------------------------------------------------------------


def report(grade, simulation, rows):
    gpipe = Schedule("gpipe", 8, 1, tuple(tuple(Action(k, r, m) for k in "FB" for m in range(8)) for r in range(4)))
    full = simulate(gpipe)
    grade.predicted("bubble", 100 * full.bubble)
    grade.predicted("held", simulation.peak_in_flight[0])
    grade.measured("4 ranks, 8 micro-batches: GPipe's bubble", f"{full.bubble:.1%}")
    for name, one in (("GPipe", full), ("1F1B", simulation)):
        grade.measured(f"the same: activations that ranks 0 to 3 hold with {name}", listed(one.peak_in_flight))
    looped = Schedule("interleaved", 6, 2, tuple(tuple(Action(*action) for action in row) for row in rows))
    with_time = [simulate(looped, send_time=send).bubble for send in (0.0, 0.25)]
    texts = [f"{value:.1%}" for value in with_time]
    grade.measured("3 ranks, 6 micro-batches, 2 stages each: your bubble", f"{texts[0]}; with slow messages {texts[1]}")
