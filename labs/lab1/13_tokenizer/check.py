"""Compare merges and tokens with a second implementation: ties, repeated pairs, other alphabets, few merges."""

import functools
import itertools
import math
import random
import re
from collections import Counter
from typing import NoReturn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

OTHERS = ("Grüße aus Köln", "学习 tokens", "naïve café 🐸")


def draw_text(draw: random.Random) -> str:
    """Draw words of few letters, some of them frequent: many pairs tie, and some occur twice in a word."""
    letters = draw.sample("abdelmnorst", 5)
    words = ["".join(draw.choices(letters, k=draw.randint(2, 6))) for _ in range(8)]
    doubled = "".join(draw.sample(letters, 2)) * 3
    chosen = draw.choices([*words, doubled], weights=[9, 7, 5, 3, 2, 2, 1, 1, 4], k=60)
    return " ".join(chosen) + " é" + draw.choice(letters)


def draw_dense(draw: random.Random) -> str:
    """Draw long words from three letters: merges compete for the same bytes, so their order shows.

    Some pairs tie whose order is another one if their bytes are joined.
    """
    while True:
        text = " ".join("".join(draw.choices("abc", k=draw.randint(4, 12))) for _ in range(30))
        if learn(text, 15) != learn(text, 15, choose=lambda pairs: min(pairs, key=b"".join)):
            return text


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    cases = []
    for num_merges in (1, 6, 25):
        text = draw_text(draw)
        merges = learn(text, num_merges)
        others = [draw_text(draw), *OTHERS, text]
        cases.append({"text": text, "num_merges": num_merges, "merges": merges, "others": others})
    dense = draw_dense(draw)
    others = [draw_dense(draw), draw_dense(draw)]
    cases.insert(0, {"text": dense, "num_merges": 15, "merges": learn(dense, 15), "others": others})
    last = {"text": "aba aba b", "num_merges": 50, "merges": learn("aba aba b", 50), "others": ["abab aba"]}
    cases = [one | {"ends early": one is last} for one in [*cases, last]]
    found = grade.call({"cases": cases}).values[0]
    check_merges(grade, cases, found)
    check_tokens(
        grade, [(case, *one) for case, result in zip(cases, found, strict=True) for one in texts(case, result)]
    )
    for case, one in zip(cases, found, strict=True):
        for text, ratio in zip(case["others"], one["ratios"], strict=True):
            check_ratio(grade, case, text, ratio)
    text, merges = cases[-2]["text"], cases[-2]["merges"]
    own, foreign = (len(one.encode()) / len(encode(one, merges)) for one in (text, OTHERS[1]))
    grade.measured("bytes per token, in the text that it learned from", f"{own:.2f}")
    grade.measured("bytes per token, in a text in another language", f"{foreign:.2f}")
    grade.predicted("tokens", len(b"low low low lower"))


# ---- the oracle ------------------------------------------------------------------------------------------------------


def words_of(text, split=r" ?[^\s]+|\s"):
    return [word.encode() for word in re.findall(split, text)]


def learn(
    text,
    num_merges,
    weigh=lambda count: count,
    recount=True,
    choose=min,
    most=None,
    pairs_of=itertools.pairwise,
    words=words_of,
):
    counts = Counter(words(text))
    parts = {word: [bytes([byte]) for byte in word] for word in counts}
    merges, pairs = [], None
    for _ in range(num_merges):
        if pairs is None or recount:
            pairs = Counter()
            for word, tokens in parts.items():
                for pair in pairs_of(tokens):
                    pairs[pair] += weigh(counts[word])
        if not pairs:
            break
        often = max(pairs.values())
        best = choose([pair for pair, count in pairs.items() if count == often])
        merges.append(best)
        if recount:
            parts = {word: merged(tokens, best, most) for word, tokens in parts.items()}
        else:
            del pairs[best]
    return [list(pair) for pair in merges]


