"""Rules for the decks: claims, minutes that add up, votes with answers, and existing figures and commands."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from contrast import contrast
from decks import ALL, MINUTES, SESSIONS, SLIDES, Slide, read_deck
from harness import LIMIT_S

from frog.cli import _parser

ROOT = SLIDES.parents[1]
MOVING = ROOT / "docs" / "pictures" / "moving"
PARSER = _parser()
VERBS = re.compile(
    r"\b(add|adds|asks|be|begin|begins|brings?|can|cannot|carry|changes?|computed|cost|count|copies|crosses|delivers|describe|divides|do|does|doubles|get|falls|find|finds|fit|fits|gathers|"
    r"gives?|goes|happens|has|have|holds|is|are|keeps|learns|leaves|loses|make|means|meet|must|need|needs|note|open|owns|passes|resumes|said|says|"
    r"resumes|runs|sends?|see|sees|sets|shares|shorten|shrinks|take|takes|tell|tells|train|trains|travel|turns|use|wait|waits|writes|will|=)\b|=",
)


LISTED = {
    "What is distributed training?": "Distributed training is one training step",
    "Why models exceed single-device memory": "Training takes 16 bytes a weight",
    "Data vs model vs pipeline parallelism": "The same work can be split in three ways",
    "Autograd and computation graph": "Forward writes a graph down",
    "Forward pass, backward pass, gradient update": "Forward and backward take nearly all of a step",
    "Intro to training loops": "A training loop is these lines",
    "How NCCL performs all-reduce: ring": "The first half of a ring adds up",
    "How NCCL performs all-reduce: tree": "A tree needs 2 log2 N messages",
    "How NCCL performs all-reduce: bytes": "Each rank sends 2(N-1)/N of the gradient",
    "What gradient buckets are": "Gradients travel in buckets",
    "CUDA kernels vs fused kernels": "A fused kernel passes over memory once",
    "AMP autocast": "Autocast takes 16 bits",
    "GradScaler": "GradScaler finds its scale by failing",
    "Gradient accumulation strategies": "Eight small bites give the same step",
    "Effective batch size": "Effective batch = ranks",
    "Memory trade-offs": "ZeRO shards what every rank holds a copy of",
    "Master address, master port": "All ranks meet at one address and one port",
    "WORLD_SIZE, NODE_RANK, RANK, LOCAL_RANK": "Four numbers tell a process who it is",
    "sbatch, allocate, srun workers, cleanup": "A Slurm job runs in four steps",
    "Kubernetes GPU pods and device plugins": "A pod asks for whole GPUs; a device plugin",
    "Checkpointing across nodes": "Ranked checkpoints of four ranks",
    "Distributed logging aggregation": "Logs of all nodes are one stream",
    "DeepSpeed config": "DeepSpeed's JSON says what Frog's run file says",
    "Scaling constraints": "More nodes shorten a step only until",
}
"""Slides of the curriculum, and the beginning of each headline."""


def name_of(slide: Slide) -> str:
    return f"{slide.deck}-{slide.number}"


def broken(rule: Callable[[Slide], Iterable[str]]) -> list[str]:
    """Return what a rule finds on any slide, each with the slide's name."""
    assert len(ALL) > 150
    return [f"{name_of(slide)}: {problem}" for slide in ALL for problem in rule(slide)]


def test_deck_list_is_complete() -> None:
    assert {path.stem for path in SLIDES.glob("*.md")} - {"README"} == set(MINUTES)


def test_decks_cover_the_curriculum() -> None:
    found = {
        listed: [name_of(slide) for slide in ALL if any(line.startswith(beginning) for line in slide.headlines)]
        for listed, beginning in LISTED.items()
    }
    assert {listed: names for listed, names in found.items() if len(names) != 1} == {}


@pytest.mark.parametrize("deck", MINUTES)
def test_minutes_in_the_notes_add_up(deck: str) -> None:
    assert sum(slide.minutes for slide in read_deck(deck)) == MINUTES[deck]


@pytest.mark.parametrize("deck", MINUTES)
def test_one_of_five_slides_asks_the_class(deck: str) -> None:
    asks = [slide.asks for slide in read_deck(deck) if not slide.answers and not slide.is_extra]
    quiet = [at + 1 for at in range(len(asks) - 4) if not any(asks[at : at + 5])]
    assert quiet == [], "five slides in a row, starting with these, ask no question"


