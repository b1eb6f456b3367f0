"""`frog slurm explain FILE`: explain a job file line by line and report its traps."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.errors import UsageError
from frog.core.schema import shortened
from frog.core.units import parse_whole, some_of

if TYPE_CHECKING:
    from frog.cluster.jobfile.explain import Explanation
    from frog.cluster.jobfile.findings import Finding

_WIDTH = 112
_LONGEST_LINE = 400
_PAGE_BYTES, _FINDINGS_BYTES = 36 << 10, 20 << 10
"""Longest output for a file of thousands of lines, and for its findings."""
_MOST_ABOUT, _MOST_UNREAD, _MOST_LIMITS = 40, 1000, 5
_FROGS_OWN = ("help", "usage", "profile", "version", "wrap", "parsable", "quiet", "verbose", "test-only")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def add_explain_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `explain` to the commands of `frog slurm`."""
    parser = commands.add_parser(
        "explain",
        help="explain a job file line by line and report its traps",
        description="Explain a job file. Exit code 1 if something will fail, hang or waste; 0 if there is only advice.",
        epilog="Options of sbatch (--nodes 4, -p gpu, ...) override the file's, as they do for sbatch.",
    )
    what = "a job file, or - for standard input; or a configuration of DeepSpeed (.json) or accelerate (.yaml)"
    parser.add_argument("file", type=Path, metavar="FILE", help=what)
    parser.add_argument("--profile", metavar="NAME", help="check the file for that cluster: a profile, or PATH.toml")
    parser.add_argument(
        "--slurm-version", metavar="22.05", help="report what applies to that Slurm version (default: all versions)"
    )
    parser.add_argument("--traps", action="store_true", help="print only traps and advice")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add_sbatch_options(parser)
    parser.set_defaults(handler=run_explain, given=[])


class _Give(argparse.Action):
    """Store an option of sbatch under its long name."""

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        value = None if values == [] else values
        args.given = [*args.given, (self.metavar, value)]


def _add_sbatch_options(parser: argparse.ArgumentParser) -> None:
    from frog.cluster.slurm_options import SBATCH

    for option in SBATCH.values():
        if option.name not in _FROGS_OWN:
            flags = [f"--{option.name}", *([f"-{option.short}"] if option.short and option.short != "h" else [])]
            nargs: int | str | None = {"=": None, "?": "?", "-": 0}[option.takes]
            parser.add_argument(
                *flags, dest="given", action=_Give, nargs=nargs, metavar=option.name, help=argparse.SUPPRESS
            )


def run_explain(args: argparse.Namespace) -> int:
    """Print the explanation; exit code 1 if there is a trap."""
    from frog.cluster.jobfile.cluster_profile import load_profile
    from frog.cluster.jobfile.explain import CheckContext, explain_file
    from frog.cluster.jobfile.launcher_files import SUFFIXES
    from frog.cluster.slurm_options import SBATCH, GivenOption

    if args.file.suffix in SUFFIXES:
        return _explain_launcher_file(args)
    given = tuple(GivenOption(0, f"--{name}", SBATCH[name], value) for name, value in args.given)
    profile = load_profile(args.profile) if args.profile else None
    places = (Path(), args.file.parent)
    explanation = explain_file(args.file, context=CheckContext(profile, places, given, _version(args.slurm_version)))
    if args.json:
        print(json.dumps(as_json(explanation), indent=2))
        return 1 if explanation.traps else 0
    if not args.traps:
        print("\n".join(_page(explanation)))
        print()
    print("\n".join(format_findings(explanation)))
    return 1 if explanation.traps else 0


def _explain_launcher_file(args: argparse.Namespace) -> int:
    """Explain DeepSpeed's JSON or accelerate's YAML; options of sbatch say for which job."""
    from frog.cluster.jobfile.launcher_files import JobOfFile, file_findings, read_launcher_file, summary

    file = read_launcher_file(args.file)
    asked = {name: parse_whole(value or "") for name, value in args.given}
    nodes = asked.get("nodes") or (1 if "gpus-per-node" in asked else None)
    per_node = asked.get("gpus-per-node") or asked.get("ntasks-per-node")
    world = asked.get("ntasks") or (nodes * per_node if nodes and per_node else None)
    job = JobOfFile(world, nodes, per_node)
    findings = _most_severe_first(file_findings(file, job))
    traps = sum(finding.kind != "advice" for finding in findings)
    if args.json:
        tables = list(map(_table, findings))
        about = {"format": 1, "file": str(file.path), "summary": summary(file, job), "findings": tables}
        print(json.dumps(about, indent=2))
        return 1 if traps else 0
    lines = [] if args.traps else [plain(str(file.path)), *(f"  {plain(line)}" for line in summary(file, job)), ""]
    lines += [line for finding in findings for line in _format_finding(finding, file.path)]
    print("\n".join([*lines, f"{plain(str(file.path))}: {_num_findings(traps, len(findings) - traps)}"]))
    return 1 if traps else 0


def _num_findings(traps: int, advice: int, where: str = "") -> str:
    """Say how many traps and pieces of advice there are. where: the words after the traps."""
    text = f"{traps or 'no'} trap{'' if traps == 1 else 's'}{where}"
    if not advice:
        return text
    return f"{text}, {advice} piece{'' if advice == 1 else 's'} of advice"


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})(\.\S{1,9})?", text or "")
    if text is not None and match is None:
        raise UsageError(
            f"--slurm-version {text}: not a version of Slurm", "--slurm-version 23.11, as `srun -V` prints it"
        )
    return (int(match[1]), int(match[2])) if match else None


