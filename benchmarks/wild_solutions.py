"""Check public solutions with the labs' grader, and compare with a reader's verdict.

    python benchmarks/wild_solutions.py MIRRORS [--only WORD] [--json FILE]

MIRRORS holds one bare clone per repository, OWNER+NAME/repo. Nothing is downloaded, and no code of theirs is kept:
an adapter is added to one file of a solution, and the grader runs both in its sandbox. `wild_solutions.toml` lists the
solutions with the verdict that follows from reading them, `wild_adapters.py` has an adapter for each exercise.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wild_adapters import ABSENT, ADAPTERS

from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import find_exercise

SOLUTIONS = Path(__file__).with_suffix(".toml")
LABS = Path(__file__).parents[1] / "labs"
AVAILABLE = {*sys.stdlib_module_names, "torch", "numpy"}
STAND_INS = {"Linear", "Embedding"}
"""Names that an adapter defines, and solutions may import under others."""
RENAMED = {"ColumnParallelLinear": "Column", "RowParallelLinear": "Row"}
"""Classes of solutions whose names the exercise's own have."""
WORDS = {"NAME": "", "MORE": (), "CALL": "", "COLUMN": "", "ROW": "", "FINISH": "finish_gradient_synchronization"}
"""Words of an adapter that a solution's entry replaces, with what they are if it has none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("--only", default="", help="a word in the repository, class or exercise")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    listed = tomllib.loads(SOLUTIONS.read_text())["solutions"]
    rows = list(check([one for one in listed if args.only in " ".join(map(str, one.values()))], args.mirrors))
    alike = sum(is_alike(row["found"], row["verdict"]) for row in rows)
    print(f"{alike} of {len(rows)} solutions got the reader's verdict")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def check(solutions: list[dict[str, Any]], mirrors: Path) -> Iterator[dict[str, Any]]:
    with Grader() as grader:
        for one in solutions:
            exercise = find_exercise(one["exercise"])
            files = exercise.stub() | {exercise.manifest.files[0]: adapted(one, mirrors).encode()}
            verdict = grader.check(exercise, files)
            found = "passed" if verdict.status == "passed" else verdict.misconception or verdict.status
            mark = "  " if is_alike(found, one["verdict"]) else "! "
            solution = f"{one['repository']}@{one['commit'][:7]} {one['name']}"
            print(f"{mark}{found:24} {exercise.number:5} {solution}", flush=True)
            if mark != "  ":
                print(f"    read: {one['verdict']}; {verdict.observed or ''}", flush=True)
            yield one | {"found": found, "observed": verdict.observed}


def is_alike(found: str, verdict: str) -> bool:
    """A reader who says `rejected` names no misconception."""
    return found == verdict or (verdict == "rejected" and found != "passed")


def adapted(one: dict[str, Any], mirrors: Path) -> str:
    """Return a solution's files in one, without imports of each other and without its program, and the adapter."""
    git = ["git", "-C", str(mirrors / one["repository"].replace("/", "+") / "repo"), "show"]
    files = [f"{one['commit']}:{path}" for path in (*one.get("uses", ()), one["file"])]
    texts = [subprocess.run([*git, file], capture_output=True, text=True, check=True).stdout for file in files]
    tree = Available().visit(ast.parse("\n".join(texts)))
    tree.body = [node for node in tree.body if is_kept(node, one.get("keep"))]
    adapter = ADAPTERS[one["exercise"]]
    after = re.sub(rf"\b({'|'.join(WORDS)})\b", lambda word: replacement(one, word[0]), adapter.after)
    solution = ast.unparse(ast.fix_missing_locations(tree))
    for name, new in RENAMED.items():
        solution = re.sub(rf"\b{name}\b", new, solution)
    parts = ["from __future__ import annotations", ABSENT, adapter.before, given(one), one.get("before", "")]
    return "\n".join([*parts, solution, after])


def replacement(one: dict[str, Any], word: str) -> str:
    value = one.get(word.lower(), WORDS[word])
    return value if isinstance(value, str) else str(tuple(value))


def given(one: dict[str, Any]) -> str:
    """Return the exercise's reference if a solution has only one of its functions."""
    return "" if "given" not in one else (LABS / one["exercise"] / "reference" / one["given"]).read_text()


class Available(ast.NodeTransformer):
    """Drops imports of modules that are not here, also in functions, and calls that wait for a GPU."""

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        node.names = [name for name in node.names if is_here(name.name) and "nvtx" not in name.name]
        return node if node.names else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        is_known = node.level == 0 and node.module != "__future__" and is_here(node.module or "")
        names = [name for name in node.names if is_known and name.name not in ("override", "nvtx")]
        if names:
            node.names = names
            return node
        others = [name for name in node.names if name.asname and name.name in STAND_INS]
        return [ast.parse(f"{name.asname} = {name.name}").body[0] for name in others] or ast.Pass()

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return ast.Pass() if ast.unparse(node.value).startswith("torch.cuda.synchronize(") else node


def is_here(module: str) -> bool:
    return module.split(".")[0] in AVAILABLE


def is_kept(node: ast.stmt, names: list[str] | None) -> bool:
    """True for an import, a class, a function or a value; `names` are the only ones that a solution needs."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return names is None or node.name in names
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return names is None or any(ast.unparse(target) in names for target in targets)
    return False


if __name__ == "__main__":
    main()
