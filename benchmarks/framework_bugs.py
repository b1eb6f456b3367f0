"""Plant bugs in correct programs of several frameworks, run `frog check` on each, and judge what it says.

    python benchmarks/framework_bugs.py [--clones FOLDER] [--only WORD ...] [--keep FOLDER] [--judge] [--first]

framework_bugs/NAME.toml holds the bugs of a framework as edits of a correct program: one of framework_bugs/programs, or
a public one at a named commit, of which --clones has a copy. Each bug has the rules and the line that a right answer
names; they were written before `frog check` saw them. It counts as found if one of these rules is broken, as certain,
likely or possible, and not in the same program without the edit, its twin. A certain or likely answer about a twin is a
false alarm. --first writes what is said of bugs that framework_bugs/first_sight.json does not have yet.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUGS = Path(__file__).resolve().with_suffix("")
PROGRAMS = BUGS / "programs"
OWN_STRATEGY = BUGS.parents[1] / "config" / "own_ddp.py"
FIRST = BUGS / "first_sight.json"
FROG = [sys.executable, "-c", "import sys; from frog.cli import main; sys.exit(main())"]
LIMIT_S = 600
HEAD = f"{'bug':34s} {'right rules':24s} {'first sight':38s} {'line':5s} {'now':38s} {'line':5s} twin"


@dataclass(frozen=True)
class Case:
    """A program, how it is run, and the edits that plant its bug."""

    framework: str
    name: str
    program: str
    """A file in programs/, or in the public repository; "-m frog.train" for Frog's own trainer."""
    arguments: str
    nproc: int
    options: str
    against_one: bool
    public: str
    """Owner and name of the public repository; "" for a program of our own."""
    commit: str
    prepare: str
    """A file in programs/ that writes what the program needs (data, stand-ins) into its folder."""
    given: tuple[tuple[str, str, str], ...]
    """Edits of the twin too: file, what is replaced, by what."""
    edits: tuple[tuple[str, str, str], ...]
    rules: tuple[str, ...]
    lines: tuple[str, ...]
    """Texts of which the named line must contain one."""
    why: str
    source: str

    @property
    def twin(self) -> str:
        """The name of the folder of the same program without the bug."""
        how = (self.program, self.arguments, self.nproc, self.options, self.against_one, self.given)
        return f"twin-{self.framework.lower().replace(' ', '-')}-{abs(_stable(repr(how))):08x}"


def _stable(text: str) -> int:
    return functools.reduce(lambda number, byte: (number * 31 + byte) % 2**32, text.encode(), 7)


def cases() -> Iterator[Case]:
    """Yield all bugs of all frameworks."""
    for path in sorted(BUGS.glob("*.toml")):
        whole = tomllib.loads(path.read_text())
        common = {key: value for key, value in whole.items() if key != "bugs"}
        for bug in whole["bugs"]:
            each = {"options": "", "arguments": "", "against_one": False, "public": "", "commit": "", "prepare": ""}
            each |= {"given": [], "source": "", **common, **bug}
            each["given"], each["edits"] = (
                tuple((edit.get("file", each["program"]), edit["replace"], edit["by"]) for edit in each[key])
                for key in ("given", "edits")
            )
            each["rules"], each["lines"] = tuple(each.pop("rule")), tuple(each.pop("line"))
            yield Case(**each)