def as_json(explanation: Explanation) -> dict[str, object]:
    """Return the findings for a program; severities are "will fail", "may hang or waste" and "advice"."""
    from frog.cluster.jobfile.emulator_limits import emulator_limits
    from frog.cluster.jobfile.line_meanings import summary

    job = explanation.job
    most_severe = _most_severe_first(explanation.findings)
    num_fitting = len(_fitting((json.dumps(_table(finding), indent=2) for finding in most_severe), _PAGE_BYTES))
    return {
        "format": 1,
        "file": str(job.path),
        "summary": summary(job)[:_MOST_ABOUT],
        "not_understood": sorted(set(job.shell.not_understood))[:_MOST_UNREAD],
        "findings": list(map(_table, sorted(most_severe[:num_fitting], key=lambda finding: finding.line))),
        "emulator_refuses": [plain(text) for text in emulator_limits(job)[:_MOST_UNREAD]],
        "left_out": len(most_severe) - num_fitting,
    }


def _table(finding: Finding) -> dict[str, object]:
    table = {("severity" if key == "kind" else key): value for key, value in asdict(finding).items()}
    return {key: shortened(value, _LONGEST_LINE) if isinstance(value, str) else value for key, value in table.items()}


def _page(explanation: Explanation) -> list[str]:
    from frog.cluster.jobfile.line_meanings import explain_lines, summary

    job = explanation.job
    said = explain_lines(job)
    for inner in explanation.nested:
        said |= explain_lines(inner)
    about = [f"  {line}" for each in (job, *explanation.nested) for line in summary(each)]
    if len(about) > _MOST_ABOUT:
        about[_MOST_ABOUT:] = [f"  ... {len(about) - _MOST_ABOUT} more lines"]
    lines = _fitting(_numbered(job.lines, said, explanation.findings), _PAGE_BYTES)
    if len(lines) < len(job.lines):
        lines.append(f"... {len(job.lines) - len(lines)} lines are not shown; findings of all lines:")
    return [plain(str(job.path)), *about, "", *lines]


def _fitting(texts: Iterable[str], most_bytes: int) -> list[str]:
    """Return the first texts that fit."""
    fitting = []
    for text in texts:
        most_bytes -= len(text.encode(errors="replace")) + 1
        if most_bytes < 0:
            break
        fitting.append(text)
    return fitting


def _numbered(texts: Sequence[str], said: dict[int, list[str]], findings: Sequence[Finding]) -> Iterator[str]:
    """Yield each line with its meaning and its findings."""
    width = len(str(len(texts)))
    findings_in: dict[int, list[Finding]] = {}
    for finding in findings:
        findings_in.setdefault(finding.line, []).append(finding)
    for number, text in enumerate(texts, 1):
        lines = [f"{number:>{width}}  {plain(text)}".rstrip()]
        for words in said.get(number, []):
            lines += _indented(words, " " * (width + 4))
        for finding in findings_in.get(number, []):
            lines += _indented(f"{finding.kind} [{finding.code}] {finding.what}", " " * (width + 2) + "! ")
        yield "\n".join(lines)


def _most_severe_first(findings: Sequence[Finding]) -> list[Finding]:
    order = ("will fail", "may hang or waste", "advice")
    return sorted(findings, key=lambda finding: order.index(finding.kind))


def format_findings(explanation: Explanation) -> list[str]:
    """Return the findings, most severe first, with reason and correction, and their number and that of omitted ones."""
    path = explanation.job.path
    texts = ("\n".join(_format_finding(finding, path)) for finding in _most_severe_first(explanation.findings))
    shown = _fitting(texts, _FINDINGS_BYTES)
    left_out = len(explanation.findings) - len(shown)
    more = f"; {left_out} of these are not shown: fix the others first" if left_out else ""
    lines = [line for text in shown for line in text.split("\n")]
    return [*lines, f"{plain(str(path))}: {_count(explanation)}{more}", *_about_emulator(explanation)]


def _about_emulator(explanation: Explanation) -> list[str]:
    """Return a line about the parts of a job file that only a real Slurm can run."""
    from frog.cluster.jobfile.emulator_limits import emulator_limits

    limits = emulator_limits(explanation.job)
    if not limits:
        return []
    text = f"Frog's emulator of Slurm would refuse it (a real one may not): {some_of(limits, _MOST_LIMITS)}"
    return _indented(text, "  ")


def _count(explanation: Explanation) -> str:
    traps = len(explanation.traps)
    advice = len(explanation.findings) - traps
    understood = " in the lines that Frog understood" if explanation.partial and not traps else ""
    return _num_findings(traps, advice, understood)


def _format_finding(finding: Finding, path: Path) -> list[str]:
    lines = [f"{plain(str(path))}:{finding.line}: {finding.kind} [{finding.code}] {plain(finding.what)}"]
    lines += _indented(finding.why, "  why:   ")
    if finding.instead:
        lines.append(f"  write: {plain(finding.instead)}")
    return [*lines, ""]


def _indented(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        plain(text), _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def plain(text: str) -> str:
    """Remove control sequences from a text, write tabs as blanks, and shorten it."""
    text = text.removesuffix("\r").replace("\t", " ")
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 3] + "..."