def merged(tokens, pair, most=None):
    result, i, times = [], 0, 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == tuple(pair) and (most is None or times < most):
            result.append(tokens[i] + tokens[i + 1])
            i, times = i + 2, times + 1
        else:
            result.append(tokens[i])
            i += 1
    return result


def chosen_from(own, pairs):
    """Return the pair of `own` if it is among the equally frequent pairs, else the smallest of them."""
    return own if own in pairs else min(pairs)


def is_learned(text, num_merges, own, **how) -> bool:
    """True if each merge of `own` takes a most frequent pair, whichever of the equally frequent pairs it takes."""
    turns = (tuple(pair) for pair in own)
    return learn(text, num_merges, choose=lambda pairs: chosen_from(next(turns, None), pairs), **how) == own


def encode(text, merges, most=None, words=words_of):
    found = []
    for word in words(text):
        tokens = [bytes([byte]) for byte in word]
        for pair in merges:
            tokens = merged(tokens, pair, most)
        found += tokens
    return found


# ---- explanations ----------------------------------------------------------------------------------------------------


def shown(tokens):
    return " ".join(repr(bytes(token))[1:] for token in tokens)


APART, AFTER = (functools.partial(words_of, split=split) for split in (r"[^\s]+|\s", r"[^\s]+ ?|\s"))
"""Other splits: a space is a separate word, or belongs to the word before it."""
LEARNED = (
    ("not-counted-again", "counting pairs once, before the first merge", {"recount": False}),
    ("first-of-equals", "taking the largest of equally frequent pairs", {"choose": max}),
    ("first-of-equals", "taking the first of equally frequent pairs", {"choose": lambda pairs: pairs[0]}),
    ("one-occurrence", "merging a pair once in a word", {"most": 1}),
)
"""Other ways to learn: the id, a description, and the arguments of `learn`."""


COUNTED = (
    ("first-of-equals", "taking a pair other than the smallest of equally frequent pairs", {}),
    ("each-word-once", "counting each different word once", {"weigh": lambda count: 1}),
    (
        "each-word-once",
        "counting a pair once in a word that has it twice",
        {"pairs_of": lambda tokens: set(itertools.pairwise(tokens))},
    ),
    ("own-split", "words without the space before them", {"words": APART}),
    ("own-split", "words with the space after them", {"words": AFTER}),
)
"""Other ways to count, each with any choice among equally frequent pairs."""


def check_merges(grade: Grade, cases, found) -> None:
    made = []
    for case, one in zip(cases, found, strict=False):
        what = f"{case['num_merges']} merges of a text of {len(case['text'])} characters: "
        if isinstance(one, str):
            grade.reject(
                "never-stops-early", f"{what}{len(case['merges'])} pairs can be merged; then learn_merges raised {one}."
            )
        if isinstance(one["merges"], str):
            text = f"learn_merges returned {one['merges'][:60]}, but should return a list of pairs of bytes."
            grade.reject("unknown", text)
        made.append([[bytes(part) for part in pair] if are_bytes(pair) else pair for pair in one["merges"]])
    for n, case in enumerate(cases):
        if made[n] != case["merges"]:
            explain_merges(grade, cases, made, case, made[n])


