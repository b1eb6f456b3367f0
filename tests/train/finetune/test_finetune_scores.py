"""Scores of fine-tuned models: each number against a plain sum, one text after another; in a world too."""

from __future__ import annotations

import json
import math
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from threads_world import on_ranks
from tokenizers import Tokenizer
from torch import Tensor

from frog.core.config import ModelConfig
from frog.core.config.model import IGNORED_LABEL
from frog.core.env import world_env
from frog.core.errors import UsageError
from frog.train.comm import World
from frog.train.data.labelled import Example, LabelledSet
from frog.train.data.tokenizer import end_of_document_id, train_tokenizer
from frog.train.finetune import classify as command
from frog.train.finetune import task as tasks
from frog.train.finetune.score import FinetuneScore, HeldOut
from frog.train.finetune.task import Task, token_scores
from frog.train.model import TinyTransformer
from frog.train.model.classifier import Classifier

LABELS = ("jumped", "sang", "slept")
EXAMPLES = [
    Example(f"{n} frogs {verb} on a log", LABELS[n % 3], None, ["pond", None][n % 2], "")
    for n, verb in enumerate(["sat", "sang a song", "jumped", "slept", "were", "swam over", "left"])
]
COMPLETIONS = [Example(f"{n} frogs", None, f" sat on {n} logs", None, "") for n in range(5)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([example.text for example in EXAMPLES] * 20, 300)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> TinyTransformer:
    """Return a small model; several batches are needed to score the texts."""
    monkeypatch.setattr(tasks, "_BATCH_SIZE", 2)
    torch.manual_seed(3)
    return TinyTransformer(ModelConfig(300, 16, 32, 1, 2, 2, 32)).eval()


def alone() -> World:
    return World(world_env(), torch.device("cpu"), timeout_s=10)


def held_out(tokenizer: Tokenizer, head: Any, examples: list[Example], labels: tuple[str, ...]) -> HeldOut:
    return HeldOut(Task(head, labels, tokenizer, 32), LabelledSet(Path("a"), "", [], examples, labels))


def likelihoods(model: TinyTransformer, tokens: list[int]) -> Tensor:
    """Return the log-likelihood of each next token, for one text alone, without padding."""
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0].double().log_softmax(-1)


def nats_of(model: TinyTransformer, tokenizer: Tokenizer, prompt: str, completion: str) -> float:
    """Return the nats of a completion's tokens, and of the end of the document."""
    before = tokenizer.encode(prompt).ids
    after = [*tokenizer.encode(completion).ids, end_of_document_id(tokenizer)]
    told = likelihoods(model, [*before, *after])[len(before) - 1 : -1]
    return -sum(told[place, token].item() for place, token in enumerate(after))


@torch.no_grad()
def test_token_scores_are_those_of_each_text_alone(tokenizer: Tokenizer, model: TinyTransformer) -> None:
    task = Task("completion", (), tokenizer, 32)
    rows = [task.row(example) for example in COMPLETIONS]
    found = token_scores(model, rows)
    assert found.dtype == torch.float64
    for row, (nats, number, hits) in zip(rows, found.tolist(), strict=True):
        told = likelihoods(model, row.tokens)
        labelled = [(place, label) for place, label in enumerate(row.labels) if label != IGNORED_LABEL]
        assert number == len(labelled) > 1
        assert nats == pytest.approx(-sum(told[place, label].item() for place, label in labelled), rel=1e-5)
        assert hits == sum(told[place].argmax().item() == label for place, label in labelled)


def test_completions_are_scored_per_label_and_per_byte(tokenizer: Tokenizer, model: TinyTransformer) -> None:
    held = held_out(tokenizer, "completion", COMPLETIONS, ())
    with torch.no_grad():
        sums = token_scores(model, held.rows).sum(0).tolist()
    score = held.score(model, alone())
    num_bytes = sum(len((example.completion or "").encode()) for example in COMPLETIONS)
    assert score.tokens == sums[1]
    assert score.loss == pytest.approx(sums[0] / sums[1])
    assert score.perplexity == pytest.approx(math.exp(sums[0] / sums[1]))
    assert score.bits_per_byte == pytest.approx(sums[0] / math.log(2) / num_bytes)
    assert score.token_accuracy == sums[2] / sums[1]
    assert score.confusion is None
    assert score.summary == f"held-out loss {score.loss:.3f}, token accuracy {score.token_accuracy:.3f}"


