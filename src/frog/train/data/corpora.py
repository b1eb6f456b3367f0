"""Sources of documents: the running Python's own documentation, or a data set from the Hugging Face Hub."""

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
    """One text, and a name for its place in the corpus."""

    name: str
    text: str


def python_docs() -> Iterator[Document]:
    """Yield the embedded corpus: the topics of Python's language reference, then the standard library's docstrings.

    Raises:  DataError if this Python has neither.
    """
    has_documents = False
    for document in chain(_topics(), _docstrings(Path(sysconfig.get_path("stdlib")))):
        has_documents = True
        yield document
    if not has_documents:
        raise DataError(
            f"python-docs: this Python has neither pydoc_data.topics nor sources in {sysconfig.get_path('stdlib')}",
            "use your own text: `frog data prepare --corpus PATH`",
        )


def _topics() -> Iterator[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    for topic, text in sorted(topics.items()):
        yield Document(f"topics/{topic}", text)


def _docstrings(library: Path) -> Iterator[Document]:
    """Yield one document per source file: its docstrings in file order. Parses the sources, never executes them."""
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            text = _docstrings_of(path)
            if text:
                yield Document(path.relative_to(library).as_posix(), text)


@functools.cache
def _docstrings_of(path: Path) -> str:
    """Return the docstrings of a file. Cached, since preparation reads a corpus twice and parsing is slow."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # Skip the file: a library may contain templates that are not valid Python.
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in _statements(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return "\n\n".join(docstring for node in nodes if (docstring := ast.get_docstring(node)))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and its statements, but not its expressions, which `ast.walk` would add: three times as many."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting += getattr(node, field, ())


def hub_corpus(name: str, split: str = "train", column: str = "text") -> Iterator[Document]:
    """Stream the rows of a Hub data set, or of a local folder that `datasets` can load, as one document each.

    Raises:  DataError if `datasets` is missing or cannot load the set, or if a row has no text in `column`.
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
    except Exception as error:  # `datasets` and its readers have no common exception class
        raise DataError(
            f"{name} [{split}]: `datasets` cannot load it: {type(error).__name__}: {error}",
            "check the name, the split and the network",
        ) from error


def text_of(row: object, column: str, place: str) -> str:
    """Return the text in `column` of one row; an empty text for null.

    Raises:  DataError that lists the existing columns, or names the type that is not text.
    """
    if not isinstance(row, dict):
        raise DataError(f"{place}: found a {type(row).__name__}, expected an object with columns")
    if column not in row:
        columns = ", ".join(map(str, row)) or "none"
        raise DataError(f"{place}: no column {column!r}; available columns: {columns}", "choose one: --column NAME")
    value = row[column]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{place}: column {column!r} contains a {type(value).__name__}, expected text")
    return value
