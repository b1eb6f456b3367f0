"""The coverage table: each sentence of the brief has a place in the course, and its evidence is really there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
TABLE = DOCS / "development/coverage.md"
LABS = DOCS.parent / "labs"
CELLS = re.compile(r"(?<!\\)\|")
ROWS = [
    [cell.strip() for cell in CELLS.split(line)[1:-1]]
    for line in TABLE.read_text().partition("## Overview")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| the brief says")
]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
EVIDENCE = re.compile(r"`([^`]+)`")


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub and the site make from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings and its explicit ones."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    made = {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


def section(page: Path, anchor: str) -> str:
    """Return the text under the heading with this anchor, including subsections; without an anchor, the full page."""
    if not anchor:
        return page.read_text()
    kept, level, fenced = [], 0, False
    for line in page.read_text().splitlines():
        fenced ^= line.startswith("```")
        heading = None if fenced else re.match(r"(#+) (.+)", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and not level and anchor_of(heading[2]) == anchor:
            level = len(heading[1])
        if level:
            kept.append(line)
    return "\n".join(kept) + "\n"


def commands(text: str) -> str:
    """Return the commands of a text's console blocks; join lines that end in a backslash."""
    lines = "\n".join(CONSOLE.findall(text)).replace("\\\n", " ").splitlines()
    return "\n".join(line for line in lines if line.startswith("$ "))


def graded_by(path: Path) -> str:
    """Return the check and manifest of an exercise, or the ids of a quiz; empty for other files."""
    if path.name == "quiz.toml":
        return "\n".join(question["id"] for question in tomllib.loads(path.read_text())["questions"])
    if path.name == "README.md" and path.parents[2] == LABS:
        return "\n".join(
            (path.parent / name).read_text()
            for name in ("manifest.toml", "check.py", "ranks.py")
            if (path.parent / name).is_file()
        )
    return ""


def played_by(path: Path) -> str:
    """Return the commands of a demo; empty for other files."""
    if path.parent.name != "sessions":
        return ""
    return "\n".join(step["run"] for step in tomllib.loads(path.read_text())["steps"])


def held_at(how: str, path: Path, anchor: str) -> str:
    """Return the text that a link offers as evidence for this kind of claim. The table itself is never evidence."""
    if path == TABLE or not path.is_file():
        return ""
    if how == "graded":
        return graded_by(path)
    if how == "shown":
        return played_by(path)
    if how == "tried":
        return commands(section(path, anchor)) if path.suffix == ".md" else ""
    return section(path, anchor)


def not_found(row: list[str]) -> list[str]:
    """Return the parts of a row's evidence that none of its links contains."""
    _, how, where, evidence = row
    links = [((TABLE.parent / target).resolve() if target else TABLE, anchor) for target, anchor in LINK.findall(where)]
    held = "\n".join(held_at(how, path, anchor) for path, anchor in links).lower()
    return [piece for piece in EVIDENCE.findall(evidence) if piece.lower() not in held]


def test_coverage_table_is_complete() -> None:
    assert len(ROWS) == 224, "every sentence and bullet of the five documents, without headings"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_coverage_row_is_supported_by_its_evidence(row: list[str]) -> None:
    quote, how, where, evidence = row
    assert quote
    assert how in ("taught", "shown", "tried", "graded")
    assert LINK.search(where)
    assert EVIDENCE.search(evidence)
    assert not_found(row) == []


FALSE_CLAIMS = {
    "a lab whose section has no such command": ("tried", "[lab 2](../labs/lab2.md#test-the-sampler)", "`tail -f`"),
    "a word in a page's sentence, not in a command": ("tried", "[lab 0](../labs/lab0.md#prerequisites)", "`tail -f`"),
    "an exercise that judges something else": (
        "graded",
        "[exercise 0.1](../../labs/lab0/01_one_formula/README.md)",
        "`nn.Module`",
    ),
    "a page in place of an exercise": ("graded", "[lab 1](../labs/lab1.md)", "`gradient`"),
    "a question that the quiz does not have": (
        "graded",
        "[quiz](../../labs/lab0/quiz.toml)",
        "`what-is-a-tensor`",
    ),
    "a command that the demo does not play": (
        "shown",
        "[demo](../../src/frog/learn/demo/sessions/a.toml)",
        "`torchrun`",
    ),
    "a section that does not explain it": ("taught", "[lab 0](../labs/lab0.md#tools)", "`kubernetes`"),
    "the table itself": ("taught", "[this table](coverage.md)", "`coverage`"),
}


@pytest.mark.parametrize("why", FALSE_CLAIMS)
def test_false_coverage_claim_is_detected(why: str) -> None:
    assert not_found(["a sentence", *FALSE_CLAIMS[why]]) != []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_linked_sections_exist(page: Path) -> None:
    missing = []
    for target, anchor in LINK.findall(page.read_text()):
        other = (page.parent / target).resolve() if target else page
        if anchor and "://" not in target and other.suffix == ".md" and anchor not in anchors(other):
            missing.append(f"{target}#{anchor}")
    assert missing == []
