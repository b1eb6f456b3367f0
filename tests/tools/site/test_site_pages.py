"""Pages keep their place in the repository and include everything they link to; every page is in the navigation."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from frog.core.errors import UsageError
from frog.learn.docs import find_clone
from frog.learn.rules import commands_in
from tools.site import build
from tools.site.nav import navigation
from tools.site.pages import lay_out, source_pages

ROOT = Path(__file__).parents[3]


def paths_of(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    return set().union(*(paths_of(part) for part in parts))


FOR_DEVELOPERS = re.compile(r"docs/development/|docs/architecture\.md|docs/learn/exercises\.md|CONTRIBUTING\.md")


def test_navigation_has_every_page_but_those_for_developers() -> None:
    pages = {page for page in source_pages(ROOT) if page not in ("tools/slides/README.md", "README.md")} | {
        "project.md"
    }
    shown = paths_of(navigation(ROOT, {}))
    assert sorted(page for page in pages - shown if not FOR_DEVELOPERS.match(page)) == []
    assert sorted(page for page in shown if FOR_DEVELOPERS.match(page)) == []


def test_each_developers_page_is_linked_from_contributing() -> None:
    seen, waiting = set[str](), ["CONTRIBUTING.md"]
    while waiting:
        page = waiting.pop()
        for link in re.findall(r"\]\(([^)\s#:]+\.md)", (ROOT / page).read_text()):
            target = (ROOT / page).parent.joinpath(link).resolve().relative_to(ROOT).as_posix()
            if FOR_DEVELOPERS.match(target) and target not in seen:
                seen.add(target)
                waiting.append(target)
    assert sorted(page for page in source_pages(ROOT) if FOR_DEVELOPERS.match(page) and page not in seen) == []


def test_home_has_the_doors_of_the_readme() -> None:
    home, readme = ((ROOT / name).read_text() for name in ("docs/README.md", "README.md"))
    assert commands_in(home.partition('class="doors"')[2]) == [
        command for command in commands_in(readme) if not command.startswith(("git clone", "make demo"))
    ]


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://forge.example/team/frog.git", "https://forge.example/team/frog"),
        ("https://ada:secret@forge.example/team/frog", "https://forge.example/team/frog"),
        ("git@forge.example:team/frog.git", "https://forge.example/team/frog"),
        ("ssh://git@forge.example:2222/team/frog.git", "https://forge.example/team/frog"),
        ("/srv/git/frog.git", None),
        ("", None),
    ],
)
def test_home_links_the_repository_of_the_clone(tmp_path: Path, remote: str, address: str | None) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if remote:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    assert build.repository_of(tmp_path) == address
    assert ("[repository]" in build.about(address)) == bool(address)


def project(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        path = folder / f"docs/{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (folder / name).write_text(f"# {name}\n")
    (folder / "train.py").write_text("print('```')\n")
    return folder


def test_linked_files_are_included(tmp_path: Path) -> None:
    text = "[the program](../train.py), [a page](b.md#there), [out](https://example.org), `[code](gone.md)`\n"
    root, out = project(tmp_path / "from", a=text + "\n```console\n[also](gone.md)\n```\n", b="# B\n"), tmp_path / "to"
    lay_out(root, out, {"reference/made.md": "[home](../README.md)"})
    assert (out / "docs/a.md").read_text() == (root / "docs/a.md").read_text().replace("../train.py", "../train.py.md")
    assert (out / "train.py.md").read_text() == "# train.py\n\n`train.py`\n\n````python\nprint('```')\n````\n"
    assert (out / "reference/made.md").exists()


def test_broken_link_fails_the_build(tmp_path: Path) -> None:
    root = project(tmp_path / "from", a="[gone](gone.md)\n")
    with pytest.raises(UsageError, match=r"docs/a\.md: links to gone\.md, which does not exist"):
        lay_out(root, tmp_path / "to", {})


def test_glossary_headings_keep_their_anchors(tmp_path: Path) -> None:
    lay_out(ROOT, tmp_path, {})
    page = (tmp_path / "docs/glossary.md").read_text()
    assert "\n### weight, parameter {#weight}\n" in page
    assert "<a id=" not in page


def test_deck_page_has_no_notes_and_no_answers(tmp_path: Path) -> None:
    root = project(tmp_path / "from", a="# A\n")
    (root / "tools" / "slides").mkdir(parents=True)
    slides = [
        "# One\n\n<!--\n1 min\nSay: hush.\n-->",
        "## How many?\n\n1. two",
        "<!-- _class: answer -->\n\n## Two",
        "## Last",
    ]
    (root / "tools/slides/a.md").write_text("\n\n---\n\n".join(["---\nmarp: true\ntitle: Deck", *slides]) + "\n")
    lay_out(root, tmp_path / "to", {})
    page = (tmp_path / "to/tools/slides/a.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["1. One", "2. How many?", "3. Last"]
    assert "hush" not in page


def test_page_of_known_errors_is_generated_and_linked(tmp_path: Path) -> None:
    lay_out(ROOT, tmp_path, {})
    page = (tmp_path / "docs/observe/known-errors.md").read_text()
    assert " {#driver-too-old-troubleshooting-3}\n" in page
    assert "[checkpoint](../glossary.md#checkpoint)" in page
    assert "[many more](observe/known-errors.md)" in (tmp_path / "docs/troubleshooting.md").read_text()
    assert "(known-errors.md)" in (tmp_path / "docs/observe/your-program.md").read_text()


def notes_in(slides: Path) -> list[str]:
    """Return the longer lines of the speaker's notes, which Marp stores in comments of several lines."""
    text = "\n".join(path.read_text() for path in sorted(slides.glob("*.md")))
    notes = "\n".join(re.findall(r"<!--\n(.*?)-->", text, re.DOTALL))
    return [line for line in notes.splitlines() if len(line) > 60]


def everything(pages: Path) -> str:
    return "\n".join(path.read_text() for path in pages.rglob("*.md"))


@pytest.mark.slow
def test_slides_and_quizzes_become_pages(tmp_path: Path) -> None:
    lay_out(ROOT, tmp_path, {})
    deck = (tmp_path / "tools/slides/session-a.md").read_text()
    assert deck.startswith("# Frog, session A")
    assert "marp" not in deck
    assert len(notes_in(ROOT / "tools" / "slides")) > 100
    assert [note for note in notes_in(ROOT / "tools" / "slides") if note in everything(tmp_path)] == []
    quiz = (tmp_path / "labs/lab1/quiz.toml.md").read_text()
    assert quiz.startswith("# Quiz of lab 1\n")
    assert "<summary>Answer</summary>\n\n**9, 2, 7, 4.**" in quiz


def test_docs_without_the_repository_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.__file__", str(tmp_path / "lib/python3.11/site-packages/frog/__init__.py"))
    with pytest.raises(UsageError, match="installed without them") as caught:
        find_clone()
    assert "make docs" in str(caught.value)


def test_missing_site_generator_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="zensical, which is not installed") as caught:
        build.build_site(ROOT, argparse.ArgumentParser(), tmp_path)
    assert "frog[docs]" in str(caught.value) or ".[docs]" in str(caught.value)
