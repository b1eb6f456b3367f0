"""The site's search: what its index has, and the worker that answers, in place of the generator's."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from frog.core.errors import FrogError
from frog.core.files import write_atomic

WORKER = Path(__file__).parent / "assets" / "search-worker.js"
WORDS = Path(__file__).parent / "search_words.toml"
ASKS = Path(__file__).parent / "search_asks.toml"

GUIDE, REFERENCE, INTERNALS = 0, 1, 2

_TIERS = (
    (None, r"docs/teach/(?:session-|questions)|docs/teach/class\.html#(?:assessment|passing)|tools/slides/"),
    (None, r"src/frog/learn/demo/|.*/quiz\.toml\.|LICENSE\.|Dockerfile|constraints"),
    (None, r"docs/(?:development/(?!torch-versions\.)|architecture\.|learn/exercises\.)"),
    (None, r"(?:CHANGELOG|CONTRIBUTING)\.|src/"),
    (
        INTERNALS,
        r"reference/api/|reference/commands\.html#frog-learn-dev|labs/lab\d/[^/]+/index\.html|(?:scripts|config|notebooks/lab|examples)",
    ),
    (REFERENCE, r"reference/|docs/observe/known-errors\.|docs/tour\.|docs/learn/course\.|docs/teach/"),
    (GUIDE, r""),
)
"""Tier of each page by the beginning of its path; the first match applies. None: search does not find the page.

Run sheets and other sections for instructors give answers away, pages for developers quote answers of quizzes.
"""


def tier_of(location: str) -> int | None:
    """Return the tier of a page, or None if the index omits it."""
    return next(tier for tier, pattern in _TIERS if re.match(pattern, location))


def arrange_search(site: Path) -> None:
    """Reduce the index to what search may find, add the words that readers use, and replace the generator's worker.

    Raises:  FrogError if words are written for a section that does not exist.
    """
    index = json.loads((site / "search.json").read_text())
    words = tomllib.loads(WORDS.read_text())
    index["items"] = arranged(index["items"], tomllib.loads(ASKS.read_text()))
    index["config"]["separator"] += "|" + "|".join(rf"\b{word}\b" for word in words["stop"])  # not marked on a page
    written = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    write_atomic(site / "search.json", written)
    write_atomic(site / "search.js", f"var __index = {written}")
    workers = list((site / "assets/javascripts/workers").glob("search.*.js"))
    if len(workers) != 1:
        raise FrogError(f"the generator wrote {len(workers)} search workers, expected 1", "update tools/site/search.py")
    write_atomic(workers[0], f"const WORDS = {json.dumps(words)};\n{WORKER.read_text()}")


def arranged(items: list[dict[str, Any]], asks: dict[str, str]) -> list[dict[str, Any]]:
    """Return the items of the index that search may find, each with its tier and the words of readers.

    asks: these words by section, PAGE#ANCHOR without "docs/" and ".html".
    """
    found = [item | {"tier": tier_of(item["location"])} for item in items]
    found = [item for item in found if item["tier"] is not None and item["text"]]
    left = dict(asks)
    for item in found:
        name = section_name(item["location"])
        if name in left:
            item["asks"] = left.pop(name)
        if name.startswith("glossary#"):
            item["defines"] = True
    if left:
        raise FrogError(f"{ASKS.name} names sections that do not exist: {', '.join(left)}", "correct their names")
    return found


def section_name(location: str) -> str:
    """Return the short name of a section: "train/data#json-lines" for "docs/train/data.html#json-lines"."""
    page, _, anchor = location.partition("#")
    page = page.removeprefix("docs/").removesuffix(".html")
    return f"{page}#{anchor}" if anchor else page
