"""The site's structure. A test holds that every page of docs/ has its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frog.site.pages import exercise_title
from frog.site.reference import API_ROOMS

_LABS = "src/frog/course/labs"


def navigation(root: Path, examples: dict[str, str]) -> list[Any]:
    """Sections with their pages.

    examples: title and path of each page that shows a real run.
    """
    return [
        {
            "Start": [
                {"Frog": "README.md"},
                "docs/overview.md",
                "docs/prerequisites.md",
                "docs/curriculum.md",
                "docs/glossary.md",
                "docs/troubleshooting.md",
                {"Changelog": "CHANGELOG.md"},
                {"Contributing": "CONTRIBUTING.md"},
            ]
        },
        {
            "Learn": [
                "docs/learn.md",
                *(_lab(root, number) for number in range(4)),
                "notebooks/README.md",
                "docs/guard-model.md",
            ]
        },
        {"Teach": ["docs/teach/README.md", "docs/tutorial-guide.md", *_teaching(root), {"Slides": _slides(root)}]},
        {
            "Strategies": [
                *(f"docs/{name}.md" for name in ("strategies", "collectives", "explain", "peers")),
                {"Real runs": [{t: p} for t, p in examples.items()]},
            ]
        },
        {
            "Cluster": [
                *(
                    f"docs/{name}.md"
                    for name in (
                        "launchers",
                        "nodes",
                        "losing-ranks",
                        "network",
                        "slow-links",
                        "slurm",
                        "kubernetes",
                        "chaos",
                    )
                ),
                {"From LOCAL to GPU": [f"docs/scale/{name}.md" for name in ("README", "first-hour", "cost")]},
            ]
        },
        {
            "Reference": [
                "reference/commands.md",
                "reference/run-file.md",
                "docs/run-folder.md",
                "reference/events.md",
                {"Python API": [f"reference/api/{room}.md" for room in API_ROOMS]},
                "docs/exercises.md",
            ]
        },
        {"Decisions": ["docs/architecture.md", *_in(root, "docs/decisions/*.md"), "docs/log.md"]},
    ]


def _lab(root: Path, number: int) -> dict[str, list[Any]]:
    exercises = [{exercise_title(root / page): page} for page in _in(root, f"{_LABS}/lab{number}/*/README.md")]
    return {f"Lab {number}": [f"docs/labs/lab{number}.md", *exercises, {"Quiz": f"{_LABS}/lab{number}/quiz.toml.md"}]}


def _teaching(root: Path) -> list[str]:
    first = [f"docs/teach/{name}.md" for name in ("prepare", "session-a", "session-b", "session-c")]
    others = [page for page in _in(root, "docs/teach/*.md") if page not in [*first, "docs/teach/README.md"]]
    return first + others


def _slides(root: Path) -> list[str]:
    return [page for page in _in(root, "slides/*.md") if not page.endswith("README.md")]


def _in(root: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
