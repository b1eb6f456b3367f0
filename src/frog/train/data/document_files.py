"""Reads a user's files as documents: .txt .md .py .jsonl .parquet, also gzipped, with bounded memory."""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from frog.core.errors import DataError
from frog.core.files import open_plain
from frog.train.data.corpora import Document, text_of
from frog.train.data.cutting import pieces
from frog.train.data.lines import parse_line

SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".parquet")

_BLOCK_BYTES = 1 << 20
_MOST_BYTES = 64 << 20
"""Maximum bytes of one document or line: a gzip file of some megabytes may contain gigabytes."""
_MOST_INFLATED = 64
"""Maximum ratio of content to size of a gzip file, beyond the bytes above: texts shrink to a tenth, logs to 2 %."""
_MOST_GROUP_BYTES = 512 << 20
"""Maximum bytes of a column in a row group of a parquet file, which may be one page and must fit in memory."""
_ROWS_A_BATCH, _LINES_A_LOOK = 256, 1000
_ENDINGS = (*SUFFIXES, *(f"{suffix}.gz" for suffix in SUFFIXES if suffix != ".parquet"))


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus in reading order, and the number of ignored files by suffix."""

    paths: list[Path]
    others: Counter[str]

    def describe_others(self) -> str | None:
        """Return a text such as '3 other files skipped (.png 2, .css 1)', or None without such files."""
        if not self.others:
            return None
        kinds = ", ".join(f"{suffix or 'no suffix'} {count}" for suffix, count in self.others.most_common(5))
        total = self.others.total()
        return f"{total} other file{'s' if total > 1 else ''} skipped ({kinds})"


def find_corpus_files(path: Path) -> CorpusFiles:
    """List the files that `read_corpus` reads: the file itself, or all files below a folder, sorted, but not hidden.

    Raises:  DataError if `path` does not exist, is a file of an unknown kind, or is a folder without readable files.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder", "check the path given to --corpus")
    if path.is_file():
        if _kind(path) is None:
            raise DataError(f"{path}: unsupported suffix {path.suffix!r}", f"use {' '.join(_ENDINGS)}")
        return CorpusFiles([path], Counter())
    corpus = CorpusFiles([], Counter())
    for folder, subfolders, names in os.walk(path, onerror=_cannot_list):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for file in (Path(folder, name) for name in sorted(names) if not name.startswith(".")):
            if _kind(file) is None or not file.is_file():  # opening a pipe would block
                corpus.others[file.suffix] += 1
            else:
                corpus.paths.append(file)
    if not corpus.paths:
        others = corpus.describe_others() or "it is empty"
        raise DataError(f"{path}: no readable file in this folder; {others}", f"add text files: {' '.join(_ENDINGS)}")
    return corpus


def read_corpus(path: Path, column: str = "text") -> Iterator[Document]:
    """Yield the documents of a file or folder.

    .txt and .md files are split into documents of about 64 KiB at blank lines, or else at line ends. A .py file, a line
    of .jsonl and a row of .parquet is one document each. `column` names the text in the last two.

    Raises:  DataError with file and position, for content that cannot be read as text.
    """
    empty = True
    for file in find_corpus_files(path).paths:
        for document in _read_file(file, file.name if file == path else file.relative_to(path).as_posix(), column):
            empty = empty and (not document.text or document.text.isspace())
            yield document
    if empty:
        raise DataError(f"{path}: contains no text: it is empty or blank", "check the path given to --corpus")


def _kind(path: Path) -> str | None:
    ending = next((ending for ending in _ENDINGS if path.name.lower().endswith(ending)), None)
    return ending and ending.removesuffix(".gz")


