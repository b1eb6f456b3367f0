"""The path from text to batches: corpora, tokenizer, memory-mapped shards, sample order, loader.

The names load on first use, so that `frog --help` can import `frog.train.data.data_commands` without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frog.train.data.corpora import Document, hub_corpus, python_docs
    from frog.train.data.document_files import find_corpus_files, read_corpus
    from frog.train.data.folder import DATA_ROOT, DEFAULT_NAME
    from frog.train.data.loader import Batch, Loader
    from frog.train.data.preparation import ensure_prepared, prepare
    from frog.train.data.prepared import PreparedData, Split, list_prepared, open_prepared
    from frog.train.data.sample_order import sample_ids
    from frog.train.data.tokenizer import END_OF_DOCUMENT, load_tokenizer
    from frog.train.data.verified import verify_once
    from frog.train.data.windows import Windows

_MODULE_OF = {
    "DATA_ROOT": "folder",
    "DEFAULT_NAME": "folder",
    "Document": "corpora",
    "hub_corpus": "corpora",
    "python_docs": "corpora",
    "find_corpus_files": "document_files",
    "read_corpus": "document_files",
    "Batch": "loader",
    "Loader": "loader",
    "sample_ids": "sample_order",
    "ensure_prepared": "preparation",
    "prepare": "preparation",
    "PreparedData": "prepared",
    "Split": "prepared",
    "list_prepared": "prepared",
    "open_prepared": "prepared",
    "END_OF_DOCUMENT": "tokenizer",
    "load_tokenizer": "tokenizer",
    "verify_once": "verified",
    "Windows": "windows",
}

__all__ = [
    "DATA_ROOT",
    "DEFAULT_NAME",
    "END_OF_DOCUMENT",
    "Batch",
    "Document",
    "Loader",
    "PreparedData",
    "Split",
    "Windows",
    "ensure_prepared",
    "find_corpus_files",
    "hub_corpus",
    "list_prepared",
    "load_tokenizer",
    "open_prepared",
    "prepare",
    "python_docs",
    "read_corpus",
    "sample_ids",
    "verify_once",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
