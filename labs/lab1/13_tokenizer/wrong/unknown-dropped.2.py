"""A byte-pair tokenizer: learned from a text, used on any other."""

import re
from collections import Counter

Merge = tuple[bytes, bytes]


def split_words(text: str) -> list[bytes]:
    """Split the text into words, each with the space before it, as UTF-8 bytes. Joined, they give the text."""
    return [word.encode() for word in re.findall(r" ?[^\s]+|\s", text)]


def merge(word: list[bytes], pair: Merge) -> list[bytes]:
    """Merge each occurrence of the pair, from the left, into one token."""
    merged: list[bytes] = []
    i = 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            merged.append(word[i] + word[i + 1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return merged


def single_bytes(word: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in word]


def learn_merges(text: str, num_merges: int) -> list[Merge]:
    """Return the pairs of tokens to merge, in the order in which they were learned.

    Every word starts as single bytes. Repeatedly, the pair of neighbours that is most frequent in the whole text
    becomes one token, everywhere. Pairs never cross the border of a word. Among equally frequent pairs, take the
    smallest: `min` of the pairs as tuples of bytes. Stop early if no pair remains.
    """
    counts = Counter(split_words(text))
    words = {word: single_bytes(word) for word in counts}
    merges: list[Merge] = []
    for _ in range(num_merges):
        pairs: Counter[Merge] = Counter()
        for word, tokens in words.items():
            for pair in zip(tokens, tokens[1:], strict=False):
                pairs[pair] += counts[word]
        if not pairs:
            break
        most = max(pairs.values())
        best = min(pair for pair, count in pairs.items() if count == most)
        merges.append(best)
        words = {word: merge(tokens, best) for word, tokens in words.items()}
    return merges


def encode(text: str, merges: list[Merge]) -> list[bytes]:
    """Split the text into tokens: start each word as single bytes, then apply every merge, in the order of `merges`."""
    found: list[bytes] = []
    for word in split_words(text):
        tokens = single_bytes(word)
        for pair in merges:
            tokens = merge(tokens, pair)
        found += [token if token.isascii() else b'?' for token in tokens]
    return found


def bytes_per_token(text: str, merges: list[Merge]) -> float:
    """Return how many bytes of this text a token stands for, on average."""
    return len(text.encode()) / len(encode(text, merges))
