"""Traps in a job file, and the findings that report them.

Each trap is defined above the function that finds it, in a file of similar traps, such as `traps_shell.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["will fail", "may hang or waste", "advice"]

FAILS: Final = "will fail"
"""Slurm or the shell refuses the file, or no rank starts its work."""
WASTES: Final = "may hang or waste"
"""The job may hang, lose work, or hold nodes or GPUs that it does not use."""
ADVICE: Final = "advice"
"""Worth knowing; the author may have meant it."""


@dataclass(frozen=True)
class Finding:
    """A trap or a piece of advice for one line."""

    kind: Kind
    code: str
    line: int
    what: str
    why: str
    instead: str | None
    """The correction."""


@dataclass(frozen=True)
class Trap:
    """A mistake that a job file may contain, with the text that explains it. `{name}` marks a value to fill in."""

    code: str
    kind: Kind
    why: str
    instead: str | None = None
    """The correction."""
    needs_all_lines: bool = False
    """True if the trap is that something is missing: Frog reports it only if it understood every line."""

    def at(self, line: int, what: str, kind: Kind | None = None, **values: object) -> Finding:
        """Report this trap in a line; `values` fill in its texts, and `kind` replaces its own kind."""
        instead = None if values.get("instead", "") is None else self.instead
        filled = instead and _filled(instead, values)
        return Finding(kind or self.kind, self.code, line, what, _filled(self.why, values), filled)


def _filled(text: str, values: dict[str, object]) -> str:
    """Return `text` with `{name}` replaced, and the shell's own braces unchanged."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
