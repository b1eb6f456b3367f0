"""Preparation of a set: its content, its atomicity, and its memory use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import LIMIT_S, run_to_end

from frog.core.errors import DataError
from frog.train.data import (
    DEFAULT_NAME,
    Document,
    PreparedData,
    ensure_prepared,
    list_prepared,
    load_tokenizer,
    open_prepared,
    prepare,
)
from frog.train.data.survey import HeldoutRule, Sample

Corpus = Callable[[], Iterator[Document]]


def decoded(data: PreparedData, split: str) -> list[str]:
    tokenizer = load_tokenizer(data.tokenizer_json)
    part = data.split(split)
    documents = [part.document(index) for index in range(part.num_documents)]
    assert all(document[-1] == 0 and 0 not in document[:-1] for document in documents)
    return [tokenizer.decode(document[:-1].tolist()) for document in documents]


def refusal(documents: Corpus, root: Path, **options: float) -> str:
    with pytest.raises(DataError) as caught:
        prepare("set", documents, source="test", root=root, **options)  # type: ignore[arg-type]
    assert list_prepared(root) == []
    assert list(root.glob(".set.partial-*")) == []
    return str(caught.value)


def test_every_document_is_in_one_split_and_decodes_to_itself(data: PreparedData, corpus: Corpus) -> None:
    train, heldout = decoded(data, "train"), decoded(data, "heldout")
    texts = [document.text for document in corpus()]
    assert sorted(train + heldout) == sorted(texts)
    rule = HeldoutRule(1337, 0.2)
    assert heldout == [document.text for document in corpus() if rule.holds_out(0, document.name)]
    assert 20 <= len(heldout) <= 60


def test_manifest_counts_match_the_files(data: PreparedData) -> None:
    for name, split in data.manifest.splits.items():
        part = data.split(name)
        assert len(split.shards) > 1
        assert split.num_tokens == part.num_tokens == part.document_lengths().sum()
        assert split.num_documents == part.num_documents
        assert split.num_bytes == sum(len(text.encode()) for text in decoded(data, name))
        for shard in split.shards[:-1]:
            assert 3000 <= shard.num_tokens < 3000 + part.document_lengths().max()
    assert data.manifest.dtype == "<u2"


def test_token_bytes_sum_to_the_text_size(data: PreparedData) -> None:
    assert data.token_bytes.shape == (data.vocab_size,)
    assert data.token_bytes.dtype == np.int64
    for name, split in data.manifest.splits.items():
        assert sum(data.token_bytes[shard].sum() for shard in data.split(name).shards) == split.num_bytes


def test_any_text_round_trips_and_a_literal_end_marker_ends_no_document(tmp_path: Path, corpus: Corpus) -> None:
    strange = "a<|endoftext|>b \r\n\t naïve 蛙 🐸 \x01"
    documents = lambda: iter([*corpus(), Document("strange", strange)])  # noqa: E731
    data = prepare("set", documents, source="test", vocab_size=260, root=tmp_path)
    assert strange in decoded(data, "train") + decoded(data, "heldout")


def test_large_vocabulary_uses_four_byte_tokens(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frog.train.data.preparation.token_dtype", lambda vocab_size: np.dtype("<u4"))
    data = prepare("set", corpus, source="test", vocab_size=300, heldout_fraction=0.2, root=tmp_path)
    assert data.split("train").shards[0].dtype == np.uint32
    assert sorted(decoded(data, "train") + decoded(data, "heldout")) == sorted(document.text for document in corpus())


def test_equal_texts_have_equal_hashes(tmp_path: Path, corpus: Corpus) -> None:
    sets = [prepare(name, corpus, source="test", vocab_size=300, root=tmp_path) for name in ("one", "two")]
    other = prepare("three", corpus, source="test", vocab_size=300, seed=5, root=tmp_path)
    assert sets[0].data_sha256 == sets[1].data_sha256 != other.data_sha256
    assert [data.name for data in list_prepared(tmp_path)] == ["one", "three", "two"]


def test_document_longer_than_a_piece_stays_one_document(tmp_path: Path) -> None:
    texts = [f"{number} frogs leap\n" * 30_000 for number in range(3)]
    documents = lambda: (Document(f"long {number}", text) for number, text in enumerate(texts))  # noqa: E731
    data = prepare("set", documents, source="test", vocab_size=300, root=tmp_path, shard_tokens=1000)
    assert sorted(decoded(data, "train") + decoded(data, "heldout")) == sorted(texts)
    assert data.split("heldout").num_documents == 1


def test_end_of_a_single_document_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"line {number} of the only document\n" for number in range(1000))
    data = prepare("set", lambda: iter([Document("only", text)]), source="test", vocab_size=300, root=tmp_path)
    (train,), (heldout,) = decoded(data, "train"), decoded(data, "heldout")
    assert train + heldout == text
    assert train.endswith("\n")
    assert 0.03 < len(heldout) / len(text) < 0.07


@pytest.mark.parametrize("fraction", [1e-6, 1 - 1e-6])
def test_each_split_has_a_document_for_any_fraction(tmp_path: Path, corpus: Corpus, fraction: float) -> None:
    data = prepare("set", corpus, source="test", vocab_size=300, heldout_fraction=fraction, root=tmp_path)
    assert min(data.split("train").num_documents, data.split("heldout").num_documents) == 1


def test_document_stays_in_its_split_when_the_corpus_grows() -> None:
    rule = HeldoutRule(7, 0.3)
    assert all(rule.holds_out(0, f"d{n}") == rule.holds_out(n + 99, f"d{n}") for n in range(100))
    assert 200 < sum(rule.holds_out(n, f"d{n}") for n in range(1000)) < 400


def test_tokenizer_sample_is_bounded_and_uniform() -> None:
    sample = Sample(seed=1, limit_chars=10_000)
    for number in range(10_000):
        sample.offer(f"{number:010}")
        assert sample.num_chars <= 10_000
    numbers = [int(text) for text in sample.texts()]
    assert len(numbers) > 400
    assert 4000 < np.mean(numbers) < 6000


def test_bad_corpora_raise_data_error(tmp_path: Path, corpus: Corpus) -> None:
    assert "test: contains no text" in refusal(lambda: iter([]), tmp_path)
    assert "test: contains no text" in refusal(lambda: iter([Document("a", " \n")]), tmp_path)
    message = refusal(lambda: iter([Document("a", "frog frog frog frog\n" * 5)]), tmp_path)
    assert "test: too small: 100 bytes give the heldout split" in message
    assert "the minimum is 16" in message
    assert "a, character 1: U+D800 is half a surrogate pair" in refusal(
        lambda: iter([Document("a", "x\ud800")]), tmp_path
    )
    assert "vocabulary of 256 tokens: the minimum is 257" in refusal(corpus, tmp_path, vocab_size=256)
    assert "held-out fraction 1.5" in refusal(corpus, tmp_path, heldout_fraction=1.5)


def test_invalid_set_names_raise_data_error(tmp_path: Path, corpus: Corpus) -> None:
    for name in ("../up", ".hidden", "", "a b"):
        with pytest.raises(DataError, match="data set: name="):
            prepare(name, corpus, source="test", root=tmp_path)


def test_corpus_that_changes_during_preparation_is_rejected(tmp_path: Path, corpus: Corpus) -> None:
    calls = 0

    def changing() -> Iterator[Document]:
        nonlocal calls
        calls += 1
        yield from corpus()
        if calls > 1:
            yield Document("new", "late")

    assert "changed during preparation" in refusal(changing, tmp_path)


def test_full_disk_is_reported_and_keeps_the_old_set(
    copy: PreparedData, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("frog.train.data.shards.HashedFile.write", full)
        with pytest.raises(DataError, match=r"copy: cannot be written: .*No space left"):
            prepare("copy", corpus, source="new", root=copy.path.parent)
    assert open_prepared("copy", copy.path.parent, verify=True).manifest == copy.manifest
    replaced = prepare("copy", corpus, source="new", vocab_size=290, root=copy.path.parent)
    assert open_prepared("copy", copy.path.parent, verify=True).vocab_size == replaced.vocab_size == 290
    assert sorted(entry.name for entry in copy.path.parent.iterdir()) == [".copy.lock", ".copy.verified.json", "copy"]


STUCK = """
import sys, time
from pathlib import Path
from frog.train.data import Document, prepare
calls = 0
def documents():
    global calls
    calls += 1
    for number in range(100):
        yield Document(f"d{number}", f"{number} frogs leap over the pond. " * 2000)
    if calls > 1:
        print("midway", flush=True)
        time.sleep(600)
