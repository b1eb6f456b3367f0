"""Check that each snapshot of the folder loads as the old or the new checkpoint, and that saving works again."""

from typing import Any, NoReturn

from ranks import AS_TEXT, STEPS, make_parts

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}, seconds=8).values[0]
    old, new, next_one, repeated = make_parts(grade.seed)
    if found["empty"] is not None:
        text = f"In an empty folder load_latest should return None; it returned {told(found['empty'])}."
        grade.reject("none-is-an-error" if isinstance(found["empty"], str) else "unknown", text)
    check_saved(grade, found["saved 0"], STEPS[0], old)
    if found["saved 1"] == [STEPS[0], old] and found["no digit more"] == [AS_TEXT[1], new]:
        text = (
            f"Checkpoints of steps {STEPS[0]} and {STEPS[1]} were saved; load_latest returned that of step {STEPS[0]}."
        )
        grade.reject("sorted-as-text", f"{text} For steps {AS_TEXT[0]} and {AS_TEXT[1]} it returned {AS_TEXT[1]}.")
    check_saved(grade, found["saved 1"], STEPS[1], new)
    check_elsewhere(grade, found, old, new)
    for picture in sorted(found["pictures"], key=lambda picture: -picture["phase"]):
        check_picture(grade, picture, *((old, new) if picture["phase"] else (None, old)))
    if found["no kill"] != [STEPS[1], [STEPS[1], next_one]]:
        text = f"Step {STEPS[0]} was saved, then step {STEPS[1]} with the parts {', '.join(next_one)}, without a kill."
        grade.reject("unknown", f"{text} Then load_latest returned {told(found['no kill'][1])}.")
    for picture in found["pictures"]:
        check_again(grade, picture, next_one)
    check_repeated(grade, found, [[STEPS[1], new], [STEPS[1], repeated]], next_one)
    pictures = len(found["pictures"]) + len(found["repeated pictures"])
    grade.measured("moments at which the check tried a kill", str(pictures))
    grade.predicted("lost-steps", 50)
    grade.note("These files survive a kill, but not a power cut: for that, flush and os.fsync before the rename.")


def check_saved(grade: Grade, loaded: Any, step: int, parts: dict[str, bytes]) -> None:
    if loaded != [step, parts]:
        grade.reject(
            "unknown", f"After save_checkpoint of step {step} had returned, load_latest returned {told(loaded)}."
        )


