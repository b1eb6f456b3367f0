"""Cause real hangs; compare the answers with the known cause, and with each misconception's answer."""

import random
import re
from collections import Counter
from pathlib import Path

from ranks import SIZE

from frog.learn.grader.grade import Grade

SOURCE = (Path(__file__).parent / "trainer.py").read_text()
CALLS = {
    "loads": ("train_step", "self.load_batch()"),
    "cleans": ("train_step", 'self.clean("a b")'),
    "logs": ("train_step", 'self.log("a loss of 7.6")'),
    "evaluates": ("run", "self.evaluate()"),
    "saves": ("run", "self.save()"),
    "trains": ("run", "self.train_step()"),
}
"""The function and line at which the odd rank leaves the others' path, for each kind of hang."""
NAMES = {"rank", "function", "line"}
THREADS = 3
"""The number of threads of each rank. ranks.py puts the training thread first."""
FRAME = re.compile(r'  File "(.*?)([^/"]*)", line (\d+) in (\S+)')


def draw_runs(seed):
    draw = random.Random(seed)
    odd = [*range(SIZE), *draw.sample(range(SIZE), len(CALLS) - SIZE)]  # each rank is the odd one at least once
    draw.shuffle(odd)
    runs = [{"does": does, "odd": rank, "shift": draw.randrange(40)} for does, rank in zip(CALLS, odd, strict=True)]
    runs.append({"does": "cut", "odd": 0, "shift": draw.randrange(40)})
    draw.shuffle(runs)
    return runs


def right_answer(run):
    if run["does"] == "cut":
        return None
    function, call = CALLS[run["does"]]
    (line,) = [n for n, text in enumerate(SOURCE.splitlines(), 1) if text.strip() == call]
    return {"rank": run["odd"], "function": function, "line": line + run["shift"]}


def check(grade: Grade) -> None:
    runs, draw = draw_runs(grade.seed), random.Random(grade.seed + 1)
    world = grade.world(SIZE, {"runs": runs, "source": SOURCE}, work="run", join=False, seconds=4.0)
    stacks = [in_orders(draw, [rank[n] for rank in world.values], n % THREADS) for n in range(len(runs))]
    found = grade.call({"stacks": stacks}).values[0]
    right = [right_answer(run) for run in runs]
    wrong = [n for n in range(len(runs)) if found[n] != right[n]]
    if wrong:
        explain(grade, runs, stacks, found, right, wrong)
    threads = sum(one.count("(most recent call first)") for ranks in stacks for one in ranks)
    grade.measured("hangs", f"{len(runs)}, in the stacks of {threads} threads of {len(runs) * SIZE} processes")
    grade.measured("ranks that waited in a collective", f"{waiting(stacks)} of {len(runs) * SIZE}")
    grade.note("py-spy dump --pid PID prints such stacks of a running process, which pauses only for a moment.")


def in_orders(draw, ranks, place):
    """Shuffle the threads of each rank's dump, in a different order for each rank.

    At `place` no rank has the training thread, and one rank has a different thread from the others. A solution that
    expects the training thread at a fixed place therefore compares threads that do not train, in at least one hang.
    """
    lonely, (here, alone) = draw.randrange(SIZE), draw.sample(range(1, THREADS), 2)
    dumps = []
    for rank, threads in enumerate(ranks):
        chosen = alone if rank == lonely else here
        order = draw.sample([n for n in range(THREADS) if n != chosen], THREADS - 1)
        order.insert(place, chosen)
        dumps.append("\n\n".join(threads[n].strip("\n") for n in order) + "\n")
    return dumps


def waiting(stacks):
    last = [frames_of(training_thread(one))[-1][1] for ranks in stacks for one in ranks]
    return sum(name in ("all_reduce", "barrier") for name in last)


# ---- reading stacks --------------------------------------------------------------------------------------------------


def frames_of(thread):
    """Return (file, function, line) of each frame, outermost first."""
    return [(file, name, int(line)) for _, file, line, name in reversed(FRAME.findall(thread))]


def own(thread):
    return [frame for frame in frames_of(thread) if frame[0] == "trainer.py"]


def training_thread(stacks):
    return next(one for one in stacks.split("\n\n") if own(one) and own(one)[0][1] == "run")


def usual_and_odd(ways):
    """Return the path of most ranks, and the first rank with a different path."""
    usual, _ = Counter(map(tuple, ways)).most_common(1)[0]
    return usual, next((rank for rank, way in enumerate(ways) if tuple(way) != usual), None)


def first_difference(mine, theirs, key=lambda frame: frame):
    pairs = zip(mine, theirs, strict=False)
    return next((a for a, b in pairs if key(a) != key(b)), mine[-1])


def answer(rank, frame):
    return {"rank": rank, "function": frame[1], "line": frame[2]}


# ---- answers of misconceptions ---------------------------------------------------------------------------------------


