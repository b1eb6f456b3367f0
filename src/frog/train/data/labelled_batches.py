"""Converts labelled texts to rows of tokens, and to the batches of one rank.

Shapes: A micro-batches, B rows a micro-batch, T time (sequence), N = A*B rows of this rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from frog.core.config.model import IGNORED_LABEL
from frog.core.config.run_config import batch_problem
from frog.core.errors import ShapeError
from frog.core.seeds import derive_seed
from frog.train.data.labelled import Example
from frog.train.data.loader import FILLING, Batch
from frog.train.data.tokenizer import end_of_document_id

_LENGTH_MULTIPLE = 8
"""Rows are padded to a multiple of this length, so that batches have few different shapes."""
_PAD_ID = 0
"""Any token would do: padding follows the text, which does not attend to it, and has no labels."""


@dataclass(frozen=True)
class Row:
    """One text: the input tokens, and for each position the label, or -100."""

    tokens: list[int]
    labels: list[int]
    num_cut: int = 0
    """Number of truncated tokens."""

    @property
    def num_labels(self) -> int:
        return sum(label != IGNORED_LABEL for label in self.labels)


def class_row(text: str, label: int, tokenizer: Tokenizer, max_length: int) -> Row:
    """Return a row with the class as the label of the last token. Truncates the end of long texts."""
    ids = tokenizer.encode(text).ids or [end_of_document_id(tokenizer)]
    kept = ids[:max_length]
    return Row(kept, [IGNORED_LABEL] * (len(kept) - 1) + [label], len(ids) - len(kept))


def completion_row(prompt: str, completion: str, tokenizer: Tokenizer, max_length: int) -> Row:
    """Return a row of prompt, completion and end of document; each token of the completion is a label.

    Tokenizes prompt and completion separately, so that no token spans both. Truncates the beginning of the prompt
    first.
    """
    end_id = end_of_document_id(tokenizer)
    before = tokenizer.encode(prompt).ids or [end_id]
    after = [*tokenizer.encode(completion).ids, end_id]
    room = max(1, max_length + 1 - len(after))
    kept, answer = before[-room:], after[:max_length]
    ids = [*kept, *answer]
    labels = [IGNORED_LABEL] * (len(kept) - 1) + answer
    return Row(ids[:-1], labels, len(before) + len(after) - len(ids))


def as_completion(example: Example) -> tuple[str, str]:
    """Return prompt and completion; a labelled text becomes a prompt that asks for its label."""
    if example.completion is not None:
        return example.text, example.completion
    return label_prompt(example.text), label_words(example.label or "")


def label_prompt(text: str) -> str:
    """Return the prompt that asks for a text's class."""
    return f"{text}\nLabel:"


def label_words(label: str) -> str:
    """Return the completion that names a class."""
    return f" {label}"


class LabelledBatches:
    """The batches of one rank. Each epoch has a different order, which every rank computes identically.

    The last batch of an epoch is padded with rows without labels. The number of labels weights each micro-batch's loss
    (`loss_weight_A`), so a step equals that of one process on the same texts, for any distribution over ranks.

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
        """Yield the batches of steps start_step + 1, start_step + 2, ... without end."""
        first, num_taken = divmod(start_step, self.steps_per_epoch)
        for number in itertools.count(first):
            yield from itertools.islice(self.epoch(number), num_taken if number == first else 0, None)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of epoch `number`, counted from 0. Steps count from 1, over all epochs."""
        order = np.random.default_rng(derive_seed(self._seed, "epoch", number)).permutation(len(self._rows))
        filled = np.full(self.steps_per_epoch * self._size, FILLING, dtype=np.int64)
        filled[: len(order)] = order
        for index, ids in enumerate(filled.reshape(-1, self._size)):
            yield self._batch(number * self.steps_per_epoch + index + 1, ids)

    def _batch(self, step: int, ids: np.ndarray) -> Batch:
        rows = [self._rows[i] if i != FILLING else Row([_PAD_ID], [IGNORED_LABEL]) for i in ids]
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
    """Stack rows, padded on the right.

    Shapes:  -> tokens and labels, each (rows, length); the default length is that of the longest row
    """
    length = length or max(len(row.tokens) for row in rows)
    tokens = torch.full((len(rows), length), _PAD_ID, dtype=torch.long)
    labels = torch.full((len(rows), length), IGNORED_LABEL, dtype=torch.long)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        labels[index, : len(row.labels)] = torch.tensor(row.labels)
    return tokens, labels
