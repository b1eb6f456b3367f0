"""The pages of the repository, laid out for the generator in the same tree, so that links that work on the forge also
work on the site. Everything that a page links to is included: another page, a picture, a file as a page.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

from frog.core.errors import UsageError
from frog.learn.quiz.pool import Question, read_pools
from frog.observe.diagnose.known_errors.page import page as known_errors_page
from tools.site.glossary import GLOSSARY, is_learned_from, link_terms, names_of_terms, with_letters
from tools.site.markdown import fence, language_of, prose

_NOT_PROSE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)((?:#[^)\s]*)?\))")
_PICTURES = (".png", ".svg", ".jpg", ".html")
_ANCHORED = re.compile(r'^(#+) <a id="([^"]+)"></a>(.+)$', re.MULTILINE)
"""A heading with an explicit anchor, in the forge's form."""
_DETAILS = '<details markdown="1" data-search-exclude>'
"""Tag of collapsed answers."""
_ANSWER = "<!-- _class: answer -->"
"""Beginning of a slide that answers a vote. It shares the vote's number, so both editions count alike."""
FRONT = "docs/README.md"
"""The site's front page."""
_ELSEWHERE = {FRONT: "index.md", "README.md": "project.md"}
"""Pages whose place on the site differs from that in the repository: the generator creates index.html from both."""
KNOWN_ERRORS, KNOWN_ERRORS_TABLE = "docs/observe/known-errors.md", "src/frog/observe/diagnose/known_errors/table"
"""A generated page, and the folder that it is generated from: a link to the folder leads to the page."""
_INSTRUCTORS = """!!! warning "For instructors"

    Run sheets and questions give answers away, so search does not find them. Learners start with
    [the course](../learn/learn.md).
"""


def source_pages(root: Path) -> list[str]:
    """Return the files that are pages of the site in any case, even without a link to them, and generated pages."""
    found = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found += [*(root / "docs").rglob("*.md"), *(root / "tools" / "slides").glob("*.md")]
    found += (root / "labs").glob("lab*/*/README.md")
    quizzes = [f"{path.relative_to(root)}.md" for path in sorted((root / "labs").glob("lab*/quiz.toml"))]
    generated = [KNOWN_ERRORS] if (root / KNOWN_ERRORS_TABLE).is_dir() else []
    return sorted({path.relative_to(root).as_posix() for path in found} - {FRONT}) + quizzes + generated


def _front_page(text: str) -> str:
    """Return the front page at the root of the site, as wide as the window."""
    text = _LINK.sub(lambda link: posixpath.normpath(posixpath.join("docs", link[1])) + link[2], text)
    return f"---\nhide: [navigation, toc]\n---\n\n{text}"


def lay_out(root: Path, folder: Path, made: dict[str, str]) -> None:
    """Write every page, and everything that pages link to.

    made: additional pages, by path.
    """
    if (root / FRONT).exists():
        made = made | {"index.md": _front_page((root / FRONT).read_text())}
    terms = names_of_terms((root / GLOSSARY).read_text()) if (root / GLOSSARY).exists() else {}
    waiting, done = [*source_pages(root), *made], set[str]()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        text, needs = _linked(root, name, made[name] if name in made else _text_of(root, name, terms), made)
        waiting += [need for need in needs if need.endswith(".md")]
        for need in needs:
            if not need.endswith(".md"):
                _copy(root / need, folder / need)
        place = folder / _ELSEWHERE.get(name, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def _copy(source: Path, target: Path) -> None:
    if source.exists() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _text_of(root: Path, name: str, terms: dict[str, list[str]]) -> str:
    """Convert a page for the generator. `terms` are those of the glossary, which it links."""
    path = root / name
    if name == KNOWN_ERRORS:
        return link_terms(name, known_errors_page(), terms)
    if not path.exists():
        return _page_of_file(path.with_suffix(""), name.removesuffix(".md"))
    text = path.read_text()
    if name == GLOSSARY:
        text = with_letters(text)
    if terms and is_learned_from(name):
        text = link_terms(name, text, terms)
    if text.startswith("---\nmarp: true"):
        return _page_of_deck(text)
    if (path.parent / "manifest.toml").exists() and not text.startswith("# "):
        text = f"# {exercise_title(path)}\n\n{text}"
    if name.startswith("docs/teach/"):
        text = re.sub(r"^(# .*\n)", rf"\1\n{_INSTRUCTORS}", text, count=1)
    return _ANCHORED.sub(r"\1 \3 {#\2}", text).replace("<details>", _DETAILS)


def exercise_title(page: Path) -> str:
    """Return the number and title of an exercise's page: "3.1 ranks of nodes, and back"."""
    title = tomllib.loads((page.parent / "manifest.toml").read_text())["title"]
    return f"{page.parents[1].name.removeprefix('lab')}.{int(page.parent.name[:2])} {title}"


def _linked(root: Path, name: str, text: str, made: dict[str, str]) -> tuple[str, list[str]]:
    """Return a page with links to pages of the site, and the files that they need."""
    needs: list[str] = []

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[1]))
        written, needed = _target(root, found[1], target, made)
        if target == KNOWN_ERRORS_TABLE:
            written, needed = posixpath.relpath(KNOWN_ERRORS, posixpath.dirname(name)), KNOWN_ERRORS
        if needed is None:
            raise UsageError(f"{name}: links to {found[1]}, which does not exist", "correct the link")
        needs.append(needed)
        return written + found[2]

    return _outside_code(text, lambda part: _LINK.sub(link, part)), needs


