"""The page that draws a film: live, with a connection to `frog watch`, or as one file with the whole film in it.

Scripts run only if their hash is in the page's content security policy, so that no text of a run can become one.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import secrets
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from frog.core.files import write_atomic
from frog.core.runs.folder import RunFolder, check_output
from frog.observe.view.palette import PHASE_COLORS, RANK_COLORS
from frog.observe.view.report import json_for_script
from frog.observe.view.report_diagnosis import ShownDiagnosis
from frog.observe.watch.film import Film
from frog.observe.watch.film_reader import film_of

_ASSETS = Path(__file__).parent / "assets"
_VIEW_ASSETS = Path(__file__).parents[1] / "view" / "assets"
MOST_BYTES = 5_000_000
"""Size of a saved page that is never exceeded."""


def write_timeline(folder: RunFolder, output: Path | None = None) -> Path:
    """Write a run's film as one HTML file, and return its path.

    Raises:  RunError if run.json cannot be read.
    """
    path = output or folder.path / "timeline.html"
    check_output(path)
    write_atomic(path, saved_page(film_of(folder)))
    return path


def saved_page(film: Film) -> str:
    """Return the page with a film in it."""
    return _page({"film": film_message(film), "written": f"{dt.datetime.now(dt.UTC):%Y-%m-%d at %H:%M UTC}"}, film.name)


def live_page(name: str) -> str:
    """Return the page that receives its film from `frog watch`."""
    return _page({"film": None, "written": None}, name)


def film_message(film: Film) -> dict[str, Any]:
    """Return a film as the page receives it, with the diagnosis as HTML."""
    return {**film.as_json(), "diagnosis": diagnosis_html(film.diagnosis)}


def diagnosis_html(diagnosis: ShownDiagnosis | None) -> str:
    """Return the diagnosis as in the report; empty without one."""
    return _template("diagnosis.html.jinja").render(diagnosis=diagnosis).strip()


def policy_of(page: str) -> str:
    """Return the content security policy that a page names."""
    return page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]


def _page(data: dict[str, Any], name: str) -> str:
    script = (_ASSETS / "film.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template("film.html.jinja").render(
        name=name,
        data=json_for_script(data),
        script=script,
        script_hash=f"sha256-{digest}",
        nonce=secrets.token_urlsafe(12),
        css=(_VIEW_ASSETS / "report.css").read_text(encoding="utf-8"),
        film_css=(_ASSETS / "film.css").read_text(encoding="utf-8"),
        phase_colors=PHASE_COLORS,
        rank_colors=RANK_COLORS,
        is_live=data["film"] is None,
    )


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_ASSETS, _VIEW_ASSETS]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


# ---- changes of a film, for a page that has the one before -----------------------------------------------------------


def film_changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what changed from one message to the next. `with_changes` in the page's script applies it.

    A list of numbers or texts that only grew is {"from": N, "rows": [...]}: keep N values, then add the rows. Lanes and
    series are compared one by one, by their place.
    """
    changes: dict[str, Any] = {}
    for name, value in after.items():
        if name in ("lanes", "series") and len(before.get(name, ())) == len(value):
            rows = [_changed_fields(old, new) for old, new in zip(before[name], value, strict=True)]
            if any(rows):
                changes[name] = {"each": rows}
        elif before.get(name) != value:
            changes[name] = _changed(before.get(name), value)
    return changes


def _changed_fields(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: _changed(before.get(name), value) for name, value in after.items() if before.get(name) != value}


def _changed(before: Any, after: Any) -> Any:
    if not isinstance(before, list) or not isinstance(after, list):
        return after
    same = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    return {"from": same, "rows": after[same:]}
