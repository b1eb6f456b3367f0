"""Build the decks as HTML and PDF, light and dark: `make slides`. The results are in build/slides/decks:

    learner/      without notes and without answers to the votes, for distribution
    instructor/   with both: the HTML has a presenter view, the PDFs contain the notes as annotations

python tools/slides/build.py            all decks
python tools/slides/build.py --html     HTML only, which needs no Chromium
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

from editions import EDITIONS, edition, figure_style

SLIDES = Path(__file__).resolve().parent
BUILD = SLIDES.parents[1] / "build" / "slides"
DECKS = sorted(path for path in SLIDES.glob("*.md") if path.name != "README.md")
MODULES = BUILD / "node_modules"
MARP = MODULES / ".bin" / "marp"
FONTS = {"Inter": "inter", "JetBrains Mono": "jetbrains-mono"}
WEIGHTS = (400, 700)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
MAC_BROWSER = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
NODE_HELP = "Node.js 18 or later with npm: `make system` on Debian, `brew install node` on a Mac, or nodejs.org"
BROWSER_HELP = "Chromium or Chrome: `make system` on Debian, or your system's; CHROME_PATH names another one"


def find_browser() -> str | None:
    """Return the path of Chromium or Chrome."""
    named = [os.environ.get("CHROME_PATH"), *map(shutil.which, BROWSERS), MAC_BROWSER]
    return next((path for path in named if path and Path(path).exists()), None)


def missing(pdf: bool = True) -> list[str]:
    """Return the missing requirements of a build, and how to install them; empty if the build can start."""
    found = [] if shutil.which("npm") and shutil.which("node") else [NODE_HELP]
    return found + ([BROWSER_HELP] if pdf and find_browser() is None else [])


def install() -> None:
    """Install marp-cli and the fonts in build/slides, unless package.json's versions are there, and write the theme."""
    wanted, have = SLIDES / "package.json", BUILD / "package.json"
    if not (MARP.exists() and have.exists() and have.read_bytes() == wanted.read_bytes()):
        BUILD.mkdir(parents=True, exist_ok=True)
        shutil.copy(wanted, have)
        line = ["npm", "install", "--no-package-lock", "--no-fund", "--no-audit", "--silent"]
        if subprocess.run(line, cwd=BUILD, timeout=600).returncode:
            have.unlink()
            raise SystemExit(
                "error: npm could not install marp-cli and the fonts\n"
                "  try: check the network; npm prints the failed step above"
            )
    write_theme(BUILD / "theme")


def write_theme(folder: Path) -> None:
    """Write the theme with embedded fonts and the figures' colours, so that a built deck looks the same everywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    theme = (SLIDES / "theme" / "frog.css").read_text()
    (folder / "frog.css").write_text(f"{theme}\n{figure_style()}\n{font_faces()}\n")
    shutil.copy(SLIDES / "theme" / "frog-dark.css", folder)


def font_faces() -> str:
    """Return CSS with the fonts' bytes: the Latin letters of each family, regular and bold."""
    return "\n".join(_face(family, weight) for family in FONTS for weight in WEIGHTS)


def _face(family: str, weight: int) -> str:
    name = FONTS[family]
    file = MODULES / "@fontsource" / name / "files" / f"{name}-latin-{weight}-normal.woff2"
    data = base64.b64encode(file.read_bytes()).decode()
    return f'@font-face{{font-family:"{family}";font-weight:{weight};src:url(data:font/woff2;base64,{data})}}'


def marp(*arguments: str) -> None:
    """Run marp-cli with our theme."""
    env = os.environ | {"CHROME_PATH": find_browser() or ""}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        env["CHROME_NO_SANDBOX"] = "1"  # Chromium's sandbox does not start as root
    line = [str(MARP), "--no-stdin", "--no-config-file", "--html", *arguments, "--theme-set", str(BUILD / "theme")]
    done = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"error: marp-cli ended with exit code {done.returncode}\n{done.stdout}")


def build(folder: Path, pdf: bool = True) -> None:
    """Build both editions of all decks, each in its own folder; remove the previous content of `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in EDITIONS:
        build_edition(DECKS, name, folder / name, pdf)


def build_edition(decks: list[Path], name: str, folder: Path, pdf: bool = True) -> None:
    """Build one edition of some decks. The instructor's files have another name, to prevent handing out the wrong ones.

    One run of marp converts all decks: each start of Node.js and marp costs more than a deck, and a browser a second.
    """
    sources = BUILD / "editions" / name
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir(parents=True)
    for deck in decks:
        stem = deck.stem if name == "learner" else f"{deck.stem}-{name}"
        (sources / f"{stem}.md").write_text(edition(deck, name))
    folder.mkdir(parents=True, exist_ok=True)
    marp("--input-dir", str(sources), "-o", str(folder))
    if pdf:
        printed = ["--pdf", *(["--pdf-notes"] if name == "instructor" else []), "--input-dir", str(sources)]
        marp(*printed, "-o", str(folder))
        dark = BUILD / "dark"
        marp(*printed, "--theme", "frog-dark", "-o", str(dark))
        for page in dark.glob("*.pdf"):
            page.rename(folder / f"{page.stem}-dark.pdf")


def main() -> None:
    pdf = "--html" not in sys.argv[1:]
    if lacks := missing(pdf):
        raise SystemExit(
            "error: the slides need programs that are not installed\n" + "".join(f"  - {what}\n" for what in lacks)
        )
    install()
    build(BUILD / "decks", pdf)
    print(f"{BUILD / 'decks'}: {len(DECKS)} decks, each for learners and for the instructor")


if __name__ == "__main__":
    main()
