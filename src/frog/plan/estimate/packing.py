"""Documents of different lengths: packed into sequences, with attention inside each document, or padded.

Packing puts several documents into a sequence (best fit, longest first, as TRL's `bfd`), and attention kernels get the
documents' ends (`cu_seqlens`), so that a token sees its own document alone. Without packing, each sequence is one
document, padded to the longest of its micro-batch.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from frog.core.errors import ConfigError, UsageError
from frog.core.schema import read_bounded, shortened
from frog.plan.estimate.rows import PlannedRun
from frog.plan.layout import Layout
from frog.plan.model import PlannedModel

_MOST_LENGTH = 10**8
_MOST_BYTES = 64 * 2**20
_MOST_PACKED = 50_000
"""Documents that are packed here; of more, each n-th of the sorted lengths."""


@dataclass(frozen=True)
class PackedModel(PlannedModel):
    """A model whose sequences are packed documents: a token sees only tokens of its own."""

    documents: tuple[tuple[int, int], ...] = ()
    """Pairs of a length and the number of documents that have it."""

    def mean_keys(self, seq_len: float) -> float:
        """Return the length of a sequence whose causal attention has as many scores per token: the mean over tokens of
        the length of their document.
        """
        tokens = sum(length * num for length, num in self.documents)
        return sum(length * num * super(PackedModel, self).mean_keys(length) for length, num in self.documents) / tokens


def read_lengths(word: str, option: str) -> tuple[int, ...]:
    """Return lengths in tokens: one number for all, or a file with a number on each line.

    Raises:  UsageError if the file is missing or a line is not a length.
    """
    hint = f"{option} 512, or a file with the number of tokens of one document on each line"
    if word.isdecimal():
        words = [word]
    else:
        try:
            words = read_bounded(Path(word), ConfigError, hint, _MOST_BYTES).decode("utf-8", "replace").split()
        except FileNotFoundError:
            raise UsageError(f"{option} {shortened(word)}: not a number, and no such file", hint) from None
    for number, text in enumerate(words, 1):
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:12]) <= _MOST_LENGTH):
            raise UsageError(f"{option}: line {number} is {shortened(text, 40)!r}: not a number of tokens", hint)
    if not words:
        raise UsageError(f"{option} {shortened(word)}: the file has no lengths", hint)
    return tuple(map(int, words))


@dataclass(frozen=True)
class Packing:
    """Documents and the length of the sequences into which they are packed. Longer documents are cut."""

    lengths: tuple[int, ...]
    seq_len: int

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """The lengths, at most a sequence."""
        return tuple(min(length, self.seq_len) for length in self.lengths)

    @property
    def num_cut(self) -> int:
        return sum(length > self.seq_len for length in self.lengths)

    @cached_property
    def _packed(self) -> tuple[int, int]:
        """The number of documents that were packed, and of the sequences that hold them."""
        ordered = sorted(self.cut, reverse=True)
        ordered = ordered[:: -(-len(ordered) // _MOST_PACKED)]
        if ordered[0] == ordered[-1]:
            each = self.seq_len // ordered[0]
            return each, 1
        room: list[int] = []  # tokens that fit into each open sequence, sorted
        num_sequences, least = 0, ordered[-1]
        for length in ordered:
            place = bisect.bisect_left(room, length)
            if place == len(room):
                num_sequences += 1
                rest = self.seq_len - length
            else:
                rest = room.pop(place) - length
            if rest >= least:
                bisect.insort(room, rest)
        return len(ordered), num_sequences

    @property
    def documents_per_sequence(self) -> float:
        num, sequences = self._packed
        return num / sequences

    @property
    def mean_length(self) -> float:
        return sum(self.cut) / len(self.cut)

    @property
    def fullness(self) -> float:
        """Share of a packed sequence that is documents; the rest is padding."""
        return self.documents_per_sequence * self.mean_length / self.seq_len

    def longest_of(self, micro_batch: int) -> float:
        """Return the mean length to which documents are padded without packing: the longest of a micro-batch, in a
        shuffled order.
        """
        order = list(self.cut)
        random.Random(0).shuffle(order)
        groups = [order[start : start + micro_batch] for start in range(0, len(order), micro_batch)]
        return sum(max(group) for group in groups) / len(groups)

    def model(self, model: PlannedModel) -> PackedModel:
        """Return the model with attention inside the documents."""
        return PackedModel(**vars(model), documents=tuple(sorted(Counter(self.cut).items())))


@dataclass(frozen=True)
class Unpacked:
    """The same documents without packing."""

    seq_len: int
    """Mean tokens of a padded document."""
    padding: float
    """Share of the tokens of a micro-batch that are padding."""
    slowdown: float
    """Time for the same documents, of that with packing."""


def without_packing(run: PlannedRun, packing: Packing, model: PlannedModel) -> Unpacked:
    """Return what a run would take with one document in each sequence, padded to the longest of its micro-batch."""
    layout = run.layout
    longest = packing.longest_of(layout.micro_batch)
    split = layout.tp * layout.cp
    seq_len = -(-round(longest) // split) * split  # sequence parallelism splits it evenly
    single = replace(run, model=model, layout=replace(layout, seq_len=seq_len))
    time_of_one = run.step.step.total / packing.documents_per_sequence
    return Unpacked(seq_len, 1 - packing.mean_length / longest, single.step.step.total / time_of_one)


def refuse_packing(layout: Layout, option: str = "--packing") -> None:
    """Refuse what is not modelled.

    Raises:  ConfigError with the reason.
    """
    if layout.cp > 1:
        raise ConfigError(f"{option} with --cp: documents end inside of the ranks' parts, which is not modelled")
    if layout.traits.attention == "scores":
        raise ConfigError(f"{option}: this program stores whole scores; it has no attention inside documents")
