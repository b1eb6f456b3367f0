"""The site's navigation. A test checks that it has every page of docs/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.site.pages import exercise_title
from tools.site.reference import API

_LABS = "labs"


def navigation(root: Path, examples: dict[str, str]) -> list[Any]:
    """Return the sections with their pages.

    examples: title and path of each page that shows a real run; without any, the section is omitted.
    """
    return [
        {
            "Start": [
                {"Frog": "index.md"},
                *_docs("tour", "glossary"),
                {"README": "project.md"},
                {"Changelog": "CHANGELOG.md"},
            ]
        },
        {
            "Learn": [
                *_docs("learn/course", "learn/learn", "learn/pictures"),
                *(_lab(root, number) for number in range(7)),
                "notebooks/README.md",
                {
                    "Teach": [
                        "docs/teach/README.md",
                        *_teaching(root),
                        {"Slides": _slides(root)},
                    ]
                },
            ]
        },
        {
            "Train": [
                *_docs("train/tasks", "train/data", "train/profile", "train/strategies", "train/own-strategy"),
                *_docs("train/elastic", "train/guard-model"),
                *_docs("launch/world", "launch/launchers", "observe/simulated-gpus"),
                *([{"Real runs": [{title: page} for title, page in examples.items()]}] if examples else []),
            ]
        },
        {
            "Understand": _docs(
                "observe/your-program",
                "observe/watch",
                "observe/check",
                "observe/run-folder",
                "troubleshooting",
                "observe/known-errors",
            )
        },
        {"Break and measure": _docs("measure/chaos", "launch/network", "measure/collectives")},
        {
            "Scale": [
                *_docs("plan/plan", "plan/program", "plan/kinds", "cluster/slurm", "cluster/kubernetes"),
                {"From LOCAL to GPU": _docs("scale/README", "scale/first-hour")},
            ]
        },
        {
            "Reference": [
                "reference/commands.md",
                "reference/run-file.md",
                "reference/events.md",
                {"Python API": [f"reference/api/{name}.md" for name in API]},
            ]
        },
    ]


def _docs(*names: str) -> list[str]:
    return [f"docs/{name}.md" for name in names]


def _lab(root: Path, number: int) -> dict[str, list[Any]]:
    exercises = [{exercise_title(root / page): page} for page in _in(root, f"{_LABS}/lab{number}/*/README.md")]
    return {f"Lab {number}": [f"docs/labs/lab{number}.md", *exercises, {"Quiz": f"{_LABS}/lab{number}/quiz.toml.md"}]}


def _teaching(root: Path) -> list[str]:
    first = [f"docs/teach/{name}.md" for name in ("prepare", *(f"session-{letter}" for letter in "abcde"))]
    others = [page for page in _in(root, "docs/teach/*.md") if page not in [*first, "docs/teach/README.md"]]
    return first + others


def _slides(root: Path) -> list[str]:
    return [page for page in _in(root, "tools/slides/*.md") if not page.endswith("README.md")]


def _in(root: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
