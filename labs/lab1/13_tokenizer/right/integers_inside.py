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


def learn_merges(text, num_merges):
    """Tokens are numbers internally, with their bytes in a table."""
    table = [bytes([n]) for n in range(256)]
    counts = Counter(split_words(text))
    words = [(list(word), count) for word, count in counts.items()]
    merges = []
    while len(merges) < num_merges:
        pairs = Counter()
        for ids, count in words:
            for a, b in zip(ids, ids[1:]):
                pairs[a, b] += count
        if not pairs:
            return merges
        a, b = min(pairs, key=lambda pair: (-pairs[pair], (table[pair[0]], table[pair[1]])))
        merges.append((table[a], table[b]))
        table.append(table[a] + table[b])
        for n, (ids, count) in enumerate(words):
            new, i = [], 0
            while i < len(ids):
                hit = ids[i : i + 2] == [a, b]
                new.append(len(table) - 1 if hit else ids[i])
                i += 2 if hit else 1
            words[n] = (new, count)
    return merges


def encode(text: str, merges: list[Merge]) -> list[bytes]:
    """Split the text into tokens: start each word as single bytes, then apply every merge, in the order of `merges`."""
    found: list[bytes] = []
    for word in split_words(text):
        tokens = single_bytes(word)
        for pair in merges:
            tokens = merge(tokens, pair)
        found += tokens
    return found


def bytes_per_token(text: str, merges: list[Merge]) -> float:
    """Return how many bytes of this text a token stands for, on average."""
    return len(text.encode()) / len(encode(text, merges))
