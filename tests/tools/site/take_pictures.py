"""Create the pictures of the front page and the README, light and dark, from real runs and a real check.

python tests/tools/site/take_pictures.py [REPORT]     needs Chromium and the decks (`make slides`); takes three minutes

REPORT: report.html of a run of config/demo.toml on an otherwise idle machine; without it, the demo runs now.
"""

from __future__ import annotations

import base64
import html
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from browser import ROOT, Tab, chromium, find_browser
from PIL import Image

DECKS = ROOT / "build/slides/decks"
RING = """(() => {
  const shown = [...document.querySelectorAll('svg[data-marpit-svg]')]
  const at = shown.findIndex(slide => /second half/i.test(slide.querySelector('h1, h2')?.textContent))
  if (at >= 0) location.hash = at + 1
})()"""
"""Opens the slide of session B about the second half of a ring all-reduce."""
HANG = "import torch.distributed as dist; dist.init_process_group(); dist.get_rank() and dist.barrier()\n"
"""A program in which rank 1 waits for a barrier that rank 0 never calls."""
COLORS = {"light": ("#f6f6f2", "#1b1d21"), "dark": ("#14171a", "#e6e6e0")}
SETTLE = "new Promise(done => setTimeout(done, 1500))"


def main() -> None:
    program = find_browser()
    decks = sorted(DECKS.rglob("session-b.html"))
    if program is None or not decks:
        raise SystemExit("error: Chromium and the decks are needed\n  try: make system slides")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place in ("config", "src"):
            (folder / place).symlink_to(ROOT / place)
        frog(folder, "data prepare")
        demo = Path(sys.argv[1]).resolve() if sys.argv[1:] else make_demo(folder)
        said = make_runs(folder)
        with chromium(program, folder / "profile") as browser:
            tab = browser.new_tab()
            for scheme in COLORS:
                for target, width, url, box in shots(folder, demo, decks[0], said, scheme):
                    take(tab, scheme, width, url, box, ROOT / "docs/pictures" / target)


def make_demo(folder: Path) -> Path:
    """Run the demo; return its report."""
    frog(folder, "run --nproc 4 -- train config/demo.toml")
    frog(folder, "report demo")
    return folder / "runs/demo/report.html"


def make_runs(folder: Path) -> dict[str, str]:
    """Run a world of two nodes, the check of a wrong solution and a program that hangs.

    Returns: what the terminal shows after the last two, by the name of their door.
    """
    frog(folder, "run --nodes 2x2 -- train config/demo.toml --set name=nodes --set train.steps=40 --set eval.every=40")
    frog(folder, "report nodes")
    frog(folder, "learn init learner")
    solution = frog(folder, "learn dev show 2.1 wrong/sum-is-average")
    (folder / "learner/exercises/lab2/01_average_gradients/step.py").write_text(solution)
    (folder / "my.py").write_text(HANG)
    frog(folder, "run --nproc 2 -- my.py", may_fail=True)
    return {
        "learn": "$ frog learn check 2.1\n" + frog(folder / "learner", "learn check 2.1", may_fail=True),
        "debug": diagnosed(frog(folder, "diagnose latest", may_fail=True)),
    }


def diagnosed(said: str) -> str:
    """Return what the terminal shows of a hang, without the evidence, which has no place in a small picture."""
    verdict, advice = said.partition("Evidence")[0], said.partition("What to do")[2]
    return f"$ frog run --nproc 2 -- my.py\n…\n$ frog diagnose latest\n{verdict}…\n\nWhat to do{advice}"


def frog(folder: Path, words: str, may_fail: bool = False) -> str:
    line = [str(Path(sys.executable).parent / "frog"), *words.split()]
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "54"}
    done = subprocess.run(line, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise SystemExit(f"error: frog {words}\n{done.stdout}{done.stderr}")
    return done.stdout


def shots(
    folder: Path, demo: Path, deck: Path, said: dict[str, str], scheme: str
) -> Iterator[tuple[str, int, str, str]]:
    """Yield for each picture its file name, window width, address, and a script that returns the clipping box."""
    end = ".png" if scheme == "light" else "-dark.png"
    pages = {door: folder / f"{door}-{scheme}.html" for door in said}
    for door, page in pages.items():
        page.write_text(terminal(said[door], *COLORS[scheme]))
    nodes = (folder / "runs/nodes/report.html").as_uri()
    yield f"report{end}", 1200, demo.as_uri(), "[0, 0, 1200, edge('#time .bars', 'bottom') + 24]"
    for door, page in pages.items():
        yield f"door-{door}{end}", 800, page.as_uri(), "[0, 0, 800, 450]"
    yield f"door-teach{end}", 800, deck.as_uri(), "[0, 0, 800, 450]"
    yield f"door-cluster{end}", 640, nodes, "[0, edge('#timeline', 'top') - 20, 640, 360]"


def terminal(text: str, ground: str, ink: str) -> str:
    style = f"margin: 0; padding: 28px 32px; background: {ground}; color: {ink}; font: 19px/1.45 monospace"
    lines = f'<pre style="margin: 0; white-space: pre-wrap">{html.escape(text)}</pre>'
    return f'<meta charset="utf-8"><body style="{style}">{lines}'


def take(tab: Tab, scheme: str, width: int, url: str, box: str, target: Path) -> None:
    tab.open("about:blank")
    tab.show(width, 450, scheme)
    tab.open(url)
    tab.run(SETTLE)
    tab.run(RING)
    tab.run("document.querySelectorAll('.bespoke-marp-osc, #timeline .tabs').forEach(part => part.remove())")
    x, y, w, h = tab.run(f"(() => {{ {_EDGE} return {box} }})()")
    clip = {"x": x, "y": y, "width": w, "height": h, "scale": max(1, 800 / w)}
    data = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
    target.write_bytes(base64.b64decode(data))
    Image.open(target).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    print(target.relative_to(ROOT), Image.open(target).size, target.stat().st_size)


_EDGE = "const edge = (name, side) => document.querySelector(name).getBoundingClientRect()[side] + scrollY;"

if __name__ == "__main__":
    main()
