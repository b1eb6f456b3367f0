"""`python -m tools.affected`: print what the changes since a commit reach, or write it for `pytest --affected`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tools.affected.changes import UnknownBaseError, changed_files, current_commit, verified_commit
from tools.affected.project import Project, read_project
from tools.affected.selection import Selection, draw_tenth, everything, reached

ROOT = Path(__file__).parents[2]
CACHE = Path("build/affected/facts.pickle")


def main() -> int:
    """Print the selection; write it to a file on request."""
    parser = argparse.ArgumentParser(prog="python -m tools.affected", description=__doc__)
    parser.add_argument("--base", help="commit to compare with; default: the one in .ci/verified")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the selection as JSON")
    parser.add_argument("--ci", action="store_true", help="add all fast tests, and a tenth of what is not reached")
    args = parser.parse_args()
    project = read_project(ROOT, ROOT / CACHE)
    selection = select(project, args.base)
    if args.ci:
        draw_tenth(project, selection, current_commit(ROOT))
    if args.write is not None:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(json.dumps({**asdict(selection), "all_fast": args.ci}, indent=1))
    print("\n".join(described(project, selection)))
    return 0


def select(project: Project, base: str | None) -> Selection:
    """Return what the changes since a commit reach; everything if the repository lacks it."""
    try:
        return reached(project, changed_files(project.root, base or verified_commit(project.root)))
    except UnknownBaseError as error:
        return everything(project, f"what changed is not known: {error}")


def described(project: Project, selection: Selection) -> Iterator[str]:
    """Yield a line for each file and case that is reached, and one for each folder of files that are not."""
    if selection.everything is not None:
        yield f"everything: {selection.everything}"
        return
    for name, why in {**selection.files, **selection.cases}.items():
        yield f"{name}: {why}"
    totals = Counter(test.rpartition("/")[0] for test in project.tests)
    missed = Counter(test.rpartition("/")[0] for test in project.tests if test not in selection.files)
    for folder, count in sorted(missed.items()):
        yield f"not reached: {folder}, {count} of {totals[folder]} files"
    kinds = {"exercises": [*project.exercises], "pages": project.pages, "benchmarks": [*project.benchmarks]}
    numbers = {what: sum(name in selection.cases for name in names) for what, names in kinds.items()}
    for what, names in kinds.items():
        if numbers[what] < len(names):
            yield f"not reached: {len(names) - numbers[what]} of {len(names)} {what}"
    if selection.drawn:
        yield f"also, as this commit's tenth of what is not reached: {', '.join(selection.drawn)}"
    counts = [f"{numbers[what]} of {len(names)} {what}" for what, names in kinds.items()]
    yield f"reached: {len(selection.files)} of {len(project.tests)} test files, {', '.join(counts)}"


if __name__ == "__main__":
    sys.exit(main())
