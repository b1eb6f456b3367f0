"""The glossary: links lead to its terms, and the pages of the course link a term where it is used first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
READ_FIRST = ("overview", "prerequisites", "curriculum", "tutorial-guide")
"""The pages of the course, in the order in which they are read."""
TERM = re.compile(r'^\| <a id="([^"]+)"></a>([^|]+) \|', re.MULTILINE)
GLOSSARY = (DOCS / "glossary.md").read_text()
TERMS = {
    anchor: [re.sub(r" \(.*\)", "", name).strip() for name in names.split(",")]
    for anchor, names in TERM.findall(GLOSSARY)
}
COMMON = re.findall(
    r"\w+",
    "run step report page record stage link task note lock fault rule phase scaling worker event request window attempt"
    " resume bundle campaign batch tree ring lab exercise folder buffer",
)
"""Terms that are words of every day too: they are linked where they are meant, which no test can tell."""


NOT_PROSE = re.compile(r"^```.*?^```|`[^`]*`|\[[^\]]*\]\([^)]*\)", re.DOTALL | re.MULTILINE)
"""Code, and links."""


def linked(text: str) -> set[str]:
    return set(re.findall(r"glossary\.md#([\w-]+)", text))


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_to_terms(page: Path) -> None:
    assert linked(page.read_text()) - set(TERMS) == set()


def test_a_term_stands_once() -> None:
    anchors = [anchor for anchor, _ in TERM.findall(GLOSSARY)]
    assert sorted({anchor for anchor in anchors if anchors.count(anchor) > 1}) == []
    rows = [line for line in GLOSSARY.splitlines() if line.startswith("|") and not line.startswith(("| term", "|---"))]
    assert [row for row in rows if not row.startswith('| <a id="')] == [], "what a link can lead to"


def first_uses() -> dict[str, str]:
    """For each term, the first of the course's pages that uses it outside of code and links."""
    found: dict[str, str] = {}
    for name in READ_FIRST:
        text = NOT_PROSE.sub(" ", (DOCS / f"{name}.md").read_text())
        for anchor, names in TERMS.items():
            used = any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text) for one in names if one not in COMMON)
            if used and anchor not in found:
                found[anchor] = name
    return found


def test_a_term_is_linked_by_the_first_page_that_uses_it() -> None:
    unlinked = []
    for anchor, page in first_uses().items():
        up_to_it = READ_FIRST[: READ_FIRST.index(page) + 1]
        if not any(anchor in linked((DOCS / f"{name}.md").read_text()) for name in up_to_it):
            unlinked.append((anchor, page))
    assert unlinked == []


def test_the_pages_of_the_course_link_many_terms() -> None:
    assert len(set().union(*(linked((DOCS / f"{name}.md").read_text()) for name in READ_FIRST))) > 70
