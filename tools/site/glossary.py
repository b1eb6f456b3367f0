"""Links from learning pages to the glossary, at each page's first use of a term."""

from __future__ import annotations

import re
from collections.abc import Iterator

GLOSSARY = "docs/glossary.md"

TERM = re.compile(r'^### <a id="([^"]+)"></a>(.+)$', re.MULTILINE)
"""Heading of a term: its anchor and its names."""

COMMON = frozenset(
    re.findall(
        r"\w+",
        "run step report page record stage link task note lock fault rule phase scaling worker event request"
        " window attempt resume bundle campaign batch tree ring lab exercise folder buffer door cause facts verdict"
        " store kernel peer profile restart trial switch token partition prediction parameter allocation schedule"
        " port probe manifest trap advice reference standing",
    )
)
"""Terms that are also everyday words; a program cannot tell which use is meant, so they are not linked."""

OTHERWISE_MEANT = {("docs/train/elastic.md", "loss"), ("docs/launch/launchers.md", "process-group")}
"""Pages on which a term has another meaning: the loss of a rank; a process group of the operating system."""

_LOOKED_UP = ("architecture", "learn/exercises", "glossary", "observe/run-folder", "troubleshooting", "README")
_LEARNED_FROM = re.compile(rf"docs/(?!(?:{'|'.join(_LOOKED_UP)})\.md|teach/|development/)(?:\w+/)?[\w-]+\.md")

_NOT_PROSE = re.compile(
    r"^```.*?^```|``.*?``|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<!--.*?-->|^#.*?$|<[^>]+>|^\|[^\n]*\n(?=\|-)|\{#[^}]*\}",
    re.DOTALL | re.MULTILINE,
)
"""Code, links, comments, headings and table headers, which get no links."""


def is_learned_from(page: str) -> bool:
    """True for a page for learning, not only for reference."""
    return _LEARNED_FROM.fullmatch(page) is not None


def names_of_terms(glossary: str) -> dict[str, list[str]]:
    """Return the names of each term by anchor, without text in brackets."""
    return {
        anchor: [re.sub(r" \(.*\)", "", name).strip() for name in names.split(",")]
        for anchor, names in TERM.findall(glossary)
    }


def with_letters(glossary: str) -> str:
    """Put the terms in alphabetical order, each with its link, in front of the glossary's first section."""
    terms = sorted((name.lower(), name, anchor) for anchor, names in names_of_terms(glossary).items() for name in names)
    letters: dict[str, list[str]] = {}
    for lower, name, anchor in terms:
        letters.setdefault(lower[0].upper(), []).append(f"[{name}](#{anchor})")
    jumps = " ".join(f"[{letter}](#letter-{letter.lower()})" for letter in letters)
    lines = [
        f'<span id="letter-{letter.lower()}">**{letter}**</span> {", ".join(of)}' for letter, of in letters.items()
    ]
    index = "\n\n".join([jumps, *lines])
    return re.sub(
        r"^## ",
        f'<div class="letters" markdown="1" data-search-exclude>\n\n{index}\n\n</div>\n\n## ',
        glossary,
        count=1,
        flags=re.MULTILINE,
    )


def link_terms(page: str, text: str, terms: dict[str, list[str]]) -> str:
    """Link the first use of each term in a page's prose. `page` is its path in the repository."""
    up = "../" * (page.count("/") - 1)
    parts, at = [], 0
    for start, end, anchor in sorted(_first_uses(page, text, terms)):
        if start >= at:  # otherwise it is part of a longer term
            parts += [text[at:start], f"[{text[start:end]}]({up}glossary.md#{anchor})"]
            at = end
    return "".join([*parts, text[at:]])


def _first_uses(page: str, text: str, terms: dict[str, list[str]]) -> Iterator[tuple[int, int, str]]:
    """Find the first use of each term: start, end and anchor. If two terms start alike, the longer one wins."""
    hidden = _NOT_PROSE.sub(lambda part: re.sub(r"[^\n]", "\0", part[0]), text)
    names = {name: anchor for anchor, known in terms.items() for name in known if name not in COMMON}
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    done = {anchor for known_page, anchor in OTHERWISE_MEANT if known_page == page}
    for use in re.finditer(rf"(?<![\w-])(?:{longest_first})(?![\w-])", hidden):
        if (anchor := names[use[0]]) not in done:
            done.add(anchor)
            yield use.start(), use.end(), anchor
