"""The tokenizer: byte-level BPE, trained on a sample of the corpus. Source: Sennrich et al. 2016; GPT-2."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from frog.core.errors import DataError, UsageError
from frog.core.schema import read_bounded, shortened

END_OF_DOCUMENT = "<|endoftext|>"
END_OF_DOCUMENT_ID = 0
MIN_VOCAB_SIZE = 257
_MAX_VOCAB_SIZE = 1 << 20
"""MIN_VOCAB_SIZE is the end of document and the 256 bytes, which can encode any text."""


def check_vocab_size(vocab_size: int) -> None:
    """Raise DataError if a vocabulary is too small for the bytes, or too large."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise DataError(
            f"vocabulary of {vocab_size} tokens: the minimum is {MIN_VOCAB_SIZE}, 256 bytes and {END_OF_DOCUMENT}",
            "use a larger --vocab-size",
        )
    if vocab_size > _MAX_VOCAB_SIZE:
        raise DataError(f"vocabulary of {vocab_size} tokens: the maximum is {_MAX_VOCAB_SIZE}", "2048 is typical here")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train at most `vocab_size` tokens: the end of document, the 256 bytes, then the most frequent merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _plain(tokenizer)


def load_tokenizer(path: Path, hint: str = "prepare the set again: --force") -> Tokenizer:
    """Read tokenizer.json. Raises DataError if it is missing or invalid."""
    try:
        data = read_bounded(path, DataError, hint)
    except FileNotFoundError:
        raise DataError(f"{path}: no tokenizer", hint) from None
    try:
        return _plain(Tokenizer.from_buffer(data))
    except Exception as error:  # `tokenizers` raises the bare class
        raise DataError(f"{path}: not a tokenizer: {error}", hint) from None


def check_text(text: str, what: str) -> None:
    """Raise UsageError if a text argument, described by `what`, is not UTF-8: it contains half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what}: not UTF-8: {shortened(text, 100)!a}, character {error.start}", "save or type it as UTF-8"
        ) from None


def token_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Return the bytes of text of each token; 0 for the end of document.

    Shapes:  -> (V,) int64
    """
    vocabulary = tokenizer.get_vocab()
    lengths = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for token, token_id in vocabulary.items():
        # The byte-level alphabet represents each byte as one character.
        lengths[token_id] = 0 if token == END_OF_DOCUMENT else len(token)
    return lengths


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Make the tokenizer read `<|endoftext|>` in a text as ordinary text, which does not end a document."""
    tokenizer.encode_special_tokens = True
    return tokenizer
