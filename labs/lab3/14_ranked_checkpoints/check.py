"""Kill a rank at every moment of a save, and check that load finds the old checkpoint or the complete new one."""

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from frog.learn.grader.grade import Grade

DRIVE = (Path(__file__).parent / "drive.py").read_text()
STEPS = (9, 10, 11)
End = dict[str, Any]


class Recorded(TypedDict):
    """What drive.py recorded about one end of a save, and what load found then."""

    size: int
    end: str
    moment: str
    loaded: list[Any]
    barriers: int
    stuck: list[Any]
    errors: list[str]
    missing: NotRequired[list[int]]
    lost: NotRequired[list[str]]
    unmarked: NotRequired[list[Any]]
    shared: NotRequired[list[str]]
    kept: NotRequired[str]


def check(grade: Grade) -> None:
    """Check worlds of 1, 2 and 3 ranks; kill ranks in the world of 2."""
    draw = random.Random(grade.seed)
    shards = {step: [draw.randbytes(draw.randint(50, 2000)).decode("latin-1") for _ in range(3)] for step in STEPS}
    case = json.dumps({"sizes": [1, 2, 3], "steps": STEPS, "shards": shards})
    ended = grade.program([sys.executable, "drive.py"], files={"drive.py": DRIVE}, stdin=case, seconds=20.0)
    ends = grade.records(ended, "ends.jsonl", Recorded)
    if ended.code != 0 or not ends:
        problem = [line for line in ended.err.splitlines() if line.strip()] or ["it printed nothing"]
        grade.reject("raised", f"checkpoint.py ended the run with {ended.code}: {problem[-1][:300]}")
    for end in sorted(
        ends, key=lambda end: ("names" in end["end"]) + ("some" in end["end"])
    ):  # cases that no other end shows
        end["steps"] = [step_of(found, shards, rank) for rank, found in enumerate(end["loaded"])]
        judge(grade, end, ends)
    kinds = [end["end"] for end in ends]
    grade.measured("moments at which a rank was killed", kinds.count("killed"))
    grade.measured(
        "of these: half-written file, power cut, power cut with lost names",
        ", ".join(str(kinds.count(kind)) for kind in ("torn", "power", "names")),
    )
    found = [end["steps"][0] for end in ends if end["end"] in ("killed", "torn", "power", "names")]
    counts = [found.count(step) for step in STEPS]
    grade.measured("load found", f"the old one {counts[0]} times, the new one {counts[1]} times")


def step_of(found: Any, shards: dict[int, list[str]], rank: int) -> Any:
    """Return the loaded step, None, or a text that describes the mistake."""
    if found is None or isinstance(found, str):
        return found
    step, digest = found
    if step not in shards:
        return f"step {step}, which was never saved"
    if digest != hashlib.sha256(shards[step][rank].encode("latin-1")).hexdigest()[:16]:
        return f"step {step}, with bytes that rank {rank} had not saved"
    return step


