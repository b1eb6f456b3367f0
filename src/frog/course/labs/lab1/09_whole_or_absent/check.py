"""Each picture of the folder must load as the old checkpoint or as the new one, and let a next one be saved."""

from typing import Any

from ranks import STEPS, make_parts

from frog.grader.grade import Grade


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}, seconds=8).values[0]
    old, new, next_one, repeated = make_parts(grade.seed)
    if found["empty"] is not None:
        text = f"In an empty folder load_latest should return None; it gave {told(found['empty'])}."
        grade.reject("none-is-an-error" if isinstance(found["empty"], str) else "unknown", text)
    check_saved(grade, found["saved 0"], STEPS[0], old, None)
    check_saved(grade, found["saved 1"], STEPS[1], new, old)
    for picture in sorted(found["pictures"], key=lambda picture: -picture["phase"]):
        check_picture(grade, picture, *((old, new) if picture["phase"] else (None, old)))
    for picture in found["pictures"]:
        check_again(grade, picture, next_one)
    check_repeated(grade, found, [[STEPS[1], new], [STEPS[1], repeated]], next_one)
    pictures = len(found["pictures"]) + len(found["repeated pictures"])
    grade.measured("moments at which a kill was tried", str(pictures))
    grade.predicted("lost-steps", 50)
    grade.note("What was written outlives a kill, not a power cut: for that, flush and os.fsync before the rename.")


def check_saved(grade: Grade, loaded: Any, step: int, parts: dict[str, bytes], old: dict[str, bytes] | None) -> None:
    if loaded == [step, parts]:
        return
    if old is not None and loaded == [STEPS[0], old]:
        text = f"Checkpoints of steps {STEPS[0]} and {STEPS[1]} were saved; load_latest gave that of step {loaded[0]}."
        grade.reject("sorted-as-text", text)
    grade.reject("unknown", f"After save_checkpoint of step {step} was done, load_latest gave {told(loaded)}.")


def check_picture(grade: Grade, picture: dict[str, Any], old: dict[str, bytes] | None, new: dict[str, bytes]) -> None:
    loaded, step = picture["loaded"], STEPS[picture["phase"]]
    absent = None if old is None else [STEPS[0], old]
    if loaded == absent or loaded == [step, new]:
        return
    killed = f"Killed while step {step} was saved, when the folder held {picture['files']}"
    text = f"{killed}: load_latest gave {told(loaded)}"
    if old is None:
        grade.reject("half-counts-as-whole", f"{text}. Nothing was whole yet.")
    parts = loaded[1] if isinstance(loaded, list) and len(loaded) == 2 and isinstance(loaded[1], dict) else {}
    if parts.keys() == new.keys() and all(parts[name] in (old[name], new[name]) for name in parts):
        mix = ", ".join(f"{name} of step {step if parts[name] == new[name] else STEPS[0]}" for name in sorted(parts))
        grade.reject("one-file-at-a-time", f"{killed}: load_latest gave {mix}, as step {loaded[0]}.")
    if picture["old"] and picture["new"]:
        grade.reject("pointer-torn", f"{text}. All bytes of both checkpoints were on disk.")
    if picture["old"]:
        grade.reject("half-counts-as-whole", f"{text}. All bytes of step {STEPS[0]} were still on disk.")
    if not picture["changed"]:
        grade.reject("deletes-first", f"{text}. The checkpoint of step {STEPS[0]} was gone, or part of it.")
    grade.reject("overwritten-in-place", f"{text}. The bytes of step {STEPS[0]} were gone.")


def check_again(grade: Grade, picture: dict[str, Any], parts: dict[str, bytes]) -> None:
    step, loaded = picture["again"]
    if step is None:
        text = f"A kill left {picture['files']}. The next run came to the same step, and its save failed: {loaded}."
        grade.reject("debris-in-the-way", text)
    if loaded == [step, parts]:
        return
    text = f"A kill left {picture['files']}. The next run saved step {step}; then load_latest gave {told(loaded)}."
    more = loaded[1].keys() - parts.keys() if isinstance(loaded, list) and isinstance(loaded[1], dict) else set()
    if more:
        grade.reject("debris-gets-in", f"{text} That save had no part {', '.join(sorted(more))}.")
    grade.reject("debris-in-the-way", text)


def check_repeated(grade: Grade, found: dict[str, Any], whole: list[Any], next_one: dict[str, bytes]) -> None:
    """The same step saved once more, by a caller who saves every so many steps and at the end."""
    if found["repeated"] not in whole:
        text = f"Step {STEPS[1]} was saved, and saved once more with other parts. Then: {told(found['repeated'])}."
        grade.reject("saved-once", text)
    for picture in found["repeated pictures"]:
        if picture["loaded"] not in whole:
            text = (
                f"Step {STEPS[1]} was whole. Killed while it was saved again, when the folder held {picture['files']}"
            )
            grade.reject("removed-to-replace", f"{text}: load_latest gave {told(picture['loaded'])}.")
        check_again(grade, picture, next_one)


def told(loaded: Any) -> str:
    """What load_latest gave, in words."""
    if isinstance(loaded, list) and len(loaded) == 2 and isinstance(loaded[1], dict):
        sizes = ", ".join(f"{name} of {len(data):,} bytes" for name, data in sorted(loaded[1].items()))
        return f"step {loaded[0]} with {sizes or 'no parts'}"
    return str(loaded) if isinstance(loaded, str) else repr(loaded)[:80]
