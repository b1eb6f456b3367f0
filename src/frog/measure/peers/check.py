"""`frog collectives check`: run the sessions, report what each check found, keep the requested files."""

from __future__ import annotations

import argparse
import secrets
import shlex
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from frog.core.errors import UsageError
from frog.measure.peers.checks import CHECKS, Observe, Outcome, Scope, examine
from frog.measure.peers.observed import Observed, Plan
from frog.measure.peers.session import run_session

_MARKS = {"passed": "✓", "rejected": "✗", "skipped": "·"}
_WIDTH = 118


def check(args: argparse.Namespace) -> int:
    """Run the checks; return exit code 1 if one rejects the peers' behavior."""
    scope = Scope(tuple(sorted(set(args.world or (2, 3, 4)))), tuple(args.operations))
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    command = _words(args.peer)
    start = time.monotonic()
    with _folder(args.keep) as folder:
        outcomes = examine(
            remembered(command, folder, seed),
            scope,
            args.only,
            (lambda _: None) if args.json else _print,
            args.exit_first,
        )
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(as_table(args.peer, seed, scope, outcomes)).decode(), indent=2))
    else:
        _print_end(args, outcomes, seed, time.monotonic() - start)
    return int(any(outcome.status == "rejected" for outcome in outcomes))


def remembered(command: Sequence[str], folder: Path, seed: int) -> Observe:
    """Return a function that runs each plan once."""
    seen: dict[str, Observed] = {}

    def observe(plan: Plan) -> Observed:
        if plan.name not in seen:
            (folder / plan.name).mkdir()
            seen[plan.name] = run_session(plan, command, folder / plan.name, seed)
        return seen[plan.name]

    return observe


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise UsageError(f"--peer {text!r}: {problem}", "use shell syntax") from None
    if not words:
        raise UsageError("--peer contains no command", '--peer "python ring.py"')
    return words


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder for the files of the sessions: a kept one must be new or empty."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="frog-peers-") as folder:
            yield Path(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise UsageError(f"--keep {keep}: the folder is not empty", "choose a new folder")
    yield keep.resolve()


def as_table(peer: str, seed: int, scope: Scope, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "peer": peer,
        "seed": seed,
        "worlds": scope.worlds,
        "operations": scope.operations,
        "passed": all(outcome.status != "rejected" for outcome in outcomes),
        "checks": [
            {
                "check": outcome.check,
                "status": outcome.status,
                "seconds": round(outcome.seconds, 3),
                "measured": outcome.measured,
                "finding": outcome.finding and outcome.finding.id,
                "observed": outcome.finding and outcome.finding.observed,
                "belief": outcome.finding and outcome.finding.belief,
                "question": outcome.finding and outcome.finding.question,
            }
            for outcome in outcomes
        ],
    }


def _print(outcome: Outcome) -> None:
    skipped, finding = outcome.status == "skipped", outcome.finding
    asks = next(check.asks for check in CHECKS if check.name == outcome.check)
    print(f"{_MARKS[outcome.status]} {outcome.check:<12} {outcome.measured[0] if skipped else asks}", flush=True)
    texts = outcome.measured if finding is None else (finding.observed,)
    for text in () if skipped else texts:
        _print_text(text)
    if finding is not None:
        _print_text(f"A misconception behind this result: {finding.belief}.")
        _print_text(finding.question)


def _print_text(text: str) -> None:
    print(textwrap.fill(text, _WIDTH, initial_indent=" " * 15, subsequent_indent=" " * 15), flush=True)


def _repeating(args: argparse.Namespace, seed: int) -> list[str]:
    """Return the options that repeat the same sessions."""
    words = ["--peer", args.peer, "--seed", str(seed)]
    words += ["--world", ",".join(map(str, args.world))] if args.world else []
    words += ["--operations", ",".join(args.operations)] if tuple(args.operations) != ("all_reduce",) else []
    for name in args.only:
        words += ["--only", name]
    return words + ["--exit-first"] * args.exit_first


def _print_end(args: argparse.Namespace, outcomes: Sequence[Outcome], seed: int, seconds: float) -> None:
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _MARKS}
    print(f"{counts['passed']} passed, {counts['rejected']} rejected, {counts['skipped']} skipped; {seconds:.1f} s")
    if counts["rejected"]:
        print(f"to repeat: frog collectives check {shlex.join(_repeating(args, seed))}")
    if args.keep:
        print(f"every rank's files and output: {args.keep}")
