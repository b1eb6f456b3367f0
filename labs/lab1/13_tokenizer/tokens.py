"""A byte-pair tokenizer: learned from a text, used on any other."""

import re
from collections import Counter

Merge = tuple[bytes, bytes]


def split_words(text: str) -> list[bytes]:
    """Split the text into words, each with the space before it, as UTF-8 bytes. Joined, they give the text."""
    return [word.encode() for word in re.findall(r" ?[^\s]+|\s", text)]


def learn_merges(text: str, num_merges: int) -> list[Merge]:
    """Return the pairs of tokens to merge, in the order in which they were learned.

    Every word starts as single bytes. Repeatedly, the pair of neighbours that is most frequent in the whole text
    becomes one token, everywhere. Pairs never cross the border of a word. Among equally frequent pairs, take the
    smallest: `min` of the pairs as tuples of bytes. Stop early if no pair remains.
    """
    raise NotImplementedError("fill in learn_merges")


def encode(text: str, merges: list[Merge]) -> list[bytes]:
    """Split the text into tokens: start each word as single bytes, then apply every merge, in the order of `merges`."""
    raise NotImplementedError("fill in encode")


def bytes_per_token(text: str, merges: list[Merge]) -> float:
    """Return how many bytes of this text a token stands for, on average."""
    raise NotImplementedError("fill in bytes_per_token")
