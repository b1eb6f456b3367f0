"""`frog quiz`: pools are valid, rounds are drawn as documented, and answers are judged correctly."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from frog.cli import main
from frog.core.errors import UsageError
from frog.learn.progress import begin_progress, read_progress
from frog.learn.quiz.pool import Choice, NumberBelief, Question, read_pools
from frog.learn.quiz.round import Judged, Round, draw_round, judge_answer

ROOT = Path(__file__).parents[2]
POOLS = read_pools()
QUESTIONS = [question for pool in POOLS.values() for question in pool]
SEEDS = range(20)

SINGLE = Question(
    id="a",
    kind="single",
    text="?",
    read="r",
    why="w",
    choices=(Choice(text="one", right=True), Choice(text="two", belief="b2"), Choice(text="three", belief="b3")),
)
SEVERAL = replace(SINGLE, kind="several", choices=(*SINGLE.choices, Choice(text="four", right=True)))
NUMBER = Question(
    id="n",
    kind="number",
    text="?",
    read="r",
    why="w",
    answer=4e6,
    unit="B",
    beliefs=(NumberBelief(value=8e6, belief="twice"),),
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_each_lab_has_enough_questions() -> None:
    assert {lab: len(pool) for lab, pool in POOLS.items() if len(pool) < 12} == {}


def test_question_ids_are_unique() -> None:
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)


def test_questions_refer_to_existing_sections() -> None:
    places = {question.id: question.read.partition("#") for question in QUESTIONS}
    missing = [
        f"{id}: {page}#{anchor}"
        for id, (page, _, anchor) in places.items()
        if not (ROOT / page).is_file() or anchor not in anchors(ROOT / page)
    ]
    assert missing == []


def test_three_readiness_questions_come_first() -> None:
    first = [question.id for question in POOLS[0] if question.first]
    assert first == ["what-is-a-gradient", "why-several-gpus", "what-tcp-guarantees"]
    for lab in (0, None):
        for seed in SEEDS:
            assert [question.id for question in draw_round(POOLS, lab, seed, 9).questions[:3]] == first


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"choices": SINGLE.choices[1:]}, "0 right choices, expected 1"),
        ({"choices": SEVERAL.choices}, "2 right choices, expected 1"),
        ({"kind": "several", "choices": SINGLE.choices[:1]}, "1 right choices of 1"),
        ({"choices": (SINGLE.choices[0], Choice(text="two"))}, "'two': a wrong choice needs a belief"),
        ({"choices": (Choice(text="one", right=True, belief="b"), SINGLE.choices[1])}, "a right one must not have one"),
        ({"answer": 1.0}, "kind single needs choices"),
        ({"kind": "number"}, "kind number needs an answer, and has no choices"),
        ({"kind": "number", "choices": ()}, "kind number needs an answer"),
    ],
)
def test_invalid_question_is_refused(changes: dict[str, object], problem: str) -> None:
    assert list(SINGLE.problems()) == list(SEVERAL.problems()) == list(NUMBER.problems()) == []
    found = list(replace(SINGLE, **changes).problems())
    assert any(problem in one for one in found), found


def test_belief_too_close_to_the_answer_is_refused() -> None:
    near = replace(NUMBER, beliefs=(NumberBelief(value=4.07e6, belief="b"),))
    assert list(near.problems()) == ["the wrong value 4.07e+06 is within the tolerances of the answer, 4e+06"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[questions]]\nid = 'a'", "missing required field"),
        ("[[questions]]\nid = 'a'\nkind = 'single'\ntext='t'\nread='r'\nwhy='w'\nhint='h'", "unknown field hint"),
        ("[[questions]]\nid = 'a'\nkind = 'single'\ntext='t'\nread='r'\nwhy='w'", "question a: 0 right choices"),
        ("[[", "not valid TOML"),
    ],
)
def test_invalid_quiz_file_error_names_the_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lab0").mkdir()
    (tmp_path / "lab0" / "quiz.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_pools(tmp_path)
    assert "quiz.toml" in str(caught.value)
    assert said in str(caught.value)


def pools() -> dict[int, list[Question]]:
    return {lab: [replace(SINGLE, id=f"q-{lab}-{number}") for number in range(12)] for lab in range(4)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_third_of_the_questions_come_from_earlier_labs(seed: int) -> None:
    for lab in (1, 2, 3):
        drawn = [int(question.id.split("-")[1]) for question in draw_round(pools(), lab, seed, 9).questions]
        assert sum(other < lab for other in drawn) == 3
        assert max(drawn) == lab
        assert len(drawn) == 9
    ids = [question.id for question in draw_round(pools(), None, seed, 40).questions]
    assert len(set(ids)) == len(ids) == 40


def test_seed_determines_the_quiz_round() -> None:
    rounds = {seed: draw_round(POOLS, None, seed, 9).questions for seed in SEEDS}
    assert all(draw_round(POOLS, None, seed, 9).questions == drawn for seed, drawn in rounds.items())
    assert len({tuple(question.id for question in drawn) for drawn in rounds.values()}) > 10
    orders = {tuple(choice.text for choice in drawn[0].choices) for drawn in rounds.values()}
    assert len(orders) > 5


def test_only_a_round_with_readiness_questions_can_end_early() -> None:
    assert [draw_round(POOLS, lab, 5, 60).num_first for lab in (0, None, 1, 2)] == [3, 3, 0, 0]


def test_quiz_of_a_lab_without_questions_is_refused() -> None:
    with pytest.raises(UsageError, match="lab 9 has no questions"):
        draw_round(pools(), 9, 0, 9)


@pytest.mark.parametrize(
    ("question", "answer", "judged"),
    [
        (SINGLE, " A ", Judged(True)),
        (SINGLE, "b", Judged(False, ("b2",), ("one",))),
        (SINGLE, "?", Judged(False)),
        (SEVERAL, "a, d", Judged(True)),
        (SEVERAL, "da", Judged(True)),
        (SEVERAL, "a", Judged(False, (), ("four",))),
        (SEVERAL, "a b d", Judged(False, ("b2",))),
        (NUMBER, "4MB", Judged(True)),
        (NUMBER, "3,985,000", Judged(True)),
        (NUMBER, "3.815 MiB", Judged(True)),
        (NUMBER, "4e3 kB", Judged(True)),
        (NUMBER, "8 MB", Judged(False, ("twice",))),
        (NUMBER, "4.1MB", Judged(False)),
        (NUMBER, "-4MB", Judged(False)),
        (replace(NUMBER, answer=0.25, unit="s"), "250 ms", Judged(True)),
        (replace(NUMBER, answer=0.0, unit=""), "0", Judged(True)),
    ],
)
def test_quiz_answers_are_judged(question: Question, answer: str, judged: Judged) -> None:
    assert judge_answer(question, answer) == judged


@pytest.mark.parametrize(
    ("question", "answer"),
    [(SINGLE, ""), (SINGLE, "ab"), (SINGLE, "e"), (SEVERAL, ""), (SEVERAL, "a e"), (NUMBER, "four"), (NUMBER, "4 s")],
)
def test_invalid_quiz_answer_is_refused(question: Question, answer: str) -> None:
    with pytest.raises(UsageError):
        judge_answer(question, answer)


@pytest.mark.parametrize(("rights", "ready"), [("", None), ("11", None), ("110", True), ("0100", False), ("111", True)])
def test_two_of_three_right_answers_mean_ready(rights: str, ready: bool | None) -> None:
    first = tuple(replace(SINGLE, id=str(number), first=True) for number in range(3))
    taken = Round((*first, SINGLE), tuple(Judged(right == "1") for right in rights))
    assert taken.ready is ready
    assert Round((SINGLE,), (Judged(True),)).ready is None


def answer_of(question: Question) -> str:
    if question.kind == "number":
        return str(question.answer)
    return "".join(letter for letter, choice in zip("abcdefgh", question.choices, strict=False) if choice.right)


def quiz(monkeypatch: pytest.MonkeyPatch, words: str, answers: list[str]) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{a}\n" for a in answers).encode())))
    return main(["quiz", *words.split()])


@pytest.mark.parametrize("lab", [*POOLS, None])
def test_quiz_with_only_right_answers_scores_full(
    lab: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = draw_round(POOLS, lab, 5, 60).questions
    answers = [answer_of(question) for question in drawn]
    assert quiz(monkeypatch, f"{'' if lab is None else lab} --seed 5 --count 60", answers) == 0
    shown = capsys.readouterr().out
    assert f"{len(drawn)} of {len(drawn)} right (seed 5)" in shown
    comes_first = "The first 3 show whether you are ready; with fewer than 2 right, the quiz ends."
    assert (comes_first in shown.partition("1 of")[0]) == (lab in (0, None))
    assert all(len(line) <= 80 for line in shown.splitlines() if "read again" not in line), shown


def test_fewer_than_two_of_three_right_answers_end_the_quiz(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "exercises").mkdir()
    begin_progress(tmp_path, "Ada")
    monkeypatch.chdir(tmp_path / "exercises")
    drawn = draw_round(POOLS, 0, 5, 9).questions
    wrong = [next(letter for letter in "abcd" if not judge_answer(q, letter).right) for q in drawn[1:3]]
    assert quiz(monkeypatch, "0 --seed 5", [answer_of(drawn[0]), "nonsense", *wrong, "a", "a"]) == 0
    shown = capsys.readouterr().out
    assert "'nonsense': expected one letter of a, b, c, d" in shown
    assert "1 of 3: read the crash courses in docs/labs/lab0.md again" in shown
    assert f"read again: {drawn[1].read}" in shown
    assert "4 of 9" not in shown
    kept = read_progress(tmp_path).quizzes
    assert [(one.lab, one.seed, one.asked, one.right) for one in kept] == [(0, 5, 3, 1)]
    assert kept[0].beliefs == tuple(
        choice.belief
        for q, letter in zip(drawn[1:3], wrong, strict=True)
        if (choice := q.choices["abcd".index(letter)])
    )
    assert all(belief in " ".join(shown.split()) for belief in kept[0].beliefs)


@pytest.mark.parametrize("last", ["q", "Ctrl-C", "end of input"])
def test_quitting_a_quiz_records_the_answers_so_far(
    last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "exercises").mkdir()
    begin_progress(tmp_path, "Ada")
    monkeypatch.chdir(tmp_path)
    lines = iter([answer_of(draw_round(POOLS, None, 1, 9).questions[0]), *(["q"] if last == "q" else [])])

    def line(prompt: str) -> str:
        if (text := next(lines, None)) is None:
            raise KeyboardInterrupt if last == "Ctrl-C" else EOFError
        return text

    monkeypatch.setattr("frog.learn.typed.read_line", line)
    assert main(["quiz", "--seed", "1"]) == 0
    assert "1 of 1 right (seed 1)" in capsys.readouterr().out
    assert json.loads((tmp_path / "progress.json").read_text())["quizzes"][0]["asked"] == 1


def test_quiz_without_answers_is_not_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "exercises").mkdir()
    begin_progress(tmp_path, "Ada")
    monkeypatch.chdir(tmp_path)
    assert quiz(monkeypatch, "", []) == 0
    assert read_progress(tmp_path).quizzes == ()


def test_quiz_input_that_is_not_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00\n"), encoding="utf-8"))
    assert main(["quiz", "--seed", "1"]) == 0
    assert "expected one letter" in capsys.readouterr().out
