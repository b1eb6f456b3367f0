"""Every page in a real Chromium: on phone and desktop, light and dark; keyboard use; search, also from disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import Browser, Tab

from tools.site.redirects import MOVED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]

TERMS = (
    "all-reduce",
    "bucket",
    "GradScaler",
    "rendezvous",
    "sbatch",
    "zero3",
    "heartbeat",
    "perplexity",
    "bucket_mb",
    "MareNostrum",
)

_LOOK = (Path(__file__).parent / "look.js").read_text()
"""Script that finds layout problems of the current page."""

THEMES = {"light": "default", "dark": "slate"}
"""Theme of the page for each preference of the system."""

_THEME = """async wanted => {
  const has = () => document.body.dataset.mdColorScheme == wanted
  if (!has()) await new Promise(done => {
    new MutationObserver(() => has() && done()).observe(document.body, {attributes: true})
    setTimeout(done, 20000)
  })
  return document.body.dataset.mdColorScheme
}"""
"""Script that waits until the page, which learns the system's preference by an event, has the wanted theme."""

_STILL = "*, *::before, *::after { transition: none !important; animation: none !important }"


def still(tab: Tab) -> None:
    """Show the pages that the tab will open without motion."""
    add = f"document.head.append(Object.assign(document.createElement('style'), {{textContent: {json.dumps(_STILL)}}}))"
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=f"addEventListener('DOMContentLoaded', () => {{ {add} }})")


def looks(name: str) -> tuple[tuple[int, str], ...]:
    """Return widths and themes for a page: all four, or two for pages of which many look alike."""
    all_four = ((1440, "light"), (1440, "dark"), (390, "dark"), (390, "light"))
    alike = name.startswith(("reference/api/", "src/", "docs/development/", "labs/")) or name.count(".") > 1
    return all_four[::2] if alike else all_four


def test_pages_fit_phone_and_desktop_in_light_and_dark(browser: Browser, site: Path, light_address: str) -> None:
    tab, found, schemes = browser.new_tab(), dict[str, list[str]](), set[str]()
    still(tab)
    names = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    for name in sorted(names - MOVED.keys()):
        tab.show(1440, 1000, "light")
        tab.open(f"{light_address}/{name}")
        for width, scheme in looks(name):
            tab.show(width, 1000, scheme)
            look = f"({_THEME})({json.dumps(THEMES[scheme])}).then(theme => [theme, ({_LOOK})()])"
            theme, faults = tab.run(look)
            schemes.add(f"{scheme} {theme}")
            for fault in faults:
                found.setdefault(fault, []).append(f"{name} {width} {scheme}")
        for fault in tab.faults:
            found.setdefault(fault, []).append(name)
        tab.faults.clear()
    assert {fault: (len(pages), pages[0]) for fault, pages in found.items()} == {}
    assert schemes == {f"{scheme} {theme}" for scheme, theme in THEMES.items()}
    assert [url for url in tab.requests if not url.startswith((light_address, "data:", "blob:"))] == []


_COPY = """async () => {
  const copied = []
  document.addEventListener('copy', () => copied.push(document.activeElement.value))
  const until = async what => {
    for (let left = 400; left > 0 && !what(); left--) await new Promise(wake => setTimeout(wake, 50))
  }
  await until(() => document.querySelector('.highlight [data-md-type=copy]'))
  for (const block of document.querySelectorAll('.highlight')) block.querySelector('[data-md-type=copy]').click()
  return [[...document.querySelectorAll('.highlight code')].map(code => code.textContent), copied]
}"""


@pytest.mark.parametrize(
    "page", ["docs/teach/class.html", "docs/labs/lab2.html", "docs/measure/collectives.html", "index.html"]
)
def test_copy_button_copies_commands_without_prompts_and_output(
    browser: Browser, light_address: str, page: str
) -> None:
    tab = browser.new_tab()
    tab.show(1440, 1000, "light")
    tab.open(f"{light_address}/{page}")
    shown, copied = tab.run(f"({_COPY})()", gesture=True)
    assert len(shown) == len(copied)
    consoles = [(text, taken) for text, taken in zip(shown, copied, strict=True) if text.startswith("$ ")]
    assert consoles
    assert [taken for _, taken in consoles if "$ " in taken or not taken] == []
    for text, taken in consoles:
        output = [line for line in text.splitlines() if not line.startswith("$ ") and line not in taken.splitlines()]
        assert [line for line in output if line.strip() and line in taken.splitlines()] == []
        assert [
            line for line in text.splitlines() if line.startswith("$ ") and line[2:] not in taken.splitlines()
        ] == []
    assert [
        taken for text, taken in zip(shown, copied, strict=True) if text[:2] != "$ " and taken != text.rstrip()
    ] == []


_VISIBLE = "[...document.querySelectorAll('article img')].filter(img => img.checkVisibility()).map(img => img.src)"


@pytest.mark.parametrize("scheme", THEMES)
def test_front_page_shows_pictures_of_its_theme(browser: Browser, light_address: str, scheme: str) -> None:
    tab = browser.new_tab()
    tab.show(1440, 1000, scheme)
    tab.open(f"{light_address}/index.html")
    assert tab.run(f"({_THEME})({json.dumps(THEMES[scheme])})") == THEMES[scheme]
    shown = tab.run(_VISIBLE)
    assert len(shown) == 6  # four doors, the report, and the moving picture, which follows the theme by itself
    shown = [url for url in shown if not url.endswith("moving-run.svg")]
    assert [url for url in shown if ("-dark.png" in url) != (scheme == "dark")] == []


