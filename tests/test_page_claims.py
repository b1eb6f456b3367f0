"""What pages claim in passing is so: the lines of code that they quote, the commands that they name in a sentence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from frog.cli import _parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*(DOCS / "scale").glob("*.md"), *(DOCS / "teach").glob("*.md")]
    + [DOCS / f"{name}.md" for name in ("overview", "prerequisites", "curriculum", "tutorial-guide", "troubleshooting")]
)
QUOTED = re.compile(r"`((?:src|config|scripts)/[\w./-]+)`:\s`([^`]+)`")
COMMAND = re.compile(r"`(?:\w+=\S+ )?(frog [^`]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_quoted_line_stands_in_its_file(page: Path) -> None:
    quoted = QUOTED.findall(page.read_text())
    assert page.relative_to(DOCS) != Path("scale/README.md") or len(quoted) > 12
    assert [place for place in quoted if place[1] not in (ROOT / place[0]).read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_command_in_a_sentence_is_one(page: Path) -> None:
    for command in COMMAND.findall(FENCE.sub("", page.read_text())):
        words = [re.sub(r"\bN\b", "1", word) for word in shlex.split(command)[1:]]
        if all(re.fullmatch("[a-z-]+", word) and word[0] != "-" for word in words):  # named alone: `frog slurm explain`
            assert re.search(rf"^ +{words[0]}\b", _parser().format_help(), re.MULTILINE), command
        else:
            _parser().parse_args(words)
