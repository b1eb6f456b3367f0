"""The pictures that move in a real Chromium: their player, by mouse and keys, from disk; their text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Tab

from tools.site.build import ASSETS
from tools.site.finish import finish_page
from tools.site.pictures.__main__ import FOLDER
from tools.site.pictures.catalog import PICTURES, script_of

WIDTHS = (1300, 400)
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>pictures</title><link rel="stylesheet" href="assets/site.css">
<style>:root {{ color-scheme: light dark; --md-default-bg-color: Canvas; --md-default-fg-color: CanvasText;
--md-default-fg-color--light: GrayText }} html {{ font-size: 125% }} body {{ margin: 16px }}</style>
<body><article class="md-typeset">{images}</article></body></html>"""

_UNTIL = """async () => {
  for (let left = 200; left > 0; left--) {
    const found = (() => CONDITION)()
    if (found) return found
    await new Promise(wake => setTimeout(wake, 50))
  }
  return 'it never came: ' + document.body.innerText.slice(0, 200)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every picture, finished like the site's pages."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "assets" / "pictures").mkdir(parents=True)
    (root / "pictures").mkdir()
    shutil.copytree(FOLDER, root / "pictures" / "moving")
    for name in ("site.css", "pictures.js"):
        shutil.copy(ASSETS / name, root / "assets")
    for name in PICTURES:
        (root / "assets" / "pictures" / f"{name}.js").write_text(script_of(name))
    images = "".join(f'<p><img alt="what {name} shows" src="pictures/moving/{name}.svg"></p>' for name in PICTURES)
    (root / "index.html").write_text(finish_page(_PAGE.format(images=images)))
    return root


def opened(browser: Browser, folder: Path, width: int, scheme: str, motion: str = "no-preference") -> Tab:
    tab = browser.new_tab()
    tab.show(width, 900, scheme)
    features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]
    tab.call("Emulation.setEmulatedMedia", features=features)
    tab.open((folder / "index.html").as_uri())
    return tab


def until(tab: Tab, condition: str) -> Any:
    return tab.run(f"({_UNTIL.replace('CONDITION', condition)})()")


def figure(name: str) -> str:
    return f"document.querySelector('figure[data-picture={name}]')"


def player(tab: Tab, name: str) -> str:
    """Scroll to a picture and wait until its player has replaced the image."""
    tab.run(f"document.querySelector('[src*=\"{name}\"], [data-picture={name}]').scrollIntoView({{block: 'center'}})")
    assert until(tab, f"{figure(name)} && {figure(name)}.querySelector('.picture-place').textContent") is not None
    return figure(name)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_picture_has_a_player_that_fits(browser: Browser, folder: Path, width: int, scheme: str) -> None:
    tab = opened(browser, folder, width, scheme)
    for name in PICTURES:
        player(tab, name)
        stage = f"{figure(name)}.querySelector('.picture-stage')"
        assert 300 < tab.run(f"{stage}.getBoundingClientRect().width") <= min(width, 560), name
        assert tab.run(f"{stage}.getAttribute('aria-label')") == f"what {name} shows"
        ground = tab.run(f"getComputedStyle({stage}.shadowRoot.querySelector('rect')).fill")
        assert ground == ("rgb(246, 246, 242)" if scheme == "light" else "rgb(20, 23, 26)"), name
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    assert tab.run("document.querySelectorAll('article img').length") == 0
    assert tab.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_buttons_stop_step_and_play(browser: Browser, folder: Path, width: int) -> None:
    tab = opened(browser, folder, width, "light")
    place = player(tab, "hang")
    text, click = f"{place}.querySelector('.picture-place').textContent", f"{place}.querySelectorAll('button')"
    assert until(tab, f"{place}.dataset.state == 'playing'") is True
    tab.run(f"{click}[0].click()")
    assert tab.run(f"[{place}.dataset.state, {click}[0].textContent]") == ["stopped", "Play"]
    states = f"{place}.querySelector('.picture-stage').shadowRoot.getAnimations().map(each => each.playState)"
    assert set(tab.run(states)) == {"paused"}
    while tab.run(text) != "1 of 4":
        tab.run(f"{click}[1].click()")
    tab.run(f"{click}[2].click()")
    assert tab.run(text) == "2 of 4"
    assert until(tab, f"{place}.dataset.state == 'stopped'") is True, "a step ends by itself"
    assert tab.run(text) == "2 of 4"
    assert tab.run(f"{place}.querySelector('.picture-said').textContent").startswith("Then “if rank == 0")
    tab.run(f"{click}[0].click()")
    assert tab.run(f"[{place}.dataset.state, {click}[0].textContent]") == ["playing", "Stop"]
    assert until(tab, f"{text} == '3 of 4'") is True
    assert tab.faults == []


def test_sliders_and_lists_work_with_keys(browser: Browser, folder: Path) -> None:
    tab = opened(browser, folder, 400, "dark")
    place = player(tab, "ring-all-reduce")
    words = f"{place}.querySelector('.picture-stage').shadowRoot.querySelector('svg').textContent"
    assert "4 ranks, 6 steps" in tab.run(words)
    tab.run(f"{place}.querySelector('input').focus()")
    tab.press("ArrowRight", 39)
    assert until(tab, f"{place}.querySelector('output').textContent == '5'") is True
    assert "5 ranks, 8 steps" in tab.run(words)
    assert tab.run(f"{place}.dataset.state") == "stopped", "the result follows the slider"
    assert tab.run(f"{place}.querySelector('input').getAttribute('aria-valuetext')") == "5"
    tab.run(f"{place}.querySelector('select').focus()")
    tab.press("ArrowDown", 40)
    assert until(tab, f"{words}.includes('rank 1 does nothing')") is True
    assert tab.run(f"{place}.dataset.state") == "playing"
    tab.run(f"{place}.querySelector('button').focus()")
    tab.press("Enter", 13, "\r")
    assert until(tab, f"{place}.dataset.state == 'stopped'") is True
    assert tab.faults == []


def test_less_motion_shows_the_still_until_a_button_is_pressed(browser: Browser, folder: Path) -> None:
    tab = opened(browser, folder, 1300, "light", "reduce")
    place = player(tab, "zero-memory")
    root = f"{place}.querySelector('.picture-stage').shadowRoot"
    assert tab.run(f"[{place}.dataset.state, {root}.getAnimations().length]") == ["stopped", 0]
    shown = f"""[...{root}.querySelectorAll('text')].filter(e => {{
      for (let at = e; at.parentElement; at = at.parentElement) if (getComputedStyle(at).opacity == 0) return false
      return true
    }}).map(e => e.textContent).join(' ')"""
    assert "ZeRO-1, ZeRO-2, ZeRO-3 fit in 80 GB" in tab.run(f"{shown}")
    assert "Every rank has" not in tab.run(shown)
    buttons = f"{place}.querySelectorAll('button')"
    tab.run(f"{buttons}[2].click()")
    assert tab.run(f"{place}.querySelector('.picture-place').textContent") == "1 of 5"
    assert tab.run(f"{place}.dataset.state") == "stopped"
    assert "Every rank has" in tab.run(shown)
    end_ms = tab.run(f"JSON.parse({root}.querySelector('svg').dataset.steps)[1][0]")
    assert tab.run(f"{root}.getAnimations()[0].currentTime") == end_ms - 1, "a step's end, without its motion"


def test_a_printed_page_has_stills_and_no_buttons(browser: Browser, folder: Path) -> None:
    tab = opened(browser, folder, 1300, "light")
    player(tab, "hang")
    tab.call("Emulation.setEmulatedMedia", media="print")
    root = f"{figure('hang')}.querySelector('.picture-stage').shadowRoot"
    assert until(tab, f"{root}.getAnimations().length == 0") is True
    assert tab.run(f"getComputedStyle({figure('hang')}.querySelector('.picture-controls')).display") == "none"


@pytest.mark.slow
def test_no_text_leaves_its_picture_in_any_setting(browser: Browser, folder: Path) -> None:
    tab = opened(browser, folder, 1300, "light")
    look = """svg => {
      document.body.innerHTML = svg
      const page = document.querySelector('svg'), view = page.viewBox.baseVal
      return [...page.querySelectorAll('text')].filter(text => {
        const box = text.getBBox()
        return box.x < 0 || box.y < 0 || box.x + box.width > view.width || box.y + box.height > view.height
      }).map(text => text.textContent)
    }"""
    found = {}
    for name, picture in PICTURES.items():
        for key, scene in picture.variants():
            if out := tab.run(f"({look})({json.dumps(scene.svg())})"):
                found[f"{name} {key}"] = out
    assert found == {}
