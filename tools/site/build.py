"""Build the site: lay out the pages, generate the reference, run the generator, remove network requests."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from frog import __version__
from frog.core.errors import FrogError, UsageError
from frog.core.files import write_atomic
from tools.site.examples import example_pages
from tools.site.finish import finish_page
from tools.site.nav import navigation
from tools.site.pages import lay_out
from tools.site.pictures.catalog import PICTURES, script_of
from tools.site.redirects import write_redirects
from tools.site.reference import reference_pages
from tools.site.search import arrange_search

ASSETS = Path(__file__).parent / "assets"
SHIM = "https://unpkg.com/iframe-worker/shim"
"""Script that the generator fetches so that search works from disk; our copy is in assets/."""


def is_current(root: Path, site: Path) -> bool:
    """True if the site is newer than all its sources."""
    made = site / "index.html"
    if not made.exists():
        return False
    places = ("docs", "tools", "labs", "config", "scripts", "src", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    files = [path for place in places for path in [root / place, *(root / place).rglob("*")] if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts and "egg-info" not in str(path)]
    return made.stat().st_mtime > max(path.stat().st_mtime for path in files)


def build_site(root: Path, parser: argparse.ArgumentParser, work: Path) -> Path:
    """Build the site in `work`; return its folder."""
    if importlib.util.find_spec("zensical") is None:
        raise UsageError("the site needs zensical, which is not installed", "pip install -e '.[docs]'")
    pages = work / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    examples = example_pages(work / "examples")
    lay_out(root, pages, reference_pages(parser) | examples.pages)
    front = pages / "index.md"
    front.write_text(f"{front.read_text()}\n{about(repository_of(root))}\n")
    shutil.copytree(ASSETS, pages / "assets", ignore=shutil.ignore_patterns("*.yml", "search-worker.js"))
    for name, path in examples.files.items():
        shutil.copy(path, pages / "examples" / name)
    (pages / "assets" / "pictures").mkdir()
    for name in PICTURES:
        (pages / "assets" / "pictures" / f"{name}.js").write_text(script_of(name))
    named = {"copyright": f"Frog {__version__}, Apache License 2.0"}
    settings = (
        (ASSETS / "site.yml").read_text()
        + yaml.safe_dump(named)
        + yaml.safe_dump({"nav": navigation(root, examples.titles)})
    )
    write_atomic(work / "mkdocs.yml", settings)
    _generate(work)
    _finish(work / "site")
    write_redirects(work / "site")
    return work / "site"


def about(repository: str | None) -> str:
    """Return the last line of the front page: version, license, changes, and the repository if it is known."""
    parts = [
        f"Frog {__version__}",
        "[Apache License 2.0](LICENSE.md)",
        "[changes](CHANGELOG.md)",
        "[README](project.md)",
    ]
    return " · ".join([*parts, *([f"[repository]({repository})"] if repository else [])])


def repository_of(root: Path) -> str | None:
    """Return the web address of the repository that a clone came from, without user names; None if it has none."""
    line = ["git", "-C", str(root), "config", "--get", "remote.origin.url"]
    found = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    address = re.fullmatch(r"(?:https?://|ssh://|)(?:[^@/\s]+@)?([\w.-]+\.\w+)(?::\d+/|[:/])(\S+?)(?:\.git)?/?", found)
    return f"https://{address[1]}/{address[2]}" if address else None


def _generate(work: Path) -> None:
    line = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(line, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if done.returncode:
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        raise FrogError(
            f"zensical ended with exit code {done.returncode}\n{said[-3000:]}", "correct the pages named above"
        )


def _finish(site: Path) -> None:
    """Finish every page, order the search results and make search work from disk; remove network addresses."""
    for name in ("404.html", "sitemap.xml"):
        (site / name).unlink(missing_ok=True)
    for page in site.rglob("*.html"):
        if page.name.startswith("shown-"):
            continue
        up = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(finish_page(page.read_text(), up).replace(SHIM, f"{up}assets/iframe-worker.js"))
    arrange_search(site)
