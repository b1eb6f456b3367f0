"""`frog slurm explain FILE`: a job file line by line, and the traps in it."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frog.jobfile.explain import Explanation
    from frog.jobfile.findings import Finding

_WIDTH = 112


def add_explain_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `explain` to the commands of `frog slurm`."""
    parser = commands.add_parser(
        "explain",
        help="say what a job file does, line by line, and which traps it walks into",
        description="Explain a job file. Exit code 1 if it walks into a trap; notes alone leave it 0.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a job file, such as config/slurm_example.sbatch")
    parser.add_argument("--profile", metavar="NAME", help="look at it as that cluster would: a profile, or PATH.toml")
    parser.add_argument("--traps", action="store_true", help="traps and notes alone")
    parser.set_defaults(handler=run_explain)


def run_explain(args: argparse.Namespace) -> int:
    """Print it; 1 if there is a trap."""
    from frog.jobfile.cluster import load_profile
    from frog.jobfile.explain import explain_file

    explanation = explain_file(args.file, load_profile(args.profile) if args.profile else None)
    if not args.traps:
        print("\n".join(_page(explanation)))
        print()
    print("\n".join(format_findings(explanation)))
    return 1 if explanation.traps else 0


def _page(explanation: Explanation) -> list[str]:
    from frog.jobfile.lines import say_lines, summary

    job = explanation.job
    said, width = say_lines(job), len(str(len(job.lines)))
    lines = [f"{job.path}", *(f"  {line}" for line in summary(job)), ""]
    for number, text in enumerate(job.lines, 1):
        lines.append(f"{number:>{width}}  {text.rstrip()}".rstrip())
        for words in said.get(number, []):
            lines += _indented(words, " " * (width + 4))
        for finding in explanation.findings:
            if finding.line == number:
                lines += _indented(f"{finding.kind} [{finding.code}] {finding.what}", " " * (width + 2) + "! ")
    return lines


def format_findings(explanation: Explanation) -> list[str]:
    """Every trap, then every note, with why and what to write; and how many there are."""
    found = sorted(explanation.findings, key=lambda finding: finding.kind == "note")
    lines = [line for finding in found for line in _format_finding(finding, explanation.job.path)]
    traps = len(explanation.traps)
    notes = len(explanation.findings) - traps
    count = f"{traps or 'no'} trap{'' if traps == 1 else 's'}"
    return [
        *lines,
        f"{explanation.job.path}: {count}" + (f", {notes} note{'' if notes == 1 else 's'}" if notes else ""),
    ]


def _format_finding(finding: Finding, path: Path) -> list[str]:
    lines = [f"{path}:{finding.line}: {finding.kind} [{finding.code}] {finding.what}"]
    lines += _indented(finding.why, "  why:   ")
    if finding.instead:
        lines.append(f"  write: {finding.instead}")
    return [*lines, ""]


def _indented(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
