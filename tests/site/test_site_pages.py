"""Pages are laid out as they lie in the repository, with all that they link to; every page has its place."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from frog.core.errors import UsageError
from frog.site import build
from frog.site.build import find_clone
from frog.site.nav import navigation
from frog.site.pages import lay_out, source_pages

ROOT = Path(__file__).parents[2]


def paths_of(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    return set().union(*(paths_of(part) for part in parts))


def test_every_page_of_the_documentation_has_its_place() -> None:
    pages = {page for page in source_pages(ROOT) if page != "slides/README.md"}
    assert sorted(pages - paths_of(navigation(ROOT, {}))) == []


def project(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        path = folder / f"docs/{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (folder / name).write_text(f"# {name}\n")
    (folder / "train.py").write_text("print('```')\n")
    return folder


def test_what_is_linked_comes_along(tmp_path: Path) -> None:
    text = "[the program](../train.py), [a page](b.md#there), [out](https://example.org), `[code](gone.md)`\n"
    root, out = project(tmp_path / "from", a=text + "\n```console\n[also](gone.md)\n```\n", b="# B\n"), tmp_path / "to"
    lay_out(root, out, {"reference/made.md": "[home](../README.md)"})
    assert (out / "docs/a.md").read_text() == (root / "docs/a.md").read_text().replace("../train.py", "../train.py.md")
    assert (out / "train.py.md").read_text() == "# train.py\n\n`train.py`\n\n````python\nprint('```')\n````\n"
    assert (out / "reference/made.md").exists()


def test_a_link_to_nothing_ends_the_build(tmp_path: Path) -> None:
    root = project(tmp_path / "from", a="[gone](gone.md)\n")
    with pytest.raises(UsageError, match=r"docs/a\.md: links to gone\.md, which is not there"):
        lay_out(root, tmp_path / "to", {})


def test_slides_and_quizzes_become_pages(tmp_path: Path) -> None:
    lay_out(ROOT, tmp_path, {})
    deck = (tmp_path / "slides/session-a.md").read_text()
    assert deck.startswith("# Frog, session A")
    assert "marp" not in deck
    assert "<summary>Notes</summary>" in deck
    quiz = (tmp_path / "src/frog/course/labs/lab1/quiz.toml.md").read_text()
    assert quiz.startswith("# Quiz of lab 1\n")
    assert "<summary>Answer</summary>\n\n**9, 2, 7, 4.**" in quiz


def test_without_the_repository_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "__file__", str(tmp_path / "lib/python3.11/site-packages/frog/site/build.py"))
    with pytest.raises(UsageError, match="installed without them") as caught:
        find_clone()
    assert "make docs" in str(caught.value)


def test_without_the_generator_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="zensical, which is not installed") as caught:
        build.build_site(ROOT, argparse.ArgumentParser(), tmp_path)
    assert "frog[docs]" in str(caught.value) or ".[docs]" in str(caught.value)
