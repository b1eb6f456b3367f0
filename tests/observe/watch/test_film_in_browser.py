"""The live page and the saved one in a real browser: drawing, time travel, changes, hostile text, narrow screens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Tab, chromium, find_browser
from observe.watch.hung_program import hung_program
from synthetic_run import Synthetic, make_run

from frog.core.runs.folder import RunFolder
from frog.observe.watch.film_page import film_message, saved_page
from frog.observe.watch.film_reader import film_of
from frog.observe.watch.film_server import FilmServer

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")

UNTIL = """new Promise(done => {{
  const look = () => {{ try {{ if ({fact}) return done(true) }} catch {{}} requestAnimationFrame(look) }}
  look()
}})"""
HOSTILE = "<img src=x onerror='window.hacked = 1'></script><script>window.hacked = 1</script>"
SECOND = 1_000_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def tab(browser: Browser) -> Tab:
    found = browser.new_tab()
    found.show(1300, 900, "light")
    return found


def until(tab: Tab, fact: str) -> None:
    """Wait until an expression is true on the page."""
    assert tab.run(UNTIL.format(fact=fact))


def open_saved(tab: Tab, folder: RunFolder) -> dict[str, Any]:
    """Open the saved page of a run; return its film as the server would send it."""
    film = film_of(folder)
    page = folder.path.parent / "timeline.html"
    page.write_text(saved_page(film))
    tab.open(page.as_uri())
    until(tab, "document.querySelector('.doing').textContent && frogWatch.state().version > 0")
    message: dict[str, Any] = json.loads(json.dumps(film_message(film)))
    return message


def state(tab: Tab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tab.run("JSON.stringify(frogWatch.state())"))
    return found


def doing(tab: Tab, rank: int) -> str:
    """Return what the page says of a rank at the present moment."""
    tab.run("frogWatch.settle()")
    said = tab.run(f"document.querySelectorAll('.rank-row:not(.rank-head) .doing')[{rank}].textContent")
    return str(said).replace("\u00a0", " ")


def test_hang_is_shown_with_its_picture_and_for_whom_each_rank_waits(tab: Tab, tmp_path: Path) -> None:
    open_saved(tab, hung_program(tmp_path / "h"))
    assert state(tab)["cursor"] == 3 * SECOND  # the first failure
    assert doing(tab, 0) == "in barrier at prog.py:3 no. 2 waits for ranks 1, 2 and 3"
    assert doing(tab, 3) == "in all_reduce of 4 float at prog.py:5 no. 2 waits for rank 0"
    assert tab.run("document.getElementById('key').textContent").endswith("waits for other ranks")
    assert tab.run("[...document.querySelectorAll('.waits svg')].filter(svg => svg.clientWidth > 0).length") == 1
    assert tab.run("[...document.querySelectorAll('.meant')].map(line => line.textContent.trim()).join('|')") == (
        "3      dist.barrier()|5      dist.all_reduce(x)"
    )
    assert tab.faults == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []


def test_lanes_are_drawn_in_the_colors_of_what_ranks_do(tab: Tab, tmp_path: Path) -> None:
    open_saved(tab, hung_program(tmp_path / "h"))
    colors = tab.run(
        "(() => { const c = document.getElementById('lanes'), ctx = c.getContext('2d'), at = (s) =>"
        " [...ctx.getImageData(Math.round(s / 31 * c.width), 22 + 10, 1, 1).data].slice(0, 3).join();"
        " return [at(1), at(2.5), at(20), at(30.9)] })()"
    )
    assert len(set(colors)) == 4, colors
    assert colors[2] == "179,38,30"  # waits: --bad of the light theme


def test_keys_and_buttons_move_through_the_run(tab: Tab, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 30)], eval_every=10, checkpoint_every=None))
    film = open_saved(tab, folder)
    ends, events = film["steps"][1::2], [event["at"] for event in film["events"]]
    assert state(tab)["cursor"] == film["end"]
    tab.press("ArrowLeft", 37)
    assert state(tab)["cursor"] == max(at for at in ends if at < film["end"])
    tab.press("Home", 36)
    tab.press("ArrowRight", 39)
    tab.press("ArrowRight", 39)
    assert state(tab)["cursor"] == ends[1]
    assert doing(tab, 1).startswith("step ")
    tab.press(".", 190, ".")
    assert state(tab)["cursor"] == next(at for at in events if at > ends[1])
    tab.run("document.getElementById('event-on').click()")
    tab.press(",", 188, ",")
    assert state(tab)["cursor"] == next(at for at in events if at > ends[1])
    tab.run("document.getElementById('zoom-in').click()")
    view = state(tab)["view"]
    assert view[1] - view[0] == pytest.approx(film["end"] / 2)
    assert view[0] <= state(tab)["cursor"] <= view[1]


def test_dragging_the_overview_moves_the_cursor(tab: Tab, tmp_path: Path) -> None:
    film = open_saved(tab, hung_program(tmp_path / "h"))
    box = json.loads(tab.run("JSON.stringify(document.getElementById('overview').getBoundingClientRect())"))
    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        where = {"x": box["x"] + share * box["width"], "y": box["y"] + 5}
        tab.call("Input.dispatchMouseEvent", type=kind, **where, button="left", buttons=1, clickCount=1)
    assert state(tab)["cursor"] == pytest.approx(film["end"] / 2, rel=0.01)
    tab.run("document.getElementById('failure').click()")
    assert state(tab)["cursor"] == 3 * SECOND


def test_play_moves_the_cursor_and_stops_at_the_end(tab: Tab, tmp_path: Path) -> None:
    film = open_saved(tab, hung_program(tmp_path / "h"))
    tab.run("document.getElementById('speed').value = '100'")
    tab.press(" ", 32, " ")
    until(tab, f"frogWatch.state().cursor > {4 * SECOND}")
    until(tab, f"!frogWatch.state().playing && frogWatch.state().cursor === {film['end']}")


def test_live_page_follows_a_run_and_shows_its_diagnosis(tab: Tab, tmp_path: Path) -> None:
    whole = make_run(
        tmp_path / "whole",
        Synthetic(
            segments=[(2, 0, 40)],
            status="failed",
            error={"type": "ValueError", "message": "no", "rank": 1, "step": 40},
            checkpoint_every=None,
        ),
    )
    folder = RunFolder(tmp_path / "r")
    folder.events.mkdir(parents=True)
    shutil.copy(whole.run_json, folder.run_json)
    with FilmServer(folder) as server:
        tab.open(server.url)
        until(tab, "frogWatch.state().version > 0")
        for part in (1, 2, 3):
            for rank in range(2):
                data = whole.rank_events(rank).read_bytes()
                folder.rank_events(rank).write_bytes(data[: len(data) * part // 3])
            if part == 3:
                shutil.copy(whole.record_json, folder.record_json)
            server.projection.look()
        until(tab, "document.getElementById('finding').textContent.includes('ValueError')")
        until(tab, "frogWatch.film().steps.at(-2) === 40")
        shown = json.loads(tab.run("JSON.stringify(frogWatch.film())"))
        assert tab.faults == []
    expected = json.loads(json.dumps(film_message(film_of(folder))))
    assert {name: shown[name] for name in expected} == expected
    until(tab, "document.getElementById('connection').textContent.startsWith('Not connected')")
    assert state(tab)["lanes"] == 2


def test_hostile_text_runs_nothing(tab: Tab, tmp_path: Path) -> None:
    error = {"type": HOSTILE, "message": HOSTILE, "rank": 0, "step": 5}
    kind = Synthetic(segments=[(2, 0, 5)], status="failed", error=error, checkpoint_every=None)
    folder = make_run(tmp_path / "r", kind)
    text = json.dumps(HOSTILE)[1:-1]
    folder.run_json.write_text(
        folder.run_json.read_text().replace("config/demo.toml", text).replace('"r"', f'"{text}"')
    )
    events = folder.rank_events(1)
    events.write_text(events.read_text().replace('"op":"all_reduce"', f'"op":"{text}"').replace('"pond"', f'"{text}"'))
    open_saved(tab, folder)
    assert tab.run("window.hacked === undefined && !document.querySelector('img')")
    assert HOSTILE[:20] in tab.run("document.body.innerText")
    assert tab.faults == []


@pytest.mark.parametrize("width", [1300, 400])
def test_sixty_four_ranks_fit_the_screen(tab: Tab, tmp_path: Path, width: int) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(64, 0, 10)], checkpoint_every=None))
    tab.show(width, 900, "dark")
    open_saved(tab, folder)
    assert tab.run("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.run("document.querySelectorAll('.rank-row:not(.rank-head)').length") == 64
    heights = tab.run(
        "[document.getElementById('lanes-box'), document.getElementById('ranks')].map(b => b.offsetHeight)"
    )
    assert width < 900 or heights[0] == heights[1]
    assert tab.faults == []
