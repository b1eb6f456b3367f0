"""Order of search results: guides, reference pages, internals; pages for instructors are omitted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from frog.core.errors import FrogError
from frog.core.files import write_atomic

ORDER = Path(__file__).parent / "assets" / "search-order.js"

GUIDE, REFERENCE, INTERNALS = 0, 1, 2

_TIERS = (
    (None, r"docs/teach/|tools/slides/|src/frog/learn/demo/|.*/quiz\.toml\.|LICENSE\."),
    (GUIDE, r"labs/lab\d/[^/]+/index\.html"),
    (INTERNALS, r"reference/api/|docs/(?:development/|architecture\.|learn/exercises\.|observe/known-errors\.)"),
    (INTERNALS, r"(?:CHANGELOG|CONTRIBUTING)\.|(?:src|scripts|config|notebooks|examples)/|train\.py|Dockerfile"),
    (REFERENCE, r"reference/|docs/observe/run-folder\."),
    (GUIDE, r""),
)
"""Tier of each page by the beginning of its path; the first match applies. None: search does not find the page."""


def tier_of(location: str) -> int | None:
    """Return the tier of a page, or None if the index omits it."""
    return next(tier for tier, pattern in _TIERS if re.match(pattern, location))


def arrange_search(site: Path) -> None:
    """Remove pages for instructors from the index, and make the search worker order results by tier."""
    index = json.loads((site / "search.json").read_text())
    index["items"] = arranged(index["items"])
    written = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    write_atomic(site / "search.json", written)
    write_atomic(site / "search.js", f"var __index = {written}")
    workers = list((site / "assets/javascripts/workers").glob("search.*.js"))
    if len(workers) != 1:
        raise FrogError(f"the generator wrote {len(workers)} search workers, expected 1", "update tools/site/search.py")
    write_atomic(workers[0], f"{workers[0].read_text()}\n{ORDER.read_text()}")


def arranged(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of the index that search may find, each with its tier."""
    found = [item | {"tier": tier_of(item["location"])} for item in items]
    return [item for item in found if item["tier"] is not None]