def test_notes_have_minutes_and_what_to_say() -> None:
    def problems(slide: Slide) -> Iterator[str]:
        if len(slide.notes) != 1:
            yield f"{len(slide.notes)} notes, expected 1"
            return
        [notes] = slide.notes
        if not re.search(r"^(Say|Answers, for you only):", notes, re.MULTILINE):
            yield "the notes do not tell what to say"
        if not slide.answers and not re.search(r"^Ask\b", notes, re.MULTILINE):
            yield "the notes do not tell what to ask"
        if slide.is_extra:
            if not notes.startswith("Extra slide, without minutes:"):
                yield "the notes of an extra slide begin with: Extra slide, without minutes:"
        elif slide.answers:
            if not re.match(r"\d min\n", notes):
                yield "no minutes; 0 min if the vote's minutes include the answer"
        elif slide.minutes <= 0:
            yield "no minutes"

    assert broken(problems) == []


def test_headline_is_a_sentence() -> None:
    def problems(slide: Slide) -> Iterator[str]:
        if len(slide.headlines) != 1:
            yield f"{len(slide.headlines)} headlines, expected 1"
            return
        [headline] = slide.headlines
        if len(headline.split()) < 5:
            yield f"a topic, not a claim: {headline}"
        if not VERBS.search(headline):
            yield f"a claim has a verb: if this one does, add its verb to VERBS: {headline}"
        if headline.endswith((".", ":")):
            yield f"a headline has no full stop and no colon at its end: {headline}"

    assert broken(problems) == []


def test_vote_has_choices_and_its_notes_hide_the_answer() -> None:
    def problems(slide: Slide) -> Iterator[str]:
        if slide.asks and len(slide.choices) < 2:
            yield f"{len(slide.choices)} choices, expected 2 or more"
        if slide.asks and re.search(r"^Wrong", slide.notes[0], re.MULTILINE):
            yield "the notes have the answer, which the answer slide has"

    assert broken(problems) == []


def test_answer_slide_follows_each_vote_with_the_same_page_number() -> None:
    for vote, after in pairwise(ALL):
        opening = vote.number == 2
        assert after.answers == (vote.asks and not opening), (after.deck, after.number)
        if after.answers:
            assert "<!-- _paginate: hold -->" in after.text, "needed for equal page numbers in both editions"
            assert re.search(r"^\| .*\*\*", after.shown, re.MULTILINE), "the right answer in bold type"
            assert re.search(r"^Wrong (votes|answers)", after.notes[0], re.MULTILINE)


def test_answer_slide_lists_all_choices_of_its_vote() -> None:
    for vote, after in pairwise(ALL):
        if after.answers and "question |" not in after.shown:
            rows = re.findall(r"^\| (\**)([A-C])\. ", after.shown, re.MULTILINE)
            assert [letter for _, letter in rows] == list("ABC")[: len(vote.choices)]
            right = [letter for bold, letter in rows if bold]
            assert right == [after.headlines[0][0]], after.headlines[0]


@pytest.mark.parametrize("deck", SESSIONS)
def test_session_has_roadmap_repeated_questions_and_takeaways(deck: str) -> None:
    slides = read_deck(deck)
    votes = [slide for slide in slides if slide.asks]
    assert votes[0] is slides[1]
    assert votes[0].choices == votes[-1].choices
    assert slides[2].figures[0][1] == f"figures/roadmap_{deck[-1]}.svg"
    home = next(at for at, slide in enumerate(slides) if "takehome" in slide.classes)
    assert [slide.is_extra for slide in slides] == [at > home for at in range(len(slides))]


@pytest.mark.parametrize("deck", SESSIONS)
def test_demo_and_lab_minutes_are_within_their_limits(deck: str) -> None:
    slides = {slide.headlines[0].partition(":")[0]: slide.minutes for slide in read_deck(deck)}
    demo = tomllib.loads((ROOT / f"src/frog/learn/demo/sessions/{deck[-1]}.toml").read_text())
    played = sum(step.get("minutes", 0) for step in demo["steps"]) or demo["minutes"]
    assert slides["You see it"] == played
    assert 14 <= slides["You see it"] <= 18
    assert 24 <= slides["Now you"] <= 28