prepare("stuck", documents, source="test", vocab_size=300, root=Path(sys.argv[1]))
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has written shards of the set `stuck` under `tmp_path` and then hangs."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_killed_preparation_leaves_no_set_and_the_next_one_succeeds(
    stuck: subprocess.Popen[str], tmp_path: Path, corpus: Corpus
) -> None:
    partial = tmp_path / f".stuck.partial-{stuck.pid}"
    assert any(path.stat().st_size for path in partial.glob("train_*.bin"))
    with pytest.raises(DataError, match=f"stuck: process {stuck.pid} is preparing it now"):
        prepare("stuck", corpus, source="test", root=tmp_path)
    assert partial.exists()
    stuck.send_signal(signal.SIGKILL)
    stuck.wait()
    assert partial.exists()
    assert list_prepared(tmp_path) == []
    with pytest.raises(DataError, match="no prepared data set 'stuck'"):
        open_prepared("stuck", tmp_path)
    prepare("stuck", corpus, source="test", vocab_size=300, root=tmp_path)
    assert open_prepared("stuck", tmp_path, verify=True).split("train").num_documents
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".stuck.lock", ".stuck.verified.json", "stuck"]


@pytest.mark.slow
def test_interrupted_preparation_leaves_nothing(stuck: subprocess.Popen[str], tmp_path: Path) -> None:
    stuck.send_signal(signal.SIGINT)
    assert stuck.wait(timeout=LIMIT_S) != 0
    assert [entry.name for entry in tmp_path.iterdir()] == [".stuck.lock"]