def _target(root: Path, written: str, target: str, made: dict[str, str]) -> tuple[str, str | None]:
    """Return a link's target on the site, and the page or file that it needs."""
    path = root / target
    if target in _ELSEWHERE:
        return posixpath.join(posixpath.dirname(written), _ELSEWHERE[target]), "index.md" if target == FRONT else target
    if target in made or (path.is_file() and path.suffix in (".md", *_PICTURES)):
        return written, target
    if (path / "README.md").is_file():
        return posixpath.join(written, "README.md"), posixpath.join(target, "README.md")
    if path.is_file():
        return f"{written}.md", f"{target}.md"
    return written, None


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts, at = [], 0
    for code in _NOT_PROSE.finditer(text):
        parts += [change(text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, change(text[at:])])


def _page_of_file(path: Path, name: str) -> str:
    if path.name == "quiz.toml":
        lab = int(path.parent.name.removeprefix("lab"))
        return _page_of_quiz(lab, read_pools(path.parents[1])[lab])
    return f"# {path.name}\n\n`{name}`\n\n{fence(path.read_text(), language_of(path))}"


def _page_of_deck(text: str) -> str:
    """Return the slides in sequence, without notes and without slides that answer a vote."""
    _, _, body = text.partition("\n---\n")
    title = next(line for line in text.splitlines() if line.startswith("title:")).removeprefix("title:").strip(" \"'")
    parts = [f"# {title}\n\nThe slides as text. `make slides` builds the decks, for learners and for instructors.\n"]
    slides = [slide for slide in body.split("\n---\n") if _ANSWER not in slide]
    for number, slide in enumerate(slides, 1):
        shown = re.sub(r"<!--.*?-->", "", slide, flags=re.DOTALL).strip()
        parts.append(re.sub(r"^#+ (.*)$", rf"## {number}. \1", shown, count=1, flags=re.MULTILINE) + "\n")
    return "\n".join(parts)


def _page_of_quiz(lab: int, questions: tuple[Question, ...]) -> str:
    parts = [
        f"# Quiz of lab {lab}\n\n`frog quiz {lab}` asks these in a terminal, mixed with questions of earlier labs.\n"
    ]
    for number, question in enumerate(questions, 1):
        right = [choice.text for choice in question.choices if choice.right]
        right = right or [f"{question.answer:g} {question.unit}".strip()]
        beliefs = [
            f"- “{prose(choice.text)}”: the misconception is that {prose(choice.belief)}"
            for choice in question.choices
            if choice.belief
        ]
        beliefs += [
            f"- {belief.value:g}: the misconception is that {prose(belief.belief)}" for belief in question.beliefs
        ]
        parts.append(f"## Question {number}\n\n{prose(question.text)}\n")
        parts.append("\n".join(f"- {prose(choice.text)}" for choice in question.choices) + "\n")
        answer = f"**{prose('; '.join(right))}.** {prose(question.why)}\n\n" + "\n".join(beliefs)
        parts.append(f"{_DETAILS}<summary>Answer</summary>\n\n{answer}\n\n</details>\n")
    return "\n".join(parts)
