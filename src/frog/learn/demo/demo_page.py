"""A demo's page: text, command and output of each played step, and links to the runs' reports."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader

from frog.core.files import write_atomic
from frog.learn.demo.demo_session import Session
from frog.learn.demo.records import output_path, read_records

_MOST_CHARACTERS = 60_000
"""Limit of one step's output on the page; the step's file contains all of it."""


def page_path(folder: Path) -> Path:
    return folder / "index.html"


def write_page(folder: Path, session: Session) -> None:
    """Write index.html from the records in the demo folder."""
    reports = sorted(str(path.relative_to(folder)) for path in folder.glob("runs/*/report.html"))
    steps = [
        (step, output_path(folder, step.number).name, _output(folder, step.number)) for step in read_records(folder)
    ]
    page = Environment(loader=PackageLoader("frog.learn.demo", "."), autoescape=True).get_template("page.html.jinja")
    write_atomic(page_path(folder), page.render(session=session, steps=steps, reports=reports))


def _output(folder: Path, number: int) -> str:
    try:
        return output_path(folder, number).read_text(errors="replace")[-_MOST_CHARACTERS:]
    except FileNotFoundError:
        return ""