_FOCUS = """(() => {
  const e = document.activeElement, shown = e.matches('.md-option') ? e.nextElementSibling : e
  const style = getComputedStyle(shown)
  const seen = style.outlineStyle != 'none' && parseFloat(style.outlineWidth) > 0
  return { name: e.getAttribute('aria-label') || e.textContent.trim(), kind: e.className.split(' ')[0], seen }
})()"""


def test_keyboard_reaches_search_theme_and_navigation(browser: Browser, address: str) -> None:
    tab = browser.new_tab()
    tab.show(1440, 1000, "light")
    tab.open(f"{address}/docs/train/strategies.html")
    stops = []
    for _ in range(25):
        tab.press("Tab", 9)
        stops.append(tab.run(_FOCUS))
    assert [stop for stop in stops if not stop["seen"]] == []
    kinds = [stop["kind"] for stop in stops]
    assert kinds[0] == "md-skip"
    order = [kinds.index(kind) for kind in ("md-option", "md-search__button", "md-tabs__link", "md-nav__link")]
    assert order == sorted(order)
    assert {"Learn", "Reference"} <= {stop["name"] for stop in stops}


_ASK = """async (typed, wanted) => {
  const part = name => [...document.querySelectorAll('*')].map(e => e.shadowRoot?.querySelector(name)).find(Boolean)
  const until = async (what, seconds) => {
    for (let left = seconds * 20; left > 0 && !what(); left--) await new Promise(wake => setTimeout(wake, 50))
  }
  const results = () => (part('[role=listbox]')?.innerText ?? '').toLowerCase()
  const type = words => {
    part('input').value = words
    part('input').dispatchEvent(new InputEvent('input', {bubbles: true}))
  }
  await until(() => part('input'), 20)
  type('')
  await until(() => !results(), 20)
  type(typed)
  await until(() => results().includes(wanted), 20)
  return results()
}"""


@pytest.mark.parametrize("place", ["served", "from disk"])
def test_search_box_finds_terms(browser: Browser, site: Path, address: str, place: str) -> None:
    tab, base = browser.new_tab(), address if place == "served" else site.as_uri()
    tab.show(1440, 1000, "light")
    tab.open(f"{base}/docs/learn/course.html")
    tab.run("document.querySelector('.md-search__button').focus()")
    tab.press("Enter", 13, "\r")
    found = {term: tab.run(f"({_ASK})({json.dumps(term)}, {json.dumps(term.lower())})") for term in TERMS}
    assert {term: shown for term, shown in found.items() if term.lower() not in shown} == {}
    assert tab.faults == []
    assert [url for url in tab.requests if not url.startswith((address, "file:", "data:", "blob:"))] == []


_FILTER = """words => {
  const box = document.querySelector('article input.filter')
  box.value = words
  box.dispatchEvent(new InputEvent('input', {bubbles: true}))
  const shown = name => [...document.querySelectorAll(`article ${name}`)].filter(e => e.checkVisibility())
  return [shown('h3').map(e => e.id), shown('li').length, document.querySelector('.filter-count').innerText]
}"""


def test_known_errors_open_and_are_filtered_by_a_piece_of_a_message(browser: Browser, light_address: str) -> None:
    tab, page = browser.new_tab(), f"{light_address}/docs/observe/known-errors.html"
    tab.show(1440, 1000, "light")
    tab.open(page)
    everything, patterns, count = tab.run(f"({_FILTER})('')")
    assert len(everything) > 200
    assert patterns == 0  # only the names, until one is opened
    assert count == f"{len(everything)} errors"
    found, patterns, count = tab.run(f"({_FILTER})('Invalid QOS specification')")
    assert found == ["slurm-qos"]
    assert patterns > 0
    assert count == f"1 of {len(everything)} errors"
    assert tab.run(f"({_FILTER})('no such words')")[0] == []
    tab.open("about:blank")
    tab.open(f"{page}#slurm-qos")
    assert tab.run("document.getElementById('slurm-qos').getAttribute('aria-expanded')") == "true"
    assert tab.faults == []


def test_glossary_has_letters_that_lead_to_its_terms(browser: Browser, light_address: str) -> None:
    tab = browser.new_tab()
    tab.open(f"{light_address}/docs/glossary.html")
    links = tab.run("[...document.querySelectorAll('.letters a')].map(a => a.getAttribute('href'))")
    assert links[:2] == ["#letter-a", "#letter-b"]
    assert {"#rank", "#all-reduce", "#local-rank"} <= set(links)
    assert tab.run(f"{json.dumps(links)}.filter(link => !document.getElementById(link.slice(1)))") == []


def test_wide_tables_say_that_they_scroll(browser: Browser, light_address: str) -> None:
    tab = browser.new_tab()
    tab.show(390, 1000, "light")
    tab.open(f"{light_address}/docs/measure/collectives.html")
    told = tab.run("""[...document.querySelectorAll('.md-typeset__scrollwrap')].map(e =>
        [e.scrollWidth > e.clientWidth + 1, getComputedStyle(e, '::before').content.includes('scrolls')])""")
    assert {tuple(pair) for pair in told} == {(True, True), (False, False)}
