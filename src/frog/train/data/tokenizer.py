"""The tokenizer: byte-level BPE, trained on a sample of the corpus or given. Source: Sennrich et al. 2016; GPT-2."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from frog.core.config.hugging_face import END_OF_TEXT
from frog.core.errors import DataError, UsageError
from frog.core.schema import read_bounded, shortened

END_OF_DOCUMENT = "<|endoftext|>"
MIN_VOCAB_SIZE = 257
"""The end of document and the 256 bytes, which can encode any text."""
_MAX_VOCAB_SIZE = 1 << 20
_PROBE = "A b\n\tna\u00efve \u86d9 \U0001f438"
_NEEDS_BYTES = "use a byte-level BPE, such as that of GPT-2, Llama 3 or Qwen, or let Frog train one"


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


def load_given_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json, or the one in a folder, that is to tokenize a corpus.

    Raises:  DataError if its tokens are not bytes of the text, so that bits per byte cannot be computed, or if it has
             no token that ends a text.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    tokenizer = load_tokenizer(file, "name a tokenizer.json, or a folder with one: --tokenizer PATH")
    end_of_document_id(tokenizer)
    if not isinstance(tokenizer.decoder, decoders.ByteLevel) or not isinstance(tokenizer.model, models.BPE):
        raise DataError(f"{file}: not a byte-level BPE", _NEEDS_BYTES)
    if missing := set(pre_tokenizers.ByteLevel.alphabet()) - tokenizer.get_vocab().keys():
        raise DataError(f"{file}: has no token for {len(missing)} of the 256 bytes", _NEEDS_BYTES)
    decoded = tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False).ids)
    if decoded != _PROBE:
        raise DataError(f"{file}: changes the text: {_PROBE!r} becomes {decoded!r}", _NEEDS_BYTES)
    return tokenizer


def end_of_document_id(tokenizer: Tokenizer) -> int:
    """Return the token that ends a document: the special token that has one of the usual names.

    Raises:  DataError if it has none.
    """
    special = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    for name in END_OF_TEXT:
        if name in special:
            return special[name]
    raise DataError(
        f"the tokenizer has no token that ends a text; its special tokens: {', '.join(sorted(special)) or 'none'}",
        f"add one of {', '.join(END_OF_TEXT)} to its special tokens",
    )


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of embedding rows that a model needs: ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def check_text(text: str, what: str) -> None:
    """Raise UsageError if a text argument, described by `what`, is not UTF-8: it contains half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what}: not UTF-8: {shortened(text, 100)!a}, character {error.start}", "save or type it as UTF-8"
        ) from None


def token_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Return the bytes of text of each token; 0 for special tokens, such as the end of a document.

    Shapes:  -> (V,) int64
    """
    lengths = np.zeros(vocabulary_size(tokenizer), dtype=np.int64)
    for token, token_id in tokenizer.get_vocab().items():
        lengths[token_id] = len(token)  # the byte-level alphabet represents each byte as one character
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        lengths[token_id] = 0 if added.special else len(added.content.encode())
    return lengths


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Make the tokenizer read `<|endoftext|>` in a text as ordinary text, and never cut or pad a text."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
