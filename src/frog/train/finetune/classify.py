"""`frog classify`: classify texts with a fine-tuned run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from frog.core.config import from_dict
from frog.core.errors import UsageError
from frog.core.runs.folder import find_run
from frog.core.schema import shortened
from frog.train.data import load_tokenizer
from frog.train.data.tokenizer import check_text
from frog.train.finetune.task import Task
from frog.train.trained import Finetuned, load_finetuned

_MOST_BYTES, _MOST_SHOWN = 16 << 20, 8_000
"""Maximum bytes of standard input, and maximum characters of a text in the output."""


def classify(args: argparse.Namespace) -> int:
    """`frog classify RUN --text ...`"""
    tuned = load_finetuned(find_run(args.run))
    if not tuned.config.labels:
        raise UsageError(f"{tuned.folder.path} completes prompts and has no classes", f"frog sample {args.run}")
    for text, chances_C in zip(*_classified(tuned, args.text), strict=True):
        chances = dict(zip(tuned.config.labels, chances_C.tolist(), strict=True))
        label = max(chances, key=chances.__getitem__)
        if args.json:
            print(
                json.dumps(
                    {"text": shortened(text, _MOST_SHOWN), "label": label, "probabilities": chances}, ensure_ascii=False
                )
            )
        else:
            width = max(map(len, tuned.config.labels))
            print(f"{label:{width}}  {chances[label]:.3f}  {shortened(text, _MOST_SHOWN)}")
    return 0


def task_of(tuned: Finetuned) -> Task:
    """Return the task of a fine-tuned run, with the tokenizer and the sequence length from its folder."""
    sequence_length = from_dict(tuned.folder.read_run_json().config).data.sequence_length
    return Task(tuned.config.head, tuned.config.labels, load_tokenizer(tuned.folder.tokenizer_json), sequence_length)


@torch.no_grad()
def _classified(tuned: Finetuned, given: Sequence[str] | None) -> tuple[list[str], Tensor]:
    texts = list(given) if given else list(_lines_of_input())
    if not texts or not all(text.strip() for text in texts):
        raise UsageError("no text to classify", 'use --text "...", or pass lines on standard input')
    for text in texts:
        check_text(text, "a text to classify")
    return texts, task_of(tuned).class_scores(tuned.model, texts).softmax(-1)


def _lines_of_input() -> Iterator[str]:
    data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"standard input has more than the maximum of {_MOST_BYTES} bytes", "split it")
    lines = (line.decode(errors="surrogateescape").strip() for line in data.split(b"\n"))
    yield from filter(None, lines)