def explain_merges(grade: Grade, cases, made, case, own) -> NoReturn:
    right = case["merges"]
    at = next((n for n, pair in enumerate(right) if n >= len(own) or own[n] != pair), len(right))
    what = f"{case['num_merges']} merges of a text of {len(case['text'])} characters: "
    if at == len(right):
        grade.reject("never-stops-early", f"{what}{len(right)} pairs can be merged, but you returned {len(own)}.")
    for n, pair in enumerate(own, 1):
        if not are_bytes(pair):
            text = f"{what}number {n} is {str(pair)[:60] if isinstance(pair, list) else repr(pair)[:60]}"
            grade.reject("unknown", f"{text}, but should be a pair of bytes: ({', '.join(map(repr, right[at]))}).")
    what += f"number {at + 1} is {shown(own[at]) if at < len(own) else 'missing'}, but should be {shown(right[at])}."
    for id, words, how in LEARNED:
        if all(learn(one["text"], one["num_merges"], **how) == mine for one, mine in zip(cases, made, strict=True)):
            grade.reject(id, f"{what} In all {len(cases)} texts your merges match {words}.")
    if all(map(are_bytes, itertools.chain(*made))):
        for id, words, how in COUNTED:
            if all(
                is_learned(one["text"], one["num_merges"], mine, **how) for one, mine in zip(cases, made, strict=True)
            ):
                grade.reject(id, f"{what} In all {len(cases)} texts your merges match {words}.")
    spaced = [pair for pair in own if b" " in (pair[0] + pair[1])[1:]]
    if spaced:
        grade.reject("over-word-borders", f"{what} {shown(spaced[0])} has a space inside.")
    explain_merge(grade, case, own, at, what)


def explain_merge(grade: Grade, case, own, at, what) -> NoReturn:
    """Explain the first wrong merge, number `at`, by how often the two pairs occur at that point."""
    if at >= len(own):
        grade.reject("unknown", what)
    pairs = Counter()
    for word, often in Counter(words_of(case["text"])).items():
        tokens = [bytes([byte]) for byte in word]
        for pair in case["merges"][:at]:
            tokens = merged(tokens, pair)
        for pair in itertools.pairwise(tokens):
            pairs[pair] += often
    mine, right = tuple(own[at]), tuple(case["merges"][at])
    says = f"{what} At this point the first occurs {times(pairs[mine])}, the second {times(pairs[right])}."
    known = {a + b for a, b in own[:at]}
    if any(part not in known and is_character(part, case["text"]) for part in mine):
        grade.reject("characters-for-bytes", says)
    grade.reject("unknown", says)


def is_character(part: bytes, text: str) -> bool:
    """True if it is a character of the text with more than one byte in UTF-8, as those bytes or as one byte."""
    return any(part in (one.encode(), one.encode("latin-1", errors="ignore")) for one in text if not one.isascii())


def times(number: int) -> str:
    return count(number, "time")


def are_bytes(pair) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, bytes) for part in pair)


def texts(case, result):
    return zip(case["others"], result["tokens"], strict=True)


def check_tokens(grade: Grade, found) -> None:
    """Check the tokens of each text; `found` holds (case, text, tokens)."""
    wrong = [one for one in found if one[2] != encode(one[1], one[0]["merges"])]
    if not wrong:
        return
    for _, text, tokens in wrong:
        if isinstance(tokens, str) or not all(isinstance(token, bytes) for token in tokens):
            says = f"encode({text[:20]!r}, …) returned {tokens[:40] if isinstance(tokens, str) else repr(tokens[:3])}"
            grade.reject("unknown", f"{says}, but should return a list of bytes, one for each token.")
    check_joined(grade, wrong)
    case, text, tokens = wrong[0]
    right = encode(text, case["merges"])
    at = next((n for n, pair in enumerate(zip(tokens, right, strict=False)) if pair[0] != pair[1]), len(right))
    what = f"encode with {len(case['merges'])} merges: {shown(tokens[max(at - 1, 0) : at + 3])} …, but should be "
    what += (
        f"{shown(right[max(at - 1, 0) : at + 3])} …, at token {at + 1}. Wrong in {len(wrong)} of {len(found)} texts."
    )
    for id, way in ENCODED:
        if all(tokens == way(text, case["merges"]) for case, text, tokens in found):
            grade.reject(id, what)
    if any(b" " in token[1:] for token in tokens):
        grade.reject("over-word-borders", what)
    grade.reject("unknown", what)


