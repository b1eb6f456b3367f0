"""The coverage table: each sentence that the course was asked for with has a place, and the place is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
TABLE = DOCS / "teach/coverage.md"
CELLS = re.compile(r"(?<!\\)\|")
ROWS = [
    [cell.strip() for cell in CELLS.split(line)[1:-1]]
    for line in TABLE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| the brief says")
]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them, and those that it sets itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 224, "every sentence and bullet of the five documents, headings left out"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_no_cell_is_empty(row: list[str]) -> None:
    quote, how, where = row
    assert quote
    assert how in ("taught", "shown", "tried", "graded")
    assert LINK.search(where)
    assert how != "graded" or "exercise" in where or "quiz" in where
    assert how != "shown" or "demo" in where


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_sections_that_a_page_links_to_are_there(page: Path) -> None:
    missing = []
    for target, anchor in LINK.findall(page.read_text()):
        other = (page.parent / target).resolve() if target else page
        if anchor and "://" not in target and other.suffix == ".md" and anchor not in anchors(other):
            missing.append(f"{target}#{anchor}")
    assert missing == []
