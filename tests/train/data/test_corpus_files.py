"""A user's corpus files: the documents of each kind, and the errors for unreadable files."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from frog.core.errors import DataError
from frog.train.data import Document, find_corpus_files, read_corpus
from frog.train.data.cutting import PIECE_CHARS, pieces


def texts(path: Path, column: str = "text") -> list[str]:
    return [document.text for document in read_corpus(path, column)]


def refusal(path: Path, column: str = "text") -> str:
    with pytest.raises(DataError) as caught:
        texts(path, column)
    return str(caught.value)


def test_small_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo, grün\n")
    assert list(read_corpus(path)) == [Document("a.txt", "one\n\ntwo, grün\n")]


def test_large_text_is_split_at_blank_lines_without_loss(tmp_path: Path) -> None:
    text = "".join(f"paragraph {number}, größer\nits second line\n\n" for number in range(60_000))
    path = tmp_path / "big.md"
    path.write_text(text)
    documents = list(read_corpus(path))
    assert "".join(document.text for document in documents) == text
    assert len({document.name for document in documents}) == len(documents) > 20
    assert all(document.text.endswith("\n\n") and len(document.text) <= PIECE_CHARS for document in documents)


@pytest.mark.parametrize(
    ("text", "end"),
    [("a" * 50 + "\n" + "b" * 49, 51), ("a" * 60 + "\n\n" + "b\n" * 19, 62), ("a" * 100, 80)],
    ids=["line end", "blank line", "neither"],
)
def test_cut_point_prefers_blank_lines_then_line_ends(text: str, end: int) -> None:
    cut = list(pieces(text, limit=80))
    assert len(cut[0]) == end
    assert "".join(cut) == text


def test_blank_lines_with_windows_line_ends_are_recognized() -> None:
    assert next(pieces("a" * 60 + "\r\n\r\n" + "b\r\n" * 40, limit=80)) == "a" * 60 + "\r\n\r\n"


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbffrog")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "pond"}\n')
    assert texts(tmp_path) == ["pond", "frog"]


def test_json_lines_are_one_document_each(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"body": "one"}\n\n{"body": null, "x": 1}\n{"body": "two"}')
    assert list(read_corpus(path, "body")) == [
        Document("rows.jsonl:1", "one"),
        Document("rows.jsonl:3", ""),
        Document("rows.jsonl:4", "two"),
    ]


def test_parquet_rows_are_one_document_each(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    wanted = [f"row {number}" for number in range(1000)]
    parquet.write_table(pyarrow.table({"text": wanted, "number": list(range(1000))}), path, row_group_size=300)
    assert texts(path) == wanted
    assert "no column 'txt'; available columns: text, number" in refusal(path, "txt")
    assert f"{path}, row 0: column 'number' contains a int, expected text" in refusal(path, "number")


def test_folder_is_read_in_sorted_order_and_reports_skipped_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    (tmp_path / "b" / "code.py").write_text("x = 1\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"packed\n"))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "row"}\n'))
    for name in ("x.png", "y.png", "Makefile"):
        (tmp_path / name).write_bytes(b"\0")
    assert [(document.name, document.text) for document in read_corpus(tmp_path)] == [
        ("a.txt.gz", "packed\n"),
        ("empty.py", ""),
        ("rows.jsonl.gz:1", "row"),
        ("b/code.py", "x = 1\n"),
    ]
    assert find_corpus_files(tmp_path).describe_others() == "3 other files skipped (.png 2, no suffix 1)"


def test_missing_corpus_path_raises_data_error(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.txt'}: no such file or folder" in refusal(tmp_path / "no.txt")


def test_unknown_suffix_raises_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("text")
    message = refusal(tmp_path / "a.docx")
    assert "a.docx: unsupported suffix '.docx'" in message
    assert ".parquet" in message


def test_corpus_without_text_raises_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert f"{tmp_path / 'a.txt'}: contains no text" in refusal(tmp_path / "a.txt")
    (tmp_path / "b.md").write_text(" \n\n")
    assert f"{tmp_path}: contains no text" in refusal(tmp_path)
    (tmp_path / "bare").mkdir()
    assert "no readable file in this folder; it is empty" in refusal(tmp_path / "bare")
    (tmp_path / "bare" / "x.png").write_text("")
    assert "1 other file skipped (.png 1)" in refusal(tmp_path / "bare")


@pytest.mark.parametrize("name", ["a.txt", "a.py", "a.jsonl", "a.txt.gz"])
def test_broken_utf8_error_names_line_and_byte(tmp_path: Path, name: str) -> None:
    # Far enough into the file that the byte is in a later block, after two-byte characters.
    good = ("  \n" if "json" in name else "ü\n").encode() * 700_000
    broken = good + b'{"text": "ab\xff"}\n'
    path = tmp_path / name
    path.write_bytes(gzip.compress(broken, 1) if name.endswith("gz") else broken)
    message = refusal(path)
    assert f"{path}, line 700001, byte {len(good) + 12}: broken UTF-8: 0xff" in message


def test_text_truncated_inside_a_character_raises_data_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"frog\nx\xe2\x82")
    assert f"{path}, line 2, byte 6: broken UTF-8: 0xe2, unexpected end of data" in refusal(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_binary_file_error_names_the_byte(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\n\nfrog\0pond")
    assert f"{path}, byte 6: a NUL byte" in refusal(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "open', "line 2, column 10: not valid JSON: Unterminated string"),
        ('{"body": "x", "id": 3}', "line 2: no column 'text'; available columns: body, id"),
        ('["text"]', "line 2: found a list, expected an object with columns"),
        ('{"text": 3}', "line 2: column 'text' contains a int, expected text"),
    ],
)
def test_invalid_row_error_names_the_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "good"}) + "\n" + line + "\n")
    assert f"{path}, {words}" in refusal(path)


def test_damaged_gzip_and_parquet_files_raise_data_error(tmp_path: Path) -> None:
    packed = gzip.compress(b"frog " * 10_000)
    (tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    assert "cut.txt.gz: not a complete gzip file" in refusal(tmp_path / "cut.txt.gz")
    (tmp_path / "plain.txt.gz").write_text("frog")
    assert "plain.txt.gz: not a complete gzip file" in refusal(tmp_path / "plain.txt.gz")
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_text("no parquet")
    assert "a.parquet, after row 0: not a complete parquet file" in refusal(tmp_path / "a.parquet")


def test_unreadable_file_raises_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("frog")
    monkeypatch.setattr("frog.train.data.document_files.open_plain", refuse)
    assert f"{tmp_path / 'a.txt'}: cannot be read: Permission denied" in refusal(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["one.jsonl.gz", "one.py.gz"])
def test_gzip_file_with_an_endless_line_is_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"#" * (80 << 20), 1))
    assert f"{name}" in refusal(tmp_path / name)
    assert "more than 67108864 bytes in one" in refusal(tmp_path / name)


def test_pipe_in_a_corpus_folder_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    assert "no readable file" in refusal(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "line"), [("txt", b"a\n"), ("jsonl", b'{"text": "a"}\n')])
def test_gzip_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, line: bytes) -> None:
    monkeypatch.setattr("frog.train.data.document_files._MOST_BYTES", 1 << 20)
    path = tmp_path / f"bomb.{ending}.gz"
    path.write_bytes(gzip.compress(line * 1_500_000))
    assert "expands to more than 64 times its size, so it is not text" in refusal(path)


@pytest.mark.parametrize("cell", [["a", "b"], [["a"]], {"a": "b"}])
def test_parquet_column_of_lists_is_refused_with_its_type(tmp_path: Path, cell: object) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "lists.parquet"
    parquet.write_table(pyarrow.table({"text": [cell, cell], "title": ["a", "b"]}), path)
    message = refusal(path)
    kind = parquet.read_schema(path).field("text").type
    assert f"{path}: column 'text' contains {kind}, expected text; columns: text, title" in message


def test_parquet_rows_with_one_shared_large_text_use_little_memory(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "same.parquet"
    parquet.write_table(pyarrow.table({"text": pyarrow.array(["x" * (1 << 20)] * 100).dictionary_encode()}), path)
    tracemalloc.start()
    assert sum(map(len, (document.text for document in read_corpus(path)))) == 100 << 20
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_parquet_row_group_above_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "large.parquet"
    parquet.write_table(pyarrow.table({"text": ["x" * 5000] * 3, "n": [1, 2, 3]}), path, use_dictionary=False)
    monkeypatch.setattr("frog.train.data.document_files._MOST_GROUP_BYTES", 10_000)
    assert "a row group has" in refusal(path)
    assert "column 'n' contains a int, expected text" in refusal(path, "n")
