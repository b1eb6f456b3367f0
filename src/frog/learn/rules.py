"""Rules that every exercise and every lab's page follow. `frog learn dev check` and the tests apply the same ones."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.units import count
from frog.learn.edits import KINDS, Kind
from frog.learn.grader.exercise import Exercise, docs_folder, find_exercises, find_pages
from frog.learn.grader.general import general
from frog.learn.readme import readme_lines
from frog.learn.text import Style

LEAST_SOLUTIONS: dict[Kind, tuple[int, int]] = {"wrong": (4, 12), "right": (0, 2)}
"""Least number of wrong and right solutions: in labs 0 to 3, and in later labs."""

README_COMMANDS = (
    "frog learn check",
    "frog learn predict",
    "torchrun --nproc_per_node=4 scripts/ddp_simulation_train.py",
    "torchrun --standalone --nproc_per_node=2 train.py",
    "tail -n 3 logs/",
    "python draw.py 3 6",
    "frog prove --set strategy.file=",
    "frog run --nproc 2 -- train config/demo.toml --set strategy.file=",
    "frog run --nproc 4 -- train config/demo.toml --set",
    "frog report",
    "frog collectives check",
    "frog check --nproc 2",
)
"""Beginnings of the commands that an exercise's README.md may show. tests/e2e names the file that runs each."""

_COLUMNS = 80  # of the terminal in which `frog learn watch` shows a README.md
_NUM_OLD_LABS = 4  # labs 0 to 3
_HOURS_TOLERANCE = 0.25
_ROW = re.compile(r"^\| `frog learn check (\S+?)` .* \|$", re.MULTILINE)
_MINUTES = re.compile(r" \| (?:(\d+) x )?(\d+) \|$")


def broken_rules(labs: Path, exercises: Sequence[Exercise]) -> list[str]:
    """Return a sentence for each rule that these exercises, or their labs, break."""
    problems = [problem for exercise in exercises for problem in exercise_problems(exercise)]
    problems += [
        problem for lab in sorted({exercise.lab for exercise in exercises}) for problem in lab_problems(labs, lab)
    ]
    return [*problems, *session_problems(labs)]


def style_problems(exercises: Sequence[Exercise]) -> list[str]:
    """Return what ruff, as `make check` runs it, reports about exercises of a clone; nothing without ruff."""
    cloned = [exercise for exercise in exercises if (_labs_of(exercise).parent / "pyproject.toml").is_file()]
    if not cloned or importlib.util.find_spec("ruff") is None:
        return []
    said = []
    for words in (["check", "--quiet", "--output-format=concise"], ["format", "--check"]):
        command = [sys.executable, "-P", "-m", "ruff", *words, *(str(exercise.folder) for exercise in cloned)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=_labs_of(cloned[0]).parent)
        said.append(done.stdout or done.stderr if done.returncode else "")
    unformatted = re.findall(r"(?:Would reformat: |--> )(\S+?\.py)", said[1])
    return said[0].splitlines() + [f"{path}: not formatted; run ruff format" for path in dict.fromkeys(unformatted)]


def exercise_problems(exercise: Exercise) -> list[str]:
    """Return a sentence for each rule that an exercise breaks; each sentence begins with the exercise's id."""
    try:
        _ = exercise.manifest
    except UsageError as problem:
        return [f"{exercise.id}: {problem}"]
    return [f"{exercise.id}: {problem}" for rule in _RULES for problem in _found_by(rule, exercise)]


def _found_by(rule: Callable[[Exercise], Iterator[str]], exercise: Exercise) -> Iterator[str]:
    try:
        yield from rule(exercise)
    except FileNotFoundError:
        return  # _check_files reports it
    except (OSError, SyntaxError, UnicodeDecodeError, UsageError) as problem:
        yield str(problem).removeprefix(f"{exercise.id}: ")


def _check_files(exercise: Exercise) -> Iterator[str]:
    manifest, folder = exercise.manifest, exercise.folder
    for name in ("README.md", "check.py", *exercise.file_names):
        if not (folder / name).is_file():
            yield f"has no file {name}"
    for name in manifest.uses:
        if not (_labs_of(exercise) / name / "manifest.toml").is_file() or name >= exercise.id:
            yield f"manifest.toml uses {name}, which is not an earlier exercise"
            return
    exercise.used()
    reference = {path.name for path in (folder / "reference").glob("*")} - {"__pycache__"}
    if reference != set(manifest.files):
        yield f"reference/ contains {_listed(reference)}, expected {_listed(manifest.files)}"
    elif exercise.stub() == exercise.reference():
        yield "the stub is the same as the reference"
    first = manifest.files[0]
    if first.endswith(".py"):
        defined = {getattr(node, "name", None) for node in ast.parse(exercise.stub()[first], first).body}
        for name in manifest.functions:
            if name not in defined:
                yield f"manifest.toml lists the function {name}, which {first} does not define"