def _cannot_list(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed: {error.strerror}")


def _read_file(path: Path, name: str, column: str) -> Iterator[Document]:
    kind = _kind(path)
    if kind == ".parquet":
        yield from _parquet_rows(path, name, column)
        return
    try:
        with _opened(path) as file:
            if kind == ".jsonl":
                yield from _json_lines(file, path, name, column)
            elif kind == ".py":
                yield Document(name, _whole(file, path))
            else:
                yield from _cut_text(file, path, name)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a complete gzip file: {error}", "download or compress it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with open_plain(path) as file:
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix.lower() == ".gz" else file


def _whole(file: IO[bytes], path: Path) -> str:
    parts: list[str] = []
    for part in _decoded(file, path):
        parts.append(part)
        if len(parts) * _BLOCK_BYTES > _MOST_BYTES:
            raise DataError(f"{path}: more than {_MOST_BYTES} bytes in one document", "split it")
    return "".join(parts)


def _cut_text(file: IO[bytes], path: Path, name: str) -> Iterator[Document]:
    waiting, number = "", 0
    for block in _decoded(file, path):
        *whole, waiting = list(pieces(waiting + block)) or [""]
        for piece in whole:
            yield Document(f"{name}#{number}", piece)
            number += 1
    if waiting:
        yield Document(f"{name}#{number}" if number else name, waiting)


def _json_lines(file: IO[bytes], path: Path, name: str, column: str) -> Iterator[Document]:
    offset = 0
    for number, line in enumerate(iter(partial(file.readline, _MOST_BYTES + 1), b""), start=1):
        if len(line) > _MOST_BYTES:
            raise DataError(f"{path}, line {number}: more than {_MOST_BYTES} bytes in one line", "split it")
        if number % _LINES_A_LOOK == 0:
            _check_inflated(file, path)
        text = _decode_line(line, path, number, offset).rstrip()
        offset += len(line)
        if not text:
            continue
        place = f"{path}, line {number}"
        yield Document(f"{name}:{number}", text_of(parse_line(text, place), column, place))


def _decode_line(line: bytes, path: Path, number: int, offset: int) -> str:
    _refuse_nul(line, path, offset)
    try:
        return line.decode("utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise _broken_utf8(path, number, offset + error.start, error) from None


def _parquet_rows(path: Path, name: str, column: str) -> Iterator[Document]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: the package `pyarrow` is not installed", "pip install 'frog[parquet]'") from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            # Report a missing column with the error that lists the existing ones.
            text_of(dict.fromkeys(columns), column, str(path))
            kind = file.schema_arrow.field(column).type
            if pyarrow.types.is_nested(kind):
                what = f"column {column!r} contains {kind}, expected text; columns: {', '.join(columns)}"
                raise DataError(f"{path}: {what}", "choose another: --column NAME")
            _check_groups(file.metadata, column, path)
        # A text that occurs in many rows is in memory only once.
        with pyarrow.parquet.ParquetFile(path, read_dictionary=[column]) as file:
            for batch in file.iter_batches(_ROWS_A_BATCH, columns=[column]):
                for cell in batch.column(0):
                    yield Document(f"{name}:{number}", text_of({column: cell.as_py()}, column, f"{path}, row {number}"))
                    number += 1
    except pyarrow.lib.ArrowException as error:
        raise DataError(f"{path}, after row {number}: not a complete parquet file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}, after row {number}: cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, row {number} or after: broken UTF-8: {error.reason}", "save it as UTF-8") from None


def _check_groups(metadata: Any, column: str, path: Path) -> None:
    """Raise DataError if a row group of the column exceeds the memory limit."""
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        chunks = (group.column(number) for number in range(group.num_columns))
        sizes = [chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == column]
        if sum(sizes) > _MOST_GROUP_BYTES:
            what = f"a row group has {sum(sizes)} bytes of {column!r}, expected at most {_MOST_GROUP_BYTES}"
            raise DataError(f"{path}: {what}", "write it with smaller row groups")


def _check_inflated(file: IO[bytes], path: Path) -> None:
    """Raise DataError if a gzip file is too large for text: some kilobytes may expand to gigabytes."""
    if isinstance(file, gzip.GzipFile) and file.tell() > _MOST_BYTES + _MOST_INFLATED * path.stat().st_size:
        what = f"expands to more than {_MOST_INFLATED} times its size, so it is not text"
        raise DataError(f"{path}: {what}", "download or compress it again")


def _decoded(file: IO[bytes], path: Path) -> Iterator[str]:
    """Yield the file's text in blocks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line = 0, 1
    while True:
        block = file.read(_BLOCK_BYTES)
        _refuse_nul(block, path, offset)
        _check_inflated(file, path)
        num_pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise _broken_utf8(path, line, offset - num_pending + error.start, error) from None
        yield text.removeprefix("\ufeff") if offset == 0 else text
        if not block:
            return
        offset, line = offset + len(block), line + block.count(b"\n")


def _refuse_nul(data: bytes, path: Path, offset: int) -> None:
    position = data.find(b"\0")
    if position >= 0:
        raise DataError(
            f"{path}, byte {offset + position}: a NUL byte, so this is not UTF-8 text",
            "remove binary files; save UTF-16 text as UTF-8",
        )


def _broken_utf8(path: Path, line: int, offset: int, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    return DataError(
        f"{path}, line {line}, byte {offset}: broken UTF-8: 0x{byte:02x}, {error.reason}", "save the file as UTF-8"
    )
