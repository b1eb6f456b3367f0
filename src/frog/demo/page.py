"""The page of a demo that was played: each step with what was said, run and printed, and the reports of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader

from frog.core.files import write_atomic
from frog.demo.play import Played
from frog.demo.session import Session

_MOST_CHARACTERS = 20_000


def write_page(folder: Path, session: Session, played: Sequence[Played]) -> Path:
    """Write index.html into the demo's folder."""
    reports = sorted(str(path.relative_to(folder)) for path in folder.glob("runs/*/report.html"))
    texts = [one.output.read_text(errors="replace")[-_MOST_CHARACTERS:] for one in played]
    page = Environment(loader=PackageLoader("frog.demo", "."), autoescape=True).get_template("page.html.jinja")
    write_atomic(folder / "index.html", page.render(session=session, played=played, texts=texts, reports=reports))
    return folder / "index.html"