def _check_solutions(exercise: Exercise) -> Iterator[str]:
    solutions = {kind: exercise.solutions(kind) for kind in KINDS}
    for kind, least in LEAST_SOLUTIONS.items():
        expected = least[exercise.lab >= _NUM_OLD_LABS]
        num_solutions = len(solutions[kind])
        if num_solutions < expected:
            yield f"has {count(num_solutions, f'{kind} solution')}, expected at least {expected}"
    ids = {known.id for known in exercise.manifest.misconceptions}
    shown = {solution.misconception: solution for solution in solutions["wrong"]}
    for name in sorted(shown.keys() - ids - general().keys()):
        yield f"manifest.toml has no misconception {name}, which {shown[name].title} is named after"
    for name in sorted(ids - shown.keys()):
        yield f"no wrong solution shows the misconception {name} of manifest.toml"
    first: dict[tuple[bytes, ...], str] = {tuple(exercise.reference().values()): "the reference"}
    for solution in chain.from_iterable(solutions[kind] for kind in KINDS):
        files, problems = solution.applicable_files()
        if problems:
            yield from (f"{solution.title}: {problem}" for problem in problems)
        elif (same := first.setdefault(tuple(files.values()), solution.title)) != solution.title:
            yield f"{solution.title} is the same as {same}"


def _check_readme(exercise: Exercise) -> Iterator[str]:
    text = exercise.readme
    if "You will be able to" not in text:
        yield "README.md does not contain the words: You will be able to"
    lines = readme_lines(text, Style(_COLUMNS))
    for line in lines:
        if len(line) > _COLUMNS:
            yield f"README.md: a line has {len(line)} columns in a terminal, expected at most {_COLUMNS}: {line}"
    body = re.sub(r"^```.*$|^\|[-|:]+$|\]\([^)]*\)", "", text.partition("\n")[2], flags=re.MULTILINE)
    words = zip_longest(re.findall(r"\w+", " ".join(lines)), re.findall(r"\w+", body), fillvalue="(none)")
    for shown, written in words:
        if shown != written:
            yield f"README.md: a terminal shows the word {shown} in place of {written}; write its Markdown more plainly"
            break
    for command in commands_in(text):
        begins = [start for start in README_COMMANDS if command.startswith(start)]
        if not begins:
            yield f"README.md: no test runs `{command}`; add its beginning to README_COMMANDS, with a test that does"
        elif begins[0] == "frog learn check" and command.split()[3:4] != [exercise.number]:
            yield f"README.md: found `{command}`, expected `frog learn check {exercise.number}`"
    read = exercise.manifest.read
    pages = find_pages(_labs_of(exercise))
    if read is not None and pages and read.partition("#")[0].removeprefix("docs/") not in pages:
        yield f"manifest.toml: read = {read}: learners do not get this page; see READ in docs/learn/exercises.md"


