"""`%%ranks` in a real JupyterLab with a browser: what a user does, then 200 cells with planted errors.

    python benchmarks/jupyter.py [--cells 200] [--seed 0] [--pictures FOLDER]

Starts JupyterLab with settings of its own, and works in it with Chromium as a user does: keys run cells, clicks stop
them and restart the kernel, and what is checked is what the page shows. First, in the light and the dark theme: a lab's
notebook, an error on one rank, a hang, the stop button, a picture, a restart of the kernel while a cell runs, and the
end of the server. Then many cells, of which a fifth fails, hangs, is interrupted or ends a rank's process; between
them, cells check that the ranks still compute and have kept their variables. At the end, the server is killed.

It needs JupyterLab and jupytext in its environment (`pip install jupyterlab jupytext`), and Chromium.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[1] / "tests" / "tools" / "site"))
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from browser import Browser, Tab, chromium, find_browser

LIMIT_S = 300.0
"""Longest wait for anything; it only ends a benchmark that has failed."""
TOKEN = "frog"
LAB = "lab6"
EMPTY = {
    "cells": [],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
START = "%%ranks --world 2\nimport os, signal, time\nimport torch, torch.distributed as dist\nrank = dist.get_rank()"
WAITS = "print('waits', flush=True)\n"
LONG = "for step in range(10_000):\n    print('step', step, 'on rank', rank)\n    time.sleep(0.1)"


class Failed(Exception):
    """Something was not as it should be."""


@contextlib.contextmanager
def jupyterlab(folder: Path, theme: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run JupyterLab in a folder during a block; yield its address and its process."""
    own = folder / ".jupyter"
    settings = own / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": f"JupyterLab {theme.title()}"}))
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    env = {**os.environ, "IPYTHONDIR": str(own / "ipython"), "JUPYTER_PREFER_ENV_PATH": "1"}
    env |= {f"JUPYTER_{kind.upper()}_DIR": str(own / kind) for kind in ("config", "data", "runtime")}
    env |= {f"JUPYTERLAB_{kind.upper()}_DIR": str(own / kind) for kind in ("settings", "workspaces")}
    words = ["--no-browser", "--expose-app-in-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    words += [f"--IdentityProvider.token={TOKEN}", *(["--allow-root"] if os.geteuid() == 0 else [])]
    log = own / "log"
    with open(log, "wb") as file:
        server = psutil.Popen(
            [sys.executable, "-m", "jupyterlab", *words], cwd=folder, env=env, stdout=file, stderr=file
        )
    try:
        url, until_s = None, time.monotonic() + LIMIT_S
        while url is None:
            if server.poll() is not None or time.monotonic() > until_s:
                raise Failed(f"JupyterLab did not start:\n{log.read_text()}")
            time.sleep(0.1)
            for facts in (own / "runtime").glob("jpserver-*.json"):
                with contextlib.suppress(ValueError):  # half written
                    url = json.loads(facts.read_text())["url"]
        yield url, server
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [server, *server.children(recursive=True)]
            server.terminate()
            psutil.wait_procs([server], timeout=30)
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


WIDGET = "jupyterapp.shell.currentWidget"
CELL = f"{WIDGET}.content.activeCell"
SHOWN = "document.querySelector('.jp-Notebook .jp-Cell.jp-mod-active .jp-OutputArea')"
CONTRAST = """(() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n }
  const over = (top, low, share) => low.map((part, i) => i < 3 ? top[i] * share + part * (1 - share) : 1)
  const light = color => [0, 1, 2].map(i => color[i] / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055)
    ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
  const chain = e => e ? [...chain(e.parentElement), e] : []
  return Math.min(...[...OUTPUT.querySelectorAll('pre, .frog-name, .frog-line, svg text, li')].map(e => {
    let back = [255, 255, 255, 1], opacity = 1
    for (const each of chain(e)) {
      const style = getComputedStyle(each), color = rgba(style.backgroundColor)
      back = over(color, back, color[3])
      if (OUTPUT.contains(each)) opacity *= style.opacity
    }
    const style = getComputedStyle(e), own = rgba(e.tagName === 'text' ? style.fill : style.color)
    const [one, other] = [light(over(own, back, own[3] * opacity)), light(back)]
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)
  }))
})()""".replace("OUTPUT", SHOWN)
"""The least contrast between a text of an output and what is behind it."""


class Notebook:
    """A notebook in a tab of the browser."""

    def __init__(self, tab: Tab, url: str, name: str, pictures: Path | None) -> None:
        self.tab, self._pictures = tab, pictures
        tab.show(1300, 950, "light")
        tab.open(f"{url}lab/tree/{name}?token={TOKEN}&reset")
        ready = f"{WIDGET}.sessionContext.session.kernel.status === 'idle' && document.querySelector('.jp-Notebook')"
        self.until(ready, "the notebook")

    def until(self, fact: str, what: str) -> None:
        """Wait until an expression is true on the page."""
        until_s = time.monotonic() + LIMIT_S
        while not self.tab.run(f"(() => {{ try {{ return Boolean({fact}) }} catch {{ return false }} }})()"):
            if time.monotonic() > until_s:
                self.picture("stuck")
                raise Failed(f"never seen: {what}; the cell shows {self.output()!r}")
            time.sleep(0.02)

    def output(self) -> str:
        """Return what the page shows below the selected cell."""
        return str(self.tab.run(f"{SHOWN}?.innerText ?? ''")).strip()

    def until_shown(self, text: str) -> None:
        self.until(f"{SHOWN}.innerText.includes({json.dumps(text)})", repr(text))

    def add(self, code: str) -> None:
        """Append a cell and select it."""
        content = f"{WIDGET}.content"
        self.tab.run(f"{content}.activeCellIndex = {content}.widgets.length - 1")
        self.tab.run("jupyterapp.commands.execute('notebook:insert-cell-below').then(() => 1)")
        self.tab.run(f"{CELL}.model.sharedModel.setSource({json.dumps(code)})")

    def start(self) -> None:
        """Press Ctrl-Enter."""
        self.tab.run(f"{WIDGET}.content.mode = 'command', {WIDGET}.content.node.focus()")
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 2}
        self.tab.call("Input.dispatchKeyEvent", type="rawKeyDown", **key)
        self.tab.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def finish(self) -> str:
        """Wait for the end of the selected cell, and return its output."""
        idle = f"{WIDGET}.sessionContext.session.kernel.status === 'idle'"
        self.until(f"{CELL}.model.executionCount !== null && {idle}", "the end of the cell")
        return self.output()

    def run(self, code: str) -> str:
        """Run code in a new cell, and return its output."""
        self.add(code)
        self.start()
        return self.finish()

    def run_and_stop(self, code: str, once: str) -> str:
        """Press the stop button when a cell has shown a text; return its output."""
        self.add(code)
        self.start()
        self.until_shown(once)
        self.click('[data-command="notebook:interrupt-kernel"]')
        return self.finish()

    def click(self, selector: str) -> None:
        """Click the visible element that a selector finds."""
        boxes = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.getBoundingClientRect())"
        self.until(f"{boxes}.some(box => box.width)", selector)
        box = json.loads(self.tab.run(f"JSON.stringify({boxes}.find(box => box.width))"))
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        self.tab.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased"):
            self.tab.call("Input.dispatchMouseEvent", type=kind, **place, button="left", clickCount=1)

    def picture(self, name: str) -> None:
        """Write a picture of the page, if pictures are wanted."""
        if self._pictures is not None:
            self.tab.run(f"{CELL}.node.scrollIntoView({{block: 'end'}})")
            data = self.tab.call("Page.captureScreenshot", format="png")["data"]
            (self._pictures / f"{name}.png").write_bytes(base64.b64decode(data))