def check_elsewhere(grade: Grade, found: dict[str, Any], old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """Check that the folder's contents decide, not the times of files or variables of this process."""
    if (loaded := found["other times"]) != [STEPS[1], new]:
        text = f"Checkpoints of steps {STEPS[0]} and {STEPS[1]} existed; as in a copy of the folder, the files of step"
        text = f"{text} {STEPS[0]} had the newer timestamps. load_latest returned {told(loaded)}."
        is_old = loaded == [STEPS[0], old]
        grade.reject("newest-by-time" if is_old else "unknown", text)
    if found["strays"]:
        text = f"{', '.join(found['strays'][:5])} appeared outside the folder that save_checkpoint was given."
        grade.reject("unknown", f"{text} A copy of the folder would lack these files.")
    for what, right in (("first alone", [STEPS[0], old]), ("empty again", None)):
        if (loaded := found[what]) != right:
            now = f"holds only the checkpoint of step {STEPS[0]}" if right else "is empty"
            text = f"The folder {now} now, as before step {STEPS[1]} was saved. load_latest returned {told(loaded)}."
            grade.reject("kept-in-memory", text)


def check_picture(grade: Grade, picture: dict[str, Any], old: dict[str, bytes] | None, new: dict[str, bytes]) -> None:
    loaded, step = picture["loaded"], STEPS[picture["phase"]]
    absent = None if old is None else [STEPS[0], old]
    if loaded == absent or loaded == [step, new]:
        return
    killed = f"Killed while saving step {step}, when the folder held {picture['files']}"
    text = f"{killed}: load_latest returned {told(loaded)}"
    if old is None:
        id = "none-is-an-error" if isinstance(loaded, str) else "half-counts-as-whole"
        grade.reject(id if loaded is not None else "unknown", f"{text}. No checkpoint was complete yet.")
    parts = parts_of(loaded)
    if parts.keys() == new.keys() and all(parts[name] in (old[name], new[name]) for name in parts):
        mix = ", ".join(f"{name} of step {step if parts[name] == new[name] else STEPS[0]}" for name in sorted(parts))
        grade.reject("one-file-at-a-time", f"{killed}: load_latest returned {mix}, as step {loaded[0]}.")
    if picture["old"]:
        explain_kept(grade, picture, text, parts)
    explain_lost(grade, picture, f"{text}. Some bytes of step {STEPS[0]} were no longer on disk")


def parts_of(loaded: Any) -> dict[str, bytes]:
    return loaded[1] if isinstance(loaded, list) and len(loaded) == 2 and isinstance(loaded[1], dict) else {}


def explain_kept(grade: Grade, picture: dict[str, Any], text: str, parts: dict[str, bytes]) -> NoReturn:
    """Explain why another state was loaded although all bytes of the old checkpoint are on disk."""
    if picture["new"] and picture["short"] and not parts:
        short = f"{', '.join(picture['short'])} was truncated"
        grade.reject("pointer-torn", f"{text}. All bytes of both checkpoints were on disk; {short}.")
    text = f"{text}. All bytes of step {STEPS[0]} were still on disk"
    if picture["gone"]:
        grade.reject("removed-to-replace", f"{text}, but no longer under their name: {picture['gone'][0]} was gone.")
    half = isinstance(picture["loaded"], list) or (isinstance(picture["loaded"], str) and not picture["new"])
    grade.reject("half-counts-as-whole" if half else "unknown", f"{text}.")


def explain_lost(grade: Grade, picture: dict[str, Any], text: str) -> NoReturn:
    """Explain missing bytes of a complete checkpoint: a file was changed in some way, or removed."""
    if picture["torn"]:
        grade.reject(
            "overwritten-in-place", f"{text}: {picture['torn'][0]} held neither the old bytes nor all the new bytes."
        )
    if picture["changed"]:
        names = f"{', '.join(picture['changed'][:3])} {'was' if len(picture['changed']) == 1 else 'were'}"
        grade.reject("one-file-at-a-time", f"{text}: {names} already from the new checkpoint.")
    grade.reject("deletes-first" if picture["gone"] else "unknown", f"{text}: {told_gone(picture)}.")


def told_gone(picture: dict[str, Any]) -> str:
    names = picture["gone"]
    return f"{', '.join(names[:3])} {'was' if len(names) == 1 else 'were'} gone" if names else "no file was gone"


def check_again(grade: Grade, picture: dict[str, Any], parts: dict[str, bytes]) -> None:
    step, loaded = picture["again"]
    if step is None:
        text = f"A kill left {picture['files']}. The next run reached the same step, and its save failed: {loaded}."
        grade.reject("debris-in-the-way", text)
    if loaded == [step, parts]:
        return
    text = f"A kill left {picture['files']}. The next run saved step {step}; then load_latest returned {told(loaded)}."
    more = loaded[1].keys() - parts.keys() if isinstance(loaded, list) and isinstance(loaded[1], dict) else set()
    if more:
        grade.reject("debris-gets-in", f"{text} That save did not contain {', '.join(sorted(more))}.")
    grade.reject("debris-in-the-way", text)


def check_repeated(grade: Grade, found: dict[str, Any], whole: list[Any], next_one: dict[str, bytes]) -> None:
    """Check saving the same step twice, as a caller does that saves every N steps and at the end."""
    if found["repeated"] not in whole:
        text = f"Step {STEPS[1]} was saved twice, the second time with other parts. Then: {told(found['repeated'])}."
        grade.reject("saved-once", text)
    for picture in found["repeated pictures"]:
        if picture["loaded"] not in whole:
            explain_repeated(grade, picture)
        check_again(grade, picture, next_one)


def explain_repeated(grade: Grade, picture: dict[str, Any]) -> NoReturn:
    """Explain what happened to the files of a complete checkpoint when its step was saved again."""
    text = f"Step {STEPS[1]} had a complete checkpoint. Killed while it was saved again, when the folder held"
    text = f"{text} {picture['files']}: load_latest returned {told(picture['loaded'])}"
    if picture["changed"]:
        explain_lost(grade, picture, f"{text}. Some files of the first save were gone")
    if picture["gone"]:
        grade.reject("removed-to-replace", f"{text}. The checkpoint had been complete, but {told_gone(picture)}.")
    half = isinstance(picture["loaded"], list)
    grade.reject("half-counts-as-whole" if half else "unknown", f"{text}. All files of the first save still existed.")


def told(loaded: Any) -> str:
    """Describe the result of load_latest."""
    if isinstance(loaded, list) and len(loaded) == 2 and isinstance(loaded[1], dict):
        sizes = ", ".join(f"{name} of {count(len(data), 'byte')}" for name, data in sorted(loaded[1].items()))
        return f"step {loaded[0]} with {sizes or 'no parts'}"
    return str(loaded) if isinstance(loaded, str) else repr(loaded)[:80]