def by_first_thread(ranks):
    return usual_and_odd([own(one.split("\n\n")[0]) for one in ranks])[1]


def by_innermost(ranks):
    """Find the odd rank by the innermost frame of trainer.py alone."""
    _, odd = usual_and_odd([own(training_thread(one))[-1:] for one in ranks])
    return odd


def by_names(ranks):
    ways = [own(training_thread(one)) for one in ranks]
    usual, odd = usual_and_odd(ways)
    if odd is None:
        return None
    return answer(odd, first_difference(ways[odd], usual, lambda frame: frame[1]))


def deepest(ranks, of=own):
    ways = [own(training_thread(one)) for one in ranks]
    _, odd = usual_and_odd(ways)
    return None if odd is None else answer(odd, of(training_thread(ranks[odd]))[-1])


def from_the_top(ranks):
    """Find the first difference in the order in which a dump is printed."""
    ways = [own(training_thread(one))[::-1] for one in ranks]
    usual, odd = usual_and_odd(ways)
    return None if odd is None else answer(odd, first_difference(ways[odd], usual))


def of_the_others(ranks):
    ways = [own(training_thread(one)) for one in ranks]
    usual, odd = usual_and_odd(ways)
    return None if odd is None else answer(odd, first_difference(usual, ways[odd]))


def explain(grade, runs, stacks, found, right, wrong):
    n = wrong[0]
    says = f"{said(right[n])} You answered: {said(found[n])} Wrong in {len(wrong)} of {len(runs)} hangs."
    picture = drawing(stacks[n])
    ranks = [one.get("rank", "none") if isinstance(one, dict) else one for one in found]
    odd = [None if one is None else one["rank"] for one in right]
    if not all(one is None or (isinstance(one, dict) and set(one) >= NAMES) for one in found):
        grade.reject("unknown", f"Expected rank, function and line, or None. {says}", picture)
    check_threads(grade, stacks, found, right)
    if ranks == [0] * len(runs):
        grade.reject("rank-0-tells", says, picture)
    if len(wrong) == 1 and odd[n] is None:
        grade.reject("always-somebody", says, picture)
    if all(in_majority(stacks[n], ranks[n]) for n in range(len(runs)) if odd[n] is not None):
        grade.reject("waiting-is-guilty", says, picture)
    if ranks == [by_innermost(one) for one in stacks] or (
        ranks != odd and all(ranks[n] in (odd[n], by_innermost(stacks[n])) for n in range(len(runs)))
    ):
        grade.reject("innermost-alone", says, picture)
    if ranks != odd and all(ranks[n] == by_first_thread(stacks[n]) for n in range(len(runs))):
        grade.reject("first-thread", says, picture)
    if ranks == odd:
        judge_place(grade, says, picture, stacks, found)
    if ranks == [None if one is None else one + 1 for one in odd]:
        grade.reject("counts-from-one", says, picture)
    grade.reject("unknown", says, picture)


def check_threads(grade, stacks, found, right):
    """Reject an answer that occurs only in the stacks of threads other than the training thread."""
    for ranks, one, expected in zip(stacks, found, right, strict=True):
        if one is None:
            continue
        place = [one["function"], one["line"]]
        trains = [list(frame[1:]) for dump in ranks for frame in frames_of(training_thread(dump))]
        every = [list(frame[1:]) for dump in ranks for frame in frames_of(dump)]
        if place in every and place not in trains:
            says = f"{said(expected)} You answered: {said(one)} No training thread has that line in its stack."
            grade.reject("first-thread", says, drawing(ranks))


def in_majority(ranks, rank):
    _, odd = usual_and_odd([own(training_thread(one)) for one in ranks])
    return rank in range(SIZE) and rank != odd


def judge_place(grade, says, picture, stacks, found):
    """Explain answers whose rank is right in every hang but whose function or line is not."""
    ways = {
        "innermost-is-the-cause": deepest,
        "reads-from-the-top": from_the_top,
        "names-alone": by_names,
        "library-frame": lambda ranks: deepest(ranks, frames_of),
        "others-line": of_the_others,
    }
    for id, way in ways.items():
        if all(found[n] == way(stacks[n]) for n in range(len(stacks))):
            grade.reject(id, says, picture)
    grade.reject("unknown", says, picture)


def said(value):
    if value is None:
        return "All ranks are at the same place (None)."
    if isinstance(value, dict) and set(value) >= NAMES:
        return f"Rank {value['rank']!r} took a different path at {value['function']}, line {value['line']!r}."
    return f"{value!r}."


def drawing(ranks):
    """Show the training thread of each rank, outermost frame first."""
    lines = []
    for rank, one in enumerate(ranks):
        way = " > ".join(f"{name}:{line}" for _, name, line in own(training_thread(one)))
        lines.append(f"rank {rank}  {way}"[:78])
    return "\n".join(lines)
