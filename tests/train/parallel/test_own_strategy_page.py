"""The page about strategies of one's own shows the examples as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["own_ddp.py", "own_zero1.py"])
def test_page_shows_the_example(name: str) -> None:
    _, _, code = (ROOT / "config" / name).read_text().partition('"""\n\n')
    assert f"```python\n{code}```\n" in (ROOT / "docs" / "train" / "own-strategy.md").read_text()
