"""Labelled texts as token rows, and as the batches of one rank.

Shapes: A micro-batches, B rows a micro-batch, T time (sequence), N = A*B rows of this rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from frog.config.model import IGNORED_LABEL
from frog.config.run import batch_problem
from frog.core.errors import ShapeError
from frog.core.seeds import derive_seed
from frog.data.labelled import Example
from frog.data.loader import FILLING, Batch
from frog.data.tokenizer import END_OF_DOCUMENT_ID

_LENGTH_MULTIPLE = 8
"""Rows are padded to a multiple of this, so that not every batch brings new shapes."""


@dataclass(frozen=True)
class Row:
    """One text: what the model reads, and at each position what it should say, or -100."""

    tokens: list[int]
    labels: list[int]
    num_cut: int = 0
    """Tokens that did not fit."""

    @property
    def num_labels(self) -> int:
        return sum(label != IGNORED_LABEL for label in self.labels)


def class_row(text: str, label: int, tokenizer: Tokenizer, max_length: int) -> Row:
    """A text whose one label is its class, at its last token. What is too long loses its end."""
    ids = tokenizer.encode(text).ids or [END_OF_DOCUMENT_ID]
    kept = ids[:max_length]
    return Row(kept, [IGNORED_LABEL] * (len(kept) - 1) + [label], len(ids) - len(kept))


def completion_row(prompt: str, completion: str, tokenizer: Tokenizer, max_length: int) -> Row:
    """A prompt, what follows it, and the end of the document; each token of what follows is a label of the one before.

    Prompt and completion are tokenized apart, so that one begins where the other ends. What is too long loses the
    prompt's beginning first.
    """
    before = tokenizer.encode(prompt).ids or [END_OF_DOCUMENT_ID]
    after = [*tokenizer.encode(completion).ids, END_OF_DOCUMENT_ID]
    room = max(1, max_length + 1 - len(after))
    kept, answer = before[-room:], after[:max_length]
    ids = [*kept, *answer]
    labels = [IGNORED_LABEL] * (len(kept) - 1) + answer
    return Row(ids[:-1], labels, len(before) + len(after) - len(ids))


def as_completion(example: Example) -> tuple[str, str]:
    """Prompt and completion; a labelled text asks for its label in words."""
    if example.completion is not None:
        return example.text, example.completion
    return label_prompt(example.text), label_words(example.label or "")


def label_prompt(text: str) -> str:
    """What the model reads before it writes a text's class."""
    return f"{text}\nLabel:"


def label_words(label: str) -> str:
    """How a class is written."""
    return f" {label}"


class LabelledBatches:
    """The batches of one rank, epoch after epoch, each in an order of its own that every rank computes alike.

    The last batch of an epoch is filled up with rows that have no label. Each micro-batch's loss counts by its labels
    (`loss_weight_A`), so the step is that of one process over the same texts, however they are cut and spread.

    Raises:  ShapeError if the global batch does not divide into ranks and micro-batches.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        seed: int,
        global_batch_size: int,
        max_length: int,
        dp_rank: int = 0,
        dp_size: int = 1,
        grad_accum: int = 1,
        device: torch.device | None = None,
    ) -> None:
        if problem := batch_problem(global_batch_size, dp_size, grad_accum):
            parts = dp_size * grad_accum
            raise ShapeError(problem, f"--batch-size {max(1, global_batch_size // parts) * parts}")
        self._rows, self._seed, self._size, self._max_length = rows, seed, global_batch_size, max_length
        self._dp_rank, self._dp_size, self._grad_accum = dp_rank, dp_size, grad_accum
        self._device = device or torch.device("cpu")

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self._rows) // self._size)

    def after(self, start_step: int) -> Generator[Batch]:
        """The batches of the steps start_step + 1, start_step + 2, ... without end."""
        first, num_taken = divmod(start_step, self.steps_per_epoch)
        for number in itertools.count(first):
            yield from itertools.islice(self.epoch(number), num_taken if number == first else 0, None)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of the epoch `number`, counted from 0. Steps are counted from 1, over all epochs."""
        order = np.random.default_rng(derive_seed(self._seed, "epoch", number)).permutation(len(self._rows))
        filled = np.full(self.steps_per_epoch * self._size, FILLING, dtype=np.int64)
        filled[: len(order)] = order
        for index, ids in enumerate(filled.reshape(-1, self._size)):
            yield self._batch(number * self.steps_per_epoch + index + 1, ids)

    def _batch(self, step: int, ids: np.ndarray) -> Batch:
        rows = [self._rows[i] if i != FILLING else Row([END_OF_DOCUMENT_ID], [IGNORED_LABEL]) for i in ids]
        length = max(len(row.tokens) for row in rows)
        tokens, labels = pad(rows, min(-(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, self._max_length))
        shape = (self._dp_size, self._grad_accum, -1, tokens.shape[-1])
        counts = (labels.view(shape) != IGNORED_LABEL).sum(dim=(2, 3))
        mean_rank = counts.sum().item() / self._dp_size
        per_rank = self._size // self._dp_size
        return Batch(
            step,
            ids[self._dp_rank * per_rank : (self._dp_rank + 1) * per_rank],
            tokens.view(shape)[self._dp_rank].to(self._device),
            labels.view(shape)[self._dp_rank].to(self._device),
            tuple(count / mean_rank for count in counts[self._dp_rank].tolist()),
        )


def pad(rows: Sequence[Row], length: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows side by side, filled up on the right.

    Shapes:  -> tokens and labels, each (rows, length); without `length` as long as the longest
    """
    length = length or max(len(row.tokens) for row in rows)
    tokens = torch.full((len(rows), length), END_OF_DOCUMENT_ID, dtype=torch.long)
    labels = torch.full((len(rows), length), IGNORED_LABEL, dtype=torch.long)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        labels[index, : len(row.labels)] = torch.tensor(row.labels)
    return tokens, labels