def judge(grade: Grade, end: End, ends: list[End]) -> None:
    """Check one way in which a run ends."""
    old, new, later = STEPS
    steps, kind = end["steps"], end["end"]
    expected = {
        "nothing": [None],
        "old": [old],
        "new": [new],
        "new, power": [new],
        "new, names": [new],
        "new, some names": [new],
        "new, times": [new],
        "in turn": [later],
        "again": [new],
        "later": [later],
    }
    fine = len(set(map(str, steps))) == 1 and steps[0] in expected.get(kind, [old, new]) and len(steps) == end["size"]
    if fine and not ((end["errors"] or end["stuck"]) and kind in ("old", "new", "in turn", "again", "later")):
        return
    shown = "; ".join(f"rank {rank}: {step}" for rank, step in enumerate(steps))
    where = f"World of {end['size']}"
    if kind in ("nothing", "old", "new"):
        after = "no save" if kind == "nothing" else "a save"
        whole(grade, end, f"{where}, no rank killed, after {after}. load finds {shown}.")
    if kind == "new, times":
        text = f"{where}: steps {old} and {new} were saved; then the files' timestamps were put in the opposite order,"
        grade.reject("newest-by-time", f"{text} as can happen in a copy or a backup. load finds {shown}.")
    if kind == "in turn":
        problem = f"save raised {end['errors'][0]}" if end["errors"] else f"load finds {shown}"
        text = f"{where}: the ranks save step {later}, one operation at a time in turn: {problem}."
        if end["shared"]:
            names = ", ".join(Path(path).name for path in end["shared"])
            grade.reject("name-of-all-ranks", f"{text} More than one rank opened {names} for writing.")
        grade.reject("raised" if end["errors"] else "unknown", text)
    if kind == "new, power":
        grade.reject("not-synced", f"{where}: save returned on all ranks, then the power failed. load finds {shown}.")
    if kind in ("names", "new, names"):
        when = (
            f"the power failed at: {end['moment']}" if kind == "names" else "save had returned, then the power failed"
        )
        lost = "New names and renames are lost where the folder was not synced"
        grade.reject("folder-not-synced", f"{where}: {when}. {lost}: load finds {shown}.")
    if kind in ("some names", "new, some names"):
        when = end["moment"] or "save had returned"
        text = f"{where}: the power failed at: {when}. Of the changed names that were not synced, only {end['kept']}"
        grade.reject("names-keep-order", f"{text} had reached the disk. load finds {shown}.")
    observed = f"{where}, {'power cut' if kind == 'power' else 'killed'} at: {end['moment']}. "
    if kind in ("later", "again"):
        problem = f"save raised {end['errors'][0]}" if end["errors"] else f"load finds {shown}"
        step = later if kind == "later" else new
        grade.reject("trips-over-remains", f"{observed}Then all ranks saved step {step} without a kill: {problem}.")
    grade.reject(explain(end, ends), f"{observed}load finds {shown}; step {old} was complete.")


def whole(grade: Grade, end: End, observed: str) -> None:
    """Explain a mistake in a run without a kill."""
    steps = end["steps"]
    if end["errors"] and end["errors"][0].startswith("OutsideFolderError"):
        grade.reject("outside", f"World of {end['size']}: save opened a file for writing: {end['errors'][0]}.")
    if end["errors"]:
        grade.reject("raised", f"World of {end['size']}: save raised {end['errors'][0]}.")
    if end["stuck"]:
        grade.reject(
            "one-rank-waits", f"World of {end['size']}: ranks {end['stuck']} wait at a barrier, but the others do not."
        )
    if end["end"] == "new" and set(steps) == {STEPS[0]}:
        grade.reject("steps-as-text", f"{observed} Steps {STEPS[0]} and {STEPS[1]} were saved.")
    if end["size"] > 1 and end.get("missing") == list(range(1, end["size"])):
        grade.reject("rank-0-saves", observed)
    grade.reject("unknown", observed)


def explain(end: End, ends: list[End]) -> str:
    """Return the misconception that leaves such files behind."""
    steps, kind = end["steps"], end["end"]
    numbers = {step for step in steps if isinstance(step, int)}
    if kind == "power":
        return "not-synced"
    if kind == "torn":
        return "half-a-file-believed"
    if len(numbers) > 1:
        return "each-rank-for-itself"
    if all(step is None for step in steps) or numbers == {STEPS[0]}:
        return "old-deleted-first" if end["lost"] else "unknown"
    if not end["missing"] or any(each["missing"] for each in ends if each["end"] == "new"):
        return "unknown"  # all shards exist, or none can be recognized
    bare = [each for each in ends if each["size"] == end["size"] and len(each.get("missing", [])) == end["size"]]
    if any(each["end"] == "killed" for each in bare):
        return "a-folder-is-a-checkpoint"  # not even one shard existed
    without_mark = [found and found[0] for found in end["unmarked"] if not isinstance(found, str)]
    return "commit-before-all" if without_mark == [STEPS[0]] * end["size"] else "a-folder-is-a-checkpoint"
