"""The site's search answers questions in words, lists guides before internals and never shows answers.

The worker of the built site answers, in Node.js.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.core.errors import FrogError
from tools.site.search import GUIDE, INTERNALS, REFERENCE, arranged, section_name, tier_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TERMS = {
    "rank": "rank",
    "barrier": "barrier",
    "all-reduce": "all-reduce",
    "checkpoint": "checkpoint",
    "Straggler": "straggler",
    "world size": "world",
    "tp": "tensor-parallelism",
}
"""A learner's query, and the glossary anchor that answers it."""
FIRST = {
    "read_run": "reference/api/runs.html#read_run",
    "frog learn check": "reference/commands.html#frog-learn-check",
    "externally-managed-environment": "docs/observe/known-errors.html#externally-managed-environment",
    "sbatch: error: QOSMaxSubmitJobPerUserLimit": "docs/observe/known-errors.html#slurm-limit",
    "ImportError: libcudart.so.12: cannot open shared object file": "docs/observe/known-errors.html#library-conflict",
}
"""A name or a message of an error, and the section that has it."""
TYPED = {
    "kuberne": "glossary#kubernetes",
    "what is a stragler": "glossary#straggler",
    "allreduce": "glossary#all-reduce",
    "Data-Parallelism": "glossary#data-parallelism",
}
"""What is typed, and the section that it means: the beginning of a word, a typing error, a compound, upper case."""

WRITTEN = {
    "questions_tuning.toml": 47,
    "questions_kept.toml": 46,
    "questions_later.toml": 70,
    "questions_users.toml": 168,
}
"""Files of questions, and how many of them the first result must answer. Nearly all have been used to tune by now; a
file says how many were answered when they were first asked: of the second, 44 of 50 on 2026-11-29."""


def questions_of(file: str) -> dict[str, list[str]]:
    """Return the questions of a file, each with the sections that answer it."""
    found: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / file).read_text())["questions"]
    return found


@pytest.fixture(scope="module")
def answers(site: Path) -> dict[str, list[list[str]]]:
    """Return the first pages of results for each query."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed: `make system`")
    line = [node, str(Path(__file__).parent / "ask.js"), str(site), *TERMS, *FIRST, *TYPED, "run"]
    line += [question for file in WRITTEN for question in questions_of(file)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("query", TERMS)
def test_search_for_a_term_lists_the_glossary_first(answers: dict[str, list[list[str]]], query: str) -> None:
    assert answers[query][0][0] == f"docs/glossary.html#{TERMS[query]}"


@pytest.mark.parametrize("query", ["rank", "barrier", "all-reduce", "checkpoint"])
def test_search_lists_guides_before_internals(answers: dict[str, list[list[str]]], query: str) -> None:
    tiers = [tier_of(location) for location in answers[query][0][:5]]
    assert tiers.count(GUIDE) >= 3
    assert INTERNALS not in tiers[:3]


@pytest.mark.parametrize("query", FIRST)
def test_search_lists_an_exact_title_or_message_first(answers: dict[str, list[list[str]]], query: str) -> None:
    assert answers[query][0][0].startswith(FIRST[query])


@pytest.mark.parametrize("file", WRITTEN)
def test_search_answers_questions_in_words_with_its_first_result(
    answers: dict[str, list[list[str]]], file: str
) -> None:
    questions = questions_of(file)
    first = {question: section_name(answers[question][0][0]) for question in questions}
    missed = {question: first[question] for question in questions if first[question] not in questions[question]}
    assert len(questions) >= 50
    assert len(questions) - len(missed) >= WRITTEN[file], missed


def test_sections_that_answer_questions_exist(site: Path) -> None:
    known = {section_name(item["location"]) for item in index_of(site)}
    named = {section for file in WRITTEN for sections in questions_of(file).values() for section in sections}
    assert sorted(named - known) == []


@pytest.mark.parametrize("typed", TYPED)
def test_search_understands_beginnings_typing_errors_and_other_spellings(
    answers: dict[str, list[list[str]]], typed: str
) -> None:
    assert section_name(answers[typed][0][0]) == TYPED[typed]


def test_words_for_a_section_that_does_not_exist_are_refused() -> None:
    item = {"location": "docs/train/data.html#json-lines", "title": "JSON lines", "text": "<p>a</p>", "path": []}
    assert arranged([item], {"train/data#json-lines": "jsonl"})[0]["asks"] == "jsonl"
    with pytest.raises(FrogError, match="train/data#yaml"):
        arranged([item], {"train/data#yaml": "yml"})


def test_search_result_pages_have_no_duplicates(answers: dict[str, list[list[str]]]) -> None:
    assert [len(page) for page in answers["run"]] == [10, 10, 10]
    found = [location for page in answers["run"] for location in page]
    assert len(set(found)) == len(found)


def index_of(site: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((site / "search.json").read_text())["items"]
    return found


def test_search_omits_pages_that_give_answers_away(site: Path) -> None:
    places = {item["location"] for item in index_of(site)}
    assert {"docs/learn/learn.html", "docs/teach/prepare.html#how-many-helpers"} <= places
    omitted = r"docs/teach/(session-|questions|class\.html#assessment)|tools/slides/|src/frog/learn/demo/|.*quiz\.toml"
    assert [place for place in places if re.match(omitted, place)] == []
    unmarked = [page for page in (site / "docs/teach").glob("*.html") if "For instructors</p>" not in page.read_text()]
    assert unmarked == []


def test_search_omits_hidden_answers(site: Path) -> None:
    texts = " ".join(item["text"] for item in index_of(site))
    assert "Answers" not in (site / "docs/labs/lab1.html").read_text().split("<details")[0]
    assert [name for name in ("lab1", "lab2", "lab3") if answer_of(name) in texts] == []


def answer_of(lab: str) -> str:
    """Return the beginning of the first hidden answer on a lab's page, as the index would contain it."""
    text = (ROOT / f"docs/labs/{lab}.md").read_text().partition("<summary>Answers</summary>")[2]
    return text.partition("** ")[2][:40]


def test_both_forms_of_the_search_index_are_equal(site: Path) -> None:
    script = (site / "search.js").read_text()
    assert script.removeprefix("var __index = ") == (site / "search.json").read_text()


def test_search_tiers_name_existing_pages(site: Path) -> None:
    tiers = dict.fromkeys((None, GUIDE, REFERENCE, INTERNALS), 0)
    for page in site.rglob("*.html"):
        tiers[tier_of(page.relative_to(site).as_posix())] += 1
    assert min(tiers.values()) >= 4, tiers
