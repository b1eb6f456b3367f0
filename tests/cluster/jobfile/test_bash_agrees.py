"""The reader of shell texts against bash itself: words without quotes, expanded variables, values, open quotes."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.cluster.jobfile.job_file import read_job_file
from frog.cluster.jobfile.shell_words import Word, live_text, open_quote, unquote

PIECES = (
    "a", "b/c", "=", "#", ",", "~x", "%", "'single'", "'a  b'", "'\"'", "'\\'", "'$A'", "''", '""', '"a b"', "\"it's\"",
    '"\\""', '"\\\\"', '"\\$A"', '"\\a"', '"#"', "\\ ", "\\'", '\\"', "\\\\", "\\$A", "\\a", "'a\nb'", '"a\nb"',
    '"a\\\nb"', "x\\\ny",
)  # fmt: skip
"""Parts of words, quoted in every way, without expansions."""
EXPANDED = (
    "$A", "${A}", "${A:-x}", "${#A}", "$B/c", '"$A"', '"${B}"', "'$A'", "\\$A", '"\\$A"', "'x'\"$B\"", "\"it's $A\"",
    "\"'$B'\"", '"\\\\$A"', "\\\\$B", '\\"$A',
)  # fmt: skip


def run_bash(script: str) -> str:
    """Return what bash prints; texts from users never run here."""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def words_of(pieces: Iterable[str], count: int) -> list[str]:
    """Return each piece, and pieces put together at random, the same in each run."""
    chance, known = random.Random(5), list(pieces)
    mixed = ["".join(chance.choices(known, k=chance.randint(2, 5))) for _ in range(count)]
    return [word for word in (*known, *mixed) if not word.startswith(("#", "~"))]


def test_words_without_their_quotes_are_those_that_bash_passes_on() -> None:
    words = words_of(PIECES, 300)
    passed_on = run_bash("printf '%s\\0' " + " ".join(words)).split("\0")[:-1]
    assert [unquote(word) for word in words] == passed_on


def test_expanded_variables_are_those_that_bash_expands() -> None:
    """A variable is expanded if bash's word changes with it."""
    words = words_of((*EXPANDED, *PIECES), 300)
    printed = {}
    for a, b in itertools.product(("one", "other"), repeat=2):
        printed[a, b] = run_bash(f"A={a} B={b}; printf '%s\\0' " + " ".join(words)).split("\0")[:-1]
    for number, word in enumerate(words):
        first = printed["one", "one"][number]
        changed = {"A": printed["other", "one"][number], "B": printed["one", "other"][number]}
        changes = {name for name, text in changed.items() if text != first}
        if "${#A}" not in word:  # 3 and 5
            expansions = Word(word, 1).expansions()  # "$A" before "b" is another variable
            assert expansions & {"A", "B"} == changes, word
            assert ("$" in live_text(word)) == bool(expansions), word


ASSIGNMENTS = """\
A=4
B="$A"
C='$A'
D=$((A * 8 - 1))
E=$((D / 4 % 5))
F=${A}x${B}
G=${NONE:-7}
H=${A:-7}
I=$((10000 + SLURM_JOB_ID % 20000))
J="${SLURM_NTASKS_PER_NODE}"
K=$(hostname)
L=$K.x
M=${A:+yes}
N=$M
O=a; O+=b
P=${P:-5}
Q=$Q:x
R=\\$A
S=$(($A + ${B}))
T=$((A ** 2))
U=$((7 / 0))
V=`date`
W="a b"
X=${A}_$W
Y=$NONE
Z=$((UNKNOWN + 1))
"""
UNKNOWN = set("CIJKLMNOPQRTUVYZ")
"""Frog may say nothing of these: commands, what only a job or its user knows, and forms that it does not read."""


def test_known_values_are_those_that_bash_computes() -> None:
    job = read_job_file(f"#!/bin/bash\n{ASSIGNMENTS}", Path("job"))
    names = [line[0] for line in ASSIGNMENTS.splitlines()]
    lines = [line for line in ASSIGNMENTS.splitlines() if line[0] not in "UV"]
    printed = run_bash("\n".join(lines) + "\nprintf '%s\\0' " + " ".join(f'"${name}"' for name in names)).split("\0")
    found = {name: job.resolve(f"${name}") for name in names}
    assert {name for name, value in found.items() if value is None} <= UNKNOWN
    assert {name: value for name, value in zip(names, printed, strict=False) if name not in UNKNOWN} == {
        name: value for name, value in found.items() if name not in UNKNOWN
    }
    for name, value in zip(names, printed, strict=False):
        assert found[name] in (None, value), name


@pytest.mark.parametrize(
    "text",
    [
        "echo 'a' \"b\" # it's a comment\n",
        "cat <<E\nit's open \"\nE\necho b\n",
        "cat <<-'E'\n'\n\tE\necho\n",
        "cat <<A <<B\n'\nA\n\"\nB\necho\n",
        'cat <<<"it\'s"\n',
        "echo a\\'b\n",
        'echo "it\'s"\n',
        'echo "\\"" \'\\\'\n',
        'echo ${A:-"b"} "$(echo a)"\n',
    ],
)
def test_text_that_bash_reads_has_no_open_quote_and_with_one_more_it_is_the_last(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=LIMIT_S)
    assert open_quote(text) is None
    for quote in "'\"":
        assert open_quote(f"{text}echo {quote}x\n") == text.count("\n") + 1
