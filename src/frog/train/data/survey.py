"""The first pass over a corpus: its size, the held-out documents, and a sample to train the tokenizer on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from frog.core.errors import DataError
from frog.core.seeds import derive_seed
from frog.train.data.corpora import Document
from frog.train.data.cutting import pieces

Documents = Callable[[], Iterator[Document]]
"""Returns a new iterator over the corpus at each call, because preparation reads it twice."""

Progress = Callable[[str, int], None]
"""Callback with the phase, "read", "learn" or "tokenize", and the bytes of text processed so far."""

SAMPLE_CHARS = 16 * 1024 * 1024


@dataclass(frozen=True)
class HeldoutRule:
    """Decides by (seed, name) if a document is held out, so that it stays in its split when the corpus grows."""

    seed: int
    fraction: float
    forced: dict[int, bool] = field(default_factory=dict)
    """Fixed decisions, by document number, where the hash would leave a split empty."""

    def score(self, name: str) -> float:
        """Return a number in [0, 1), uniformly distributed over names."""
        return derive_seed(self.seed, "heldout", name) / 2**63

    def holds_out(self, number: int, name: str) -> bool:
        return self.forced.get(number, self.score(name) < self.fraction)


class Sample:
    """A uniform sample of text pieces from a stream of unknown length, in bounded memory.

    Keeps each piece whose hash in [0, 1) is below a threshold, and halves the threshold when the sample is too large.
    """

    def __init__(self, seed: int, limit_chars: int) -> None:
        self._seed, self._limit_chars, self._threshold = seed, limit_chars, 1.0
        self._kept: list[tuple[float, str]] = []
        self._num_seen = 0
        self.num_chars = 0

    def offer(self, text: str) -> None:
        score = derive_seed(self._seed, "sample", self._num_seen) / 2**63
        self._num_seen += 1
        if score >= self._threshold:
            return
        self._kept.append((score, text))
        self.num_chars += len(text)
        while self.num_chars > self._limit_chars and len(self._kept) > 1:
            self._threshold /= 2
            self._kept = [entry for entry in self._kept if entry[0] < self._threshold]
            self.num_chars = sum(len(text) for _, text in self._kept)

    def texts(self) -> Iterator[str]:
        return (text for _, text in self._kept)


@dataclass
class Survey:
    """Results of the first pass."""

    sample: Sample
    num_documents: int = 0
    num_heldout: int = 0
    num_bytes: int = 0
    lowest: tuple[float, int] = (2.0, 0)
    highest: tuple[float, int] = (-1.0, 0)
    """Score and number of the documents with the lowest and the highest score."""


def with_text(documents: Documents) -> Iterator[tuple[int, Document]]:
    """Number the documents that contain text, from 0."""
    return enumerate(document for document in documents() if document.text and not document.text.isspace())


def take_survey(documents: Documents, rule: HeldoutRule, progress: Progress) -> Survey:
    """Read the corpus once. Raises DataError if a text cannot be encoded as UTF-8."""
    survey = Survey(Sample(rule.seed, SAMPLE_CHARS))
    for number, document in with_text(documents):
        score = rule.score(document.name)
        survey.num_documents += 1
        survey.num_bytes += _utf8_bytes(document)
        survey.lowest = min(survey.lowest, (score, number))
        survey.highest = max(survey.highest, (score, number))
        if rule.holds_out(number, document.name):
            survey.num_heldout += 1
        else:
            for piece in pieces(document.text):
                survey.sample.offer(piece)
        progress("read", survey.num_bytes)
    return survey


def settle_split(
    documents: Documents, rule: HeldoutRule, source: str, progress: Progress
) -> tuple[Documents, HeldoutRule, Survey]:
    """Survey a corpus, and ensure that both splits have a document: hold out the end of a single document.

    Raises:  DataError if the corpus contains no text.
    """
    survey = take_survey(documents, rule, progress)
    if survey.num_documents == 0:
        raise DataError(f"{source}: contains no text: no documents, or only blank ones", "check the --corpus path")
    if survey.num_documents == 1:
        documents, rule = _cut_in_two(documents, rule.fraction), replace(rule, forced={0: False, 1: True})
    elif survey.num_heldout == 0:
        rule = replace(rule, forced={survey.lowest[1]: True})
    elif survey.num_heldout == survey.num_documents:
        rule = replace(rule, forced={survey.highest[1]: False})
    else:
        return documents, rule, survey
    return documents, rule, take_survey(documents, rule, progress)


def _cut_in_two(documents: Documents, fraction: float) -> Documents:
    def cut() -> Iterator[Document]:
        for _, document in with_text(documents):
            text = document.text
            wanted = round(len(text) * (1 - fraction))
            middle = text.rfind("\n", wanted // 2, wanted) + 1 or wanted
            yield Document(f"{document.name} (beginning)", text[:middle])
            yield Document(f"{document.name} (end)", text[middle:])

    return cut


def _utf8_bytes(document: Document) -> int:
    try:
        return len(document.text.encode())
    except UnicodeEncodeError as error:
        code = ord(document.text[error.start])
        raise DataError(
            f"{document.name}, character {error.start}: U+{code:04X} is half a surrogate pair, not a character",
            "repair the escape in the source",
        ) from None
