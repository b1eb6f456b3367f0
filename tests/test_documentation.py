"""Files, Makefile targets and links named in the documentation exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
NAMED = re.compile(r"`((?:src|tests|benchmarks|scripts|docs|config|\.github)/[\w./-]*)`")
IN_GLOSSARY = re.compile(r"`((?:[a-z_]+/)+(?:\w+\.py)?)`")
HISTORY = {"docs/development/log.md", "CHANGELOG.md"}
"""Pages that may refer to files that no longer exist."""


def is_there(name: str) -> bool:
    """Return True if a file exists in the project or, as some pages write it, in src/frog."""
    return any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "frog"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_pages_exist(page: Path) -> None:
    if str(page.relative_to(ROOT)) in HISTORY:
        return
    named = set(NAMED.findall(page.read_text()))
    assert sorted(name for name in named if "NAME" not in name and not is_there(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_linked_pages_exist(page: Path) -> None:
    targets = {target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())}
    local = {target for target in targets if target and "://" not in target}
    assert sorted(target for target in local if not (page.parent / target).exists()) == []


def anchors_of(page: Path) -> set[str]:
    """Return a page's link targets: the anchors that GitHub makes from headings, and explicit ones."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    plain = [re.sub(r"<[^>]+>|\]\([^)]*\)", "", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", words).lower().replace(" ", "-") for words in plain} | {
        *re.findall(r'<a id="([^"]+)"', text)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_linked_anchors_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]*\.md)?#([\w-]+)\)", page.read_text())
    targets = {(page.parent / name if name else page, anchor) for name, anchor in links}
    assert sorted(f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors_of(target)) == []


def test_glossary_references_exist() -> None:
    named = re.findall(r" See (.+)\.$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    places = {place for where in named for place in IN_GLOSSARY.findall(where)}
    assert len(places) > 50
    assert (
        sorted(place for place in places if not any((base / place).exists() for base in (ROOT / "src/frog", ROOT)))
        == []
    )


def test_ci_calls_existing_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in (".ci/run", *(f".github/workflows/{name}.yml" for name in ("ci", "site", "release"))):
        called = {
            word
            for line in re.findall(r"\bmake ([a-z -]+)(?: [A-Z]+=\S+)?$", (ROOT / file).read_text(), re.MULTILINE)
            for word in line.split()
        }
        assert called
        assert called <= targets, f"{file}: {called - targets}"


def test_release_notes_are_the_changelog_of_the_version(tmp_path: Path) -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    line = re.search(r"- run: (awk .* CHANGELOG\.md) >", workflow)
    assert line
    (tmp_path / "CHANGELOG.md").write_text("# Log\n\n## [Unreleased]\n\n## [0.2.0]\n\n- b\n\n## [0.1.0]\n\n- a\n")
    env = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": "v0.2.0"}
    done = subprocess.run(["bash", "-c", line[1]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout == "## [0.2.0]\n\n- b\n\n"
