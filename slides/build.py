"""Build the decks to HTML and PDF, light and dark: `make slides`. What comes out lies in build/slides/decks.

python slides/build.py            all decks
python slides/build.py --html     HTML alone, which needs no Chromium
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SLIDES = Path(__file__).resolve().parent
BUILD = SLIDES.parent / "build" / "slides"
DECKS = sorted(path for path in SLIDES.glob("*.md") if path.name != "README.md")
MARP = BUILD / "node_modules" / ".bin" / "marp"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
MAC_BROWSER = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
NODE_HELP = "Node.js 18 or later with npm: `make system` on Debian, `brew install node` on a Mac, or nodejs.org"
BROWSER_HELP = "Chromium or Chrome: `make system` on Debian, or your system's; CHROME_PATH names another one"


def find_browser() -> str | None:
    """Chromium's or Chrome's program."""
    named = [os.environ.get("CHROME_PATH"), *map(shutil.which, BROWSERS), MAC_BROWSER]
    return next((path for path in named if path and Path(path).exists()), None)


def missing(pdf: bool = True) -> list[str]:
    """What this machine lacks for a build, and how to get it; empty if it can start."""
    found = [] if shutil.which("npm") and shutil.which("node") else [NODE_HELP]
    return found + ([BROWSER_HELP] if pdf and find_browser() is None else [])


def install() -> None:
    """Put marp-cli into build/slides, unless the version of package.json is there."""
    wanted, have = SLIDES / "package.json", BUILD / "package.json"
    if MARP.exists() and have.read_bytes() == wanted.read_bytes():
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.copy(wanted, have)
    line = ["npm", "install", "--no-package-lock", "--no-fund", "--no-audit", "--silent"]
    if subprocess.run(line, cwd=BUILD, timeout=600).returncode:
        have.unlink()
        raise SystemExit("error: npm could not install marp-cli\n  try: is there a network? npm says above what failed")


def marp(*arguments: str) -> None:
    """Run marp-cli on our theme."""
    env = os.environ | {"CHROME_PATH": find_browser() or ""}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        env["CHROME_NO_SANDBOX"] = "1"  # Chromium's sandbox does not start as root
    line = [str(MARP), "--no-stdin", "--no-config-file", *arguments, "--theme-set", str(SLIDES / "theme")]
    done = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"error: marp-cli ended with exit code {done.returncode}\n{done.stdout}")


def build(folder: Path, pdf: bool = True) -> None:
    """All decks, with the figures beside the HTML."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(SLIDES / "figures", folder / "figures", ignore=shutil.ignore_patterns("*.py*"), dirs_exist_ok=True)
    for deck in DECKS:
        html = str(folder / f"{deck.stem}.html")
        marp(str(deck), "-o", html)
        if pdf:
            printed = ("--pdf", "--pdf-notes", "--allow-local-files")
            marp(str(deck), *printed, "-o", str(folder / f"{deck.stem}.pdf"))
            marp(str(deck), *printed, "--theme", "frog-dark", "-o", str(folder / f"{deck.stem}-dark.pdf"))


def main() -> None:
    pdf = "--html" not in sys.argv[1:]
    if lacks := missing(pdf):
        raise SystemExit("error: the slides need what is not here\n" + "".join(f"  - {what}\n" for what in lacks))
    install()
    build(BUILD / "decks", pdf)
    print(f"{BUILD / 'decks'}: {len(DECKS)} decks")


if __name__ == "__main__":
    main()
