"""LoRA, serving and RL post-training next to published figures: the page's table is what the benchmark prints."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("planner_kinds", ROOT / "benchmarks" / "planner_kinds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_page_has_the_error_of_every_published_row() -> None:
    kinds, page = benchmark(), (ROOT / "docs" / "plan" / "kinds.md").read_text()
    rows = list(kinds.compare())
    missing = [line for line in kinds.lines(rows) if line not in page]
    assert missing == [], "python benchmarks/planner_kinds.py prints the table"
    share, num = kinds.coverage(rows)
    assert f"{100 * share:.0f} % of {num} rates and times are in their ranges" in page
    assert statistics.median(abs(row.error) for row in rows) < 0.15