def check(fact: bool, what: str, shown: object = "") -> None:
    if not fact:
        raise Failed(f"{what}: not so; shown: {shown}")


# ---- what a user does ------------------------------------------------------------------------------------------------


def use_as_a_user(url: str, server: psutil.Process, browser: Browser, theme: str, pictures: Path | None) -> None:
    """Go through the states of a notebook, and end the server while ranks are alive."""
    num_cells = run_lab(Notebook(browser.new_tab(), url, f"{LAB}.ipynb", pictures), theme)
    print(f"{theme}: all {num_cells} code cells of {LAB} ran, one of them with its hang", flush=True)
    of_lab = server.children(recursive=True)
    notebook = Notebook(browser.new_tab(), url, "new.ipynb", pictures)
    contrasts = []

    def seen(name: str) -> None:
        notebook.picture(f"{theme}-{name}")
        contrasts.append(notebook.tab.run(CONTRAST))

    notebook.run("%load_ext frog")
    notebook.add(START)
    notebook.start()
    notebook.until_shown("starting a world of 2 ranks")
    seen("starting")
    notebook.finish()
    shown = notebook.run("%%ranks\nprint('before', rank)\n1 / rank")
    seen("error")
    check("ZeroDivisionError: division by zero" in shown and "1.0" in shown, "both ranks show their end", shown)
    boxes = f"[...{SHOWN}.querySelectorAll('.frog-card')].map(card => card.getBoundingClientRect().top)"
    check(len(set(notebook.tab.run(boxes))) == 1, "cards of two ranks stand side by side")
    shown = notebook.run("%%ranks\nif rank == 0:\n    dist.all_reduce(torch.ones(2))")
    seen("hang")
    check("hang: rank 0 waits for rank 1" in shown and "waits in all_reduce" in shown, "a hang says who waits", shown)
    notebook.run("%ranks_draw")
    seen("draw-hang")
    notebook.add(f"%%ranks\n{LONG}")
    notebook.start()
    notebook.until_shown("step 40 on rank 1")
    at_end = f"[...{SHOWN}.querySelectorAll('.frog-end')].every(box => box.scrollHeight > box.clientHeight + 20 && "
    notebook.until(f"{at_end} Math.abs(box.scrollTop) < 1)", "a long output that is scrolled to its end")
    seen("running")
    notebook.click('[data-command="notebook:interrupt-kernel"]')
    shown = notebook.finish()
    seen("interrupted")
    check(shown.count("KeyboardInterrupt") == 2, "the stop button ends the cell on both ranks", shown)
    check("keep their variables" in shown, "the ranks continue", shown)
    notebook.run("%%ranks\nfor size in (10, 10_000, 1_000_000):\n    dist.all_reduce(torch.ones(size))")
    notebook.run("%ranks_draw")
    seen("draw")
    check(notebook.tab.run(f"{SHOWN}.querySelector('svg').clientWidth > 400"), "the picture is drawn")
    notebook.add(f"%%ranks\n{LONG}")
    notebook.start()
    notebook.until_shown("step 3 on rank 1")
    ranks = [each for each in server.children(recursive=True) if each not in of_lab]
    notebook.click('[data-command="notebook:restart-kernel"]')
    notebook.click(".jp-Dialog .jp-mod-accept")
    check_ended(ranks, "a restart of the kernel while a cell runs")
    notebook.run("%load_ext frog")
    shown = notebook.run(f"{START}\nrank")
    check("0" in shown and "1" in shown, "a world starts in the new kernel", shown)
    family = [server, *server.children(recursive=True)]
    server.terminate()
    check_ended(family, "the end of the server with a world alive")
    check(
        notebook.tab.faults == [] or all("ws" in fault or "ERR" in fault for fault in notebook.tab.faults), "no fault"
    )
    print(f"{theme}: an error, a hang, live output and the stop button, pictures, a restart: as described", flush=True)
    print(f"{theme}: least contrast of a text {min(contrasts):.1f} to 1; at least 4.5 is readable")
    print(
        f"{theme}: no process left of {len(ranks)} after the kernel's restart, of {len(family)} after the server's end",
        flush=True,
    )
    check(min(contrasts) >= 4.5, "every text is readable", contrasts)


