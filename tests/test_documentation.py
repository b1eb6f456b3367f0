"""Files, Makefile targets and links named in the documentation exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from harness import LIMIT_S

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / "src" / "frog"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
        *ROOMS.glob("*/README.md"),
    ]
)
NAMED = re.compile(r"`((?:src|tests|benchmarks|scripts|docs|config|\.github)/[\w./-]*)`")
IN_GLOSSARY = re.compile(r"`((?:[a-z_]+/)+(?:\w+\.py)?)`")
HISTORY = {"docs/development/log.md", "CHANGELOG.md"}
"""Pages that may refer to files that no longer exist."""


def is_there(name: str, page: Path) -> bool:
    """Return True if a file exists in the project, in src/frog, or in the room whose README names it."""
    folders = [ROOT, ROOMS, *([page.parent] if page.is_relative_to(ROOMS) else [])]
    return any((folder / name).exists() for folder in folders)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def local_links() -> Iterator[tuple[Path, Path, str]]:
    """Yield each link to a file, or within a page: the page, the linked file and the anchor."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
            if "://" not in target:
                yield page, (page.parent / target).resolve() if target else page, anchor


def test_files_named_in_pages_exist() -> None:
    missing = [
        f"{name_of(page)}: {name}"
        for page in PAGES
        for name in NAMED.findall(page.read_text())
        if name_of(page) not in HISTORY and "NAME" not in name and not is_there(name, page)
    ]
    assert missing == []


def test_linked_pages_exist() -> None:
    links = list(local_links())
    assert len(links) > 300
    assert sorted({f"{name_of(page)}: {target}" for page, target, _ in links if not target.exists()}) == []


@cache
def anchors_of(page: Path) -> set[str]:
    """Return a page's link targets: the anchors that GitHub makes from headings, and explicit ones."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    plain = [re.sub(r"<[^>]+>|\]\([^)]*\)", "", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", words).lower().replace(" ", "-") for words in plain} | {
        *re.findall(r'<a id="([^"]+)"', text)
    }


def test_linked_anchors_exist() -> None:
    links = [link for link in local_links() if link[2] and link[1].suffix == ".md" and link[1].exists()]
    assert len(links) > 80
    missing = [
        f"{name_of(page)}: {target}#{anchor}" for page, target, anchor in links if anchor not in anchors_of(target)
    ]
    assert missing == []


def test_glossary_references_exist() -> None:
    named = re.findall(r" See (.+)\.$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    places = {place for where in named for place in IN_GLOSSARY.findall(where)}
    assert len(places) > 50
    assert (
        sorted(place for place in places if not any((base / place).exists() for base in (ROOT / "src/frog", ROOT)))
        == []
    )


def names_defined_in(path: Path) -> set[str]:
    """Return the functions, classes and methods of a file, and the constants that it assigns."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined | {target.id for target in targets if isinstance(target, ast.Name)}


def parts_of(room: str) -> set[str]:
    """Return the files and folders that the table of a room's README names."""
    rows = re.findall(r"^\| .* \|$", (ROOMS / room / "README.md").read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_answers_of_finding_places_exist_and_room_readmes_lead_to_them() -> None:
    page = (ROOT / "docs/development/finding-places.md").read_text()
    answers = re.findall(r"^\| Where .*\? \| (\w+), `([^`]+)` \| `(\w+)/([^`]+)`: `(\w+)` \|$", page, re.MULTILINE)
    assert len(answers) == page.count("| Where ") == 20
    assert {room for room, *_ in answers} == {path.parent.name for path in ROOMS.glob("*/README.md")}
    wrong = []
    for room, part, folder, file, name in answers:
        place = f"{folder}/{file}"
        if not (ROOMS / place).is_file():
            wrong.append(f"{place} does not exist")
        elif name not in names_defined_in(ROOMS / place):
            wrong.append(f"{place} does not define {name}")
        if part not in parts_of(room):
            wrong.append(f"the README of {room} does not name {part}")
        if folder != room or not fnmatch(file, f"{part}*" if part.endswith("/") else part):
            wrong.append(f"{place} is not in {room}, {part}")
    assert wrong == []


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
    done = subprocess.run(
        ["bash", "-c", line[1]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout == "## [0.2.0]\n\n- b\n\n"