def test_classes_are_scored_by_the_head(tokenizer: Tokenizer, model: TinyTransformer) -> None:
    torch.manual_seed(4)
    classifier = Classifier.from_base(model, 3).eval()
    torch.nn.init.normal_(classifier.score.weight, std=3.0)
    told = []
    for example in EXAMPLES:
        with torch.no_grad():
            told.append(classifier(torch.tensor([tokenizer.encode(example.text).ids]))[0, -1].double().log_softmax(-1))
    truth = [LABELS.index(example.label or "") for example in EXAMPLES]
    called = [int(row.argmax()) for row in told]
    score = held_out(tokenizer, "classification", EXAMPLES, LABELS).score(classifier, alone())
    assert score.tokens == len(EXAMPLES)
    assert score.loss == pytest.approx(
        -sum(row[label].item() for row, label in zip(told, truth, strict=True)) / 7, rel=1e-5
    )
    assert (score.bits_per_byte, score.token_accuracy) == (None, None)
    assert score.confusion is not None
    assert score.confusion.accuracy == sum(a == b for a, b in zip(truth, called, strict=True)) / 7
    assert score.confusion.counts == tuple(
        tuple(sum((a, b) == (i, j) for a, b in zip(truth, called, strict=True)) for j in range(3)) for i in range(3)
    )
    assert score.confusion.by_category["pond"][1] == 4
    assert score.summary == f"held-out loss {score.loss:.3f}, accuracy {score.confusion.accuracy:.3f}"


def test_classes_of_a_completing_model_are_the_likelihoods_of_their_names(
    tokenizer: Tokenizer, model: TinyTransformer
) -> None:
    task = Task("completion", LABELS, tokenizer, 32)
    texts = [example.text for example in EXAMPLES[:3]]
    with torch.no_grad():
        found = task.class_scores(model, texts)
    assert found.shape == (3, 3)
    for row, text in zip(found.tolist(), texts, strict=True):
        expected = [-nats_of(model, tokenizer, f"{text}\nLabel:", f" {label}") for label in LABELS]
        assert row == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("head", ["classification", "completion"])
def test_ranks_together_have_the_score_of_one(head: str, tokenizer: Tokenizer, model: TinyTransformer) -> None:
    """Also with more ranks than texts."""
    scored: TinyTransformer = Classifier.from_base(model, 3).eval() if head == "classification" else model
    held = held_out(tokenizer, head, EXAMPLES[:3], LABELS)
    expected = held.score(scored, alone())
    for size in (2, 4):
        found: list[FinetuneScore] = on_ranks(size, lambda world: held.score(scored, world))
        assert all(score == found[0] for score in found)
        assert found[0].loss == pytest.approx(expected.loss)
        assert (found[0].tokens, found[0].confusion) == (expected.tokens, expected.confusion)


def test_perplexity_of_a_model_that_diverged_is_a_number(tokenizer: Tokenizer) -> None:
    held = held_out(tokenizer, "completion", COMPLETIONS[:1], ())
    score = held._summed_up(torch.tensor([[5000.0, 2.0, 0.0, 0.0]], dtype=torch.float64), False)
    assert (score.loss, score.perplexity) == (2500.0, math.exp(700))


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tuned(tokenizer: Tokenizer, model: TinyTransformer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `frog classify` find a classifier, without a run."""
    torch.manual_seed(4)
    classifier = Classifier.from_base(model, 3).eval()
    torch.nn.init.normal_(classifier.score.weight, std=3.0)
    folder = SimpleNamespace(path="runs/x")
    run = SimpleNamespace(model=classifier, config=SimpleNamespace(labels=LABELS), folder=folder)
    monkeypatch.setattr(command, "find_run", lambda name: name)
    monkeypatch.setattr(command, "load_finetuned", lambda folder: run)
    monkeypatch.setattr(command, "task_of", lambda run: Task("classification", LABELS, tokenizer, 32))
    return run


def classified(text: list[str] | None, as_json: bool = False) -> int:
    return command.classify(SimpleNamespace(run="x", text=text, json=as_json))  # type: ignore[arg-type]


def test_classify_prints_the_most_probable_class(tuned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [example.text for example in EXAMPLES]
    assert classified(texts, as_json=True) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == texts
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1.0)
        assert row["probabilities"][row["label"]] == max(row["probabilities"].values())
        assert list(row["probabilities"]) == list(LABELS)
    assert classified(texts) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{row['label'].ljust(6)}  {row['probabilities'][row['label']]:.3f}  {row['text']}" for row in rows
    ]


@pytest.mark.parametrize(
    ("given", "read"),
    [(b"one frog\n\n  two frogs \n", ["one frog", "two frogs"]), (b"\n \n", None), (b"a" * 17, None)],
)
def test_classify_reads_the_lines_of_its_input(
    given: bytes,
    read: list[str] | None,
    tuned: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(given)))
    monkeypatch.setattr(command, "_MOST_BYTES", 24 if read else 16)
    if read is None:
        with pytest.raises(UsageError, match=r"no text to classify|more than the maximum of 16 bytes"):
            classified(None)
        return
    assert classified(None, as_json=True) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == read


def test_classify_needs_texts_and_classes(tuned: Any) -> None:
    with pytest.raises(UsageError, match="no text to classify"):
        classified(["a", " "])
    tuned.config = SimpleNamespace(labels=())
    with pytest.raises(UsageError, match=r"runs/x completes prompts and has no classes"):
        classified(["a"])