@pytest.mark.parametrize("deck", MINUTES)
def test_learners_edition_has_no_notes_and_no_answers(deck: str, monkeypatch: pytest.MonkeyPatch) -> None:
    editions = slides_module("editions", monkeypatch)
    text = editions.edition(SLIDES / f"{deck}.md", "learner")
    slides = read_deck(deck)
    assert len(editions.split(text)[1]) == len([slide for slide in slides if not slide.answers])
    hidden = [line for slide in slides for line in "".join(slide.notes).splitlines() if len(line) > 20]
    hidden += [slide.headlines[0] for slide in slides if slide.answers]
    assert [line for line in hidden if line in text] == []
    assert "![" not in text, "a figure that is not inlined"


def slides_module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in (SLIDES, SLIDES / "figures"):
        monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name)


def test_bit_for_bit_claims_name_the_hardware() -> None:
    """GPU kernels need special settings for equal bits."""

    def problems(slide: Slide) -> Iterator[str]:
        words = f"{slide.shown} {slide.notes[0]}"
        if "bit for bit" in words.lower() and not re.search(r"\b[CG]PUs?\b", words):
            yield "bit for bit, on which hardware?"

    assert broken(problems) == []


def test_scaling_slide_matches_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = slides_module("clusters", monkeypatch)
    for link in clusters.LINKS.values():
        for fewer, more in pairwise(clusters.NODES):
            saved = clusters.COMPUTE_MS / fewer - clusters.COMPUTE_MS / more
            added = clusters.reduce_ms(more, *link) - clusters.reduce_ms(fewer, *link)
            assert (clusters.step_ms(more, *link) < clusters.step_ms(fewer, *link)) == (added < saved)
    alone, slow = clusters.LINKS["1 Gbit/s, 1 ms"], clusters.LINKS["100 Mbit/s, 20 ms"]
    assert min(clusters.NODES, key=lambda nodes: clusters.step_ms(nodes, *alone)) == 8
    assert min(clusters.NODES, key=lambda nodes: clusters.step_ms(nodes, *slow)) == 1
    shown = next(slide for slide in ALL if slide.headlines[0].startswith("More nodes shorten"))
    times = [f"{clusters.step_ms(nodes, *alone):.0f}" for nodes in clusters.NODES]
    assert ", ".join(times) in shown.figures[0][0]


def test_overlap_slide_compares_medians() -> None:
    measured = json.loads((SLIDES / "data/overlap.json").read_text())
    shown = next(slide for slide in ALL if slide.headlines[0].startswith("Gradients travel in buckets"))
    reduce, step = (
        [f"{measured[way][key]:.0f}" for way in ("naive", "bucketed", "overlapped")] for key in ("reduce_ms", "step_ms")
    )
    assert "the medians are {}, {} and {} ms".format(*reduce) in shown.notes[0]
    assert "the median steps were {}, {} and {} ms".format(*step) in shown.notes[0]
    assert shown.figures[0][0].startswith("The median step")
    quiet = (ROOT / "benchmarks/results/overlap.txt").read_text()
    bucketed, overlapped = (
        re.search(rf"^gloo +{way} +(\S+) ms", quiet, re.MULTILINE)[1] for way in ("bucketed", "overlapped")
    )
    assert f"from {float(bucketed):.0f} to {float(overlapped):.0f} ms" in shown.notes[0]


def test_slides_have_few_words() -> None:
    def problems(slide: Slide) -> Iterator[str]:
        words = re.sub(r"```.*?```|!\[.*?\)", "", slide.shown, flags=re.DOTALL).split()
        if len(words) > 130:
            yield f"{len(words)} words, expected at most 130"

    assert broken(problems) == []


def test_figures_exist_and_have_alternative_text() -> None:
    def problems(slide: Slide) -> Iterator[str]:
        for words, path in slide.figures:
            if not (SLIDES / path).is_file():
                yield f"{path} does not exist"
            if len(words) < 30:
                yield f"the alternative text of {path} is short: {words}"

    assert broken(problems) == []


def test_quoted_outputs_are_in_the_measurements() -> None:
    measured = {path.stem: json.loads(path.read_text()) for path in (SLIDES / "data").glob("*.json")}
    shown = {deck: "\n".join(slide.shown for slide in read_deck(deck)) for deck in MINUTES}
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (b?float\d+) \|$", shown["session-b"], re.MULTILINE))
    assert rows == measured["autocast"]["types"]
    said = re.findall(r"^\d\d:\d\d:\S+ \[rank \d\] step 20 \| .*\)$", shown["session-c"], re.MULTILINE)
    assert len(said) == 4
    assert [line for line in said if line not in measured["world"]["logs"]] == []
    seen = re.findall(r"^  (\d\d:\d\d:\d\d\.\d+)  (rank \d)  ", shown["session-c"], re.MULTILINE)
    assert len(seen) == 3
    assert [f"{when}  {rank}" for when, rank in seen if f"{when}  {rank}" not in measured["recovery"]["diagnose"]] == []


