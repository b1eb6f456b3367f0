"""The glossary: links lead to its terms, and the pages of the course link a term where it is used first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
READ_FIRST = ("overview", "prerequisites", "curriculum", "tutorial-guide")
"""The pages of the course, in the order in which they are read."""
LOOKED_UP = {"architecture", "exercises", "glossary", "log", "run-folder", "troubleshooting"}
"""Pages that nobody learns from first; so are those for teachers and the decisions, in folders of their own."""
LEARNED_FROM = sorted(
    page
    for page in (*DOCS.glob("*.md"), *DOCS.glob("labs/*.md"), *DOCS.glob("scale/*.md"))
    if page.stem not in {*READ_FIRST, *LOOKED_UP}
)
OTHERWISE_MEANT = {("losing-ranks", "loss"), ("launchers", "process-group")}
"""The loss of a rank; a group of processes of the system."""
TERM = re.compile(r'^\| <a id="([^"]+)"></a>([^|]+) \|', re.MULTILINE)
GLOSSARY = (DOCS / "glossary.md").read_text()
TERMS = {
    anchor: [re.sub(r" \(.*\)", "", name).strip() for name in names.split(",")]
    for anchor, names in TERM.findall(GLOSSARY)
}
COMMON = re.findall(
    r"\w+",
    "run step report page record stage link task note lock fault rule phase scaling worker event request window attempt"
    " resume bundle campaign batch tree ring lab exercise folder buffer door cause facts verdict store kernel peer"
    " profile restart trial switch token partition prediction parameter allocation schedule port probe manifest trap"
    " advice",
)
"""Terms that are words of every day too: they are linked where they are meant, which no test can tell."""


NOT_PROSE = re.compile(
    r"^```.*?^```|``.*?``|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<!--.*?-->|^#.*?$|<[^>]+>|^\|[^\n]*\n(?=\|-)",
    re.DOTALL | re.MULTILINE,
)
"""Code, links, comments, headings, heads of tables."""


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


def used(page: Path) -> set[str]:
    """The terms that a page uses in its prose."""
    text = NOT_PROSE.sub(" ", page.read_text())
    return {
        anchor
        for anchor, names in TERMS.items()
        if any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text) for one in names if one not in COMMON)
    }


def first_uses() -> dict[str, str]:
    """For each term, the first of the course's pages that uses it."""
    found: dict[str, str] = {}
    for name in READ_FIRST:
        for anchor in used(DOCS / f"{name}.md"):
            found.setdefault(anchor, name)
    return found


@pytest.mark.parametrize("page", LEARNED_FROM, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_to_learn_from_links_each_term_that_it_uses(page: Path) -> None:
    unlinked = used(page) - linked(page.read_text())
    assert sorted(anchor for anchor in unlinked if (page.stem, anchor) not in OTHERWISE_MEANT) == []


def test_a_term_is_linked_by_the_first_page_that_uses_it() -> None:
    unlinked = []
    for anchor, page in first_uses().items():
        up_to_it = READ_FIRST[: READ_FIRST.index(page) + 1]
        if not any(anchor in linked((DOCS / f"{name}.md").read_text()) for name in up_to_it):
            unlinked.append((anchor, page))
    assert unlinked == []


def test_the_pages_of_the_course_link_many_terms() -> None:
    assert len(set().union(*(linked((DOCS / f"{name}.md").read_text()) for name in READ_FIRST))) > 70
