"""Run the script in repositories with a remote, and check the state of git afterwards."""

import json
import random
import sys
from typing import Any

from frog.learn.grader.grade import Grade

DRIVE = """
import json, os, subprocess, sys

MESSAGES = json.load(open("messages.json"))
HERE = os.getcwd()
os.environ.update(
    HOME=HERE, GIT_CONFIG_NOSYSTEM="1", GIT_TERMINAL_PROMPT="0", GIT_EDITOR="true", GIT_PAGER="cat",
    GIT_AUTHOR_NAME="Learner", GIT_AUTHOR_EMAIL="learner@example.org",
    GIT_COMMITTER_NAME="Learner", GIT_COMMITTER_EMAIL="learner@example.org")

def git(*words, at="work"):
    done = subprocess.run(["git", *words], cwd=os.path.join(HERE, at), capture_output=True, text=True, errors="replace")
    return done.stdout.strip() if done.returncode == 0 else None

def write(name, text, at="work"):
    path = os.path.join(HERE, at, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)

def log(ref, at="work"):
    lines = (git("log", "--format=%H%x09%s", ref, at=at) or "").splitlines()
    return [line.split(chr(9), 1) for line in lines]

def files(commit):
    return sorted((git("show", "--no-renames", "--format=", "--name-status", commit) or "").splitlines())

def save(message):
    before = log("HEAD")
    done = subprocess.run(["bash", os.path.join(HERE, "save.sh"), message], cwd=os.path.join(HERE, "work"),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=20)
    after = log("HEAD")
    new = after[: len(after) - len(before)] if len(after) >= len(before) else after
    return {
        "message": message, "code": done.returncode, "out": done.stdout[-20000:], "err": done.stderr[-2000:],
        "before": before, "after": after, "new": [[subject, files(commit)] for commit, subject in new],
        "remote": log("main", at="remote.git"),
        "kept": [os.path.exists(os.path.join(HERE, "work", name)) for name in OTHERS],
    }

OTHERS = ("runs/one/rank_0.safetensors", ".env", "README.md")
os.makedirs("work")
subprocess.run(["git", "init", "-q", "--bare", "-b", "main", "remote.git"], check=True)
git("init", "-q", "-b", "main")
write("lab/step.py", "def average_gradients(model):\\n    raise NotImplementedError\\n")
write("lab/old_notes.md", "to be deleted\\n")
write("README.md", "my course\\n")
git("add", "-A")
git("commit", "-qm", "start the course")
git("remote", "add", "origin", os.path.join(HERE, "remote.git"))
git("push", "-q", "-u", "origin", "main")

found = {}
write("runs/one/rank_0.safetensors", "0" * 100000)
write(".env", "TOKEN=secret\\n")
write("lab/step.py", "def average_gradients(model):\\n    return mean_over_ranks(model)\\n")
write("lab/sub/notes.md", "what I saw\\n")
write("README.md", "my course, and a line that is not finished\\n")
found["first"] = save(MESSAGES[0])
if found["first"]["code"] and not found["first"]["new"]:
    found["first"]["plain"] = save("step")
found["clean"] = save("nothing")
write("lab/only_new.md", "a file alone\\n")
found["new"] = save("add a file")
os.remove("work/lab/old_notes.md")
found["deleted"] = save(MESSAGES[1])
subprocess.run(["git", "clone", "-q", "remote.git", "other"], check=True)
write("lab/other.md", "a colleague's\\n", at="other")
git("add", "-A", at="other")
git("commit", "-qm", "a colleague's work", at="other")
git("push", "-q", "origin", "HEAD:main", at="other")
found["theirs"] = log("HEAD", at="other")[0]
write("lab/step.py", "def average_gradients(model):\\n    return sum_over_ranks(model) / 2\\n")
found["moved"] = save(MESSAGES[2])
found["moved"]["own"] = "sum_over_ranks" in open("work/lab/step.py").read()
json.dump(found, open("found.json", "w"))
"""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    number = draw.randint(2, 9)
    messages = [
        f"fill in average_gradients ({number} of 9)",
        f'delete notes: "old" costs $HOME {number}; it\'s * now',
        f"divide by {number}",
    ]
    done = grade.program(
        [sys.executable, "-B", "drive.py"],
        files={"drive.py": DRIVE, "messages.json": json.dumps(messages)},
        seconds=10.0,
    )
    recorded = grade.records(done, "found.json", dict[str, Any])
    if not recorded:
        grade.reject("unknown", f"Creating the repositories failed, or the script hung: {done.err.strip()[-300:]}")
    found = recorded[0]
    check_first(grade, found["first"])
    check_clean(grade, found["clean"])
    check_commit(grade, "A new file in lab/ and no other change", found["new"], ["A\tlab/only_new.md"])
    check_deleted(grade, found["deleted"])
    check_moved(grade, found["moved"], found["theirs"])
    check_review(grade, grade.answers("review.toml"))
    commits = [(subject, files) for name in ("first", "deleted") for subject, files in found[name]["new"]]
    grade.measured("commits", "; ".join(f"{subject!r} with {len(files)} files" for subject, files in commits))
    grade.measured(
        "a push that git refused", f"exit code {found['moved']['code']}; the colleague's commit is still there"
    )


OTHERS = ("runs/one/rank_0.safetensors", ".env", "README.md")
"""Files outside lab/; the same list as in the program above."""


def told(one: dict[str, Any]) -> str:
    words = (one["err"] or one["out"]).strip().splitlines()
    return f" It said: {words[-1][:120]}" if words else ""


