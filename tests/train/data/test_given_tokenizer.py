"""A corpus tokenized by a tokenizer that Frog did not train: the one of GPT-2, Llama 3 or Qwen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from frog.core.errors import DataError
from frog.train.data import Document, load_tokenizer, prepare
from frog.train.data.tokenizer import end_of_document_id, token_lengths

END = "<|end_of_text|>"
WORD = "frog<pond>"
Corpus = Callable[[], Iterator[Document]]


def byte_level(corpus: Corpus) -> Tokenizer:
    """Train a tokenizer as others do: the end of a text is not token 0, and one added token is a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        (document.text for document in corpus()),
        trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens(["<|begin_of_text|>", END])
    tokenizer.add_tokens([AddedToken(WORD, normalized=False)])
    return tokenizer


@pytest.fixture(scope="module")
def given(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save such a tokenizer with a limit of four tokens per text, as some published files have."""
    tokenizer = byte_level(corpus)
    tokenizer.enable_truncation(4)
    path = tmp_path_factory.mktemp("given") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def with_word(corpus: Corpus) -> Corpus:
    return lambda: (Document(document.name, f"{document.text}{WORD} {END} naïve 蛙\n") for document in corpus())


def test_documents_have_the_tokens_of_transformers_and_end_with_its_end_of_text(
    given: Path, corpus: Corpus, tmp_path: Path
) -> None:
    documents = with_word(corpus)
    data = prepare("set", documents, source="test", given_tokenizer=given.parent, heldout_fraction=0.2, root=tmp_path)
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(given), split_special_tokens=True)
    train = data.split("train")
    found = {tuple(train.document(index).tolist()) for index in range(train.num_documents)}
    end_id = oracle.convert_tokens_to_ids(END)
    expected = {(*oracle.encode(document.text, truncation=False), end_id) for document in documents()}
    assert end_id == end_of_document_id(load_tokenizer(data.tokenizer_json)) != 0
    assert found <= expected
    assert len(found) == train.num_documents


def test_bytes_per_token_add_up_to_the_text(given: Path, corpus: Corpus, tmp_path: Path) -> None:
    data = prepare("set", with_word(corpus), source="test", given_tokenizer=given, root=tmp_path)
    for name, split in data.manifest.splits.items():
        part = data.split(name)
        lengths = [data.token_bytes[part.document(index)].sum() for index in range(part.num_documents)]
        assert sum(lengths) == split.num_bytes
    lengths_V = token_lengths(load_tokenizer(given))
    vocabulary = load_tokenizer(given).get_vocab()
    assert lengths_V[vocabulary[WORD]] == len(WORD)
    assert lengths_V[vocabulary[END]] == 0


def test_manifest_names_the_file_and_its_end_of_text(given: Path, corpus: Corpus, tmp_path: Path) -> None:
    data = prepare("set", corpus, source="test", given_tokenizer=given, root=tmp_path)
    assert data.manifest.tokenizer.kind == f"byte-level BPE from {given}"
    assert data.manifest.tokenizer.end_of_document == END
    assert data.manifest.vocab_size == data.manifest.tokenizer.vocab_size_asked == 323


def without_end(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(tokenizer.to_str().replace(END, "<|stop|>"))


def with_a_leading_space(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def in_lower_case(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def of_words(tokenizer: Tokenizer) -> Tokenizer:
    words = Tokenizer(models.WordLevel({"frog": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.add_special_tokens([END])
    return words


def without_bytes(tokenizer: Tokenizer) -> Tokenizer:
    few = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    few.decoder = decoders.ByteLevel()
    few.add_special_tokens([END])
    return few


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_end, "no token that ends a text; its special tokens: <|begin_of_text|>, <|stop|>"),
        (with_a_leading_space, "changes the text: 'A b"),
        (in_lower_case, "becomes 'a b"),
        (of_words, "not a byte-level BPE"),
        (without_bytes, "has no token for 255 of the 256 bytes"),
    ],
)
def test_unusable_tokenizer_is_rejected_before_the_corpus_is_read(
    change: Callable[[Tokenizer], Tokenizer], words: str, corpus: Corpus, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    change(byte_level(corpus)).save(str(path))

    def unread() -> Iterator[Document]:
        raise AssertionError("the corpus was read")

    with pytest.raises(DataError) as caught:
        prepare("set", unread, source="test", given_tokenizer=path, root=tmp_path / "data")
    assert words in str(caught.value)
    assert list((tmp_path / "data").glob("[!.]*")) == []
