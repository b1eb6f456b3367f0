"""Every page of every deck, laid out by Chromium: content fills and fits the page; no text is small or overlaps."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from decks import MINUTES, SLIDES, read_deck
from harness import LIMIT_S

pytestmark = pytest.mark.slow

_REPORT = (
    "<script>addEventListener('load', () => {{ const found = ({find})(); const out = document.createElement('pre');"
)
_REPORT += " out.id = 'found'; out.textContent = JSON.stringify(found); document.body.append(out) }})</script>"

# Coordinates refer to a page of 1280 x 720, whatever the window. The page number is in the lowest 52.
_PAGES = """() => [...document.querySelectorAll('section')].map((page, at) => {
  const frame = page.getBoundingClientRect(), scale = frame.width / 1280, wrong = []
  let lowest = 0
  for (const part of page.querySelectorAll('h1, h2, p, pre, .figure svg, .moving, table, ol, ul')) {
    const box = part.getBoundingClientRect()
    const right = (box.right - frame.left) / scale, low = (box.bottom - frame.top) / scale
    const name = part.tagName + ' ' + (part.getAttribute('aria-label') || part.textContent).slice(0, 40)
    if (right > 1222 || low > 676) wrong.push(`${name}: ends at ${Math.round(right)}, ${Math.round(low)}`)
    if (part.scrollWidth > part.clientWidth + 1) wrong.push(`${name}: wider than its box`)
    if (part.tagName == 'svg' && box.width / scale < 1159) wrong.push(`${name}: ${Math.round(box.width / scale)} wide`)
    lowest = Math.max(lowest, low)
  }
  if (lowest < 480 && !page.classList.contains('title')) wrong.push(`the lower third is empty: ${Math.round(lowest)}`)
  if (page.querySelector('img')) wrong.push('a figure that is not inlined')
  for (const font of ['30px Inter', '24px "JetBrains Mono"'])
    if (!document.fonts.check(font)) wrong.push(`${font} is not embedded`)
  for (const part of page.querySelectorAll('*')) {
    const size = getComputedStyle(part).fontSize
    const words = [...part.childNodes].some(node => node.nodeType == 3 && node.data.trim())
    if (words && parseFloat(size) < 24) wrong.push(`${part.textContent.slice(0, 40)}: ${size}`)
  }
  return { page: at + 1, wrong }
})"""

_FIGURES = """() => [...document.querySelectorAll('svg')].map(figure => {
  const texts = [...figure.querySelectorAll('text')], boxes = texts.map(text => text.getBBox()), wrong = []
  const { width, height } = figure.viewBox.baseVal
  boxes.forEach((a, i) => {
    const inside = a.x > -1 && a.y > -1 && a.x + a.width < width + 1 && a.y + a.height < height + 1
    if (!inside) wrong.push('outside the page: ' + texts[i].textContent)
    boxes.slice(0, i).forEach((b, j) => {
      const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x)
      const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y)
      if (across > 1 && down > 8) wrong.push(`overlapping: ${texts[j].textContent} | ${texts[i].textContent}`)
    })
  })
  return { page: figure.id, wrong }
})"""


@pytest.fixture(scope="module")
def build() -> Any:
    """Return tools/slides/build.py, with marp-cli installed."""
    sys.path.insert(0, str(SLIDES))
    try:
        import build
    finally:
        sys.path.remove(str(SLIDES))
    if lacks := build.missing():
        pytest.skip("; ".join(lacks))
    try:
        build.install()
    except SystemExit as error:
        pytest.skip(str(error))
    return build


def look(build: Any, page: Path, find: str) -> list[dict[str, Any]]:
    """Return the result of a script on a page laid out by Chromium."""
    page.write_text(page.read_text().replace("</body>", _REPORT.format(find=find) + "</body>"))
    line = [
        build.find_browser(),
        "--headless",
        "--disable-gpu",
        "--window-size=1280,800",
        "--virtual-time-budget=20000",
    ]
    line += ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*line, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    pages: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return pages


def faults(pages: list[dict[str, Any]]) -> list[str]:
    return [f"{found['page']}: {wrong}" for found in pages for wrong in found["wrong"]]


@pytest.mark.parametrize("theme", ["frog", "frog-dark"])
@pytest.mark.parametrize("deck", MINUTES)
def test_slide_content_fits_its_page(build: Any, deck: str, theme: str, tmp_path: Path) -> None:
    page, source = tmp_path / f"{deck}.html", tmp_path / f"{deck}.md"
    source.write_text(build.edition(SLIDES / f"{deck}.md", "instructor"))
    build.marp(str(source), "--template", "bare", "--theme", theme, "-o", str(page))
    pages = look(build, page, _PAGES)
    assert len(pages) == len(read_deck(deck))
    assert not faults(pages), "\n".join(faults(pages))


def test_figure_text_is_inside_the_figure_and_does_not_overlap(build: Any, tmp_path: Path) -> None:
    figures = sorted((SLIDES / "figures").glob("*.svg"))
    page = tmp_path / "figures.html"
    drawn = "".join(path.read_text().replace("<svg ", f'<svg id="{path.stem}" ', 1) for path in figures)
    fonts = f"<style>{build.font_faces()}</style>"
    page.write_text(f"<!doctype html><meta charset=utf-8>{fonts}<body>{drawn}</body>")
    pages = look(build, page, _FIGURES)
    assert len(pages) == len(figures)
    assert not faults(pages), "\n".join(faults(pages))


def test_only_the_instructors_pdf_has_notes_and_both_embed_fonts(build: Any, tmp_path: Path) -> None:
    printed = {}
    for name in build.EDITIONS:
        build.build_edition([SLIDES / "crash-courses.md"], name, tmp_path / name)
        built = sorted(path.name for path in (tmp_path / name).iterdir())
        stem = "crash-courses" if name == "learner" else "crash-courses-instructor"
        assert built == [f"{stem}-dark.pdf", f"{stem}.html", f"{stem}.pdf"]
        printed[name] = (tmp_path / name / f"{stem}.pdf").read_bytes()
        noted = "mixing board" in (tmp_path / name / f"{stem}.html").read_text()
        assert noted == (name == "instructor"), "only the instructor's presenter view has the notes"
    objects = {name: unpacked(pdf) for name, pdf in printed.items()}
    assert b"/Subtype /Text\n" not in objects["learner"]
    assert b"/Subtype /Text\n" in objects["instructor"]
    for pdf in objects.values():
        fonts = {name.decode() for name in re.findall(rb"/FontName /(?:[A-Z]+\+)?([\w-]+)", pdf)}
        assert fonts
        assert [name for name in fonts if not name.startswith(("Inter", "JetBrains"))] == []


def unpacked(pdf: bytes) -> bytes:
    """Return a PDF's bytes followed by its decompressed streams, which may contain objects."""
    found = [pdf]
    for packed in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):
            found.append(zlib.decompressobj().decompress(packed))
    return b"\n".join(found)
