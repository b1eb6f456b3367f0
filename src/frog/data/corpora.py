"""Where documents come from: the Python that runs this, or a data set of the Hugging Face hub."""

from __future__ import annotations

import ast
import functools
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from frog.core.errors import DataError

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class Document:
    """One text, and a name that says where it lies in its corpus."""

    name: str
    text: str


def python_docs() -> Iterator[Document]:
    """The embedded corpus: the topics of Python's language reference, then the standard library's docstrings.

    Raises:  DataError if this Python was installed without both.
    """
    found = False
    for document in chain(_topics(), _docstrings(Path(sysconfig.get_path("stdlib")))):
        found = True
        yield document
    if not found:
        raise DataError(
            f"python-docs: this Python has neither pydoc_data.topics nor sources in {sysconfig.get_path('stdlib')}",
            "use a text of your own: `frog data prepare --corpus PATH`",
        )


def _topics() -> Iterator[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    for topic, text in sorted(topics.items()):
        yield Document(f"topics/{topic}", text)


def _docstrings(library: Path) -> Iterator[Document]:
    """One document a source file: its docstrings in the file's order. The sources are parsed, never executed."""
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            text = _docstrings_of(path)
            if text:
                yield Document(path.relative_to(library).as_posix(), text)


@functools.cache
def _docstrings_of(path: Path) -> str:
    """A corpus is passed over twice; parsing a library takes longer than all that is done with its docstrings."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # Nothing of this file is ours to repair: a library may carry templates that are not Python.
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in _statements(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return "\n\n".join(docstring for node in nodes if (docstring := ast.get_docstring(node)))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """A module and all that holds statements in it; no expression, of which `ast.walk` visits three times as many."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting += getattr(node, field, ())


def hub_corpus(name: str, split: str = "train", column: str = "text") -> Iterator[Document]:
    """The rows of a hub data set, or of a local folder that `datasets` can load, streamed: one row a document.

    Raises:  DataError if `datasets` is missing, cannot load it, or a row has no text under `column`.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name}: the package `datasets` is not installed", "pip install 'frog[hub]'") from None
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        for number, row in enumerate(rows):
            yield Document(f"{name}/{split}/{number}", text_of(row, column, f"{name} [{split}], row {number}"))
    except DataError:
        raise
    except Exception as error:  # `datasets` and the readers below it raise without a common root
        raise DataError(
            f"{name} [{split}]: `datasets` cannot load it: {type(error).__name__}: {error}",
            "check the name, the split and the network",
        ) from error


def text_of(row: object, column: str, place: str) -> str:
    """The text under `column` of one row; an empty one where the row holds null.

    Raises:  DataError with the columns there are, or with the type that is no text.
    """
    if not isinstance(row, dict):
        raise DataError(f"{place}: holds a {type(row).__name__}, not an object with columns")
    if column not in row:
        columns = ", ".join(map(str, row)) or "none"
        raise DataError(f"{place}: no column {column!r}; the columns there are: {columns}", "name one: --column NAME")
    value = row[column]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{place}: column {column!r} holds a {type(value).__name__}, not text")
    return value
