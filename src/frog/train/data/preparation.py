"""Prepares a data set: survey the corpus, train the tokenizer unless given, write the shards, then the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import numpy as np
from tokenizers import Encoding, Tokenizer

from frog.core.errors import DataError
from frog.core.files import sha256_file, write_atomic
from frog.core.schema import write_typed
from frog.train.data.corpora import python_docs
from frog.train.data.cutting import pieces
from frog.train.data.folder import DATA_ROOT, DEFAULT_NAME, SetFolder, claim, replace_when_whole, set_folder
from frog.train.data.manifest import SPLITS, DataFile, DataManifest, SplitSummary, TokenizerSummary, content_hash
from frog.train.data.prepared import PreparedData, open_prepared
from frog.train.data.shards import SHARD_TOKENS, SplitWriter, token_dtype
from frog.train.data.survey import Documents, HeldoutRule, Progress, Survey, settle_split, with_text
from frog.train.data.tokenizer import (
    check_vocab_size,
    end_of_document_id,
    load_given_tokenizer,
    token_lengths,
    train_tokenizer,
    vocabulary_size,
)
from frog.train.data.verified import note_verified, verify_once

MIN_SPLIT_TOKENS = 16
"""Minimum tokens of a split: fewer cannot be scored or trained on."""

_BATCH_CHARS = 2 * 1024 * 1024


@dataclass(frozen=True)
class _Piece:
    """A part of one document that is tokenized together."""

    text: str
    heldout: bool
    ends_document: bool


def prepare(
    name: str,
    documents: Documents,
    *,
    source: str,
    vocab_size: int = 2048,
    given_tokenizer: Path | None = None,
    heldout_fraction: float = 0.05,
    seed: int = 1337,
    root: Path = DATA_ROOT,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress | None = None,
) -> PreparedData:
    """Write the set `data/<name>/`; replace an existing set when the new one is complete.

    Calls `documents` twice, or three times for a corpus with few documents; each call must yield the same texts.

    given_tokenizer: a tokenizer.json, or a folder with one, instead of a tokenizer of `vocab_size` tokens trained here.

    Raises:  DataError if the corpus is empty, too small to split or unreadable, if the given tokenizer cannot be used,
             if another process is preparing `name`, or if writing fails.
    """
    if not 0 < heldout_fraction < 1:
        raise DataError(f"held-out fraction {heldout_fraction}: must be between 0 and 1", "--heldout 0.05 is typical")
    set_folder(name, root)
    with claim(name, root):
        rule = HeldoutRule(seed, heldout_fraction)
        return _prepare(name, documents, source, vocab_size, rule, root, shard_tokens, progress, given_tokenizer)


def ensure_prepared(
    name: str, root: Path = DATA_ROOT, vocab_size: int = 2048, progress: Progress | None = None
) -> PreparedData:
    """Open a set and verify its hashes; prepare the embedded set if it is missing.

    Several ranks may call this concurrently: only one prepares the set.

    Raises:  DataError if any other set is missing, or if the set cannot be opened or was altered.
    """
    if name == DEFAULT_NAME and not set_folder(name, root).manifest_json.is_file():
        with claim(name, root, wait=True):
            if not set_folder(name, root).manifest_json.is_file():
                rule = HeldoutRule(seed=1337, fraction=0.05)
                _prepare(name, python_docs, python_docs_source(), vocab_size, rule, root, SHARD_TOKENS, progress)
    return verify_once(open_prepared(name, root))


def python_docs_source() -> str:
    """Return the source of the embedded corpus for the manifest."""
    return f"language reference and standard-library docstrings of Python {python_version()}"


def _prepare(
    name: str,
    documents: Documents,
    source: str,
    vocab_size: int,
    rule: HeldoutRule,
    root: Path,
    shard_tokens: int,
    progress: Progress | None,
    given_tokenizer: Path | None = None,
) -> PreparedData:
    check_vocab_size(vocab_size)  # before reading a large corpus in vain
    given = load_given_tokenizer(given_tokenizer) if given_tokenizer is not None else None
    progress = progress or (lambda phase, num_bytes: None)
    documents, rule, survey = settle_split(documents, rule, source, progress)
    if given is None:
        progress("learn", survey.sample.num_chars)
    tokenizer = given or train_tokenizer(survey.sample.texts(), vocab_size)
    try:
        with replace_when_whole(name, root) as folder:
            splits, files = _write_splits(folder, tokenizer, documents, rule, shard_tokens, progress)
            _check_splits(splits, survey, source, rule.fraction)
            files |= _write_tokenizer(folder, tokenizer)
            manifest = DataManifest(
                name=name,
                source=source,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                vocab_size=vocabulary_size(tokenizer),
                dtype=token_dtype(vocabulary_size(tokenizer)).str,  # type: ignore[arg-type]
                seed=rule.seed,
                heldout_fraction=rule.fraction,
                tokenizer=_tokenizer_summary(tokenizer, given_tokenizer, vocab_size, survey),
                splits=splits,
                data_sha256=content_hash(files),
                files=files,
            )
            write_typed(folder.manifest_json, manifest)
    except OSError as error:
        raise DataError(
            f"{root / name}: cannot be written: {error}", "free disk space, or change the folder"
        ) from error
    return note_verified(open_prepared(name, root))


def _tokenizer_summary(tokenizer: Tokenizer, given: Path | None, vocab_size: int, survey: Survey) -> TokenizerSummary:
    return TokenizerSummary(
        kind="byte-level BPE" if given is None else f"byte-level BPE from {given}",
        end_of_document=str(tokenizer.id_to_token(end_of_document_id(tokenizer))),
        vocab_size_asked=vocab_size if given is None else vocabulary_size(tokenizer),
        sample_chars=survey.sample.num_chars if given is None else 0,
        tokenizers_version=version("tokenizers"),
    )


def _write_splits(
    folder: SetFolder,
    tokenizer: Tokenizer,
    documents: Documents,
    rule: HeldoutRule,
    shard_tokens: int,
    progress: Progress,
) -> tuple[dict[str, SplitSummary], dict[str, DataFile]]:
    """Tokenize every document into its split; return the splits and their files for the manifest."""
    dtype, end_id = token_dtype(vocabulary_size(tokenizer)), end_of_document_id(tokenizer)
    writers = [SplitWriter(folder.path, split, dtype, shard_tokens, end_id) for split in SPLITS]
    try:
        num_bytes = 0
        for piece, encoding in _tokenized(tokenizer, documents, rule):
            piece_bytes = len(piece.text.encode())
            writers[piece.heldout].add(encoding.ids, piece_bytes, piece.ends_document)
            num_bytes += piece_bytes
            progress("tokenize", num_bytes)
        splits = {split: writer.finish() for split, writer in zip(SPLITS, writers, strict=True)}
    finally:
        for writer in writers:
            writer.abandon()
    return splits, {name: entry for writer in writers for name, entry in writer.files.items()}


def _tokenized(tokenizer: Tokenizer, documents: Documents, rule: HeldoutRule) -> Iterator[tuple[_Piece, Encoding]]:
    """Yield each piece with its tokens, in order. Tokenizes a batch on all cores while the previous one is written."""
    with ThreadPoolExecutor(max_workers=1) as pool:

        def encode(batch: list[_Piece]) -> list[Encoding]:
            return tokenizer.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)

        waiting = None
        for batch in _batches(documents, rule):
            encoding = batch, pool.submit(encode, batch)
            if waiting:
                yield from zip(waiting[0], waiting[1].result(), strict=True)
            waiting = encoding
        if waiting:
            yield from zip(waiting[0], waiting[1].result(), strict=True)


def _batches(documents: Documents, rule: HeldoutRule) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    num_chars = 0
    for number, document in with_text(documents):
        heldout = rule.holds_out(number, document.name)
        *firsts, last = pieces(document.text)
        for piece in (*(_Piece(text, heldout, False) for text in firsts), _Piece(last, heldout, True)):
            batch.append(piece)
            num_chars += len(piece.text)
            if num_chars >= _BATCH_CHARS:
                yield batch
                batch, num_chars = [], 0
    if batch:
        yield batch


def _check_splits(splits: dict[str, SplitSummary], survey: Survey, source: str, heldout_fraction: float) -> None:
    num_bytes = sum(split.num_bytes for split in splits.values())
    if num_bytes != survey.num_bytes:
        raise DataError(
            f"{source}: changed during preparation: first {survey.num_bytes} bytes, then {num_bytes}",
            "prepare it again when no program writes to it",
        )
    for name, split in splits.items():
        if split.num_tokens < MIN_SPLIT_TOKENS:
            raise DataError(
                f"{source}: too small: {survey.num_bytes} bytes give the {name} split {split.num_tokens} tokens; "
                f"the minimum is {MIN_SPLIT_TOKENS}",
                f"add text, or change --heldout (now {heldout_fraction:g})",
            )


def _write_tokenizer(folder: SetFolder, tokenizer: Tokenizer) -> dict[str, DataFile]:
    write_atomic(folder.tokenizer_json, tokenizer.to_str(pretty=True))
    np.save(folder.token_bytes, token_lengths(tokenizer), allow_pickle=False)
    return {
        path.name: DataFile(size_bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in (folder.tokenizer_json, folder.token_bytes)
    }
