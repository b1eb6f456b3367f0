"""Scores of a fine-tuned model on the held-out texts, computed by all ranks together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from frog.train.comm import World
from frog.train.data.labelled import LabelledSet
from frog.train.finetune.confusion import Confusion, confusion
from frog.train.finetune.task import Task, token_scores
from frog.train.model import TinyTransformer


@dataclass(frozen=True)
class FinetuneScore:
    """Loss and predictions on the held-out texts.

    Units:   loss in nats per label (a class, or a token of a completion); bits_per_byte in bits per byte of completion.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    """Number of scored labels."""
    token_accuracy: float | None
    """For completions: how often the correct token was the most likely."""
    confusion: Confusion | None
    """None without classes."""

    @property
    def summary(self) -> str:
        """The main scores, as text."""
        if self.confusion is not None:
            return f"held-out loss {self.loss:.3f}, accuracy {self.confusion.accuracy:.3f}"
        return f"held-out loss {self.loss:.3f}, token accuracy {self.token_accuracy:.3f}"


class HeldOut:
    """The held-out examples, tokenized once."""

    def __init__(self, task: Task, data: LabelledSet) -> None:
        self._task, self._examples = task, data.heldout
        self.rows = [task.row(example) for example in data.heldout]
        self._truth = [task.labels.index(example.label or "") for example in data.heldout] if task.labels else []
        answers = [example.completion or example.label or "" for example in data.heldout]
        self._answer_bytes = sum(len(answer.encode()) for answer in answers)

    @torch.no_grad()
    def score(self, model: TinyTransformer, world: World) -> FinetuneScore:
        """Score a model that every rank holds unsharded.

        Comm:    one all-reduce of four numbers per example.
        Equals:  the score that one process computes, up to rounding.
        """
        mine = range(world.rank, len(self.rows), world.size)
        scores = torch.zeros(len(self.rows), 4, dtype=torch.float64)  # nats, labels, hits, predicted class
        is_classifier = self._task.head == "classification"
        if mine:
            if not is_classifier:
                scores[mine, :3] = token_scores(model, [self.rows[i] for i in mine])
            if self._task.labels:
                class_scores_NC = self._task.class_scores(model, [self._examples[i].text for i in mine])
                scores[mine, 3] = class_scores_NC.argmax(-1).double()
                if is_classifier:
                    truth = torch.tensor([self._truth[i] for i in mine])
                    scores[mine, 0] = -class_scores_NC.gather(1, truth.unsqueeze(1)).squeeze(1)
                    scores[mine, 1] = 1.0
        scores = world.backend.movable(scores, world.device)
        world.all_reduce(scores)
        return self._summed_up(scores.cpu(), is_classifier)

    def _summed_up(self, scores: torch.Tensor, is_classifier: bool) -> FinetuneScore:
        nats, num_labels, hits, _ = scores.sum(dim=0).tolist()
        loss = nats / num_labels
        counts = None
        if self._task.labels:
            counts = confusion(
                self._task.labels,
                self._truth,
                [int(number) for number in scores[:, 3].tolist()],
                [example.category for example in self._examples],
            )
        return FinetuneScore(
            loss=loss,
            perplexity=math.exp(min(loss, 700.0)),
            bits_per_byte=None if is_classifier else nats / math.log(2) / max(1, self._answer_bytes),
            tokens=int(num_labels),
            token_accuracy=None if is_classifier else hits / num_labels,
            confusion=counts,
        )
