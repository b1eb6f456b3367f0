"""Labelled files, their held-out part, rows of tokens, the batches of a world; and the guard set."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from mutations import table_held_to_its_schema
from tokenizers import Tokenizer

from frog.core.config.model import IGNORED_LABEL
from frog.core.errors import DataError, ShapeError
from frog.train.data.document_files import read_corpus
from frog.train.data.labelled import Example, LabelledSet, read_labelled
from frog.train.data.labelled_batches import (
    FILLING,
    LabelledBatches,
    Row,
    as_completion,
    class_row,
    completion_row,
    pad,
)
from frog.train.data.lines import parse_line
from frog.train.data.tokenizer import end_of_document_id, train_tokenizer

TEXTS = ["the frog sat on a log", "a log sat on the frog", "frogs sing of ponds"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS * 20, 300)


@pytest.fixture(scope="module")
def guard() -> LabelledSet:
    return read_labelled("guard", 0.25)


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def spam(path: Path, count: int = 40) -> Path:
    return lines(path, *({"text": f"text {n}", "label": ["spam", "ham"][n % 2]} for n in range(count)))


# ---- the guard set -----------------------------------------------------------------------------------------------


def test_labelled_line_with_any_wrong_key_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    good = [{"text": f"text {number}", "label": "ab"[number % 2], "category": "c"} for number in range(40)]

    def read(row: object) -> None:
        path.write_text("\n".join(map(json.dumps, [row, *good])))
        read_labelled(str(path), 0.25)

    table_held_to_its_schema({**good[0], "group": "g"}, read, "lines.jsonl")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"text": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"text": "\\ud800", "label": "a"}', r"half a surrogate pair, '\ud800'"),
    ],
)
def test_invalid_json_line_is_rejected(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(line)
    for read in (lambda: read_labelled(str(path), 0.25), lambda: list(read_corpus(path))):
        with pytest.raises(DataError) as caught:
            read()
        assert said in str(caught.value)
        assert f"{path}, line 1" in str(caught.value)


def test_guard_set_is_balanced_and_complete(guard: LabelledSet) -> None:
    examples = [*guard.train, *guard.heldout]
    assert Counter(example.label for example in examples) == {"safe": 256, "unsafe": 256}
    assert guard.labels == ("safe", "unsafe")
    topics = {example.category for example in examples if example.label == "unsafe"}
    assert len(topics) == 8
    for topic in topics:  # each topic has harmless neighbours, so that its words alone do not decide
        counts = Counter(example.label for example in examples if example.category == topic)
        assert counts == {"unsafe": 32, "safe": 16}
    assert len({example.text for example in examples}) == 512
    assert {example.category for example in guard.heldout} == {example.category for example in guard.train}


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def test_guard_training_prompts_do_not_resemble_held_out_ones(guard: LabelledSet) -> None:
    assert not {example.group for example in guard.train} & {example.group for example in guard.heldout}
    for held in guard.heldout:
        for example in guard.train:
            common, either = words(held.text) & words(example.text), words(held.text) | words(example.text)
            assert len(common) <= 0.5 * len(either), (held.text, example.text)


def test_guard_split_does_not_change_when_lines_are_added(guard: LabelledSet) -> None:
    """The name of a group decides its split, independent of other groups."""
    more = read_labelled("guard", 0.4)
    assert {example.text for example in guard.heldout} < {example.text for example in more.heldout}
    assert 0.2 < len(guard.heldout) / 512 < 0.3


def test_guard_contains_no_instructions(guard: LabelledSet) -> None:
    """Each prompt is one or two short sentences: a request, never instructions."""
    assert max(len(example.text) for example in [*guard.train, *guard.heldout]) < 110


# ---- files -------------------------------------------------------------------------------------------------------


def test_labelled_file_is_read_and_split(tmp_path: Path) -> None:
    data = read_labelled(str(spam(tmp_path / "mail.jsonl")), 0.25)
    assert data.name == "mail"
    assert data.labels == ("ham", "spam")
    assert len(data.train) + len(data.heldout) == 40
    assert data.train[0].group == data.train[0].text
    assert data.train[0].completion is None


def test_numbers_and_booleans_are_accepted_as_labels(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(40)]
    assert read_labelled(str(lines(tmp_path / "a.jsonl", *rows)), 0.25).labels == ("0", "1")


def test_prompts_and_completions_are_read(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} plus 1 is", "completion": f" {n + 1}"} for n in range(40)]
    data = read_labelled(str(lines(tmp_path / "a.jsonl", *rows)), 0.25)
    assert data.labels == ()
    assert as_completion(Example("3 plus 1 is", None, " 4", None, "")) == ("3 plus 1 is", " 4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "contains no lines"),
        (["{\n"], "line 1, column 2: not valid JSON"),
        (["[]\n"], "found a list"),
        ([{"text": "a"}], "found the fields text"),
        ([{"text": "a", "label": None}], "label=None: must be a string"),
        ([{"text": "", "label": "a"}], "line 1: text is empty"),
        ([{"prompt": "a", "completion": ""}], "line 1: completion is empty"),
        ([{"text": 1, "label": "a"}], "text=1: must be a string"),
        ([{"text": "a", "label": "x"}, {"prompt": "a", "completion": "b"}], "some lines have a label"),
        ([{"text": "a", "label": "x"}], "both parts need some"),
        ([{"text": f"text {n}", "label": "x"} for n in range(40)], "class x is the only class"),
    ],
)
def test_unusable_labelled_file_raises_data_error(tmp_path: Path, content: list[object], message: str) -> None:
    path = lines(tmp_path / "bad.jsonl", *content)
    with pytest.raises(DataError) as caught:
        read_labelled(str(path), 0.25)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_class_without_training_texts_raises_data_error(tmp_path: Path, guard: LabelledSet) -> None:
    held = guard.heldout[0].group
    rows = [{"text": f"text {n}", "label": ["spam", "ham"][n % 2]} for n in range(40)]
    path = lines(tmp_path / "a.jsonl", *rows, {"text": "x", "label": "eggs", "group": held})
    with pytest.raises(DataError, match="class eggs is not in the training part"):
        read_labelled(str(path), 0.25)


def test_missing_labelled_file_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_labelled(str(tmp_path / "none.jsonl"), 0.25)
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(DataError, match="broken UTF-8"):
        read_labelled(str(tmp_path / "latin.jsonl"), 0.25)


@pytest.mark.parametrize("heldout", [0.0, 1.0, -1.0])
def test_invalid_heldout_share_raises_data_error(heldout: float) -> None:
    with pytest.raises(DataError, match="must lie between 0 and 1"):
        read_labelled("guard", heldout)


# ---- rows --------------------------------------------------------------------------------------------------------


def test_class_row_labels_only_the_last_token(tokenizer: Tokenizer) -> None:
    row = class_row(TEXTS[0], 1, tokenizer, 64)
    assert row.tokens == tokenizer.encode(TEXTS[0]).ids
    assert row.labels == [IGNORED_LABEL] * (len(row.tokens) - 1) + [1]
    assert row.num_labels == 1
    short = class_row(TEXTS[0], 1, tokenizer, 3)
    assert (short.tokens, short.labels) == (row.tokens[:3], [IGNORED_LABEL, IGNORED_LABEL, 1])
    assert short.num_cut == len(row.tokens) - 3


def test_completion_row_labels_only_the_completion(tokenizer: Tokenizer) -> None:
    before, after = tokenizer.encode(TEXTS[0]).ids, tokenizer.encode(" and sang").ids
    row = completion_row(TEXTS[0], " and sang", tokenizer, 64)
    assert row.tokens == [*before, *after]
    assert row.labels == [IGNORED_LABEL] * (len(before) - 1) + [*after, end_of_document_id(tokenizer)]
    assert len(row.tokens) == len(row.labels)
    assert completion_row("", " and sang", tokenizer, 64).tokens == [end_of_document_id(tokenizer), *after]


def test_long_completion_row_truncates_the_start_of_the_prompt(tokenizer: Tokenizer) -> None:
    before, after = tokenizer.encode(TEXTS[0]).ids, tokenizer.encode(" and sang").ids
    length = len(after) + 2
    row = completion_row(TEXTS[0], " and sang", tokenizer, length)
    assert row.tokens == [*before[-2:], *after]
    assert row.labels == [IGNORED_LABEL, *after, end_of_document_id(tokenizer)]
    assert row.num_cut == len(before) - 2
    tight = completion_row(TEXTS[0], " and sang", tokenizer, 2)
    assert len(tight.tokens) == len(tight.labels) == tight.num_labels == 2


def test_rows_are_padded_on_the_right(tokenizer: Tokenizer) -> None:
    tokens, labels = pad([Row([1, 2, 3], [IGNORED_LABEL, 4, 5]), Row([6], [7])])
    assert tokens.tolist() == [[1, 2, 3], [6, 0, 0]]
    assert labels.tolist() == [[IGNORED_LABEL, 4, 5], [7, IGNORED_LABEL, IGNORED_LABEL]]


# ---- batches -----------------------------------------------------------------------------------------------------

ROWS = [Row([n + 1] * (1 + n % 5), [IGNORED_LABEL if i % 2 else n for i in range(1 + n % 5)]) for n in range(13)]


def batches(dp_rank: int = 0, dp_size: int = 1, grad_accum: int = 1, size: int = 8) -> LabelledBatches:
    return LabelledBatches(
        ROWS, seed=3, global_batch_size=size, max_length=64, dp_rank=dp_rank, dp_size=dp_size, grad_accum=grad_accum
    )


def test_epoch_contains_every_row_once() -> None:
    for number in (0, 1):
        found = list(batches().epoch(number))
        assert [batch.step for batch in found] == [2 * number + 1, 2 * number + 2]
        ids = [i for batch in found for i in batch.ids_N.tolist()]
        assert sorted(ids) == [FILLING] * 3 + list(range(13))
    orders = [[batch.ids_N.tolist() for batch in batches().epoch(number)] for number in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize(("dp_size", "grad_accum"), [(2, 1), (4, 2), (1, 4), (8, 1)])
def test_ranks_and_micro_batches_partition_the_batch(dp_size: int, grad_accum: int) -> None:
    """The gradients, weighted by the shares and averaged over ranks, equal the gradient of the mean over labels."""
    alone = list(batches().epoch(0))
    spread = [list(batches(rank, dp_size, grad_accum).epoch(0)) for rank in range(dp_size)]
    for step, batch in enumerate(alone):
        parts = [spread[rank][step] for rank in range(dp_size)]
        assert [i for part in parts for i in part.ids_N.tolist()] == batch.ids_N.tolist()
        assert torch.equal(torch.cat([part.tokens_ABT.flatten(0, 1) for part in parts]), batch.tokens_ABT[0])
        num_labels = (batch.labels_ABT != IGNORED_LABEL).sum().item()
        for part in parts:
            counts = (part.labels_ABT != IGNORED_LABEL).sum(dim=(1, 2)).tolist()
            assert part.loss_weight_A == pytest.approx([count * dp_size / num_labels for count in counts], rel=1e-12)
        assert sum(sum(part.loss_weight_A) for part in parts) / dp_size == pytest.approx(1.0)
    # The last batch has five rows: split into four or more parts, some micro-batch has only padding.
    assert any(0.0 in part[-1].loss_weight_A for part in spread) == (dp_size * grad_accum >= 4)


def test_rows_are_padded_to_few_lengths() -> None:
    rows = [Row([1] * n, [2] * n) for n in (3, 11, 20)]
    for max_length, expected in ((64, 24), (20, 20)):
        (batch,) = LabelledBatches(rows, seed=0, global_batch_size=3, max_length=max_length).epoch(0)
        assert batch.tokens_ABT.shape == (1, 3, expected)


def test_indivisible_labelled_batch_raises_shape_error() -> None:
    with pytest.raises(ShapeError, match=r"global_batch_size=8 is not a multiple of dp 3 x train.grad_accum 1 = 3"):
        batches(dp_size=3)


def test_labelled_file_above_the_size_limit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(DataError, match="expected at most 67108864"):
        read_labelled(str(path), 0.25)


@pytest.mark.parametrize("value", ["[" * 950 + "]" * 950, "[" + "{}," * 3_000_000 + "{}]"])
def test_deep_or_huge_json_line_is_rejected(value: str) -> None:
    with pytest.raises(DataError, match=r"f, line 1: (nested too deeply|contains too many values)"):
        parse_line(f'{{"text": "a", "label": {value}}}', "f, line 1")
