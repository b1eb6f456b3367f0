"""What search finds first: guides before reference pages, those before internals; pages for instructors not at all."""

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
    (INTERNALS, r"reference/api/|docs/(?:development/|architecture\.|exercises\.)"),
    (INTERNALS, r"(?:CHANGELOG|CONTRIBUTING)\.|(?:src|scripts|config|notebooks|examples)/|train\.py|Dockerfile"),
    (REFERENCE, r"reference/|docs/run-folder\."),
    (GUIDE, r""),
)
"""The tier of each page by the beginning of its path; the first that matches counts. None: search does not find it."""


def tier_of(location: str) -> int | None:
    """The tier of a page, or None if the index leaves it out."""
    return next(tier for tier, pattern in _TIERS if re.match(pattern, location))


def arrange_search(site: Path) -> None:
    """Leave pages for instructors out of the index, and let the search's worker order results by tier."""
    index = json.loads((site / "search.json").read_text())
    index["items"] = arranged(index["items"])
    written = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    write_atomic(site / "search.json", written)
    write_atomic(site / "search.js", f"var __index = {written}")
    workers = list((site / "assets/javascripts/workers").glob("search.*.js"))
    if len(workers) != 1:
        raise FrogError(
            f"the generator wrote {len(workers)} search workers, expected 1", "look at tools/site/search.py"
        )
    write_atomic(workers[0], f"{workers[0].read_text()}\n{ORDER.read_text()}")


def arranged(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of the index that search may find, each with its tier."""
    found = [item | {"tier": tier_of(item["location"])} for item in items]
    return [item for item in found if item["tier"] is not None]
