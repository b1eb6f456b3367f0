"""Kill a rank at every moment of a save, and look whether load finds the old checkpoint or the whole new one."""

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from frog.grader.grade import Grade

DRIVE = (Path(__file__).parent / "drive.py").read_text()
STEPS = (9, 10, 11)
End = dict[str, Any]


def check(grade: Grade) -> None:
    """Worlds of 1, 2 and 3; ranks are killed in that of 2."""
    draw = random.Random(grade.seed)
    shards = {step: [draw.randbytes(draw.randint(50, 2000)).decode("latin-1") for _ in range(3)] for step in STEPS}
    case = json.dumps({"sizes": [1, 2, 3], "steps": STEPS, "shards": shards})
    ended = grade.program([sys.executable, "drive.py"], files={"drive.py": DRIVE}, stdin=case, seconds=20.0)
    told = ended.folder / "ends.jsonl"
    ends = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    if ended.code != 0 or not ends:
        problem = [line for line in ended.err.splitlines() if line.strip()] or ["it printed nothing"]
        grade.reject("raised", f"checkpoint.py ended the run with {ended.code}: {problem[-1][:300]}")
    for end in sorted(ends, key=lambda end: "names" in end["end"]):  # what no other end shows
        end["steps"] = [step_of(found, shards, rank) for rank, found in enumerate(end["loaded"])]
        judge(grade, end, ends)
    kinds = [end["end"] for end in ends]
    grade.measured("moments at which a rank was killed", kinds.count("killed"))
    grade.measured(
        "of these: half written, power cut, with names lost",
        ", ".join(str(kinds.count(kind)) for kind in ("torn", "power", "names")),
    )
    found = [end["steps"][0] for end in ends if end["end"] in ("killed", "torn", "power", "names")]
    counts = [found.count(step) for step in STEPS]
    grade.measured("load found", f"the old one {counts[0]} times, the new one {counts[1]} times")


def step_of(found: Any, shards: dict[int, list[str]], rank: int) -> Any:
    """The step that was loaded; None; or a text that says what is wrong with it."""
    if found is None or isinstance(found, str):
        return found
    step, digest = found
    if step not in shards:
        return f"step {step}, which was never saved"
    if digest != hashlib.sha256(shards[step][rank].encode("latin-1")).hexdigest()[:16]:
        return f"step {step}, with other bytes than rank {rank} had saved"
    return step


def judge(grade: Grade, end: End, ends: list[End]) -> None:
    """One end of one run."""
    old, new, later = STEPS
    steps, kind = end["steps"], end["end"]
    expected = {
        "nothing": [None],
        "old": [old],
        "new": [new],
        "new, power": [new],
        "new, names": [new],
        "later": [later],
    }
    fine = len(set(map(str, steps))) == 1 and steps[0] in expected.get(kind, [old, new]) and len(steps) == end["size"]
    if fine and not ((end["errors"] or end["stuck"]) and kind in ("old", "new", "later")):
        return
    shown = "; ".join(f"rank {rank}: {step}" for rank, step in enumerate(steps))
    where = f"World of {end['size']}"
    if kind in ("nothing", "old", "new"):
        after = "no save" if kind == "nothing" else "a save"
        whole(grade, end, f"{where}, nobody killed, after {after}. load finds {shown}.")
    if kind == "new, power":
        grade.reject("not-synced", f"{where}: save had returned everywhere, then the power failed. load finds {shown}.")
    if kind in ("names", "new, names"):
        when = (
            f"the power failed at: {end['moment']}" if kind == "names" else "save had returned, then the power failed"
        )
        lost = "Names that were new in a folder, and renames, are lost where the folder was not synced"
        grade.reject("folder-not-synced", f"{where}: {when}. {lost}: load finds {shown}.")
    observed = f"{where}, {'power cut' if kind == 'power' else 'killed'} at: {end['moment']}. "
    if kind == "later":
        problem = f"save raised {end['errors'][0]}" if end["errors"] else f"load finds {shown}"
        grade.reject("trips-over-remains", f"{observed}Then step {later} was saved, undisturbed: {problem}.")
    grade.reject(explain(end, ends), f"{observed}load finds {shown}; step {old} was whole.")


def whole(grade: Grade, end: End, observed: str) -> None:
    """What is wrong where nobody was killed."""
    steps = end["steps"]
    if end["errors"]:
        grade.reject("raised", f"World of {end['size']}: save raised {end['errors'][0]}.")
    if end["stuck"]:
        grade.reject(
            "one-rank-waits", f"World of {end['size']}: ranks {end['stuck']} wait at a barrier, others do not."
        )
    if end["end"] == "new" and set(steps) == {STEPS[0]}:
        grade.reject("steps-as-text", f"{observed} Steps {STEPS[0]} and {STEPS[1]} were saved.")
    if end["size"] > 1 and steps[0] in STEPS and not any(step in STEPS for step in steps[1:]):
        grade.reject("rank-0-saves", observed)
    grade.reject("unknown", observed)


def explain(end: End, ends: list[End]) -> str:
    """Which belief leaves such a thing behind."""
    steps, kind = end["steps"], end["end"]
    numbers = {step for step in steps if isinstance(step, int)}
    if kind == "power":
        return "not-synced"
    if kind == "torn":
        return "half-a-file-believed"
    if len(numbers) > 1:
        return "each-rank-for-itself"
    if all(step is None for step in steps):
        return "old-deleted-first"
    barriers = max(each["barriers"] for each in ends if each["size"] == end["size"])
    return "commit-before-all" if barriers == 0 else "a-folder-is-a-checkpoint"