def check_joined(grade: Grade, wrong) -> None:
    """Check that the tokens of each text, joined, are the text."""
    changed = [(text, b"".join(tokens)) for _, text, tokens in wrong if b"".join(tokens) != text.encode()]
    if not changed:
        return
    text, own = changed[0]
    says = (
        f"encode({text[:20]!r}, …): the text has {len(text.encode())} bytes, but the tokens have {len(own)} in total."
    )
    at = next((n for n, pair in enumerate(zip(own, text.encode(), strict=False)) if pair[0] != pair[1]), len(own))
    at = max(at - 10, 0)
    says = (
        f"{says} From byte {at} on, the text is {text.encode()[at : at + 20]!r}, the tokens are {own[at : at + 20]!r}."
    )
    if all(own == text.replace(" ", "").encode() for text, own in changed):
        grade.reject("own-split", f"{says} The spaces are missing.")
    if all(own == text.encode("latin-1", errors="replace") for text, own in changed):
        grade.reject("characters-for-bytes", says)
    if all(is_part(own, text.encode()) for text, own in changed):
        grade.reject("unknown-dropped", says)
    grade.reject("unknown-dropped" if all(is_covered(*one) for one in changed) else "unknown", says)


def is_part(own: bytes, text: bytes) -> bool:
    """True if `own` is `text` with some bytes left out."""
    rest = iter(text)
    return all(byte in rest for byte in own)


def is_covered(text: str, own: bytes) -> bool:
    """True if `own` has all ASCII words of the text, in order, and something else for the others."""
    return not text.isascii() and is_part(b"".join(word for word in words_of(text) if word.isascii()), own)


def by_characters(text, merges):
    found = []
    for word in words_of(text):
        tokens = [character.encode() for character in word.decode()]
        for pair in merges:
            tokens = merged(tokens, pair)
        found += tokens
    return found


def longest_first(text, merges):
    known, found = {a + b for a, b in merges}, []
    for word in words_of(text):
        while word:
            length = next(n for n in range(len(word), 0, -1) if n == 1 or word[:n] in known)
            found.append(word[:length])
            word = word[length:]
    return found


def leftmost(text, merges):
    known, found = set(map(tuple, merges)), []
    for word in words_of(text):
        tokens, i = [bytes([byte]) for byte in word], 0
        while i + 1 < len(tokens):
            if (tokens[i], tokens[i + 1]) in known:
                tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
                i = 0
            else:
                i += 1
        found += tokens
    return found


ENCODED = (
    ("characters-for-bytes", by_characters),
    ("one-occurrence", lambda text, merges: encode(text, merges, most=1)),
    ("longest-token-first", longest_first),
    (
        "longest-token-first",
        lambda text, merges: encode(text, sorted(merges, key=lambda pair: -len(pair[0] + pair[1]))),
    ),
    ("order-does-not-matter", lambda text, merges: encode(text, sorted(merges))),
    ("order-does-not-matter", lambda text, merges: encode(text, merges[::-1])),
    ("order-does-not-matter", leftmost),
    ("own-split", lambda text, merges: encode(text, merges, words=APART)),
)
"""Other ways to encode."""


def check_ratio(grade: Grade, case, text, ratio) -> None:
    tokens, size = len(encode(text, case["merges"])), len(text.encode())
    if isinstance(ratio, (int, float)) and math.isclose(ratio, size / tokens, rel_tol=1e-9):
        return
    what = f"bytes_per_token of {size} bytes in {tokens} tokens: found {ratio!r}, expected {size / tokens:.6f}."
    lengths = [len(a) + len(b) for a, b in case["merges"]]
    for id, other in (
        ("tokens-per-byte", tokens / size),
        ("characters-for-bytes", len(text) / tokens),
        ("words-for-tokens", size / len(words_of(text))),
        ("words-for-tokens", sum(lengths) / len(lengths)),
    ):
        if isinstance(ratio, (int, float)) and math.isclose(ratio, other, rel_tol=1e-9):
            grade.reject(id, what)
    grade.reject("unknown", what)
