"""Options of sbatch and srun as they parse them, and the `#SBATCH` lines of a job file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from frog.cluster.jobfile.options import SBATCH, Option

_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cpu_bind": "cpu-bind", "mem_bind": "mem-bind",
            "cluster": "clusters", "share": "oversubscribe", "pack-group": "het-group"}  # fmt: skip

_TAKES_ANY_TEXT = "Jeio"
"""Short options that take any text: sbatch accepts a long option written with one dash as their value."""
_ANOTHER_COMPONENT = re.compile(r"#SBATCH\s+(het|pack)job\s*(#|$)")


@dataclass(frozen=True)
class GivenOption:
    """One option as written. `option` is None if no such option exists."""

    line: int
    written: str
    option: Option | None
    value: str | None
    problem: str | None = None
    """The mistake in words."""
    instead: str | None = None

    @property
    def name(self) -> str:
        return self.option.name if self.option else self.written


def read_options(words: Sequence[tuple[str, int]], table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    """Read the options at the start of `words` (text and line of each), as getopt does; return the words used.

    Reading ends at the first word that is not an option, such as srun's program.
    """
    found: list[GivenOption] = []
    place = 0
    while place < len(words):
        text, line = words[place]
        following = words[place + 1][0] if place + 1 < len(words) else None
        if text == "--":
            return found, place + 1
        if not text.startswith("-") or text == "-":
            break
        read, used = _long(text, line, following, table) if text[:2] == "--" else _short(text, line, following, table)
        found += read
        place += used
    return found, place


def _long(text: str, line: int, following: str | None, table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    name, equals, value = text[2:].partition("=")
    option = find_option(name, table)
    written = f"--{name}"
    if option is None:
        near = next((key for key in table if key == f"{name}-per-task" or one_letter_apart(name, key)), None)
        return [GivenOption(line, written, None, value, "no such option", f"--{near}" if near else None)], 1
    if option.takes == "-" and equals:
        return [GivenOption(line, written, option, value, "takes no value", written)], 1
    if option.takes != "=" or equals:
        missing = option.takes == "=" and not value
        return [GivenOption(line, written, option, value if equals else None, "has no value" if missing else None)], 1
    asked, used = _separate(line, written, option, following)
    return [asked], used


def _short(text: str, line: int, following: str | None, table: Mapping[str, Option]) -> tuple[list[GivenOption], int]:
    """Return the options of one word: those without a value may be combined, as in -ln2."""
    name, equals, _ = text[1:].partition("=")
    if equals and name and name[0] not in _TAKES_ANY_TEXT and _ALIASES.get(name, name) in table:
        what = "with one dash only the first letter is the option"
        return [GivenOption(line, text, None, None, what, f"-{text}")], 1
    found: list[GivenOption] = []
    for place, letter in enumerate(text[1:], 1):
        option = next((item for item in table.values() if item.short == letter), None)
        if option is None or option.takes != "-" or text[place + 1 :].startswith("="):
            asked, used = _last_short(f"-{letter}", text[place + 1 :], option, line, following)
            return [*found, asked], used
        found.append(GivenOption(line, f"-{letter}", option, None))
    return found, 1


def _last_short(
    written: str, rest: str, option: Option | None, line: int, following: str | None
) -> tuple[GivenOption, int]:
    """Return the last option of a word of short options: the rest of the word is its value."""
    if option is None:
        return GivenOption(line, written, None, rest or None, "no such option"), 1
    if option.takes == "-":
        return GivenOption(line, written, option, rest[1:], "takes no value", written), 1
    if rest.startswith("="):
        return GivenOption(
            line, written, option, rest[1:], "a short option takes no '=': it becomes part of the value",
            f"{written} {rest[1:]} or --{option.name}{rest}",
        ), 1  # fmt: skip
    if option.takes != "=" or rest:
        return GivenOption(line, written, option, rest or None), 1
    return _separate(line, written, option, following)


def _separate(line: int, written: str, option: Option, following: str | None) -> tuple[GivenOption, int]:
    if following is None:
        return GivenOption(line, written, option, None, "has no value"), 1
    if following == "=":
        return GivenOption(line, written, option, None, "has spaces around '='", f"--{option.name}=VALUE"), 2
    return GivenOption(line, written, option, following), 2


def find_option(name: str, table: Mapping[str, Option]) -> Option | None:
    """Return the option of that long name, or with that unambiguous prefix, as for getopt."""
    name = _ALIASES.get(name, name)
    if name in table:
        return table[name]
    names = {**{key: key for key in table}, **_ALIASES} if name else {}
    begun = {full for key, full in names.items() if key.startswith(name)}
    return table.get(begun.pop()) if len(begun) == 1 else None


def one_letter_apart(one: str, other: str) -> bool:
    """True if inserting, deleting, changing or swapping one letter turns one word into the other."""
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if start is None:
        return True
    rests = [
        (one[start + 1 :], other[start + 1 :]),
        (one[start + 1 :], other[start:]),
        (one[start:], other[start + 1 :]),
    ]
    swapped = one[start : start + 2] == other[start : start + 2][::-1] and one[start + 2 :] == other[start + 2 :]
    return swapped or any(a == b for a, b in rests)


@dataclass(frozen=True)
class DirectiveLine:
    """A line that begins with `#SBATCH`, and its options."""

    line: int
    asked: tuple[GivenOption, ...]
    read: bool
    """False if the line comes after the first command, where Slurm has stopped reading."""
    problem: str | None = None
    component: int = 0
    """Component of a heterogeneous job; the script and its plain steps run in the first."""


def read_directives(lines: Iterable[str], first_line: int = 1) -> list[DirectiveLine]:
    """Return the `#SBATCH` lines of a job file, in order. Slurm reads them up to the first line that is not a comment.

    Slurm needs no space after the word: it reads `#SBATCH--nodes=2`, and reports a mistake in `#SBATCHES`.
    """
    found: list[DirectiveLine] = []
    reading, component = True, 0
    for number, line in enumerate(lines, first_line):
        if _ANOTHER_COMPONENT.match(line):
            component += 1
        elif line.startswith("#SBATCH"):
            found.append(replace(_directive(number, line, reading), component=component))
        elif line.strip() and not line.lstrip().startswith("#"):
            reading = False
    return found


def _directive(number: int, line: str, read: bool) -> DirectiveLine:
    try:
        words = _words(line.removeprefix("#SBATCH"))
    except ValueError:
        return DirectiveLine(number, (), read, "a quote is never closed")
    asked, used = read_options([(word, number) for word in words], SBATCH)
    stray = f"{words[used]!r} is not an option" if used < len(words) else None
    if stray and words[used][:1] in "–—":  # noqa: RUF001
        stray = f"{words[used]!r} begins with a typographic dash; an option begins with two hyphens"
    return DirectiveLine(number, tuple(asked), read, stray)


def _words(text: str) -> list[str]:
    """Return the words as sbatch reads them, up to a `#` outside quotes. Raises ValueError if a quote is not closed.

    Inside quotes, the other kind of quote is an ordinary character; a backslash makes any next character except a blank
    ordinary.
    """
    words, word, quote = [], "", ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            letter = next(letters, "")
            if quote or not letter.isspace():
                word += letter
                continue
        if quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in ("'", '"'):
            quote = letter
        elif letter == "#":
            break
        elif not letter.isspace():
            word += letter
        elif word:
            words.append(word)
            word = ""
    if quote:
        raise ValueError(text)
    return [*words, word] if word else words


def time_limit_s(text: str) -> int | None:
    """Return the seconds of a time limit as Slurm writes it: `90` (minutes), `90:30`, `2:30:00`, `1-12`, `1-12:30:00`.

    None if it means no limit. Raises ValueError if it is not one of these.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(text)
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


def write_time(seconds: int) -> str:
    """Format seconds: 5400 -> '01:30:00', 100000 -> '1-03:46:40'."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}" if days else f"{hour:02}:{minute:02}:{second:02}"
