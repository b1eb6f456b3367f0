"""Options of the small commands: squeue, sinfo, scancel, scontrol."""

from __future__ import annotations

import getopt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frog.cluster.emulator.refusal import SlurmRefusal


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line."""

    options: dict[str, str | None]
    words: list[str]


def parse_command_line(program: str, words: Sequence[str], known: Mapping[str, str]) -> CommandLine:
    """Read a command line. `known` maps an option to its letter (or a point) and `=` if it takes a value, else `-`.

    Raises:  SlurmRefusal that names an unknown option.
    """
    short = "".join(code[0] + (":" if code[1] == "=" else "") for code in known.values() if code[0] != ".")
    long = [name + ("=" if code[1] == "=" else "") for name, code in known.items()]
    try:
        found, rest = getopt.gnu_getopt(list(words), short, long)
    except getopt.GetoptError as error:
        dashes = "--" if len(error.opt) > 1 else "-"
        raise SlurmRefusal(
            f"the Slurm emulator does not support {dashes}{error.opt} of {program} ({error.msg})",
            hint=f"supported options: {', '.join('--' + name for name in known)}",
        ) from None
    by_letter = {f"-{code[0]}": name for name, code in known.items()}
    options: dict[str, str | None] = {}
    for word, value in found:
        name = by_letter[word] if word in by_letter else word[2:]
        options[name] = value if known[name][1] == "=" else None
    return CommandLine(options, rest)
