"""The glossary: its terms can be linked to, and the site links each term's first use on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.site.glossary import TERM, is_learned_from, link_terms, names_of_terms

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(DOCS.rglob("*.md"))]
LEARNED_FROM = [page for page in PAGES if is_learned_from(page)]
GLOSSARY = (DOCS / "glossary.md").read_text()
TERMS = names_of_terms(GLOSSARY)


def linked(text: str) -> set[str]:
    return set(re.findall(r"glossary\.md#([\w-]+)", text))


def test_glossary_links_lead_to_terms() -> None:
    assert len(PAGES) > 50
    wrong = {page: linked((ROOT / page).read_text()) - set(TERMS) for page in PAGES}
    assert {page: anchors for page, anchors in wrong.items() if anchors} == {}


def test_every_glossary_term_is_a_heading_with_an_anchor() -> None:
    anchors = [anchor for anchor, _ in TERM.findall(GLOSSARY)]
    assert len(anchors) > 150
    assert sorted({anchor for anchor in anchors if anchors.count(anchor) > 1}) == []
    headings = [line for line in GLOSSARY.splitlines() if line.startswith("###")]
    assert [line for line in headings if not TERM.match(line)] == [], "a link could not lead to this heading"
    assert [line for line in GLOSSARY.splitlines() if line.startswith("|")] == [], "search finds headings, not rows"


def test_every_glossary_term_has_one_paragraph_of_full_sentences() -> None:
    entries = re.split(r"^##+ ", GLOSSARY, flags=re.MULTILINE)[1:]
    terms = [entry.strip().split("\n\n") for entry in entries if entry.startswith("<a id=")]
    assert [parts for parts in terms if len(parts) != 2 or not parts[1].endswith((".", "…"))] == []


def built(page: str) -> str:
    """Return a page's text with the links that the site adds."""
    return link_terms(page, (ROOT / page).read_text(), TERMS)


def test_pages_contain_no_links_to_glossary_terms() -> None:
    assert len(LEARNED_FROM) > 15
    assert [page for page in LEARNED_FROM if linked((ROOT / page).read_text())] == []


def problems_of_links(page: str) -> Iterator[str]:
    """Yield what is wrong with the links that the site adds to a page."""
    text, with_links = (ROOT / page).read_text(), built(page)
    anchors = re.findall(r"glossary\.md#([\w-]+)", with_links)
    yield from (f"{page}: {anchor} is linked more than once" for anchor in set(anchors) if anchors.count(anchor) > 1)
    yield from (f"{page}: {anchor} is not a term" for anchor in set(anchors) - TERMS.keys())
    if re.sub(r"\[([^][]*)\]\((?:\.\./)*glossary\.md#[\w-]+\)", r"\1", with_links) != text:
        yield f"{page}: more than links was added"
    for up in re.findall(r"\(((?:\.\./)*)glossary\.md#", with_links):
        if (ROOT / page).parent.joinpath(f"{up}glossary.md").resolve() != DOCS / "glossary.md":
            yield f"{page}: {up}glossary.md is not the glossary"


def test_site_links_each_term_once_per_page_and_changes_nothing_else() -> None:
    assert [problem for page in LEARNED_FROM for problem in problems_of_links(page)] == []


def test_site_links_many_terms() -> None:
    assert len(set().union(*(linked(built(page)) for page in LEARNED_FROM))) > 90


def test_site_links_terms_only_in_prose() -> None:
    text = (
        "# An all-reduce\n\nThe `all-reduce` of a [ring all-reduce](x.md): one all-reduce, two all-reduces.\n"
        "\n```console\n$ frog explain all-reduce\n```\n\n| all-reduce |\n|---|\n| no-all-reduce |\n"
    )
    linked_text = link_terms("docs/labs/lab9.md", text, {"all-reduce": ["all-reduce"], "run": ["run"]})
    assert linked_text == text.replace("one all-reduce", "one [all-reduce](../glossary.md#all-reduce)")


def test_site_links_the_longest_matching_term() -> None:
    terms = {"world": ["world"], "world-size": ["world size"]}
    text = link_terms("docs/a.md", "The world size of a world.", terms)
    assert text == "The [world size](glossary.md#world-size) of a [world](glossary.md#world)."