def check_history(grade: Grade, where: str, one: dict[str, Any]) -> None:
    """Reject if a commit that existed before is no longer in the log."""
    lost = [subject for commit, subject in one["before"] if commit not in [c for c, _ in one["after"]]]
    if lost:
        grade.reject("history-replaced", f"{where}: the commit {lost[0]!r} is no longer in the log.")


def check_commit(grade: Grade, where: str, one: dict[str, Any], wanted: list[str]) -> None:
    """Check that there is one new commit with these files and this message, and that the remote has it."""
    check_history(grade, where, one)
    if not all(one["kept"]):
        lost = OTHERS[one["kept"].index(False)]
        grade.reject("cleans-up", f"{where}: {lost} was in the folder before the script ran, and no longer exists.")
    if not one["new"]:
        id = (
            "new-files-missed"
            if any(line[0] == "A" for line in wanted)
            else "deletions-missed"
            if wanted[0][0] == "D"
            else "unknown"
        )
        grade.reject(
            id if one["code"] == 0 else "raised",
            f"{where}: the script made no commit; its exit code is {one['code']}.{told(one)}",
        )
    subject, files = one["new"][0]
    strange = [line for line in files if "lab/" not in line]
    if strange:
        names = ", ".join(line.split("\t")[-1] for line in strange)
        grade.reject("adds-everything", f"{where}: the commit contains {names}.")
    if len(one["new"]) > 1:
        grade.reject("unknown", f"{where}: there are {len(one['new'])} new commits, {[s for s, _ in one['new']]}.")
    missing = [line.split("\t") for line in wanted if line not in files]
    if missing:
        id = {"A": "new-files-missed", "D": "deletions-missed"}.get(missing[0][0], "unknown")
        words = {"A": "was added", "D": "was deleted", "M": "was changed"}[missing[0][0]]
        grade.reject(id, f"{where}: {missing[0][1]} {words}, but the commit does not contain it.")
    if subject != one["message"]:
        grade.reject(
            "message-falls-apart", f"{where}: the message was {one['message']!r}, but the commit has {subject!r}."
        )
    if not one["remote"] or one["remote"][0][0] != one["after"][0][0]:
        last = one["remote"][0][1] if one["remote"] else "nothing"
        grade.reject(
            "never-pushed", f"{where}: committed, but the last commit on origin's main is {last!r}.{told(one)}"
        )
    if one["code"] != 0:
        grade.reject("raised", f"{where}: committed and pushed, but the exit code is {one['code']}.{told(one)}")


def check_first(grade: Grade, one: dict[str, Any]) -> None:
    where = "A new file and a changed one in lab/, changes elsewhere too"
    if one.get("plain", {}).get("new"):
        grade.reject(
            "message-falls-apart",
            f"{where}: no commit with the message {one['message']!r}.{told(one)} With the message 'step' it commits.",
        )
    check_commit(grade, where, one, ["M\tlab/step.py", "A\tlab/sub/notes.md"])
    lines = one["out"].splitlines()
    for what, name in (("mean_over_ranks", "step.py"), ("what I saw", "the new file sub/notes.md")):
        if not any(line.startswith("+") and what in line for line in lines):
            seen = f"{len(lines)} lines, none of them the new line in {name}" if lines else "nothing"
            grade.reject("diff-not-shown", f"{where}: committed and pushed. It printed {seen}.")


def check_clean(grade: Grade, one: dict[str, Any]) -> None:
    where = "Nothing in lab/ has changed"
    check_history(grade, where, one)
    if one["new"]:
        grade.reject("empty-commit", f"{where}: there is a new commit, with {len(one['new'][0][1])} files.")
    if not (one["out"] + one["err"]).strip():
        grade.reject("unknown", f"{where}: the script printed nothing; it should say that nothing changed.")
    if one["code"] != 0:
        grade.reject("fails-when-clean", f"{where}: the exit code is {one['code']}.{told(one)}")


def check_deleted(grade: Grade, one: dict[str, Any]) -> None:
    check_commit(grade, "A file in lab/ was deleted", one, ["D\tlab/old_notes.md"])


def check_moved(grade: Grade, one: dict[str, Any], theirs: list[str]) -> None:
    where = "A colleague had pushed a commit in the meantime"
    subjects = [subject for _, subject in one["remote"]]
    if theirs[0] not in [commit for commit, _ in one["remote"]]:
        grade.reject(
            "pushes-over-others",
            f"{where}: origin's main no longer has {theirs[1]!r}; its last commits are {subjects[:2]}.",
        )
    if not one["own"]:
        grade.reject("own-work-lost", f"{where}: git refused the push, and lab/step.py no longer contains this change.")
    if one["message"] not in subjects and one["code"] == 0:
        grade.reject("failure-is-hidden", f"{where}: git refused the push, but the exit code is 0.{told(one)}")
    lost = [subject for commit, subject in one["before"] if commit not in [c for c, _ in one["after"]]]
    if lost:
        grade.reject("history-replaced", f"{where}: the commit {lost[0]!r} is no longer in the log.")


def check_review(grade: Grade, answers: dict[str, Any]) -> None:
    hunk, factor = answers.get("hunk"), answers.get("gradient_factor")
    if hunk in (1, 2):
        words = {1: "a docstring", 2: "two names"}[hunk]
        id = {1: "every-line-counts", 2: "names-change-numbers"}[hunk]
        grade.reject(id, f"You named hunk {hunk}: it changes {words}.")
    if hunk != 3:
        grade.reject("unknown", f"hunk is {hunk!r}; the hunks are 1, 2 and 3.")
    if not isinstance(factor, (int, float)) or factor != 4:
        grade.reject(
            "factor-forgotten", f"Hunk 3 is right. gradient_factor is {factor!r}, but each of 4 parts was divided by 4."
        )
