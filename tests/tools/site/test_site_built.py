"""Files of the built site: links work, pictures have alternative text, HTML is valid, no resource is external."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import html5lib
import pytest

from tools.site.redirects import MOVED

pytestmark = pytest.mark.slow

_LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
_SHELLS = ("index.html", "docs/train/strategies.html")
"""Pages to parse completely; of other pages, which share the frame, the test parses only the content."""


class Page(HTMLParser):
    """A page's links, loaded resources, ids, and pictures without alternative text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: Counter[str] = Counter()
        self.wordless: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag in _LOADS and given.get(_LOADS[tag]):
            self.loads.append(given[_LOADS[tag]] or "")
        if name := given.get("id"):
            self.names[name] += 1
        if (tag == "img" and not given.get("alt")) or (tag == "iframe" and not given.get("title")):
            self.wordless.append(str(given.get("src")))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if not path.name.startswith("shown-")}


def test_links_and_anchors_exist(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if parts.scheme:
                continue
            known = pages[target].names if target in pages else Counter[str]()
            named = parts.fragment and target.suffix == ".html"  # a picture's fragment names its theme
            if not target.exists() or (named and not known[unquote(parts.fragment)]):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 100
    assert broken == []


def test_old_addresses_lead_to_pages(site: Path, pages: dict[Path, Page]) -> None:
    assert len(MOVED) == 18
    for old, new in MOVED.items():
        assert [(site / old).parent / link for link in pages[site / old].links] == [site / new]
        assert f'url={new.removeprefix("docs/")}"' in (site / old).read_text()


def test_pages_load_no_external_resources(site: Path, pages: dict[Path, Page]) -> None:
    loads = {load for page in pages.values() for load in page.loads if urlsplit(load).netloc}
    styles = [
        url for path in site.rglob("*.css") for url in re.findall(r"url\(\s*['\"]?(https?:|//)", path.read_text())
    ]
    assert loads == set()
    assert styles == []


def test_checklists_have_checkboxes(site: Path) -> None:
    assert 'class="task-list-item"' in (site / "docs/scale/first-hour.html").read_text()


def test_pictures_have_alternative_text_and_ids_are_unique(site: Path, pages: dict[Path, Page]) -> None:
    found = {str(path.relative_to(site)): page.wordless for path, page in pages.items() if page.wordless}
    assert found == {}
    twice = {
        str(path.relative_to(site)): names
        for path, page in pages.items()
        if (names := [name for name, count in page.names.items() if count > 1])
    }
    assert twice == {}


def test_site_html_is_valid(site: Path, pages: dict[Path, Page]) -> None:
    faults = []
    for path in pages:
        text, parser = path.read_text(), html5lib.HTMLParser()
        if str(path.relative_to(site)) in (*_SHELLS, *MOVED):
            parser.parse(text)
        else:  # skip the spans that colour code, which are most of a page
            article = re.search(r"<article.*</article>", text, re.DOTALL)
            assert article, path
            parser.parseFragment(re.sub(r"</?span[^>]*>", "", article[0]))
        faults += [f"{path.relative_to(site)}: {where}: {code} {facts}" for where, code, facts in parser.errors]
    assert faults == []