@pytest.mark.slow
def test_ensure_prepared_only_prepares_the_embedded_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no prepared data set 'other'"):
        ensure_prepared("other", tmp_path)
    phases: list[str] = []
    first = ensure_prepared(
        DEFAULT_NAME, tmp_path, vocab_size=400, progress=lambda phase, num_bytes: phases.append(phase)
    )
    assert list(dict.fromkeys(phases)) == ["read", "learn", "tokenize"]
    assert first.vocab_size == 400
    monkeypatch.setattr("frog.train.data.preparation.python_docs", lambda: pytest.fail("prepared twice"))
    assert ensure_prepared(DEFAULT_NAME, tmp_path).data_sha256 == first.data_sha256


@pytest.mark.slow
def test_concurrent_ensure_prepared_calls_prepare_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from frog.train.data import ensure_prepared; seen = []\n"
        "data = ensure_prepared('python-docs', Path(sys.argv[1]), 300, lambda phase, done: seen.append(phase))\n"
        "print(data.manifest.created, data.data_sha256, bool(seen))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run_to_end(rank)[0].rsplit(maxsplit=1) for rank in ranks]
    assert said[0][0] == said[1][0]
    assert sorted(line[1] for line in said) == ["False", "True"]


MEASURED = """
import re, resource, sys
from pathlib import Path
from frog.train.data import preparation, prepare, read_corpus, survey
survey.SAMPLE_CHARS = preparation._BATCH_CHARS = 1 << 19
text = Path(sys.argv[1])
prepare(text.stem, lambda: read_corpus(text), source="test", vocab_size=300, root=text.parent / "data")
status = Path("/proc/self/status")
if status.exists():  # on Linux, ru_maxrss includes the parent's memory at the start
    print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_bytes(text: Path) -> int:
    """Return the peak memory of a preparation. The timing of thread allocations adds some MB, never less.

    With an arena for each thread it would add 12 MB at times.
    """
    command, env = [sys.executable, "-c", MEASURED, str(text)], {**os.environ, "MALLOC_ARENA_MAX": "1"}
    shutil.rmtree(text.parent / "data", ignore_errors=True)
    return int(subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S).stdout)


@pytest.mark.slow
def test_preparation_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """With small samples and batches, 24 MB of text need little more memory than 4 MB."""
    memory_bytes = []
    for megabytes in (4, 24):
        text = tmp_path / f"text{megabytes}.txt"
        text.write_text("".join(f"{number} frogs leap over the pond.\n" for number in range(megabytes * 30_000)))
        memory_bytes.append(min(peak_bytes(text), peak_bytes(text)))
    assert text.stat().st_size > 20e6
    assert memory_bytes[1] - memory_bytes[0] < 12e6
