"""The two editions of a deck: the instructor's, with notes and answers, and the learner's, without them.

Both are Markdown for marp, with the figures inlined, so that an HTML file needs no other file.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

SLIDES = Path(__file__).resolve().parent
EDITIONS = ("learner", "instructor")

_NOTE = re.compile(r"\n*<!--\n.*?-->", re.DOTALL)
_FIGURE = re.compile(r"^!\[(.*?)\]\((figures/\w+\.svg)\)$", re.MULTILINE)
_MOVING = re.compile(r"^!\[(.*?)\]\((\.\./\.\./docs/pictures/moving/[\w-]+\.svg)\)$", re.MULTILINE)
_STYLE = re.compile(r"<style>(.*?)</style>\n?", re.DOTALL)


def split(deck: str) -> tuple[str, list[str]]:
    """Split a deck into its settings and its slides."""
    settings, _, body = deck.partition("\n---\n")
    return settings, body.split("\n---\n")


def learner(deck: str) -> str:
    """Return a deck without notes and without the slides that answer a vote.

    An answer slide has its vote's page number, so both editions have the same page numbers.
    """
    settings, slides = split(deck)
    kept = [_NOTE.sub("", slide).rstrip() + "\n" for slide in slides if "<!-- _class: answer -->" not in slide]
    return "\n---\n".join([settings, *kept])


def with_figures(deck: str) -> str:
    """Inline the figures of a deck."""
    deck = _MOVING.sub(lambda found: _moving(found[1], SLIDES / found[2]), deck)
    return _FIGURE.sub(lambda found: _inlined(found[1], SLIDES / found[2]), deck)


def _moving(words: str, path: Path) -> str:
    """Return a picture that moves, with its own style in a shadow root; printed, it is a still."""
    drawn = path.read_text()
    drawn = re.sub(r'width="\d+" height="\d+"', 'style="display:block;width:100%;height:100%"', drawn, count=1)
    drawn = re.sub(r"\n+", "\n", drawn).strip()
    template = f'<template shadowrootmode="open">{drawn}</template>'
    return f'<div class="moving" role="img" aria-label="{escape(words)}">{template}</div>'


def _inlined(words: str, path: Path) -> str:
    drawn = _STYLE.sub("", path.read_text()).strip().replace("<svg ", f'<svg aria-label="{escape(words)}" ', 1)
    return f'<div class="figure">\n{drawn}\n</div>'


def edition(path: Path, name: str) -> str:
    """Return one edition of the deck at `path` as input for marp."""
    deck = path.read_text()
    return with_figures(learner(deck) if name == "learner" else deck)


def figure_style() -> str:
    """Return the style that all figures share."""
    found = _STYLE.search(next((SLIDES / "figures").glob("*.svg")).read_text())
    assert found, "a figure without a style"
    return found[1].removeprefix(":root{color-scheme:light dark}")
