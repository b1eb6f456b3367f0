"""The task of a fine-tuned model: classify texts, or complete prompts.

Shapes: N texts, C classes, T time (sequence), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from frog.core.config.finetune import Head, LoraConfig
from frog.core.config.model import IGNORED_LABEL
from frog.train.data.labelled import Example
from frog.train.data.labelled_batches import (
    Row,
    as_completion,
    class_row,
    completion_row,
    label_prompt,
    label_words,
    pad,
)
from frog.train.model import TinyTransformer
from frog.train.model.classifier import Classifier
from frog.train.model.functions import labelled_loss
from frog.train.model.lora import add_lora

_BATCH_SIZE = 32


@dataclass(frozen=True)
class Task:
    """Converts texts to rows of tokens, and model outputs to class scores."""

    head: Head
    labels: tuple[str, ...]
    """The classes; empty for completion of prompts."""
    tokenizer: Tokenizer
    max_length: int

    def row(self, example: Example) -> Row:
        """Return the training row of one example."""
        if self.head == "classification":
            return class_row(example.text, self.labels.index(example.label or ""), self.tokenizer, self.max_length)
        return completion_row(*as_completion(example), self.tokenizer, self.max_length)

    def class_scores(self, model: TinyTransformer, texts: Sequence[str]) -> Tensor:
        """Return the log-likelihood of each class: from the head, or of the class name as completion of the text.

        Shapes:  -> (N, C), in float64
        """
        if isinstance(model, Classifier):
            rows = [class_row(text, 0, self.tokenizer, self.max_length) for text in texts]
            parts = [model.classify(tokens, last).float().cpu() for tokens, _, last in _batches(model, rows)]
            return torch.cat(parts).double().log_softmax(-1)
        rows = [
            completion_row(label_prompt(text), label_words(label), self.tokenizer, self.max_length)
            for text in texts
            for label in self.labels
        ]
        return -token_scores(model, rows)[:, 0].view(len(texts), len(self.labels))


def token_scores(model: TinyTransformer, rows: Sequence[Row]) -> Tensor:
    """Return for each row the loss of its labels, their number, and how many the model predicts correctly.

    Shapes:  -> (N, 3) in float64: nats, labels, hits
    """
    scores = []
    for tokens_BT, labels_BT, _ in _batches(model, rows):
        log_BTV = model(tokens_BT).float().log_softmax(-1)
        has_label_BT = labels_BT != IGNORED_LABEL
        picked_BT = log_BTV.gather(-1, labels_BT.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        hits_BT = (log_BTV.argmax(-1) == labels_BT) & has_label_BT
        nats_B = -(picked_BT * has_label_BT).sum(-1)
        scores.append(torch.stack([nats_B, has_label_BT.sum(-1), hits_BT.sum(-1)], dim=-1).cpu().double())
    return torch.cat(scores)


def adapt(base: TinyTransformer, head: Head, num_labels: int, lora: LoraConfig) -> TinyTransformer:
    """Add trainable adapters and the loss for labelled rows to the base; for classification, also a new head.

    Raises:  ConfigError if the adapters do not fit the model.
    """
    if head == "classification":
        classifier = Classifier.from_base(base, num_labels)
        add_lora(classifier, lora)
        classifier.score.requires_grad_(True)
        return classifier
    add_lora(base, lora)
    base.token_loss = labelled_loss
    return base


def _batches(model: TinyTransformer, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of tokens, labels and the last position of each row, on the model's device."""
    device = next(model.parameters()).device
    for start in range(0, len(rows), _BATCH_SIZE):
        chunk = rows[start : start + _BATCH_SIZE]
        tokens_BT, labels_BT = pad(chunk)
        last_B = torch.tensor([len(row.tokens) - 1 for row in chunk])
        yield tokens_BT.to(device), labels_BT.to(device), last_B.to(device)
