"""What the decks hold to: claims, minutes that add up, questions to the room, figures and commands that there are."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from decks import ALL, MINUTES, SLIDES, Slide, read_deck

from frog.cli import _parser

ROOT = SLIDES.parent
PARSER = _parser()
VERBS = re.compile(
    r"\b(add|asks|be|begins|bring|can|cannot|carry|changes?|computed|cost|delivers|do|does|get|falls|find|finds|fit|fits|"
    r"gives?|goes|happens|has|have|holds|is|are|learns|leaves|loses|make|means|meet|must|need|needs|note|open|owns|passes|resumes|said|says|"
    r"sends?|see|sees|sets|shares|shrinks|takes?|tell|tells|train|trains|travel|turns|use|waits|writes|will|=)\b|=",
)


LISTED = {
    "What is distributed training?": "Distributed training is one training step",
    "Why models exceed single-device memory": "A weight takes 16 bytes in training",
    "Data vs model vs pipeline parallelism": "The same work can be cut in three ways",
    "Autograd and computation graph": "Forward writes a graph down",
    "Forward pass, backward pass, gradient update": "Forward and backward take nearly all of a step",
    "Intro to training loops": "Every training loop is these lines",
    "How NCCL performs all-reduce: ring": "The first half of a ring adds up",
    "How NCCL performs all-reduce: tree": "A tree needs 2 log2 N messages",
    "How NCCL performs all-reduce: bytes": "Each rank sends 2(N-1)/N of the gradient",
    "What gradient buckets are": "Gradients travel in buckets",
    "CUDA kernels vs fused kernels": "A fused kernel passes over memory once",
    "AMP autocast": "Autocast takes 16 bits",
    "GradScaler": "GradScaler finds its scale by failing",
    "Gradient accumulation strategies": "Eight small bites give the same step",
    "Effective batch size": "Effective batch = ranks",
    "Memory trade-offs": "ZeRO shares out what every rank holds alike",
    "Master address, master port": "All ranks meet at one address and one port",
    "WORLD_SIZE, NODE_RANK, RANK, LOCAL_RANK": "Four variables tell a process who it is",
    "sbatch, allocate, srun workers, cleanup": "A Slurm job goes its way in four steps",
    "Kubernetes GPU pods and device plugins": "A pod asks for whole GPUs; a device plugin",
    "Checkpointing across nodes": "Ranked checkpoints of four ranks",
    "Distributed logging aggregation": "Logs of all nodes are one stream",
    "DeepSpeed config": "DeepSpeed's JSON says what our run file says",
    "Scaling constraints": "A step shrinks with more nodes only while",
}
"""The slides that the curriculum lists, and how the headline of each begins."""


def name_of(slide: Slide) -> str:
    return f"{slide.deck}-{slide.number}"


@pytest.fixture(params=ALL, ids=name_of)
def slide(request: pytest.FixtureRequest) -> Slide:
    found: Slide = request.param
    return found


def test_all_decks_are_known() -> None:
    assert {path.stem for path in SLIDES.glob("*.md")} - {"README"} == set(MINUTES)


@pytest.mark.parametrize("listed", LISTED)
def test_every_slide_of_the_curriculum_is_there(listed: str) -> None:
    assert len([slide for slide in ALL if any(line.startswith(LISTED[listed]) for line in slide.headlines)]) == 1


@pytest.mark.parametrize("deck", MINUTES)
def test_the_minutes_of_the_notes_add_up(deck: str) -> None:
    assert sum(slide.minutes for slide in read_deck(deck)) == MINUTES[deck]


@pytest.mark.parametrize("deck", MINUTES)
def test_of_five_slides_one_asks_the_room(deck: str) -> None:
    asks = [slide.asks for slide in read_deck(deck)]
    quiet = [at + 1 for at in range(len(asks) - 4) if not any(asks[at : at + 5])]
    assert quiet == [], "five slides in a row from these on ask nothing"


def test_the_notes_have_minutes_what_to_say_and_what_to_ask(slide: Slide) -> None:
    assert len(slide.notes) == 1
    assert slide.minutes > 0
    assert re.search(r"^(Say|Answers, not told yet):", slide.notes[0], re.MULTILINE)
    assert re.search(r"^(Ask\b|Three questions)", slide.notes[0], re.MULTILINE)


def test_the_headline_is_a_sentence(slide: Slide) -> None:
    assert len(slide.headlines) == 1
    headline = slide.headlines[0]
    assert len(headline.split()) >= 5, "a topic, not a claim"
    assert VERBS.search(headline), "a claim has a verb: if this one does, add its verb to VERBS"
    assert not headline.endswith((".", ":"))


def test_what_is_asked_has_choices_the_answer_and_what_wrong_votes_believe(slide: Slide) -> None:
    if not slide.asks:
        return
    assert len(re.findall(r"^\d\. ", slide.shown, re.MULTILINE)) >= 2
    assert re.search(r"^Wrong (votes|answers)", slide.notes[0], re.MULTILINE)


def test_words_are_few(slide: Slide) -> None:
    words = re.sub(r"```.*?```|!\[.*?\)", "", slide.shown, flags=re.DOTALL)
    assert len(words.split()) <= 130


def test_figures_are_there_and_have_words_for_who_does_not_see_them(slide: Slide) -> None:
    for words, path in slide.figures:
        assert (SLIDES / path).is_file(), path
        assert len(words) >= 30, words


def test_what_slides_quote_is_what_was_measured() -> None:
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


def test_without_node_the_build_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, str(SLIDES / "build.py")],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "error: the slides need what is not here" in done.stderr
    assert "make system" in done.stderr


def test_every_figure_is_on_a_slide() -> None:
    used = {Path(path).name for slide in ALL for _, path in slide.figures}
    assert {path.name for path in (SLIDES / "figures").glob("*.svg")} == used


def test_figures_are_what_their_scripts_draw_from_the_data(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SLIDES / "figures"), str(tmp_path)], check=True, timeout=120)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (SLIDES / "figures").glob("*.svg")}
    assert sorted(name for name in drawn | kept if drawn.get(name) != kept.get(name)) == [], "python slides/figures"


def test_no_text_of_a_figure_is_under_24_of_its_1160_units() -> None:
    for path in (SLIDES / "figures").glob("*.svg"):
        sizes = [int(size) for size in re.findall(r'font-size="(\d+)"', path.read_text())]
        assert min(sizes) >= 24, path.name


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_of_figures_can_be_read_in_both_themes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SLIDES / "figures")
    draw = importlib.import_module("draw")
    drawn = "".join(path.read_text() for path in (SLIDES / "figures").glob("*.svg"))
    used = set(re.findall(r"<text [^>]*class=\"f-(\w+)", drawn)) - {"page", "white", "dark"}
    pairs = {(color, "page") for color in used} | set(draw.TEXT_ON.items())
    faint = [
        f"{one} on {other}: {contrast(draw.COLORS[one][theme], draw.COLORS[other][theme]):.1f}"
        for one, other in sorted(pairs)
        for theme in (0, 1)
        if contrast(draw.COLORS[one][theme], draw.COLORS[other][theme]) < 3  # what WCAG AA asks of text of 18 pt
    ]
    assert faint == []


def test_commands_are_such_as_there_are(slide: Slide) -> None:
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    for line in slide.commands:
        program, *words = shlex.split(line.partition("  #")[0])
        if program == "frog":
            PARSER.parse_args(words)
        elif program == "make":
            assert words[0] in targets
        else:
            assert program in ("python", "torchrun"), line
            script = next(word for word in words if word.endswith(".py"))
            assert (ROOT / script).is_file(), line
