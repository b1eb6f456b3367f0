"""The commands `frog data prepare`, `list` and `inspect`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from frog.core.errors import DataError
from frog.train.data import open_prepared
from frog.train.data.data_commands import add_data_parser


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ponds.txt").write_text("".join(f"{n} frogs leap over [bold]pond[/bold] {n % 7}.\n\n" for n in range(9000)))


def frog(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_data_parser(parser.add_subparsers())
    args = parser.parse_args(["data", *words])
    code = args.handler(args)
    assert isinstance(code, int)
    return code


def test_data_prepare_list_and_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    assert frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "300") == 0
    out = capsys.readouterr().out
    assert out.startswith("reading\ntraining the tokenizer\ntokenizing\ndata/ponds: ")
    assert "training documents, 1 held out" in out
    assert "bytes per token" in out

    assert frog("list") == 0
    out = capsys.readouterr().out
    assert "ponds" in out
    assert "300" in out

    assert frog("inspect", "ponds", "--verify", "--documents", "2", "--split", "train") == 0
    out = capsys.readouterr().out
    assert "verified: all 6 files" in out
    assert out.count("train document ") == 2
    assert "frogs leap over [bold]pond[/bold]" in out
    sizes = open_prepared("ponds").manifest.splits
    assert all(str(split.num_tokens) in out for split in sizes.values())


def test_prepare_keeps_an_existing_set_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "300")
    first = open_prepared("ponds")
    capsys.readouterr()
    assert frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "310") == 0
    assert capsys.readouterr().out == "data/ponds: already prepared from ponds.txt; --force prepares it again\n"
    assert open_prepared("ponds").manifest == first.manifest
    frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "310", "--force")
    assert open_prepared("ponds").vocab_size == 310


def test_prepare_reads_a_named_column_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows").mkdir()
    rows = [json.dumps({"body": f"row {number} of the pond"}) for number in range(100)]
    Path("rows/a.jsonl").write_text("\n".join(rows))
    Path("rows/b.png").write_text("")
    assert frog("prepare", "--corpus", "rows", "--name", "own", "--column", "body", "--heldout", "0.3") == 0
    out = capsys.readouterr().out
    assert "rows: 1 other file skipped (.png 1)" in out
    assert "tokens; the requested size was 2048" in out
    splits = open_prepared("own").manifest.splits
    assert splits["train"].num_documents + splits["heldout"].num_documents == 100


def test_prepare_reads_a_local_folder_with_datasets() -> None:
    pytest.importorskip("datasets")
    Path("hub").mkdir()
    rows = [json.dumps({"text": f"row {number} of the pond"}) for number in range(100)]
    Path("hub/train.jsonl").write_text("\n".join(rows))
    assert frog("prepare", "--hub", "./hub", "--vocab-size", "300", "--heldout", "0.3") == 0
    assert open_prepared("hub").manifest.source == "./hub [train]"


def test_empty_data_list_prints_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert frog("list") == 0
    assert "no prepared sets under data/; `frog data prepare`" in capsys.readouterr().out


def test_data_list_explains_why_a_set_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "300")
    Path("data/ponds/train_00000.bin").unlink()
    capsys.readouterr()
    assert frog("list") == 0
    assert "ponds cannot be used: data/ponds/train_00000.bin: missing" in capsys.readouterr().out
    manifest = Path("data/ponds/manifest.json")
    table = json.loads(manifest.read_text())
    table["splits"]["x" * 50_000] = table["splits"]["train"]
    manifest.write_text(json.dumps(table))
    assert frog("list") == 0
    said = capsys.readouterr().out
    assert "ponds cannot be used: data/ponds/manifest.json: " in said
    assert len(said) < 2000


def test_usage_mistakes_raise_frog_errors() -> None:
    for words, said in (
        (["inspect", "nothing"], "nothing"),
        (["prepare", "--corpus", "nothing.txt"], "nothing"),
        (["prepare", "--vocab-size", "9" * 30], "the maximum is"),
    ):
        with pytest.raises(DataError, match=said):
            frog(*words)
    frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "300")
    with pytest.raises(DataError, match="--documents -1"):
        frog("inspect", "ponds", "--documents", "-1")


def test_given_tokenizer_is_used_instead_of_training_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert frog("prepare", "--corpus", "ponds.txt", "--vocab-size", "300", "--name", "trained") == 0
    capsys.readouterr()
    assert frog("prepare", "--corpus", "ponds.txt", "--tokenizer", "data/trained", "--name", "given") == 0
    assert "training the tokenizer" not in capsys.readouterr().out
    trained, given = open_prepared("trained"), open_prepared("given")
    assert (given.split("train").document(0) == trained.split("train").document(0)).all()