def commands_in(text: str) -> list[str]:
    """Return the commands in a page's `console` blocks; a backslash at the end joins a line with the next."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def _check_judge(exercise: Exercise) -> Iterator[str]:
    """Check that a function that explains a difference always rejects: a looser comparison at its end would pass it."""
    tree = ast.parse((exercise.folder / "check.py").read_text(), "check.py")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    rejecting = {function.name for function in functions if _never_returns(function)}
    for function in functions:
        if _never_returns(function) and not ends_in_a_rejection(function.body, rejecting):
            yield f"check.py: {function.name} is annotated NoReturn, but may return without a rejection"
        if exercise.lab < 2 and function.name.startswith("explain") and not _never_returns(function):
            yield f"check.py: {function.name} explains a difference, so it must always reject: annotate it -> NoReturn"


def _never_returns(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "NoReturn"


def ends_in_a_rejection(body: Sequence[ast.stmt], rejecting: set[str]) -> bool:
    """Return True if no path reaches the end of this block. `rejecting`: functions that never return."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and all(ends_in_a_rejection(part, rejecting) for part in (last.body, last.orelse))
    if isinstance(last, ast.Raise):
        return True
    call = last.value if isinstance(last, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ("reject", "reject_different")
    return isinstance(call.func, ast.Name) and call.func.id in rejecting


def _check_row(exercise: Exercise) -> Iterator[str]:
    """Check the exercise's row in the table of its lab's page."""
    name = f"labs/lab{exercise.lab}.md"
    pages, minutes = find_pages(_labs_of(exercise)), exercise.manifest.minutes
    if not pages:
        return  # labs of one's own need no pages
    if name not in pages:
        yield f"docs/{name} does not exist; it needs a row for the exercise"
        return
    row = f"| `frog learn check {exercise.id}` | WHAT IT TEACHES | {minutes} |"
    rows = [match[0] for match in _ROW.finditer(pages[name].read_text()) if match[1] == exercise.id]
    if len(rows) != 1:
        yield f"docs/{name} has {len(rows) or 'no'} rows for it, expected one: {row}"
    elif (said := _MINUTES.search(rows[0])) is None:
        yield f"docs/{name}: its row does not end with its minutes, expected: {row}"
    elif (total := int(said[1] or 1) * int(said[2])) != minutes:
        yield f"docs/{name}: its row says {total} minutes, but manifest.toml {minutes}"


_RULES = (_check_files, _check_solutions, _check_readme, _check_judge, _check_row)


def lab_problems(labs: Path, lab: int) -> list[str]:
    """Return a sentence for each rule that a lab's folder, page or hours break."""
    exercises = [exercise for exercise in find_exercises(labs) if exercise.folder.parent.name == f"lab{lab}"]
    problems = [*_folder_problems(labs / f"lab{lab}", exercises)]
    pages, name = find_pages(labs), f"labs/lab{lab}.md"
    if name in pages:
        text = pages[name].read_text()
        unknown = {match[1] for match in _ROW.finditer(text)} - {exercise.id for exercise in exercises}
        problems += [f"docs/{name} has a row for {id}, which does not exist" for id in sorted(unknown)]
        hours = sum(exercise.manifest.minutes for exercise in exercises) / 60
        said = re.search(r"about ([\d.]+) hours more", text)
        if lab > 0 and said is None:
            problems.append(f"docs/{name} does not say how long its exercises take: about {hours:.1f} hours more")
        if said and abs(float(said[1]) - hours) > _HOURS_TOLERANCE:
            problems.append(f"docs/{name} says about {said[1]} hours more, but its exercises take {hours:.1f}")
        problems += _programme_problems(docs_folder(labs), lab, hours)
    return problems


def _folder_problems(folder: Path, exercises: Sequence[Exercise]) -> Iterator[str]:
    known = {exercise.folder for exercise in exercises}
    for path in sorted(folder.glob("*/")):
        if path not in known and path.name[0] not in "._":
            yield f"{path}: has no manifest.toml"
    numbers = [exercise.number for exercise in exercises]
    for exercise in exercises:
        if numbers.count(exercise.number) > 1:
            yield f"{exercise.id}: another exercise has the number {exercise.number} too"


def _programme_problems(docs: Path, lab: int, hours: float) -> Iterator[str]:
    """Compare the hours in the programme for instructors, which a clone contains."""
    programme = docs / "teach/programme.md"
    for row in table_rows(programme.read_text()) if programme.is_file() else ():
        said = re.match(r"its exercises, ([\d.]+) hours", row[2]) if len(row) > 2 else None
        is_optional = row[0].endswith("if you like") and f"(../labs/lab{lab}.md)" in row[1]
        if said and is_optional and abs(float(said[1]) - hours) > _HOURS_TOLERANCE:
            yield f"docs/teach/programme.md says {said[1]} hours for lab {lab}, but its exercises take {hours:.1f}"


def session_problems(labs: Path) -> Iterator[str]:
    """Compare the minutes of exercises in the instructors' sheets, which a clone contains, with those in manifests."""
    needed = {exercise.number: exercise.manifest.minutes for exercise in find_exercises(labs)}
    for sheet in sorted((docs_folder(labs) / "teach").glob("session-*.md")):
        _, _, text = sheet.read_text().partition("\n## The lab, ")
        for row in table_rows(text.partition("\n## ")[0]):
            numbers = re.findall(r"frog learn watch (\d\.\d+)", row[2]) if row[0].isdecimal() else []
            total = sum(needed.get(number, 0) for number in numbers)
            if numbers and total > int(row[1]):
                yield f"docs/teach/{sheet.name} allows {row[1]} minutes for {_listed(numbers)}, which take {total}"


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of each row of a page's tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def _labs_of(exercise: Exercise) -> Path:
    return exercise.folder.parents[1]


def _listed(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
