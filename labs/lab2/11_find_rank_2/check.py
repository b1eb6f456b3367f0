"""Make real runs fail in known ways; compare the answers with the cause, and with each misconception's answer."""

import random
import re

from ranks import SIZE

from frog.learn.grader.grade import Grade

NAMES = ("rank", "step", "what")
KINDS = ("error", "late error", "nan", "killed", "hung")


def draw_runs(seed):
    draw = random.Random(seed)
    victims = [2, *draw.sample([0, 1, 3, draw.randrange(4)], 4)]
    draw.shuffle(victims)
    late = victims[KINDS.index("nan")]
    if late in (0, SIZE - 1):  # the first rank with a nan must be neither the first nor the last rank
        victims = [
            draw.choice([1, 2]) if what == "nan" else victim for what, victim in zip(KINDS, victims, strict=True)
        ]
    errors = {
        "error": 1,
        "late error": draw.choice([0, 2, 3, 4]),
    }  # gloo's errors are RuntimeErrors, and so is this one
    runs = []
    for what, victim in zip(KINDS, victims, strict=True):
        step = draw.choice([5, 6, 7]) if what == "nan" else draw.randint(4, 8)
        # In the run "error", the rank with a warning is neither rank 0 nor the first to fail: no two beliefs name it.
        warned = draw.choice([rank for rank in range(SIZE) if rank != victim and (rank or what != "error")])
        which = errors.get(what, draw.randrange(4))
        warning = "nan" if what == "killed" else "read" if what in ("nan", "error") else draw.choice(["read", "nan"])
        run = {"what": what, "victim": victim, "step": step, "warned": warned, "warning": warning, "which": which}
        runs.append(run)
    draw.shuffle(runs)
    return [run | {"seed": seed % 100_000 + 1000 * n} for n, run in enumerate(runs)]


def check(grade: Grade) -> None:
    runs = draw_runs(grade.seed)
    world = grade.world(SIZE, {"runs": runs}, work="run", join=False)
    logs = [[rank[n] for rank in world.values] for n in range(len(runs))]
    found = grade.call({"logs": logs}).values[0]
    answers = [as_answer(grade, run, value, log) for run, value, log in zip(runs, found, logs, strict=True)]
    right = [{"rank": run["victim"], "step": run["step"], "what": run["what"].split()[-1]} for run in runs]
    wrong = [n for n in range(len(runs)) if answers[n] != right[n]]
    if wrong:
        explain(grade, runs, logs, answers, right, wrong)
    errors = sum("FAILED" in log for logs_of_run in logs for log in logs_of_run)
    causes = sum(run["what"].endswith("error") for run in runs)
    grade.measured("runs that failed", f"{len(runs)}, with {errors} errors in {len(runs) * SIZE} logs")
    grade.measured("errors that named a cause", f"{causes} of {errors}")


def as_answer(grade, run, value, logs):
    if not isinstance(value, dict) or not set(NAMES) <= set(value):
        grade.reject(
            "unknown",
            f"Rank {run['victim']} failed ({run['what']}): find_first_failure returned {value!r}, expected a dict of "
            "rank, step and what.",
        )
    for name, kind in (("rank", int), ("step", int), ("what", str)):
        if type(value[name]) is not kind:
            found = f"{value[name]!r}, of type {type(value[name]).__name__}"
            grade.reject("unknown", f"{name!r} must be of type {kind.__name__}; find_first_failure returned {found}.")
    return {name: value[name] for name in NAMES}


def when_failed(log):
    return next((line.split()[0] for line in log.splitlines() if " FAILED " in line), "z")


def lowest_with(words):
    return lambda logs: {next((rank for rank, log in enumerate(logs) if words in log), 0)}


def earliest(time_of):
    """Several ranks if they have the same time: logs show milliseconds."""

    def named(logs):
        times = [time_of(log) for log in logs]
        return {rank for rank, time in enumerate(times) if time == min(times)}

    return named


def when_error(log):
    return next((line.split()[0] for line in log.splitlines() if "Error" in line), "z")


BELIEFS = {
    "rank-0-tells": lowest_with(" FAILED "),
    "first-traceback": earliest(when_failed),
    "ends-first": earliest(lambda log: log.splitlines()[-1].split()[0]),
    "any-error": earliest(when_error),
}
"""The ranks that each misconception may name in a run."""


def explain(grade, runs, logs, answers, right, wrong):
    first = wrong[0]
    run, said = runs[first], answers[first]
    what = f"{right[first]['what']}{', written late' if run['what'] == 'late error' else ''}"
    says = (
        f"Rank {run['victim']} failed in step {run['step']} ({what}), but you named rank {said['rank']}, step "
        f"{said['step']} ({said['what']}). Wrong in {len(wrong)} of {len(runs)} runs."
    )
    tails = drawing(logs[first])
    ties = {}
    for id, way in BELIEFS.items():
        named = [way(log) for log in logs]
        if all(answers[n]["rank"] in named[n] for n in range(len(runs))):
            ties[id] = sum(map(len, named))
    if ties:
        grade.reject(min(ties, key=ties.get), says, tails)
    if all(answers[n]["rank"] == right[n]["rank"] for n in wrong):
        judge_details(grade, says, tails, answers, right, wrong)
    kinds = {runs[n]["what"] for n in wrong}
    if kinds == {"nan"} and all(answers[n]["step"] > right[n]["step"] for n in wrong):
        grade.reject("nan-at-the-end", says, tails)
    if kinds <= {"killed", "hung"} and all(has_error(logs[n], answers[n]["rank"]) for n in wrong):
        grade.reject("silence-is-innocence", says, tails)
    grade.reject("unknown", says, tails)


def has_error(logs, rank):
    return rank in range(len(logs)) and " FAILED " in logs[rank]


def judge_details(grade, says, tails, answers, right, wrong):
    """Explain answers whose rank is right in every run but whose step or kind is not."""
    kinds = [{answers[n]["what"], right[n]["what"]} for n in wrong if answers[n]["what"] != right[n]["what"]]
    if kinds and all(pair == {"killed", "hung"} for pair in kinds):
        said = next(answers[n]["what"] for n in wrong if answers[n]["what"] != right[n]["what"])
        grade.reject("hung-or-killed" if said == "killed" else "killed-or-hung", says, tails)
    if not kinds and all(right[n]["what"] == "nan" and answers[n]["step"] > right[n]["step"] for n in wrong):
        grade.reject("nan-at-the-end", says, tails)
    if not kinds and all(answers[n]["step"] == right[n]["step"] - 1 for n in wrong):
        grade.reject("step-before", says, tails)
    grade.reject("unknown", says, tails)


def drawing(logs):
    """Return the last two lines of each rank; drop the source location that gloo puts before an error's text."""
    lines = []
    for rank, log in enumerate(logs):
        for line in log.splitlines()[-2:]:
            words = re.sub(r"Error: \[\S+\.cc:\d+\] ", "Error: … ", line)
            lines.append(f"rank {rank}  {words}"[:78])
    return "\n".join(lines)
