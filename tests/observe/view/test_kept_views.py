"""The numbers that reports and comparisons of made-up runs show: views.json has them, in order.

Other tests assert what a section is about; here no number may change unnoticed. If it should: FROG_REWRITE_GOLDEN=1
pytest -n 0 tests/observe/view/test_kept_views.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_run import GRADIENT_BYTES, Synthetic, make_run

from frog.cli import main
from frog.core.config import StrategyConfig, TrainConfig

KEPT = Path(__file__).with_name("views.json")
RUNS = {
    "plain": Synthetic(),
    "resumed": Synthetic(segments=[(4, 0, 35), (2, 20, 70)], num_micro=2, loss_noise=0.4, noise_from_step=50),
    "killed": Synthetic(segments=[(3, 0, 17)], status=None, eval_every=5, checkpoint_every=None),
    "sharded": Synthetic(
        segments=[(4, 0, 24)],
        strategy=StrategyConfig("zero2"),
        collectives=[("reduce_scatter", "dp", GRADIENT_BYTES), ("all_gather", "dp", GRADIENT_BYTES)],
        wait_share=0.4,
        seed=3,
    ),
    "changing": Synthetic(segments=[(3, 0, 10), (2, 10, 20), (3, 20, 30)], members=[None, [0, 2], [0, 2, 3]]),
    "half": Synthetic(segments=[(2, 0, 20)], train=TrainConfig(precision="fp16"), overflows=(4, 9)),
}
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
_PLACES = re.compile(r"/\S+|[0-9a-f]{40,}|\b\d+\.\d+\.\d+\b|\d{4}-\d\d-\d\d|\b\d\d:\d\d(:\d\d)?\b")
"""Paths, hashes, versions, dates and times."""


class Text(HTMLParser):
    """What a page shows, its data for charts, and positions in them; no styles and scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self._skipped = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._skipped = tag == "style" or (tag == "script" and found.get("id") != "data")
        self.words += [found[name] or "" for name in ("style", "d", "x", "y", "width") if name in found]

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.words.append(data)


def numbers_of(text: str) -> str:
    return " ".join(_NUMBER.findall(_PLACES.sub(" ", text)))


def shortened(numbers: str) -> str:
    """Return many numbers as a part of them, and sums that any other one changes."""
    values = numbers.split()
    total = sum(float(value) * (1 + number % 97) for number, value in enumerate(values))
    return numbers if len(values) <= 300 else f"{' '.join(values[:200])} … {len(values)} numbers, {total:.9e}"


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, str]]:
    known: dict[str, str] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if os.environ.get("FROG_REWRITE_GOLDEN"):
        KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


def check(name: str, text: str, kept: dict[str, str]) -> None:
    found = shortened(numbers_of(text))
    if os.environ.get("FROG_REWRITE_GOLDEN"):
        kept[name] = found
    assert found == kept[name], "if the new numbers are right, rewrite views.json: see above"


@pytest.mark.parametrize("name", RUNS)
def test_no_number_of_a_report_changes_unnoticed(
    name: str, kept: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / name, RUNS[name])
    assert main(["report", name]) == 0
    html = (tmp_path / "runs" / name / "report.html").read_text()
    check(f"report {name}", " ".join(Text(html).words), kept)


@pytest.mark.parametrize("name", RUNS)
def test_no_number_of_a_comparison_or_of_a_list_changes_unnoticed(
    name: str,
    kept: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "plain", RUNS["plain"])
    make_run(tmp_path / "runs" / f"{name}-run", RUNS[name])
    for words in (["compare", "plain", f"{name}-run"], ["compare", f"{name}-run", "plain"], ["checkpoints", "plain"]):
        main(words)
        check(f"{words[0]} {words[1] == 'plain'} {name}", capsys.readouterr().out, kept)