def run_lab(notebook: Notebook, theme: str) -> int:
    """Run all cells of a lab's notebook, as a user presses Ctrl-Enter in each; return their number."""
    content, num_run = f"{WIDGET}.content", 0
    for number in range(notebook.tab.run(f"{content}.widgets.length")):
        notebook.tab.run(f"{content}.activeCellIndex = {number}")
        if notebook.tab.run(f"{CELL}.model.type") != "code":
            continue
        notebook.start()
        shown = notebook.finish()
        num_run += 1
        check(not re.search("Error|CellFailed", shown), f"cell {number} of {LAB} runs", shown)
        notebook.picture(f"{theme}-{LAB}-{number:02}")
    return num_run


def check_ended(processes: list[psutil.Process], after: str) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    check(alive == [], f"no process is left after {after}", [each.cmdline() for each in alive])


# ---- many cells ------------------------------------------------------------------------------------------------------

KINDS = {
    "error on a rank": (10, "%%ranks\nif rank == 1:\n    raise ValueError('planted')", "ValueError: planted"),
    "syntax error": (3, "%%ranks\n1 +", "SyntaxError"),
    "hang": (7, "%%ranks\nif rank == 0:\n    dist.all_reduce(torch.ones(2))", "hang: rank 0 waits for rank 1"),
    "mismatched calls": (4, "%%ranks\ndist.barrier() if rank else dist.recv(torch.ones(2), 1)", "hang: "),
    "stopped loop": (6, f"%%ranks\n{WAITS}while True:\n    time.sleep(0.01)", "KeyboardInterrupt"),
    "stopped wait": (4, f"%%ranks\n{WAITS}dist.barrier() if rank else time.sleep(1000)", "KeyboardInterrupt"),
    "stop ignored": (
        2,
        f"%%ranks\n{WAITS}while True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass",
        "did not react",
    ),
    "process ended": (3, "%%ranks\nif rank == 0:\n    os._exit(3)\ndist.barrier()", "ended with exit code 3"),
    "process killed": (2, "%%ranks\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
}
"""What is planted: how often in 200 cells, the cell, and what it shows."""
SUM = "%%ranks\nstep = torch.ones(1)\ndist.all_reduce(step)\ntotal += step\nprint('sum', int(total))"


@dataclass
class Tally:
    """What many cells did."""

    planted: Counter[str] = field(default_factory=Counter)
    good_s: list[float] = field(default_factory=list)
    planted_s: dict[str, list[float]] = field(default_factory=dict)
    restarts: int = 0
    regroups: int = 0


def run_many(notebook: Notebook, num_cells: int, seed: int) -> Tally:
    """Run cells in a world of two ranks, and check after each planted error that the world still computes."""
    draw, tally, expected = random.Random(seed), Tally(), 0
    kinds = [kind for kind, (often, _, _) in KINDS.items() for _ in range(max(1, round(often * num_cells / 200)))]
    kinds = draw.sample(kinds, min(len(kinds), num_cells // 4))
    places = dict(zip(sorted(draw.sample(range(2, num_cells - 1), len(kinds))), kinds, strict=True))
    notebook.run("%load_ext frog")
    notebook.run(START)
    notebook.run("%ranks total = torch.zeros(1)")
    for number in range(num_cells):
        start, kind = time.monotonic(), places.get(number)
        if kind is None:
            shown = notebook.run(SUM)
            expected += 2
            check(f"sum {expected}" in shown and "all ranks" in shown, f"cell {number} adds", shown)
            tally.good_s.append(time.monotonic() - start)
            continue
        _, code, awaited = KINDS[kind]
        shown = notebook.run_and_stop(code, "waits") if "stop" in kind else notebook.run(code)
        check(awaited in shown and "CellFailed" in shown, f"cell {number}, {kind}, shows {awaited!r}", shown)
        tally.planted[kind] += 1
        tally.planted_s.setdefault(kind, []).append(time.monotonic() - start)
        tally.regroups += "have a new process group" in shown
        if "the world was started again" in shown:
            tally.restarts += 1
            lost = [line for line in shown.splitlines() if line.startswith("lost") and "total" in line]
            check(len(lost) == kind.startswith("process"), f"cell {number}: only a lost process loses variables", shown)
            if lost:  # by the rank whose process ended
                notebook.run(f"{START}\ntotal = torch.full((1,), {expected}.0)")
    return tally


# ---- all -------------------------------------------------------------------------------------------------------------


def missing() -> str:
    """Return what this machine lacks for the benchmark."""
    packages = [name for name in ("jupyterlab", "jupytext") if find_spec(name) is None]
    if packages:
        return f"{' and '.join(packages)} not installed in {sys.prefix}: pip install {' '.join(packages)}"
    return "" if find_browser() else "Chromium is not installed: make system"


def prepare(folder: Path) -> Path:
    """Write the notebooks into a folder."""
    import jupytext

    folder.mkdir()
    jupytext.write(jupytext.read(Path(__file__).parents[1] / "notebooks" / f"{LAB}.py"), folder / f"{LAB}.ipynb")
    (folder / "new.ipynb").write_text(json.dumps(EMPTY))
    return folder


def versions() -> str:
    names = ("jupyterlab", "ipykernel", "ipython")
    found = []
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    browser = subprocess.run([str(find_browser()), "--version"], capture_output=True, text=True, check=False)
    return ", ".join([*found, browser.stdout.partition(" built")[0].strip()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="write a picture of each state there")
    parser.add_argument("--only-cells", action="store_true", help="leave out what a user does first")
    parser.add_argument("--tiny", action="store_true", help="20 cells only; nothing if a requirement is missing")
    args = parser.parse_args()
    if lacks := missing():
        print(f"not run: {lacks}")
        return 0 if args.tiny else 1
    if args.pictures is not None:
        args.pictures.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(versions(), flush=True)
    program = find_browser()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            with chromium(program, folder / "profile") as browser:
                for theme in () if args.tiny or args.only_cells else ("light", "dark"):
                    with jupyterlab(prepare(folder / theme), theme) as (url, server):
                        use_as_a_user(url, server, browser, theme, args.pictures)
                with jupyterlab(prepare(folder / "many"), "light") as (url, server):
                    notebook = Notebook(browser.new_tab(), url, "new.ipynb", args.pictures)
                    tally = run_many(notebook, 20 if args.tiny else args.cells, args.seed)
                    family = [server, *server.children(recursive=True)]
                    server.kill()
                    check_ended(family, "kill -9 of the server")
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    print_tally(tally, args.seed)
    return 0


def print_tally(tally: Tally, seed: int) -> None:
    num_planted = tally.planted.total()
    print(
        f"{len(tally.good_s) + num_planted} cells, {num_planted} of them planted (seed {seed}): the world survived all"
    )
    for kind, own in sorted(tally.planted_s.items()):
        print(f"  {kind:18} {len(own):3} cells, median {statistics.median(own):5.1f} s, longest {max(own):5.1f} s")
    good = sorted(tally.good_s)
    median_s = statistics.median(good)
    print(f"  {'sums between them':18} {len(good):3} cells, median {median_s:5.2f} s, longest {good[-1]:.2f} s")
    print(f"process groups made again {tally.regroups}, worlds started again {tally.restarts}")
    print("no process left after kill -9 of the server")


if __name__ == "__main__":
    sys.exit(main())
