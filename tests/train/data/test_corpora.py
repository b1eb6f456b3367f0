"""The embedded corpus, and rows of `datasets`."""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from pathlib import Path

import pytest

from frog.core.errors import DataError
from frog.train.data import hub_corpus, python_docs


@pytest.mark.slow
def test_embedded_corpus_has_the_reference_and_the_docstrings() -> None:
    loaded = set(sys.modules)
    documents = {document.name: document.text for document in python_docs()}
    assert "antigravity" not in set(sys.modules) - loaded, "sources must be parsed, not imported"
    assert documents["topics/while"].startswith('The "while" statement')
    assert ast.get_docstring(ast.parse(Path(json.__file__).read_text())) in documents["json/__init__.py"]
    assert (json.loads.__doc__ or "")[:40] in documents["json/__init__.py"]
    assert 1_500_000 < sum(map(len, documents.values())) < 6_000_000
    assert not [name for name in documents if {"test", "tests", "site-packages", "idlelib"} & set(name.split("/"))]


def test_python_without_documentation_raises_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "broken.py").write_text("this is = not Python")
    with pytest.raises(DataError, match="neither pydoc_data"):
        list(python_docs())


def test_local_folder_is_read_with_datasets(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "rows").mkdir()
    rows = [{"text": f"row {number}", "id": number} for number in range(20)]
    (tmp_path / "rows" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    name = str(tmp_path / "rows")
    documents = list(hub_corpus(name, "train", "text"))
    assert [document.text for document in documents] == [row["text"] for row in rows]
    with pytest.raises(DataError, match="no column 'body'; available columns: text, id"):
        list(hub_corpus(name, "train", "body"))
    with pytest.raises(DataError, match=r"\[nosuch\]: `datasets` cannot load it"):
        list(hub_corpus(name, "nosuch", "text"))


def test_missing_datasets_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"frog\[hub\]"):
        list(hub_corpus("some/name", "train", "text"))