def test_slides_build_without_node_names_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, str(SLIDES / "build.py")],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    assert "error: the slides need programs that are not installed" in done.stderr
    assert "make system" in done.stderr


def test_every_figure_is_used_on_a_slide() -> None:
    used = {Path(path).name for slide in ALL for _, path in slide.figures if path.startswith("figures/")}
    assert {path.name for path in (SLIDES / "figures").glob("*.svg")} == used


def test_every_picture_that_moves_is_on_one_extra_slide() -> None:
    moving = [(slide, Path(path).name) for slide in ALL for _, path in slide.figures if "pictures/moving/" in path]
    assert sorted(name for _, name in moving) == sorted(path.name for path in MOVING.glob("*.svg"))
    assert [name_of(slide) for slide, _ in moving if not slide.is_extra] == []


def test_pictures_that_move_are_inlined_with_their_style(monkeypatch: pytest.MonkeyPatch) -> None:
    editions = slides_module("editions", monkeypatch)
    text = editions.edition(SLIDES / "session-d.md", "learner")
    roots = re.findall(r'<template shadowrootmode="open">(<svg .*?</svg>)</template>', text, re.DOTALL)
    assert len(roots) == 2
    assert all("@keyframes" in root and "@media print" in root and "\n\n" not in root for root in roots)


def test_figures_match_their_scripts_and_data(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SLIDES / "figures"), str(tmp_path)], check=True, timeout=LIMIT_S)
    copies = {path.name: path.read_text() for path in (tmp_path / "copies").iterdir()}
    assert copies == {path.name: path.read_text() for path in (ROOT / "docs/pictures/figures").iterdir()}
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text() for path in (SLIDES / "figures").glob("*.svg")}
    assert sorted(name for name in drawn | kept if drawn.get(name) != kept.get(name)) == [], (
        "python tools/slides/figures"
    )


def test_figure_text_is_large_enough() -> None:
    for path in (SLIDES / "figures").glob("*.svg"):
        sizes = [int(size) for size in re.findall(r'font-size="(\d+)"', path.read_text())]
        assert min(sizes) >= 24, path.name


def test_decks_and_figures_use_only_characters_of_embedded_fonts() -> None:
    """A character missing in the embedded fonts would use a font of the machine that builds the decks."""
    known = set("\u00d7\u2212\u201c\u201d")  # times, minus, quotation marks
    for path in (*SLIDES.glob("*.md"), *(SLIDES / "figures").glob("*.svg")):
        assert {letter for letter in path.read_text() if not letter.isascii()} <= known, path.name


def test_figure_text_has_enough_contrast_in_both_themes(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = slides_module("draw", monkeypatch)
    drawn = "".join(path.read_text() for path in (SLIDES / "figures").glob("*.svg"))
    used = set(re.findall(r"<text [^>]*class=\"f-(\w+)", drawn)) - {"page", "white", "dark"}
    pairs = {(color, "page") for color in used} | set(draw.TEXT_ON.items())
    faint = [
        f"{one} on {other}: {contrast(draw.COLORS[one][theme], draw.COLORS[other][theme]):.1f}"
        for one, other in sorted(pairs)
        for theme in (0, 1)
        if contrast(draw.COLORS[one][theme], draw.COLORS[other][theme]) < 3  # the minimum of WCAG AA for text of 18 pt
    ]
    assert faint == []


def problem_of_command(line: str, targets: set[str]) -> str | None:
    """Return why a reader cannot run a command as a slide shows it, or None."""
    program, *words = shlex.split(line.partition("  #")[0])
    if program == "frog":
        try:
            PARSER.parse_args(words)
        except SystemExit:
            return "frog has no such command"
    elif program == "make":
        if words[0] not in targets:
            return "make has no such target"
    elif program not in ("python", "torchrun"):
        return "not a program that a reader has"
    elif not (ROOT / next(word for word in words if word.endswith(".py"))).is_file():
        return "the script does not exist"
    return None


def test_commands_on_slides_exist() -> None:
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}

    def problems(slide: Slide) -> Iterator[str]:
        for line in slide.commands:
            problem = problem_of_command(line, targets)
            if problem is not None:
                yield f"{line}: {problem}"

    assert sum(len(slide.commands) for slide in ALL) > 20
    assert broken(problems) == []
