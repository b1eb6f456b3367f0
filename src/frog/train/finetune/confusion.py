"""Quality of a classifier: the confusion matrix, and the scores computed from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class. Precision: correct share of its predictions. Recall: correct share of its texts."""

    label: str
    precision: float
    recall: float
    f1: float
    count: int
    """Number of texts of this class."""


@dataclass(frozen=True)
class Confusion:
    """`counts[i][j]`: number of texts of class i that were predicted as class j."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    by_category: dict[str, tuple[int, int]]
    """Number of correct predictions and number of texts, by category."""

    @property
    def num_texts(self) -> int:
        return sum(map(sum, self.counts))

    @property
    def accuracy(self) -> float:
        return sum(self.counts[i][i] for i in range(len(self.labels))) / self.num_texts

    @property
    def baseline(self) -> float:
        """Accuracy of always predicting the most frequent class; a useful classifier exceeds it."""
        return max(map(sum, self.counts)) / self.num_texts

    def scores(self) -> list[ClassScore]:
        """Return precision, recall and F1 of each class; 0 where the denominator is 0."""
        return [self._score(i) for i in range(len(self.labels))]

    def _score(self, i: int) -> ClassScore:
        hit, called, count = self.counts[i][i], sum(row[i] for row in self.counts), sum(self.counts[i])
        precision, recall = _ratio(hit, called), _ratio(hit, count)
        return ClassScore(self.labels[i], precision, recall, _ratio(2 * precision * recall, precision + recall), count)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values for record.json."""
        return {
            "labels": list(self.labels),
            "confusion": [list(row) for row in self.counts],
            "accuracy": self.accuracy,
            "baseline": self.baseline,
            "classes": {score.label: vars(score) for score in self.scores()},
            "by_category": {name: list(counts) for name, counts in self.by_category.items()},
        }


def confusion(
    labels: Sequence[str], truth: Sequence[int], called: Sequence[int], categories: Sequence[str | None]
) -> Confusion:
    """Count the pairs of true and predicted classes. Classes are indices into `labels`."""
    pairs = Counter(zip(truth, called, strict=True))
    numbers = range(len(labels))
    calls = list(zip(categories, truth, called, strict=True))
    by_category = {
        name: (sum(a == b for c, a, b in calls if c == name), sum(c == name for c, _, _ in calls))
        for name in sorted({name for name in categories if name is not None})
    }
    counts = tuple(tuple(pairs[i, j] for j in numbers) for i in numbers)
    return Confusion(tuple(labels), counts, by_category)


def confusion_lines(result: Confusion) -> list[str]:
    """Format the scores as tables, for a log or a terminal."""
    rows = [["", "precision", "recall", "F1", "texts"]]
    for score in result.scores():
        numbers = (score.precision, score.recall, score.f1)
        rows.append([score.label, *(f"{number:.3f}" for number in numbers), str(score.count)])
    matrix = [["", *(f"predicted {label}" for label in result.labels)]]
    for label, counts in zip(result.labels, result.counts, strict=True):
        matrix.append([f"actual {label}", *map(str, counts)])
    lines = [*_table(rows), "", *_table(matrix)]
    if result.by_category:
        named = [["correct", "category"], *([f"{a} of {b}", name] for name, (a, b) in result.by_category.items())]
        lines += ["", *(f"{correct:>{max(len(row[0]) for row in named)}}  {name}" for correct, name in named)]
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = widths[0]
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