def run(case: Case, folder: Path, clones: Path | None, edits: tuple[tuple[str, str, str], ...]) -> None:
    """Run a program with edits under `frog check` in a folder of its own, and keep what it answers."""
    shutil.rmtree(folder, ignore_errors=True)
    if case.public:
        assert clones is not None
        clone = clones / case.public.split("/")[1]
        shutil.copytree(clone, folder, ignore=shutil.ignore_patterns(".git", "runs", "assets"))
    else:
        shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__", "prepare_*"))
        shutil.copy(OWN_STRATEGY, folder)
    if case.prepare:
        subprocess.run(
            [sys.executable, str(PROGRAMS / case.prepare)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    for file, replace, by in edits:
        path = folder / file
        text = path.read_text()
        if text.count(replace) != 1:
            raise SystemExit(f"{case.name}: {replace!r} is {text.count(replace)} times in {file}, not once")
        path.write_text(text.replace(replace, by))
    options = ["--nproc", str(case.nproc), "--threads", "1", "--deadline", "120", "--json", *shlex.split(case.options)]
    program = [*([case.program] if case.program else []), *shlex.split(case.arguments)]
    against = ["--against-one"] if case.against_one else []
    env = {**os.environ, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)}
    command = [*FROG, "check", *against, *options, "--", *program]
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        text, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        text, code = str(error), 124
    (folder / "output.txt").write_text(text)
    start = text.rfind('{\n  "run": ')
    answers = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {"rules": []}
    (folder / "answers.json").write_text(json.dumps({**answers, "exit": code}, indent=1))


def judged_again(folder: Path) -> None:
    """Apply the rules of now to the records of a run."""
    from frog.observe.check.answers import answers_as_json, read_answers

    answers = json.loads((folder / "answers.json").read_text())
    if "run" in answers:
        rules = answers_as_json(read_answers(folder / answers["run"]).answers)
        (folder / "answers.json").write_text(json.dumps({**answers, "rules": rules}, indent=1))


def broken_rules(folder: Path) -> list[dict[str, Any]]:
    """Return the rules that a run broke; raise FileNotFoundError if it was not run."""
    return [rule for rule in json.loads((folder / "answers.json").read_text())["rules"] if rule["outcome"] == "broken"]


def text_of(line: str | None) -> str:
    """Return the text of a line that an answer names as FILE:NUMBER."""
    file, _, number = (line or "").rpartition(":")
    try:
        return Path(file).read_text().splitlines()[int(number) - 1].strip()
    except (OSError, ValueError, IndexError):
        return ""


def said(case: Case, folder: Path) -> tuple[str, str]:
    """Return what is said of a program with its bug, and whether the line is right."""
    broken = broken_rules(folder / case.name)
    twin = {rule["rule"] for rule in broken_rules(folder / case.twin)}
    right = [rule for rule in broken if rule["rule"] in case.rules and rule["rule"] not in twin]
    if right:
        lines = [text_of(rule["line"]) for rule in right]
        is_named = any(part in line for line in lines for part in case.lines)
        return f"found, {right[0]['sure']}: {right[0]['rule']}", "yes" if is_named else "no"
    others = [rule["rule"] for rule in broken if rule["rule"] not in twin]
    code = json.loads((folder / case.name / "answers.json").read_text())["exit"]
    if not others and code not in (0, 1):
        return f"failed with exit code {code}", "-"
    return (f"other: {', '.join(others)}" if others else "not found"), "-"


def table(folder: Path, chosen: list[Case], first: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of the table."""
    twins: dict[str, list[str]] = {}
    totals = {"first": [0, 0, 0], "now": [0, 0, 0]}
    yield HEAD
    for framework in dict.fromkeys(case.framework for case in chosen):
        yield f"\n{framework}"
        for case in (each for each in chosen if each.framework == framework):
            twins[case.twin] = [
                f"{rule['rule']} ({rule['sure']})"
                for rule in broken_rules(folder / case.twin)
                if rule["sure"] != "possible"
            ]
            now = said(case, folder)
            then = tuple(first.get(case.name, ("-", "-")))
            for which, (what, line) in (("first", then), ("now", now)):
                totals[which][0] += what.startswith("found")
                totals[which][1] += what.startswith(("found, certain", "found, likely"))
                totals[which][2] += line == "yes"
            alarms = ", ".join(twins[case.twin]) or "quiet"
            rules = ",".join(case.rules)
            yield f"{case.name:34s} {rules:24s} {then[0]:38s} {then[1]:5s} {now[0]:38s} {now[1]:5s} {alarms}"
    accused = sum(bool(alarms) for alarms in twins.values())
    for which, (found, sure, lines) in totals.items():
        when = "at first sight" if which == "first" else "now"
        yield f"\n{when}: {found} of {len(chosen)} found, {sure} of them certain or likely, {lines} with the right line"
    yield f"{len(twins)} twins, {accused} with a certain or likely finding"


def main() -> None:
    """Run the programs, or judge what was kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clones", type=Path, metavar="FOLDER", help="has copies of the public repositories")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="bugs with a word in name or framework")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs here, and do not repeat those")
    parser.add_argument("--judge", action="store_true", help="run nothing, judge the runs in --keep again")
    parser.add_argument("--first", action="store_true", help="write what is said of bugs that were never seen before")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        chosen = [
            case
            for case in cases()
            if (args.clones or not case.public or args.judge)
            and (not args.only or any(word in f"{case.name} {case.framework}" for word in args.only))
        ]
        for case in chosen:
            for name, edits in ((case.twin, case.given), (case.name, case.given + case.edits)):
                if args.judge:
                    judged_again(folder / name)
                elif not (folder / name / "answers.json").exists():
                    print(f"{case.framework}: {name}", file=sys.stderr, flush=True)
                    run(case, folder / name, args.clones, edits)
        first = json.loads(FIRST.read_text()) if FIRST.exists() else {}
        if args.first:
            for case in chosen:
                first.setdefault(case.name, list(said(case, folder)))
            FIRST.write_text(json.dumps(first, indent=1) + "\n")
        for line in table(folder, chosen, first):
            print(line)


if __name__ == "__main__":
    main()
