"""What explain says of correct and wrong job files, word by word: explanations.json has it.

Other tests hold which findings a file has, and in which line. Here no word, number or line of an explanation may change
unnoticed. After a change that is meant: FROG_REWRITE_GOLDEN=1 pytest -n 0
tests/cluster/jobfile/test_kept_explanations.py, and read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_explain_ranks
import test_explain_strangers
import test_explain_traps
import test_explain_wild
from test_explain_traps import CASES, GOOD, ON_MN5, changed, on_mn5
from test_planted_mistakes import PLANTED, RIGHT

from frog.cluster.jobfile.cluster_profile import load_profile
from frog.cluster.jobfile.explain import explain
from frog.cluster.jobfile.line_meanings import explain_lines, summary

KEPT = Path(__file__).with_name("explanations.json")
CLUSTERS = Path(__file__).parents[3] / "config" / "clusters"
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ

RIGHT_TEXTS = {"good": GOOD, **{path.stem: path.read_text() for path in RIGHT}}
TEXTS: dict[str, dict[str, str]] = {
    "right": RIGHT_TEXTS,
    "planted": {
        f"{one['right']} {one['code']}": RIGHT_TEXTS[one["right"]].replace(one["old"], one["new"], 1) for one in PLANTED
    },
    "traps": {name: changed(GOOD, changes) for name, (_, _, changes) in CASES.items()},
    "on a site": {name: changed(on_mn5(), changes) for name, (_, _, changes) in ON_MN5.items()},
    "ranks": {name: text for name, (text, *_) in test_explain_ranks.REPORTED.items()},
    "ranks, right": {name: text for name, (text, *_) in test_explain_ranks.NOT_REPORTED.items()},
    "wild": {name: text for name, (text, *_) in test_explain_wild.REPORTED.items()},
    "wild, right": {name: text for name, (text, *_) in test_explain_wild.NOT_REPORTED.items()},
    "strangers": {name: text for name, (text, _) in test_explain_strangers.WRONG.items()},
    "strangers, right": dict(test_explain_strangers.RIGHT),
    "narrowed": {name: test_explain_traps.HEAD + text for name, text in test_explain_traps.NARROWED.items()},
}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, dict[str, list[str]]]]:
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps({group: known[group] for group in TEXTS}, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("group", TEXTS)
def test_no_word_of_an_explanation_changes_unnoticed(
    group: str, kept: dict[str, dict[str, list[str]]], tmp_path: Path
) -> None:
    """Findings and resources of every text; of correct files, and those of strangers, also what each line means."""
    profile = load_profile("marenostrum5", CLUSTERS) if group == "on a site" else None
    found = {}
    for name, text in TEXTS[group].items():
        explained = explain(text, Path("job.sbatch"), profile, (tmp_path,))
        lines = [f"{one.line}:{one.code} {one.kind}: {one.what}" for one in explained.findings]
        if group in ("right", "strangers", "strangers, right", "narrowed"):
            meanings = sorted(explain_lines(explained.job).items())
            lines += [f"{number}: {text}" for number, texts in meanings for text in texts]
        found[name] = [line.replace(str(tmp_path), "FOLDER") for line in (*lines, *summary(explained.job))]
    if REWRITE:
        kept[group] = found
    assert found == kept[group], "if the change is meant, rewrite explanations.json: see above"


HARMLESS = 'if [ -d /pond ]; then\n  echo "a pond"\nfi\nPOND=1\necho "$POND"\n'
ABOUT_THE_BEGINNING = {"no-directive", "not-a-directive"}


@pytest.mark.parametrize("group", TEXTS)
def test_harmless_lines_before_the_first_command_change_no_finding(group: str, tmp_path: Path) -> None:
    """A line of no interest must not end the search in the lines after it."""
    profile = load_profile("marenostrum5", CLUSTERS) if group == "on a site" else None

    def codes(text: str) -> list[str]:
        return sorted(one.code for one in explain(text, Path("job.sbatch"), profile, (tmp_path,)).findings)

    for name, text in TEXTS[group].items():
        lines = text.splitlines(keepends=True)
        first = next((place for place, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
        found = codes(text)
        if not ABOUT_THE_BEGINNING & set(found):
            assert codes("".join([*lines[:first], HARMLESS, *lines[first:]])) == found, name
