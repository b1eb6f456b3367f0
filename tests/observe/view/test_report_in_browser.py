"""The report in a real browser: it draws the charts, and no script fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import LIMIT_S
from synthetic_run import Synthetic, make_run

from frog.core.runs.history import read_history
from frog.observe.view.charts import charts
from frog.observe.view.report import render_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

ERRORS = """<head><script>
addEventListener("error", (e) => document.documentElement.dataset.error = e.message);
addEventListener("securitypolicyviolation", (e) => document.documentElement.dataset.error = e.violatedDirective);
</script>"""
INKED = """<script>
setTimeout(() => {
  const inked = [...document.querySelectorAll("canvas")].filter((canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return new Set(new Uint32Array(pixels.buffer)).size > 20;
  });
  document.documentElement.dataset.inked = inked.length;
  document.documentElement.dataset.overflow = document.documentElement.scrollWidth - innerWidth;
  const tables = [...document.querySelectorAll(".scroll")];
  const wide = tables.filter((box) => box.scrollWidth > box.clientWidth + 1);
  const say = tables.filter((box) => getComputedStyle(box, "::before").content.includes("Scroll to the right"));
  document.documentElement.dataset.wide = wide.length;
  const told = wide.every((box) => say.includes(box) && box.tabIndex === 0);
  document.documentElement.dataset.agree = told && wide.length === say.length;
}, 500);
</script></body>"""


def dump(page: Path, profile: Path, width: int) -> str:
    """The page's document after its scripts have run."""
    assert BROWSER is not None
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        f"--window-size={width},900",
        "--virtual-time-budget=3000",
        "--dump-dom",
        page.as_uri(),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return out.decode()


@pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH")
@pytest.mark.parametrize("width", [1200, 500])
def test_charts_are_drawn_without_script_errors(tmp_path: Path, width: int) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 75), (2, 50, 120)]))
    html = render_report(folder).replace("<head>", ERRORS, 1)
    page = tmp_path / "page.html"
    page.write_text(html[: html.rindex("</body>")] + INKED)
    document = dump(page, tmp_path / "profile", width)
    opening = document[: document.index("<head>")]
    assert "data-error" not in opening, opening
    assert f'data-inked="{len(charts(read_history(folder)))}"' in opening, opening
    overflow = re.search(r'data-overflow="(-?\d+)"', opening)
    assert overflow is not None
    assert int(overflow[1]) <= 0, f"the page is {overflow[1]} px wider than the window"
    num_wide = re.search(r'data-wide="(\d+)"', opening)
    assert num_wide is not None
    assert (int(num_wide[1]) > 0) == (width == 500)
    assert 'data-agree="true"' in opening, "a table that scrolls does not say so, or another one does"
